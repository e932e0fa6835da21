"""Whether the server's application supplied less data than the path carries. Datagrams that aren't full show this.

A stack that has data fills its datagrams. When the server sends a shorter datagram and then rests, and no ACK ends the
rest, its buffer had run empty. An application that writes a little every few milliseconds causes such a datagram after
each write. Its data rate looks like that of a small congestion window, so the data rate is not enough to distinguish
them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runner.decode.schema import CLIENT
from runner.diagnose.flight import Floats
from runner.diagnose.view import View
from runner.trace.intervals import Bools, Ints
from runner.trace.vantage import Vantage

_FULL = 0.97  # share of the size of the largest datagrams
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
_LEAST_RESTS = 30
_MOST = 75  # percentile of the reaction times
_SLOWEST = 0.004  # s from an ACK to the packets that it allows
_OF_REST = 0.25  # share of the median rest
_MOSTLY = 0.4  # share of the datagrams
_LONGER = 2.5  # ratio to the rest after other datagrams
_ABOVE_PACER = 2.0  # ratio to the median of the rests


@dataclass(frozen=True)
class Supply:
    """The datagrams with response data of one connection, in the order of sending."""

    view: View

    @property
    def _server(self) -> Vantage:
        server = self.view.transfer.recording.server
        assert server is not None  # there is sent data
        return server

    @cached_property
    def packets(self) -> Ints:
        """Rows of the packets in the server-side capture."""
        rows: Ints = np.unique(self.view.sent.packet[self.view.own])
        return rows

    @cached_property
    def _datagram(self) -> Ints:
        rows: Ints = self._server.packets["datagram"][self.packets]
        return rows

    @cached_property
    def size(self) -> Ints:
        """Bytes of UDP payload."""
        sizes: Ints = self._server.datagrams["payload_length"][self._datagram]
        return sizes

    @cached_property
    def time(self) -> Floats:
        return self.view.seconds(self._server.datagrams["time_ns"][self._datagram])

    @cached_property
    def blocked(self) -> Bools:
        """Per datagram: whether the client's flow control allowed less than two packets after it."""
        packet = float(np.median(self.view.flight.length))
        full: Bools = self.view.room.left(self.time + 1e-6) < _ROOM_PACKETS * packet
        return full

    @cached_property
    def _stream_bytes(self) -> Ints:
        """Per datagram: bytes of response data."""
        sent = self.view.sent
        place = np.searchsorted(self.packets, sent.packet[self.view.own])
        length = (sent.end - sent.start)[self.view.own]
        sizes: Ints = np.bincount(place, weights=length, minlength=len(self.packets)).astype(np.int64)
        return sizes

    @cached_property
    def _largest(self) -> Ints:
        """Per datagram: bytes of the largest datagram until then that had response data or was acknowledged. A probe of
        the path's MTU (RFC 8899 §4.1) has no data, but its ACK shows that the next datagrams can have its size."""
        flight, server = self.view.flight, self._server
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
        frequent size, and their numbers of stream bytes vary."""
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
        usual = np.bincount(written).argmax()
        mine = written == usual
        if mine.sum() < max(_LEAST_TIMES, _USUAL * len(ends)):
            return write_ends
        # The last datagram could have been larger if an earlier datagram of the write was larger. The same holds if
        # datagrams that also have an ACK frame are larger and have as many stream bytes.
        could = float(np.mean(self.size[ends][mine] < largest[mine])) > _REGULAR
        sizes = np.bincount(left[mine])
        if could or sizes.sum() - sizes.max() >= _LEAST_VARIED:
            write_ends[ends[mine]] = True
        return write_ends

    @cached_property
    def short(self) -> Bools:
        """Per datagram: whether it had space for more data and the client's flow control allowed more. Datagrams at the
        end of the last response don't count."""
        if not len(self.size):
            return np.zeros(0, dtype=bool)
        largest = self._largest.astype(np.float64)
        hole = self.view.black_hole
        after = np.zeros(len(self.size), dtype=bool) if hole is None else self.time + self.view.shift >= hole.start
        if after.any():  # from the start of the black hole on, larger datagrams don't pass
            largest[after] = np.percentile(self.size[after], _MEDIAN)
        before_end = self.time < float(self.view.room.busy[1].max())
        less = ((self.size < _FULL * largest) & ~self._filled) | self.as_written
        short: Bools = less & ~self.blocked & before_end
        return short

    @cached_property
    def emptied(self) -> Bools:
        """Per datagram: whether the buffer ran empty with it: the datagram is short and a rest follows.

        For at least four datagrams, and at least 60 % of those with a rest, no ACK may end the rest. Otherwise no
        datagram counts, because some stacks fill the rest of a congestion window with a short datagram. 30 % suffice
        where the writes themselves can be seen. Many short datagrams at equal distances in bytes suffice, too: they
        show the size of the application's writes even where ACKs arrive at the same times as the writes.
        """
        following = np.append(self.time[1:], np.inf)
        acks = self._acks
        rests = self.short & (following - self.time > _LEAST_REST)
        # An ACK did not end the rest if no ACK arrived just before the next datagram. It did not end the rest either
        # if an earlier ACK arrived during the rest and no packet followed it.
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
        """Whether most datagrams between two moments of the server's clock are shorter than earlier datagrams. Such
        datagrams may come from an application that writes less than a datagram at a time, or from a small window."""
        inside = (self.time >= start) & (self.time < end)
        less = (self.size < _FULL * self._largest) & ~self._filled
        return bool(inside.any()) and float(np.mean((less | self.as_written)[inside])) > 0.5

    def _reaction(self, following: Floats) -> float:
        """Seconds from the arrival of an ACK to the packets that it allows: half a millisecond, or more where the rests
        after full datagrams show a slower stack or host. `following`: when the next datagram was sent."""
        gap = following - self.time
        long = (gap > _LEAST_REST) & np.isfinite(gap)
        rests = ~self.short & long
        place = np.searchsorted(self._acks, following[rests], side="right") - 1
        if rests.sum() < _LEAST_RESTS or (place < 0).any():
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
        steps = np.bincount(np.diff(np.cumsum(self.size)[rests]))
        # A write must be larger than a datagram, because datagrams of equal size may be the largest of the stack.
        usual = int(steps.argmax())
        return usual > int(self.size.max()) and float(steps[usual]) >= _REGULAR * float(steps.sum())

    @cached_property
    def _acks(self) -> Floats:
        """When ACKs reached the server."""
        acks = self._server.ack_frames
        mine = (acks["connection"] == self.view.connection) & (acks["sender"] == CLIENT)
        return np.sort(self.view.seconds(acks["time_ns"][mine]))

    def empty(self, at: Floats, longest: float) -> Bools:
        """Per moment of the server's clock: whether the buffer was empty, or ran empty before and after the moment with
        at most `longest` seconds between the two."""
        idle = np.zeros(len(at), dtype=bool)
        times = self.time[self.emptied]
        if not len(times):
            return idle
        until = np.append(self.time[1:], np.inf)[self.emptied]
        place = np.searchsorted(times, at, side="right")
        begun = place > 0
        last = np.maximum(place - 1, 0)
        idle = begun & (at < until[last])
        following = np.append(times, np.inf)[place]
        empty: Bools = idle | (begun & (following - times[last] <= longest))
        return empty
