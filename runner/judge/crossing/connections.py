"""TCP connections of a capture. Initial sequence numbers show whether two captures contain the same connection: a proxy
opens a connection of its own, with other initial sequence numbers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from runner.decode.ip_packets import TCP, UDP, Packet, offsets
from runner.trace.intervals import new_bytes


@dataclass(frozen=True)
class Ends:
    """Both ends of a connection, the client's first. An initial sequence number is None when its SYN was not seen."""

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
    """The traffic between two addresses in a capture. Times are in seconds since the client's first packet; a time is
    None when the capture has no such packet."""

    begun: tuple[Ends, ...]  # TCP connections, with or without data
    connections: tuple[Ends, ...]  # TCP connections that carried data
    bytes: int  # bytes of IP packets with TCP or UDP, in both directions
    answered: float | None = None  # first SYN-ACK
    first: float | None = None  # first payload of the server
    last: float | None = None  # last new payload of the server


def connections(packets: Iterable[Packet], *, idle: bool = False) -> tuple[Ends, ...]:
    """Every TCP connection that began in a capture and carried data, in order of the first SYN. `idle`: connections
    without data are included."""
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
    return tuple(Ends(*ends, *numbers) for ends, numbers in initials.items() if idle or ends in busy)


def exchange(packets: Iterable[Packet], client: bytes, server: bytes) -> Exchange:
    """The traffic between the addresses `client` and `server`."""
    between = [packet for packet in packets if {packet.source, packet.destination} == {client, server}]
    counted = [packet for packet in between if packet.protocol in (TCP, UDP)]
    begin = next((packet.time for packet in counted if packet.source == client), None)
    answers = [packet for packet in counted if packet.source == server and begin is not None and packet.time >= begin]
    payloads = [packet for packet in answers if packet.payload]

    def since(times: Iterable[float]) -> tuple[float, ...]:
        return tuple(time - begin for time in times) if begin is not None else ()

    answered = since(packet.time for packet in answers if packet.answers)
    arrived = since(packet.time for packet in payloads)
    fresh = since(packet.time for packet in _fresh(payloads))
    return Exchange(
        begun=connections(between, idle=True),
        connections=connections(between),
        bytes=sum(packet.length for packet in counted),
        answered=answered[0] if answered else None,
        first=arrived[0] if arrived else None,
        last=fresh[-1] if fresh else None,
    )


def _fresh(payloads: Iterable[Packet]) -> list[Packet]:
    """The packets that carry at least one new byte of their connection, sorted by time. Every UDP packet counts as new.

    The last new byte need not have the highest sequence number: a retransmitted segment may fill a gap.
    """
    fresh, by_connection = [], defaultdict(list)
    for packet in payloads:
        if packet.protocol == UDP:
            fresh.append(packet)
        else:
            by_connection[packet.source_port, packet.destination_port].append(packet)
    for segments in by_connection.values():
        starts = np.array(offsets(segments), dtype=np.int64)
        ends = starts + np.array([segment.payload for segment in segments], dtype=np.int64)
        fresh += [segments[row] for row in np.flatnonzero(new_bytes(starts, ends))]
    return sorted(fresh, key=lambda packet: packet.time)
