"""The capacity of a link: configured for an emulated link, found in the trace for a real link.

The advertised data rate is not the capacity: a link that is sold with 50 Mbit/s may deliver 20 Mbit/s. When all packets
in a window of one RTT took longer than over the empty path, there was a queue in front of the link. Then the link was
full, and the rate of arrivals is its capacity. Pairs of packets that arrived further apart than they were sent show the
capacity only for a moment. Such pairs suffice to state the capacity, but not to call the link full. Without a queue and
without such pairs the capacity is unknown.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from runner.diagnose.flight import Floats
from runner.model.link_record import LinkParameters
from runner.trace.intervals import Bools, Ints

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
