"""Iterations summarised late, from raw samples: median, spread, an honest interval, and which iteration is typical."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from runner.model.result import Outcome, Result

RESAMPLES = 9_999  # so that the 2.5 % and 97.5 % quantiles fall on whole ranks
CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959964  # of 0.975: CONFIDENCE, both tails
_NO_ATTEMPT = (Outcome.UNSUPPORTED, Outcome.SKIPPED)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One metric over the iterations of a cell, in the metric's own unit.

    `low` and `high` bound the 95 % percentile bootstrap interval of the median, drawn with `seed`; they and the sample
    standard deviation `deviation` are None for n = 1.
    """

    n: int
    median: float
    mean: float
    minimum: float
    maximum: float
    deviation: float | None
    low: float | None
    high: float | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """How often a cell was tried. Iterations that were unsupported or skipped are no attempts."""

    successes: int
    attempts: int

    def __str__(self) -> str:
        return f"{self.successes}/{self.attempts}"


def summarise(values: Iterable[float | None], *, seed: int) -> Summary | None:
    """Summary of the values that were measurable; None when none was. `seed` is that of the resampling."""
    found = [float(value) for value in values if value is not None]
    if not found:
        return None
    if len(found) == 1:
        (one,) = found
        return Summary(
            n=1, median=one, mean=one, minimum=one, maximum=one, deviation=None, low=None, high=None, seed=seed
        )
    known = np.sort(np.array(found, dtype=np.float64))
    low, high = median_interval(known, seed=seed)
    return Summary(
        n=len(found),
        median=float(np.median(known)),
        mean=float(known.mean()),
        minimum=float(known[0]),
        maximum=float(known[-1]),
        deviation=float(known.std(ddof=1)),
        low=low,
        high=high,
        seed=seed,
    )


def median_interval(ordered: NDArray[np.float64], *, seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median of `ordered` (ascending, not empty), in its unit.

    Efron, "Bootstrap Methods: Another Look at the Jackknife" (1979). Resampled are ranks, which depend on the number of
    values only: one draw serves every metric of a site.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled_medians(ordered, seed=seed), [tail, 1 - tail])
    return float(low), float(high)


def resampled_medians(ordered: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """The median of each bootstrap resample of `ordered` (ascending, not empty), in its unit."""
    lower, upper = _median_ranks(len(ordered), seed)
    return (ordered[lower] + ordered[upper]) / 2


@lru_cache(maxsize=256)
def _median_ranks(size: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The two ranks whose values average to the median, for each resample. Equal for an odd `size`."""
    draws = np.random.default_rng(seed).integers(size, size=(RESAMPLES, size))
    draws.sort(axis=1)
    return draws[:, (size - 1) // 2], draws[:, size // 2]


def count(results: Iterable[Result]) -> Attempts:
    """Successes and attempts among the iterations of a cell."""
    tried = [result.outcome for result in results if result.outcome not in _NO_ATTEMPT]
    return Attempts(successes=tried.count(Outcome.SUCCEEDED), attempts=len(tried))


def rate_interval(attempts: Attempts) -> tuple[float, float] | None:
    """95 % interval of the rate of success, both ends as fractions; None without an attempt.

    Wilson's score interval ("Probable Inference, the Law of Succession, and Statistical Inference", 1927): honest for
    few attempts, and never empty where all or none succeeded.
    """
    n = attempts.attempts
    if not n:
        return None
    rate, square = attempts.successes / n, NORMAL_QUANTILE**2
    centre = (rate + square / (2 * n)) / (1 + square / n)
    half = NORMAL_QUANTILE * sqrt(rate * (1 - rate) / n + square / (4 * n * n)) / (1 + square / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def rate_text(attempts: Attempts) -> str:
    """`4/5 succeeded, a rate of 38% to 96% (95 %)`; empty without an attempt."""
    interval = rate_interval(attempts)
    if interval is None:
        return ""
    return f"{attempts} succeeded, a rate of {interval[0]:.0%} to {interval[1]:.0%} ({100 * CONFIDENCE:.0f} %)"


def median_iteration(results: Sequence[Result]) -> int | None:
    """Number of the succeeded iteration whose goodput is the median: with an even count, the lower of the middle two.

    Without any goodput it is the first that succeeded; None when none did.
    """
    succeeded = [result for result in results if result.outcome is Outcome.SUCCEEDED]
    measured = sorted(
        (result.sample.goodput, result.iteration)
        for result in succeeded
        if result.sample is not None and result.sample.goodput is not None
    )
    if measured:
        return measured[ceil(len(measured) / 2) - 1][1]
    return min((result.iteration for result in succeeded), default=None)
