"""The share of a number's variance that is due to servers, to clients, and to the pair of server and client.

The model is a crossed design with random effects: log value = mean + server + client + pair + residual. The shares of
server, client and pair come from mean squares of the cells' means. So cells with many iterations have no more weight
than other cells, and cells may be missing (unweighted means; Henderson's method 3). Searle, Casella and McCulloch,
"Variance Components" (1992), chapters 4 and 5.
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


@dataclass(frozen=True, kw_only=True)
class _MeanSquares:
    """Sums of squares with their degrees of freedom, and the factors of the variances in the expected mean squares."""

    server: tuple[float, int]
    client: tuple[float, int]
    pair: tuple[float, int]
    residual: tuple[float, int]
    of_server: float  # E(mean square of servers) = E(mean square of pairs) + of_server · variance of servers
    of_client: float
    of_residual: float  # E(mean square of pairs) = variance of pairs + of_residual · variance of the residual


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
    point = _components(squares, {name: 1.0 * max(1, getattr(squares, name)[1]) for name in _NAMES})
    total = float(sum(part[0] for part in point))
    if total < _LEAST_VARIANCE:
        return None
    random = np.random.default_rng(seed)
    drawn = {name: random.chisquare(max(1, getattr(squares, name)[1]), RESAMPLES) for name in _NAMES}
    parts = _components(squares, drawn)
    # This minimum avoids a division by 0 in draws in which all components are 0.
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
    means -= means.mean()  # does not change the results, but avoids differences of large numbers below
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
    """A matrix with one row for each cell and one column for each name. An element is 1 when the cell has the name."""
    _, index = np.unique(np.array(names), return_inverse=True)
    matrix: NDArray[np.float64] = np.eye(int(index.max()) + 1)[index]
    return matrix


def _projection(design: NDArray[np.float64]) -> NDArray[np.float64]:
    left, sizes, _ = np.linalg.svd(design, full_matrices=False)
    basis = left[:, sizes > 1e-9 * sizes[0]]
    projection: NDArray[np.float64] = basis @ basis.T
    return projection


def _components(squares: _MeanSquares, divisors: Mapping[str, object]) -> list[NDArray[np.float64]]:
    """The variances of server, client, pair and residual. They are estimates when the divisors are degrees of freedom,
    and random draws when the divisors are draws from χ² distributions."""
    ratio = {name: getattr(squares, name)[0] / np.atleast_1d(np.asarray(divisors[name])) for name in _NAMES}
    residual = ratio["residual"] if squares.residual[1] else np.zeros_like(ratio["residual"])
    return [
        np.maximum(0.0, (ratio["server"] - ratio["pair"]) / squares.of_server),
        np.maximum(0.0, (ratio["client"] - ratio["pair"]) / squares.of_client),
        np.maximum(0.0, ratio["pair"] - squares.of_residual * residual),
        residual,
    ]
