"""Reads the TCP connections of one capture (RFC 9293, RFC 2018, RFC 7323), their TLS records, and their segments in
two captures."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from cryptography.exceptions import InvalidTag

from runner.decode.capture import TCP, IpPacket
from runner.decode.columns import CLIENT, SERVER, Data
from runner.decode.crypto_messages import (
    CryptoStream,
    Hello,
    Message,
    parse_client_hello,
    parse_encrypted_extensions,
    parse_server_hello,
)
from runner.decode.keys import APPLICATION_SECRETS, HANDSHAKE_SECRETS, SUITES, RecordProtection, Session, Suite

_SYN, _ACK = 0x02, 0x10
_MSS, _WINDOW_SCALE, _SACK = 2, 3, 5  # kinds of TCP options (RFC 9293 §3.2, RFC 7323 §2.2, RFC 2018 §3)
_HALF = 1 << 31
_LARGEST_SCALE = 14  # RFC 7323 §2.3
_HTTPS = 443
_TLS_HANDSHAKE = 22  # content type of a record, RFC 8446 §5.1

Addresses = tuple[bytes, int, bytes, int]
"""Source address, source port, destination address, destination port."""


@dataclass(slots=True)
class TcpSegment:
    """One segment. Offsets count from the first byte after the SYN of its direction."""

    packet: IpPacket
    sender: int
    offset: int
    acknowledged: int | None
    """Offset in the opposite stream: the peer has received every byte before this offset. None: the segment has no ACK
    flag."""
    window: int | None
    """Number of bytes from `acknowledged` on that the sender of the segment accepts. None: the window scale is unknown,
    because no SYN was captured."""
    sacked: tuple[tuple[int, int], ...]
    """Ranges [start, end) of the opposite stream that SACK reports: received above `acknowledged`, or received again
    (RFC 2883)."""
    identity: tuple[object, ...]
    """Equal for the same segment at every vantage point. Different for two transmissions of the same data, provided
    that the IP header has an identification."""

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + self.packet.payload


@dataclass(slots=True)
class TcpConnection:
    """One connection in one capture."""

    ends: Addresses
    """Address and port of the client, address and port of the server."""
    initial: list[int | None] = field(default_factory=lambda: [None, None])
    """Initial sequence numbers of client and server; None: the SYN of this endpoint was not captured."""
    scale: list[int] = field(default_factory=lambda: [0, 0])
    """Window scales of client and server. They are used only if both endpoints sent the option (RFC 7323 §2.2)."""
    scales: list[bool] = field(default_factory=lambda: [False, False])
    segments: list[TcpSegment] = field(default_factory=list)
    without_syn: bool = False
    """True when the capture began after the client's SYN."""

    def stream(self, sender: int) -> list[tuple[int, int]]:
        """The bytes of one direction, up to the first gap in the capture: places [start, end) in the file."""
        places, reached = [], 0
        rows = [segment for segment in self.segments if segment.sender == sender and segment.packet.payload]
        for segment in sorted(rows, key=lambda segment: segment.offset):
            if segment.offset > reached:
                break
            captured = segment.packet.end - segment.packet.payload_at
            known = reached - segment.offset
            if captured > known:
                places.append((segment.packet.payload_at + known, segment.packet.end))
                reached = segment.offset + captured
        return places


def read_connections(packets: Iterable[IpPacket], data: Data) -> list[TcpConnection]:
    """The connections of a capture to port 443, and other connections that begin with TLS, in the order of their first
    SYN. `data`: the bytes of the file.

    Connections without a captured SYN or SYN-ACK are left out.
    """
    connections: list[TcpConnection] = []
    open_: dict[Addresses, TcpConnection] = {}
    for packet in packets:
        if packet.protocol != TCP:
            continue
        there: Addresses = (packet.source, packet.source_port, packet.destination, packet.destination_port)
        if packet.flags & _SYN and not packet.flags & _ACK:
            known = open_.get(there)
            if known is None or known.initial[CLIENT] != packet.sequence:
                known = open_[there] = TcpConnection(there)
                connections.append(known)
        back: Addresses = (*there[2:], *there[:2])
        if packet.answers and back not in open_:
            acknowledgment = int.from_bytes(data[packet.upper_at + 8 : packet.upper_at + 12])
            known = open_[back] = TcpConnection(back, [(acknowledgment - 1) % (1 << 32), None], without_syn=True)
            connections.append(known)
        sender = CLIENT if there in open_ else SERVER
        connection = open_.get(there if sender == CLIENT else back)
        if connection is not None:
            _take(connection, packet, sender, data)
    return [
        connection for connection in connections if connection.ends[3] == _HTTPS or _begins_with_tls(connection, data)
    ]


def _begins_with_tls(connection: TcpConnection, data: Data) -> bool:
    first = next(
        (segment.packet for segment in connection.segments if segment.sender == CLIENT and segment.packet.payload), None
    )
    return first is not None and data[first.payload_at : first.payload_at + 1] == bytes((_TLS_HANDSHAKE,))


def _take(connection: TcpConnection, packet: IpPacket, sender: int, data: Data) -> None:
    """Add a packet's segment to its connection."""
    syn = bool(packet.flags & _SYN)
    options = dict(_options(data[packet.upper_at + 20 : packet.payload_at]))
    if syn:
        connection.initial[sender] = packet.sequence
        if scale := options.get(_WINDOW_SCALE):
            connection.scales[sender], connection.scale[sender] = True, min(scale[0], _LARGEST_SCALE)
    initial, peer = connection.initial[sender], connection.initial[1 - sender]
    if initial is None:
        return
    acknowledgment = int.from_bytes(data[packet.upper_at + 8 : packet.upper_at + 12])
    window: int | None = int.from_bytes(data[packet.upper_at + 14 : packet.upper_at + 16])
    if connection.without_syn:
        window = None
    elif window is not None and not syn and all(connection.scales):
        window <<= connection.scale[sender]
    acknowledges = bool(packet.flags & _ACK) and peer is not None
    connection.segments.append(
        TcpSegment(
            packet=packet,
            sender=sender,
            offset=0 if syn else _distance(packet.sequence, initial),
            acknowledged=_distance(acknowledgment, peer) if acknowledges and peer is not None else None,
            window=window,
            sacked=tuple(_sack_ranges(options.get(_SACK, b""), peer)) if peer is not None else (),
            identity=(
                sender,
                data[packet.upper_at : packet.upper_at + 16],
                # A box on the path may lower the MSS, because its tunnel needs bytes of each packet (OpenVPN's mssfix).
                tuple((kind, value) for kind, value in options.items() if kind != _MSS),
                packet.payload,
                data[packet.ip_at + 4 : packet.ip_at + 6] if packet.is_ipv4 else b"",
            ),
        )
    )


def _distance(sequence: int, initial: int) -> int:
    """The stream offset of a sequence number. Sequence numbers wrap (RFC 9293 §3.4); a stream has less than 2 GiB."""
    return (sequence - initial - 1 + _HALF) % (1 << 32) - _HALF


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and value of the options (RFC 9293 §3.1). Options after a malformed option are left out."""
    at = 0
    while at < len(data) and data[at]:
        if data[at] == 1:
            at += 1
            continue
        if at + 1 >= len(data) or data[at + 1] < 2:
            return
        yield data[at], data[at + 2 : at + data[at + 1]]
        at += data[at + 1]


def _sack_ranges(value: bytes, initial: int) -> Iterator[tuple[int, int]]:
    for at in range(0, len(value) - 7, 8):
        start, end = (int.from_bytes(value[at + skip : at + skip + 4]) for skip in (0, 4))
        yield _distance(start, initial), _distance(end, initial)


# Compares a connection in two captures: identifies segments, numbers them, and assigns acknowledgements to them.

Ranges = list[tuple[int, int]]
"""Ranges of numbers: first and last number, both inclusive, the highest range first."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The acknowledgement in one segment of the client, in numbers of the server's segments."""

    largest: int
    """The highest number among all segments that were acknowledged so far."""
    ranges: Ranges


@dataclass(slots=True)
class Numbered:
    """One capture's view of a connection. Lists have one entry per segment."""

    connection: TcpConnection
    numbers: list[int]
    """The number of each segment among all segments of its sender on the connection."""
    acknowledgements: dict[int, Acknowledgement] = field(default_factory=dict)
    """Number of the client's segment → its acknowledgement."""


def number_segments(client: TcpConnection | None, server: TcpConnection | None) -> tuple[Numbered | None, ...]:
    """Both views of one connection, with equal numbers for equal segments. The numbers follow the order in the capture
    at the sender.

    When a proxy splits a connection, the two views show different connections. Then no segments are equal, and each
    view has its own numbers.
    """
    views = [Numbered(end, [0] * len(end.segments)) if end is not None else None for end in (client, server)]
    for sender in (CLIENT, SERVER):
        near, far = views[sender], views[1 - sender]
        known: dict[tuple[object, ...], list[int]] = defaultdict(list)
        count = 0
        if near is not None:
            for at in _sent_by(near.connection, sender):
                near.numbers[at] = count
                known[near.connection.segments[at].identity].append(count)
                count += 1
        if far is not None:
            for at in _sent_by(far.connection, sender):
                same = known[far.connection.segments[at].identity]
                far.numbers[at] = same.pop(0) if same else count
                count = max(count, far.numbers[at] + 1)
    _acknowledge(views)
    return tuple(views)


def _sent_by(connection: TcpConnection, sender: int) -> list[int]:
    return [at for at, segment in enumerate(connection.segments) if segment.sender == sender]


def _acknowledge(views: Sequence[Numbered | None]) -> None:
    """Assign acknowledgements to segments. The capture at the client is used, because it shows which of two
    transmissions had arrived (RFC 6298)."""
    at_client, at_server = views
    source = at_client or at_server
    if source is None:
        return
    acknowledgements = _acknowledgements(source)
    for view in views:
        if view is not None:
            same = source.connection.initial == view.connection.initial
            view.acknowledgements = _seen(acknowledgements, view) if same else _acknowledgements(view)


def _seen(acknowledgements: dict[int, Acknowledgement], view: Numbered) -> dict[int, Acknowledgement]:
    """The acknowledgements that one view shows. TCP's ACKs are cumulative (RFC 9293 §3.4): an ACK also acknowledges the
    segments of earlier ACKs that were lost on the way or that it overtook."""
    order, place = sorted(acknowledgements), 0
    seen = {}
    for at in _sent_by(view.connection, CLIENT):
        number = view.numbers[at]
        if number in acknowledgements:
            upto = bisect_right(order, number)
            ranges = [each for one in order[place:upto] for each in acknowledgements[one].ranges]
            place = max(place, upto)
            seen[number] = Acknowledgement(acknowledgements[order[place - 1]].largest, _joined(ranges))
    return seen


def _joined(ranges: Ranges) -> Ranges:
    """The ranges, the highest first. Adjacent ranges are joined."""
    joined: Ranges = []
    for first, last in sorted(ranges):
        adjacent = joined and joined[-1][1] + 1 == first
        joined.append((joined.pop()[0] if adjacent else first, last))
    return joined[::-1]


def _acknowledgements(view: Numbered) -> dict[int, Acknowledgement]:
    pending: list[tuple[TcpSegment, int]] = []
    acknowledgements: dict[int, Acknowledgement] = {}
    largest = -1
    for segment, number in zip(view.connection.segments, view.numbers, strict=True):
        if segment.sender == SERVER:
            if segment.packet.payload:
                pending.append((segment, number))
            continue
        if segment.acknowledged is None:
            continue
        numbers = sorted(number for waiting, number in pending if _covers(segment, waiting))
        if numbers:
            done = set(numbers)
            pending = [(waiting, number) for waiting, number in pending if number not in done]
        largest = max([largest, *numbers])
        if largest >= 0:
            acknowledgements[number] = Acknowledgement(largest, _as_ranges(numbers))
    return acknowledgements


def _covers(acknowledgement: TcpSegment, segment: TcpSegment) -> bool:
    if acknowledgement.acknowledged is not None and segment.end <= acknowledgement.acknowledged:
        return True
    return any(start <= segment.offset and segment.end <= end for start, end in acknowledgement.sacked)


def _as_ranges(numbers: list[int]) -> Ranges:
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    return [(run[0], run[-1]) for run in reversed(runs)]


# Reads TLS 1.3 over TCP (RFC 8446 §5): agreed parameters, end of the handshake, position of the response.

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
class TlsSide:
    """The TLS records of one endpoint. Offsets count from the beginning of its stream. None: not seen, or not
    decrypted."""

    hello_end: int = 0
    """Offset after the last unprotected record. Only hello messages are unprotected."""
    handshake_end: int | None = None
    """Offset after the record that contains this endpoint's Finished message."""
    application: list[Record] = field(default_factory=list)
    """The decrypted records after the handshake. Once the connection is read, only the first is kept."""
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
    sides: tuple[TlsSide, TlsSide] = field(default_factory=lambda: (TlsSide(), TlsSide()))
    request: tuple[int, int] | None = None
    """[start, end) in the client's stream: all records with application keys."""
    response: tuple[int, int] | None = None
    """[start, end) in the server's stream: from the record with the first header of the response to the record with its
    last byte."""


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
    tls.request = _span(tls.sides[CLIENT])
    tls.response = _span(tls.sides[SERVER])
    if tls.alpn == "h2":
        _find_response(tls)
    for side in tls.sides:
        del side.application[1:]  # together they are as large as the transfer
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


def _plain(stream: bytes, side: TlsSide) -> Iterator[tuple[int, bytes]]:
    """Type and body of the handshake messages in unprotected records."""
    messages, offset = CryptoStream(), 0
    for record in _records(stream):
        if record.type == _APPLICATION_DATA:
            return
        side.hello_end = record.end
        if record.type == _HANDSHAKE:
            yield from messages.feed(offset, record.body)
            offset += len(record.body)


def _open(
    stream: bytes, side: TlsSide, suite: Suite | None, session: Session, sender: int
) -> Iterator[tuple[int, bytes]]:
    """Decrypt the protected records, and return the handshake messages. Each endpoint uses one secret for its handshake
    and another secret afterwards."""
    messages, offset = CryptoStream(), 0
    keys = _Keys(suite, session.get(HANDSHAKE_SECRETS[sender], ()))
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
                    keys = _Keys(suite, session.get(APPLICATION_SECRETS[sender], ()))
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


def _data(side: TlsSide) -> list[Record]:
    return [record for record in side.application if record.type == _APPLICATION_DATA]


def _span(side: TlsSide) -> tuple[int, int] | None:
    """[start, end) of all records of an endpoint with application data."""
    sent = _data(side)
    return (sent[0].start, sent[-1].end) if sent else None


def _find_response(tls: TlsConnection) -> None:
    """Find the response in the frames of HTTP/2."""
    frames = _http2_frames(_data(tls.sides[SERVER]))
    parts = [(first, last) for kind, first, last in frames if kind in (_HTTP2_DATA, _HTTP2_HEADERS)]
    tls.response = (parts[0][0].start, parts[-1][1].end) if parts else None


def _http2_frames(records: list[Record]) -> Iterator[tuple[int, Record, Record]]:
    """The complete frames in the records of a server (RFC 9113 §4.1): type, and the records with the first and the last
    byte. A server sends no bytes before its first frame."""
    rest, first = bytearray(), None
    for record in records:
        first = first if rest and first else record
        rest += record.body
        while len(rest) >= _HTTP2_HEADER:
            end = _HTTP2_HEADER + int.from_bytes(rest[:3])
            if end > len(rest):
                break
            yield rest[3], first, record
            del rest[:end]
            first = record
