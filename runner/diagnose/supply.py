"""Whether the server's application supplied less than the path carries, told by datagrams that aren't full.

A stack that has data fills its datagrams. A shorter one, after which the server rests until something else than an ACK
lets it go on, was all that there was: the buffer had run empty. An application that writes a little every few
milliseconds leaves such a datagram after each write, where its data rate alone can't be told from a small window's.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runner.decode.schema import CLIENT
from runner.diagnose.flight import Floats
from runner.diagnose.view import View
from runner.trace.intervals import Bools, Ints

_FULL = 0.97  # of the largest datagrams
_MEDIAN = 50
_LEAST_REST = 0.001  # s
_BY_ACK = 0.0005  # s from an ACK to what it lets go
_ROOM_PACKETS = 2
_LEAST_TIMES = 4
_LEAST_CALM = 0.6  # of the short datagrams
_LEAST_CALM_AS_WRITTEN = 0.3  # an ACK of two packets that comes in step with the application precedes every other one
_LEAST_VARIED = 4  # datagrams with another size, or with another number of stream bytes, than most have
_USUAL = 0.3  # of the datagrams have one size, or one number of stream bytes
_OFTEN = 0.15  # of the datagrams
_REGULAR = 0.7  # of the steps from one short datagram to the next
_LONG_REST = 0.125  # windows
_LEAST_RESTS = 30
_MOST = 75  # per cent
_SLOWEST = 0.004  # s
_OF_REST = 0.25
_MOSTLY = 0.4  # of the datagrams
_LONGER = 2.5  # times the rest after other datagrams
_ABOVE_PACER = 2.0  # times the median of the rests


@dataclass(frozen=True)
class Supply:
    """The datagrams with response data of one connection, in the order in which they left."""

    view: View

    @cached_property
    def packets(self) -> Ints:
        """Rows of the server-side capture's packets."""
        found: Ints = np.unique(self.view.sent.packet[self.view.own])
        return found

    @cached_property
    def _datagram(self) -> Ints:
        server = self.view.transfer.recording.server
        assert server is not None  # there is sent data
        rows: Ints = server.packets["datagram"][self.packets]
        return rows

    @cached_property
    def size(self) -> Ints:
        """Bytes of UDP payload."""
        server = self.view.transfer.recording.server
        assert server is not None
        sizes: Ints = server.datagrams["payload_length"][self._datagram]
        return sizes

    @cached_property
    def time(self) -> Floats:
        server = self.view.transfer.recording.server
        assert server is not None
        return self.view.seconds(server.datagrams["time_ns"][self._datagram])

    @cached_property
    def blocked(self) -> Bools:
        """The client's flow control left less than two packets after it."""
        packet = float(np.median(self.view.flight.length))
        found: Bools = self.view.room.left(self.time + 1e-6) < _ROOM_PACKETS * packet
        return found

    @cached_property
    def _stream_bytes(self) -> Ints:
        """Of response data in each datagram."""
        sent = self.view.sent
        place = np.searchsorted(self.packets, sent.packet[self.view.own])
        length = (sent.end - sent.start)[self.view.own]
        found: Ints = np.bincount(place, weights=length, minlength=len(self.packets)).astype(np.int64)
        return found

    @cached_property
    def _largest(self) -> Ints:
        """Bytes of the largest datagram that had left with data, or that an ACK had shown to pass, by each departure.
        A probe of the path's MTU (RFC 8899 §4.1) holds no data, and says what the next datagram may hold."""
        flight, server = self.view.flight, self.view.transfer.recording.server
        assert server is not None
        passed = np.isfinite(flight.acked)
        size = server.datagrams["payload_length"][server.packets["datagram"][flight.row[passed]]]
        order = np.argsort(flight.acked[passed], kind="stable")
        known = np.append(0, np.maximum.accumulate(size[order]))
        place = np.searchsorted(flight.acked[passed][order], self.time, side="right")
        largest: Ints = np.maximum(np.maximum.accumulate(self.size), known[place])
        return largest

    @cached_property
    def _filled(self) -> Bools:
        """A stack that fills its datagrams puts fewer stream bytes into one that also has an ACK, and keeps the size:
        a frequent size with varying numbers of stream bytes is what the stack takes for full, now or for a while."""
        filled = np.zeros(len(self.size), dtype=bool)
        sizes, count = np.unique(self.size, return_counts=True)
        for size in sizes[count >= _USUAL * len(self.size)]:
            mine = self.size == size
            length = np.bincount(self._stream_bytes[mine])
            if length.sum() - length.max() >= _LEAST_VARIED:
                filled |= mine
        return filled

    @cached_property
    def as_written(self) -> Bools:
        """Whether a datagram ends a write of the application: what leaves from one rest to the next has the same number
        of stream bytes again and again, and the stack could have put more into the last datagram."""
        found = np.zeros(len(self.size), dtype=bool)
        # A pacer may rest between any two datagrams: the application rests longer.
        pacer = _ABOVE_PACER * float(np.median(np.diff(self.time))) if len(self.time) > 1 else 0.0
        for rest in (_LEAST_REST, max(_LEAST_REST, pacer), self.view.window * _LONG_REST):
            found |= self._ends_of_writes(rest)
        return found & ~self._filled

    def _ends_of_writes(self, rest: float) -> Bools:
        """`rest` in seconds: shorter ones are the pacer's."""
        found = np.zeros(len(self.size), dtype=bool)
        ends = np.flatnonzero(np.diff(self.time) > rest)
        if len(ends) < _LEAST_TIMES:
            return found
        written = np.diff(np.cumsum(self._stream_bytes)[ends], prepend=0)
        left = np.diff(np.cumsum(self.size)[ends], prepend=0)
        heads = np.append(0, ends[:-1] + 1)
        largest = np.maximum.reduceat(self.size, heads)[: len(ends)]
        usual = np.bincount(written).argmax()
        mine = written == usual
        if mine.sum() < max(_LEAST_TIMES, _USUAL * len(ends)):
            return found
        # A datagram before it was larger; or an ACK in one makes it larger, and takes no room from the data.
        could = float(np.mean(self.size[ends][mine] < largest[mine])) > _REGULAR
        sizes = np.bincount(left[mine])
        if could or sizes.sum() - sizes.max() >= _LEAST_VARIED:
            found[ends[mine]] = True
        return found

    @cached_property
    def short(self) -> Bools:
        """Less than the server could fill, and not for want of credit. The last ones end the response."""
        if not len(self.size):
            return np.zeros(0, dtype=bool)
        largest = self._largest.astype(np.float64)
        hole = self.view.black_hole
        after = np.zeros(len(self.size), dtype=bool) if hole is None else self.time + self.view.shift >= hole.start
        if after.any():  # no larger ones pass from there on
            largest[after] = np.percentile(self.size[after], _MEDIAN)
        before_end = self.time < float(self.view.room.busy[1].max())
        less = ((self.size < _FULL * largest) & ~self._filled) | self.as_written
        short: Bools = less & ~self.blocked & before_end
        return short

    @cached_property
    def emptied(self) -> Bools:
        """Short, then rest, and no ACK ended it. Without at least four, and six of ten of all short ones, none: some
        stacks fill the rest of a congestion window with a short datagram. Three of ten do where the writes themselves
        can be seen. Where ACKs happen to come in step with the application, many short ones, each so many bytes after
        the one before, show that it writes so many at a time."""
        following = np.append(self.time[1:], np.inf)
        acks = self._acks
        rests = self.short & (following - self.time > _LEAST_REST)
        # No ACK just before the next datagram, or an earlier one that let nothing go.
        reaction = self._reaction(following)
        earlier = np.searchsorted(acks, following - reaction) > np.searchsorted(acks, self.time + _BY_ACK)
        by_ack = np.searchsorted(acks, following, side="right") > np.searchsorted(acks, following - reaction)
        calm = rests & (earlier | ~by_ack)
        if not self._rests_longer(following - self.time):
            return np.zeros(len(self.time), dtype=bool)
        written = float(np.mean(self.as_written[rests])) if rests.any() else 0.0
        share = _LEAST_CALM_AS_WRITTEN if written > 0.5 else _LEAST_CALM
        if calm.sum() < max(_LEAST_TIMES, share * rests.sum()) and not self._regular(rests):
            return np.zeros(len(self.time), dtype=bool)
        return rests

    def doubtful(self, start: float, end: float) -> bool:
        """Whether most datagrams that left between two moments of the server's clock are shorter than others before:
        an application that writes less than a datagram at a time looks like that, and so does a small window."""
        inside = (self.time >= start) & (self.time < end)
        less = (self.size < _FULL * self._largest) & ~self._filled
        return bool(inside.any()) and float(np.mean((less | self.as_written)[inside])) > 0.5

    def _reaction(self, following: Floats) -> float:
        """Seconds that the server takes from an ACK to what it lets go: half a millisecond, or what rests after full
        datagrams show of a slower stack or host. `following`: when the next datagram left."""
        gap = following - self.time
        long = (gap > _LEAST_REST) & np.isfinite(gap)
        rests = ~self.short & long
        place = np.searchsorted(self._acks, following[rests], side="right") - 1
        if rests.sum() < _LEAST_RESTS or (place < 0).any():
            return _BY_ACK
        since = following[rests] - self._acks[place]
        # Within rests that are hardly longer than that, an ACK would always be found.
        longest = (
            min(_SLOWEST, _OF_REST * float(np.median(gap[self.short & long]))) if (self.short & long).any() else 0.0
        )
        return float(np.clip(np.percentile(since, _MOST), _BY_ACK, max(_BY_ACK, longest)))

    def _rests_longer(self, gap: Floats) -> bool:
        """Whether the server rests longer after short datagrams than after others. Where it doesn't, each write of the
        application waits until the stack has taken the one before (quic-go: 32 KiB each), and nothing runs empty.
        `gap`: seconds from each datagram to the next."""
        chosen = np.flatnonzero(self.short)
        if not len(chosen):
            return False
        region = slice(int(chosen[0]), int(chosen[-1]) + 1)
        short, gap = self.short[region], gap[region]
        if short.mean() > _MOSTLY:  # each write is a datagram
            return True
        return float(gap[short].mean()) >= _LONGER * float(gap[~short].mean())

    def _regular(self, rests: Bools) -> bool:
        if rests.sum() < max(_LEAST_TIMES, _OFTEN * len(rests)):
            return False
        steps = np.bincount(np.diff(np.cumsum(self.size)[rests]))
        # A write of more than a datagram: datagrams that are all alike may be as large as the stack makes them.
        usual = int(steps.argmax())
        return usual > int(self.size.max()) and float(steps[usual]) >= _REGULAR * float(steps.sum())

    @cached_property
    def _acks(self) -> Floats:
        """When the server got ACKs."""
        server = self.view.transfer.recording.server
        assert server is not None
        acks = server.ack_frames
        mine = (acks["connection"] == self.view.connection) & (acks["sender"] == CLIENT)
        return np.sort(self.view.seconds(acks["time_ns"][mine]))

    def empty(self, at: Floats, longest: float) -> Bools:
        """Whether the buffer was empty at these moments of the server's clock, or ran empty within `longest` seconds
        before and again within that time of it."""
        found = np.zeros(len(at), dtype=bool)
        times = self.time[self.emptied]
        if not len(times):
            return found
        until = np.append(self.time[1:], np.inf)[self.emptied]
        place = np.searchsorted(times, at, side="right")
        begun = place > 0
        last = np.maximum(place - 1, 0)
        found = begun & (at < until[last])
        following = np.append(times, np.inf)[place]
        empty: Bools = found | (begun & (following - times[last] <= longest))
        return empty
