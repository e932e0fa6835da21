"""Stacks over QUIC with real containers, in virtual time."""

import itertools
import subprocess
from pathlib import Path

import pytest

from runner.model.result import Outcome
from runner.model.run import Job
from runner.paths import ROOT
from runner.store.runs import RunFolder

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # missing images are built


def test_each_client_that_can_send_uploads_to_each_server_that_can_store(tmp_path: Path) -> None:
    servers, clients = ("nginx", "aioquic", "qpep"), ("curl", "aioquic", "qpep")
    pairs = ("--server", ",".join(servers), "--client", ",".join(clients), "--case", "upload", "--size", "100000")
    command = [str(ROOT / "bentpipe"), "run", "--run", str(tmp_path / "run"), "--yes", "--iterations", "1"]
    subprocess.run([*command, "--clock", "virtual", *pairs], check=False, capture_output=True, timeout=900)
    results = RunFolder.open(tmp_path / "run").results()
    assert {(job.server, job.client) for job in results} == set(itertools.product(servers, clients))
    assert {result.outcome for result in results.values()} == {Outcome.SUCCEEDED}


def test_a_signalling_value_beside_the_suite_is_no_second_suite(tmp_path: Path) -> None:
    job = Job(server="x-net", client="msquic", case="chacha20", iteration=1)
    pair = ("--server", job.server, "--client", job.client, "--case", job.case)
    command = [str(ROOT / "bentpipe"), "run", "--run", str(tmp_path / "run"), "--yes", "--clock", "virtual", *pair]
    subprocess.run(command, check=False, capture_output=True, timeout=900)
    result = RunFolder.open(tmp_path / "run").result(job)
    assert result is not None
    assert result.outcome is Outcome.SUCCEEDED, result.findings
