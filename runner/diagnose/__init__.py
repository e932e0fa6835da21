"""Facts and packets → why the transfer was as slow as it was. One detector a file, in `detectors`; none is listed.

A detector is a module with a function `detect(course: Course) -> Iterator[Diagnosis]`: pure, without a loop over
packets. It says nothing when its evidence is missing.
"""

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from runner.diagnose import detectors
from runner.diagnose.limits import Course, shares
from runner.diagnose.panels import Panels
from runner.diagnose.view import View
from runner.model.diagnosis import Diagnosis, Span
from runner.model.impairments import NO_PATH_IMPAIRMENTS, PathImpairments
from runner.model.link_record import LinkParameters
from runner.model.result import LinkTruth, Sample
from runner.trace.nouns import TraceFacts
from runner.trace.transfer import Transfer

Detector = Callable[[Course], Iterator[Diagnosis]]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why one transfer took its time."""

    spans: tuple[Span, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    panels: Panels | None = None  # what was under way meanwhile, for the plots

    @property
    def limits(self) -> dict[str, float]:
        """The part of the time that each limit had, 0…1; they sum to 1. Empty when nothing could be told."""
        return shares(self.spans)


def find_detectors() -> dict[str, Detector]:
    """By module name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(detectors.__path__))
    return {name: import_module(f"{detectors.__name__}.{name}").detect for name in names}


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
    """The partition of the time and all diagnoses, in order of time. Empty without response data in both captures."""
    view = View.of(transfer, facts, sample, forward=forward, return_=return_, path=path, truth=truth)
    if view is None:
        return Explanation()
    course = Course.of(view)
    found = [one for detect in find_detectors().values() for one in detect(course)]
    ordered = tuple(sorted(found, key=lambda one: (one.start, one.code)))
    return Explanation(spans=course.spans, diagnoses=ordered, panels=Panels.of(view))
