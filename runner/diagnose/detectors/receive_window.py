"""Detector: the client's flow control held the server back (RFC 9000 §4.1)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit, Pattern
from runner.units import format_size

PATTERNS = (
    Pattern(
        code="receive-window", meaning="The client's flow control held the server back.", over_tcp="RFC 9293 §3.8.6"
    ),
)

_LEAST_SHARE = 0.05


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when flow control was the limit for at least 5 % of the time, with fewer bytes in flight than the path
    holds."""
    spans = course.of_limit(Limit.RECEIVE_WINDOW)
    share = sum(span.end - span.start for span in spans) / course.duration
    if share < _LEAST_SHARE:
        return
    slices, view = course.slices, course.view
    inside = slices.inside(spans)
    if not inside.any() or float(np.median(slices.in_flight[inside])) >= view.bdp:
        return
    most = float(slices.in_flight[inside].max())
    path = format_size(round(view.bdp)) if np.isfinite(view.bdp) else "more, because no packet had to wait"
    yield Diagnosis(
        code="receive-window",
        sentence=f"The client's flow control held the server back in {share:.0%} of the time: "
        f"at most {format_size(round(most))} were in flight then, and the path holds {path}.",
        start=spans[0].start,
        end=spans[-1].end,
        share=share,
        packets=view.numbers_in(spans[0].start, spans[0].end),
        vantage="server",
        section="RFC 9000 §4.1",
    )
