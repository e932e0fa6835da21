"""The page of a run of paths: who wins over which link, goodput by size, page loads, and what an eavesdropper sees."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from runner.stats.winner import Winner, winners

NAV = (1, "Paths", "paths.html")
OF = "paths"


@dataclass(frozen=True)
class PathCell:
    """One path in one case. The summary is in Mbit/s, of a page in seconds."""

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


def pages(view: RunView) -> Pages:
    """One page."""
    yield Page("paths.html", "paths.html", _told(view))


def rows_of(view: RunView) -> list[Row]:
    """Every workload over every link."""
    cases = _cases(view)
    values = [({path: _values(view, path, case) for path in view.run.clients}, one.page) for case, one in cases]
    best = winners(values, seed=view.run.seed)
    return [
        _row(view, case, workload, groups, first)
        for (case, workload), (groups, _), first in zip(cases, values, best, strict=True)
    ]


def _cases(view: RunView) -> list[tuple[CaseRecord, WorkloadRecord]]:
    cases = [(case, case.workload) for case in view.run.cases.values() if case.workload is not None]
    return sorted(cases, key=lambda one: (one[1].title, one[1].link, one[0].file_sizes))


def _told(view: RunView) -> dict[str, Any]:
    cases, rows = _cases(view), rows_of(view)
    return {
        "paths": [view.run.paths[name] for name in view.run.clients],
        "downloads": [row for row in rows if not row.workload.page],
        "page_loads": [row for row in rows if row.workload.page],
        "page_times": [_page_times(view, row) for row in rows if row.workload.page],
        "links": _links(cases),
        "by_size": _by_size(view, cases),
        "ecdf": _ecdf(view, cases),
        "by_loss": _by_loss(view, cases),
        "by_parameter": _by_parameter(view, cases),
        "sights": _sights(view),
        "seen": seen(view),
        "sight_names": _sight_names(view.results.values()),
    }


def _measured(result: Result, workload: WorkloadRecord) -> float | None:
    """Mbit/s of a download, seconds of a page; None of what did not succeed."""
    if result.outcome is not Outcome.SUCCEEDED or result.sample is None:
        return None
    if workload.page:
        return result.sample.ttlb
    return None if result.sample.goodput is None else result.sample.goodput / 1e6


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
    assert case.workload is not None
    found = (_measured(one, case.workload) for one in _results(view, path, case))
    return [value for value in found if value is not None]


def _row(
    view: RunView, case: CaseRecord, workload: WorkloadRecord, values: Mapping[str, list[float]], best: Winner | None
) -> Row:
    cells = []
    for path in view.run.clients:
        results = _results(view, path, case)
        cells.append(
            (
                path,
                PathCell(
                    cell=_cell(view, path, case),
                    summary=summarise(values[path], seed=view.run.seed),
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
        found.append((path, [summarise(values, seed=view.run.seed) for values in times]))
    return row, found


def _links(cases: Iterable[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, list[tuple[str, list[str]]], str]]:
    found = {}
    for case, workload in cases:
        ground = [("ground", words.link_facts(workload.ground_forward))]
        found[workload.link] = (workload.link, words.links(case) + ground, workload.note)
    return list(found.values())


def _by_size(view: RunView, cases: Iterable[tuple[CaseRecord, WorkloadRecord]]) -> list[tuple[str, Markup]]:
    """Median goodput by size of the file with its 95 % interval, a line per path; where more than one size ran."""
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
        groups[f"{case.abbreviation} over {workload.link.partition('+')[0]}"].append(case)
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
    return "page load time (s)" if page else "goodput (Mbit/s)"


def _mark(view: RunView, path: str, case: CaseRecord, at: float) -> Mark | None:
    summary = summarise(_values(view, path, case), seed=view.run.seed)
    if summary is None:
        return None
    told = f"{path}: median {summary.median:.3g}, n {summary.n}"
    return Mark(x=at, y=summary.median, low=summary.low, high=summary.high, title=told)


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
        series = []
        for path in view.run.clients:
            tried = _attempts(view, path, case).attempts
            times = sorted(_values(view, path, case))
            if times:
                series.append((path, _steps(times, tried)))
        chart = curves(series, Axis(label="page load time (s)"), Axis(label="share of loads", end=1.0), title=case.name)
        if chart:
            found.append((case.name, chart))
    return found


def _steps(times: list[float], tried: int) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for done, time in enumerate(times, start=1):
        points += [(time, points[-1][1]), (time, done / tried)]
    return points


def seen(view: RunView) -> dict[str, tuple[int, int]]:
    """By path: how much of what was looked for is visible in some job, and of how much."""
    looked: dict[str, dict[str, bool]] = {}
    for job, result in view.results.items():
        for sight in result.crossing.sights if result.crossing is not None else ():
            known = looked.setdefault(job.client, {})
            known[sight.what] = known.get(sight.what, False) or sight.visible
    order = (path for path in view.run.clients if path in looked)
    return {path: (sum(looked[path].values()), len(looked[path])) for path in order}


def _sight_names(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(one.what for result in results if result.crossing for one in result.crossing.sights))


def _sights(view: RunView) -> list[tuple[str, str, dict[str, Sight], int]]:
    """By path, and whether the workload itself is encrypted: of each thing the sight that shows most, over all jobs."""
    found: dict[tuple[str, str], dict[str, Sight]] = {}
    jobs: dict[tuple[str, str], int] = defaultdict(int)
    for job, result in view.results.items():
        workload = view.run.cases[job.case].workload
        if result.crossing is None or workload is None:
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
