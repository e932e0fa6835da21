"""TCP connections of one capture, their segments in stream offsets (RFC 9293, RFC 2018, RFC 7323)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.decode.ip_packets import TCP, Packet
from runner.decode.schema import CLIENT, SERVER

_SYN, _ACK = 0x02, 0x10
_MSS, _WINDOW_SCALE, _SACK = 2, 3, 5  # kinds of options
_HALF = 1 << 31
_LARGEST_SCALE = 14  # RFC 7323 §2.3
_HTTPS = 443
_TLS_HANDSHAKE = 22  # type of a record, RFC 8446 §5.1

Addresses = tuple[bytes, int, bytes, int]
"""Source, its port, destination, its port."""


@dataclass(slots=True)
class Segment:
    """One segment. Offsets count from the first byte behind the SYN of the direction's stream."""

    packet: Packet
    sender: int
    offset: int
    acknowledged: int | None
    """In the other direction's stream: every byte before it has arrived."""
    window: int | None
    """Bytes that the sender takes from `acknowledged` on; None: the scale is unknown, for no SYN was captured."""
    sacked: tuple[tuple[int, int], ...]
    """In the other direction's stream: ranges [start, end) that arrived beyond `acknowledged`, or again (RFC 2883)."""
    identity: tuple[object, ...]
    """The same at every vantage point; different for two transmissions where the IP header has an identification."""

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + self.packet.payload


@dataclass(slots=True)
class TcpConnection:
    """One connection, as one capture shows it."""

    ends: Addresses
    """The client's address and port, the server's."""
    initial: list[int | None] = field(default_factory=lambda: [None, None])
    """Initial sequence numbers of client and server; None: its SYN was not seen."""
    scale: list[int] = field(default_factory=lambda: [0, 0])
    """Window scale of each side; used only if both sent the option (RFC 7323 §2.2)."""
    scales: list[bool] = field(default_factory=lambda: [False, False])
    segments: list[Segment] = field(default_factory=list)
    without_syn: bool = False
    """The capture began behind the client's SYN."""

    def stream(self, sender: int, data: bytes) -> bytes:
        """The bytes of one direction from the first on, as far as the capture has them without a hole."""
        parts, reached = [], 0
        rows = [one for one in self.segments if one.sender == sender and one.packet.payload]
        for one in sorted(rows, key=lambda one: one.offset):
            if one.offset > reached:
                break
            captured = one.packet.end - one.packet.payload_at
            known = reached - one.offset
            if captured > known:
                parts.append(data[one.packet.payload_at + known : one.packet.end])
                reached = one.offset + captured
        return b"".join(parts)


def read_connections(packets: Iterable[Packet], data: bytes) -> list[TcpConnection]:
    """The connections of a capture to port 443, or that begin with TLS, in order of their first SYN. `data`: the file.

    What belongs to a connection of which neither the SYN nor the answer to it was captured is left out.
    """
    found: list[TcpConnection] = []
    open_: dict[Addresses, TcpConnection] = {}
    for packet in packets:
        if packet.protocol != TCP:
            continue
        there: Addresses = (packet.source, packet.source_port, packet.destination, packet.destination_port)
        if packet.flags & _SYN and not packet.flags & _ACK:
            known = open_.get(there)
            if known is None or known.initial[CLIENT] != packet.sequence:
                known = open_[there] = TcpConnection(there)
                found.append(known)
        back: Addresses = (*there[2:], *there[:2])
        if packet.answers and back not in open_:
            acknowledgment = int.from_bytes(data[packet.upper_at + 8 : packet.upper_at + 12])
            known = open_[back] = TcpConnection(back, [(acknowledgment - 1) % (1 << 32), None], without_syn=True)
            found.append(known)
        sender = CLIENT if there in open_ else SERVER
        connection = open_.get(there if sender == CLIENT else back)
        if connection is not None:
            _take(connection, packet, sender, data)
    return [one for one in found if one.ends[3] == _HTTPS or _begins_with_tls(one, data)]


def _begins_with_tls(connection: TcpConnection, data: bytes) -> bool:
    first = next((one.packet for one in connection.segments if one.sender == CLIENT and one.packet.payload), None)
    return first is not None and data[first.payload_at : first.payload_at + 1] == bytes((_TLS_HANDSHAKE,))


def _take(connection: TcpConnection, packet: Packet, sender: int, data: bytes) -> None:
    """Add a packet's segment to its connection."""
    syn = bool(packet.flags & _SYN)
    options = dict(_options(data[packet.upper_at + 20 : packet.payload_at]))
    if syn:
        connection.initial[sender] = packet.sequence
        if scale := options.get(_WINDOW_SCALE):
            connection.scales[sender], connection.scale[sender] = True, min(scale[0], _LARGEST_SCALE)
    own, peer = connection.initial[sender], connection.initial[1 - sender]
    if own is None:
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
            offset=0 if syn else _distance(packet.sequence, own),
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
    """Offset of a sequence number, which wraps (RFC 9293 §3.4), in a stream of less than 2 GiB."""
    return (sequence - initial - 1 + _HALF) % (1 << 32) - _HALF


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and value of the options (RFC 9293 §3.1); those behind a malformed one are left out."""
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
