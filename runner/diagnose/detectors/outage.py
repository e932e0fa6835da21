"""Detector: the path carried nothing for some time. On an emulated link this is the configured outage, if the simulator
counted lost packets. On a real link it is the outage in the trace."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit, Pattern
from runner.units import format_duration

PATTERNS = (Pattern(code="outage", meaning="The path carried nothing for a while.", over_tcp="RFC 6298 §5"),)


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report an outage that cost time, and how long the server needed to continue after it."""
    view, spans = course.view, course.of_limit(Limit.OUTAGE)
    if view.outage is None or not spans:
        return
    begin, end, over = view.outage.start, view.outage.end, view.outage.over
    after = (
        f"; the next packet arrived {format_duration(over - end)} after the end of the outage"
        if np.isfinite(over)
        else ""
    )
    dropped = len(view.outage.swallowed) if view.truth is None else view.truth.forward.dropped_outage
    yield Diagnosis(
        code="outage",
        sentence=f"The path carried nothing for {format_duration(end - begin)} and lost {dropped} packets of the "
        f"server{after}.",
        start=begin,
        end=min(over, view.last_byte),
        share=sum(span.end - span.start for span in spans) / course.duration,
        packets=view.numbers_in(begin, end),
        vantage="server",
        section="RFC 9002 §6.2",
    )
