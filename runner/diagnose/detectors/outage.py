"""The path carried nothing for a while: what was set, and the simulator's count says that it hit; over a real link,
what the trace shows."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit
from runner.units import format_duration


def detect(course: Course) -> Iterator[Diagnosis]:
    """Whenever it took time of the transfer. Says, too, how long the server needed to go on."""
    view, spans = course.view, course.of_limit(Limit.OUTAGE)
    if view.outage is None or not spans:
        return
    begin, end, over = view.outage.start, view.outage.end, view.outage.over
    after = f"; the next one arrived {format_duration(over - end)} after its end" if np.isfinite(over) else ""
    dropped = len(view.outage.swallowed) if view.truth is None else view.truth.forward.dropped_outage
    yield Diagnosis(
        code="outage",
        sentence=f"The path carried nothing for {format_duration(end - begin)} and swallowed {dropped} packets of the "
        f"server{after}.",
        start=begin,
        end=min(over, view.last_byte),
        share=sum(span.end - span.start for span in spans) / course.duration,
        packets=view.numbers_in(begin, end),
        vantage="server",
        section="RFC 9002 §6.2",
    )
