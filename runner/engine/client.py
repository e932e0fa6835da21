"""Docker clients that limit answers in size, form and time: the engine of another host is not trusted."""

import re
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import docker
from docker.errors import DockerException
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool
from requests import PreparedRequest, Response
from requests.exceptions import ConnectionError as BrokenConnectionError
from requests.exceptions import InvalidJSONError
from urllib3.exceptions import HTTPError

from runner.errors import LaneError
from runner.units import MIB, format_size

# Docker clients that limit answers in size and time: the engine of another host is not trusted.

LARGEST_ANSWER = 16 * MIB  # most bytes of an answer that is not a stream; a list of 1000 containers has 5 MiB
LONGEST_ANSWER = 60.0  # most seconds from the first byte of such an answer to its last byte
_BLOCK = 1 << 16
_LARGEST_HEAD = 1 << 16  # bytes of status line and headers
_PAUSE_SECONDS = 0.01  # between two checks of a head that has not arrived completely


class _TimedConnection(UnixHTTPConnection):
    """Raises an error when the head of an answer takes too long. A time-out of the socket is not sufficient: it starts
    again with each byte."""

    def getresponse(self) -> Any:
        """Like the method of http.client. Raises ConnectionAbortedError."""
        self._await_head()
        return super().getresponse()

    def _await_head(self) -> None:
        assert self.sock is not None, "a request has been sent"
        head = self.sock.recv(_LARGEST_HEAD, socket.MSG_PEEK)  # waits as long as the call may take
        hung_up = select.poll()
        hung_up.register(self.sock, select.POLLRDHUP)
        deadline = time.monotonic() + LONGEST_ANSWER
        while head and b"\r\n\r\n" not in head and not hung_up.poll(0):
            if len(head) == _LARGEST_HEAD:
                raise ConnectionAbortedError("the head of the answer is too long")
            if time.monotonic() > deadline:
                raise ConnectionAbortedError("the answer takes too long")
            time.sleep(_PAUSE_SECONDS)
            head = self.sock.recv(_LARGEST_HEAD, socket.MSG_PEEK)


class _TimedPool(UnixHTTPConnectionPool):
    timeout: Any  # seconds; docker-py stores a number where urllib3 has an object

    def _new_conn(self) -> Any:
        return _TimedConnection(self.base_url, self.socket_path, self.timeout)


class _TimedAdapter(UnixHTTPAdapter):
    """Makes `_TimedConnection` objects for the engine's socket."""

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:  # noqa: ARG002 - as requests calls it
        with self.pools.lock:
            pool: Any = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _TimedPool(
                    str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
            return pool


class BoundedApi(docker.APIClient):
    """docker-py's client with limits. The original client reads answers of any length and follows redirects."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.max_redirects = 0  # a Docker Engine never redirects

    def mount(self, prefix: str | bytes, adapter: Any) -> None:
        """Like requests.Session.mount, which docker-py calls before its first request."""
        if isinstance(adapter, UnixHTTPAdapter):
            most = adapter.pools._maxsize
            adapter = _TimedAdapter(adapter.socket_path, adapter.timeout, most, adapter.max_pool_size)
        super().mount(prefix, adapter)

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """Like requests.Session.send. Raises DockerException for an answer above the limits; streams have no limit."""
        if options.get("stream"):
            return super().send(request, **options)
        response = super().send(request, **{**options, "stream": True})
        body: Any = response
        body._content, body._content_consumed = _read_body(response), True
        return response


class BoundedDockerClient(docker.DockerClient):
    """docker-py's object interface over `BoundedApi`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.api = BoundedApi(*arguments, **options)


def _read_body(response: Response) -> bytes:
    content, began = bytearray(), 0.0
    try:
        while block := response.raw.read1(_BLOCK, decode_content=True):
            began = began or time.monotonic()
            content += block
            if len(content) > LARGEST_ANSWER:
                raise DockerException(f"its answer has more than {format_size(LARGEST_ANSWER)}")
            if time.monotonic() > began + LONGEST_ANSWER:
                raise DockerException(f"its answer took more than {LONGEST_ANSWER:.0f} s")
    except HTTPError as error:  # requests does the same when it reads a body
        response.close()
        raise BrokenConnectionError(error) from error
    except BaseException:
        response.close()
        raise
    response.raw.release_conn()
    return bytes(content)


# Checks the form of a Docker Engine's answers and limits the time to read them: an engine of another host is not
# trusted.

_ANSWER_BLOCK = 1 << 20
_FRAME = struct.Struct(">B3xI")
_IDENTIFIER = re.compile(r"(sha256:)?[\w.-]{1,128}")
_LONGEST_REASON = 200  # characters
# The errors that docker-py and this package raise for an answer of another form. The first one comes from requests.
_NOT_AN_ENGINES = (
    InvalidJSONError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def understood(action: str) -> Iterator[None]:
    """Raises LaneError `not-an-engine` when an answer does not have the form of a Docker Engine's answer."""
    try:
        yield
    except _NOT_AN_ENGINES as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise LaneError(
            "not-an-engine", f"The engine could not {action}: its answer is not that of a Docker Engine ({why})."
        ) from error


def identifier(described: Mapping[str, Any]) -> str:
    """The engine's identifier of an object. Raises ValueError when the text can't be an identifier."""
    identifier = described["Id"]
    if not isinstance(identifier, str) or not _IDENTIFIER.fullmatch(identifier):
        raise ValueError(f"{str(identifier)[:40]!r} is not an identifier")
    return identifier


class Timed:
    """Reads from `read`; raises TimeoutError when `seconds` have passed, even if bytes still come slowly. `read(n)`
    returns 1 to n bytes. `waits`: the socket from which `read` reads, whose time-out is set; None without a socket.
    """

    def __init__(self, read: Callable[[int], bytes | None], seconds: float, waits: socket.socket | None = None) -> None:
        self._read, self._waits = read, waits
        self._deadline = time.monotonic() + seconds

    def read(self, size: int) -> bytes:
        """Return `size` bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer takes too long")
            if self._waits is not None:
                self._waits.settimeout(left)
            part = self._read(size - len(data))
            if not part:
                break
            data += part
        return data


def unframed(source: Timed, limit: int) -> bytes:
    """The contents of a stream of frames, at most `limit` bytes. A frame has kind, length and content (Docker Engine
    API, ContainerAttach)."""
    output = bytearray()
    while len(output) < limit and len(head := source.read(_FRAME.size)) == _FRAME.size:
        left = _FRAME.unpack(head)[1]
        while left and len(output) < limit and (part := source.read(min(left, limit - len(output), _ANSWER_BLOCK))):
            output += part
            left -= len(part)
    return bytes(output)


def unix(text: str) -> float | None:
    """The engine's time as seconds since 1970; None when the event did not happen: the engine then writes the year
    1."""
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.year > 1 else None
