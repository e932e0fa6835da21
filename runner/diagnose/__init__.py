"""Find the reasons why a transfer was slow, from its facts and packets.

A detector has patterns, which declare the codes of its diagnoses, and a function
`detect(course: Course) -> Iterator[Diagnosis]`. The function is pure and has no loop over packets. It yields nothing
when its evidence is missing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.diagnose.detectors import (
    application_idle,
    bursts,
    ecn,
    out_of_order,
    outage,
    packet_numbers,
    path_mtu,
    queue,
    rate_collapse,
    receive_window,
    retransmitted_tail,
    return_link,
    slow_start_left,
    small_datagrams,
    spurious_retransmissions,
    window_after_loss,
)
from runner.diagnose.limits import Course, shares
from runner.diagnose.panels import Panels
from runner.diagnose.view import View
from runner.model.diagnosis import Diagnosis, Pattern, Span
from runner.model.impairments import NO_PATH_IMPAIRMENTS, PathImpairments
from runner.model.link_record import LinkParameters
from runner.model.result import LinkTruth, Sample
from runner.trace.trace_facts import TraceFacts
from runner.trace.transfer import Transfer

Detector = Callable[[Course], Iterator[Diagnosis]]

DETECTORS: dict[str, tuple[tuple[Pattern, ...], Detector]] = {
    "application_idle": (application_idle.PATTERNS, application_idle.detect),
    "bursts": (bursts.PATTERNS, bursts.detect),
    "ecn": (ecn.PATTERNS, ecn.detect),
    "out_of_order": (out_of_order.PATTERNS, out_of_order.detect),
    "outage": (outage.PATTERNS, outage.detect),
    "packet_numbers": (packet_numbers.PATTERNS, packet_numbers.detect),
    "path_mtu": (path_mtu.PATTERNS, path_mtu.detect),
    "queue": (queue.PATTERNS, queue.detect),
    "rate_collapse": (rate_collapse.PATTERNS, rate_collapse.detect),
    "receive_window": (receive_window.PATTERNS, receive_window.detect),
    "retransmitted_tail": (retransmitted_tail.PATTERNS, retransmitted_tail.detect),
    "return_link": (return_link.PATTERNS, return_link.detect),
    "slow_start_left": (slow_start_left.PATTERNS, slow_start_left.detect),
    "small_datagrams": (small_datagrams.PATTERNS, small_datagrams.detect),
    "spurious_retransmissions": (spurious_retransmissions.PATTERNS, spurious_retransmissions.detect),
    "window_after_loss": (window_after_loss.PATTERNS, window_after_loss.detect),
}
"""Name of a detector → the patterns that it can find, and its function."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The reasons why one transfer was slow."""

    spans: tuple[Span, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    panels: Panels | None = None  # packets in flight, RTT and queue over time, for the plots

    @property
    def limits(self) -> dict[str, float]:
        """Limit → its share of the time, 0…1; the shares sum to 1. Empty when the captures show no reason."""
        return shares(self.spans)


def explain(
    transfer: Transfer,
    facts: TraceFacts,
    sample: Sample,
    *,
    forward: LinkParameters,
    return_: LinkParameters,
    path: PathImpairments = NO_PATH_IMPAIRMENTS,
    truth: LinkTruth | None = None,
) -> Explanation:
    """The limits over time and all diagnoses, in order of time. The explanation is empty unless both captures have
    response data."""
    view = View.of(transfer, facts, sample, forward=forward, return_=return_, path=path, truth=truth)
    if view is None:
        return Explanation()
    course = Course.of(view)
    diagnoses = [diagnosis for _, detect in DETECTORS.values() for diagnosis in detect(course)]
    ordered = tuple(sorted(diagnoses, key=lambda diagnosis: (diagnosis.start, diagnosis.code)))
    return Explanation(spans=course.spans, diagnoses=ordered, panels=Panels.of(view))
