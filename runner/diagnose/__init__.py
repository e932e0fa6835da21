"""Find the reasons why a transfer was slow, from its facts and packets. `detectors` has one file per detector; there is
no other list of them.

A detector is a module with `PATTERNS`, which declare the codes of its diagnoses, and a function
`detect(course: Course) -> Iterator[Diagnosis]`. The function is pure and has no loop over packets. It yields nothing
when its evidence is missing.
"""

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from runner.diagnose import detectors
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


def _modules() -> dict[str, ModuleType]:
    """Module name → module of a detector, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(detectors.__path__))
    return {name: import_module(f"{detectors.__name__}.{name}") for name in names}


def find_detectors() -> dict[str, Detector]:
    """Module name → detector, in alphabetical order."""
    return {name: module.detect for name, module in _modules().items()}


def find_patterns() -> dict[str, tuple[Pattern, ...]]:
    """Module name → the patterns that its detector can find."""
    return {name: module.PATTERNS for name, module in _modules().items()}


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
    diagnoses = [diagnosis for detect in find_detectors().values() for diagnosis in detect(course)]
    ordered = tuple(sorted(diagnoses, key=lambda diagnosis: (diagnosis.start, diagnosis.code)))
    return Explanation(spans=course.spans, diagnoses=ordered, panels=Panels.of(view))
