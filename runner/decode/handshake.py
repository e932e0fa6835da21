"""TLS 1.3 handshake messages in CRYPTO frames (RFC 8446 §4): what a connection offered and agreed on."""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from heapq import heappop, heappush


class Message(IntEnum):
    """Handshake types (RFC 8446 appendix B.3, RFC 8879 §4)."""

    CLIENT_HELLO = 1
    SERVER_HELLO = 2
    NEW_SESSION_TICKET = 4
    ENCRYPTED_EXTENSIONS = 8
    CERTIFICATE = 11
    COMPRESSED_CERTIFICATE = 25


_SERVER_NAME, _ALPN, _PRE_SHARED_KEY, _EARLY_DATA, _SUPPORTED_VERSIONS, _QUIC_TRANSPORT_PARAMETERS = (
    0, 16, 41, 42, 43, 57
)  # fmt: skip

# The random of a ServerHello that is a HelloRetryRequest (RFC 8446 §4.1.3).
_RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")

# No stack sends more handshake data than this on one level; what a forged offset asks for is not kept.
_MAX_BUFFERED = 1 << 20
_MAX_WAITING = 4096  # pieces that came too early


class CryptoStream:
    """One direction of one encryption level: puts CRYPTO data in order and cuts it into handshake messages."""

    __slots__ = ("_assembled", "_consumed", "_starts", "_waiting")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at offset 0: after a Retry (RFC 9000 §17.2.5.2)."""
        self._assembled = bytearray()
        self._consumed = 0
        self._waiting: dict[int, bytes] = {}
        self._starts: list[int] = []
        """Heap of the offsets in `_waiting`."""

    def feed(self, offset: int, data: bytes) -> list[tuple[int, bytes]]:
        """Type and body of the messages that are complete with this frame. Repeated data is ignored."""
        end = self._end
        if offset + len(data) <= end or offset > end + _MAX_BUFFERED or len(self._assembled) > _MAX_BUFFERED:
            return []
        if offset > end:
            if offset not in self._waiting:
                if len(self._waiting) >= _MAX_WAITING:
                    return []
                heappush(self._starts, offset)
            if len(data) > len(self._waiting.get(offset, b"")):
                self._waiting[offset] = data
            return []
        self._assembled += data[end - offset :]
        while self._starts and self._starts[0] <= self._end:
            start = heappop(self._starts)
            self._assembled += self._waiting.pop(start)[self._end - start :]
        return self._messages()

    @property
    def _end(self) -> int:
        return self._consumed + len(self._assembled)

    def _messages(self) -> list[tuple[int, bytes]]:
        messages, assembled = [], self._assembled
        while len(assembled) >= 4:
            size = 4 + int.from_bytes(assembled[1:4])
            if len(assembled) < size:
                break
            messages.append((assembled[0], bytes(assembled[4:size])))
            del assembled[:size]
            self._consumed += size
        return messages


class _Reader:
    """Reads TLS vectors; IndexError past the end."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def take(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        if len(data) < size:
            raise IndexError
        self._position += size
        return data

    def number(self, size: int) -> int:
        start = self._position
        self._position = end = start + size
        if end > len(self._data):
            raise IndexError
        return int.from_bytes(self._data[start:end])

    def vector(self, size: int) -> "_Reader":
        """A vector whose length takes `size` bytes."""
        return _Reader(self.take(self.number(size)))

    def pairs(self) -> list[int]:
        """All that is left as numbers of two bytes. Raises IndexError for an odd length."""
        data = self.rest()
        if len(data) % 2:
            raise IndexError
        return list(struct.unpack(f">{len(data) // 2}H", data))

    def rest(self) -> bytes:
        return self._data[self._position :]


@dataclass(slots=True)
class Hello:
    """What was read from a ClientHello, or from ServerHello and EncryptedExtensions."""

    random: bytes = b""
    suites: list[int] = field(default_factory=list)
    alpn: list[str] = field(default_factory=list)
    sni: str | None = None
    early_data: bool = False
    pre_shared_key: bool = False
    session_id_length: int = 0
    versions: list[int] = field(default_factory=list)
    """That a ClientHello offers."""
    transport_parameters: bytes | None = None

    @property
    def is_retry_request(self) -> bool:
        """Whether this ServerHello is a HelloRetryRequest."""
        return self.random == _RETRY_RANDOM


@lru_cache(maxsize=4)
def parse_client_hello(body: bytes) -> Hello | None:
    """RFC 8446 §4.1.2; None when the message is malformed. The same object for the same message: don't change it."""
    try:
        reader = _Reader(body)
        reader.take(2)
        hello = Hello(random=reader.take(32))
        hello.session_id_length = len(reader.vector(1).rest())
        hello.suites = reader.vector(2).pairs()
        reader.vector(1)
        _extensions(reader.vector(2), hello)
    except IndexError:
        return None
    return hello


def parse_server_hello(body: bytes) -> Hello | None:
    """RFC 8446 §4.1.3; None when the message is malformed."""
    try:
        reader = _Reader(body)
        reader.take(2)
        hello = Hello(random=reader.take(32))
        reader.vector(1)
        hello.suites.append(reader.number(2))
        reader.take(1)
        _extensions(reader.vector(2), hello)
    except IndexError:
        return None
    return hello


def parse_encrypted_extensions(body: bytes) -> Hello | None:
    """RFC 8446 §4.3.1; None when the message is malformed."""
    hello = Hello()
    try:
        _extensions(_Reader(body).vector(2), hello)
    except IndexError:
        return None
    return hello


def early_data_size(body: bytes) -> int | None:
    """max_early_data_size of a NewSessionTicket (RFC 8446 §4.6.1); None when it has none, or is malformed."""
    try:
        reader = _Reader(body)
        reader.take(8)
        reader.vector(1)
        reader.vector(2)
        extensions = reader.vector(2)
        while extensions:
            kind, extension = extensions.number(2), extensions.vector(2)
            if kind == _EARLY_DATA:
                return extension.number(4)
    except IndexError:
        return None
    return None


def _extensions(reader: _Reader, hello: Hello) -> None:
    while reader:
        kind = reader.number(2)
        body = reader.vector(2)
        if kind == _SERVER_NAME and body:
            names = body.vector(2)
            names.take(1)
            hello.sni = names.vector(2).rest().decode("ascii", "replace")
        elif kind == _ALPN:
            names = body.vector(2)
            while names:
                hello.alpn.append(names.vector(1).rest().decode("ascii", "backslashreplace"))
        elif kind == _SUPPORTED_VERSIONS and len(body.rest()) > 2:  # ServerHello has a single version
            hello.versions = body.vector(1).pairs()
        elif kind == _EARLY_DATA:
            hello.early_data = True
        elif kind == _PRE_SHARED_KEY:
            hello.pre_shared_key = True
        elif kind == _QUIC_TRANSPORT_PARAMETERS:
            hello.transport_parameters = body.rest()
