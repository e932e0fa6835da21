"""Servers and clients in order, groups of cells, and whether one measurement tells what another does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import atanh, sqrt, tanh

import numpy as np
from numpy.typing import NDArray

from runner.stats.summary import CONFIDENCE, NORMAL_QUANTILE, Summary, summarise

_DRAWS = 1_999  # of the other role; ranks are whole numbers, finer draws change none


@dataclass(frozen=True, kw_only=True)
class Place:
    """One name of a ranking. `summary` is over its cells' medians; ranks count from 1, the interval is of 95 %."""

    name: str
    rank: int
    rank_low: int
    rank_high: int
    summary: Summary


def ranking(cells: Mapping[tuple[str, str], float], *, place: int, seed: int, more_is_better: bool) -> list[Place]:
    """Names of role `place` (0 server, 1 client) from the best on, by the median of their cells over the other role.

    `cells` are the cells' medians by (server, client). The interval of a rank is a bootstrap over the other role's
    names, drawn once for all: who was lucky with a client was so together with the rest.
    """
    names, others = (sorted({key[index] for key in cells}) for index in (place, 1 - place))
    table = np.full((len(names), len(others)), np.nan)
    for key, value in cells.items():
        table[names.index(key[place]), others.index(key[1 - place])] = value
    if not names:
        return []
    ranks = _ranks(_medians(table), more_is_better=more_is_better)
    drawn = np.random.default_rng(seed).integers(len(others), size=(_DRAWS, len(others)))
    draws = _ranks(_medians(table[:, drawn].swapaxes(0, 1)), more_is_better=more_is_better)
    tail = (1 - CONFIDENCE) / 2
    places = []
    for index, name in enumerate(names):
        # A draw without any cell of this name says nothing about it.
        known = draws[~np.isnan(draws[:, index]), index]
        low, high = np.quantile(known, [tail, 1 - tail], method="nearest")
        summary = summarise((value for value in table[index] if not np.isnan(value)), seed=seed)
        assert summary is not None  # every name comes from a cell
        places.append(Place(name=name, rank=int(ranks[index]), rank_low=int(low), rank_high=int(high), summary=summary))
    return sorted(places, key=lambda one: (one.rank, one.name))


def _medians(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median along the last axis without the holes; not a number where there is nothing else."""
    ordered = np.sort(table, axis=-1)  # holes last
    known = np.count_nonzero(~np.isnan(table), axis=-1)
    last = table.shape[-1] - 1
    lower, upper = (
        np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0]
        for place in (np.maximum(known - 1, 0) // 2, np.minimum(known // 2, last))
    )
    return np.where(known > 0, (lower + upper) / 2, np.nan)


def _ranks(values: NDArray[np.float64], *, more_is_better: bool) -> NDArray[np.float64]:
    """1 + how many along the last axis are better; equals share the better rank."""
    one, other = values[..., :, None], values[..., None, :]
    better = one < other if more_is_better else one > other
    return np.where(np.isnan(values), np.nan, 1.0 + better.sum(axis=-1))


def groups(values: Iterable[tuple[str, float]], *, seed: int) -> list[tuple[str, Summary]]:
    """Summary of the values by group, the highest median first."""
    found: dict[str, list[float]] = {}
    for name, value in values:
        found.setdefault(name, []).append(value)
    summaries = ((name, summarise(group, seed=seed)) for name, group in found.items())
    known = [(name, one) for name, one in summaries if one is not None]
    return sorted(known, key=lambda one: (-one[1].median, one[0]))


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's ρ over `n` pairs, with its 95 % interval; None for n below 4."""

    rho: float
    n: int
    low: float | None
    high: float | None


def spearman(one: Sequence[float], other: Sequence[float]) -> Correlation | None:
    """Whether values rise together; None when either does not vary, or for less than 3.

    The interval is Fisher's z with the variance of Bonett and Wright, "Sample size requirements for estimating
    Pearson, Kendall and Spearman correlations" (2000).
    """
    n = len(one)
    if n < 3:
        return None
    ranks = [_midranks(np.asarray(values, dtype=np.float64)) for values in (one, other)]
    if any(np.ptp(values) == 0 for values in ranks):
        return None
    x, y = (values - values.mean() for values in ranks)
    rho = float(np.clip(x @ y / sqrt((x @ x) * (y @ y)), -1.0, 1.0))
    if n < 4:
        return Correlation(rho=rho, n=n, low=None, high=None)
    if abs(rho) > 1 - 1e-12:
        return Correlation(rho=round(rho), n=n, low=round(rho), high=round(rho))
    half = NORMAL_QUANTILE * sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(rho=rho, n=n, low=tanh(atanh(rho) - half), high=tanh(atanh(rho) + half))


def _midranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    return found
