"""The page of a run of paths: who wins over which link, goodput by size, page loads, and what an eavesdropper sees."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import Any

from markupsafe import Markup

from runner.model.path import ORIGIN, Sight
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, WorkloadRecord
from runner.render import gather, words
from runner.render.cells import Cell
from runner.render.charts import Axis, Mark, curves, lines
from runner.render.pages import Page, Pages
from runner.render.sweeps import Scale, sweeps
from runner.render.view import RunView
from runner.stats import Attempts, Summary, summarise
from runner.stats.versus import Versus, versus
from runner.stats.winner import Winner, winners

NAV = (1, "Paths", "paths.html")
OF = "paths"


@dataclass(frozen=True)
class PathCell:
    """One path in one case. The summary is of delivery times, or of page load times, in seconds."""

    cell: Cell | None
    summary: Summary | None
    attempts: Attempts
    unsupported: bool
    won: bool


@dataclass(frozen=True)
class Row:
    """One workload over one link."""

    case: CaseRecord
    workload: WorkloadRecord
    cells: list[tuple[str, PathCell]]
    winner: Winner | None


@dataclass(frozen=True)
class Against:
    """Every other path's times, case by case, against one path's."""

    reference: str
    others: list[str]
    rows: list[tuple[CaseRecord, dict[str, Versus]]]


def pages(view: RunView) -> Pages:
    """One page."""
    yield Page("paths.html", "paths.html", _told(view))


def rows_of(view: RunView) -> list[Row]:
    """Every workload over every link."""
    cases = _cases(view)
    values = [({path: _times(view, path, case) for path in view.run.clients}, True) for case, _ in cases]
    best = winners(values)
    return [_row(view, case, workload, first) for (case, workload), first in zip(cases, best, strict=True)]


def _cases(view: RunView) -> list[tuple[CaseRecord, WorkloadRecord]]:
    cases = [(case, case.workload) for case in view.run.cases.values() if case.workload is not None]
    return sorted(
        cases, key=lambda one: (one[1].title, without_loss(one[1].link), one[0].forward.loss, one[0].file_sizes)
    )


def without_loss(link: str) -> str:
    """The link itself, of one that a sweep gave a loss."""
    return link.partition("+")[0]


def _told(view: RunView) -> dict[str, Any]:
    cases, rows = _cases(view), rows_of(view)
    return {
        "paths": [view.run.paths[name] for name in view.run.clients],
        "downloads": [row for row in rows if not row.workload.page],
        "page_loads": [row for row in rows if row.workload.page],
        "page_times": [_page_times(view, row) for row in rows if row.workload.page],
        "warm": any(workload.warm for _, workload in cases),
        "against": _against(view, cases),
        "links": _links(cases),
        "by_size": _by_size(view, cases),
        "ecdf": _ecdf(view, cases),
        "by_loss": _by_loss(view, cases),
        "by_parameter": _by_parameter(view, cases),
        "sights": _sights(view),
        "seen": seen(view),
        "sight_names": _sight_names(view.results.values()),
    }


def _cell(view: RunView, path: str, case: CaseRecord) -> Cell | None:
    return view.table.get((ORIGIN, path, case.name))


def _results(view: RunView, path: str, case: CaseRecord) -> Sequence[Result]:
    cell = _cell(view, path, case)
    return () if cell is None else cell.results


def _attempts(view: RunView, path: str, case: CaseRecord) -> Attempts:
    """What the harness spoiled is none: it says nothing about the path."""
    cell = _cell(view, path, case)
    return gather.attempts([] if cell is None else [cell])


def _values(view: RunView, path: str, case: CaseRecord) -> list[float]:
    """Seconds of the downloads or page loads that succeeded."""
    counting = (one.sample for one in _results(view, path, case) if one.outcome is Outcome.SUCCEEDED)
    return [one.ttlb for one in counting if one is not None and one.ttlb is not None]


def _times(view: RunView, path: str, case: CaseRecord) -> list[float]:
    """Seconds of every attempt; infinite where it failed, so that no path leads by what it lost."""
    found = _values(view, path, case)
    return found + [inf] * (_attempts(view, path, case).attempts - len(found))


def _against(view: RunView, cases: Sequence[tuple[CaseRecord, WorkloadRecord]]) -> list[Against]:
    """Every path against each that is no variant; those first that do nothing."""
    times = [{path: _times(view, path, case) for path in view.run.clients} for case, _ in cases]
    bases = [path for path in view.run.paths.values() if not path.variant_of]
    bases.sort(key=lambda path: bool(path.encrypts or path.splits))
    found = []
    for path in bases if len(view.run.clients) > 1 else ():
        answers = versus(times, path.name)
        rows = [(case, answer) for (case, _), answer in zip(cases, answers, strict=True) if answer]
        if rows:
            found.append(Against(path.name, [name for name in view.run.clients if name != path.name], rows))
    return found


def _row(view: RunView, case: CaseRecord, workload: WorkloadRecord, best: Winner | None) -> Row:
    cells = []
    for path in view.run.clients:
        results = _results(view, path, case)
        cells.append(
            (
                path,
                PathCell(
                    cell=_cell(view, path, case),
                    summary=summarise(_values(view, path, case)),
                    attempts=_attempts(view, path, case),
                    unsupported=any(one.outcome is Outcome.UNSUPPORTED for one in results),
                    won=best is not None and best.name == path,
                ),
            )
        )
    return Row(case=case, workload=workload, cells=cells, winner=best)


def _page_times(view: RunView, row: Row) -> tuple[Row, list[tuple[str, list[Summary | None]]]]:
    """Medians of response start, first contentful paint and load event, by path, of the loads that count."""
    found = []
    for path in view.run.clients:
        counting = (one for one in _results(view, path, row.case) if one.outcome is Outcome.SUCCEEDED)
        loads = [one.crossing.page for one in counting if one.crossing and one.crossing.page]
        times = (
            [load.response_start for load in loads],
            [load.first_contentful_paint for load in loads],
            [load.load for load in loads],
        )
        found.append((path, [summarise(values) for values in times]))
    return row, found


def _links(cases: Iterable[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, list[tuple[str, list[str]]], str]]:
    found = {}
    for case, workload in cases:
        ground = [("ground", words.link_facts(workload.ground_forward))]
        found[workload.link] = (workload.link, words.links(case) + ground, workload.note)
    return list(found.values())


def _by_size(view: RunView, cases: Iterable[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, Markup]]:
    """Median throughput by size of the file with its spread, a line per path; where more than one size ran."""
    groups: dict[str, list[CaseRecord]] = defaultdict(list)
    for case, workload in cases:
        if not workload.page:
            groups[f"{workload.title} over {workload.link}"].append(case)
    return [
        (name, _lines(view, chosen, lambda case: sum(case.file_sizes) / 1e6, "size of the file (MB)", name))
        for name, chosen in groups.items()
        if len(chosen) > 1
    ]


def _by_loss(view: RunView, cases: Iterable[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, Markup]]:
    """The same by loss on the satellite link, in percent."""
    groups: dict[str, list[CaseRecord]] = defaultdict(list)
    for case, workload in cases:
        groups[f"{case.abbreviation} over {without_loss(workload.link)}"].append(case)
    return [
        (name, _lines(view, chosen, lambda case: 100 * case.forward.loss, "loss, both ways (%)", name))
        for name, chosen in groups.items()
        if len(chosen) > 1
    ]


def _by_parameter(view: RunView, cases: Sequence[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, Markup]]:
    """Medians by a parameter that variants of a path differ in alone, such as an ACK ratio; a line per case."""
    variants = ((one.name, one.variant_of, one.parameters) for one in view.run.paths.values() if one.variant_of)
    found = []
    for sweep in sweeps(variants):
        label = sweep.parameter + (f" ({sweep.unit})" if sweep.unit else "")
        common = "".join(f", {name}={value}" for name, value in sweep.common)
        scale = Scale.of([value for value, _ in sweep.settings], label)
        for page in (False, True):
            chosen = [case for case, workload in cases if workload.page is page]
            series = {
                case.name: [_mark(view, path, case, scale.at(value)) for value, path in sweep.settings]
                for case in chosen
            }
            title = f"{sweep.base} by {sweep.parameter}{common}"
            drawn = [(name, [one for one in marks if one]) for name, marks in series.items() if any(marks)]
            if drawn:
                found.append((title, lines(drawn, scale.axis, Axis(label=_unit(page)), title=title)))
    return found


def _unit(page: bool) -> str:
    return "page load time (s)" if page else "throughput (Mbit/s)"


def _mark(view: RunView, path: str, case: CaseRecord, at: float) -> Mark | None:
    """The median of all attempts: page load times in s, throughputs of downloads in Mbit/s. None where most page loads
    failed; an interval, or below 6 values the range, where all succeeded."""
    assert case.workload is not None
    values, attempts = _times(view, path, case), _attempts(view, path, case)
    if not case.workload.page:  # an attempt that failed has no throughput: 8 · size / infinity
        values = [8 * sum(case.file_sizes) / 1e6 / value for value in values]
    if not values or not isfinite(median(values)):
        return None
    summary = summarise(values) if attempts.successes == attempts.attempts else None
    spread = summary.spread if summary is not None else None
    low, high = spread[1:] if spread is not None else (None, None)
    told = f"{path}: median {median(values):.3g}, completed {attempts}" + (f", {spread[0]}" if spread else "")
    return Mark(x=at, y=median(values), low=low, high=high, title=told)


def _lines(view: RunView, cases: list[CaseRecord], of: Any, label: str, title: str) -> Markup:
    workload = cases[0].workload
    assert workload is not None
    scale = Scale.of([of(case) for case in cases], label)
    series = []
    for path in view.run.clients:
        marks = [_mark(view, path, case, scale.at(of(case))) for case in cases]
        if any(marks):
            series.append((path, [one for one in marks if one]))
    return lines(series, scale.axis, Axis(label=_unit(workload.page)), title=title)


def _ecdf(view: RunView, cases: Iterable[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, Markup]]:
    """Share of page loads that were done by a time, of all that were tried: a curve that ends below 1 lost some."""
    found = []
    for case, workload in cases:
        if not workload.page:
            continue
        loads = {path: _times(view, path, case) for path in view.run.clients}
        last = max((time for times in loads.values() for time in times if isfinite(time)), default=0.0)
        series = [(path, _steps(times, last)) for path, times in loads.items() if times]
        chart = curves(series, Axis(label="page load time (s)"), Axis(label="share of loads", end=1.0), title=case.name)
        if chart:
            found.append((case.name, chart))
    return found


def _steps(times: Sequence[float], last: float) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for done, time in enumerate(sorted(filter(isfinite, times)), start=1):
        points += [(time, points[-1][1]), (time, done / len(times))]
    return [*points, (last, points[-1][1])]


def seen(view: RunView) -> dict[str, tuple[int, int]]:
    """By path: how much of what was looked for is visible in some job, and of how much."""
    looked: dict[str, dict[str, bool]] = {}
    for job, result in view.results.items():
        for sight in result.crossing.sights if _shows(result) and result.crossing is not None else ():
            known = looked.setdefault(job.client, {})
            known[sight.what] = known.get(sight.what, False) or sight.visible
    order = (path for path in view.run.clients if path in looked)
    return {path: (sum(looked[path].values()), len(looked[path])) for path in order}


def _shows(result: Result) -> bool:
    """Whether it says anything of the path: in a job that the harness spoiled the traffic may have gone beside it."""
    return result.outcome is not Outcome.ERROR


def _sight_names(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(one.what for result in results if result.crossing for one in result.crossing.sights))


def _sights(view: RunView) -> list[tuple[str, str, dict[str, Sight], int]]:
    """By path, and whether the workload itself is encrypted: of each thing the sight that shows most, over all jobs."""
    found: dict[tuple[str, str], dict[str, Sight]] = {}
    jobs: dict[tuple[str, str], int] = defaultdict(int)
    for job, result in view.results.items():
        workload = view.run.cases[job.case].workload
        if result.crossing is None or workload is None or not _shows(result):
            continue
        key = job.client, "TLS end to end" if workload.encrypted else "in the clear"
        jobs[key] += 1
        for sight in result.crossing.sights:
            known = found.setdefault(key, {}).get(sight.what)
            if known is None or (sight.visible, sight.times) > (known.visible, known.times):
                found[key][sight.what] = sight
    order = view.run.clients
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return [(path, how, found[path, how], jobs[path, how]) for path, how in keys]
