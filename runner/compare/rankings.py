"""Rankings of stacks, the best of several groups, comparisons with a reference, shares of the variance, two modes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import atanh, expm1, isfinite, sqrt, tanh
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.compare.stats import (
    CONFIDENCE,
    FALSE_DISCOVERY_RATE,
    LEAST_PAIRS,
    NORMAL_QUANTILE,
    Summary,
    adjusted,
    doubled_midranks,
    least_n,
    least_p,
    least_paired_p,
    pseudomedian,
    rank_test,
    ratio_interval,
    signed_rank_interval,
    signed_rank_test,
    student_tail,
    summarise,
)

# Rankings of servers and clients, summaries of groups of cells, and the correlation of two measurements.

_LEAST_ITERATIONS, _LEAST_OTHERS = 2, 2
LEAST_RANKED_PAIRS = 16  # with fewer pairs, less than 95 % of the intervals contain ρ (simulated, 23 November 2026)
_ROUNDING = 1e-12  # differences of logarithms below this value come from rounding


@dataclass(frozen=True, kw_only=True)
class RankedStack:
    """One stack in a ranking. `summary`: over the medians of its cells. Ranks are counted from 1 and have a 95 %
    interval.

    `why_not`: the reason, in words, why this rank can't be distinguished from chance. In this case there is no
    interval, and the rank is only the position in the order of the medians.
    """

    name: str
    rank: int
    rank_low: int | None
    rank_high: int | None
    summary: Summary
    why_not: str = ""


def ranking(cells: Mapping[tuple[str, str], Sequence[float]], *, place: int, others: str) -> list[RankedStack]:
    """The ranking of the stacks in role `place` (0: server, 1: client), the best stack first. They are ranked by the
    median of their cells over all stacks of the opposite role.

    `cells` maps (server, client) to the values of the iterations. Values must be above 0; lower values are better.
    `others`: the word for the stacks of the opposite role, such as `clients`.

    Two stacks are compared by a paired t test on the logarithms of their cells' medians, with one pair for each stack
    of the opposite role. These differences contain both the variation between stacks of the opposite role and the
    variation between iterations. The interval of a rank begins after the stacks that are significantly better, and ends
    before the stacks that are significantly worse. The 5 % are divided among all comparisons of a stack (Bonferroni),
    so that the interval contains the rank with a probability of at least 95 %: Mogstad, Romano, Shaikh and Wilhelm,
    "Inference for Ranks" (2024).
    """
    medians = {key: float(np.median(values)) for key, values in cells.items() if len(values)}
    names, opposite = (sorted({key[index] for key in medians}) for index in (place, 1 - place))
    table = np.full((len(names), len(opposite)), np.nan)
    for key, value in medians.items():
        table[names.index(key[place]), opposite.index(key[1 - place])] = value
    known = [row[~np.isnan(row)] for row in table]
    order = [float(np.median(row)) for row in known]
    logs = np.log(table)
    most = {name: max(len(cells[key]) for key in medians if key[place] == name) for name in names}
    places = []
    for index, name in enumerate(names):
        rank = 1 + sum(other < order[index] for other in order)
        why_not = _why_not(len(names), len(known[index]), most[name], others)
        low, high = (None, None) if why_not else _rank_interval(logs, index, rank)
        summary = summarise(known[index].tolist())
        assert summary is not None  # every name comes from a cell
        places.append(RankedStack(name=name, rank=rank, rank_low=low, rank_high=high, summary=summary, why_not=why_not))
    return sorted(places, key=lambda place_: (place_.rank, place_.name))


def _why_not(names: int, cells: int, iterations: int, others: str) -> str:
    if names < 2:
        return "only 1 stack in this role"
    if cells < _LEAST_OTHERS:
        return f"only {cells} of the {others}"
    if iterations < _LEAST_ITERATIONS:
        return f"only {iterations} iteration of each pair"
    return ""


def _rank_interval(logs: NDArray[np.float64], index: int, rank: int) -> tuple[int, int]:
    """The interval of the rank of row `index`. It always contains `rank`, the row's position in the order of the
    medians."""
    better = worse = 0
    for other in range(len(logs)):
        differences = (logs[other] - logs[index])[~np.isnan(logs[other] - logs[index])]
        if other == index or len(differences) < _LEAST_OTHERS:
            continue
        deviation = float(differences.std(ddof=1)) / sqrt(len(differences))
        mean = float(differences.mean())
        if deviation < _ROUNDING:
            p = 1.0 if abs(mean) < _ROUNDING else 0.0
        else:
            p = 2 * student_tail(len(differences) - 1, abs(mean) / deviation)
        if p <= (1 - CONFIDENCE) / (len(logs) - 1):
            better, worse = better + (mean < 0), worse + (mean > 0)
    return min(rank, 1 + better), max(rank, len(logs) - worse)


def groups(values: Iterable[tuple[str, float]]) -> list[tuple[str, Summary]]:
    """The summary of the values of each group. The group with the lowest median comes first."""
    by_group: dict[str, list[float]] = {}
    for name, value in values:
        by_group.setdefault(name, []).append(value)
    summaries = ((name, summarise(group)) for name, group in by_group.items())
    return sorted(
        ((name, summary) for name, summary in summaries if summary is not None),
        key=lambda pair: (pair[1].median, pair[0]),
    )


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's ρ over `n` pairs. `low` and `high`: the bounds of its 95 % interval; None for fewer than 16 pairs."""

    rho: float
    n: int
    low: float | None
    high: float | None


def spearman(first: Sequence[float], second: Sequence[float]) -> Correlation | None:
    """Spearman's rank correlation. None when one of the series is constant, or when there are fewer than 3 pairs.

    The interval is computed with Fisher's z and the variance of Bonett and Wright, "Sample size requirements for
    estimating Pearson, Kendall and Spearman correlations" (2000).
    """
    n = len(first)
    if n < 3:
        return None
    ranks = [doubled_midranks(np.asarray(values, dtype=np.float64)) for values in (first, second)]
    if any(np.ptp(values) == 0 for values in ranks):
        return None
    x, y = (values - values.mean() for values in ranks)
    rho = float(np.clip(x @ y / sqrt((x @ x) * (y @ y)), -1.0, 1.0))
    if n < LEAST_RANKED_PAIRS:
        return Correlation(rho=rho, n=n, low=None, high=None)
    if abs(rho) > 1 - 1e-12:
        return Correlation(rho=round(rho), n=n, low=round(rho), high=round(rho))
    half = NORMAL_QUANTILE * sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(rho=rho, n=n, low=tanh(atanh(rho) - half), high=tanh(atanh(rho) + half))


# The share of a number's variance that is due to servers, to clients, and to the pair of server and client.
#
# The model is a crossed design with random effects: log value = mean + server + client + pair + residual. The shares of
# server, client and pair come from mean squares of the cells' means. So cells with many iterations have no more weight
# than other cells, and cells may be missing (unweighted means; Henderson's method 3). Searle, Casella and McCulloch,
# "Variance Components" (1992), chapters 4 and 5.


@dataclass(frozen=True, kw_only=True)
class Share:
    """A fraction of the variance, from 0 to 1, with the bounds of its 95 % interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares that sum to 1. When every cell has only one value, `residual` is None and `pair` includes the residual."""

    server: Share
    client: Share
    pair: Share
    residual: Share | None
    deviation: float  # standard deviation of the logarithm of a single value, from all components together
    servers: int
    clients: int
    cells: int
    values: int


RESAMPLES = 9_999  # with this number, the 2.5 % and 97.5 % quantiles are at whole ranks
_LEAST_VARIANCE = 1e-12  # of a logarithm; deviations below a millionth of the value come from rounding


def shares(cells: Mapping[tuple[str, str], Sequence[float]], *, seed: int) -> Shares | None:
    """The shares of the variance of the values' logarithms. `cells`: the values by (server, client). Only values above
    0 are used.

    None when the table is too small or has too many empty cells: servers, clients and pairs need at least one degree of
    freedom each, as in a table of 2 × 2 cells. Also None when the values hardly differ. Intervals are generalised
    intervals (Weerahandi, 1993), drawn with `seed`. A component below 0 counts as 0.
    """
    logs = {key: np.log(known) for key, values in cells.items() if (known := [value for value in values if value > 0])}
    squares = _mean_squares(logs) if logs else None
    if squares is None:
        return None
    sums, degrees, (of_server, of_client, of_residual) = squares
    freedom = np.maximum(1, degrees)[:, None]

    def components(divisors: NDArray[Any]) -> NDArray[np.float64]:
        """The variances of server, client, pair and residual, each in a row. They are estimates when the divisors are
        degrees of freedom, and random draws when the divisors are draws from χ² distributions."""
        server, client, pair, residual = sums[:, None] / divisors
        parts = [(server - pair) / of_server, (client - pair) / of_client, pair - of_residual * residual, residual]
        return np.maximum(0.0, parts)

    point = components(freedom)[:, 0]
    total = float(point.sum())
    if total < _LEAST_VARIANCE:
        return None
    parts = components(np.random.default_rng(seed).chisquare(freedom, (len(freedom), RESAMPLES)))
    # This minimum avoids a division by 0 in draws in which all components are 0.
    whole = np.maximum(parts.sum(axis=0), np.finfo(float).tiny)
    low, high = np.quantile(parts / whole, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    server, client, pair, residual = (
        Share(share=share / total, low=float(least), high=float(most))
        for share, least, most in zip(point.tolist(), low, high, strict=True)
    )
    return Shares(
        server=server,
        client=client,
        pair=pair,
        residual=residual if degrees[3] else None,
        deviation=total**0.5,
        servers=len({server for server, _ in logs}),
        clients=len({client for _, client in logs}),
        cells=len(logs),
        values=sum(len(values) for values in logs.values()),
    )


def _mean_squares(
    logs: Mapping[tuple[str, str], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[float, float, float]] | None:
    """Sums of squares of server, client, pair and residual, and their degrees of freedom. Then three factors of the
    expected mean squares: that of servers is that of pairs + factor · variance of servers; the same for clients; that
    of pairs is the variance of pairs + factor · variance of the residual.

    None when servers, clients or pairs have no degree of freedom.
    """
    means = np.array([values.mean() for values in logs.values()])
    means -= means.mean()  # does not change the results, but avoids differences of large numbers below
    by_server, by_client = (_indicator([key[place] for key in logs]) for place in (0, 1))
    both = _projection(np.hstack([by_server, by_client]))
    servers_only, clients_only = _projection(by_server), _projection(by_client)
    rank = round(float(np.trace(both)))
    freedom = (rank - by_client.shape[1], rank - by_server.shape[1], len(means) - rank)
    if min(freedom) < 1:
        return None
    sums = (
        means @ (both - clients_only) @ means,
        means @ (both - servers_only) @ means,
        means @ means - means @ both @ means,
        sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values()),
    )
    factors = (
        (len(means) - float(np.trace(by_server.T @ clients_only @ by_server))) / freedom[0],
        (len(means) - float(np.trace(by_client.T @ servers_only @ by_client))) / freedom[1],
        float(np.mean([1 / len(values) for values in logs.values()])),
    )
    return np.array(sums), np.array((*freedom, sum(len(values) - 1 for values in logs.values()))), factors


def _indicator(names: Sequence[str]) -> NDArray[np.float64]:
    """A matrix with one row for each cell and one column for each name. An element is 1 when the cell has the name."""
    _, index = np.unique(np.array(names), return_inverse=True)
    matrix: NDArray[np.float64] = np.eye(int(index.max()) + 1)[index]
    return matrix


def _projection(design: NDArray[np.float64]) -> NDArray[np.float64]:
    left, sizes, _ = np.linalg.svd(design, full_matrices=False)
    basis = left[:, sizes > 1e-9 * sizes[0]]
    projection: NDArray[np.float64] = basis @ basis.T
    return projection


# Compares several groups of times with one reference group: how much they differ, and whether chance explains the
# difference.

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

    @property
    def doubt(self) -> str:
        """The reason why the lead of this group over the reference is not certain; empty when it is."""
        if self.change is None:
            return "which failed in most attempts"
        if self.q is None:
            need = least_n(FALSE_DISCOVERY_RATE)
            return f"too few iterations: n {self.n} and {self.reference_n}, {need} of each are needed"
        return "" if self.certain else f"no significant difference, q {self.q:.2g}"


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
    corrected = iter(_corrected([answer for answers in comparisons for answer in answers.values()]))
    return [{name: next(corrected) for name in answers} for answers in comparisons]


def _corrected(every: Sequence[Versus]) -> list[Versus]:
    """The comparisons with q, after the common correction of all tests that can give a significant result."""
    q_values = adjusted([answer.p if answer.least_p <= FALSE_DISCOVERY_RATE else None for answer in every])
    return [replace(answer, q=q) for answer, q in zip(every, q_values, strict=True)]


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


# The group with the shortest median among several groups of times, and its lead.


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The group with the shortest median time. `value`: this median, of `n` times. `second`: the group with the next
    median; empty when there is no other group. `lead`: the winner compared with that group."""

    name: str
    value: float
    n: int
    second: str = ""
    lead: Versus | None = None


def winners(questions: Sequence[Times]) -> list[Winner | None]:
    """The winner of each question; None when most attempts of every group failed.

    The same times select the two best groups and test them. So q is about the two best of many groups, not about two
    groups that were chosen before the measurement. All tests are corrected together, as in `versus`.
    """
    results = [_winner(times) for times in questions]
    leads = iter(_corrected([result.lead for result in results if result is not None and result.lead is not None]))
    return [result and replace(result, lead=result.lead and next(leads)) for result in results]


def _winner(times: Times) -> Winner | None:
    ranked = sorted(((median(values), name) for name, values in times.items() if values), key=lambda pair: pair[0])
    if not ranked or not isfinite(ranked[0][0]):
        return None
    (value, name), *others = ranked
    second = others[0][1] if others else ""
    lead = _versus(times[name], times[second], ()) if second else None
    return Winner(name=name, value=value, n=len(times[name]), second=second, lead=lead)


# Detects cells whose iterations form two separate groups of values.

LEAST_VALUES = 8
_LEAST_SIDE = 2  # least size of a group: a single distant value is an outlier, not a mode
_LEAST_RATIO = 1.25  # ratio of the groups' medians; a smaller difference does not matter to users
_LEAST_GAP = 2.0  # in ranges of the wider group; 1 % of samples of 8 from one log-normal distribution have such a gap


@dataclass(frozen=True, kw_only=True)
class Modes:
    """The two groups. `lower` and `upper`: their numbers of values. Medians and gap are in the unit of the values.
    `gap` is the distance from the highest value of the lower group to the lowest value of the upper group."""

    lower: int
    upper: int
    lower_median: float
    upper_median: float
    gap: float

    @property
    def ratio(self) -> float:
        return self.upper_median / self.lower_median if self.lower_median else np.inf


def two_modes(values: Sequence[float]) -> Modes | None:
    """The two groups on both sides of the widest gap between the values, which must be 0 or more. None when there are
    fewer than 8 values, when the gap is not more than twice as wide as each group, or when the medians differ by less
    than a quarter.

    A dip test would need dozens of values, but a cell has about ten iterations. So the gap is compared with the range
    of each group.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if len(ordered) < LEAST_VALUES:
        return None
    gaps = np.diff(ordered)[_LEAST_SIDE - 1 : 1 - _LEAST_SIDE]
    split = int(gaps.argmax()) + _LEAST_SIDE
    lower, upper = ordered[:split], ordered[split:]
    gap = float(upper[0] - lower[-1])
    modes = Modes(
        lower=len(lower),
        upper=len(upper),
        lower_median=float(np.median(lower)),
        upper_median=float(np.median(upper)),
        gap=gap,
    )
    wide = max(float(np.ptp(lower)), float(np.ptp(upper)))
    return modes if gap > _LEAST_GAP * wide and modes.ratio >= _LEAST_RATIO else None
