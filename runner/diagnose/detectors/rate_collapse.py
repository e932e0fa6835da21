"""Detector: in mid-transfer the data rate falls to a fraction and stays there, and losses don't explain this."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.flight import Floats
from runner.diagnose.limits import Course
from runner.diagnose.rounds import longest
from runner.model.diagnosis import Diagnosis, Limit, Pattern
from runner.units import format_data_rate, format_duration

PATTERNS = (Pattern(code="rate-collapse", meaning="The sending rate collapsed.", over_tcp="RFC 5681 §3.1"),)

_FELL_TO = 0.4
_HALVED = 0.5  # NewReno, for each RTT with losses (RFC 9002 §7.3.2); other controllers keep more
_BELOW = 0.6  # share of the rate after these halvings
_LEAST_REACHED = 0.2  # share of the link's data rate
_LEAST_RTTS = 5
_LEAST_ROUNDS = 3  # least number of RTTs with losses
_PACKET = 1200  # bytes by which a window grows in each RTT (RFC 9002 §7.3.3)
_LEAST_SHARE = 0.1
_OF_SERVER = (Limit.CONGESTION_WINDOW, Limit.PACING, Limit.UNKNOWN)


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when the rate is below 40 % of the highest earlier rate for at least 5 RTTs and 10 % of the time, and in
    that time the limit was the server itself or is unknown. The rate must also be below 60 % of the rate that a server
    has left when it halves its rate for each RTT with losses."""
    slices, view = course.slices, course.view
    rate = slices.around(slices.utilisation, slices.per_window)
    highest = np.maximum.accumulate(rate)
    own = slices.inside(span for span in course.spans if span.limit in _OF_SERVER)
    low = own & (rate < _FELL_TO * highest) & (highest >= _LEAST_REACHED)
    first, last = longest(low)
    start, end = float(slices.edges[first]), float(slices.edges[last])
    if end - start < max(_LEAST_RTTS * slices.window, _LEAST_SHARE * course.duration):
        return
    high = float(slices.middle[int(rate[: first + 1].argmax())])
    if _explained(course, high, start, rate[first:last] / highest[first]):
        return
    if _kept_low(course, start, end, float(highest[first] * view.capacity.rate[0])):
        return
    before, during = (
        round(float(value) * float(view.capacity.rate[0])) for value in (highest[first], rate[first:last].mean())
    )
    yield Diagnosis(
        code="rate-collapse",
        sentence=f"The data rate fell from {format_data_rate(before)} to {format_data_rate(during)} for "
        f"{format_duration(end - start)}.",
        start=start,
        end=end,
        share=(end - start) / course.duration,
        packets=view.numbers_in(start, end),
        vantage="server",
        section="thesis §5.6.8",
    )


def _explained(course: Course, high: float, fallen: float, share: Floats) -> bool:
    """Whether losses between the highest rate and the fall explain the new rate, or the path carried nothing before the
    fall."""
    view, window = course.view, course.slices.window
    signals = view.flight.signals + view.shift
    signals = signals[(signals > high - window) & (signals <= fallen + window)]
    halvings = len(np.unique(np.floor((signals - signals[:1]) / window)))
    silent = any(
        silence is not None and high <= silence.over <= fallen + window for silence in (view.outage, view.black_hole)
    )
    return silent or float(share.mean()) >= _BELOW * _HALVED**halvings


def _kept_low(course: Course, start: float, end: float, highest: float) -> bool:
    """Whether losses were so frequent that between two losses a window that grows by a packet per RTT could not reach
    40 % of the highest data rate. `highest` in bit/s."""
    view, window = course.view, course.slices.window
    signals = view.flight.signals + view.shift
    signals = signals[(signals > start - window) & (signals <= end)]
    if len(np.unique(np.floor((signals - start) / window))) < _LEAST_ROUNDS:
        return False
    longest_calm = float(np.diff(np.concatenate(([start], signals, [end]))).max())
    return longest_calm / window < _FELL_TO * highest * window / 8 / _PACKET
