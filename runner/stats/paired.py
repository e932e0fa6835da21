"""The test and the estimate for pairs of values, such as the times of two jobs that ran shortly after each other. They
use only the differences of the pairs."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, erfc, isfinite, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from runner.stats.change import FALSE_DISCOVERY_RATE, doubled_midranks
from runner.stats.summary import CONFIDENCE, NORMAL_QUANTILE

LEAST_PAIRS = ceil(1 - log2(FALSE_DISCOVERY_RATE))  # with fewer pairs no result can be significant
_EXACT_UP_TO = 100  # pairs; an exact test of more pairs takes longer than 0.1 s


def signed_rank_test(differences: Sequence[float]) -> float:
    """The two-sided p of the Wilcoxon signed-rank test of the hypothesis that the differences are symmetric about 0.

    An infinite difference has the highest rank. Ties get midranks. Differences of 0 are ranked and then left out
    (Pratt, "Remarks on Zeros and Ties in the Wilcoxon Signed Rank Procedures", 1959). Up to 100 pairs the test is
    exact: every choice of signs is counted. For more than 100 pairs, the normal approximation with correction for
    continuity is used. Wilcoxon, "Individual Comparisons by Ranking Methods" (1945).
    """
    values = np.asarray(differences, dtype=np.float64)
    ranks = doubled_midranks(np.abs(values))[values != 0]
    signs = values[values != 0]
    total = int(ranks.sum())
    distance = abs(2 * int(ranks[signs > 0].sum()) - total)
    if len(ranks) > _EXACT_UP_TO:
        return min(1.0, erfc(max(0.0, distance - 2) / sqrt(2 * float((ranks.astype(np.float64) ** 2).sum()))))
    counts = _sums_of_signs(tuple(sorted(ranks.tolist())))
    far = np.abs(2 * np.arange(len(counts)) - total) >= distance
    return min(1.0, float(counts[far].sum() / counts.sum()))


def least_paired_p(pairs: int) -> float:
    """The smallest p that the signed-rank test can give. It occurs when all differences have the same sign."""
    return min(1.0, 2.0 ** (1 - pairs))


def pseudomedian(differences: Sequence[float]) -> float:
    """The estimate of the centre of the differences: the median of the means of every two differences. A difference is
    also combined with itself.

    Hodges and Lehmann, "Estimates of Location Based on Rank Tests" (1963).
    """
    return float(np.median(_walsh_averages(differences)))


def signed_rank_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the centre of the differences: all shifts that the signed-rank test doesn't reject at 5 %.

    None when there are too few pairs for the test to reject any shift, or when a difference is infinite.
    """
    pairs = len(differences)
    if least_paired_p(pairs) > 1 - CONFIDENCE or not all(map(isfinite, differences)):
        return None
    averages = np.sort(_walsh_averages(differences))
    place = _refuted(pairs)
    return float(averages[place]), float(averages[-1 - place])


@lru_cache(maxsize=256)
def _refuted(pairs: int) -> int:
    """The number of sorted Walsh averages below the interval."""
    tail = (1 - CONFIDENCE) / 2
    if pairs > _EXACT_UP_TO:
        mean, deviation = pairs * (pairs + 1) / 4, sqrt(pairs * (pairs + 1) * (2 * pairs + 1) / 24)
        return int(mean - NORMAL_QUANTILE * deviation - 0.5)
    counts = _sums_of_signs(tuple(range(1, pairs + 1)))
    return int(np.searchsorted(np.cumsum(counts / counts.sum()), tail, side="right")) - 1


def _walsh_averages(differences: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(differences, dtype=np.float64)
    row, column = np.triu_indices(len(values))
    averages: NDArray[np.float64] = (values[row] + values[column]) / 2
    return averages


@lru_cache(maxsize=1024)
def _sums_of_signs(ranks: tuple[int, ...]) -> NDArray[np.float64]:
    """For each sum, the number of ways to choose positive ranks with that sum, indexed by the sum."""
    ways = np.zeros(sum(ranks) + 1)
    ways[0] = 1.0
    for rank in ranks:
        ways[rank:] += ways[: len(ways) - rank].copy()
    return ways
