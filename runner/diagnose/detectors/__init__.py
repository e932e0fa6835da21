"""Patterns of transfers, and the functions that find them."""

from collections.abc import Callable, Iterator

from runner.diagnose.limits import Course
from runner.model.result import Diagnosis, Pattern

Detector = Callable[[Course], Iterator[Diagnosis]]
DETECTORS: dict[Detector, tuple[Pattern, ...]] = {}
"""Every detector, with the patterns that it can find."""


def detector(*patterns: Pattern) -> Callable[[Detector], Detector]:
    """Register a detector of these patterns. It is pure and has no loop over packets. It yields nothing when its
    evidence is missing."""

    def register(detect: Detector) -> Detector:
        DETECTORS[detect] = patterns
        return detect

    return register
