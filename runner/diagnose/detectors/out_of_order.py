"""Detector: ranges of a stream were skipped and sent after the data that follows them."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Pattern
from runner.units import format_size

PATTERNS = (Pattern(code="out-of-order", meaning="Packets arrived out of order."),)

_LEAST_FRAMES = 5
_LEAST_SHARE = 0.005


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when at least five frames, and at least 0.5 % of the response's frames, were sent late."""
    view = course.view
    rows = view.late_rows
    share = len(rows) / max(len(view.own), 1)
    if len(rows) < _LEAST_FRAMES or share < _LEAST_SHARE:
        return
    time = view.seconds(view.sent.time_ns[rows])
    yield Diagnosis(
        code="out-of-order",
        sentence=f"{len(rows)} frames with {format_size(int(view.sent.new[rows].sum()))} of new data were sent after "
        "data that follows them in the stream.",
        start=float(time.min()),
        end=float(time.max()),
        share=share,
        packets=view.numbers(np.unique(view.sent.packet[rows])),
        vantage="server",
        section="thesis §5.6.6",
    )
