"""Reads the TCP connections of one capture. The positions of segments become stream offsets (RFC 9293, RFC 2018, RFC
7323)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.decode.file_bytes import Data
from runner.decode.ip_packets import TCP, Packet
from runner.decode.schema import CLIENT, SERVER

_SYN, _ACK = 0x02, 0x10
_MSS, _WINDOW_SCALE, _SACK = 2, 3, 5  # kinds of TCP options (RFC 9293 §3.2, RFC 7323 §2.2, RFC 2018 §3)
_HALF = 1 << 31
_LARGEST_SCALE = 14  # RFC 7323 §2.3
_HTTPS = 443
_TLS_HANDSHAKE = 22  # content type of a record, RFC 8446 §5.1

Addresses = tuple[bytes, int, bytes, int]
"""Source address, source port, destination address, destination port."""


@dataclass(slots=True)
class Segment:
    """One segment. Offsets count from the first byte after the SYN of its direction."""

    packet: Packet
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
    segments: list[Segment] = field(default_factory=list)
    without_syn: bool = False
    """True when the capture began after the client's SYN."""

    def stream(self, sender: int, data: Data) -> bytes:
        """The bytes of one direction, up to the first gap in the capture."""
        parts, reached = [], 0
        rows = [segment for segment in self.segments if segment.sender == sender and segment.packet.payload]
        for segment in sorted(rows, key=lambda segment: segment.offset):
            if segment.offset > reached:
                break
            captured = segment.packet.end - segment.packet.payload_at
            known = reached - segment.offset
            if captured > known:
                parts.append(data[segment.packet.payload_at + known : segment.packet.end])
                reached = segment.offset + captured
        return b"".join(parts)


def read_connections(packets: Iterable[Packet], data: Data) -> list[TcpConnection]:
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


def _take(connection: TcpConnection, packet: Packet, sender: int, data: Data) -> None:
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
        Segment(
            packet=packet,
            sender=sender,
            offset=0 if syn else _distance(packet.sequence, initial),
            acknowledged=_distance(acknowledgment, peer) if acknowledges and peer is not None else None,
            window=window,
            sacked=tuple(_ranges(options.get(_SACK, b""), peer)) if peer is not None else (),
            identity=(
                sender,
                data[packet.upper_at : packet.upper_at + 16],
                data[packet.upper_at + 20 : packet.payload_at],
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


def _ranges(value: bytes, initial: int) -> Iterator[tuple[int, int]]:
    for at in range(0, len(value) - 7, 8):
        start, end = (int.from_bytes(value[at + skip : at + skip + 4]) for skip in (0, 4))
        yield _distance(start, initial), _distance(end, initial)
