"""Cells over many runs under the same conditions: the trend of the delivery time, its change point, flaky cells.

Each run gives one value for a cell, the median. Conditions that differ between runs, such as the host's load, affect
all iterations of a run together. So a run counts as one observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple

from runner.compare.compare import CellIterations, Key, OfCell, by_cell
from runner.compare.conditions import differences
from runner.compare.stats import FALSE_DISCOVERY_RATE, Attempts, adjusted, least_p, rank_test, rate_interval, summarise
from runner.errors import UsageError
from runner.model.result import Result
from runner.model.run import CaseRecord, Kind
from runner.store.runs import RunFolder


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """The point that splits a series into two parts with the smallest p of the rank test. `q`: this p after all
    corrections."""

    run: str  # the first run after the change
    q: float
    before: float  # median of the values before the change
    after: float  # median of the values after the change


@dataclass(frozen=True, kw_only=True)
class Trend(OfCell):
    """One cell over several runs. `medians`: the median delivery time of each run in seconds, in the order of the runs.
    `attempts`: successes and attempts over all runs, without errors."""

    medians: tuple[tuple[str, float], ...]
    attempts: Attempts
    flips: int  # number of changes from one run to the next between success in all iterations and at least one failure
    change: ChangePoint | None

    @property
    def rate(self) -> tuple[float, float] | None:
        """95 % interval of the rate of success."""
        return rate_interval(self.attempts)


@dataclass(frozen=True, kw_only=True)
class History:
    """The trends of all cells. `left_out`: the runs with other conditions than the newest run, each with a sentence
    about the first difference."""

    runs: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    trends: tuple[Trend, ...]


def history(folders: Sequence[RunFolder]) -> History:
    """The trends of all cells whose case is in the newest run, over all runs with the conditions of the newest run.

    Raises UsageError when there is no run.
    """
    ordered = sorted(folders, key=lambda folder: folder.run.started_unix_s)
    if not ordered:
        raise UsageError("There is no run in logs/: begin one with ./bentpipe run.")
    newest = ordered[-1]
    names, left_out = [], []
    by_key: dict[Key, list[_Point]] = {}
    for folder in ordered:
        if sentences := [*chain.from_iterable(differences(folder.run, newest.run).values())]:
            left_out.append((folder.name, sentences[0]))
            continue
        names.append(folder.name)
        for key, results in by_cell(folder.results()).items():
            if key.case in newest.run.cases:
                by_key.setdefault(key, []).append(_Point.of(folder.name, results))
    trends = [_trend(key, points, newest.run.cases[key.case]) for key, points in sorted(by_key.items())]
    return History(runs=tuple(names), left_out=tuple(left_out), trends=tuple(_corrected(trends)))


class _Point(NamedTuple):
    """What a history keeps of a cell in one run: results of many runs would fill the memory."""

    run: str
    protocol: str
    successes: int
    attempts: int
    median: float | None  # of the delivery times, in seconds

    @classmethod
    def of(cls, run: str, results: Sequence[Result]) -> "_Point":
        side = CellIterations(results)
        summary = summarise(side.values("ttlb"))
        return cls(run, side.protocol, *side.judged, None if summary is None else summary.median)


def _trend(key: Key, points: Sequence[_Point], case: CaseRecord) -> Trend:
    # Only values over the protocol of the newest run can be compared.
    same = [point for point in points if point.protocol in ("", points[-1].protocol) and point.attempts]
    is_measured = case.kind is Kind.MEASUREMENT
    medians = [(point.run, point.median) for point in same if point.median is not None and is_measured]
    good = [point.successes == point.attempts for point in same]
    return Trend(
        **key._asdict(),
        medians=tuple(medians),
        attempts=Attempts(
            successes=sum(point.successes for point in same), attempts=sum(point.attempts for point in same)
        ),
        flips=sum(earlier is not later for earlier, later in pairwise(good)),
        change=change_point(medians),
    )


def change_point(series: Sequence[tuple[str, float]]) -> ChangePoint | None:
    """The change point of a series of (run, value). `q` is the smallest p times the number of splits that can give a
    significant result. None when no split can give a significant result.
    """
    values = [value for _, value in series]
    able = [k for k in range(1, len(values)) if least_p(k, len(values) - k) <= FALSE_DISCOVERY_RATE]
    if not able:
        return None
    p, split = min((rank_test(values[:k], values[k:]), k) for k in able)
    halves = [summarise(half) for half in (values[:split], values[split:])]
    before, after = (half.median for half in halves if half is not None)
    return ChangePoint(run=series[split][0], q=min(1.0, p * len(able)), before=before, after=after)


def _corrected(trends: Sequence[Trend]) -> list[Trend]:
    """The trends, with only the changes that are significant after the correction for all cells."""
    q_values = adjusted([None if trend.change is None else trend.change.q for trend in trends])
    changes = [
        replace(trend.change, q=q) if trend.change and q is not None and q <= FALSE_DISCOVERY_RATE else None
        for trend, q in zip(trends, q_values, strict=True)
    ]
    return [replace(trend, change=change) for trend, change in zip(trends, changes, strict=True)]


def least_runs() -> int:
    """The smallest number of runs with which a change can be significant when there is only one cell."""
    n = 2
    while True:
        least = [p for k in range(1, n) if (p := least_p(k, n - k)) <= FALSE_DISCOVERY_RATE]
        if least and min(least) * len(least) <= FALSE_DISCOVERY_RATE:
            return n
        n += 1
