"""Detector: no pacing (RFC 9002 §7.7). The server sends faster than the bottleneck, then rests until the next RTT."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit, Pattern
from runner.units import format_data_rate, format_duration

PATTERNS = (Pattern(code="bursts", meaning="The server sent in bursts and rested between them."),)

_REST = 0.25  # RTTs without a packet
_FAST = 1.3  # ratio to the capacity of the forward link
_FAST_OFTEN = 3.0  # a paced sender in slow start has a ratio of 2.5
_RHYTHM = (0.6, 1.6)  # RTTs from one burst to the next
_OFTEN = 0.1  # RTTs; where ACKs arrive in groups, each group causes a burst
_NO_FAULT = (Limit.RECEIVE_WINDOW, Limit.APPLICATION, Limit.LINK)
_LEAST_PACKETS = 11  # one more than an initial window, which may be sent at once (RFC 9002 §7.7)
_LEAST_BURSTS = 4
_LEAST_SHARE = 0.3  # least share of the bytes
_LEAST_SHARE_OFTEN = 0.5  # least share of the bytes; some pacers sometimes send an initial window at once


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report at least four bursts at distances of about one RTT that carry at least 30 % of the bytes, or at shorter
    distances at least 50 %. Each burst has more packets than an initial window, which a sender may send at once. No
    diagnosis where the capacity is unknown."""
    view = course.view
    capacity = view.capacity.known
    if not np.isfinite(capacity):
        return
    for often in (False, True):
        diagnosis = _bursts(course, capacity, often=often)
        if diagnosis is not None:
            yield diagnosis
            return


def _bursts(course: Course, capacity: float, *, often: bool) -> Diagnosis | None:
    """The diagnosis for bursts about once per RTT, or (`often`) as often as groups of ACKs arrive. `capacity` in
    bit/s."""
    least_rest, rhythm = (_OFTEN, _OFTEN) if often else (_REST, _RHYTHM[0])
    fast = _FAST_OFTEN if often else _FAST
    view, window = course.view, course.slices.window
    time, size = view.flight.time, view.flight.length
    gap = np.diff(time)
    heads = np.append(0, np.flatnonzero(gap > least_rest * window) + 1)
    tails = np.append(heads[1:], len(time)) - 1
    carried = np.add.reduceat(size, heads)
    lasted = np.maximum(time[tails] - time[heads], 1e-6)
    rate = 8 * (carried - size[heads]) / lasted
    step = np.diff(time[heads], append=np.inf) / window
    burst = (rate > fast * capacity) & (tails - heads + 1 >= _LEAST_PACKETS)
    queued = 8 * carried / capacity / window
    burst &= (step >= rhythm) & (step <= _RHYTHM[1] + queued)
    # Flow control or the application may release much data at once. Bursts that keep the link full cost no time.
    for span in (span for limit in _NO_FAULT for span in course.of_limit(limit)):
        burst &= (time[heads] < span.start - view.shift) | (time[heads] >= span.end - view.shift)
    supply = course.slices.supply
    burst[1:] &= ~np.isin(view.flight.row[heads[1:] - 1], supply.packets[supply.emptied])
    share = float(carried[burst].sum() / size.sum())
    if burst.sum() < _LEAST_BURSTS or share < (_LEAST_SHARE_OFTEN if often else _LEAST_SHARE):
        return None
    chosen = np.flatnonzero(burst)
    rest = float(np.median(gap[tails[chosen]]))
    return Diagnosis(
        code="bursts",
        sentence=f"{len(chosen)} bursts at {format_data_rate(round(float(np.median(rate[chosen]))))}, above the link's "
        f"{format_data_rate(round(capacity))}, each followed by {format_duration(rest)} of rest: "
        f"they carry {share:.0%} of the bytes.",
        start=float(time[heads[chosen[0]]]),
        end=float(time[tails[chosen[-1]]]),
        share=share,
        packets=view.numbers(view.flight.row[heads[chosen]]),
        vantage="server",
        section="RFC 9002 §7.7, thesis §5.6.5",
    )
