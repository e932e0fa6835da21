"""What the forward link can carry: of an emulated link as it was set, of a real one as the trace shows.

A contract's data rate isn't a capacity: a link sold with 50 Mbit/s may deliver 20. Where all packets of a window of one
RTT waited longer than on the empty path, a queue stood in front of the link, so the link was full, and the rate at
which packets arrived is what it carries. Pairs of packets that came further apart than they left show the same for a
moment only; that suffices to name a size, not to call the link full. Without either the capacity is unknown.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from runner.diagnose.flight import Floats
from runner.model.link_record import LinkParameters
from runner.trace.intervals import Bools, Ints

_WAITED = (0.003, 0.03)  # s, and RTTs: less is jitter
_LEAST_PACKETS = 8  # of a window
_LEAST_WINDOWS = 2
_LONGEST_GAP = 0.25  # windows: a queue that stands delivers without a pause
_APART = 2.0  # times further apart than they left
_LEAST_PAIRS = 30


@dataclass(frozen=True)
class Capacity:
    """Data rate of the forward link in bit/s of IP packets; `rate[i]` holds from `start[i]` on, in seconds on the
    client's axis."""

    start: Floats
    rate: Floats
    known: float
    """Bit/s of the beginning, or of a real link's full windows or pairs of packets; infinity: the trace doesn't tell,
    and `rate` is the highest that was seen."""
    by_queue: bool
    """Whether arrivals at this rate mean that the link is full."""

    def bits(self, low: Floats, high: Floats) -> Floats:
        """What the link can carry between moments."""
        return self._carried(high) - self._carried(low)

    def _carried(self, at: Floats) -> Floats:
        done = np.append(0.0, np.cumsum(np.diff(self.start) * self.rate[:-1]))
        place = np.maximum(np.searchsorted(self.start, at, side="right") - 1, 0)
        carried: Floats = done[place] + (at - self.start[place]) * self.rate[place]
        return carried


@dataclass(frozen=True)
class Arrivals:
    """What a trace shows of a link, in seconds and bytes."""

    time: Floats
    size: Ints
    """Of all IP packets that reached the client."""
    sent: Floats
    arrived: Floats
    length: Ints
    """Of each packet of the connection that arrived, in the order of departure."""
    waited: Floats
    rtt: float
    window: float

    @cached_property
    def threshold(self) -> float:
        return max(_WAITED[0], _WAITED[1] * self.rtt)

    def rates(self, starts: Floats) -> Floats:
        """Bit/s that arrived in the window after each moment."""
        order = np.argsort(self.time, kind="stable")
        time, total = self.time[order], np.append(0, np.cumsum(self.size[order]))
        low, high = np.searchsorted(time, starts), np.searchsorted(time, starts + self.window)
        found: Floats = 8 * (total[high] - total[low]) / self.window
        return found

    @cached_property
    def starts(self) -> Floats:
        """Windows, each half of its length after the one before."""
        if not len(self.arrived):
            return np.empty(0)
        return np.arange(self.arrived.min(), self.arrived.max() - self.window, self.window / 2)

    def paused(self, at: Floats) -> Bools:
        """Whether no packet came for a quarter of a window around these moments."""
        time = np.concatenate(([-np.inf], np.sort(self.time), [np.inf]))
        after = np.searchsorted(time, at, side="right")
        paused: Bools = time[after] - time[after - 1] > _LONGEST_GAP * self.window
        return paused

    @cached_property
    def full(self) -> Bools:
        """Per window: whether all of its packets had waited."""
        order = np.argsort(self.arrived, kind="stable")
        time, waited = self.arrived[order], self.waited[order] > self.threshold
        waited &= np.diff(time, append=np.inf) <= _LONGEST_GAP * self.window
        total = np.append(0, np.cumsum(waited))
        low, high = np.searchsorted(time, self.starts), np.searchsorted(time, self.starts + self.window)
        count = high - low
        found: Bools = (count >= _LEAST_PACKETS) & (total[high] - total[low] == count)
        return found

    def capacity(self) -> Capacity:
        """Of a real link."""
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
        """Bit/s of each packet that waited behind the one before it."""
        left, came = np.diff(self.sent), np.diff(self.arrived)
        chosen = (came > 0) & (came > _APART * left)
        found: Floats = 8 * self.length[1:][chosen] / came[chosen]
        return found


def as_set(forward: LinkParameters, shift: float) -> Capacity:
    """Of an emulated link, whose data rate may change with time. `shift`: from the link's input to the client, in s."""
    changes = forward.impairments.changes
    start = np.array([-1e9, *(change.time + shift for change in changes)])
    rate = np.array([forward.data_rate, *(change.data_rate for change in changes)], dtype=np.float64)
    return Capacity(start, rate, float(forward.data_rate), by_queue=True)


def least_around(values: Floats, cells: int) -> Floats:
    """Per cell: the least of `values` in so many cells around it."""
    padded = np.pad(values, (cells // 2, cells - 1 - cells // 2), constant_values=np.inf)
    least: Floats = sliding_window_view(padded, cells).min(axis=1)
    return least
