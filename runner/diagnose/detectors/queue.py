"""Detector: the forward link's queue overflowed, or held packets for much of the time."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Pattern
from runner.units import format_duration

PATTERNS = (
    Pattern(code="queue-overflow", meaning="The queue of the link overflowed.", over_tcp="RFC 7567 §2"),
    Pattern(
        code="standing-queue", meaning="Packets waited in a queue for most of the transfer.", over_tcp="RFC 7567 §1"
    ),
)

_LEAST_DROPS = 10
_LEAST_DROP_SHARE = 0.02  # loss-based congestion control causes fewer losses when it probes
_STANDING = 1.0  # RTTs of the empty path
_LEAST_SHARE = 0.25  # share of the time


def detect(course: Course) -> Iterator[Diagnosis]:
    """Overflow: the simulator counted that the queue dropped at least ten packets and at least 2 % of all packets.
    Standing queue: in at least a quarter of the time packets wait for at least one RTT of the empty path, which doubles
    the RTT."""
    view = course.view
    if view.truth is not None:
        forward = view.truth.forward
        share = forward.dropped_queue / max(forward.packets_in, 1)
        if forward.dropped_queue >= _LEAST_DROPS and share >= _LEAST_DROP_SHARE:
            lost = view.flight.time[~view.flight.arrived]
            bounds = (float(lost.min()), float(lost.max())) if len(lost) else (view.first_byte, view.last_byte)
            yield Diagnosis(
                code="queue-overflow",
                sentence=f"The forward link's queue of {view.forward.queue_packets} packets dropped "
                f"{forward.dropped_queue} of {forward.packets_in} packets.",
                start=bounds[0],
                end=bounds[1],
                share=share,
                packets=view.numbers(view.flight.row[~view.flight.arrived]),
                vantage="server",
                section="RFC 7567 §2",
            )
    yield from _standing(course)


def _standing(course: Course) -> Iterator[Diagnosis]:
    view, slices = course.view, course.slices
    least = slices.least_waited
    standing = np.isfinite(least) & (least >= _STANDING * view.rtt)
    share = float(standing.mean()) * float(slices.edges[-1] - slices.edges[0]) / course.duration
    if share < _LEAST_SHARE:
        return
    chosen = np.flatnonzero(standing)
    holds = f", whose queue holds {format_duration(view.queue_seconds)}" if view.queue_seconds else ""
    start, end = float(slices.edges[chosen[0]]), float(slices.edges[chosen[-1] + 1])
    yield Diagnosis(
        code="standing-queue",
        sentence=f"In {share:.0%} of the time packets waited for {format_duration(float(np.median(least[standing])))} "
        f"in front of the forward link{holds}.",
        start=start,
        end=end,
        share=share,
        packets=view.numbers_in(start, end),
        vantage="server",
        section="RFC 7567 §1",
    )
