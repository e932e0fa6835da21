"""Compares several groups of times with one reference group: how much they differ, and whether chance explains the
difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, isfinite
from statistics import median

import numpy as np

from runner.stats.change import FALSE_DISCOVERY_RATE, adjusted, least_p, rank_test, ratio_interval
from runner.stats.paired import LEAST_PAIRS, least_paired_p, pseudomedian, signed_rank_interval, signed_rank_test

Times = Mapping[str, Sequence[float]]
"""Name of a group → times in seconds; infinite for a failed attempt."""
Pairs = Mapping[str, Sequence[tuple[float, float]]]
"""By the name of a group: pairs of times of two jobs with the same iteration, close to each other in time. The first is
the time of the named group, the second is that of the reference."""


@dataclass(frozen=True, kw_only=True)
class Versus:
    """The difference of one group's median from the reference's median.

    `change`: the difference as a fraction of the reference's median, negative for a shorter time. It is None when most
    attempts of one of the two groups failed. `low` and `high`: its 95 % interval. The interval exists when no time is
    infinite and there are enough times; 4 times in each group are enough. `lost`: True when most attempts of this group
    failed. `p`: the result of the Mann-Whitney test. `q`: p after the correction for all comparisons of the call; None
    when there are too few values for a significant result.

    `pairs`: the number of pairs when pairs of times were compared instead of groups. Then `p` comes from the Wilcoxon
    signed-rank test. When no time of a pair is infinite, `change` is the centre of the pairs' changes (Hodges-Lehmann).
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
        """The smallest p that the test can give with this number of values."""
        return least_p(self.n, self.reference_n) if self.pairs is None else least_paired_p(self.pairs)

    @property
    def certain(self) -> bool:
        """True when the difference between the two groups is statistically significant."""
        return self.q is not None and self.q <= FALSE_DISCOVERY_RATE


def versus(questions: Sequence[Times], reference: str, pairs: Sequence[Pairs] = ()) -> list[dict[str, Versus]]:
    """For each question, compare every other group with the group named `reference`. A question is one pair in one
    case. A question without values of the reference has no result.

    `pairs`: for each question, the pairs of times by group. The pairs are compared instead of the groups when there are
    at least 6 pairs and most times are in a pair. So the choice of the test depends only on the number of values. All
    tests that can give a significant result are corrected together (Benjamini-Hochberg).
    """
    comparisons = [
        {
            name: _versus(times, groups[reference], partners.get(name, ()))
            for name, times in groups.items()
            if name != reference and times and groups.get(reference)
        }
        for groups, partners in zip(questions, pairs or [{}] * len(questions), strict=True)
    ]
    every = [answer for answers in comparisons for answer in answers.values()]
    q_values = iter(adjusted([answer.p if answer.least_p <= FALSE_DISCOVERY_RATE else None for answer in every]))
    return [{name: replace(answer, q=next(q_values)) for name, answer in answers.items()} for answers in comparisons]


def _versus(times: Sequence[float], reference: Sequence[float], pairs: Sequence[tuple[float, float]]) -> Versus:
    ours, theirs = median(times), median(reference)
    change = ours / theirs - 1 if isfinite(ours) and isfinite(theirs) else None
    low, high = ratio_interval(times, reference, change) or (None, None)
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
    """The comparison of the pairs, in place of the comparison of the groups."""
    logs = np.log(np.asarray(pairs, dtype=np.float64))
    # The difference of two failed attempts counts as 0.
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
