"""A worker of this host runs jobs in lanes, in real time, with the commands that a user types. Needs the images of
quic-go and quinn."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from runner.engine.engine import connect
from runner.model.result import Outcome
from runner.paths import LOGS, ROOT
from runner.places.workers.worker import invitation_folder
from runner.store.runs import RunFolder, load_evidence
from runner.tests.workers.recorded import Processes, processes
from runner.tests.workers.test_workers import wait_until

pytestmark = pytest.mark.docker

PROGRAM = [sys.executable, "-P", "-m", "runner"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@contextmanager
def joined(campaign: Processes, log: Path) -> Iterator[None]:
    """A worker with one lane. At the end it gets SIGINT, and removes everything that it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*PROGRAM, "worker", str(campaign.address), "--lanes", "1", "--yes"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        process.stdin.write(f"{campaign.invitation.token}\n".encode())
        process.stdin.close()
        wait_until(lambda: b"takes part in" in log.read_bytes())
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(120)
        shutil.rmtree(invitation_folder(LOGS, campaign.address), ignore_errors=True)


def test_a_job_in_real_time_runs_in_a_lane_of_the_worker(tmp_path: Path) -> None:
    before = {container.id for container in connect().containers.list(all=True, ignore_removed=True)}
    with processes(tmp_path / "processes") as campaign:
        campaign.start("schedule")
        with joined(campaign, tmp_path / "worker.log"):
            command = [*PROGRAM, "run", "--on", str(campaign.address), "--run", str(tmp_path / "run"), "--yes"]
            command += ["--server", "quic-go", "--client", "quinn", "--case", "handshake", "--seed", "3"]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = RunFolder.open(tmp_path / "run")
    ((job, result),) = folder.results().items()
    assert folder.run.clock == "real"
    assert result.outcome is Outcome.SUCCEEDED, result.findings
    evidence = load_evidence(folder.artifacts(job))
    assert evidence is not None
    assert evidence.guest is None
    assert "lane" in evidence.stages_s
    assert result.host["worker"] == evidence.host["worker"]
    assert "takes part with 1 lane" in done.stdout
    left = [one for one in connect().containers.list(all=True, ignore_removed=True) if one.id not in before]
    assert [one.name for one in left if one.labels.get("bentpipe.run") == "worker"] == []
