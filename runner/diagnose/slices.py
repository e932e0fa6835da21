"""The time of a response in short slices of equal length, with the state of the connection in each."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from runner.decode.schema import CLIENT
from runner.diagnose.capacity import least_around
from runner.diagnose.flight import Floats
from runner.diagnose.supply import Supply
from runner.diagnose.view import View
from runner.model.diagnosis import Span
from runner.trace.intervals import Bools

_SLICES_PER_RTT = 16
_MOST_SLICES = 4000
_ROOM_PACKETS = 2
_FULL = 0.9
_REST_SHARE = 8  # a rest is a gap of more than 1/8 window between packets


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
        capacity = self.view.capacity.bits(low, high) / 8 * (1 - self.view.forward.loss)
        shares: Floats = arrived / np.maximum(capacity, 1.0)
        return shares

    @cached_property
    def full(self) -> Bools:
        """Per slice: whether the forward link was full: 90 % of the bytes that it can deliver in the window arrived. A
        real link was also full when each packet of the window had waited."""
        full: Bools = (self.utilisation >= _FULL) & self.view.capacity.by_queue
        if self.view.forward.is_real:
            full |= self._standing
        return full

    @cached_property
    def return_use(self) -> Floats:
        """Per slice: bytes that the client sent in the window around it, divided by the bytes that the return link can
        carry. 0 where the capacity is unknown, or without a capture at the client."""
        client = self.view.transfer.recording.client
        if client is None or not np.isfinite(self.view.return_rate):
            return np.zeros(len(self.middle))
        mine = client.datagrams["sender"] == CLIENT
        time, size = self.view.seconds(client.datagrams["time_ns"][mine]), client.datagrams["ip_length"][mine]
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
