"""Detector: the transfer took longer because its end had to be sent again (RFC 9002 §6.2)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.diagnose.view import View
from runner.model.diagnosis import Diagnosis, Pattern
from runner.units import format_duration

PATTERNS = (
    Pattern(
        code="retransmitted-tail",
        meaning="The end of the transfer was spent on retransmissions.",
        over_tcp="RFC 8985 §7",
    ),
)

_LEAST_RTTS = 1.5  # RTTs; a single RTT is normal after a loss
_LEAST_SHARE = 0.05


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when the transfer ended at least 1.5 RTTs, and at least 5 % of its time, after the earliest possible
    arrival of the last new byte."""
    view = course.view
    left = float(view.room.busy[1].max())
    whole = left + view.shift + _waited(view, left)
    tail = view.last_byte - whole
    if tail < _LEAST_RTTS * view.rtt or tail < _LEAST_SHARE * course.duration:
        return
    late = view.own[view.seconds(view.sent.time_ns[view.own]) > left]
    if view.transfer.resent is None or not view.transfer.resent[0][late].any():
        return
    packets = np.unique(view.sent.packet[late])
    yield Diagnosis(
        code="retransmitted-tail",
        sentence=f"The transfer ended {format_duration(tail)} later than necessary: after all data had been sent, "
        f"{len(packets)} more packets with data were sent.",
        start=whole,
        end=view.last_byte,
        share=tail / course.duration,
        packets=view.numbers(packets),
        vantage="server",
        section="RFC 9002 §6.2, thesis §5.6.6",
    )


def _waited(view: View, left: float) -> float:
    """Seconds that a packet sent at `left` had to wait in queues: as long as the last packet sent until then that
    arrived."""
    time, waited = view.waiting
    sent = time - waited - view.shift
    before = np.flatnonzero(sent <= left + 1e-6)
    return float(waited[before[sent[before].argmax()]]) if len(before) else 0.0
