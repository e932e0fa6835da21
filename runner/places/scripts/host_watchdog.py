"""Removes everything that a job left on a host, through the engine's socket, when the runner doesn't remove it.

    host_watchdog.py LIFE LEASE OWN_NAME NAME…      names of containers, and of volumes as volume:NAME

This happens after LIFE seconds in any case. It happens earlier when the content of the file /beat has not changed for
LEASE seconds: then the runner is dead, or has no connection. After a restart of the engine, this program is started
again, and both times begin again.
"""

import socket
import sys
import time

SOCKET = "/docker.sock"
BEAT = "/beat"
TRIES = 5


def remove(path: str) -> bool:
    """Let the engine remove a container or volume. True when it doesn't exist any more."""
    request = f"DELETE /v1.41/{path} HTTP/1.0\r\nHost: docker\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as engine:
            engine.settimeout(60)
            engine.connect(SOCKET)
            engine.sendall(request.encode())
            status = engine.recv(4096).split(b" ", 2)[1]
    except (OSError, IndexError):
        return False
    return status in (b"204", b"404")


def beat() -> str:
    """The last sign of life of the runner."""
    try:
        with open(BEAT) as file:  # noqa: PTH123 - pathlib is slow to import
            return file.read()
    except OSError:
        return ""


def watch(life: float, lease: float) -> None:
    """Return when the life or the lease is over."""
    began = renewed = time.monotonic()
    last = beat()
    while time.monotonic() < min(began + life, renewed + lease):
        time.sleep(1)
        if (now := beat()) != last:
            last, renewed = now, time.monotonic()


def main(life: str, lease: str, watchdog: str, *names: str) -> None:
    watch(float(life), float(lease))
    paths = [f"volumes/{name[7:]}?force=1" for name in names if name.startswith("volume:")]
    paths = [f"containers/{name}?force=1&v=1" for name in names if not name.startswith("volume:")] + paths
    for _ in range(TRIES):
        paths = [path for path in paths if not remove(path)]
        if not paths:
            break
        time.sleep(2)
    print(f"removed what was left of {watchdog}", flush=True)
    while True:
        remove(f"containers/{watchdog}?force=1&v=1")
        time.sleep(5)


if __name__ == "__main__":
    main(*sys.argv[1:])
