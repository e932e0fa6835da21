"""TCP connections of a capture, and whether two captures show the same ones: a proxy can't keep sequence numbers."""

from collections.abc import Iterable
from dataclasses import dataclass

from runner.paths.packets import TCP, UDP, Packet

_HALF = 1 << 31


@dataclass(frozen=True)
class Ends:
    """Both ends of a connection, the client's first; initial sequence numbers, None for a side that wasn't seen."""

    client: bytes
    client_port: int
    server: bytes
    server_port: int
    client_initial: int | None
    server_initial: int | None

    @property
    def tuple_(self) -> tuple[bytes, int, bytes, int]:
        return self.client, self.client_port, self.server, self.server_port

    @property
    def initials(self) -> tuple[int | None, int | None]:
        return self.client_initial, self.server_initial


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What a capture shows between two addresses. Times in seconds since the client's first packet; None: not seen."""

    connections: tuple[Ends, ...]  # of TCP, those that carried data
    bytes: int  # of IP, both directions
    answered: float | None = None  # first SYN-ACK
    first: float | None = None  # first payload of the server
    last: float | None = None  # last new payload of the server


def connections(packets: Iterable[Packet]) -> tuple[Ends, ...]:
    """Every TCP connection that began in a capture and carried data, in order of the first SYN."""
    initials: dict[tuple[bytes, int, bytes, int], list[int | None]] = {}
    busy: set[tuple[bytes, int, bytes, int]] = set()
    for packet in packets:
        if packet.protocol != TCP:
            continue
        there = packet.source, packet.source_port, packet.destination, packet.destination_port
        back = packet.destination, packet.destination_port, packet.source, packet.source_port
        if packet.answers:
            initials.setdefault(back, [None, None])[1] = packet.sequence
        elif packet.syn:
            initials.setdefault(there, [None, None])[0] = packet.sequence
        elif packet.payload:
            busy |= {there, back}
    return tuple(Ends(*ends, *found) for ends, found in initials.items() if ends in busy)


def exchange(packets: Iterable[Packet], client: bytes, server: bytes) -> Exchange:
    """What passed between `client` and `server`, addresses."""
    between = [one for one in packets if {one.source, one.destination} == {client, server}]
    counted = [one for one in between if one.protocol in (TCP, UDP)]
    begin = next((one.time for one in counted if one.source == client), None)
    answered = first = last = None
    ahead: dict[tuple[int, int], int] = {}
    for one in counted:
        if one.source != server or begin is None:
            continue
        at = one.time - begin
        if one.answers and answered is None:
            answered = at
        if not one.payload:
            continue
        if first is None:
            first = at
        if one.protocol == UDP or _advances(ahead, one):
            last = at
    return Exchange(
        connections=connections(between),
        bytes=sum(one.length for one in counted),
        answered=answered,
        first=first,
        last=last,
    )


def _advances(ahead: dict[tuple[int, int], int], packet: Packet) -> bool:
    """Whether the segment has bytes beyond all before it of its connection (sequence numbers wrap, RFC 9293 §3.4)."""
    key = packet.source_port, packet.destination_port
    end = (packet.sequence + packet.payload) & 0xFFFFFFFF
    before = ahead.get(key)
    if before is not None and not 0 < (end - before) & 0xFFFFFFFF < _HALF:
        return False
    ahead[key] = end
    return True
