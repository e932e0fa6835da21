"""Several groups of times against one of them: by how much shorter or longer, and whether that may be chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

import numpy as np

from runner.stats.change import FALSE_DISCOVERY_RATE, adjusted, least_p, rank_test
from runner.stats.summary import CONFIDENCE, resampled_medians

Times = Mapping[str, Sequence[float]]
"""Seconds by name; infinite where an attempt failed."""


@dataclass(frozen=True, kw_only=True)
class Versus:
    """How one group's median lies to the reference's.

    `change`: as a fraction of the reference's, negative where it is shorter, with its 95 % percentile bootstrap
    interval where both have two times and none is infinite; None where one of the two failed in most attempts: then
    `lost` says whether that is this one. `p`: Mann-Whitney. `q`: the same after the correction for all questions that
    were asked with it; None where so few values could have shown nothing.
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


def versus(questions: Sequence[Times], reference: str, *, seed: int) -> list[dict[str, Versus]]:
    """Of each question every other group against the one named `reference`; nothing where that one has no values.

    All rank tests that could show anything are corrected together (Benjamini-Hochberg).
    """
    found = [
        {
            name: _versus(times, groups[reference], seed=seed)
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


def _versus(times: Sequence[float], reference: Sequence[float], *, seed: int) -> Versus:
    ours, theirs = median(times), median(reference)
    low, high = _interval(times, reference, seed=seed)
    return Versus(
        change=ours / theirs - 1 if isfinite(ours) and isfinite(theirs) else None,
        lost=not isfinite(ours),
        n=len(times),
        reference_n=len(reference),
        low=low,
        high=high,
        p=rank_test(times, reference),
    )


def _interval(
    times: Sequence[float], reference: Sequence[float], *, seed: int
) -> tuple[float, float] | tuple[None, None]:
    """Both groups resampled independently of each other."""
    if min(len(times), len(reference)) < 2 or not all(map(isfinite, (*times, *reference))):
        return None, None
    ours = resampled_medians(np.sort(np.asarray(times, dtype=np.float64)), seed=seed)
    theirs = resampled_medians(np.sort(np.asarray(reference, dtype=np.float64)), seed=seed + 1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ours / theirs - 1, [tail, 1 - tail])
    return float(low), float(high)
