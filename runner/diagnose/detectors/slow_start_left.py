"""Slow start ended without a loss, far below what the path holds (RFC 9002 §7.3.1)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.diagnose.rounds import Rounds
from runner.model.diagnosis import Diagnosis
from runner.units import format_size

_GROWTH = 1.2  # slow start doubles; with an ACK for every second packet a sender that counts ACKs grows by half
_LEAST_ROUNDS = 4
_GREW = 1.5
_HELD = 0.7


def detect(course: Course) -> Iterator[Diagnosis]:
    """From four rounds on without growth, though the congestion window was the limit and nothing had been lost."""
    rounds = Rounds.of(course)
    first, last = rounds.flat(_GROWTH)
    if last - first < _LEAST_ROUNDS or rounds.peak[first] > course.view.bdp:
        return
    initial, level = float(rounds.peak[0]), float(np.median(rounds.peak[first:last]))
    if level < _HELD * float(rounds.peak[: first + 1].max()):
        return  # it had been larger: that is another matter than slow start
    grew = level > _GREW * initial
    held = f"{format_size(round(level))} in flight for {last - first} RTTs without a loss before"
    start = float(rounds.start[first])
    end = start + (last - first) * rounds.length
    yield Diagnosis(
        code="slow-start-left-early" if grew else "window-never-grew",
        sentence=(f"Slow start ended early: {held}" if grew else f"The congestion window never grew: {held}")
        + f"; the path holds {format_size(round(course.view.bdp))}.",
        start=start,
        end=end,
        share=(end - start) / course.duration,
        packets=course.view.numbers_in(start, end),
        vantage="server",
        section="RFC 9002 §7.3.1",
    )
