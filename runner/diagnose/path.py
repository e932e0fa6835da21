"""Packets in flight at any moment, the capacity of the path, and its silences."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from runner.decode.columns import CLIENT, NULL, SERVER
from runner.model.link import LinkParameters, PathImpairments
from runner.model.result import LinkTruth
from runner.trace.recording import APPLICATION, Bools, Floats, Ints, Recording, Vantage, first_cover

# The server's packets in flight at any moment. For each packet it is known until when it is in flight.

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
    sent = (packets["sender"] == SERVER) & (packets["connection"] == connection) & packets.named("type", "1rtt")
    row = np.flatnonzero(sent & server.eliciting & (packets["packet_number"] != NULL))
    if not len(row):
        return None
    number = packets["packet_number"][row]
    time = (server.packet_time[row] - origin) / 1e9
    acks = server.ack_frames
    mine = (acks["connection"] == connection) & (acks["sender"] == CLIENT) & (server.ack_space == APPLICATION)
    rows = np.flatnonzero(mine)
    when = (acks["time_ns"][rows] - origin) / 1e9
    acked, lost = _outcome(server, rows, when, number, time)
    reported = np.maximum.accumulate(np.append(0, acks["ce"][rows]))
    return Flight(
        row=row,
        time=time,
        number=number,
        length=packets["length"][row],
        arrived=recording.arrival[row] != NULL if recording.arrival is not None else np.ones(len(row), dtype=bool),
        acked=acked,
        lost=lost,
        marked=when[np.diff(reported) > 0],
    )


def _outcome(server: Vantage, acks: Ints, when: Floats, number: Ints, time: Floats) -> tuple[Floats, Floats]:
    """Per packet: when it was acknowledged, and when it had to be taken for lost. `acks`: rows of the ACK frames that
    reached the server at the times `when`."""
    if not len(acks):
        return np.full(len(number), _NEVER), np.full(len(number), _NEVER)
    owner, first, last = server.ack_ranges(acks)
    known, place = np.unique(number, return_inverse=True)
    acked = np.maximum(first_cover(known, first, last, when[owner])[place], time)
    highest = np.maximum.accumulate(server.ack_frames["largest"][acks])
    at = np.searchsorted(highest, number + _PACKET_THRESHOLD)
    lost = np.maximum(np.append(when, _NEVER)[at], time)
    return acked, np.where(lost < acked, lost, _NEVER)


# The capacity of a link: configured for an emulated link, found in the trace for a real link.
#
# The advertised data rate is not the capacity: a link that is sold with 50 Mbit/s may deliver 20 Mbit/s. When all
# packets in a window of one RTT took longer than over the empty path, there was a queue in front of the link. Then the
# link was full, and the rate of arrivals is its capacity. Pairs of packets that arrived further apart than they were
# sent show the capacity only for a moment. Such pairs suffice to state the capacity, but not to call the link full.
# Without a queue and without such pairs the capacity is unknown.

_WAITED = (0.003, 0.03)  # seconds, and RTTs: waits that are shorter than the longer of both are jitter
_LEAST_PACKETS = 8  # least number of packets in a window
_LEAST_WINDOWS = 2
_LONGEST_GAP = 0.25  # share of a window; a standing queue delivers without a pause
_APART = 2.0  # ratio of the distances at arrival and at departure
_LEAST_PAIRS = 30


@dataclass(frozen=True)
class Capacity:
    """Data rate of a link in bit/s of IP packets. `rate[i]` holds from `start[i]` on, in seconds since the origin."""

    start: Floats
    rate: Floats
    known: float
    """Bit/s. Emulated link: the rate at the beginning. Real link: the rate of full windows, else of pairs of packets;
    infinity when the trace shows neither. Without full windows `rate` is the highest rate seen."""
    by_queue: bool
    """True when arrivals at this rate mean that the link is full."""

    def bits(self, low: Floats, high: Floats) -> Floats:
        """Bits that the link can carry between the moments `low` and `high`."""
        return self._carried(high) - self._carried(low)

    def _carried(self, at: Floats) -> Floats:
        done = np.append(0.0, np.cumsum(np.diff(self.start) * self.rate[:-1]))
        place = np.maximum(np.searchsorted(self.start, at, side="right") - 1, 0)
        carried: Floats = done[place] + (at - self.start[place]) * self.rate[place]
        return carried


@dataclass(frozen=True)
class Arrivals:
    """The arrivals over a link in a trace. Times in seconds, sizes in bytes."""

    time: Floats
    size: Ints
    """Times and sizes of all IP packets that arrived from the link."""
    sent: Floats
    arrived: Floats
    length: Ints
    """Times and sizes of those packets of the connection that arrived, in the order of departure."""
    waited: Floats
    rtt: float
    window: float

    @cached_property
    def threshold(self) -> float:
        return max(_WAITED[0], _WAITED[1] * self.rtt)

    def rates(self, starts: Floats) -> Floats:
        """Per moment: the rate of arrivals in bit/s in the window that begins there."""
        order = np.argsort(self.time, kind="stable")
        time, total = self.time[order], np.append(0, np.cumsum(self.size[order]))
        low, high = np.searchsorted(time, starts), np.searchsorted(time, starts + self.window)
        bits_per_second: Floats = 8 * (total[high] - total[low]) / self.window
        return bits_per_second

    @cached_property
    def starts(self) -> Floats:
        """Beginnings of windows; each begins half a window after the previous one."""
        if not len(self.arrived):
            return np.empty(0)
        return np.arange(self.arrived.min(), self.arrived.max() - self.window, self.window / 2)

    def paused(self, at: Floats) -> Bools:
        """Per moment: whether no packet arrived for a quarter of a window around it."""
        time = np.concatenate(([-np.inf], np.sort(self.time), [np.inf]))
        after = np.searchsorted(time, at, side="right")
        paused: Bools = time[after] - time[after - 1] > _LONGEST_GAP * self.window
        return paused

    @cached_property
    def full(self) -> Bools:
        """Per window: whether all its packets had waited."""
        order = np.argsort(self.arrived, kind="stable")
        time, waited = self.arrived[order], self.waited[order] > self.threshold
        waited &= np.diff(time, append=np.inf) <= _LONGEST_GAP * self.window
        total = np.append(0, np.cumsum(waited))
        low, high = np.searchsorted(time, self.starts), np.searchsorted(time, self.starts + self.window)
        count = high - low
        whole: Bools = (count >= _LEAST_PACKETS) & (total[high] - total[low] == count)
        return whole

    def capacity(self) -> Capacity:
        """The capacity of a real link, from the trace."""
        rates = self.rates(self.starts)
        highest = float(rates.max(initial=1.0))
        always = np.array([-1e9])
        if self.full.sum() >= _LEAST_WINDOWS:
            rate = float(np.median(rates[self.full]))
            return Capacity(always, np.array([rate]), rate, by_queue=True)
        pairs = self._pairs()
        known = float(np.median(pairs)) if len(pairs) >= _LEAST_PAIRS else np.inf
        return Capacity(always, np.array([highest]), max(known, highest), by_queue=False)

    def _pairs(self) -> Floats:
        """Bit/s of each packet that waited behind the previous packet."""
        left, came = np.diff(self.sent), np.diff(self.arrived)
        chosen = (came > 0) & (came > _APART * left)
        rates: Floats = 8 * self.length[1:][chosen] / came[chosen]
        return rates


def as_set(forward: LinkParameters, shift: float) -> Capacity:
    """The capacity of an emulated link, whose data rate may change with time. `shift`: seconds from the link's input to
    the client."""
    changes = forward.impairments.changes
    start = np.array([-1e9, *(change.time + shift for change in changes)])
    rate = np.array([forward.data_rate, *(change.data_rate for change in changes)], dtype=np.float64)
    return Capacity(start, rate, float(forward.data_rate), by_queue=True)


def least_around(values: Floats, count: int) -> Floats:
    """Per value: the smallest of the `count` values around it."""
    padded = np.pad(values, (count // 2, count - 1 - count // 2), constant_values=np.inf)
    least: Floats = sliding_window_view(padded, count).min(axis=1)
    return least


def runs(chosen: Bools) -> tuple[Ints, Ints]:
    """The runs of True values: the first index of each, and the first index after it."""
    turns = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8)))
    return turns[::2], turns[1::2]


# The times in which the path carried no packet, or no packet of the sent size.

_EVERY_PATH = 1200  # bytes of UDP payload (RFC 9000 §14)
_LEAST_SILENCE = 0.4  # s in which all packets of the server were lost; the silence must also last one RTT
_LEAST_DROPS = 3  # single probes get lost when a sender searches for the path's MTU (RFC 8899 §5.1)


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A silence in seconds since the origin, in the client's time. `over`: when a packet arrived again (RFC 9002 §6.2:
    a sender notices the end of an outage only with its next probe); infinity when no packet arrived again."""

    start: float
    end: float
    over: float
    swallowed: Ints
    """Rows of the lost packets in the server-side capture. Empty when these packets are unknown."""


def outage(recording: Recording, path: PathImpairments, truth: LinkTruth | None, delay: float) -> Silence | None:
    """The configured outage, if the simulator's count shows that packets were lost in it; None otherwise.

    Its time counts from the first datagram that begins with a short header, in either direction (sim/README.md).
    `delay`: delay of the forward link in seconds.
    """
    configured, client, origin = path.outage, recording.client, recording.origin_ns
    if configured is None or truth is None or client is None or origin is None:
        return None
    if not truth.forward.dropped_outage + truth.return_.dropped_outage:
        return None
    firsts = []
    for sender in (CLIENT, SERVER):
        vantage = recording.near(sender)
        if vantage is not None:
            mine = vantage.packets.named("type", "1rtt") & (vantage.packets["index"] == 0)
            firsts.append(vantage.packet_time[mine & (vantage.packets["sender"] == sender)])
    first = np.concatenate(firsts).min(initial=np.iinfo(np.int64).max)
    start = float(first - origin) / 1e9 + configured.start + delay
    end = start + configured.duration
    came = (client.datagrams["time_ns"][client.datagrams["sender"] == SERVER] - origin) / 1e9
    return Silence(start=start, end=end, over=_next(came, end), swallowed=np.empty(0, dtype=np.int64))


def longest_silence(recording: Recording, flight: Flight, rtt: float, shift: float) -> Silence | None:
    """The outage in the trace of a real link: the longest time in which every packet of the server was lost. It must
    last at least one RTT and 0.4 s, because a few datagrams that are lost together are no outage."""
    client, origin = recording.client, recording.origin_ns
    if client is None or origin is None or not flight.arrived.any():
        return None
    first, after = runs(~flight.arrived)
    last = after - 1
    lasted = flight.time[last] - flight.time[first]
    chosen = (lasted >= max(_LEAST_SILENCE, rtt)) & (last - first + 1 >= _LEAST_DROPS)
    if not chosen.any():
        return None
    best = int(np.where(chosen, lasted, 0.0).argmax())
    start, end = float(flight.time[first[best]]) + shift, float(flight.time[last[best]]) + shift
    came = (client.datagrams["time_ns"][client.datagrams["sender"] == SERVER] - origin) / 1e9
    # Datagrams that were sent before the outage may still arrive at its beginning.
    swallowed = flight.row[first[best] : last[best] + 1]
    return Silence(start=start, end=end, over=_next(came, end), swallowed=swallowed)


def black_hole(recording: Recording, flight: Flight, truth: LinkTruth | None, shift: float) -> Silence | None:
    """The time in which all datagrams of the server above a size were lost, although datagrams of this size had passed
    before, up to the last such datagram. The size is at least 1200 B. None when these are fewer than three, or when the
    simulator counted fewer than three datagrams as too long. `shift`: seconds from the server to the client over the
    empty path."""
    server = recording.server
    if truth is None or truth.forward.dropped_mtu < _LEAST_DROPS or server is None:
        return None
    size = server.datagrams["payload_length"][server.packets["datagram"][flight.row]]
    passed = np.where(flight.arrived, size, 0)
    later = np.append(np.maximum.accumulate(passed[::-1])[::-1][1:], 0)
    largest = int(passed.max())  # only probes of the path's MTU are larger
    gone = np.flatnonzero(
        ~flight.arrived & (size > np.maximum(later, _EVERY_PATH)) & ((size <= largest) | (largest <= _EVERY_PATH))
    )
    if len(gone) < _LEAST_DROPS:
        return None
    time = flight.time + shift
    start = float(time[gone[0]])
    return Silence(
        start=start,
        end=float(time[gone[-1]]),
        over=_next(time[flight.arrived], start),
        swallowed=flight.row[gone],
    )


# The simulator's packet log (sim/README.md): what the link did to single packets.

_LOG_MAGIC, _LOG_HEAD = b"BPLINK1\n", 16
_LOG_RECORD = np.dtype(
    {
        "names": ["time", "id", "lateness", "direction", "event", "waiting", "length", "checksum"],
        "formats": ["<u8", "<u4", "<u4", "u1", "u1", "<u2", "<u2", "<u2"],
    }
)
_ENQUEUED, _LOST_IN_HANDOVER, _GRANTED = 0, 10, 11


@dataclass(frozen=True, kw_only=True)
class LinkEvents:
    """Packets that a handover or a missing grant held up, by their sender's index. Times in ns since 1970."""

    handover: tuple[Ints, Ints]
    """When each packet was lost in a handover."""
    granted: tuple[Ints, Ints]
    """When each packet that had waited for a grant was sent."""
    waited: tuple[Floats, Floats]
    """Seconds that each of them spent in the queue and in transmission."""


def link_events(path: Path, truth: LinkTruth | None, *, upload: bool = False) -> LinkEvents | None:
    """The events in a packet log; None when the simulator counted none, or the file is missing or broken. `upload`: see
    `Recording`."""
    ways = () if truth is None else (truth.forward, truth.return_)
    if not any(way.dropped_handover or way.waited_grant for way in ways):
        return None
    try:
        with path.open("rb") as file:
            head = file.read(_LOG_HEAD)
            log = np.frombuffer(file.read(), dtype=_LOG_RECORD)
    except (OSError, ValueError):
        return None
    if not head.startswith(_LOG_MAGIC) or len(head) != _LOG_HEAD:
        return None
    origin = np.uint64(int.from_bytes(head[len(_LOG_MAGIC) :], "little"))
    handover, granted, waited = [], [], []
    # Of the client, which sends in the return direction, and of the server.
    for direction in (0, 1) if upload else (1, 0):
        way = log[log["direction"] == direction]
        handover.append((way["time"][way["event"] == _LOST_IN_HANDOVER] + origin).astype(np.int64))
        sent, entered = way[way["event"] == _GRANTED], way[way["event"] == _ENQUEUED]
        known = np.argsort(entered["id"], kind="stable")
        place = np.searchsorted(entered["id"][known], sent["id"])
        sent, place = sent[place < len(entered)], place[place < len(entered)]
        granted.append((sent["time"] + origin).astype(np.int64))
        waited.append((sent["time"].astype(np.float64) - entered["time"][known][place]) / 1e9)
    return LinkEvents(
        handover=(handover[CLIENT], handover[SERVER]),
        granted=(granted[CLIENT], granted[SERVER]),
        waited=(waited[CLIENT], waited[SERVER]),
    )


def _next(times: Floats, after: float) -> float:
    later = times[times >= after]
    return float(later.min(initial=np.inf))
