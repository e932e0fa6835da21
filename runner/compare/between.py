"""The variation of a number between runs of the same images. A change counts only when it is larger than this
variation.

Iterations of one run have the same conditions, such as the host's load, so they are not replicates of the run. Runs of
the same images under the same conditions are replicates. For a case and a metric, the cells' means form a table of
runs × cells. An analysis of variance (Searle, Casella and McCulloch, "Variance Components", 1992, chapter 4) separates
the part that all cells of a run share from the part that is specific to a cell in a run. Means are means of logarithms,
but for ratios they are means of the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runner.compare.conditions import differences
from runner.model.run import Run
from runner.stats.distributions import student_tail

Key = tuple[str, str, str]  # server, client, case
_SEPARATOR = "/"


class CellMean(NamedTuple):
    """A metric in a cell of one run, on the scale of `scaled`: the mean, the variance and the number of its values."""

    mean: float
    variance: float
    n: int


@dataclass(frozen=True)
class RunMeans:
    """The means of one run, by cell and metric."""

    run: Run
    cells: Mapping[Key, Mapping[str, CellMean]]

    def images(self, key: Key) -> tuple[str, str]:
        """The image IDs of the cell's server and client; an unknown ID is empty."""
        stacks = [self.run.implementations.get(name) for name in key[:2]]
        server, client = (stack.image_id if stack is not None else "" for stack in stacks)
        return server, client

    def document(self) -> dict[str, dict[str, list[float]]]:
        """`cells` as a JSON document."""
        return {
            _SEPARATOR.join(key): {name: list(mean) for name, mean in means.items()}
            for key, means in self.cells.items()
        }

    @classmethod
    def load(cls, run: Run, document: Mapping[str, Mapping[str, Sequence[float]]]) -> "RunMeans":
        """The means of `run` from the document that `document` returned."""
        means_by_key = {}
        for text, means in document.items():
            server, client, case = text.split(_SEPARATOR)
            means_by_key[server, client, case] = {
                name: CellMean(mean, variance, int(n)) for name, (mean, variance, n) in means.items()
            }
        return cls(run, means_by_key)


def scaled(metric: str, values: Sequence[float], ratios: Sequence[str]) -> NDArray[np.float64]:
    """The logarithms of the values, so that deviations are fractions. For a ratio, which may be 0: the values."""
    known = [value if metric in ratios else log(value) for value in values if metric in ratios or value > 0]
    return np.asarray(known, dtype=np.float64)


def cell_mean(values: NDArray[np.float64]) -> CellMean | None:
    """The mean of a cell's values; None when there is no value."""
    if not len(values):
        return None
    return CellMean(float(values.mean()), float(values.var(ddof=1)) if len(values) > 1 else 0.0, len(values))


@dataclass(frozen=True, kw_only=True)
class BetweenRuns:
    """The variation between runs for one case and metric. All variances are variances of a cell's mean, so they include
    the noise of its iterations.

    `common`: the variance between runs of the mean over all cells. `special`: the variance that is specific to a cell
    in a run. `inside`: the mean noise of the iterations, which both parts contain.
    """

    case: str
    metric: str
    runs: tuple[str, ...]
    cells: int
    common: float
    special: float
    inside: float

    @property
    def deviation(self) -> float:
        """The standard deviation of a cell's mean between runs. It is a fraction; for a ratio, it is in the ratio's
        unit."""
        return sqrt(self.common + self.special)

    def p(self, before: CellMean, after: CellMean) -> float:
        """The two-sided p of the hypothesis that a cell's mean did not change, from the variation between runs. The
        degrees of freedom are by Satterthwaite, "An Approximate Distribution of Estimates of Variance Components"
        (1946)."""
        freedom, inside = len(self.runs) - 1, _inside(before, after)
        # When the cell's iterations vary more than the iterations of the earlier runs, its variation between runs is
        # multiplied by the same factor.
        more = max(1.0, inside / self.inside) if self.inside > 0 else 1.0
        parts = [(2 * self.common, freedom), (2 * self.special * more, freedom * max(1, self.cells - 1))]
        if self.cells == 1 or self.inside <= 0:
            parts.append((2 * max(0.0, inside - self.inside), max(1, before.n + after.n - 2)))
        variance = sum(part for part, _ in parts)
        moved = abs(after.mean - before.mean)
        if variance <= 0.0:
            return 0.0 if moved > 0 else 1.0
        degrees = variance**2 / sum(part**2 / part_degrees for part, part_degrees in parts)
        return 2 * student_tail(degrees, moved / sqrt(variance))


def _inside(before: CellMean, after: CellMean) -> float:
    """The variance of a mean that comes from the iterations, over both runs; 0 when each run has one value."""
    degrees = before.n + after.n - 2
    if degrees < 1:
        return 0.0
    pooled = ((before.n - 1) * before.variance + (after.n - 1) * after.variance) / degrees
    return pooled * (1 / before.n + 1 / after.n) / 2


def between_runs(
    before: RunMeans, after: RunMeans | None, others: Sequence[RunMeans]
) -> dict[tuple[str, str], BetweenRuns]:
    """The variation between runs by case and metric. It is computed from `before` and those runs of `others` that have
    the same conditions. The compared run `after` is never used. A case is left out when no cell has the same images in
    two runs."""
    compared = None if after is None else _identity(after.run)
    alike = {_identity(before.run): before}
    for other in others:
        name = _identity(other.run)
        if name != compared and name not in alike and not differences(other.run, before.run):
            alike[name] = other
    known = sorted(alike.values(), key=lambda run_means: run_means.run.started_unix_s)
    metrics = {(key[2], metric) for run_means in known for key, means in run_means.cells.items() for metric in means}
    deviations = {}
    for case, metric in sorted(metrics):
        estimate = _estimate(case, metric, known)
        if estimate is not None:
            deviations[case, metric] = estimate
    return deviations


def _identity(run: Run) -> tuple[str, float]:
    return run.name, run.started_unix_s


def _estimate(case: str, metric: str, known: Sequence[RunMeans]) -> BetweenRuns | None:
    """The estimate from the largest set of runs with cells that had the same images in all these runs. All these cells
    are used."""
    blocks: dict[tuple[int, ...], list[Key]] = {}
    for key in sorted({key for run_means in known for key in run_means.cells if key[2] == case}):
        by_images: dict[tuple[str, str], list[int]] = {}
        for index, run_means in enumerate(known):
            if metric in run_means.cells.get(key, {}) and all(run_means.images(key)):
                by_images.setdefault(run_means.images(key), []).append(index)
        for indices in by_images.values():
            if len(indices) > 1:
                blocks.setdefault(tuple(indices), []).append(key)
    if not blocks:
        return None
    largest = max(blocks, key=lambda block: (len(block), len(blocks[block])))
    cells = [[known[index].cells[key][metric] for key in blocks[largest]] for index in largest]
    means = np.array([[cell.mean for cell in row] for row in cells])
    runs, count = means.shape
    by_run = means.mean(axis=1)
    common = float(by_run.var(ddof=1))  # MS(runs) / cells
    residuals = means - by_run[:, None] - means.mean(axis=0)[None, :] + means.mean()
    special = float((residuals**2).sum()) / ((runs - 1) * (count - 1)) * (1 - 1 / count) if count > 1 else 0.0
    return BetweenRuns(
        case=case,
        metric=metric,
        runs=tuple(known[index].run.name for index in largest),
        cells=count,
        common=common,
        special=special,
        inside=float(np.mean([cell.variance / cell.n for row in cells for cell in row])),
    )
