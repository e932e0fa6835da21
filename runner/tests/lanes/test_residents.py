"""The parts of a lane that serve several jobs: keepers that run commands, a simulator that runs link after link."""

import gc
import hashlib
import io
import json
import os
import secrets
import signal
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from runner.engine import containers
from runner.engine.containers import LABEL_OWNER
from runner.engine.engine import Owner
from runner.errors import LaneError
from runner.model.link import LinkRecord, Topology
from runner.model.result import Artifacts
from runner.places import supervised
from runner.places.lanes.lane import WAKE_UP
from runner.places.lanes.lanes import Lanes
from runner.places.supervised import CommandContainer, Notifier
from runner.store import collect
from runner.tests.lanes.conftest import Ask, running
from runner.tests.waiting import wait_until

pytestmark = pytest.mark.docker
RUN = "tests-residents"


@pytest.fixture
def keeper(engine: docker.DockerClient) -> Iterator[CommandContainer]:
    wrapped = containers.Engine(engine, {LABEL_OWNER: str(Owner.current())})
    made = wrapped.create(f"bentpipe-test-{secrets.token_hex(4)}", supervised.keeper("client", ()))
    held = CommandContainer(wrapped, made, Notifier(threading.Event()))
    held.start()
    yield held
    wrapped.remove(made)
    wrapped.close()


@pytest.fixture
def single(engine: docker.DockerClient) -> Iterator[Lanes]:
    with Lanes.open(RUN, lanes=1, client=engine) as opened:
        yield opened


def _simulators(engine: docker.DockerClient) -> list[str]:
    filters = {"label": [f"bentpipe.run={RUN}", "bentpipe.role=sim"]}
    return [container["Id"] for container in engine.api.containers(filters=filters)]


def _link_process(engine: docker.DockerClient) -> int:
    """Waits until a link runs, in a process of its own; its PID on this host."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for simulator in _simulators(engine):
            processes = engine.api.top(simulator, ps_args="-o pid,ppid")["Processes"]
            supervisors = {pid for pid, _ in processes}
            for child in (pid for pid, parent in processes if parent in supervisors):
                return int(child)
        time.sleep(0.2)
    raise AssertionError("no link began")


def _open_files(pid: int) -> list[Path]:
    return [file.readlink() for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]


def test_commands_run_at_once_and_say_how_they_ended(keeper: CommandContainer) -> None:
    meet = "touch /tmp/$0; until [ -e /tmp/0 -a -e /tmp/1 -a -e /tmp/2 -a -e /tmp/3 ]; do sleep 0.05; done"
    script = f"{meet}; echo $0; echo error >&2; exit $0"
    commands = [["timeout", "60", "sh", "-c", script, str(code)] for code in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(keeper.execute, commands)) == [(code, f"{code}\nerror\n") for code in range(4)]
    code, printed = keeper.execute(["absent-command"])
    assert code == 127
    assert "absent-command" in printed


def test_an_answer_that_nobody_reads_on_ends_its_command(keeper: CommandContainer) -> None:
    endless = keeper.run(["yes"])
    assert next(endless).startswith(b"y\ny\n")
    time.sleep(0.5)  # until all buffers on the way are full
    endless.close()
    assert keeper.execute(["echo", "still here"]) == (0, "still here\n")
    wait_until(lambda: "yes" not in keeper.execute(["ps", "-e", "-o", "comm"])[1], 20)


def test_a_folder_comes_whole_whoever_owns_its_files(keeper: CommandContainer) -> None:
    make = "cd /tmp && mkdir -p a/b && head -c 3000000 /dev/urandom > a/b/c && ln -s /etc a/link && sha256sum a/b/c"
    code, printed = keeper.execute(["sh", "-c", f"{make} && chmod 0 a/b/c a/b"])
    assert code == 0
    with tarfile.open(fileobj=io.BytesIO(b"".join(keeper.archive("/tmp/a")))) as archive:
        members = {member.name: member for member in archive}
        content = archive.extractfile("a/b/c")
        assert content is not None
        assert hashlib.sha256(content.read()).hexdigest() == printed.split()[0]
    assert members["a/link"].issym()


def test_a_folder_that_nobody_reads_to_its_end_stops_nobody_else(keeper: CommandContainer, tmp_path: Path) -> None:
    make = "mkdir /tmp/a && cd /tmp/a && echo 1 > zero && truncate -s 50G sparse && echo 2 > before"
    assert keeper.execute(["sh", "-c", make])[0] == 0
    gc.disable()
    try:
        done = collect.extract(keeper.archive("/tmp/a"), tmp_path)
        assert keeper.execute(["echo", "still here"]) == (0, "still here\n")
    finally:
        gc.enable()
    assert done.skipped == [f"sparse ({50 << 30} bytes are over the budget)"]
    assert [path.name for path in tmp_path.iterdir()] == ["before"], "members come by name"


def test_a_holder_that_ends_is_told(keeper: CommandContainer, engine: docker.DockerClient) -> None:
    waiting = keeper.run(["sh", "-c", "echo began; sleep 60"])
    assert next(waiting) == b"began\n"
    engine.api.kill(keeper.container)
    with pytest.raises(LaneError) as caught:
        next(waiting)
    assert caught.value.code == "holder-died"
    with pytest.raises(LaneError):
        keeper.execute(["true"])


def test_a_holder_ends_with_the_stream_to_its_runner(engine: docker.DockerClient) -> None:
    """For example when the runner is killed."""
    wrapped = containers.Engine(engine, {LABEL_OWNER: str(Owner.current())})
    made = wrapped.create(f"bentpipe-test-{secrets.token_hex(4)}", supervised.keeper("client", ()))
    try:
        stream = wrapped.follow(made, stdin=True)
        wrapped.start(made)
        stream.close()
        wrapped.wait(made)
        assert wrapped.state(made).exit_code == 0
    finally:
        wrapped.remove(made)
        wrapped.close()


def test_one_simulator_serves_job_after_job(single: Lanes, engine: docker.DockerClient, ask: Ask) -> None:
    simulators = []
    for seed in (5, 6):
        job = replace(ask(name=f"job{seed}"), seed=seed)
        evidence = single.run(job)
        assert evidence.error == {}
        truth = json.loads(Artifacts(job.folder).link_truth.read_bytes())
        assert truth["seed"] == seed
        assert truth["duration_s"] < evidence.wall_s, "of this job alone"
        simulators.append(_simulators(engine))
    assert len(simulators[0]) == 1
    assert simulators[0] == simulators[1]


@pytest.mark.parametrize("victim", ["container", "link"])
def test_a_simulator_that_dies_is_told_and_the_next_job_has_another(
    single: Lanes, engine: docker.DockerClient, ask: Ask, victim: str
) -> None:
    if victim == "link" and os.geteuid() != 0:
        pytest.skip("only root may kill a process in a container that has no shell")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(single.run, ask(client="hang"))
        link = _link_process(engine)
        outcome = _simulators(engine)
        wait_until(lambda: bool(running(engine, run=RUN, role="client")))
        if victim == "container":
            engine.api.kill(outcome[0])
        else:
            os.kill(link, signal.SIGKILL)
        evidence = job.result()
    assert evidence.error["code"] == "link-died"
    assert not evidence.client.timed_out
    following = ask(name="next")
    assert single.run(following).error == {}
    assert Artifacts(following.folder).link_truth.is_file()
    assert outcome[0] not in _simulators(engine)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may see what another's process has open")
@pytest.mark.skipif(not WAKE_UP.exists(), reason="this kernel has no PM QoS")
def test_the_cpus_stay_awake_while_a_link_runs(single: Lanes, engine: docker.DockerClient, ask: Ask) -> None:
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(single.run, ask(client="hang", timeout=5))
        link = _link_process(engine)
        wait_until(lambda: WAKE_UP in _open_files(link), pause=0.02)
        job.result()
    assert not Path(f"/proc/{link}").exists(), "the request ends with the link"
    [simulator] = _simulators(engine)
    [[waiting]] = engine.api.top(simulator, ps_args="-o pid")["Processes"]
    assert WAKE_UP not in _open_files(int(waiting))


def test_a_fault_of_the_document_is_told(single: Lanes, ask: Ask) -> None:
    job = ask()
    evidence = single.run(
        replace(job, topology=Topology(link=LinkRecord.single("slow", replace(job.forward, delay=100.0), job.forward)))
    )
    assert evidence.error["code"] == "link-not-ready"
    assert "forward.delay must be seconds from 0 to 60, not 100.0." in evidence.error["message"]
    assert "link ended with 2" in evidence.error["message"]
