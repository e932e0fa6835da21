"""Removes every container and volume of a runner that has died, through the engine's socket.

    watchdog.py LEASE FILTER OWN_NAME          in a container; FILTER as label=NAME=VALUE or name=BEGINNING
    watchdog.py LEASE FILTER OWN_NAME LIFE     in a container on another host than the runner
    watchdog.py FILTER SOCKET                  as a process of the host, which ends when nothing is left

The runner is dead when standard input ends. For the container, the runner also counts as dead when no byte has come
from standard input for LEASE seconds, although the engine answers: the host may have lost power. The bytes come through
the engine, which passes them on late when the host is overloaded. So the runner gets more time after the engine has
answered.

On another host, the runner is dead, or has no connection, when the content of the file /beat has not changed for LEASE
seconds. Everything is also removed after LIFE seconds. After a restart of the engine both times begin again.

The engine starts the container again after the container or the engine was killed. Standard input then doesn't end
until a living runner has attached to it again, which takes seconds. So the lease is shorter.
"""

import json
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

SOCKET = "/docker.sock"  # in a container
LONGEST_ANSWER = 1 << 24  # bytes
PATIENCE = 60.0  # seconds to wait for an engine; then the container ends and is started again with the new socket
PATIENCE_OF_PROCESS = 600.0  # seconds to wait for an engine; nothing starts the process again
GRACE = 5.0  # seconds in which a runner that ends normally removes everything itself
MORE_TIME = 20.0  # seconds for a byte after the engine has answered; the runner sends a byte every 5 seconds
LEASE_AGAIN = 15.0  # most seconds of the lease after the container was started again
BEAT = Path("/beat")
STARTED = Path("/started")  # exists when the container was started before
REMOVALS = 8  # most things that are removed at the same time: the engine can take a minute for one of them
CALM = 3.0  # seconds without anything to remove before the end: the engine may still work on a call of the runner


class EngineSocket:
    """The Docker Engine behind a Unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """Status and body of the engine's answer; status 0 without an answer."""
        try:
            with socket.socket(socket.AF_UNIX) as engine:
                engine.settimeout(60)
                engine.connect(self._path)
                engine.sendall(f"{method} /v1.41/{path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
                answer = b""
                while len(answer) < LONGEST_ANSWER and (block := engine.recv(65536)):
                    answer += block
            head, _, body = answer.partition(b"\r\n\r\n")
            return int(head.split(b" ", 2)[1]), body
        except (OSError, IndexError, ValueError):
            return 0, b""

    def listed(self, kind: str, which: str) -> list[dict[str, Any]] | None:
        """Containers or volumes that the filter finds, as the engine lists them; None when it doesn't answer."""
        key, _, value = which.partition("=")
        words = quote(json.dumps({key: [value]}))
        status, body = self.ask("GET", f"{kind}?filters={words}" + ("&all=1" if kind.startswith("containers") else ""))
        if status != 200:
            return None
        answer: Any = json.loads(body)
        things: list[dict[str, Any]] = answer if kind.startswith("containers") else answer["Volumes"] or []
        return things

    def left_over(self, which: str, watchdog: str) -> list[str] | None:
        """API paths of the containers and volumes that still exist; None when the engine doesn't answer. The container
        `watchdog` is left out, and so are containers that the engine is already removing: after the death of
        containerd, Docker 20.10 can leave them in this state until its restart, and this program would wait for
        them."""
        containers, volumes = self.listed("containers/json", which), self.listed("volumes", which)
        if containers is None or volumes is None:
            return None
        others = [
            entry for entry in containers if f"/{watchdog}" not in entry["Names"] and entry["State"] != "removing"
        ]
        paths = [f"containers/{entry['Id']}?force=1&v=1" for entry in others]
        return paths + [f"volumes/{entry['Name']}?force=1" for entry in volumes]


def watch(engine: EngineSocket, lease: float, more_time: float = MORE_TIME) -> None:
    """Return when the runner is dead."""
    while select.select([0], [], [], lease)[0] or (
        engine.ask("GET", "_ping")[0] and select.select([0], [], [], more_time)[0]
    ):
        if not os.read(0, 4096):
            return


def beat() -> bytes:
    """The last sign of life of a runner on another host."""
    try:
        return BEAT.read_bytes()
    except OSError:
        return b""


def watch_from_afar(lease: float, life: float) -> None:
    """Return when the lease or the life is over."""
    began = renewed = time.monotonic()
    last = beat()
    while time.monotonic() < min(began + life, renewed + lease):
        time.sleep(1)
        if (now := beat()) != last:
            last, renewed = now, time.monotonic()


def remove_all(engine: EngineSocket, which: str, watchdog: str, patience: float) -> None:
    """Remove leftovers until there are none for some seconds. Exits when no engine answers for `patience` s."""
    removals: dict[str, threading.Thread] = {}
    answered = busy = time.monotonic()
    while time.monotonic() < busy + CALM:
        paths = engine.left_over(which, watchdog)
        removals = {path: removal for path, removal in removals.items() if removal.is_alive()}
        for path in paths or ():
            if path not in removals and len(removals) < REMOVALS:
                removals[path] = threading.Thread(target=engine.ask, args=("DELETE", path), daemon=True)
                removals[path].start()
        if paths is not None:
            answered = time.monotonic()
        elif time.monotonic() > answered + patience:
            sys.exit("the engine doesn't answer")
        if paths != []:
            busy = time.monotonic()
        time.sleep(0.3)


def run_in_container(lease: float, which: str, watchdog: str, life: str = "") -> None:
    """Watch, remove everything, and at last the own container `watchdog`."""
    engine = EngineSocket(SOCKET)
    print("watchdog ready" if engine.ask("GET", "_ping")[0] == 200 else "watchdog without an engine", flush=True)
    if life:
        watch_from_afar(lease, float(life))
    else:
        again = STARTED.exists()
        STARTED.touch()
        watch(engine, min(lease, LEASE_AGAIN) if again else lease)
    remove_all(engine, which, watchdog, PATIENCE)
    while True:
        engine.ask("DELETE", f"containers/{watchdog}?force=1&v=1")
        time.sleep(5)


def run_as_process(which: str, path: str) -> None:
    """Wait for the runner's death, and remove everything through the engine's socket `path`."""
    sys.stdin.buffer.read()
    time.sleep(GRACE)
    remove_all(EngineSocket(path), which, "", PATIENCE_OF_PROCESS)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_as_process(*sys.argv[1:])
    else:
        run_in_container(float(sys.argv[1]), *sys.argv[2:])
