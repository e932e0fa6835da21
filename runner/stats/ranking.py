"""Rankings of servers and clients, summaries of groups of cells, and the correlation of two measurements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import atanh, sqrt, tanh

import numpy as np
from numpy.typing import NDArray

from runner.stats.change import doubled_midranks
from runner.stats.distributions import student_tail
from runner.stats.summary import CONFIDENCE, NORMAL_QUANTILE, Summary, summarise

_LEAST_ITERATIONS, _LEAST_OTHERS = 2, 2
LEAST_PAIRS = 16  # with fewer pairs, less than 95 % of the intervals contain ρ (lab.coverage)
_ROUNDING = 1e-12  # differences of logarithms below this value come from rounding


@dataclass(frozen=True, kw_only=True)
class Place:
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


def ranking(cells: Mapping[tuple[str, str], Sequence[float]], *, place: int, others: str) -> list[Place]:
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
        places.append(Place(name=name, rank=rank, rank_low=low, rank_high=high, summary=summary, why_not=why_not))
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
    if n < LEAST_PAIRS:
        return Correlation(rho=rho, n=n, low=None, high=None)
    if abs(rho) > 1 - 1e-12:
        return Correlation(rho=round(rho), n=n, low=round(rho), high=round(rho))
    half = NORMAL_QUANTILE * sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(rho=rho, n=n, low=tanh(atanh(rho) - half), high=tanh(atanh(rho) + half))
