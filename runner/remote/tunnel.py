"""Offers the Docker Engine of a remote host as a Unix socket of this host, so that Docker clients use it like a local
engine. Each connection to the socket becomes a channel of one SSH connection. When the SSH connection was lost, it is
made again for the next connection to the socket.
"""

import contextlib
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paramiko

from runner.errors import SetupError
from runner.remote.ssh import Connection, HostLostError

_BLOCK = 32 * 1024  # bytes; paramiko sends at most this many at once, and would copy the rest of a larger block
_RETRY_SECONDS = 1.0


class Tunnel:
    """The socket and its connections. `url` is the address for Docker clients. `close` ends the tunnel."""

    def __init__(self, connection: Connection, *, patience: float = 60.0) -> None:
        self.connection = connection
        self.carried = 0  # bytes, both directions
        self.charged = 0  # bytes that were already charged to the link
        self.failure: SetupError | None = None  # why the last connection failed
        self._patience = patience  # seconds in which connections to a lost host are tried again
        self._folder = Path(tempfile.mkdtemp(prefix="bentpipe-ssh-"))  # 0700: access to the engine means root's rights
        self._path = self._folder / "docker.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._ends = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name=f"tunnel-{connection.host.name}", daemon=True).start()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def close(self) -> None:
        """Close the socket and the SSH connection with all channels."""
        self._ends.set()
        self.connection.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), name="tunnel", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            far = self._open(near)
            if far is None:
                return
            try:
                up = threading.Thread(target=self._pump, args=(near.recv, far.sendall, far.shutdown_write), daemon=True)
                up.start()
                self._pump(far.recv, near.sendall, lambda: near.shutdown(socket.SHUT_WR))
                if not self.connection.alive:
                    with contextlib.suppress(OSError):
                        near.shutdown(socket.SHUT_RDWR)
                up.join()
            finally:
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                    far.close()

    def _open(self, near: socket.socket) -> paramiko.Channel | None:
        """A channel to the engine. When the host is lost, the connection is tried again, until the patience is over or
        the client of the socket has hung up. Returns None without a connection; `failure` is then the reason."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                channel = self.connection.open_socket(self.connection.host.docker_socket)
            except HostLostError as error:
                self.failure = error
                if time.monotonic() > deadline or self._ends.wait(_RETRY_SECONDS) or _hung_up(near):
                    return None
            except SetupError as error:
                self.failure = error
                return None
            else:
                self.failure = None
                return channel

    def _pump(
        self, read: Callable[[int], bytes], write: Callable[[bytes], object], finish: Callable[[], object]
    ) -> None:
        try:
            while data := read(_BLOCK):
                write(data)
                with self._lock:
                    self.carried += len(data)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # a client that waits for an answer reads the end of the stream
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            finish()


def _hung_up(near: socket.socket) -> bool:
    poll = select.poll()
    poll.register(near, select.POLLRDHUP)
    return bool(poll.poll(0))
