"""The share of a number's variance that is due to servers, to clients, and to the pair of both.

The model is a crossed design with random effects: log value = mean + server + client + pair + residual. It uses only
mean squares of the cells' means, so cells with many iterations weigh no more than others, and cells may be missing
(unweighted means; Henderson's method 3). Searle, Casella and McCulloch, "Variance Components" (1992),
chapters 4 and 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.stats.summary import CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class Share:
    """A fraction of the variance, from 0 to 1, with the bounds of its 95 % interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares that sum to 1. `residual` is None when every cell has one value; it is then part of `pair`."""

    server: Share
    client: Share
    pair: Share
    residual: Share | None
    deviation: float  # standard deviation of one value's logarithm, all components together
    servers: int
    clients: int
    cells: int
    values: int


@dataclass(frozen=True, kw_only=True)
class _MeanSquares:
    """Sums of squares with their degrees of freedom, and the factors of the variances in their expectations."""

    server: tuple[float, int]
    client: tuple[float, int]
    pair: tuple[float, int]
    residual: tuple[float, int]
    of_server: float  # E(mean square of servers) = E(mean square of pairs) + of_server · variance of servers
    of_client: float
    of_residual: float  # E(mean square of pairs) = variance of pairs + of_residual · variance of the residual


RESAMPLES = 9_999  # so that the 2.5 % and 97.5 % quantiles fall on whole ranks
_LEAST_VARIANCE = 1e-12  # of a logarithm: less than a millionth of the value is rounding, not a difference


def shares(cells: Mapping[tuple[str, str], Sequence[float]], *, seed: int) -> Shares | None:
    """Shares of the variance of log value, from values above 0 by (server, client).

    None when the table is too small or has too many empty cells: servers, clients and pairs need one degree of
    freedom each, which 2 × 2 cells have. Intervals are generalised intervals (Weerahandi, 1993), drawn with
    `seed`. A component below 0 counts as 0.
    """
    logs = {key: np.log(known) for key, values in cells.items() if (known := [value for value in values if value > 0])}
    squares = _mean_squares(logs) if logs else None
    if squares is None:
        return None
    point = _components(squares, {name: 1.0 * max(1, getattr(squares, name)[1]) for name in _NAMES})
    total = float(sum(part[0] for part in point))
    if total < _LEAST_VARIANCE:
        return None
    random = np.random.default_rng(seed)
    drawn = {name: random.chisquare(max(1, getattr(squares, name)[1]), RESAMPLES) for name in _NAMES}
    parts = _components(squares, drawn)
    # Avoids a division by 0 in draws in which all components were cut off at 0.
    whole = np.maximum(sum(parts), np.finfo(float).tiny)
    tail = (1 - CONFIDENCE) / 2
    components = []
    for part, draws in zip(point, parts, strict=True):
        low, high = np.quantile(draws / whole, [tail, 1 - tail])
        components.append(Share(share=float(part[0]) / total, low=float(low), high=float(high)))
    return Shares(
        server=components[0],
        client=components[1],
        pair=components[2],
        residual=components[3] if squares.residual[1] else None,
        deviation=total**0.5,
        servers=len({server for server, _ in logs}),
        clients=len({client for _, client in logs}),
        cells=len(logs),
        values=sum(len(values) for values in logs.values()),
    )


_NAMES = ("server", "client", "pair", "residual")


def _mean_squares(logs: Mapping[tuple[str, str], NDArray[np.float64]]) -> _MeanSquares | None:
    """The mean squares; None when servers, clients or pairs have no degree of freedom."""
    means = np.array([values.mean() for values in logs.values()])
    means -= means.mean()  # changes no result; avoids differences of large numbers below
    by_server, by_client = (_indicator([key[place] for key in logs]) for place in (0, 1))
    both = _projection(np.hstack([by_server, by_client]))
    servers_only, clients_only = _projection(by_server), _projection(by_client)
    rank = round(float(np.trace(both)))
    df = {"server": rank - by_client.shape[1], "client": rank - by_server.shape[1], "pair": len(means) - rank}
    if min(df.values()) < 1:
        return None
    inside = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    return _MeanSquares(
        server=(float(means @ (both - clients_only) @ means), df["server"]),
        client=(float(means @ (both - servers_only) @ means), df["client"]),
        pair=(float(means @ means - means @ both @ means), df["pair"]),
        residual=(inside, sum(len(values) - 1 for values in logs.values())),
        of_server=(len(means) - float(np.trace(by_server.T @ clients_only @ by_server))) / df["server"],
        of_client=(len(means) - float(np.trace(by_client.T @ servers_only @ by_client))) / df["client"],
        of_residual=float(np.mean([1 / len(values) for values in logs.values()])),
    )


def _indicator(names: Sequence[str]) -> NDArray[np.float64]:
    """A matrix with one row per cell and one column per name: 1 where the cell belongs to the name."""
    _, index = np.unique(np.array(names), return_inverse=True)
    matrix: NDArray[np.float64] = np.eye(int(index.max()) + 1)[index]
    return matrix


def _projection(design: NDArray[np.float64]) -> NDArray[np.float64]:
    left, sizes, _ = np.linalg.svd(design, full_matrices=False)
    basis = left[:, sizes > 1e-9 * sizes[0]]
    projection: NDArray[np.float64] = basis @ basis.T
    return projection


def _components(squares: _MeanSquares, divisors: Mapping[str, object]) -> list[NDArray[np.float64]]:
    """Variances of server, client, pair and residual: estimates when the divisors are degrees of freedom, draws when
    they are draws of χ²."""
    ratio = {name: getattr(squares, name)[0] / np.atleast_1d(np.asarray(divisors[name])) for name in _NAMES}
    residual = ratio["residual"] if squares.residual[1] else np.zeros_like(ratio["residual"])
    return [
        np.maximum(0.0, (ratio["server"] - ratio["pair"]) / squares.of_server),
        np.maximum(0.0, (ratio["client"] - ratio["pair"]) / squares.of_client),
        np.maximum(0.0, ratio["pair"] - squares.of_residual * residual),
        residual,
    ]
