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
_RETURN_FULL = 0.8
_LATE = 1.5  # RTTs of the empty path: a queue, or ACKs that wait, make the window look small


def detect(course: Course) -> Iterator[Diagnosis]:
    """From four rounds on without growth, though the congestion window was the limit and nothing had been lost.
    Silent where datagrams that aren't full leave a doubt whether the application was the limit, and where ACKs fill the
    return link: then it sets the pace."""
    rounds = Rounds.of(course)
    first, last = rounds.flat(_GROWTH)
    if last - first < _LEAST_ROUNDS or rounds.peak[first] > course.view.bdp:
        return
    if _rtt(course, float(rounds.start[first]), float(rounds.start[last])) > _LATE * course.cells.window:
        return
    start, end = float(rounds.start[first]), float(rounds.start[last])
    inside = (course.cells.middle >= start) & (course.cells.middle < end)
    if inside.any() and float(np.median(course.cells.return_use[inside])) >= _RETURN_FULL:
        return
    shift = course.view.shift
    if course.cells.supply.doubtful(float(rounds.start[first]) - shift, float(rounds.start[last]) - shift):
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
        + _room(course.view.bdp),
        start=start,
        end=end,
        share=(end - start) / course.duration,
        packets=course.view.numbers_in(start, end),
        vantage="server",
        section="RFC 9002 §7.3.1",
    )


def _rtt(course: Course, start: float, end: float) -> float:
    """Median of the time from a packet to its ACK, of what left between two moments of the client's axis, in s."""
    flight, shift = course.view.flight, course.view.shift
    chosen = (flight.time + shift >= start) & (flight.time + shift < end) & np.isfinite(flight.acked)
    return float(np.median((flight.acked - flight.time)[chosen])) if chosen.any() else 0.0


def _room(bdp: float) -> str:
    if np.isfinite(bdp):
        return f"; the path holds {format_size(round(bdp))}."
    return "; no packet had to wait, so the path holds more."
