"""The program in the watchdog's container decides when a runner is dead."""

import json
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.places import supervised

SCRIPT = Path(supervised.__file__).parent / "scripts" / "watchdog.py"
LEASE, MORE_TIME = 0.5, 20.0
_WATCH = f"""
import runpy, sys
script = runpy.run_path({str(SCRIPT)!r})
script["watch"](script["EngineSocket"](sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
"""


CONTAINERS = [
    {"Id": "1", "Names": ["/lane-holder"], "State": "running"},
    {"Id": "2", "Names": ["/lane-sim"], "State": "removing"},
    {"Id": "3", "Names": ["/lane-watchdog"], "State": "running"},
]
VOLUMES = {"Volumes": [{"Name": "logs"}]}


def _body(request: bytes) -> bytes:
    answers = {b"/containers/json": CONTAINERS, b"/volumes": VOLUMES}
    return next((json.dumps(answer).encode() for path, answer in answers.items() if path in request), b"OK")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Path, threading.Event]]:
    """A socket that answers like an engine with `CONTAINERS` and `VOLUMES`, and an event that is set by a request."""
    path, asked = tmp_path / "engine.sock", threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + _body(connection.recv(4096)))
                asked.set()

        threading.Thread(target=answer, daemon=True).start()
        yield path, asked
        listener.shutdown(socket.SHUT_RDWR)


def watching(path: Path, more_time: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _WATCH, str(path), str(LEASE), str(more_time)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def test_a_runner_whose_signs_come_late_is_alive(engine: tuple[Path, threading.Event]) -> None:
    path, asked = engine
    process = watching(path, MORE_TIME)
    assert process.stdin is not None
    for _ in range(2):
        assert asked.wait(timeout=30), "the lease ended, and the engine was not asked"
        asked.clear()
        process.stdin.write(b".")
        process.stdin.flush()
    assert process.poll() is None
    process.stdin.close()  # the runner has died
    assert process.wait(timeout=30) == 0


def test_a_runner_that_stays_silent_is_dead(engine: tuple[Path, threading.Event]) -> None:
    process = watching(engine[0], LEASE)
    assert process.wait(timeout=30) == 0


def test_a_container_that_the_engine_is_removing_is_left_to_it(engine: tuple[Path, threading.Event]) -> None:
    script = runpy.run_path(str(SCRIPT))
    paths = script["EngineSocket"](str(engine[0])).left_over("label=lanes=lane", "lane-watchdog")
    assert paths == ["containers/1?force=1&v=1", "volumes/logs?force=1"]


def test_without_an_engine_a_silent_runner_is_dead(tmp_path: Path) -> None:
    process = watching(tmp_path / "nothing.sock", MORE_TIME)
    assert process.wait(timeout=15) == 0
    assert runpy.run_path(str(SCRIPT))["MORE_TIME"] > 3 * supervised._SIGN_SECONDS
