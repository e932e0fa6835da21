"""Jobs through middleboxes in real lanes: how they crossed, from their captures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from runner.campaign.campaign import run_matrix
from runner.judge.judges import judge_job
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.model.stack import Box
from runner.plan.options import MatrixOptions
from runner.store.runs import NamedRuns, RunFolder, load_evidence, save_evidence

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # missing images are built

CASE = "download-20kB"
ALL = {"client address", "server address", "ports", "server name", "secret in the URL", "secret in a header", "content"}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One small transfer through nothing, through a box that only forwards, and through an encrypting tunnel."""
    path = tmp_path_factory.mktemp("vias") / "night"
    loads = _options(path, vias=("none,plain,wireguard",), cases=("download",), sizes=("20000",), links=("leo",))
    # On a host that is busy with other tests the numbers may be spoiled; how the packets went is not.
    run_matrix(loads, NamedRuns.open(loads.name), out=Console(quiet=True), err=Console(quiet=True))
    stacks = {"servers": ("quic-go",), "clients": ("quinn",), "cases": ("handshake",), "links": ("sat",)}
    options = _options(path, vias=("none,plain,wireguard",), **stacks)
    run_matrix(options, NamedRuns.open(options.name), out=Console(quiet=True), err=Console(quiet=True))
    return RunFolder.open(path)


def _options(path: Path, **axes: tuple[str, ...]) -> MatrixOptions:
    return MatrixOptions(name=str(path), keep_captures="all", seed=5, iterations=1, yes=True, **axes)  # type: ignore[arg-type]


def _job(via: str, *, stacks: bool = False) -> Job:
    if stacks:
        return Job(server="quic-go", client="quinn", via=via, case="handshake", link="sat", iteration=1)
    return Job(server="origin", client="downloader", via=via, case=CASE, link="leo", iteration=1)


def _result(night: RunFolder, via: str, *, stacks: bool = False) -> Result:
    result = night.result(_job(via, stacks=stacks))
    assert result is not None
    assert result.outcome is Outcome.SUCCEEDED or result.findings[0].code == "disturbed", result.findings
    return result


def test_a_plain_way_shows_everything(night: RunFolder) -> None:
    crossing = _result(night, "plain").crossing
    assert crossing is not None
    assert set(crossing.visible) == ALL
    assert (crossing.connections, crossing.whole, crossing.outer_bytes) == (1, 1, 0)


def test_a_tunnel_shows_nothing_and_carries_everything(night: RunFolder) -> None:
    crossing = _result(night, "wireguard").crossing
    assert crossing is not None
    assert crossing.visible == ()
    assert (crossing.connections, crossing.whole, crossing.inner_bytes) == (1, 1, 0)
    assert crossing.outer_bytes > 20_000


def test_the_round_trip_is_that_of_both_segments(night: RunFolder) -> None:
    sample = _result(night, "plain").sample
    assert sample is not None and sample.handshake_time is not None
    assert 0.112 <= sample.handshake_time < 0.150


@pytest.mark.parametrize("via", ["", "plain", "wireguard"])
def test_a_stack_is_judged_by_its_own_packets_whatever_is_on_the_way(night: RunFolder, via: str) -> None:
    result = _result(night, via, stacks=True)
    assert result.sample is not None and result.sample.handshake_time is not None
    assert 1.2 <= result.sample.handshake_time < 1.5  # two RTTs of 0.6 s
    if via:
        assert result.crossing is not None
        assert bool(result.crossing.outer_bytes) is (via == "wireguard")
        assert ("server name" in result.crossing.visible) is (via == "plain")


def test_traffic_beside_the_middlebox_is_an_error_not_a_number(night: RunFolder) -> None:
    """A plain crossing that claims to be an encrypting, splitting middlebox: as when a proxy fails open."""
    job = _job("plain")
    artifacts = night.artifacts(job)
    evidence = load_evidence(artifacts)
    assert evidence is not None and evidence.via is not None
    claims = {"encrypts": {"encrypts": True}, "splits": {"splits": (Box.GATEWAY,)}}
    for claim in claims.values():
        calm = replace(evidence, via=replace(evidence.via, **claim), cpu_pressure=0.0, host_steal=0.0)  # type: ignore[arg-type]
        save_evidence(artifacts, calm)
        truths = (artifacts.link_truth, artifacts.ground_truth)
        kept = [truth.read_text() for truth in truths]
        for truth, text in zip(truths, kept, strict=True):
            document = json.loads(text)
            document["lateness_s"]["p99"] = document["receive_lateness_s"]["p99"] = 0.0
            truth.write_text(json.dumps(document))
        judged = judge_job(job, artifacts, None, night.run.case(job))
        for truth, text in zip(truths, kept, strict=True):
            truth.write_text(text)
        assert (judged.outcome, judged.findings[0].code) == (Outcome.ERROR, "bypassed")
    save_evidence(artifacts, evidence)
