"""Jobs over real paths in real lanes: how they crossed, from their captures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from runner.campaign.path_matrix import is_path_run, run_paths
from runner.campaign.session import MatrixOptions
from runner.config.path_selection import PathOptions
from runner.judge.crossing.path_judge import analyse_path
from runner.model.job import Job
from runner.model.path import ORIGIN, Side
from runner.model.result import Outcome, Result
from runner.store import RunFolder, load_evidence, save_evidence

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # three images are built where they are missing

CASE = "goodput-20kB-leo"
ALL = {"client address", "server address", "ports", "server name", "secret in the URL", "secret in a header", "content"}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One small transfer over a plain path and over an encrypted one."""
    path = tmp_path_factory.mktemp("paths") / "night"
    asked = PathOptions(
        paths=("plain,wireguard",), workloads=("goodput",), links=("leo",), sizes=("20000",), iterations=1
    )
    # On a host that is busy with other tests the numbers may be spoiled; how the packets went is not.
    run_paths(_options(path), asked, out=Console(quiet=True), err=Console(quiet=True))
    return RunFolder.open(path)


def _options(path: Path) -> MatrixOptions:
    return MatrixOptions(name=str(path), keep_captures="all", seed=5, iterations=1)


def _result(night: RunFolder, path: str) -> Result:
    result = night.result(Job(server=ORIGIN, client=path, case=CASE, iteration=1))
    assert result is not None
    assert result.outcome is Outcome.SUCCEEDED or result.findings[0].code == "disturbed", result.findings
    return result


def test_a_plain_path_shows_everything(night: RunFolder) -> None:
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


def test_traffic_beside_the_path_is_an_error_not_a_number(night: RunFolder) -> None:
    """A plain crossing that claims to be an encrypting, splitting path: as when a proxy fails open."""
    job = Job(server=ORIGIN, client="plain", case=CASE, iteration=1)
    artifacts = night.artifacts(job)
    evidence = load_evidence(artifacts)
    assert evidence is not None and evidence.path is not None
    claims = {"encrypts": {"encrypts": True}, "splits": {"splits": (Side.GATEWAY,)}}
    for claim in claims.values():
        false = replace(evidence.path, entry=replace(evidence.path.entry, **claim))  # type: ignore[arg-type]
        calm = replace(evidence, path=false, cpu_pressure=0.0, host_steal=0.0)
        save_evidence(artifacts, calm)
        truths = (artifacts.link_truth, artifacts.ground_truth)
        kept = [truth.read_text() for truth in truths]
        for truth, text in zip(truths, kept, strict=True):
            document = json.loads(text)
            document["lateness_s"]["p99"] = document["receive_lateness_s"]["p99"] = 0.0
            truth.write_text(json.dumps(document))
        judged = analyse_path(job, artifacts, None, night.run.cases[CASE])
        for truth, text in zip(truths, kept, strict=True):
            truth.write_text(text)
        assert (judged.outcome, judged.findings[0].code) == (Outcome.ERROR, "bypassed")
    save_evidence(artifacts, evidence)


def test_a_run_of_paths_is_known_by_its_name(night: RunFolder) -> None:
    assert is_path_run(_options(night.path), PathOptions())
