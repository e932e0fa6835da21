"""`./bentpipe run` with real containers: good stacks, bad images, Ctrl-C, kill -9. Needs the images of the demo."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.engine.engine import connect
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.paths import ROOT
from runner.store.runs import RunFolder
from runner.tests.lanes.conftest import running
from runner.tests.waiting import wait_until

pytestmark = pytest.mark.docker

# The misbehaviour of each bad image: a shell script around the entry point of its stack.
BAD = {
    "hangs": 'if [ "$ROLE" = client ]; then wait_for_sigterm; fi; exec /entrypoint.sh',
    "exits": 'if [ "$ROLE" = server ]; then exit 3; fi; exec /entrypoint.sh',
    "silent": 'if [ "$ROLE" = server ]; then wait_for_sigterm; fi; exec /entrypoint.sh',
    "wrong": '/entrypoint.sh; code=$?; for f in /downloads/*; do printf X | dd of="$f" conv=notrunc; done; exit $code',
    "missing": "/entrypoint.sh; code=$?; rm -f /downloads/*; exit $code",
    "extra": "/entrypoint.sh; code=$?; touch /downloads/index.html; exit $code",
    "keyless": "export SSLKEYLOGFILE=/dev/null; exec /entrypoint.sh",
    "floods": "/entrypoint.sh; code=$?; dd if=/dev/zero of=/logs/big bs=1M count=1000; exit $code",
}
# A server on a port of its own. Python, which quinn's image lacks, opens the socket.
ELSEWHERE = """exec python3 -c '
import signal, socket
signal.signal(signal.SIGTERM, lambda *_: exit())
s = socket.socket(type=2)
s.bind(("", 4433))
signal.pause()'"""
# Process 1 ignores SIGTERM without a handler.
WAIT_FOR_SIGTERM = "wait_for_sigterm() { trap exit TERM; sleep 1000 & wait; }"
LOOSE = "exit 0"  # this image exits with 0 even for an unknown case


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An implementations.json with quinn and the bad images, which are built from it."""
    client, folder = connect(), tmp_path_factory.mktemp("stacks")
    entries = {"quinn": _entry("bentpipe/quinn")}
    for name, script in {**BAD, "elsewhere": ELSEWHERE, "loose": LOOSE}.items():
        base = "bentpipe/aioquic" if name == "elsewhere" else "bentpipe/quinn"
        probe = "" if name == "loose" else 'case "$TESTCASE" in handshake) ;; *) exit 127 ;; esac\n'
        context = folder / name
        context.mkdir()
        (context / "entry.sh").write_text(f"#!/bin/bash\n{WAIT_FOR_SIGTERM}\n{probe}{script}\n")
        (context / "entry.sh").chmod(0o755)
        (context / "Dockerfile").write_text(f'FROM {base}\nCOPY entry.sh /\nENTRYPOINT ["/entry.sh"]\n')
        client.images.build(path=str(context), tag=f"bentpipe-test/{name}", rm=True)
        entries[name] = _entry(f"bentpipe-test/{name}")
    path = folder / "implementations.json"
    path.write_text(json.dumps({"schema": 1, "implementations": entries}))
    yield path
    for name in (*BAD, "elsewhere", "loose"):
        client.images.remove(f"bentpipe-test/{name}", force=True)


def _entry(image: str) -> dict[str, object]:
    return {"image": image, "url": "https://example.org", "version": "test", "roles": ["client", "server"]}


def command(path: Path, *arguments: str, stacks: Path | None = None) -> list[str]:
    options = ("--implementations", str(stacks)) if stacks else ()
    return [sys.executable, "-m", "runner", *options, "run", "--run", str(path), "--seed", "3", *arguments]


def run(path: Path, *arguments: str, stacks: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(path, *arguments, stacks=stacks), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def results(path: Path) -> dict[Job, Result]:
    return RunFolder.open(path).results()


def test_bad_images_get_outcomes_of_their_own_and_the_run_goes_on(stacks: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    common = ("--case", "handshake", "--timeout-scale", "0.15", "--lanes", "2")
    clients = ("hangs", "wrong", "missing", "extra", "keyless", "floods", "loose", "quinn")
    first = run(path, "--server", "quinn", "--client", ",".join(clients), *common, stacks=stacks)
    assert first.returncode == 0, first.stderr
    pair = run(path, "--server", "keyless", "--client", "keyless", *common, stacks=stacks)
    assert pair.returncode == 0, pair.stderr
    last = run(path, "--server", "exits,silent,elsewhere", "--client", "quinn", "--strict", *common, stacks=stacks)
    assert last.returncode == 1, last.stderr
    outcome = results(path)
    verdicts = {
        (job.client, job.server): (result.outcome, result.findings[0].code if result.findings else "")
        for job, result in outcome.items()
    }
    assert verdicts[("quinn", "quinn")] == (Outcome.SUCCEEDED, "")
    assert verdicts[("hangs", "quinn")] == (Outcome.FAILED, "timeout")
    assert verdicts[("wrong", "quinn")] == (Outcome.FAILED, "files-differ")
    assert verdicts[("missing", "quinn")] == (Outcome.FAILED, "files-differ")
    assert verdicts[("extra", "quinn")] == (Outcome.FAILED, "files-extra")
    assert verdicts[("floods", "quinn")] == (Outcome.FAILED, "volume-full")
    assert verdicts[("loose", "quinn")] == (Outcome.SKIPPED, "not-compliant")
    assert verdicts[("quinn", "exits")] == (Outcome.FAILED, "server-exit")
    assert verdicts[("quinn", "silent")] == (Outcome.FAILED, "server-not-ready")
    assert verdicts[("quinn", "elsewhere")] == (Outcome.FAILED, "server-not-ready")
    text = {
        job.server: result.findings[0].actual
        for job, result in outcome.items()
        if job.client == "quinn" and result.findings
    }
    assert text["silent"] == "no answer; the server has no UDP socket"
    assert text["elsewhere"] == "no answer; the server has UDP port 4433 open instead"
    # One key log of the two suffices; without any, the verdict comes from what can be seen without secrets.
    assert verdicts[("keyless", "quinn")] == (Outcome.SUCCEEDED, "")
    assert verdicts[("keyless", "keyless")] == (Outcome.SUCCEEDED, "")


def test_an_image_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "implementations.json"
    entry = _entry("bentpipe-test/not-there:latest")
    path.write_text(json.dumps({"schema": 1, "implementations": {"nobody": entry}}))
    process = run(tmp_path / "run", "--server", "nobody", "--case", "handshake", stacks=path)
    assert process.returncode == 3
    assert "bentpipe-test/not-there" in process.stderr
    assert "Traceback" not in process.stderr


def _left(client: docker.DockerClient, run_name: str) -> list[str]:
    containers = client.containers.list(all=True, ignore_removed=True, filters={"label": f"bentpipe.run={run_name}"})
    return [container.name or "" for container in containers]


# Two round trips of 1.5 s for each job, on every host: two jobs that are left last 6 s in one lane.
SMALL = ("--server", "quinn", "--client", "quinn,quic-go,aioquic", "--case", "longrtt")


def _started(path: Path, *options: str, until: str = "*_*/*/*/result.json") -> subprocess.Popen[str]:
    """A run that has such a file (by default its first result), and in which a client is running."""
    process = subprocess.Popen(
        command(path, *SMALL, *options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    engine = connect()

    def is_under_way() -> bool:
        assert process.poll() is None, process.communicate()
        return bool(list(path.glob(until)) and running(engine, run=path.name, role="client"))

    wait_until(is_under_way)
    return process


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "interrupted-run"
    process = _started(path, "--lanes", "1")
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3, stderr
    assert f"./bentpipe run --run {path}" in " ".join(stderr.split())
    assert "Traceback" not in stderr
    assert _left(connect(), path.name) == []
    before = results(path)
    assert 0 < len(before) < 3
    resumed = run(path)
    assert resumed.returncode == 0, resumed.stderr
    after = results(path)
    assert len(after) == 3
    assert {job: after[job] for job in before} == before


def test_a_killed_run_is_swept_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "killed-run"
    process = _started(path, "--lanes", "2")
    engine = connect()
    os.kill(process.pid, signal.SIGSTOP)  # what it has now is left when it is killed
    assert _left(engine, path.name)
    process.kill()  # kills only the runner, as the kernel does when memory runs out
    process.wait()
    before = results(path)
    resumed = run(path)
    assert resumed.returncode == 0, resumed.stderr
    assert _left(engine, path.name) == []
    after = results(path)
    assert len(after) == 3
    assert {job: after[job] for job in before} == before
    assert {result.outcome for result in after.values()} == {Outcome.SUCCEEDED}


def test_a_second_runner_on_the_same_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = _started(path, until="run.json")
    os.killpg(first.pid, signal.SIGSTOP)  # it can't end before the second one
    try:
        second = run(path)
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    assert second.returncode == 2
    assert "Another runner" in second.stderr
    first.communicate(timeout=300)
    assert first.returncode == 0
