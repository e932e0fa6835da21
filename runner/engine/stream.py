"""A connection to a container's output and stdin."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import docker
from docker.errors import DockerException
from docker.utils.socket import frames_iter

from runner.errors import LaneError


class Stream:
    """A container's output, and its stdin if the container has a stdin. Thread-safe: one thread iterates while others
    write."""

    def __init__(self, api: docker.APIClient, stream: Any) -> None:
        self._api = api
        self._stream = stream
        self._socket: socket.socket = stream._sock  # docker-py returns a file that is open for reading only
        self._writing = threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yields pairs: 1 for stdout or 2 for stderr, and the printed bytes."""
        try:
            yield from frames_iter(self._stream, tty=False)  # type: ignore[no-untyped-call]
        except (DockerException, OSError, ValueError):
            return  # the end of this stream doesn't prove that the container ended: the caller reads its state
        finally:
            self.close()

    def close(self) -> None:
        """End reading and writing; the container reads the end of its stdin."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # otherwise docker-py's response keeps the socket open
        self._stream.close()
        self._api.close()

    def write(self, data: bytes) -> None:
        """Write to stdin. Raises LaneError when nothing reads stdin any more."""
        try:
            with self._writing:
                self._socket.sendall(data)
        except OSError as error:
            raise LaneError("engine-silent", f"The engine could not write to a container: {error}") from error
