"""The engine ends while jobs run: they run again when it is back, and stay undone when it doesn't come back.

The engine is a private one in its own namespaces, so that no other containers end with it.
"""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from lab.testbed.hosts import Host, free_number, lacking
from runner.errors import SetupError
from runner.model.stack import Role
from runner.places.lanes import lanes as lanes_module
from runner.places.lanes.lanes import Lanes
from runner.tests.lanes.conftest import STRANGER, Ask, made_by, running
from runner.tests.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.skipif(bool(lacking()), reason=lacking())]


@pytest.fixture(scope="module")
def host(engine: docker.DockerClient, stranger: str) -> Iterator[Host]:  # noqa: ARG001 - the images are made
    with tempfile.TemporaryDirectory() as folder:
        private = Host(Path(folder), free_number())
        try:
            private.open()
            private.load("bentpipe/tools", "bentpipe/sim", STRANGER)
            yield private
        finally:
            private.close()


@pytest.fixture
def sentences(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sentences for the user while the runner uses the private engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{host.socket}")
    return []


def _engine_process(host: Host) -> int:
    return int(Path(f"/proc/{host.anchor}/root/run/docker.pid").read_text())


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_job_that_the_engine_ended_runs_again(host: Host, sentences: list[str], ask: Ask, how: str) -> None:
    with Lanes.open(f"restarts-{how}", lanes=2, client=host.engine(), say=sentences.append) as lanes:

        def end_engine() -> None:
            # The transfer begins 4 s after its client.
            wait_until(lambda: bool(running(host.engine(), run=f"restarts-{how}", role="client")))
            if how == "killed":
                os.kill(_engine_process(host), signal.SIGKILL)
            host.restart_engine()

        ending = threading.Thread(target=end_engine)
        ending.start()
        evidence = lanes.run(ask(client="die-slowly", timeout=20))
        ending.join()
        assert evidence.error == {}
        assert evidence.client.exit_code == 0
        assert all(file.equal for file in evidence.files)
        assert len(sentences) == 2, sentences
        assert "went away" in sentences[0] and "run again" in sentences[1]
        assert lanes.run(ask(name="next")).error == {}
        assert not lanes.probe(STRANGER, Role.CLIENT).problem
    assert made_by(host.engine(), f"restarts-{how}") == []


@pytest.mark.slow
def test_an_engine_that_stays_away_leaves_its_jobs_undone(
    host: Host, sentences: list[str], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "PATIENCE_SECONDS", 4.0)
    job = ask(client="hang", timeout=60)
    ending = threading.Timer(3, host.stop_engine)
    try:
        with (
            pytest.raises(SetupError, match="went away while jobs ran") as raised,
            Lanes.open("restarts-never", lanes=2, client=host.engine(), say=sentences.append) as lanes,
        ):
            ending.start()
            began = time.monotonic()
            lanes.run(job)
        assert raised.value.exit_code == 3
        assert time.monotonic() - began < 60
        assert len(sentences) == 1
    finally:
        ending.join()
        host.start_engine()
    deadline = time.monotonic() + 120  # the watchdog is started with the engine, and waits a minute for its runner
    while made_by(host.engine(), "restarts-never"):
        assert time.monotonic() < deadline, made_by(host.engine(), "restarts-never")
        time.sleep(1)
