"""Detector: data was sent again although its first copy had arrived, or everything was sent twice (RFC 9002 §6.1)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Pattern
from runner.units import format_size

PATTERNS = (
    Pattern(code="sent-twice", meaning="Data was sent twice without need."),
    Pattern(
        code="spurious-retransmissions",
        meaning="Data was retransmitted although it had arrived.",
        over_tcp="RFC 8985 §6",
    ),
)

_LEAST_PACKETS = 4
_LEAST_SHARE = 0.001
_EVERYTHING = 0.8


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when at least four packets, with at least 0.1 % of the response, were sent again without need. From 80 %
    of the response on, the diagnosis is that everything was sent twice."""
    view = course.view
    resent, sent = view.transfer.resent, view.sent
    if resent is None or view.transfer.arrived is None:
        return
    vain = resent[1][view.own]
    rows = view.own[vain > 0]
    packets = np.unique(sent.packet[rows])
    unique = int(sent.new[view.own].sum())
    share = int(vain.sum()) / max(unique, 1)
    if len(packets) < _LEAST_PACKETS or share < _LEAST_SHARE:
        return
    time = view.seconds(sent.time_ns[rows])
    twice = share >= _EVERYTHING
    what = f"{len(packets)} packets with {format_size(int(vain.sum()))}, {share:.1%} of the response"
    yield Diagnosis(
        code="sent-twice" if twice else "spurious-retransmissions",
        sentence=f"The server needlessly sent everything more than once: {what}."
        if twice
        else f"The server sent data again that had arrived: {what}.",
        start=float(time.min()),
        end=float(time.max()),
        share=share,
        packets=view.numbers(packets),
        vantage="server",
        section="RFC 9002 §6.1, thesis §5.6.7",
    )
