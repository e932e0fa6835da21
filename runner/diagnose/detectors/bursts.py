"""No pacing: data leave faster than the bottleneck takes them, then nothing until the next RTT (RFC 9002 §7.7)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit
from runner.units import format_data_rate, format_duration

_REST = 0.25  # RTTs without a packet
_FAST = 1.3  # times the data rate of the forward link
_RHYTHM = (0.6, 1.6)  # RTTs from one burst to the next
_LEAST_PACKETS = 8
_LEAST_BURSTS = 4
_LEAST_SHARE = 0.3  # of the bytes


def detect(course: Course) -> Iterator[Diagnosis]:
    """From four bursts on that carry 30 % of the bytes, and if most begin about an RTT after the one before."""
    view, window = course.view, course.cells.window
    time, size = view.flight.time, view.flight.length
    gap = np.diff(time)
    heads = np.append(0, np.flatnonzero(gap > _REST * window) + 1)
    tails = np.append(heads[1:], len(time)) - 1
    carried = np.add.reduceat(size, heads)
    lasted = np.maximum(time[tails] - time[heads], 1e-6)
    rate = 8 * (carried - size[heads]) / lasted
    step = np.diff(time[heads], append=np.inf) / window
    burst = (rate > _FAST * view.forward.data_rate) & (tails - heads + 1 >= _LEAST_PACKETS)
    queued = 8 * carried / view.forward.data_rate / window
    burst &= (step >= _RHYTHM[0]) & (step <= _RHYTHM[1] + queued)
    for span in course.of_limit(Limit.RECEIVE_WINDOW):  # what comes at once was allowed at once
        burst &= (time[heads] < span.start - view.shift) | (time[heads] >= span.end - view.shift)
    share = float(carried[burst].sum() / size.sum())
    if burst.sum() < _LEAST_BURSTS or share < _LEAST_SHARE:
        return
    chosen = np.flatnonzero(burst)
    rest = float(np.median(gap[tails[chosen]]))
    yield Diagnosis(
        code="bursts",
        sentence=f"{len(chosen)} bursts at {format_data_rate(round(float(np.median(rate[chosen]))))}, above the link's "
        f"{format_data_rate(view.forward.data_rate)}, each followed by {format_duration(rest)} of rest: "
        f"they carry {share:.0%} of the bytes.",
        start=float(time[heads[chosen[0]]]),
        end=float(time[tails[chosen[-1]]]),
        share=share,
        packets=view.numbers(view.flight.row[heads[chosen]]),
        vantage="server",
        section="RFC 9002 §7.7, thesis §5.6.5",
    )
