"""Detector: after losses the congestion window, not the link, set the rate (RFC 9002 §7.3.2)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit, Pattern, Span
from runner.units import format_size

PATTERNS = (
    Pattern(
        code="window-after-loss", meaning="The congestion window stayed small after losses.", over_tcp="RFC 5681 §3.2"
    ),
)

_LEAST_SHARE = 0.1
_KEPT = 0.85  # CUBIC keeps 0.7, NewReno 0.5
_LEAST_VANISHED = 0.5  # share of the packets that the server took for lost


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when the congestion window was the limit for at least 10 % of the time after a loss. The two RTTs after an
    outage or a black hole don't count: the server needs one RTT to notice the end, and one RTT to send the lost packets
    again."""
    view = course.view
    lost = np.isfinite(view.flight.lost)
    vanished = lost & ~view.flight.arrived
    # The server takes late packets for lost, too; the diagnosis for these is spurious-retransmissions.
    if not vanished.any() or vanished.sum() < _LEAST_VANISHED * lost.sum():
        return
    first = float(view.flight.lost[vanished].min()) + view.shift
    spans = [span for span in course.of_limit(Limit.CONGESTION_WINDOW) if span.end > first]
    silences = [each for each in (view.outage, view.black_hole) if each is not None]
    held = sum(span.end - max(span.start, first) for span in spans)
    held -= sum(
        _overlap(span, silence.start, silence.over + 2 * course.slices.window) for span in spans for silence in silences
    )
    share = held / course.duration
    if share < _LEAST_SHARE:
        return
    slices = course.slices
    before = float(slices.in_flight[slices.middle <= first].max(initial=0.0))
    after = slices.in_flight[(slices.middle > first) & (slices.middle <= spans[-1].end)]
    lowest = float(after.min()) if len(after) else 0.0
    peaks = slices.peak[(slices.middle > first) & (slices.middle <= spans[-1].end)]
    if len(peaks) and float((peaks / np.maximum(np.maximum.accumulate(peaks), 1.0)).min()) >= _KEPT:
        return  # the window was still growing, and the losses did not reduce it
    yield Diagnosis(
        code="window-after-loss",
        sentence=f"After the first of {int(lost.sum())} losses the congestion window held the server back in "
        f"{share:.0%} of the time. The bytes in flight fell from {format_size(round(before))} to "
        f"{format_size(round(lowest))}.",
        start=max(spans[0].start, first),
        end=spans[-1].end,
        share=share,
        packets=view.numbers(view.flight.row[lost]),
        vantage="server",
        section="RFC 9002 §7.3.2",
    )


def _overlap(span: Span, start: float, end: float) -> float:
    return max(0.0, min(span.end, end) - max(span.start, start))
