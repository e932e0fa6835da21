"""Detector: the server sent nothing although no limit held it back."""

from collections.abc import Iterator

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Limit, Pattern
from runner.units import format_duration

PATTERNS = (Pattern(code="application-idle", meaning="The server had nothing to send.", over_tcp="RFC 9293 §3.8.6.2"),)

_LEAST_SHARE = 0.05
_LEAST_SECONDS = 0.25


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when the server had nothing to send for at least 5 % of the time and 0.25 s."""
    spans = course.of_limit(Limit.APPLICATION)
    idle = sum(span.end - span.start for span in spans)
    share = idle / course.duration
    if share < _LEAST_SHARE or idle < _LEAST_SECONDS:
        return
    emptied = int(course.slices.supply.emptied.sum())
    again = f"; its buffer ran empty {emptied} times" if emptied else ""
    longest = max(spans, key=lambda span: span.end - span.start)
    yield Diagnosis(
        code="application-idle",
        sentence=f"The server had nothing to send for {format_duration(idle)}, {share:.0%} of the time, although its "
        f"windows had room. The longest such pause lasted {format_duration(longest.end - longest.start)}{again}.",
        start=longest.start,
        end=longest.end,
        share=share,
        packets=course.view.numbers_in(longest.start, longest.end),
        vantage="server",
        section="RFC 9002 §7.8",
    )
