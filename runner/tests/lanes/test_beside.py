"""A second flow in real lanes: over TCP and over QUIC, through the same bottleneck and in no other capture."""

from pathlib import Path

import pytest
from rich.console import Console

from runner.campaign.campaign import run_matrix
from runner.decode.capture import TCP, UDP, read_packets
from runner.judge.readback import BESIDE
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.model.stack import BesideRole
from runner.plan.options import MatrixOptions
from runner.store.runs import NamedRuns, RunFolder, load_evidence

pytestmark = [pytest.mark.docker, pytest.mark.slow]

FLOWS = ("tcp-bbr", "quic-go")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """4 MB from quinn to quinn, beside each flow."""
    path = tmp_path_factory.mktemp("beside") / "run"
    options = MatrixOptions(
        name=str(path),
        servers=("quinn",),
        clients=("quinn",),
        cases=("goodput",),
        sizes=("4000000",),
        besides=FLOWS,
        keep_captures="all",
        iterations=1,
        seed=5,
        yes=True,
    )
    run_matrix(options, NamedRuns.open(options.name), out=Console(quiet=True), err=Console(quiet=True))
    return RunFolder.open(path)


def _job(flow: str) -> Job:
    return Job(server="quinn", client="quinn", case=f"goodput-4000kB+{flow}", iteration=1)


def _result(run: RunFolder, flow: str) -> Result:
    result = run.result(_job(flow))
    assert result is not None
    assert result.outcome is Outcome.SUCCEEDED or result.findings[0].code == "disturbed", result.findings
    return result


@pytest.mark.parametrize("flow", FLOWS)
def test_both_flows_are_in_the_links_capture_and_only_the_jobs_own_at_the_client(run: RunFolder, flow: str) -> None:
    _result(run, flow)
    artifacts = run.artifacts(_job(flow))
    on_link, at_client, at_server = (
        _senders(path) for path in (artifacts.link_captures[0], artifacts.client_capture, artifacts.server_capture)
    )
    assert on_link == at_client | set(BESIDE)
    assert at_client == at_server
    assert len(at_client) == 2 and not at_client & set(BESIDE)


def _senders(capture: Path) -> set[bytes]:
    """The sources of TCP and UDP packets in a capture."""
    return {packet.source for packet in read_packets(capture)[1] if packet.protocol in (TCP, UDP)}


@pytest.mark.parametrize("flow", FLOWS)
def test_both_flows_begin_together_and_share(run: RunFolder, flow: str) -> None:
    result = _result(run, flow)
    evidence = load_evidence(run.artifacts(_job(flow)))
    assert evidence is not None and evidence.client.started is not None
    started = evidence.beside[BesideRole.CLIENT].started
    assert started is not None and abs(started - evidence.client.started) < 1.0
    assert evidence.beside[BesideRole.CLIENT].stopped_by_us
    if result.outcome is Outcome.SUCCEEDED:
        assert result.sample is not None and result.sample.bottleneck_share is not None
        assert 0.05 < result.sample.bottleneck_share < 0.95
        assert result.sample.shared_time is not None and result.sample.ttlb is not None
        assert result.sample.shared_time < result.sample.ttlb + 0.1


def test_tcp_beside_has_the_controller_of_its_name(run: RunFolder) -> None:
    log = run.artifacts(_job("tcp-bbr")).folder / BesideRole.SERVER / "output.log"
    assert "applied: cca=bbr" in log.read_text()
