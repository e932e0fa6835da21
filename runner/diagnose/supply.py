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
_LARGEST = 90  # per cent of the datagrams with response data are no larger
_MEDIAN = 50
_LEAST_REST = 0.001  # s
_BY_ACK = 0.0005  # s from an ACK to what it lets go
_ROOM_PACKETS = 2
_LEAST_TIMES = 4
_LEAST_CALM = 0.6  # of the short datagrams
_OFTEN = 0.15  # of the datagrams
_REGULAR = 0.7  # of the steps from one short datagram to the next


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
    def short(self) -> Bools:
        """Less than the server fills otherwise, and not for want of credit. The last ones end the response."""
        if not len(self.size):
            return np.zeros(0, dtype=bool)
        # The path's MTU may grow meanwhile: what counts is the largest so far.
        largest = np.minimum(np.maximum.accumulate(self.size), np.percentile(self.size, _LARGEST))
        hole = self.view.black_hole
        after = np.zeros(len(self.size), dtype=bool) if hole is None else self.time + self.view.shift >= hole.start
        if after.any():  # no larger ones pass from there on
            largest[after] = np.percentile(self.size[after], _MEDIAN)
        before_end = self.time < float(self.view.room.busy[1].max())
        found: Bools = (self.size < _FULL * largest) & ~self.blocked & before_end
        return found

    @cached_property
    def emptied(self) -> Bools:
        """Short, then rest, and no ACK ended it. Without at least four, and six of ten of all short ones, none: some
        stacks fill the rest of a congestion window with a short datagram. Where ACKs happen to come in step with the
        application, many short ones, each so many bytes after the one before, show that it writes so many at a time."""
        following = np.append(self.time[1:], np.inf)
        acks = self._acks
        rests = self.short & (following - self.time > _LEAST_REST)
        # No ACK just before the next datagram, or an earlier one that let nothing go.
        earlier = np.searchsorted(acks, following - _BY_ACK) > np.searchsorted(acks, self.time + _BY_ACK)
        by_ack = np.searchsorted(acks, following, side="right") > np.searchsorted(acks, following - _BY_ACK)
        calm = rests & (earlier | ~by_ack)
        if calm.sum() < max(_LEAST_TIMES, _LEAST_CALM * rests.sum()) and not self._regular(rests):
            return np.zeros(len(self.time), dtype=bool)
        return rests

    def doubtful(self, start: float, end: float) -> bool:
        """Whether most datagrams that left between two moments of the server's clock are shorter than others before:
        an application that writes less than a datagram at a time looks like that, and so does a small window."""
        inside = (self.time >= start) & (self.time < end)
        largest = np.maximum.accumulate(self.size) if len(self.size) else self.size
        return bool(inside.any()) and float(np.mean((self.size < _FULL * largest)[inside])) > 0.5

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
