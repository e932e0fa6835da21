"""Stacks over TCP with real containers, in a lane: verdicts and numbers from their packets."""

import subprocess
from pathlib import Path

import pytest

from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.paths import ROOT
from runner.store.runs import RunFolder

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # missing images are built

PAIRS = [("nginx+h2", "curl+h2"), ("haproxy+h2", "curl+h2"), ("nginx+h1", "curl+h1"), ("haproxy+h1", "curl+h1")]


def _run(folder: Path, *options: str) -> RunFolder:
    command = [str(ROOT / "bentpipe"), "run", "--run", str(folder), "--yes", "--iterations", "1", *options]
    subprocess.run(command, check=False, capture_output=True, timeout=900)
    return RunFolder.open(folder)


def _result(run: RunFolder, server: str, client: str, case: str) -> Result:
    result = run.result(Job(server=server, client=client, case=case, iteration=1))
    assert result is not None
    return result


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("tcp") / "night"
    servers, clients = (",".join(sorted({pair[side] for pair in PAIRS})) for side in (0, 1))
    variant = ("--variant", "nginx+h2:CCA=reno,IW=4")
    return _run(folder, "--server", servers, "--client", clients, "--case", "handshake,retry", *variant)


@pytest.mark.parametrize(("server", "client"), PAIRS)
def test_a_pair_over_tcp_shakes_hands(night: RunFolder, server: str, client: str) -> None:
    result = _result(night, server, client, "handshake")
    assert result.outcome is Outcome.SUCCEEDED, result.findings
    assert result.protocol == {"h1": "http/1.1", "h2": "h2"}[client.partition("+")[2]]
    assert result.sample is not None
    # SYN, hello, and the request with Finished: three round trips until the server's first byte under application keys.
    assert result.sample.handshake_time == pytest.approx(3 * 0.03, abs=0.03)
    assert {(one.role, one.parameter): one.found for one in result.readings}[("server", "CCA")] == "cubic"


def test_a_variant_has_its_controller_and_window(night: RunFolder) -> None:
    result = _result(night, "nginx+h2+cca=reno+iw=4", "curl+h2", "handshake")
    assert result.outcome is Outcome.SUCCEEDED, result.findings
    assert result.applied["server"].startswith("cca=reno iw=4")
    assert not result.refuted


def test_what_is_about_quic_is_unsupported_with_the_reason(night: RunFolder) -> None:
    result = _result(night, "nginx+h2", "curl+h2", "retry")
    assert result.outcome is Outcome.UNSUPPORTED
    assert result.findings[0].actual == "nginx+h2 and curl+h2 share h2 only, and retry runs over hq-interop"
