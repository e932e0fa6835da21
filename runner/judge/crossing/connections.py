"""TCP connections of a capture, and whether two captures show the same ones: a proxy can't keep sequence numbers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from runner.decode.ip_packets import TCP, UDP, Packet, offsets
from runner.trace.intervals import new_bytes


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

    begun: tuple[Ends, ...]  # of TCP, with or without data
    connections: tuple[Ends, ...]  # those of them that carried data
    bytes: int  # of IP, both directions
    answered: float | None = None  # first SYN-ACK
    first: float | None = None  # first payload of the server
    last: float | None = None  # last new payload of the server


def connections(packets: Iterable[Packet], *, idle: bool = False) -> tuple[Ends, ...]:
    """Every TCP connection that began in a capture and carried data, `idle`: or none, in order of the first SYN."""
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
    return tuple(Ends(*ends, *found) for ends, found in initials.items() if idle or ends in busy)


def exchange(packets: Iterable[Packet], client: bytes, server: bytes) -> Exchange:
    """What passed between `client` and `server`, addresses."""
    between = [one for one in packets if {one.source, one.destination} == {client, server}]
    counted = [one for one in between if one.protocol in (TCP, UDP)]
    begin = next((one.time for one in counted if one.source == client), None)
    answers = [one for one in counted if one.source == server and begin is not None and one.time >= begin]
    payloads = [one for one in answers if one.payload]

    def since(times: Iterable[float]) -> tuple[float, ...]:
        return tuple(time - begin for time in times) if begin is not None else ()

    answered = since(one.time for one in answers if one.answers)
    arrived = since(one.time for one in payloads)
    fresh = since(one.time for one in _fresh(payloads))
    return Exchange(
        begun=connections(between, idle=True),
        connections=connections(between),
        bytes=sum(one.length for one in counted),
        answered=answered[0] if answered else None,
        first=arrived[0] if arrived else None,
        last=fresh[-1] if fresh else None,
    )


def _fresh(payloads: Iterable[Packet]) -> list[Packet]:
    """Those with a byte that none before them had of their connection, by time; of UDP all.

    The last one is not always the one that reaches farthest: a repeated segment may fill a hole behind which everything
    waits.
    """
    fresh, by_connection = [], defaultdict(list)
    for one in payloads:
        if one.protocol == UDP:
            fresh.append(one)
        else:
            by_connection[one.source_port, one.destination_port].append(one)
    for segments in by_connection.values():
        starts = np.array(offsets(segments), dtype=np.int64)
        ends = starts + np.array([one.payload for one in segments], dtype=np.int64)
        fresh += [segments[row] for row in np.flatnonzero(new_bytes(starts, ends))]
    return sorted(fresh, key=lambda one: one.time)
