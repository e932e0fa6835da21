"""Several groups of times against one of them: by how much shorter or longer, and whether that may be chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, isfinite
from statistics import median

import numpy as np

from runner.stats.change import FALSE_DISCOVERY_RATE, adjusted, least_p, rank_test, shift_interval

Times = Mapping[str, Sequence[float]]
"""Seconds by name; infinite where an attempt failed."""


@dataclass(frozen=True, kw_only=True)
class Versus:
    """How one group's median lies to the reference's.

    `change`: as a fraction of the reference's, negative where it is shorter, with its 95 % interval where both have
    enough times for it, 4 of each at least, and none is infinite; None where one of the two failed in most attempts:
    then `lost` says whether that is this one. `p`: Mann-Whitney. `q`: the same after the correction for all questions
    that were asked with it; None where so few values could have shown nothing.
    """

    change: float | None
    lost: bool
    n: int
    reference_n: int
    low: float | None = None
    high: float | None = None
    p: float
    q: float | None = None

    @property
    def certain(self) -> bool:
        """Whether the samples tell the two apart."""
        return self.q is not None and self.q <= FALSE_DISCOVERY_RATE


def versus(questions: Sequence[Times], reference: str) -> list[dict[str, Versus]]:
    """Of each question every other group against the one named `reference`; nothing where that one has no values.

    All rank tests that could show anything are corrected together (Benjamini-Hochberg).
    """
    found = [
        {
            name: _versus(times, groups[reference])
            for name, times in groups.items()
            if name != reference and times and groups.get(reference)
        }
        for groups in questions
    ]
    able = [
        (question, name)
        for question, answers in enumerate(found)
        for name, one in answers.items()
        if least_p(one.n, one.reference_n) <= FALSE_DISCOVERY_RATE
    ]
    q_values = adjusted([found[question][name].p for question, name in able])
    for (question, name), q in zip(able, q_values, strict=True):
        found[question][name] = replace(found[question][name], q=q)
    return found


def _versus(times: Sequence[float], reference: Sequence[float]) -> Versus:
    ours, theirs = median(times), median(reference)
    change = ours / theirs - 1 if isfinite(ours) and isfinite(theirs) else None
    low, high = _interval(times, reference, change) or (None, None)
    return Versus(
        change=change,
        lost=not isfinite(ours),
        n=len(times),
        reference_n=len(reference),
        low=low,
        high=high,
        p=rank_test(times, reference),
    )


def _interval(times: Sequence[float], reference: Sequence[float], change: float | None) -> tuple[float, float] | None:
    """Of the change: the exact interval of the rank test's shift of logarithms, made to hold the change itself, which
    is that of the medians."""
    if change is None or not all(isfinite(one) and one > 0 for one in (*times, *reference)):
        return None
    found = shift_interval(np.log(np.asarray(reference)), np.log(np.asarray(times)))
    return None if found is None else (min(change, expm1(found[0])), max(change, expm1(found[1])))
