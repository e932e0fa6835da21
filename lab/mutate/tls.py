"""Parses and encodes TLS handshake messages and transport parameters (RFC 8446 §4, RFC 9000 §18)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lab.mutate.wire import Reader, varint

CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, ENCRYPTED_EXTENSIONS = 1, 2, 4, 8
END_OF_EARLY_DATA, CERTIFICATE_REQUEST, KEY_UPDATE = 5, 13, 24
ALPN, EARLY_DATA, SUPPORTED_VERSIONS, TRANSPORT_PARAMETERS = 16, 42, 43, 57

Parameters = list[tuple[int, bytes]]


class P:
    """Transport parameters (RFC 9000 §18.2, RFC 9221 §3, RFC 9287 §3, RFC 9368 §3)."""

    ORIGINAL_DCID = 0x00
    MAX_IDLE_TIMEOUT = 0x01
    RESET_TOKEN = 0x02
    MAX_UDP_PAYLOAD = 0x03
    MAX_DATA = 0x04
    MAX_STREAM_DATA_BIDI_LOCAL = 0x05
    MAX_STREAM_DATA_BIDI_REMOTE = 0x06
    MAX_STREAM_DATA_UNI = 0x07
    MAX_STREAMS_BIDI = 0x08
    MAX_STREAMS_UNI = 0x09
    ACK_DELAY_EXPONENT = 0x0A
    MAX_ACK_DELAY = 0x0B
    DISABLE_MIGRATION = 0x0C
    PREFERRED_ADDRESS = 0x0D
    CID_LIMIT = 0x0E
    INITIAL_SCID = 0x0F
    RETRY_SCID = 0x10
    VERSION_INFORMATION = 0x11
    MAX_DATAGRAM = 0x20
    GREASE_QUIC_BIT = 0x2AB2


@dataclass
class Message:
    """One handshake message. In hellos and EncryptedExtensions, `before` and `extensions` together are the body."""

    type: int
    before: bytes
    extensions: list[tuple[int, bytes]] = field(default_factory=list)

    def encode(self) -> bytes:
        """The bytes of the message."""
        body = self.before
        if self.type in _HEADS:
            each = b"".join(kind.to_bytes(2) + len(data).to_bytes(2) + data for kind, data in self.extensions)
            body += len(each).to_bytes(2) + each
        return bytes([self.type]) + len(body).to_bytes(3) + body

    def get(self, kind: int) -> bytes | None:
        """The data of an extension."""
        return next((data for each, data in self.extensions if each == kind), None)

    def set(self, kind: int, data: bytes | None) -> None:
        """Change, add or remove an extension."""
        if self.get(kind) is None and data is not None:
            self.extensions.insert(0, (kind, data))  # not at the end: in a ClientHello the pre-shared key must be last
            return
        self.extensions = [
            (each, old if each != kind else data or b"")
            for each, old in self.extensions
            if each != kind or data is not None
        ]


def _client_hello(reader: Reader) -> None:
    reader.take(34)
    reader.block(1)
    reader.block(2)
    reader.block(1)


def _server_hello(reader: Reader) -> None:
    reader.take(34)
    reader.block(1)
    reader.take(3)


def _ticket(reader: Reader) -> None:
    reader.take(8)
    reader.block(1)
    reader.block(2)


_HEADS: dict[int, Callable[[Reader], None]] = {
    CLIENT_HELLO: _client_hello,
    SERVER_HELLO: _server_hello,
    NEW_SESSION_TICKET: _ticket,
    ENCRYPTED_EXTENSIONS: lambda _: None,
}


def messages(stream: bytes) -> tuple[list[Message], bytes]:
    """The complete messages of a CRYPTO stream, and the remaining bytes."""
    collected: list[Message] = []
    reader = Reader(stream)
    while reader.left >= 4:
        start = reader.position
        kind, size = reader.number(1), reader.number(3)
        if size > reader.left:
            return collected, stream[start:]
        body = Reader(reader.take(size))
        if kind not in _HEADS:
            collected.append(Message(kind, body.data))
            continue
        _HEADS[kind](body)
        message = Message(kind, body.data[: body.position])
        listed = Reader(body.block(2))
        while listed.left:
            message.extensions.append((listed.number(2), listed.block(2)))
        collected.append(message)
    return collected, stream[reader.position :]


def parameters(data: bytes) -> Parameters:
    """The transport parameters in an extension's data, in order."""
    reader = Reader(data)
    collected: Parameters = []
    while reader.left:
        collected.append((reader.varint(), reader.block()))
    return collected


def encode_parameters(listed: Parameters) -> bytes:
    """The extension's data with these transport parameters."""
    return b"".join(varint(kind) + varint(len(data)) + data for kind, data in listed)


def with_parameter(listed: Parameters, kind: int, data: bytes | int | None) -> Parameters:
    """The parameters with one parameter changed, added or removed. An integer is encoded."""
    value = varint(data) if isinstance(data, int) else data
    without = [(each, old) for each, old in listed if each != kind]
    if value is None:
        return without
    if len(without) == len(listed):
        return [*listed, (kind, value)]
    return [(each, value if each == kind else old) for each, old in listed]


def client_suites(hello: Message) -> tuple[int, ...]:
    """The cipher suites of a ClientHello."""
    reader = Reader(hello.before, 34)
    reader.block(1)
    suites = Reader(reader.block(2))
    return tuple(suites.number(2) for _ in range(suites.left // 2))


def with_session_id(hello: Message, session: bytes) -> None:
    """Set legacy_session_id of a hello."""
    old = hello.before[34]
    hello.before = hello.before[:34] + bytes([len(session)]) + session + hello.before[35 + old :]
