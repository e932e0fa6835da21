"""TLS 1.3 handshake messages in CRYPTO frames (RFC 8446 §4), and transport parameters (RFC 9000 §18)."""

import ipaddress
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from heapq import heappop, heappush
from json.encoder import encode_basestring_ascii

from runner.decode.wire import varint

# TLS 1.3 handshake messages in CRYPTO frames (RFC 8446 §4): offers and agreements of a connection.


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


# QUIC transport parameters (RFC 9000 §18) as plain values.

# json.dumps would create a new encoder for every call. The check for cycles is off, because no value contains itself.
to_json = json.JSONEncoder(sort_keys=True, check_circular=False).encode
Value = int | str | bool | list[str] | dict[str, str | int]


def _integer(value: bytes) -> Value:
    size = 1 << (value[0] >> 6)  # RFC 9000 §16
    if size == 1:
        return value[0]
    if size > len(value):
        raise IndexError
    return int.from_bytes(value[:size]) & ((1 << 8 * size - 2) - 1)


def _flag(_: bytes) -> Value:
    return True


def _preferred_address(value: bytes) -> Value:
    size = value[24]
    if len(value) < 41 + size:
        raise IndexError
    return {
        "ipv4": str(ipaddress.IPv4Address(value[:4])),
        "ipv4_port": int.from_bytes(value[4:6]),
        "ipv6": str(ipaddress.IPv6Address(value[6:22])),
        "ipv6_port": int.from_bytes(value[22:24]),
        "connection_id": value[25 : 25 + size].hex(),
        "stateless_reset_token": value[25 + size : 41 + size].hex(),
    }


def _version_information(value: bytes) -> Value:
    """The chosen version, then the available versions (RFC 9368 §3)."""
    return [f"0x{int.from_bytes(value[at : at + 4]):08x}" for at in range(0, len(value), 4)]


_PARAMETERS: dict[int, tuple[str, Callable[[bytes], Value]]] = {
    0x01: ("max_idle_timeout", _integer),
    0x03: ("max_udp_payload_size", _integer),
    0x04: ("initial_max_data", _integer),
    0x05: ("initial_max_stream_data_bidi_local", _integer),
    0x06: ("initial_max_stream_data_bidi_remote", _integer),
    0x07: ("initial_max_stream_data_uni", _integer),
    0x08: ("initial_max_streams_bidi", _integer),
    0x09: ("initial_max_streams_uni", _integer),
    0x0A: ("ack_delay_exponent", _integer),
    0x0B: ("max_ack_delay", _integer),
    0x0C: ("disable_active_migration", _flag),
    0x0D: ("preferred_address", _preferred_address),
    0x0E: ("active_connection_id_limit", _integer),
    0x11: ("version_information", _version_information),  # RFC 9368
    0x20: ("max_datagram_frame_size", _integer),  # RFC 9221
    0x1057: ("loss_bits", _integer),  # draft-ferrieuxhamchaoui-quic-lossbits
    0x2AB2: ("grease_quic_bit", _flag),  # RFC 9287
    0xFF04DE1B: ("min_ack_delay", _integer),  # draft-ietf-quic-ack-frequency
}


_IDENTIFIERS = {
    0x00: "original_destination_connection_id",
    0x02: "stateless_reset_token",
    0x0F: "initial_source_connection_id",
    0x10: "retry_source_connection_id",
}
"""Parameters whose value is text in hexadecimal."""

_LONGEST_INTEGER = 8  # bytes


@dataclass(frozen=True, slots=True)
class TransportParameters:
    """The transport parameters of one TLS message."""

    values: dict[str, Value]
    """Name → value: an integer, or a hexadecimal string for connection IDs and tokens. An unknown parameter has its
    number as name, `0x…`. Reading stops at a parameter that is cut off or contradicts its length. A malformed value is
    left out."""
    text: str
    """`values` as JSON, sorted by name."""
    sent: str
    """JSON: number and hexadecimal value of every parameter as it was sent, including repeated parameters. When the
    list is cut off, the last pair has the number -1."""


@lru_cache(maxsize=8)
def parse_transport_parameters(data: bytes) -> TransportParameters:
    """Read the body of the extension. The result is cached, so callers must not change it. Never raises."""
    values: dict[str, Value] = {}
    texts: dict[str, str] = {}
    sent: list[str] = []
    position, size = 0, len(data)
    while position < size:
        try:
            # Most numbers and lengths take one byte.
            if (code := data[position]) < 0x40:
                position += 1
            else:
                code, position = varint(data, position)
            if (length := data[position]) < 0x40:
                position += 1
            else:
                length, position = varint(data, position)
        except IndexError:
            sent.append('[-1, ""]')
            break
        value = data[position : position + length]
        position += length
        if position > size:
            sent.append('[-1, ""]')
            break
        read = _usual_parameter if length <= _LONGEST_INTEGER and code in _PARAMETERS else _parameter
        name, meaning, text, pair = read(code, value)
        sent.append(pair)
        if meaning is not None:
            values[name] = meaning
            texts[name] = text
    # A text begins with its name, so that sorting the texts sorts the names.
    return TransportParameters(values, f"{{{', '.join(sorted(texts.values()))}}}", f"[{', '.join(sent)}]")


def _parameter(code: int, value: bytes) -> tuple[str, Value | None, str, str]:
    """Name and value of a parameter, both as JSON, and the JSON of the pair in `TransportParameters.sent`. When the
    value is malformed, it is None."""
    text = value.hex()
    pair = f'[{code}, "{text}"]'
    if code not in _PARAMETERS:
        name = _IDENTIFIERS.get(code) or f"0x{code:x}"
        return name, text, f'"{name}": "{text}"', pair
    name, read = _PARAMETERS[code]
    try:
        meaning = read(value)
    except IndexError:
        return name, None, "", pair
    return name, meaning, f'"{name}": {to_json(meaning)}', pair


_usual_parameter = lru_cache(maxsize=1024)(_parameter)
"""`_parameter` with a cache: endpoints send the same few limits on every connection. The cache gets short values only,
and no identifiers, because these differ."""


# Writes the TLS messages of a connection as JSON, with the parts that rules need.
#
# The JSON encoder would take twice as long, and a flood of connections has a ClientHello in every packet.


def message_text(kind: int, body: bytes, *, sender: int, space: int, packet: int) -> str:
    """A TLS message as a JSON object, sorted by name. `packet`: the row of the packet that completed the message."""
    origin = f'"packet": {packet}, "sender": {sender}, "space": {space}'
    if kind in (Message.CLIENT_HELLO, Message.ENCRYPTED_EXTENSIONS):
        hello = parse_client_hello(body) if kind == Message.CLIENT_HELLO else parse_encrypted_extensions(body)
        if hello is not None:
            return _hello_text(kind, hello, sender=sender, space=space, packet=packet)
    elif kind == Message.SERVER_HELLO and (hello := parse_server_hello(body)) is not None:
        return f'{{{origin}, "suite": {hello.suites[0]}, "type": {kind}}}'
    elif kind == Message.NEW_SESSION_TICKET:
        size = early_data_size(body)
        return f'{{"early_data_size": {"null" if size is None else size}, {origin}, "type": {kind}}}'
    return f'{{{origin}, "type": {kind}}}'


def _hello_text(kind: int, hello: Hello, *, sender: int, space: int, packet: int) -> str:
    data = hello.transport_parameters
    parameters = "null" if data is None else parse_transport_parameters(data).sent
    alpn = ", ".join(map(encode_basestring_ascii, hello.alpn))
    return (
        f'{{"alpn": [{alpn}], "packet": {packet}, "parameters": {parameters}, "sender": {sender}, '
        f'"session_id": {hello.session_id_length}, "space": {space}, "type": {kind}, "versions": {hello.versions}}}'
    )
