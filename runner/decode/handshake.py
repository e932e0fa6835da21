"""TLS 1.3 handshake messages in CRYPTO frames (RFC 8446 §4): offers and agreements of a connection."""

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

_READ = frozenset((_SERVER_NAME, _ALPN, _PRE_SHARED_KEY, _EARLY_DATA, _SUPPORTED_VERSIONS, _QUIC_TRANSPORT_PARAMETERS))

# The random of a ServerHello that is a HelloRetryRequest (RFC 8446 §4.1.3).
_RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")

# No stack sends more handshake data on one level. Data at a larger, forged offset is not kept.
_MAX_BUFFERED = 1 << 20
_MAX_WAITING = 4096  # pieces behind a gap


class CryptoStream:
    """One direction of one encryption level: sorts CRYPTO data and splits it into handshake messages."""

    __slots__ = ("_assembled", "_consumed", "_starts", "_waiting")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at offset 0, as after a Retry (RFC 9000 §17.2.5.2)."""
        self._assembled = bytearray()
        self._consumed = 0
        self._waiting: dict[int, bytes] = {}
        self._starts: list[int] = []
        """Heap of the offsets in `_waiting`."""

    def feed(self, offset: int, data: bytes) -> list[tuple[int, bytes]]:
        """Type and body of the messages that this frame completes. Repeated data and frames without data are
        ignored."""
        end = self._end
        if (
            not data
            or offset + len(data) <= end
            or offset > end + _MAX_BUFFERED
            or len(self._assembled) > _MAX_BUFFERED
        ):
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


def _vector(data: bytes, position: int, size: int) -> tuple[bytes, int]:
    """The TLS vector at `position`, and the position after the vector. `size`: bytes of the vector's length field.
    Raises IndexError when the vector is cut off."""
    start = position + size
    end = start + int.from_bytes(data[position:start])
    if end > len(data):
        raise IndexError
    return data[start:end], end


@lru_cache(maxsize=8)
def _numbers(data: bytes) -> list[int]:
    """`data` as numbers of two bytes each. The result is cached, so callers must not change it. Raises IndexError when
    a byte is left over."""
    if len(data) % 2:
        raise IndexError
    return list(struct.unpack(f">{len(data) // 2}H", data))


@dataclass(slots=True)
class Hello:
    """The content of a ClientHello, ServerHello or EncryptedExtensions message."""

    random: bytes = b""
    suites: list[int] = field(default_factory=list)
    alpn: list[str] = field(default_factory=list)
    sni: str | None = None
    early_data: bool = False
    pre_shared_key: bool = False
    session_id_length: int = 0
    versions: list[int] = field(default_factory=list)
    """TLS versions that a ClientHello offers."""
    transport_parameters: bytes | None = None

    @property
    def is_retry_request(self) -> bool:
        """Whether this ServerHello is a HelloRetryRequest."""
        return self.random == _RETRY_RANDOM


@lru_cache(maxsize=4)
def parse_client_hello(body: bytes) -> Hello | None:
    """A ClientHello (RFC 8446 §4.1.2); None when it is malformed. The result is cached, so callers must not change
    it."""
    try:
        hello = Hello(random=body[2:34])
        session_id, position = _vector(body, 34, 1)
        hello.session_id_length = len(session_id)
        suites, position = _vector(body, position, 2)
        hello.suites = _numbers(suites)
        _, position = _vector(body, position, 1)
        _extensions(_vector(body, position, 2)[0], hello)
    except IndexError:
        return None
    return hello


def parse_server_hello(body: bytes) -> Hello | None:
    """A ServerHello (RFC 8446 §4.1.3); None when it is malformed."""
    try:
        hello = Hello(random=body[2:34])
        _, position = _vector(body, 34, 1)
        hello.suites = _numbers(body[position : position + 2])
        _extensions(_vector(body, position + 3, 2)[0], hello)
    except IndexError:
        return None
    return hello


def parse_encrypted_extensions(body: bytes) -> Hello | None:
    """EncryptedExtensions (RFC 8446 §4.3.1); None when the message is malformed."""
    hello = Hello()
    try:
        _extensions(_vector(body, 0, 2)[0], hello)
    except IndexError:
        return None
    return hello


def early_data_size(body: bytes) -> int | None:
    """max_early_data_size of a NewSessionTicket (RFC 8446 §4.6.1); None when it is absent or the message malformed."""
    try:
        _, position = _vector(body, 8, 1)
        _, position = _vector(body, position, 2)
        extensions = _vector(body, position, 2)[0]
        position = 0
        while position < len(extensions):
            kind = int.from_bytes(extensions[position : position + 2])
            value, position = _vector(extensions, position + 2, 2)
            if kind == _EARLY_DATA:
                return int.from_bytes(value[:4]) if len(value) >= 4 else None
    except IndexError:
        return None
    return None


def _extensions(data: bytes, hello: Hello) -> None:
    """Write the extensions of a message into `hello`. Raises IndexError when a length contradicts the data."""
    position, end = 0, len(data)
    while position < end:
        kind = data[position] << 8 | data[position + 1]
        start = position + 4
        position = start + (data[position + 2] << 8 | data[position + 3])
        if position > end:
            raise IndexError
        if kind not in _READ:
            continue
        value = data[start:position]
        if kind == _SERVER_NAME and value:
            hello.sni = _server_name(value)
        elif kind == _ALPN:
            hello.alpn.extend(_protocols(value))
        elif kind == _SUPPORTED_VERSIONS and len(value) > 2:  # a ServerHello has a single version
            hello.versions = _numbers(_vector(value, 0, 1)[0])
        elif kind == _EARLY_DATA:
            hello.early_data = True
        elif kind == _PRE_SHARED_KEY:
            hello.pre_shared_key = True
        elif kind == _QUIC_TRANSPORT_PARAMETERS:
            hello.transport_parameters = value


# These values are cached, because a flood of connections usually offers the same values. The caches are small, because
# a hostile value has up to 64 KiB.


@lru_cache(maxsize=8)
def _server_name(value: bytes) -> str:
    names, _ = _vector(value, 0, 2)
    return _vector(names, 1, 2)[0].decode("ascii", "replace")


@lru_cache(maxsize=8)
def _protocols(value: bytes) -> tuple[str, ...]:
    """The protocols of an ALPN extension (RFC 7301 §3.1)."""
    names, _ = _vector(value, 0, 2)
    protocols, at = [], 0
    while at < len(names):
        name, at = _vector(names, at, 1)
        protocols.append(name.decode("ascii", "backslashreplace"))
    return tuple(protocols)
