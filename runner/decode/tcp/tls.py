"""Reads TLS 1.3 over TCP (RFC 8446 §5): agreed parameters, end of the handshake, position of the response."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag

from runner.decode.handshake import (
    CryptoStream,
    Hello,
    Message,
    parse_client_hello,
    parse_encrypted_extensions,
    parse_server_hello,
)
from runner.decode.keylog import APPLICATION, HANDSHAKE, Session
from runner.decode.protection import SUITES, RecordProtection, Suite
from runner.decode.schema import CLIENT, SERVER

_HANDSHAKE, _APPLICATION_DATA = 22, 23  # content types
_FINISHED, _KEY_UPDATE = 20, 24  # handshake types
_HEADER = 5  # bytes of a record header
_LARGEST_RECORD = (1 << 14) + 256
_HTTP2_HEADER, _HTTP2_DATA, _HTTP2_HEADERS = 9, 0, 1  # RFC 9113 §4.1, §6


@dataclass(frozen=True, slots=True)
class Record:
    """One record at [start, end) of the stream, header included."""

    start: int
    end: int
    type: int
    body: bytes  # the content; the plaintext if the record was decrypted
    opened: bool = False


@dataclass(slots=True)
class Side:
    """The TLS records of one endpoint. Offsets count from the beginning of its stream. None: not seen, or not
    decrypted."""

    hello_end: int = 0
    """Offset after the last unprotected record. Only hello messages are unprotected."""
    handshake_end: int | None = None
    """Offset after the record that contains this endpoint's Finished message."""
    application: list[Record] = field(default_factory=list)
    """The decrypted records after the handshake."""
    unread: bool = False
    """True when a record could not be decrypted."""

    @property
    def first(self) -> Record | None:
        """The first record that is protected with application keys."""
        return self.application[0] if self.application else None


@dataclass(slots=True)
class TlsConnection:
    """The TLS data of a connection, as far as the hello messages and the secrets are known."""

    client_hello: Hello | None = None
    client_hellos: int = 0
    server_hello: Hello | None = None
    suite: Suite | None = None
    alpn: str | None = None
    certificate: bool = False
    sides: tuple[Side, Side] = field(default_factory=lambda: (Side(), Side()))
    request: tuple[int, int] | None = None
    """[start, end) in the client's stream: all records with application keys."""
    response: tuple[int, int] | None = None
    """[start, end) in the server's stream: from the record with the first header of the response to the record with its
    last byte."""
    content_bytes: int | None = None
    """Content bytes in all HTTP/2 DATA frames of the server, without padding. None with another protocol."""


def read_tls(client: bytes, server: bytes, sessions: dict[bytes, Session]) -> TlsConnection:
    """Read the TLS data of both streams of a connection, as far as they were captured. Never raises."""
    tls = TlsConnection()
    hellos = list(_plain(client, tls.sides[CLIENT]))
    tls.client_hellos = sum(kind == Message.CLIENT_HELLO for kind, _ in hellos)
    tls.client_hello = next((parse_client_hello(body) for kind, body in hellos if kind == Message.CLIENT_HELLO), None)
    for kind, body in _plain(server, tls.sides[SERVER]):
        hello = parse_server_hello(body) if kind == Message.SERVER_HELLO else None
        if hello is not None and not hello.is_retry_request:
            tls.server_hello = hello
    if tls.client_hello is None or tls.server_hello is None:
        return tls
    tls.suite = SUITES.get(tls.server_hello.suites[0])
    session = sessions.get(tls.client_hello.random, {})
    for sender, stream in ((CLIENT, client), (SERVER, server)):
        for kind, body in _open(stream, tls.sides[sender], tls.suite, session, sender):
            if kind == Message.ENCRYPTED_EXTENSIONS and (agreed := parse_encrypted_extensions(body)) is not None:
                tls.alpn = agreed.alpn[0] if agreed.alpn else None
            tls.certificate |= kind in (Message.CERTIFICATE, Message.COMPRESSED_CERTIFICATE)
    _find_request(tls)
    _find_response(tls)
    return tls


def _records(stream: bytes, start: int = 0) -> Iterator[Record]:
    """The complete records from an offset on, up to the first bytes that are not a complete record."""
    while start + _HEADER <= len(stream):
        length = int.from_bytes(stream[start + 3 : start + 5])
        end = start + _HEADER + length
        if length > _LARGEST_RECORD or end > len(stream) or stream[start + 1] != 3:
            return
        yield Record(start, end, stream[start], stream[start + _HEADER : end])
        start = end


def _plain(stream: bytes, side: Side) -> Iterator[tuple[int, bytes]]:
    """Type and body of the handshake messages in unprotected records."""
    messages, offset = CryptoStream(), 0
    for record in _records(stream):
        if record.type == _APPLICATION_DATA:
            return
        side.hello_end = record.end
        if record.type == _HANDSHAKE:
            yield from messages.feed(offset, record.body)
            offset += len(record.body)


def _open(stream: bytes, side: Side, suite: Suite | None, session: Session, sender: int) -> Iterator[tuple[int, bytes]]:
    """Decrypt the protected records, and return the handshake messages. Each endpoint uses one secret for its handshake
    and another secret afterwards."""
    messages, offset = CryptoStream(), 0
    keys = _Keys(suite, session.get(HANDSHAKE[sender], ()))
    for record in _records(stream, side.hello_end):
        if record.type != _APPLICATION_DATA:
            continue  # change_cipher_spec for middleboxes (RFC 8446 appendix D.4)
        inner = keys.open(record, stream)
        if inner is None:
            side.unread = True
            return
        if side.handshake_end is not None:
            side.application.append(inner)
            if inner.type == _HANDSHAKE and inner.body[:1] == bytes((_KEY_UPDATE,)):
                keys.update()
            continue
        if inner.type == _HANDSHAKE:
            for kind, body in messages.feed(offset, inner.body):
                yield kind, body
                if kind == _FINISHED:
                    side.handshake_end = record.end
                    keys = _Keys(suite, session.get(APPLICATION[sender], ()))
            offset += len(inner.body)


class _Keys:
    """The keys of one sender. When key logs contain several secrets, the first record shows the right secret."""

    def __init__(self, suite: Suite | None, secrets: tuple[bytes, ...]) -> None:
        self._candidates = [RecordProtection(suite, secret) for secret in secrets] if suite is not None else []
        self._sequence = 0

    def open(self, record: Record, stream: bytes) -> Record | None:
        """The decrypted record with its inner type (RFC 8446 §5.2); None when no keys fit."""
        header = stream[record.start : record.start + _HEADER]
        for protection in self._candidates:
            try:
                inner = protection.open(self._sequence, record.body, header).rstrip(b"\0")
            except InvalidTag:
                continue
            self._candidates = [protection]
            self._sequence += 1
            return Record(record.start, record.end, inner[-1] if inner else 0, inner[:-1], opened=True)
        return None

    def update(self) -> None:
        """Use the next generation of keys (RFC 8446 §7.2)."""
        self._candidates = [protection.next_generation() for protection in self._candidates]
        self._sequence = 0


def _find_request(tls: TlsConnection) -> None:
    sent = [record for record in tls.sides[CLIENT].application if record.type == _APPLICATION_DATA]
    if sent:
        tls.request = sent[0].start, sent[-1].end


def _find_response(tls: TlsConnection) -> None:
    sent = [record for record in tls.sides[SERVER].application if record.type == _APPLICATION_DATA]
    if tls.alpn != "h2":
        if sent:
            tls.response = sent[0].start, sent[-1].end
        return
    tls.content_bytes = 0
    first = last = None
    for frame in _http2_frames(sent):
        if frame.type in (_HTTP2_DATA, _HTTP2_HEADERS):
            first = first if first is not None else frame.first
            last = frame.last
        if frame.type == _HTTP2_DATA:
            tls.content_bytes += frame.content
    if first is not None and last is not None:
        tls.response = first.start, last.end


@dataclass(frozen=True, slots=True)
class _Http2Frame:
    """A frame of HTTP/2: its type, the records with its first and its last byte, and the size of its content in bytes.
    The size is meaningful only for DATA frames."""

    type: int
    first: Record
    last: Record
    content: int


def _http2_frames(records: list[Record]) -> Iterator[_Http2Frame]:
    """The complete frames in the records of a server (RFC 9113 §4.1). A server sends no bytes before its first
    frame."""
    joined = b"".join(record.body for record in records)
    ends, total = [], 0
    for record in records:
        total += len(record.body)
        ends.append(total)
    at = place = 0
    while at + _HTTP2_HEADER <= len(joined):
        length, kind, flags = int.from_bytes(joined[at : at + 3]), joined[at + 3], joined[at + 4]
        end = at + _HTTP2_HEADER + length
        if end > len(joined):
            return
        while ends[place] <= at:
            place += 1
        last = place
        while ends[last] < end:
            last += 1
        padding = joined[at + _HTTP2_HEADER] + 1 if kind == _HTTP2_DATA and flags & 0x08 and length else 0
        yield _Http2Frame(kind, records[place], records[last], max(0, length - padding))
        at = end
