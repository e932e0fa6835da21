"""The data of the page of one matrix cell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.model.result import Finding, Invariant, Outcome, Result
from runner.model.run import Run
from runner.render import drawing, words
from runner.render.cells import SIGNS, Cell
from runner.render.files import Download
from runner.render.metrics import BY_KEY, METRICS, Metric, value
from runner.render.series import Series, coded
from runner.stats import Summary

_TILES = (
    "ttlb",
    "goodput",
    "efficiency",
    "efficiency_of_bound",
    "handshake_time",
    "ttfb",
    "retransmission_ratio",
)
ITERATION_COLUMNS = (
    "ttlb",
    "goodput",
    "efficiency",
    "handshake_time",
    "ttfb",
    "retransmission_ratio",
    "spurious_bytes",
    "rtt_min",
    "rtt_median",
)
_LEAST_SHARE = 0.001  # of the time, summed over the iterations; a limit with a smaller share has no column


@dataclass(frozen=True)
class Row:
    """One iteration of the table."""

    result: Result
    sign: str
    numbers: tuple[str, ...]  # one number for each of ITERATION_COLUMNS
    broken: tuple[Invariant, ...]
    unchecked: int  # invariants that could not be checked
    downloads: Sequence[Download]
    plotted: bool


def context(
    run: Run, cell: Cell, *, series: Mapping[int, Series], downloads: Mapping[int, Sequence[Download]]
) -> dict[str, Any]:
    """The variables of the template `pair.html`. `series` and `downloads` are by iteration."""
    title = f"Offset versus time, {cell.client} → {cell.server}, {cell.case.name}"
    shown = _first_plot(cell, series)
    others = [behind for iteration, behind in series.items() if iteration != shown]
    return {
        "cell": cell,
        "client": run.implementations.get(cell.client),
        "server": run.implementations.get(cell.server),
        "verdict": words.outcomes_text(cell.results, "iteration") + "." if cell.results else "Not run yet.",
        "links": words.links(cell.case),
        "transfer": words.transfer_facts(cell.case, [cell]),
        "tiles": [(BY_KEY[key], cell.summaries[key]) for key in _TILES if key in cell.summaries],
        "groups": _groups(cell.summaries),
        "columns": [BY_KEY[key] for key in ITERATION_COLUMNS],
        "rows": [_row(result, downloads, series) for result in cell.results],
        "reasons": reasons(cell.results),
        "notes": notes(cell.results),
        "judged": [result for result in cell.results if result.public is not None],
        "public_differs": any(result.public and result.public.outcome is not result.outcome for result in cell.results),
        "limits": _limits(cell.results),
        "diagnosed": [result for result in cell.results if result.diagnoses],
        "readings": next((result.readings for result in cell.results if result.iteration == cell.shown), ()),
        "shown": shown,
        "drawing": drawing.offset_plot(series.get(shown or 0), others, title=title),
        "plot": _plot(cell, series, shown),
    }


def _first_plot(cell: Cell, series: Mapping[int, Series]) -> int | None:
    return cell.shown if cell.shown in series else next(iter(series), None)


def _groups(summaries: Mapping[str, Summary]) -> dict[str, list[tuple[Metric, Summary]]]:
    groups: dict[str, list[tuple[Metric, Summary]]] = {}
    for metric in METRICS:
        if metric.key in summaries:
            groups.setdefault(metric.group, []).append((metric, summaries[metric.key]))
    return groups


def _row(result: Result, downloads: Mapping[int, Sequence[Download]], series: Mapping[int, Series]) -> Row:
    return Row(
        result=result,
        sign=SIGNS[result.outcome],
        numbers=tuple(_number(BY_KEY[key], value(result.sample, key)) for key in ITERATION_COLUMNS),
        broken=tuple(invariant for invariant in result.invariants if invariant.holds is False),
        unchecked=sum(invariant.holds is None for invariant in result.invariants),
        downloads=downloads.get(result.iteration, ()),
        plotted=result.iteration in series,
    )


def _limits(results: Sequence[Result]) -> list[str]:
    """The limits of all iterations. The limit with the largest share of the time comes first."""
    total: dict[str, float] = {}
    for result in results:
        for limit, share in result.limits.items():
            total[limit] = total.get(limit, 0.0) + share
    return sorted((limit for limit in total if total[limit] >= _LEAST_SHARE), key=lambda limit: -total[limit])


def _number(metric: Metric, number: float | None) -> str:
    return "–" if number is None else metric.number(number)


def reasons(results: Sequence[Result]) -> list[tuple[Finding, list[int]]]:
    """Each distinct finding, with the iterations in which it occurred. Its text and its log come from the first of
    these iterations."""
    return _distinct((result.iteration, finding) for result in results for finding in result.findings)


def notes(results: Sequence[Result]) -> list[tuple[Finding, list[int]]]:
    """Each distinct note, with the iterations in which it occurred."""
    return _distinct((result.iteration, note) for result in results for note in result.notes)


def _distinct(findings: Iterable[tuple[int, Finding]]) -> list[tuple[Finding, list[int]]]:
    distinct: dict[tuple[str, str], tuple[Finding, list[int]]] = {}
    for iteration, finding in findings:
        distinct.setdefault((finding.code, finding.role), (finding, []))[1].append(iteration)
    return list(distinct.values())


def _plot(cell: Cell, series: Mapping[int, Series], shown: int | None) -> dict[str, Any]:
    """The data that the page's script needs before it loads an iteration: the thinned curves of all iterations."""
    outcomes = {result.iteration: result.outcome for result in cell.results}
    curves = []
    for iteration, series_of_iteration in series.items():
        time, total = series_of_iteration.arrived
        curves.append(
            {
                "iteration": iteration,
                "succeeded": outcomes.get(iteration) is Outcome.SUCCEEDED,
                "t_us": coded(time),
                "bytes": coded(total),
            }
        )
    return {"case": cell.case.name, "shown": shown, "median": cell.median, "curves": curves}
