"""The limit that held the transfer back at each moment, from the first Initial packet to the last byte."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from runner.decode.columns import CLIENT
from runner.diagnose.path import least_around, runs
from runner.diagnose.transfer_view import View
from runner.model.result import Diagnosis, Limit, Span
from runner.trace.recording import Bools, Floats, Ints

# Whether the server's application supplied less data than the path carries. Datagrams that aren't full show this.
#
# A stack that has data fills its datagrams. When the server sends a shorter datagram and then rests, and no ACK ends
# the rest, its buffer had run empty. An application that writes a little every few milliseconds causes such a datagram
# after each write. Its data rate looks like that of a small congestion window, so the data rate is not enough to
# distinguish them.

_FULL_DATAGRAM = 0.97  # share of the size of the largest datagrams
_MEDIAN = 50
_LEAST_REST = 0.001  # s
_BY_ACK = 0.0005  # s in which a server usually reacts to an ACK with packets
_ROOM_PACKETS = 2
_LEAST_TIMES = 4
_LEAST_CALM = 0.6  # share of the short datagrams
_LEAST_CALM_AS_WRITTEN = 0.3  # ACKs of two packets may arrive in step with the application
_LEAST_VARIED = 4  # datagrams whose size, or number of stream bytes, differs from the most frequent value
_USUAL = 0.3  # share of the datagrams with the same size, or the same number of stream bytes
_OFTEN = 0.15  # share of the datagrams
_REGULAR = 0.7  # share of the distances between short datagrams
_LONG_REST = 0.125  # windows
_LEAST_SUPPLY_RESTS = 30
_MOST = 75  # percentile of the reaction times
_SLOWEST = 0.004  # s from an ACK to the packets that it allows
_OF_REST = 0.25  # share of the median rest
_MOSTLY = 0.4  # share of the datagrams
_LONGER = 2.5  # ratio to the rest after other datagrams
_ABOVE_PACER = 2.0  # ratio to the median of the rests
_ABOVE_TIMER = 0.005  # s, longer than the reaction of any stack, and than the timer of its pacer
_LEAST_UNANSWERED = 10
_LEAST_LARGE = 10  # datagrams
_EACH_RTT = (0.9, 1.2)  # RTTs from one rest to the next
_UNANSWERED = 0.7  # share of the rests; of a sender that waits for ACKs less than 0.3
_GROWTH = 1.4  # of the bytes in flight in an RTT: slow start doubles them
_SHRANK_TO = 0.5  # share of the bytes in flight before the rest; BBR keeps four packets, or half of its model's BDP
_HELD = 1.25, 2  # ratio, and packets, by which the bytes in flight may exceed the new window
_REST_SHARE = 8  # a rest is a gap of more than 1/8 window between packets


def _most_frequent(values: Ints) -> tuple[int, int]:
    """The most frequent value (of several, the smallest), and how often it occurs. `values` may be large numbers."""
    distinct, counts = np.unique(values, return_counts=True)
    place = int(counts.argmax())
    return int(distinct[place]), int(counts[place])


@dataclass(frozen=True)
class Supply:
    """The datagrams with response data of one connection, in the order of sending."""

    view: View

    @cached_property
    def packets(self) -> Ints:
        """Rows of the packets in the server-side capture."""
        rows: Ints = np.unique(self.view.sent.packet[self.view.own])
        return rows

    @cached_property
    def _datagram(self) -> Ints:
        rows: Ints = self.view.server.packets["datagram"][self.packets]
        return rows

    @cached_property
    def size(self) -> Ints:
        """Bytes of UDP payload."""
        sizes: Ints = self.view.server.datagrams["payload_length"][self._datagram]
        return sizes

    @cached_property
    def time(self) -> Floats:
        return self.view.seconds(self.view.server.datagrams["time_ns"][self._datagram])

    @cached_property
    def blocked(self) -> Bools:
        """Per datagram: whether the client's flow control allowed less than two packets after it."""
        packet = float(np.median(self.view.flight.length))
        full: Bools = self.view.room.left(self.time + 1e-6) < _ROOM_PACKETS * packet
        return full

    @cached_property
    def _stream_bytes(self) -> Ints:
        """Per datagram: bytes of response data."""
        return self._per_datagram(self.view.sent.end - self.view.sent.start)

    def _per_datagram(self, sizes: Ints) -> Ints:
        """Per datagram: the sum of `sizes`, which are in the order of the stream frames."""
        place = np.searchsorted(self.packets, self.view.sent.packet[self.view.own])
        sums: Ints = np.bincount(place, weights=sizes[self.view.own], minlength=len(self.packets)).astype(np.int64)
        return sums

    @cached_property
    def _largest(self) -> Ints:
        """Per datagram: bytes of the largest datagram until then that had response data or was acknowledged. A probe of
        the path's MTU (RFC 8899 §4.1) has no data, but its ACK shows that the next datagrams can have its size."""
        flight, server = self.view.flight, self.view.server
        passed = np.isfinite(flight.acked)
        size = server.datagrams["payload_length"][server.packets["datagram"][flight.row[passed]]]
        order = np.argsort(flight.acked[passed], kind="stable")
        known = np.append(0, np.maximum.accumulate(size[order]))
        place = np.searchsorted(flight.acked[passed][order], self.time, side="right")
        largest: Ints = np.maximum(np.maximum.accumulate(self.size), known[place])
        return largest

    @cached_property
    def _filled(self) -> Bools:
        """Per datagram: whether the stack takes its size for full. A stack that fills its datagrams puts fewer stream
        bytes into a datagram that also has an ACK frame, and so keeps the size. Full datagrams therefore have a
        frequent size, and their numbers of stream bytes vary. For an RTT after a larger size became known, some stacks
        (msquic) also take the size before for full."""
        filled = np.zeros(len(self.size), dtype=bool)
        earlier = np.searchsorted(self.time, self.time - self.view.rtt, side="right") - 1
        kept = (earlier >= 0) & (self.size == self._largest[earlier])
        sizes, count = np.unique(self.size, return_counts=True)
        frequent = np.isin(self.size, sizes[count >= _USUAL * len(self.size)])
        for size in np.unique(self.size[frequent | kept]):
            mine = (self.size == size) & (frequent | kept)
            if mine.sum() - _most_frequent(self._stream_bytes[mine])[1] >= _LEAST_VARIED:
                filled |= mine
        return filled

    @cached_property
    def as_written(self) -> Bools:
        """Per datagram: whether a write of the application ends with it. Then the datagrams between two rests have the
        same number of stream bytes again and again, and the last datagram had space for more data."""
        written = np.zeros(len(self.size), dtype=bool)
        # A pacer may rest between any two datagrams; the rests of an application are longer.
        pacer = _ABOVE_PACER * float(np.median(np.diff(self.time))) if len(self.time) > 1 else 0.0
        for rest in (_LEAST_REST, max(_LEAST_REST, pacer), self.view.window * _LONG_REST):
            written |= self._ends_of_writes(rest)
        return written & ~self._filled

    def _ends_of_writes(self, rest: float) -> Bools:
        """Per datagram: whether a write ends with it. `rest` in seconds: shorter rests are those of the pacer."""
        write_ends = np.zeros(len(self.size), dtype=bool)
        ends = np.flatnonzero(np.diff(self.time) > rest)
        if len(ends) < _LEAST_TIMES:
            return write_ends
        written = np.diff(np.cumsum(self._stream_bytes)[ends], prepend=0)
        left = np.diff(np.cumsum(self.size)[ends], prepend=0)
        heads = np.append(0, ends[:-1] + 1)
        largest = np.maximum.reduceat(self.size, heads)[: len(ends)]
        usual, _ = _most_frequent(written)
        mine = written == usual
        if mine.sum() < max(_LEAST_TIMES, _USUAL * len(ends)):
            return write_ends
        # The last datagram could have been larger if an earlier datagram of the write was larger. The same holds if
        # datagrams that also have an ACK frame are larger and have as many stream bytes.
        could = float(np.mean(self.size[ends][mine] < largest[mine])) > _REGULAR
        if could or mine.sum() - _most_frequent(left[mine])[1] >= _LEAST_VARIED:
            write_ends[ends[mine]] = True
        return write_ends

    @cached_property
    def short(self) -> Bools:
        """Per datagram: whether it had space for more data and the client's flow control allowed more. Datagrams at the
        end of the last response don't count, nor those that only repeat data: where a lost packet was larger than the
        next one, the rest of its data goes alone (msquic)."""
        if not len(self.size):
            return np.zeros(0, dtype=bool)
        largest = self._largest.astype(np.float64)
        hole = self.view.black_hole
        after = np.zeros(len(self.size), dtype=bool) if hole is None else self.time + self.view.shift >= hole.start
        if after.any():  # from the start of the black hole on, larger datagrams don't pass
            largest[after] = np.percentile(self.size[after], _MEDIAN)
        before_end = self.time < float(self.view.room.busy[1].max())
        less = ((self.size < _FULL_DATAGRAM * largest) & ~self._filled) | self.as_written
        short: Bools = less & ~self.blocked & before_end & (self._per_datagram(self.view.sent.new) > 0)
        return short

    @cached_property
    def emptied(self) -> Bools:
        """Per datagram: whether the buffer ran empty with it: the datagram is short and a rest follows.

        For at least four datagrams, and at least 60 % of those with a rest, no ACK may end the rest. Otherwise no
        datagram counts, because some stacks fill the rest of a congestion window with a short datagram. 30 % suffice
        where the writes themselves can be seen. Many short datagrams at equal distances in bytes suffice, too: they
        show the size of the application's writes even where ACKs arrive at the same times as the writes.
        """
        following, gap = self.following, self.following - self.time
        rests = self.short & (gap > _LEAST_REST)
        # An ACK did not end the rest if no ACK arrived just before the next datagram. It did not end the rest either
        # if an earlier ACK arrived during the rest and no packet followed it.
        by_ack = np.searchsorted(self._acks, following, side="right") > np.searchsorted(
            self._acks, following - self._reaction
        )
        unanswered = self._unanswered(each_rtt=False)
        calm = rests & (self._acked_in_rest(self._reaction) | ~by_ack)
        if not self._rests_longer(gap):
            return unanswered
        written = float(np.mean(self.as_written[rests])) if rests.any() else 0.0
        share = _LEAST_CALM_AS_WRITTEN if written > 0.5 else _LEAST_CALM
        if calm.sum() < max(_LEAST_TIMES, share * rests.sum()) and not self._regular(rests):
            return unanswered
        return rests | unanswered

    def _unanswered(self, *, each_rtt: bool) -> Bools:
        """Per datagram, full or not: whether the server rested after it, and ACKs that arrived long before the end of
        the rest let no packet go. So the window was not full. With `each_rtt`, only rests of a sender that sends one
        burst per RTT (`Limit.PACING`); otherwise only shorter rests, in which the application had no data. No datagram
        counts where ACKs end most rests, or where the bytes in flight grow as in slow start: a pacer that sends several
        datagrams at once (ngtcp2) rests between them, too, and its data rate grows with the window."""
        gap = self.following - self.time
        rests = np.isfinite(gap) & (gap > max(_ABOVE_TIMER, _ABOVE_PACER * float(np.median(gap)))) & ~self.blocked
        rests &= self.view.room.pending(self.time + 1e-6) > 0
        # A smaller window after a loss needs no packet for an ACK, either.
        signals = self.view.flight.signals
        rests &= np.searchsorted(signals, self.following) == np.searchsorted(signals, self.time - 2 * self.view.window)
        if not each_rtt:
            in_flight = self.view.flight.in_flight
            rests &= in_flight(self.time + 1e-6) < _GROWTH * in_flight(self.time + 1e-6 - self.view.rtt)
        ends = np.flatnonzero(rests)
        large = np.zeros(len(gap), dtype=bool)  # a slow stack sends less after each ACK
        large[ends] = np.diff(ends, prepend=-1) >= _LEAST_LARGE
        rtts = np.diff(self.following[ends], prepend=-np.inf) / self.view.rtt
        rests[ends[(rtts < _EACH_RTT[0]) | (rtts > _EACH_RTT[1]) if each_rtt else rtts >= _EACH_RTT[0]]] = False
        unanswered = rests & (self._acked_in_rest(_SLOWEST) | (large & self._acked_in_rest(_BY_ACK)))
        enough = unanswered.sum() >= max(_LEAST_UNANSWERED, _UNANSWERED * rests.sum())
        return unanswered if enough else np.zeros(len(gap), dtype=bool)

    def bursts(self, at: Floats) -> Bools:
        """Per moment of the server's clock: whether the server rested between two bursts, although ACKs arrived."""
        ends = self._unanswered(each_rtt=True)
        place = np.searchsorted(self.time[ends], at, side="right")
        return np.append(-np.inf, self.following[ends])[place] > at

    def window_shrank(self, at: Floats) -> Bools:
        """Per moment of the server's clock: whether the congestion window had just shrunk without a loss, as in BBR's
        ProbeRTT (draft-ietf-ccwg-bbr §5.3.4): the server lets ACKs pass until fewer bytes are in flight, although it
        has data."""
        begins, ends = self._shrunk
        place = np.searchsorted(begins, at, side="right")
        shrank: Bools = at < np.append(-np.inf, ends)[place]
        return shrank

    @cached_property
    def _shrunk(self) -> tuple[Floats, Floats]:
        """The beginnings and ends of these times. Each begins with a rest. Then at most half as many bytes are in
        flight, and they stay so few for a round trip, in which ACKs let all packets go. After the rest of an
        application, other events than ACKs let packets go, or more bytes are in flight within a round trip."""
        flight = self.view.flight
        time, level = flight.time, flight.in_flight(flight.time + 1e-6)
        rested = np.diff(time, prepend=-np.inf) > self.view.window / _REST_SHARE
        by_ack = np.searchsorted(self._acks, time + _BY_ACK) > np.searchsorted(self._acks, time - _SLOWEST)
        held = _HELD[0] * level + _HELD[1] * float(np.median(flight.length))
        heads = rested & by_ack & (level <= _SHRANK_TO * np.append(0, level[:-1]))
        begins, ends = [], []
        for head in np.flatnonzero(heads).tolist():
            grew = head + int((level[head:] > held[head]).argmax())
            if time[grew] >= flight.acked[head] and (by_ack | ~rested)[head : grew + 1].all():
                begins.append(time[head - 1])
                ends.append(time[grew])
        return np.array(begins), np.maximum.accumulate(np.array(ends))

    def doubtful(self, start: float, end: float) -> bool:
        """Whether most datagrams between two moments of the server's clock are shorter than earlier datagrams. Such
        datagrams may come from an application that writes less than a datagram at a time, or from a small window."""
        inside = (self.time >= start) & (self.time < end)
        less = (self.size < _FULL_DATAGRAM * self._largest) & ~self._filled
        return bool(inside.any()) and float(np.mean((less | self.as_written)[inside])) > 0.5

    @cached_property
    def following(self) -> Floats:
        """Per datagram: when the next datagram was sent; infinity for the last."""
        return np.append(self.time[1:], np.inf)

    def _acked_in_rest(self, reaction: float) -> Bools:
        """Per datagram: whether an ACK of response data arrived after it, and longer than `reaction` seconds before the
        next. ACKs of other packets, such as those with DATA_BLOCKED, make no room in the window."""
        acked = self.view.flight.acked
        room = np.sort(acked[np.isfinite(acked)])
        made: Bools = np.searchsorted(room, self.following - reaction) > np.searchsorted(room, self.time + _BY_ACK)
        return made

    @cached_property
    def _reaction(self) -> float:
        """Seconds from the arrival of an ACK to the packets that it allows: half a millisecond, or more where the rests
        after full datagrams show a slower stack or host."""
        following, gap = self.following, self.following - self.time
        long = (gap > _LEAST_REST) & np.isfinite(gap)
        rests = ~self.short & long
        place = np.searchsorted(self._acks, following[rests], side="right") - 1
        if rests.sum() < _LEAST_SUPPLY_RESTS or (place < 0).any():
            return _BY_ACK
        since = following[rests] - self._acks[place]
        # The reaction time must be much shorter than a rest: otherwise an ACK would seem to end every rest.
        longest = (
            min(_SLOWEST, _OF_REST * float(np.median(gap[self.short & long]))) if (self.short & long).any() else 0.0
        )
        return float(np.clip(np.percentile(since, _MOST), _BY_ACK, max(_BY_ACK, longest)))

    def _rests_longer(self, gap: Floats) -> bool:
        """Whether the server rests longer after short datagrams than after others. If not, no buffer ran empty: each
        write of the application waits until the stack has taken the previous write (quic-go: 32 KiB each), and a short
        datagram ends each write. `gap`: seconds from each datagram to the next."""
        chosen = np.flatnonzero(self.short)
        if not len(chosen):
            return False
        region = slice(int(chosen[0]), int(chosen[-1]) + 1)
        short, gap = self.short[region], gap[region]
        if short.mean() > _MOSTLY:  # each write fits into a datagram
            return True
        return float(gap[short].mean()) >= _LONGER * float(gap[~short].mean())

    def _regular(self, rests: Bools) -> bool:
        if rests.sum() < max(_LEAST_TIMES, _OFTEN * len(rests)):
            return False
        steps = np.diff(np.cumsum(self.size)[rests])
        # A write must be larger than a datagram, because datagrams of equal size may be the largest of the stack.
        usual, times = _most_frequent(steps)
        return usual > int(self.size.max()) and times >= _REGULAR * len(steps)

    @cached_property
    def _acks(self) -> Floats:
        """When ACKs reached the server."""
        acks = self.view.server.ack_frames
        mine = (acks["connection"] == self.view.connection) & (acks["sender"] == CLIENT)
        return np.sort(self.view.seconds(acks["time_ns"][mine]))

    def empty(self, at: Floats, longest: float) -> Bools:
        """Per moment of the server's clock: whether the buffer was empty, or ran empty before and after the moment with
        at most `longest` seconds between the two."""
        idle = np.zeros(len(at), dtype=bool)
        times = self.time[self.emptied]
        if not len(times):
            return idle
        until = self.following[self.emptied]
        place = np.searchsorted(times, at, side="right")
        begun = place > 0
        last = np.maximum(place - 1, 0)
        idle = begun & (at < until[last])
        following = np.append(times, np.inf)[place]
        empty: Bools = idle | (begun & (following - times[last] <= longest))
        return empty


# The time of a response in short slices of equal length, with the state of the connection in each.

_SLICES_PER_RTT = 16
_MOST_SLICES = 4000
_FULL_LINK = 0.9


@dataclass(frozen=True)
class Slices:
    """The time of a response in slices of equal length. A property has one value for the middle of each slice."""

    view: View

    @cached_property
    def window(self) -> float:
        """Seconds of the window around a slice: one RTT, at least 50 ms."""
        return self.view.window

    @cached_property
    def edges(self) -> Floats:
        """The times at which slices begin and end, in seconds since the origin, in the client's time."""
        begin, end = self.view.first_byte, self.view.last_byte
        count = int(np.clip(np.ceil((end - begin) / self.window * _SLICES_PER_RTT), 16, _MOST_SLICES))
        return np.linspace(begin, end, count + 1)

    @cached_property
    def middle(self) -> Floats:
        return (self.edges[1:] + self.edges[:-1]) / 2

    @cached_property
    def sending(self) -> Floats:
        """The middles of the slices by the clock of the server's capture."""
        return self.middle - self.view.shift

    @cached_property
    def per_window(self) -> int:
        """Number of slices in a window, at least 1."""
        width = float(self.edges[1] - self.edges[0])
        return max(1, min(len(self.middle), round(self.window / width))) if width > 0 else 1

    def inside(self, spans: Iterable[Span]) -> Bools:
        """Per slice: whether its middle is in one of these spans."""
        inside = np.zeros(len(self.middle), dtype=bool)
        for span in spans:
            inside |= (self.middle >= span.start) & (self.middle < span.end)
        return inside

    def around(self, values: NDArray[np.generic], count: int) -> Floats:
        """Per slice: the mean of `values` over the `count` slices around it; over fewer slices near both ends."""
        total = np.append(0.0, np.cumsum(values, dtype=np.float64))
        place = np.arange(len(values))
        low, high = np.maximum(place - count // 2, 0), np.minimum(place + (count + 1) // 2, len(values))
        mean: Floats = (total[high] - total[low]) / np.maximum(high - low, 1)
        return mean

    @cached_property
    def utilisation(self) -> Floats:
        """Per slice: arrived bytes in the window around it, divided by the bytes that the link can carry
        (`View.capacity`)."""
        time, size = self.view.arrivals
        begin, end = float(self.edges[0]), float(self.edges[-1])
        low = np.clip(self.middle - self.window / 2, begin, end)
        high = np.clip(self.middle + self.window / 2, begin, end)
        total = np.append(0, np.cumsum(size))
        arrived = total[np.searchsorted(time, high, side="right")] - total[np.searchsorted(time, low)]
        capacity = self.view.capacity.bits(low, high) / 8 * (1 - self.view.link.forward.loss)
        shares: Floats = arrived / np.maximum(capacity, 1.0)
        return shares

    @cached_property
    def full(self) -> Bools:
        """Per slice: whether the forward link was full: 90 % of the bytes that it can deliver in the window arrived. A
        real link was also full when each packet of the window had waited."""
        full: Bools = (self.utilisation >= _FULL_LINK) & self.view.capacity.by_queue
        if self.view.link.forward.is_real:
            full |= self._standing
        return full

    @cached_property
    def return_use(self) -> Floats:
        """Per slice: bytes that the client sent in the window around it, divided by the bytes that the return link can
        carry. 0 where the capacity is unknown."""
        if not np.isfinite(self.view.return_rate):
            return np.zeros(len(self.middle))
        datagrams = self.view.client.datagrams
        mine = datagrams["sender"] == CLIENT
        time, size = self.view.seconds(datagrams["time_ns"][mine]), datagrams["ip_length"][mine]
        total = np.append(0, np.cumsum(size))
        low, high = self.middle - self.window / 2, self.middle + self.window / 2
        sent = total[np.searchsorted(time, high)] - total[np.searchsorted(time, low)]
        used: Floats = 8 * sent / self.window / self.view.return_rate
        return used

    @cached_property
    def least_waited(self) -> Floats:
        """Per slice: the shortest wait of a packet in seconds; infinity without packets."""
        time, waited = self.view.waiting
        place = np.clip(np.searchsorted(self.edges, time, side="right") - 1, 0, len(self.middle) - 1)
        least = np.full(len(self.middle), np.inf)
        np.minimum.at(least, place, waited)
        return least

    @cached_property
    def _standing(self) -> Bools:
        waited = np.where(self.view.shown.paused(self.middle), 0.0, self.least_waited)
        least = least_around(waited, self.per_window)
        standing: Bools = np.isfinite(least) & (least > self.view.shown.threshold)
        return standing

    @cached_property
    def supply(self) -> Supply:
        return Supply(self.view)

    @cached_property
    def starved(self) -> Bools:
        """Per slice: whether the server's buffer was empty, or ran empty before and after the slice with at most half a
        window between the two."""
        return self.supply.empty(self.sending, self.window / 2)

    @cached_property
    def out(self) -> Bools:
        """Per slice: whether the path carried no packet, or no packet of the sent size."""
        silent = np.zeros(len(self.middle), dtype=bool)
        for silence in (self.view.outage, self.view.black_hole):
            if silence is not None:
                silent |= (self.middle >= silence.start) & (self.middle < silence.over)
        return silent

    @cached_property
    def blocked(self) -> Bools:
        """Per slice: whether the client's flow control allows less than two packets."""
        packet = float(np.median(self.view.flight.length))
        left: Bools = (self.view.room.left(self.sending) < _ROOM_PACKETS * packet) & self.pending
        return left

    @cached_property
    def pending(self) -> Bools:
        waiting: Bools = self.view.room.pending(self.sending) > 0
        return waiting

    @cached_property
    def in_flight(self) -> Floats:
        """Per slice: bytes in flight at the server."""
        return self.view.flight.in_flight(self.sending)

    @cached_property
    def peak(self) -> Floats:
        """Per slice: the most bytes in flight within the last one and a half windows."""
        width = self.per_window + self.per_window // 2
        padded = np.append(np.zeros(width - 1), self.in_flight)
        peak: Floats = sliding_window_view(padded, width).max(axis=1)
        return peak

    @cached_property
    def resting(self) -> Bools:
        """Per slice: whether the server sends nothing for longer than 1/8 window."""
        times = np.concatenate(([-np.inf], self.view.flight.time, [np.inf]))
        after = np.searchsorted(times, self.sending, side="right")
        resting: Bools = times[after] - times[after - 1] > self.window / _REST_SHARE
        return resting

    @cached_property
    def after_loss(self) -> Bools:
        """Per slice: whether the server learnt of a loss, or of CE, within the last two windows."""
        signals = self.view.flight.signals
        later: Bools = np.searchsorted(signals, self.sending, side="right") > np.searchsorted(
            signals, self.sending - 2 * self.window
        )
        return later


# The limit that held the transfer back at each moment, from the first Initial packet to the last byte.
#
# All times are times at the client: the time of an event at the server is the time at which a packet that is sent then
# arrives over an empty link. Until the first response byte the limit is HANDSHAKE, except for the time that the server
# took to answer. From the first response byte on, the time is divided into slices of about 1/16 RTT. Each slice has a
# window of one RTT around it, because a sender's feedback loop takes one RTT (RFC 9002 §7). The limit of a slice is the
# first of these limits whose condition is true:
#
# 1. OUTAGE: the path carried nothing. For an emulated link the outage was configured and the simulator counted losses.
# 2. LINK: in the window, at least 90 % of the bytes arrived that the forward link can deliver (its capacity without
# the losses of its loss model). On a real link also: each packet of the window had waited. The advertised data rate is
# never used as the capacity. 3. RECEIVE_WINDOW: MAX_DATA or MAX_STREAM_DATA allow less than two packets, in this slice
# or in 40 % of the window. 4. RECOVERY or HANDSHAKE: no response has unsent bytes. RECOVERY: the client misses bytes
# that were sent. HANDSHAKE: the server waits for a request. 5. PACING or APPLICATION: the server rests although its
# window has room: less than half as many bytes are in flight as recently, and the server learnt of no loss for two
# RTTs. At least three such rests, about one per RTT, are PACING; other rests, also longer rests between them, are
# APPLICATION. APPLICATION also: datagrams that aren't full show that the server's buffer ran empty again and again
# (`Supply`). 6. CONGESTION_WINDOW: at least half as many bytes are in flight as recently, because the sender waits
# for ACKs or spreads its window over the RTT. Also for two RTTs after the server learnt of a loss or of CE, and while
# its window shrinks without a loss (`Supply.window_shrank`).
#
# All other time is UNKNOWN. When the server's capture lacks packets, CONGESTION_WINDOW is replaced by UNKNOWN. At the
# end each slice gets the most frequent limit of the half window around it.

_BLOCKED_SHARE = 0.4
_SPARE = 0.5
_RHYTHM = (0.6, 2.5)  # RTTs of the empty path from one rest to the next
_LEAST_RESTS = 3
_ORDER = tuple(Limit)


@dataclass(frozen=True)
class Course:
    """A transfer with its limits over time. Detectors read this."""

    view: View
    slices: Slices
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, view: View) -> "Course":
        slices = Slices(view)
        return cls(view=view, slices=slices, spans=partition(slices))

    @property
    def duration(self) -> float:
        """Seconds from the connection's first packet to the last new byte, above 0."""
        return max(self.view.last_byte - self.view.begin, 1e-9)

    def of_limit(self, limit: Limit) -> tuple[Span, ...]:
        """The spans in which this limit held the transfer back."""
        return tuple(span for span in self.spans if span.limit is limit)

    def diagnosis(self, code: str, sentence: str, start: float, end: float, **known: Any) -> Diagnosis:
        """A diagnosis of these moments. `known`: other fields of it; by default its share is that of the time, and the
        server's packets between the moments prove it."""
        usual = {"share": (end - start) / self.duration, "packets": self.view.numbers_in(start, end)}
        return Diagnosis(code=code, sentence=sentence, start=start, end=end, **{"vantage": "server", **usual, **known})


def partition(slices: Slices) -> tuple[Span, ...]:
    """Spans without gap or overlap from the connection's first packet to the last new byte."""
    early = _beginning(slices.view)
    codes = _smooth(slices, _classify(slices))
    heads = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    ends = slices.edges[np.append(heads[1:], len(codes))]
    late = [
        Span(limit=_ORDER[code], start=float(start), end=float(end))
        for code, start, end in zip(codes[heads].tolist(), slices.edges[heads].tolist(), ends.tolist(), strict=True)
    ]
    return tuple(span for span in (*early, *late) if span.end > span.start)


def shares(spans: tuple[Span, ...]) -> dict[str, float]:
    """Limit → its share of the time; empty for a transfer without duration."""
    whole = sum(span.end - span.start for span in spans)
    by_limit: dict[str, float] = {}
    for span in spans:
        by_limit[span.limit.value] = by_limit.get(span.limit.value, 0.0) + (span.end - span.start) / whole
    return by_limit


def _beginning(view: View) -> list[Span]:
    """Spans up to the first response byte: handshake and request, the server's time to answer, and the retransmission
    of a lost first byte."""
    moments = np.array([view.room.busy[0].min(), view.seconds(view.sent.time_ns[view.own[:1]])[0]]) + view.shift
    requested, answered = np.clip(moments, view.begin, view.first_byte).tolist()
    return [
        Span(limit=Limit.HANDSHAKE, start=view.begin, end=requested),
        Span(limit=Limit.APPLICATION, start=requested, end=answered),
        Span(limit=Limit.RECOVERY, start=answered, end=view.first_byte),
    ]


def _classify(slices: Slices) -> Ints:
    """Per slice: the index of its limit in `_ORDER`."""
    idle = ~slices.pending
    room = (slices.in_flight < _SPARE * slices.peak) | (slices.in_flight <= 0)
    spare = slices.resting & room & ~slices.after_loss & ~idle & (slices.in_flight < slices.view.bdp)
    spare |= slices.resting & (slices.in_flight <= 0) & ~idle  # a window has at least one byte
    shrank = slices.supply.window_shrank(slices.sending)
    spare &= ~shrank
    held = (
        (slices.in_flight >= _SPARE * slices.peak) | slices.after_loss | shrank
    ) & slices.view.transfer.sent_completely
    blocked = slices.blocked | (slices.around(slices.blocked, slices.per_window) >= _BLOCKED_SHARE)
    conditions = (
        (Limit.OUTAGE, slices.out),
        (Limit.LINK, slices.full),
        (Limit.RECEIVE_WINDOW, blocked & ~idle),
        (Limit.RECOVERY, idle & _whole(slices)),
        (Limit.HANDSHAKE, idle),
        (Limit.APPLICATION, slices.starved),
        (Limit.PACING, slices.supply.bursts(slices.sending) | (spare & _rhythmic(slices, spare))),
        (Limit.APPLICATION, spare),
        (Limit.CONGESTION_WINDOW, held),
    )
    codes = [_ORDER.index(limit) for limit, _ in conditions]
    return np.select([condition for _, condition in conditions], codes, default=_ORDER.index(Limit.UNKNOWN))


def _whole(slices: Slices) -> Bools:
    """Per slice: whether the server has no new byte left to send, so that all bytes that the client still misses have
    been sent."""
    _, end = slices.view.room.busy
    whole: Bools = slices.sending >= end.max()
    return whole


def _rhythmic(slices: Slices, spare: Bools) -> Bools:
    """Per slice: whether it is in a rest of a rhythm. At least three rests begin about once per RTT; a rest that is
    longer than the rhythm is none of them."""
    first, last = runs(spare)
    steps = np.diff(slices.middle[first]) / slices.window
    if len(first) < _LEAST_RESTS or np.mean((steps >= _RHYTHM[0]) & (steps <= _RHYTHM[1])) < 0.5:
        return np.zeros(len(spare), dtype=bool)
    short = last - first <= _RHYTHM[1] * slices.per_window
    count = np.zeros(len(spare) + 1, dtype=int)
    count[first[short]], count[last[short]] = 1, -1
    rhythmic: Bools = np.cumsum(count)[:-1] > 0
    return rhythmic


def _smooth(slices: Slices, codes: Ints) -> Ints:
    """The most frequent limit within half a window around each slice."""
    votes = np.stack([slices.around(codes == code, max(1, slices.per_window // 2)) for code in range(len(_ORDER))])
    smooth: Ints = votes.argmax(axis=0)
    return smooth


# The time of a response in slices of one RTT (rounds), with the bytes in flight and the limit of each.


@dataclass(frozen=True)
class Rounds:
    """Per round: its start in the client's time, the most bytes in flight, whether the congestion window was the limit
    in most of the round, and whether the server had learnt of a loss or of CE before its end. A retransmission counts
    as a loss, because it lowered the window even if the first copy arrived."""

    start: Floats
    length: float
    peak: Floats
    by_window: Bools
    after_loss: Bools

    @classmethod
    def of(cls, course: Course) -> "Rounds":
        slices, view = course.slices, course.view
        size = slices.per_window
        heads = np.arange(0, max(1, len(slices.middle) - size + 1), size)
        ends = slices.sending[np.minimum(heads + size, len(slices.middle)) - 1]
        limited = slices.inside(course.of_limit(Limit.CONGESTION_WINDOW)).astype(int)
        return cls(
            start=slices.edges[heads],
            length=slices.window,
            peak=np.maximum.reduceat(slices.in_flight, heads),
            by_window=np.add.reduceat(limited, heads) > size / 2,
            after_loss=ends >= view.first_loss,
        )

    def flat(self, growth: float) -> tuple[int, int]:
        """The longest run [first, last) of rounds before any loss in which the window was the limit and the peak grew
        by less than `growth` per round; (0, 0) without any."""
        calm = self.by_window & ~self.after_loss
        slow = np.append(self.peak[1:] < growth * self.peak[:-1], False)
        steady = calm & np.append(calm[1:], False) & slow
        return longest(steady)


def longest(chosen: Bools) -> tuple[int, int]:
    """The longest run of True values as [first, last); (0, 0) without any."""
    first, last = runs(chosen)
    if not len(first):
        return 0, 0
    best = int((last - first).argmax())
    return int(first[best]), int(last[best])
