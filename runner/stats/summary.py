"""Summaries of iterations from raw samples: median, spread, an exact interval, and the median iteration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log

import numpy as np
from numpy.typing import NDArray

from runner.model.result import Outcome, Result
from runner.stats.distributions import beta_quantile

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
