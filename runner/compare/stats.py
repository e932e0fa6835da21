"""Statistics over iterations: summaries with exact intervals, tests of two groups and of pairs, and their
corrections."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb, erfc, exp, expm1, inf, isfinite, lgamma, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from runner.model.result import Outcome, Result

# Two distributions, computed with mpmath's incomplete beta function (NIST Digital Library of Mathematical Functions,
# §8.17).

_HALVINGS = 53  # number of binary digits of a float


def _beta(a: float, b: float, low: float, high: float) -> float:
    """The regularised incomplete beta function of `a` and `b`, from `low` to `high`."""
    from mpmath import betainc  # noqa: PLC0415 - slow to import, and most commands need no interval

    return float(betainc(a, b, low, high, regularized=True))


@lru_cache(maxsize=1024)
def beta_quantile(a: float, b: float, p: float) -> float:
    """The x for which the regularised incomplete beta function I_x(a, b) is p, for a and b above 0 and p of 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):  # bisection, because faster methods stop too early where the function is flat
        middle = (low + high) / 2
        low, high = (middle, high) if _beta(a, b, 0, middle) < p else (low, middle)
    return (low + high) / 2


def student_tail(degrees: float, t: float) -> float:
    """The probability of a value above `t`, for Student's distribution with `degrees` degrees of freedom. `t` must be 0
    or more."""
    square = t * t
    if square < 1:  # for a small t, the formula below would lose digits in 1 - x
        return _beta(0.5, degrees / 2, square / (degrees + square), 1) / 2
    return _beta(degrees / 2, 0.5, 0, degrees / (degrees + square)) / 2


# Summaries of iterations from raw samples: median, spread, an exact interval, and the median iteration.

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959964  # the 0.975 quantile, for CONFIDENCE with two tails
_NO_ATTEMPT = (Outcome.UNSUPPORTED, Outcome.SKIPPED)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One metric over the iterations of a cell, in the unit of the metric.

    `low` and `high` are the bounds of the 95 % interval of the median. They are None for fewer than 6 values, because
    then even the range contains the median in less than 95 % of the cases. `deviation`: the sample standard deviation;
    None for n = 1.
    """

    n: int
    median: float
    mean: float
    minimum: float
    maximum: float
    deviation: float | None
    low: float | None
    high: float | None

    @property
    def spread(self) -> tuple[str, float, float] | None:
        """The spread to print after the median: (`95 % interval` or `range`, low, high); None for n = 1."""
        if self.low is not None and self.high is not None:
            return "95 % interval", self.low, self.high
        return ("range", self.minimum, self.maximum) if self.n > 1 else None


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Successes and attempts of a cell. Unsupported and skipped iterations are not attempts."""

    successes: int
    attempts: int

    def __str__(self) -> str:
        return f"{self.successes}/{self.attempts}"


def summarise(values: Iterable[float | None]) -> Summary | None:
    """The summary of the known values; None when no value is known."""
    known = np.sort(np.array([value for value in values if value is not None], dtype=np.float64))
    if not len(known):
        return None
    low, high = median_interval(known) or (None, None)
    return Summary(
        n=len(known),
        median=float(np.median(known)),
        mean=float(known.mean()),
        minimum=float(known[0]),
        maximum=float(known[-1]),
        deviation=float(known.std(ddof=1)) if len(known) > 1 else None,
        low=low,
        high=high,
    )


def median_interval(ordered: NDArray[np.float64]) -> tuple[float, float] | None:
    """The 95 % interval of the median. Its bounds are two of the values in `ordered`, which are in ascending order.
    None for fewer than 6 values.

    The interval is exact for every continuous distribution: the median is between the k-th smallest and the k-th
    largest value with probability 1 - 2 · P(Binomial(n, 1/2) < k). Thompson, "On Confidence Ranges for the Median"
    (1936).
    """
    place = _place(len(ordered))
    return None if place is None else (float(ordered[place]), float(ordered[-1 - place]))


@lru_cache(maxsize=4096)
def _place(size: int) -> int | None:
    """The largest k − 1 for which P(Binomial(size, 1/2) < k) is at most 2.5 %; None when k = 1 is already too large."""
    tail, below, highest = (1 - CONFIDENCE) / 2, 0.0, None
    for place in range(size // 2 + 1):
        below += exp(lgamma(size + 1) - lgamma(place + 1) - lgamma(size - place + 1) - size * log(2))
        if below > tail:
            break
        highest = place
    return highest


def count(results: Iterable[Result]) -> Attempts:
    """Successes and attempts among the iterations of a cell."""
    tried = [result.outcome for result in results if result.outcome not in _NO_ATTEMPT]
    return Attempts(successes=tried.count(Outcome.SUCCEEDED), attempts=len(tried))


def rate_interval(attempts: Attempts) -> tuple[float, float] | None:
    """The 95 % interval of the rate of success; None when there is no attempt. Both ends are fractions.

    The interval is exact: whatever the true rate is, the interval contains it with a probability of at least 95 %.
    Clopper and Pearson, "The Use of Confidence or Fiducial Limits" (1934).
    """
    good, n, tail = attempts.successes, attempts.attempts, (1 - CONFIDENCE) / 2
    if not n:
        return None
    low = beta_quantile(good, n - good + 1, tail) if good else 0.0
    high = beta_quantile(good + 1, n - good, 1 - tail) if good < n else 1.0
    return low, high


def rate_text(attempts: Attempts) -> str:
    """`4/5 succeeded, a rate of 28% to 99% (95 %)`; empty when there is no attempt."""
    interval = rate_interval(attempts)
    if interval is None:
        return ""
    return f"{attempts} succeeded, a rate of {interval[0]:.0%} to {interval[1]:.0%} ({100 * CONFIDENCE:.0f} %)"


def median_iteration(results: Sequence[Result]) -> int | None:
    """The number of the iteration with the median delivery time, among the iterations that succeeded. For an even count
    it is the slower of the two iterations in the middle.

    When no delivery time is known, it is the first iteration that succeeded. None when no iteration succeeded.
    """
    succeeded = [result for result in results if result.outcome is Outcome.SUCCEEDED]
    measured = sorted(
        (result.sample.ttlb, result.iteration)
        for result in succeeded
        if result.sample is not None and result.sample.ttlb is not None
    )
    if measured:
        return measured[len(measured) // 2][1]
    return min((result.iteration for result in succeeded), default=None)


# Tests of whether two groups of values differ, estimates of the difference, and the correction for many tests.

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
    return int(np.searchsorted(cumulated, tail, side="right")) - 1


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


# The test and the estimate for pairs of values, such as the times of two jobs that ran shortly after each other. They
# use only the differences of the pairs.

LEAST_PAIRS = ceil(1 - log2(FALSE_DISCOVERY_RATE))  # with fewer pairs no result can be significant


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
    place = _refuted_averages(pairs)
    return float(averages[place]), float(averages[-1 - place])


@lru_cache(maxsize=256)
def _refuted_averages(pairs: int) -> int:
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
