"""Compares several groups of times with one reference group: by how much they are shorter or longer, and whether
chance explains it."""

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
    """The difference of one group's median from the reference's median.

    `change` is a fraction of the reference's median, negative for a shorter time, with a 95 % interval when both
    groups have at least 4 times and none is infinite. It is None when most attempts of one group failed; `lost`
    then says whether this group is the one. `p`: Mann-Whitney. `q`: p after the correction for all questions asked
    together; None when there are too few values for any result.
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
        """True when the samples distinguish the two groups."""
        return self.q is not None and self.q <= FALSE_DISCOVERY_RATE


def versus(questions: Sequence[Times], reference: str) -> list[dict[str, Versus]]:
    """For each question, compares every other group with the group named `reference`. A question without values of
    the reference has no result.

    All rank tests that could give a result are corrected together (Benjamini-Hochberg).
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
    """The interval of the change: the exact interval of the rank test's shift of logarithms, widened to contain
    the change of the medians."""
    if change is None or not all(isfinite(one) and one > 0 for one in (*times, *reference)):
        return None
    found = shift_interval(np.log(np.asarray(reference)), np.log(np.asarray(times)))
    return None if found is None else (min(change, expm1(found[0])), max(change, expm1(found[1])))
