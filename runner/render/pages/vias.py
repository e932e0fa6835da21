"""The page of middleboxes: which is ahead over which link, goodput by size, page loads, what an eavesdropper sees."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import Any

from markupsafe import Markup

from runner.model.middlebox import NO_VIA, Sight
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, ClientKind
from runner.render import gather, words
from runner.render.cells import Cell
from runner.render.charts import Axis, Mark, curves, lines
from runner.render.pages import Page, Pages
from runner.render.sweeps import Scale, sweeps
from runner.render.view import RunView
from runner.stats import Attempts, Summary, summarise
from runner.stats.versus import Versus, versus
from runner.stats.winner import Winner, winners

NAV = (1, "Middleboxes", "vias.html")
OF = "vias"


@dataclass(frozen=True)
class ViaCell:
    """One middlebox in one row. The summary is of delivery times, or of page load times, in seconds."""

    cell: Cell | None
    summary: Summary | None
    attempts: Attempts
    unsupported: bool
    won: bool


@dataclass(frozen=True)
class Question:
    """One pair in one case over its link."""

    server: str
    client: str
    case: CaseRecord

    @property
    def label(self) -> str:
        """The case, and the pair where stacks are asked."""
        name = self.case.abbreviation
        return f"{self.client} → {self.server}, {name}" if self.case.client is ClientKind.STACK else name

    @property
    def title(self) -> str:
        """The same without the size of the file and without the link."""
        name = self.case.title
        return f"{self.client} → {self.server}, {name}" if self.case.client is ClientKind.STACK else name


@dataclass(frozen=True)
class Row:
    """One question, by the name of the middlebox."""

    question: Question
    cells: list[tuple[str, ViaCell]]
    winner: Winner | None

    @property
    def case(self) -> CaseRecord:
        return self.question.case


@dataclass(frozen=True)
class Against:
    """The times of every other middlebox, question by question, against those of one."""

    reference: str
    others: list[str]
    rows: list[tuple[Question, dict[str, Versus]]]


def pages(view: RunView) -> Pages:
    """One page."""
    yield Page("vias.html", "vias.html", _told(view))


def label(via: str) -> str:
    """What a middlebox is called; `none` without one."""
    return via or NO_VIA


def rows_of(view: RunView) -> list[Row]:
    """Every question that was asked over some middlebox."""
    questions = _questions(view)
    values = [({label(via): _times(view, via, one) for via in view.run.vias}, True) for one in questions]
    best = winners(values)
    return [_row(view, one, first) for one, first in zip(questions, best, strict=True)]


def _questions(view: RunView) -> list[Question]:
    found = {(job.server, job.client, job.case_link) for job in (*view.run.order, *view.results)}
    cases = view.run.cases
    questions = [Question(server, client, cases[name]) for server, client, name in found if name in cases]
    return sorted(
        questions,
        key=lambda one: (one.title, one.case.link.base_name, one.case.forward.loss, one.case.file_sizes),
    )


def _told(view: RunView) -> dict[str, Any]:
    cases, rows = _questions(view), rows_of(view)
    return {
        "vias": [label(via) for via in view.run.vias],
        "middleboxes": [view.run.middleboxes[name] for name in view.run.vias if name],
        "downloads": [row for row in rows if not row.case.page],
        "page_loads": [row for row in rows if row.case.page],
        "page_times": [_page_times(view, row) for row in rows if row.case.page],
        "warm": any(one.case.warm for one in cases),
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


def _cell(view: RunView, via: str, question: Question) -> Cell | None:
    client = f"{question.client}+{via}" if via else question.client
    return view.table.get((question.server, client, question.case.name))


def _results(view: RunView, via: str, question: Question) -> Sequence[Result]:
    cell = _cell(view, via, question)
    return () if cell is None else cell.results


def _attempts(view: RunView, via: str, question: Question) -> Attempts:
    """What the harness spoiled is none: it says nothing about the middlebox."""
    cell = _cell(view, via, question)
    return gather.attempts([] if cell is None else [cell])


def _values(view: RunView, via: str, question: Question) -> list[float]:
    """Seconds of the downloads or page loads that succeeded."""
    counting = (one.sample for one in _results(view, via, question) if one.outcome is Outcome.SUCCEEDED)
    return [one.ttlb for one in counting if one is not None and one.ttlb is not None]


def _times(view: RunView, via: str, question: Question) -> list[float]:
    """Seconds of every attempt; infinite where it failed, so that no middlebox leads by what it lost."""
    found = _values(view, via, question)
    return found + [inf] * (_attempts(view, via, question).attempts - len(found))


def _against(view: RunView, questions: Sequence[Question]) -> list[Against]:
    """Every middlebox against none, and against each that is no variant."""
    times = [{label(via): _times(view, via, one) for via in view.run.vias} for one in questions]
    bases = [via for via in view.run.vias if not via or not view.run.middleboxes[via].variant_of]
    bases.sort(key=lambda via: bool(via and (view.run.middleboxes[via].encrypts or view.run.middleboxes[via].splits)))
    found = []
    for via in bases if len(view.run.vias) > 1 else ():
        answers = versus(times, label(via))
        rows = [(one, answer) for one, answer in zip(questions, answers, strict=True) if answer]
        if rows:
            found.append(Against(label(via), [label(other) for other in view.run.vias if other != via], rows))
    return found


def _row(view: RunView, question: Question, best: Winner | None) -> Row:
    cells = []
    for via in view.run.vias:
        results = _results(view, via, question)
        cells.append(
            (
                label(via),
                ViaCell(
                    cell=_cell(view, via, question),
                    summary=summarise(_values(view, via, question)),
                    attempts=_attempts(view, via, question),
                    unsupported=any(one.outcome is Outcome.UNSUPPORTED for one in results),
                    won=best is not None and best.name == label(via),
                ),
            )
        )
    return Row(question=question, cells=cells, winner=best)


def _page_times(view: RunView, row: Row) -> tuple[Row, list[tuple[str, list[Summary | None]]]]:
    """Medians of response start, first contentful paint and load event, by middlebox, of the loads that count."""
    found = []
    for via in view.run.vias:
        counting = (one for one in _results(view, via, row.question) if one.outcome is Outcome.SUCCEEDED)
        loads = [one.page for one in counting if one.page]
        times = (
            [load.response_start for load in loads],
            [load.first_contentful_paint for load in loads],
            [load.load for load in loads],
        )
        found.append((label(via), [summarise(values) for values in times]))
    return row, found


def _links(questions: Iterable[Question]) -> list[tuple[str, list[tuple[str, list[str]]], str]]:
    records = {one.case.link.name: one.case for one in questions}
    return [(name, words.links(case), case.link.note) for name, case in records.items()]


def _by_size(view: RunView, questions: Iterable[Question]) -> list[tuple[str, Markup]]:
    """Median throughput by size of the file with its spread, a line per middlebox; where more than one size ran."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for one in questions:
        if not one.case.page:
            groups[f"{one.title} over {one.case.link.name}"].append(one)
    return [
        (name, _lines(view, chosen, lambda one: sum(one.case.file_sizes) / 1e6, "size of the file (MB)", name))
        for name, chosen in groups.items()
        if len({one.case.file_sizes for one in chosen}) > 1
    ]


def _by_loss(view: RunView, questions: Iterable[Question]) -> list[tuple[str, Markup]]:
    """The same by loss on the satellite link, in percent."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for one in questions:
        groups[f"{one.label.partition('@')[0]} over {one.case.link.base_name}"].append(one)
    return [
        (name, _lines(view, chosen, lambda one: 100 * one.case.forward.loss, "loss, both ways (%)", name))
        for name, chosen in groups.items()
        if len({one.case.forward.loss for one in chosen}) > 1
    ]


def _by_parameter(view: RunView, questions: Sequence[Question]) -> list[tuple[str, Markup]]:
    """Medians by a parameter in which alone variants of a middlebox differ, such as an ACK ratio; a line a question."""
    boxes = view.run.middleboxes.values()
    found = []
    for sweep in sweeps((one.name, one.variant_of, one.parameters) for one in boxes if one.variant_of):
        axis = sweep.parameter + (f" ({sweep.unit})" if sweep.unit else "")
        common = "".join(f", {name}={value}" for name, value in sweep.common)
        scale = Scale.of([value for value, _ in sweep.settings], axis)
        for page in (False, True):
            series = {
                f"{one.label} over {one.case.link.name}": [
                    _mark(view, via, one, scale.at(value)) for value, via in sweep.settings
                ]
                for one in questions
                if one.case.page is page
            }
            title = f"{sweep.base} by {sweep.parameter}{common}"
            drawn = [(name, [one for one in marks if one]) for name, marks in series.items() if any(marks)]
            if drawn:
                found.append((title, lines(drawn, scale.axis, Axis(label=_unit(page)), title=title)))
    return found


def _unit(page: bool) -> str:
    return "page load time (s)" if page else "throughput (Mbit/s)"


def _mark(view: RunView, via: str, question: Question, at: float) -> Mark | None:
    """The median of all attempts: page load times in s, throughputs of downloads in Mbit/s. None where most page loads
    failed; an interval, or below 6 values the range, where all succeeded."""
    values, attempts, case = _times(view, via, question), _attempts(view, via, question), question.case
    if not case.page:  # an attempt that failed has no throughput: 8 · size / infinity
        values = [8 * sum(case.file_sizes) / 1e6 / value for value in values]
    if not values or not isfinite(median(values)):
        return None
    summary = summarise(values) if attempts.successes == attempts.attempts else None
    spread = summary.spread if summary is not None else None
    low, high = spread[1:] if spread is not None else (None, None)
    told = f"{label(via)}: median {median(values):.3g}, completed {attempts}" + (f", {spread[0]}" if spread else "")
    return Mark(x=at, y=median(values), low=low, high=high, title=told)


def _lines(view: RunView, questions: list[Question], of: Any, axis: str, title: str) -> Markup:
    scale = Scale.of([of(one) for one in questions], axis)
    series = []
    for via in view.run.vias:
        marks = [_mark(view, via, one, scale.at(of(one))) for one in questions]
        if any(marks):
            series.append((label(via), [one for one in marks if one]))
    return lines(series, scale.axis, Axis(label=_unit(questions[0].case.page)), title=title)


def _ecdf(view: RunView, questions: Iterable[Question]) -> list[tuple[str, Markup]]:
    """Share of page loads that were done by a time, of all that were tried: a curve that ends below 1 lost some."""
    found = []
    for one in questions:
        if not one.case.page:
            continue
        loads = {label(via): _times(view, via, one) for via in view.run.vias}
        last = max((time for times in loads.values() for time in times if isfinite(time)), default=0.0)
        series = [(name, _steps(times, last)) for name, times in loads.items() if times]
        title = one.case.name
        chart = curves(series, Axis(label="page load time (s)"), Axis(label="share of loads", end=1.0), title=title)
        if chart:
            found.append((title, chart))
    return found


def _steps(times: Sequence[float], last: float) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for done, time in enumerate(sorted(filter(isfinite, times)), start=1):
        points += [(time, points[-1][1]), (time, done / len(times))]
    return [*points, (last, points[-1][1])]


def seen(view: RunView) -> dict[str, tuple[int, int]]:
    """By middlebox: how much of what was looked for is visible in some job, and of how much."""
    looked: dict[str, dict[str, bool]] = {}
    for job, result in view.results.items():
        for sight in result.crossing.sights if _shows(result) and result.crossing is not None else ():
            known = looked.setdefault(job.via, {})
            known[sight.what] = known.get(sight.what, False) or sight.visible
    order = (via for via in view.run.vias if via in looked)
    return {label(via): (sum(looked[via].values()), len(looked[via])) for via in order}


def _shows(result: Result) -> bool:
    """Whether it says anything of the middlebox: in a disturbed job the traffic may have gone beside it."""
    return result.outcome is not Outcome.ERROR


def _sight_names(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(one.what for result in results if result.crossing for one in result.crossing.sights))


def _sights(view: RunView) -> list[tuple[str, str, dict[str, Sight], int]]:
    """By middlebox, and whether the ends encrypt: of each thing the sight that shows most, over all jobs."""
    found: dict[tuple[str, str], dict[str, Sight]] = {}
    jobs: dict[tuple[str, str], int] = defaultdict(int)
    for job, result in view.results.items():
        case = view.run.cases.get(job.case_link)
        if result.crossing is None or case is None or not _shows(result):
            continue
        key = job.via, "TLS end to end" if case.encrypted else "in the clear"
        jobs[key] += 1
        for sight in result.crossing.sights:
            known = found.setdefault(key, {}).get(sight.what)
            if known is None or (sight.visible, sight.times) > (known.visible, known.times):
                found[key][sight.what] = sight
    order = view.run.vias
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return [(label(via), how, found[via, how], jobs[via, how]) for via, how in keys]
