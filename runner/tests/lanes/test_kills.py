"""Runners that are killed: what they leave goes within seconds, and what others need stays."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from lab.attack.kills import command_line
from lab.attack.verdicts import family
from runner.engine import containers
from runner.engine import engine as host_engine
from runner.engine.containers import LABEL_LANES, LABEL_OWNER
from runner.engine.engine import Owner, remove_own, sweep
from runner.paths import ROOT
from runner.places.lanes.lanes import Lanes
from runner.places.supervised import Watchdog
from runner.tests.lanes.conftest import containers_of, made_by, running
from runner.tests.waiting import wait_until

pytestmark = pytest.mark.docker

CHILD = """
    import os, sys
    from pathlib import Path
    from runner.inputs import inputs
    from runner.places.lanes.lanes import Lanes
    from runner.places.lane_job import EndpointSpec, LaneJob
    from runner.model.stack import Role
    from runner.model.run import Job
    from runner.model.link import LinkRecord
    from runner.model.link import Topology
    from runner.tests.lanes.conftest import LINK, STRANGER
    with Lanes.open("tests-child", lanes=1) as lanes:
        print(os.getpid(), flush=True)
        lanes.run(LaneJob(
            job=Job(server="s", client="c", case="hang", iteration=1), folder=Path(sys.argv[1]),
            client=EndpointSpec(image=STRANGER, environment=inputs.environment(Role.CLIENT, testcase="hang")),
            server=EndpointSpec(image=STRANGER, environment=inputs.environment(Role.SERVER, testcase="fetch")),
            topology=Topology(link=LinkRecord.single("test", LINK, LINK)), seed=1, timeout=600,
            files=inputs.served_files(1, (10,)),
        ))
"""


def _child_at_work(engine: docker.DockerClient, folder: Path) -> subprocess.Popen[str]:
    """A runner of its own whose client and server run."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    # Three keepers, wiring container, simulator, two endpoints, volumes
    wait_until(lambda: bool(running(engine, run="tests-child", role="client")))
    assert len(made_by(engine, "tests-child")) > 8
    return child


def _attached_after(moment_ns: int, engine: docker.DockerClient, container: str) -> bool:
    """True when a process has attached to `container` after this moment, in nanoseconds since 1970."""
    only = {"container": container, "event": "attach"}
    events = engine.api.events(since=moment_ns // 10**9, until=int(time.time()), filters=only, decode=True)
    return any(event["timeNano"] > moment_ns for event in events)


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill a runner and its process group."""
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _sweep(engine: docker.DockerClient) -> int:
    with closing(containers.Engine(engine, {})) as swept:
        return sweep(swept)


@pytest.mark.usefixtures("stranger", "lanes")
def test_a_runner_that_is_killed_alone_leaves_nothing_within_seconds(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    child = _child_at_work(engine, tmp_path)
    child.kill()
    child.communicate()
    wait_until(lambda: made_by(engine, "tests-child") == [], 30)
    owners = {container["Labels"][LABEL_OWNER] for container in containers_of(engine, run="tests")}
    assert str(Owner.current()) in owners, "the wiring container of the lanes that live is untouched"
    assert _sweep(engine) == 0


@pytest.mark.usefixtures("stranger")
def test_a_watchdog_that_was_killed_before_its_runner_removes_everything(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    child = _child_at_work(engine, tmp_path)
    (watchdog,) = containers_of(engine, run="tests-child", role="watchdog")
    first = engine.api.inspect_container(watchdog["Id"])["State"]["Pid"]
    killed_ns = time.time_ns()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: engine.api.inspect_container(watchdog["Id"])["State"]["Pid"] not in (0, first))
    wait_until(lambda: _attached_after(killed_ns, engine, watchdog["Id"]))
    assert len(made_by(engine, "tests-child")) > 8, "its runner lives"
    _kill(child)
    wait_until(lambda: made_by(engine, "tests-child") == [], 30)  # a lease takes 35 s and more


@pytest.mark.usefixtures("stranger")
def test_a_killed_runner_whose_watchdog_the_engine_has_lost_leaves_nothing(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    """After the death of containerd, the engine may not start the container again."""
    child = _child_at_work(engine, tmp_path)
    (watchdog,) = containers_of(engine, run="tests-child", role="watchdog")
    engine.api.stop(watchdog["Id"], timeout=0)
    _kill(child)
    wait_until(lambda: made_by(engine, "tests-child") == [])


@pytest.mark.usefixtures("stranger", "lanes")
def test_what_dead_runners_left_without_a_watchdog_is_swept_and_nothing_else(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    child = _child_at_work(engine, tmp_path)
    (watchdog,) = containers_of(engine, run="tests-child", role="watchdog")
    engine.api.remove_container(watchdog["Id"], force=True)
    (process,) = (other for other in family(child.pid) if b"watchdog.py" in command_line(other))
    os.kill(process, signal.SIGKILL)
    _sweep(engine)
    assert len(made_by(engine, "tests-child")) > 7, "its owner lives"
    _kill(child)
    assert _sweep(engine) > 7
    assert made_by(engine, "tests-child") == []
    owners = {container["Labels"][LABEL_OWNER] for container in containers_of(engine, run="tests")}
    assert str(Owner.current()) in owners


def test_what_a_watchdog_guards_is_not_swept(engine: docker.DockerClient) -> None:
    """For example when an exact copy of this machine uses the same engine: its runner may live there."""
    dead = replace(Owner.current(), pid=2**22 + 1)
    assert dead.is_dead()
    run = containers.Engine(engine, {LABEL_OWNER: str(dead), LABEL_LANES: "bentpipe-test-copied"})
    stop = threading.Event()
    try:
        run.create_volume("bentpipe-test-copied-volume", role="test")
        Watchdog(run, "bentpipe-test-copied", stop).start()
        sweep(run)
        assert "bentpipe-test-copied-volume" in dict(run.labelled_volumes())
    finally:
        stop.set()
        remove_own(run, {LABEL_LANES: "bentpipe-test-copied"})
    assert "bentpipe-test-copied-volume" not in dict(run.labelled_volumes())
    run.close()


def test_an_engine_that_keeps_its_socket_from_containers_still_has_lanes(
    engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example an engine behind TCP whose socket is on another host."""
    monkeypatch.setattr(host_engine, "socket_path", lambda: tmp_path / "no-socket-here")
    messages: list[str] = []
    with Lanes.open("tests-unwatched", lanes=1, client=engine, say=messages.append):
        assert len(messages) == 1
    assert "The watchdog over the lanes did not start" in messages[0]
    assert messages[0].endswith("If this run is killed, the next one removes its containers.")
    assert made_by(engine, "tests-unwatched") == []
