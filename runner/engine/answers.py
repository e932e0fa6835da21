"""Checks the form of a Docker Engine's answers and limits the time to read them: an engine of another host is not
trusted."""

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from requests.exceptions import InvalidJSONError

from runner.errors import LaneError

_BLOCK = 1 << 20
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
        while left and len(output) < limit and (part := source.read(min(left, limit - len(output), _BLOCK))):
            output += part
            left -= len(part)
    return bytes(output)


def unix(text: str) -> float | None:
    """The engine's time as seconds since 1970; None when the event did not happen: the engine then writes the year
    1."""
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.year > 1 else None
