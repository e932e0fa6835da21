"""Compares several groups of times with one reference group: the difference, and whether chance explains it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, isfinite
from statistics import median

import numpy as np

from runner.stats.change import FALSE_DISCOVERY_RATE, adjusted, least_p, rank_test, shift_interval
from runner.stats.paired import LEAST_PAIRS, least_paired_p, pseudomedian, signed_rank_interval, signed_rank_test

Times = Mapping[str, Sequence[float]]
"""Seconds by name; infinite where an attempt failed."""
Pairs = Mapping[str, Sequence[tuple[float, float]]]
"""By name: times of two jobs with the same iteration and hour, first the named group's, then the reference's."""


@dataclass(frozen=True, kw_only=True)
class Versus:
    """The difference of one group's median from the reference's median.

    `change` is a fraction of the reference's median, negative for a shorter time, with a 95 % interval when both
    groups have at least 4 times and none is infinite. It is None when most attempts of one group failed; `lost` is
    True when most attempts of this group failed. `p`: Mann-Whitney. `q`: p after the correction for all questions asked
    together; None when there are too few values for any result.

    With `pairs`, the number of pairs that were compared instead: `p` is of the Wilcoxon signed-rank test, and
    `change`, when no time of a pair is infinite, is the centre of the pairs' changes (Hodges-Lehmann).
    """

    change: float | None
    lost: bool
    n: int
    reference_n: int
    low: float | None = None
    high: float | None = None
    p: float
    q: float | None = None
    pairs: int | None = None

    @property
    def least_p(self) -> float:
        """The smallest p that the test could have given."""
        return least_p(self.n, self.reference_n) if self.pairs is None else least_paired_p(self.pairs)

    @property
    def certain(self) -> bool:
        """True when the samples distinguish the two groups."""
        return self.q is not None and self.q <= FALSE_DISCOVERY_RATE


def versus(questions: Sequence[Times], reference: str, pairs: Sequence[Pairs] = ()) -> list[dict[str, Versus]]:
    """For each question, compares every other group with the group named `reference`. A question without values of
    the reference has no result.

    `pairs`, one entry for each question: times with their partners. They are compared when there are enough of them
    (6) and most times have a partner: the choice of the test depends on the number of values, not on the values.
    All tests that could give a result are corrected together (Benjamini-Hochberg).
    """
    comparisons = [
        {
            name: _versus(times, groups[reference], partners.get(name, ()))
            for name, times in groups.items()
            if name != reference and times and groups.get(reference)
        }
        for groups, partners in zip(questions, pairs or [{}] * len(questions), strict=True)
    ]
    able = [
        (question, name)
        for question, answers in enumerate(comparisons)
        for name, answer in answers.items()
        if answer.least_p <= FALSE_DISCOVERY_RATE
    ]
    q_values = adjusted([comparisons[question][name].p for question, name in able])
    for (question, name), q in zip(able, q_values, strict=True):
        comparisons[question][name] = replace(comparisons[question][name], q=q)
    return comparisons


def _versus(times: Sequence[float], reference: Sequence[float], pairs: Sequence[tuple[float, float]]) -> Versus:
    ours, theirs = median(times), median(reference)
    change = ours / theirs - 1 if isfinite(ours) and isfinite(theirs) else None
    low, high = _interval(times, reference, change) or (None, None)
    comparison = Versus(
        change=change,
        lost=not isfinite(ours),
        n=len(times),
        reference_n=len(reference),
        low=low,
        high=high,
        p=rank_test(times, reference),
    )
    enough = len(pairs) >= LEAST_PAIRS and 2 * len(pairs) > max(comparison.n, comparison.reference_n)
    return _paired(comparison, pairs) if enough else comparison


def _paired(unpaired: Versus, pairs: Sequence[tuple[float, float]]) -> Versus:
    """The comparison by pairs instead of groups."""
    logs = np.log(np.asarray(pairs, dtype=np.float64))
    # Two failed attempts have no difference.
    differences = [0.0 if log == other else float(log - other) for log, other in logs]
    paired = replace(unpaired, pairs=len(pairs), p=signed_rank_test(differences), low=None, high=None)
    if unpaired.change is None or not np.isfinite(logs).all():
        return paired
    low, high = signed_rank_interval(differences) or (None, None)
    return replace(
        paired,
        change=expm1(pseudomedian(differences)),
        low=None if low is None else expm1(low),
        high=None if high is None else expm1(high),
    )


def _interval(times: Sequence[float], reference: Sequence[float], change: float | None) -> tuple[float, float] | None:
    """The interval of the change: the exact interval of the rank test's shift of logarithms, widened to contain
    the change of the medians."""
    if change is None or not all(isfinite(time) and time > 0 for time in (*times, *reference)):
        return None
    interval = shift_interval(np.log(np.asarray(reference)), np.log(np.asarray(times)))
    return None if interval is None else (min(change, expm1(interval[0])), max(change, expm1(interval[1])))
