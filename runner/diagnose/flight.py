"""The server's packets in flight at any moment. For each packet it is known until when it is in flight."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Bools, Ints
from runner.trace.rtt import ack_eliciting
from runner.trace.vantage import APPLICATION, NULL, Recording, Vantage

Floats = NDArray[np.float64]

_PACKET_THRESHOLD = 3  # RFC 9002 §6.1.1
_NEVER = np.inf


@dataclass(frozen=True)
class Flight:
    """The ack-eliciting 1-RTT packets of a connection's server, in the order of sending. Times are seconds
    since the origin by the clock of the server's capture."""

    row: Ints
    """Row of the packet in the server-side capture."""
    time: Floats
    number: Ints
    length: Ints
    """Bytes of the QUIC packet, as a congestion window counts them (RFC 9002 §B.2)."""
    arrived: Bools
    """Whether the client's capture has the packet; all True when this is unknown."""
    acked: Floats
    """Time when the first ACK of the packet reached the server; infinity: no ACK did."""
    lost: Floats
    """When the server had to take the packet for lost, because a packet with a number that is at least 3 higher was
    acknowledged before this packet (RFC 9002 §6.1.1); infinity: never. The time threshold of §6.1.2 is not applied."""

    marked: Floats
    """Times when ACKs with a higher CE count than before reached the server, sorted."""

    @cached_property
    def _left(self) -> tuple[Floats, Floats]:
        gone = np.minimum(self.acked, self.lost)
        order = np.argsort(gone, kind="stable")
        return gone[order], np.append(0, np.cumsum(self.length[order])).astype(np.float64)

    @cached_property
    def _entered(self) -> Floats:
        return np.append(0, np.cumsum(self.length)).astype(np.float64)

    def sent(self, at: Floats) -> Floats:
        """Per moment: bytes sent until then."""
        return self._entered[np.searchsorted(self.time, at, side="right")]

    def in_flight(self, at: Floats) -> Floats:
        """Per moment: bytes that were neither acknowledged nor taken for lost."""
        gone, total = self._left
        outstanding: Floats = self.sent(at) - total[np.searchsorted(gone, at, side="right")]
        return np.maximum(outstanding, 0.0)

    @cached_property
    def losses(self) -> Floats:
        """When the server learnt of losses, sorted."""
        return np.sort(self.lost[np.isfinite(self.lost)])

    @cached_property
    def signals(self) -> Floats:
        """When the server learnt of losses or of CE, sorted. It must reduce its window for both (RFC 9002 §7.1)."""
        return np.sort(np.concatenate([self.losses, self.marked]))


def flight(recording: Recording, connection: int) -> Flight | None:
    """The flight of a connection; None without captures at both ends, or without ack-eliciting 1-RTT packets of the
    server."""
    server, origin = recording.server, recording.origin_ns
    if server is None or origin is None:
        return None
    packets = server.packets
    mine = (packets["sender"] == SERVER) & (packets["connection"] == connection) & packets.named("type", "1rtt")
    mine &= ack_eliciting(server) & (packets["packet_number"] != NULL)
    row = np.flatnonzero(mine)
    if not len(row):
        return None
    number = packets["packet_number"][row]
    time = (server.packet_time[row] - origin) / 1e9
    acked, lost = _outcome(server, connection, number, time, origin)
    return Flight(
        row=row,
        time=time,
        number=number,
        length=packets["length"][row],
        arrived=recording.arrival[row] != NULL if recording.arrival is not None else np.ones(len(row), dtype=bool),
        acked=acked,
        lost=lost,
        marked=_marked(server, connection, origin),
    )


def _marked(server: Vantage, connection: int, origin: int) -> Floats:
    acks = server.ack_frames
    mine = (acks["connection"] == connection) & (acks["sender"] == CLIENT) & (server.ack_space == APPLICATION)
    count = np.maximum.accumulate(np.append(0, acks["ce"][mine]))
    times: Floats = (acks["time_ns"][mine][np.diff(count) > 0] - origin) / 1e9
    return times


def _outcome(server: Vantage, connection: int, number: Ints, time: Floats, origin: int) -> tuple[Floats, Floats]:
    """Per packet: when it was acknowledged, and when it had to be taken for lost."""
    acks = server.ack_frames
    mine = (acks["connection"] == connection) & (acks["sender"] == CLIENT) & (server.ack_space == APPLICATION)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return np.full(len(number), _NEVER), np.full(len(number), _NEVER)
    when = (acks["time_ns"] - origin) / 1e9
    first, last, owner = ack_ranges(server, rows)
    known, place = np.unique(number, return_inverse=True)
    acked = np.maximum(first_cover(known, first, last, when[rows][owner])[place], time)
    highest = np.maximum.accumulate(acks["largest"][rows])
    at = np.searchsorted(highest, number + _PACKET_THRESHOLD)
    lost = np.maximum(np.append(when[rows], _NEVER)[at], time)
    return acked, np.where(lost < acked, lost, _NEVER)


def ack_ranges(vantage: Vantage, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """All ranges of these ACK frames: first and last number, and the index of the frame in `rows`."""
    column = vantage.trace.ack_frames.column("ranges").take(pa.array(rows)).combine_chunks()
    flat, owner = pc.list_flatten(column), pc.list_parent_indices(column)
    first, last = (np.asarray(pc.struct_field(flat, name), dtype=np.int64) for name in ("first", "last"))
    return first, last, np.asarray(owner, dtype=np.int64)


def first_cover(points: Ints, first: Ints, last: Ints, time: Floats) -> Floats:
    """Per point (sorted, distinct): the `time` of the first range that covers it; infinity when no range covers it.

    Ranges include both ends and are in order of time. Each range is written as two overlapping runs of points whose
    length is a power of two. Then each run is split into halves, from the longest to the shortest. This takes
    O((n + m) log n) and no loop over packets.
    """
    count = len(points)
    low, high = np.searchsorted(points, first), np.searchsorted(points, last, side="right") - 1
    chosen = np.flatnonzero(low <= high)[::-1]  # NumPy keeps the last value for an index: here the earliest
    low, high, time = low[chosen], high[chosen], time[chosen]
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
    levels = int(level.max(initial=0)) + 1
    heads, tails = np.full((2, levels, count), _NEVER)
    heads[level, low] = time
    tails[level, high - (1 << level) + 1] = time
    table = np.minimum(heads, tails)
    for size in range(levels - 1, 0, -1):
        half = 1 << (size - 1)
        table[size - 1] = np.minimum(table[size - 1], table[size])
        table[size - 1][half:] = np.minimum(table[size - 1][half:], table[size][:-half])
    times: Floats = table[0]
    return times
