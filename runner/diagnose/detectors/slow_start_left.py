"""Detector: slow start ended without a loss, far below the bytes that the path holds (RFC 9002 §7.3.1)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.diagnose.rounds import Rounds
from runner.model.diagnosis import Diagnosis, Pattern
from runner.units import format_size

PATTERNS = (
    Pattern(
        code="slow-start-left-early", meaning="Slow start ended long before the link was full.", over_tcp="RFC 9406"
    ),
    Pattern(code="window-never-grew", meaning="The congestion window never grew.", over_tcp="RFC 5681 §3.1"),
)

_GROWTH = 1.2  # slow start has 2.0, or 1.5 for a sender that counts ACKs when every second packet is acknowledged
_LEAST_ROUNDS = 4
_GREW = 1.5
_HELD = 0.7
_RETURN_FULL = 0.8
_LATE = 1.5  # RTTs of the empty path; with a queue or late ACKs the window looks too small


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report at least four rounds in which the window did not grow, although it was the limit and no packet had been
    lost. No diagnosis where the application may have been the limit, because datagrams are short. No diagnosis either
    where ACKs fill the return link, because then the return link sets the pace."""
    rounds = Rounds.of(course)
    first, last = rounds.flat(_GROWTH)
    if last - first < _LEAST_ROUNDS or rounds.peak[first] > course.view.bdp:
        return
    start, end = float(rounds.start[first]), float(rounds.start[last])
    if _rtt(course, start, end) > _LATE * course.slices.window:
        return
    inside = (course.slices.middle >= start) & (course.slices.middle < end)
    if inside.any() and float(np.median(course.slices.return_use[inside])) >= _RETURN_FULL:
        return
    shift = course.view.shift
    if course.slices.supply.doubtful(start - shift, end - shift):
        return
    initial, level = float(rounds.peak[0]), float(np.median(rounds.peak[first:last]))
    if level < _HELD * float(rounds.peak[: first + 1].max()):
        return  # the window had been larger, so slow start is not the cause
    grew = level > _GREW * initial
    held = f"{format_size(round(level))} in flight for {last - first} RTTs, before any loss"
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
    """Median seconds from a packet to its ACK, for packets sent between two moments of the client's time."""
    flight, shift = course.view.flight, course.view.shift
    chosen = (flight.time + shift >= start) & (flight.time + shift < end) & np.isfinite(flight.acked)
    return float(np.median((flight.acked - flight.time)[chosen])) if chosen.any() else 0.0


def _room(bdp: float) -> str:
    if np.isfinite(bdp):
        return f"; the path holds {format_size(round(bdp))}."
    return "; no packet had to wait, so the path holds more."
