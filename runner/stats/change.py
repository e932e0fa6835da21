"""Tests of whether two groups of values differ, estimates of the difference, and the correction for many tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, erfc, expm1, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from runner.stats.summary import CONFIDENCE, NORMAL_QUANTILE

FALSE_DISCOVERY_RATE = 0.05  # largest allowed q: the expected share of reported changes that are due to chance
_EXACT_UP_TO = 100  # values in both groups together; an exact test of more values takes longer than 0.1 s


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The difference from `before` to `after`, in the unit of the values."""

    before: int  # number of values
    after: int
    median_before: float
    median_after: float
    hodges_lehmann: float  # median of all differences after - before
    cliffs_delta: float  # P(after > before) - P(after < before), -1 to 1
    p: float  # two-sided, of the Mann-Whitney test


def shift(before: Sequence[float], after: Sequence[float]) -> Shift:
    """The change from `before` to `after`. Both must have at least one value.

    Hodges and Lehmann, "Estimates of Location Based on Rank Tests" (1963); Cliff, "Dominance Statistics" (1993).
    """
    old, new = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    differences = new[:, None] - old[None, :]
    return Shift(
        before=old.size,
        after=new.size,
        median_before=float(np.median(old)),
        median_after=float(np.median(new)),
        hodges_lehmann=float(np.median(differences)),
        cliffs_delta=float(np.sign(differences).mean()),
        p=rank_test(old, new),
    )


def rank_test(first: Sequence[float] | NDArray[np.float64], second: Sequence[float] | NDArray[np.float64]) -> float:
    """The two-sided p of the Mann-Whitney test of the hypothesis that both groups come from the same distribution. Ties
    get midranks.

    Up to 100 values the test is exact, also with ties: every split of the pooled ranks is counted. For more than 100
    values, the normal approximation with correction for ties and continuity is used. Its p is too large in the tails.
    The two-sided p counts the splits whose rank sum is at least as far from the mean as the observed rank sum. Mann and
    Whitney (1947).
    """
    pooled = np.concatenate([first, second]).astype(np.float64)
    doubled = doubled_midranks(pooled)
    size, total = len(first), len(pooled)
    distance = abs(2 * int(doubled[:size].sum()) - 2 * size * (total + 1))
    if total > _EXACT_UP_TO:
        return _approximate(doubled, size, distance)
    counts = _sums_of_splits(tuple(sorted(doubled.tolist())), size)
    sums = np.arange(len(counts))
    far = np.abs(2 * sums - 2 * size * (total + 1)) >= distance
    return min(1.0, float(counts[far].sum() / counts.sum()))


def shift_interval(
    before: Sequence[float] | NDArray[np.float64], after: Sequence[float] | NDArray[np.float64]
) -> tuple[float, float] | None:
    """The 95 % interval of the shift from `before` to `after`: all shifts that the rank test doesn't reject at 5 %.

    None when there are too few values for the test to reject any shift. The interval is exact up to 100 values if the
    two distributions differ only by a shift. Hodges and Lehmann (1963), section 6.
    """
    old, new = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    place = _refuted(old.size, new.size)
    if place is None:
        return None
    differences = np.sort((new[:, None] - old[None, :]).ravel())
    return float(differences[place]), float(differences[-1 - place])


def ratio_interval(
    values: Sequence[float], reference: Sequence[float], change: float | None
) -> tuple[float, float] | None:
    """The 95 % interval of `change`, the median of `values` ÷ the median of `reference` − 1. It is the exact interval
    of the shift of the logarithms (rank test), widened so that it contains `change`.

    None when `change` is None, when a value is 0 or infinite, or when there are too few values.
    """
    if change is None or not all(0 < value < inf for value in (*values, *reference)):
        return None
    interval = shift_interval(np.log(np.asarray(reference)), np.log(np.asarray(values)))
    return None if interval is None else (min(change, expm1(interval[0])), max(change, expm1(interval[1])))


@lru_cache(maxsize=4096)
def _refuted(before: int, after: int) -> int | None:
    """The number of sorted differences below the interval; None when there is no interval."""
    tail = (1 - CONFIDENCE) / 2
    if least_p(before, after) > 2 * tail:
        return None
    if before + after > _EXACT_UP_TO:
        mean, deviation = before * after / 2, sqrt(before * after * (before + after + 1) / 12)
        return max(0, int(mean - NORMAL_QUANTILE * deviation - 0.5))
    doubled = tuple(2 * rank for rank in range(1, before + after + 1))
    counts = _sums_of_splits(doubled, after)[after * (after + 1) :: 2]  # by U, the number of differences below 0
    cumulated = np.cumsum(counts / counts.sum())
    return int(np.searchsorted(cumulated, tail, side="right")) - 1 if cumulated[0] <= tail else None


def doubled_midranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The ranks, counted from 1, multiplied by two. So the mean rank of ties is a whole number."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    doubled: NDArray[np.int64] = (2 * last - sizes + 1)[group]
    return doubled


@lru_cache(maxsize=1024)
def _sums_of_splits(doubled: tuple[int, ...], size: int) -> NDArray[np.float64]:
    """For each sum, the number of ways to choose `size` of the ranks with that sum, indexed by the sum."""
    ways = np.zeros((size + 1, sum(doubled) + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    counts: NDArray[np.float64] = ways[size]
    return counts


def _approximate(doubled: NDArray[np.int64], size: int, distance: int) -> float:
    total = len(doubled)
    # This is the variance of a sum of `size` ranks that are drawn without replacement. Ties make it smaller.
    variance = size * (total - size) / (total - 1) * float((doubled / 2).var())
    if variance == 0.0:
        return 1.0
    return min(1.0, erfc(max(0.0, distance / 4 - 0.5) / sqrt(2 * variance)))


def least_p(before: int, after: int) -> float:
    """The smallest p that the rank test can give for these group sizes. It occurs when every value of one group is
    larger than every value of the other group."""
    return min(1.0, 2 / comb(before + after, before)) if before and after else 1.0


def least_n(p: float) -> int:
    """The smallest n for which the rank test can reach `p` with n values in each group."""
    n = 1
    while least_p(n, n) > p:
        n += 1
    return n


def rate_test(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The two-sided p of Fisher's exact test of the hypothesis that two rates are equal. A rate is given as (successes,
    attempts).

    p is the sum of the probabilities of all tables with the same margins that are at most as likely as the observed
    table. Fisher, "On the Interpretation of χ² from Contingency Tables" (1922).
    """
    probabilities, observed = _tables(before, after)
    # With this factor, equal probabilities count as equal even if rounding makes them different.
    return min(1.0, sum(p for p in probabilities if p <= observed * (1 + 1e-9)))


def least_rate_p(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The smallest p that Fisher's exact test can give with the margins of this table."""
    probabilities, _ = _tables(before, after)
    lowest = min(probabilities)
    return min(1.0, sum(p for p in probabilities if p <= lowest * (1 + 1e-9)))


def _tables(before: tuple[int, int], after: tuple[int, int]) -> tuple[list[float], float]:
    """The probability of every table with the same margins, and the probability of this table."""
    successes, attempts = before[0] + after[0], before[1] + after[1]
    low, high = max(0, successes - after[1]), min(successes, before[1])
    every = comb(attempts, successes)
    probabilities = [comb(before[1], k) * comb(after[1], successes - k) / every for k in range(low, high + 1)]
    return probabilities, probabilities[before[0] - low]


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """The q value of each p, in the same order. It is the lowest false discovery rate at which p counts as significant.
    None stays None: this test is left out of the correction.

    Benjamini and Hochberg, "Controlling the False Discovery Rate" (1995).
    """
    places = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    q_values: list[float | None] = [None] * len(p_values)
    lowest = 1.0
    for rank in range(len(places), 0, -1):
        p, place = places[rank - 1]
        lowest = min(lowest, p * len(places) / rank)
        q_values[place] = lowest
    return q_values
