"""Stacks over QUIC with real containers, in virtual time."""

import subprocess
from pathlib import Path

import pytest

from runner.model.result import Outcome
from runner.model.run import Job
from runner.paths import ROOT
from runner.store.runs import RunFolder

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # missing images are built


def test_a_signalling_value_beside_the_suite_is_no_second_suite(tmp_path: Path) -> None:
    job = Job(server="x-net", client="msquic", case="chacha20", iteration=1)
    pair = ("--server", job.server, "--client", job.client, "--case", job.case)
    command = [str(ROOT / "bentpipe"), "run", "--run", str(tmp_path / "run"), "--yes", "--clock", "virtual", *pair]
    subprocess.run(command, check=False, capture_output=True, timeout=900)
    result = RunFolder.open(tmp_path / "run").result(job)
    assert result is not None
    assert result.outcome is Outcome.SUCCEEDED, result.findings
