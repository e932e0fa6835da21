"""The page of middleboxes: the leading one over each link, throughput by size and loss, page loads, what can be
read."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from statistics import median
from typing import Any

from markupsafe import Markup

from runner.compare.rankings import Versus, Winner, versus, winners
from runner.compare.report import pairs_of, times_of
from runner.compare.stats import FALSE_DISCOVERY_RATE, Attempts, Summary, least_n, summarise
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, ClientKind
from runner.model.stack import NO_VIA, Sight
from runner.site import headlines
from runner.site.cells import NARROW, Cell, amount, digits, links, listed, run_sentence
from runner.site.charts import Axis, Mark, curves, lines
from runner.site.pages import Page, Pages
from runner.site.view import RunView

# Finds middlebox variants that differ in one parameter, and the axis that shows its values.

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")
_FEWEST = 3  # least number of settings for a curve
_DECADES = 2.0  # from this span on, the axis is logarithmic: a linear axis would show most values in one place


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Variants of one middlebox that differ only in `parameter`. `common`: the parameters that all variants share.

    `settings`: the values of `parameter` in `unit`, each with the name of its variant, in increasing order.
    """

    base: str
    parameter: str
    unit: str
    common: tuple[tuple[str, str], ...]
    settings: tuple[tuple[float, str], ...]


def sweeps(variants: Iterable[tuple[str, str, Mapping[str, str]]]) -> list[Sweep]:
    """Every sweep among `variants`, which are (name, base middlebox, parameters)."""
    curves: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], list[tuple[float, str]]] = defaultdict(list)
    for name, base, parameters in variants:
        for parameter, setting in parameters.items():
            number = _NUMBER.fullmatch(setting)
            if number:
                common = tuple((other, value) for other, value in parameters.items() if other != parameter)
                curves[base, parameter, number[2], common].append((float(number[1]), name))
    return [
        Sweep(base=base, parameter=parameter, unit=unit, common=common, settings=tuple(sorted(settings)))
        for (base, parameter, unit, common), settings in curves.items()
        if len(settings) >= _FEWEST
    ]


@dataclass(frozen=True)
class Scale:
    """Maps values to places on an axis. The place is the value itself or, when the values span at least two decades,
    its logarithm. On a logarithmic axis, zero is at the left end."""

    label: str
    first: int = 0  # exponents of the lowest and the highest decade
    last: int = 0
    zero: bool = False
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Sequence[float], label: str) -> "Scale":
        """The scale for these values: linear or logarithmic."""
        positive = [value for value in values if value > 0]
        if not positive or log10(max(positive) / min(positive)) < _DECADES:
            return cls(label)
        first, last = floor(log10(min(positive)) + 1e-9), ceil(log10(max(positive)) - 1e-9)
        return cls(label, first=first, last=last, zero=len(positive) < len(values), logarithmic=True)

    def at(self, value: float) -> float:
        """The place of `value` on the axis."""
        if not self.logarithmic:
            return value
        return log10(value) if value > 0 else self.first - 1

    @property
    def axis(self) -> Axis:
        """The axis with its ticks."""
        if not self.logarithmic:
            return Axis(label=self.label)
        decades = range(self.first, self.last + 1)
        zero = [(float(self.first - 1), "0")] if self.zero else []
        return Axis(label=self.label, named=[*zero, *((float(decade), f"{10.0**decade:g}") for decade in decades)])


# The page of middleboxes: the leading middlebox over each link, throughput by file size and loss, page loads, and the
# data that an eavesdropper can see.

NAV = (1, "Middleboxes", "vias.html")
NEEDS = "vias"


@dataclass(frozen=True)
class ViaCell:
    """One middlebox in one row. `summary`: delivery times or page load times, in seconds."""

    cell: Cell | None
    summary: Summary | None
    attempts: Attempts
    unsupported: bool
    won: bool


@dataclass(frozen=True)
class Question:
    """One pair in one case over its link. The page compares the middleboxes separately for each question."""

    server: str
    client: str
    case: CaseRecord

    @property
    def label(self) -> str:
        """The case's abbreviation. When the pair consists of stacks under test, the label begins with the pair."""
        name = self.case.abbreviation
        return f"{self.client} → {self.server}, {name}" if self.case.client is ClientKind.STACK else name

    @property
    def title(self) -> str:
        """The case's title, which has no file size and no link. It begins with the pair when `label` does."""
        name = self.case.title
        return f"{self.client} → {self.server}, {name}" if self.case.client is ClientKind.STACK else name


@dataclass(frozen=True)
class ViaRow:
    """One row of the table: a question, and its cell for each middlebox."""

    question: Question
    cells: list[tuple[str, ViaCell]]
    winner: Winner | None

    @property
    def case(self) -> CaseRecord:
        return self.question.case


@dataclass(frozen=True)
class Against:
    """Compares the times of every other middlebox with the times of the middlebox `reference`. `rows`: for each
    question, the result by middlebox."""

    reference: str
    others: list[str]
    rows: list[tuple[Question, dict[str, Versus]]]


def pages(view: RunView) -> Pages:
    """One page."""
    yield Page("vias.html", "vias.html", _context(view))


def label(via: str) -> str:
    """The middlebox's name; `none` when the traffic crosses no middlebox."""
    return via or NO_VIA


def rows_of(view: RunView) -> list[ViaRow]:
    """The rows of all questions of the run."""
    questions = _questions(view)
    values = [({label(via): _times(view, via, question) for via in view.run.vias}, True) for question in questions]
    best = winners(values)
    return [_row(view, question, winner) for question, winner in zip(questions, best, strict=True)]


def _questions(view: RunView) -> list[Question]:
    places = {(job.server, job.client, job.case_link) for job in (*view.run.order, *view.results)}
    cases = view.run.cases
    questions = [Question(server, client, cases[name]) for server, client, name in places if name in cases]
    return sorted(
        questions,
        key=lambda question: (
            question.title,
            question.case.link.base_name,
            question.case.forward.loss,
            question.case.file_sizes,
        ),
    )


def _context(view: RunView) -> dict[str, Any]:
    questions, rows = _questions(view), rows_of(view)
    return {
        "vias": [label(via) for via in view.run.vias],
        "middleboxes": [view.run.middleboxes[name] for name in view.run.vias if name],
        "downloads": [row for row in rows if not row.case.page],
        "page_loads": [row for row in rows if row.case.page],
        "page_times": [_page_times(view, row) for row in rows if row.case.page],
        "warm": any(question.case.warm for question in questions),
        "against": _against(view, questions),
        "links": _links(questions),
        "by_size": _by_size(view, questions),
        "ecdf": _ecdf(view, questions),
        "by_loss": _by_loss(view, questions),
        "by_parameter": _by_parameter(view, questions),
        "sights": _sights(view),
        "visibility": visibility(view),
        "sight_names": _sight_names(view.results.values()),
    }


def _cell(view: RunView, via: str, question: Question) -> Cell | None:
    client = f"{question.client}+{via}" if via else question.client
    return view.table.get((question.server, client, question.case.name))


def _results(view: RunView, via: str, question: Question) -> Sequence[Result]:
    cell = _cell(view, via, question)
    return () if cell is None else cell.results


def _attempts(view: RunView, via: str, question: Question) -> Attempts:
    """Successes and attempts. Errors of the harness are not counted, because they are not the middlebox's fault."""
    cell = _cell(view, via, question)
    return headlines.attempts([] if cell is None else [cell])


def _values(view: RunView, via: str, question: Question) -> list[float]:
    """The time of each successful download or page load, in seconds."""
    samples = (result.sample for result in _results(view, via, question) if result.outcome is Outcome.SUCCEEDED)
    return [sample.ttlb for sample in samples if sample is not None and sample.ttlb is not None]


def _times(view: RunView, via: str, question: Question) -> list[float]:
    """The time of every attempt, in seconds. The time of a failed attempt is infinite, so that failures never make a
    middlebox look faster."""
    return times_of(_results(view, via, question))


def _against(view: RunView, questions: Sequence[Question]) -> list[Against]:
    """One comparison for each reference. The references are `none` and each middlebox that is not a variant. References
    that don't encrypt packets and don't split TCP connections come first."""
    times = [{label(via): _times(view, via, question) for via in view.run.vias} for question in questions]
    bases = [via for via in view.run.vias if not via or not view.run.middleboxes[via].variant_of]
    bases.sort(key=lambda via: bool(via and (view.run.middleboxes[via].encrypts or view.run.middleboxes[via].splits)))
    table_rows = []
    for via in bases if len(view.run.vias) > 1 else ():
        pairs = [
            {
                label(other): pairs_of(_results(view, other, question), _results(view, via, question))
                for other in view.run.vias
            }
            for question in questions
        ]
        answers = versus(times, label(via), pairs)
        rows = [(question, answer) for question, answer in zip(questions, answers, strict=True) if answer]
        if rows:
            table_rows.append(Against(label(via), [label(other) for other in view.run.vias if other != via], rows))
    return table_rows


def _row(view: RunView, question: Question, best: Winner | None) -> ViaRow:
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
                    unsupported=any(result.outcome is Outcome.UNSUPPORTED for result in results),
                    won=best is not None and best.name == label(via),
                ),
            )
        )
    return ViaRow(question=question, cells=cells, winner=best)


def _page_times(view: RunView, row: ViaRow) -> tuple[ViaRow, list[tuple[str, list[Summary | None]]]]:
    """The row, and for each middlebox three summaries over the successful page loads: response start, first contentful
    paint, load event."""
    charts = []
    for via in view.run.vias:
        succeeded = (result for result in _results(view, via, row.question) if result.outcome is Outcome.SUCCEEDED)
        loads = [result.page for result in succeeded if result.page]
        times = (
            [load.response_start for load in loads],
            [load.first_contentful_paint for load in loads],
            [load.load for load in loads],
        )
        charts.append((label(via), [summarise(values) for values in times]))
    return row, charts


def _links(questions: Iterable[Question]) -> list[tuple[str, list[tuple[str, list[str]]], str]]:
    records = {question.case.link.name: question.case for question in questions}
    return [(name, links(case), case.link.note) for name, case in records.items()]


def _by_size(view: RunView, questions: Iterable[Question]) -> list[tuple[str, Markup]]:
    """Charts of the median throughput by file size, with one line for each middlebox. There is one chart for each pair
    and case over a link that ran with more than one file size."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        if not question.case.page:
            groups[f"{question.title} over {question.case.link.name}"].append(question)
    return [
        (
            name,
            _lines(view, chosen, lambda question: sum(question.case.file_sizes) / 1e6, "size of the file (MB)", name),
        )
        for name, chosen in groups.items()
        if len({question.case.file_sizes for question in chosen}) > 1
    ]


def _by_loss(view: RunView, questions: Iterable[Question]) -> list[tuple[str, Markup]]:
    """Charts of the medians by loss on the satellite link in per cent, with one line for each middlebox. There is one
    chart for each pair and case that ran with more than one loss."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[f"{question.label.partition('@')[0]} over {question.case.link.base_name}"].append(question)
    return [
        (name, _lines(view, chosen, lambda question: 100 * question.case.forward.loss, "loss, both ways (%)", name))
        for name, chosen in groups.items()
        if len({question.case.forward.loss for question in chosen}) > 1
    ]


def _by_parameter(view: RunView, questions: Sequence[Question]) -> list[tuple[str, Markup]]:
    """Charts of medians by a parameter of a middlebox, such as an ACK ratio, with one line for each question. The
    variants in a chart differ only in that parameter."""
    boxes = view.run.middleboxes.values()
    rows = []
    for sweep in sweeps(
        (question.name, question.variant_of, question.parameters) for question in boxes if question.variant_of
    ):
        axis = sweep.parameter + (f" ({sweep.unit})" if sweep.unit else "")
        common = "".join(f", {name}={value}" for name, value in sweep.common)
        scale = Scale.of([value for value, _ in sweep.settings], axis)
        for page in (False, True):
            series = {
                f"{question.label} over {question.case.link.name}": [
                    _mark(view, via, question, scale.at(value)) for value, via in sweep.settings
                ]
                for question in questions
                if question.case.page is page
            }
            title = f"{sweep.base} by {sweep.parameter}{common}"
            drawn = [
                (name, [question for question in marks if question]) for name, marks in series.items() if any(marks)
            ]
            if drawn:
                rows.append((title, lines(drawn, scale.axis, Axis(label=_unit(page)), title=title)))
    return rows


def _unit(page: bool) -> str:
    return "page load time (s)" if page else "throughput (Mbit/s)"


def _mark(view: RunView, via: str, question: Question, at: float) -> Mark | None:
    """A mark at the median of all attempts: page load time in s, or throughput of a download in Mbit/s. None when there
    is no attempt, or when most page loads failed.

    When all attempts succeeded, the mark also has the 95 % interval, or the range for 2 to 5 values.
    """
    values, attempts, case = _times(view, via, question), _attempts(view, via, question), question.case
    if not case.page:  # the throughput of a failed attempt is 8 · size / infinity = 0
        values = [8 * sum(case.file_sizes) / 1e6 / value for value in values]
    if not values or not isfinite(median(values)):
        return None
    summary = summarise(values) if attempts.successes == attempts.attempts else None
    spread = summary.spread if summary is not None else None
    low, high = spread[1:] if spread is not None else (None, None)
    title = f"{label(via)}: median {median(values):.3g}, completed {attempts}" + (f", {spread[0]}" if spread else "")
    return Mark(x=at, y=median(values), low=low, high=high, title=title)


def _lines(
    view: RunView, questions: list[Question], value: Callable[[Question], float], axis: str, title: str
) -> Markup:
    scale = Scale.of([value(question) for question in questions], axis)
    series = []
    for via in view.run.vias:
        marks = [_mark(view, via, question, scale.at(value(question))) for question in questions]
        if any(marks):
            series.append((label(via), [mark for mark in marks if mark]))
    return lines(series, scale.axis, Axis(label=_unit(questions[0].case.page)), title=title)


def _ecdf(view: RunView, questions: Iterable[Question]) -> list[tuple[str, Markup]]:
    """Charts with one curve for each middlebox: the share of its attempted page loads that had ended successfully, over
    time. When page loads failed, the curve ends below 1."""
    marks = []
    for question in questions:
        if not question.case.page:
            continue
        loads = {label(via): _times(view, via, question) for via in view.run.vias}
        last = max((time for times in loads.values() for time in times if isfinite(time)), default=0.0)
        series = [(name, _steps(times, last)) for name, times in loads.items() if times]
        title = question.case.name
        chart = curves(series, Axis(label="page load time (s)"), Axis(label="share of loads", end=1.0), title=title)
        if chart:
            marks.append((title, chart))
    return marks


def _steps(times: Sequence[float], last: float) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for done, time in enumerate(sorted(filter(isfinite, times)), start=1):
        points += [(time, points[-1][1]), (time, done / len(times))]
    return [*points, (last, points[-1][1])]


def visibility(view: RunView) -> dict[str, tuple[int, int]]:
    """For each middlebox: the number of kinds of private data that were visible in at least one job, and the number of
    kinds that were searched for."""
    searched: dict[str, dict[str, bool]] = {}
    for job, result in view.results.items():
        for sight in result.crossing.sights if _shows(result) and result.crossing is not None else ():
            known = searched.setdefault(job.via, {})
            known[sight.what] = known.get(sight.what, False) or sight.visible
    order = (via for via in view.run.vias if via in searched)
    return {label(via): (sum(searched[via].values()), len(searched[via])) for via in order}


def _shows(result: Result) -> bool:
    """True when the result counts for the middlebox. When the harness failed, the traffic may have bypassed the
    middlebox."""
    return result.outcome is not Outcome.ERROR


def _sight_names(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(sight.what for result in results if result.crossing for sight in result.crossing.sights))


def _sights(view: RunView) -> list[tuple[str, str, dict[str, Sight], int]]:
    """For each middlebox, with and without TLS between the endpoints: for each kind of private data the sight with the
    most packets, and the number of jobs."""
    sights: dict[tuple[str, str], dict[str, Sight]] = {}
    jobs: dict[tuple[str, str], int] = defaultdict(int)
    for job, result in view.results.items():
        case = view.run.cases.get(job.case_link)
        if result.crossing is None or case is None or not _shows(result):
            continue
        key = job.via, "TLS end to end" if case.encrypted else "in the clear"
        jobs[key] += 1
        for sight in result.crossing.sights:
            known = sights.setdefault(key, {}).get(sight.what)
            if known is None or (sight.visible, sight.times) > (known.visible, known.times):
                sights[key][sight.what] = sight
    order = view.run.vias
    keys = sorted(sights, key=lambda key: (order.index(key[0]), key[1]))
    return [(label(via), how, sights[via, how], jobs[via, how]) for via, how in keys]


# Sentences about middleboxes: the leading middlebox over each link, its margin, and the data that an eavesdropper
# sees.

_MOST_NAMED = 3


def sentences(view: RunView, rows: Sequence[ViaRow]) -> list[str]:
    """The sentences of a run that tests only middleboxes: plan and outcomes, the leading middleboxes, the data that an
    eavesdropper sees, failures."""
    return [run_sentence(view.run, view.results.values()), *findings(rows, visibility(view)), *_wrong(view)]


def findings(rows: Sequence[ViaRow], looked: dict[str, tuple[int, int]]) -> list[str]:
    """Sentences about the leading middlebox over each link, its margin, and the data that an eavesdropper sees. Empty
    when the run has no middlebox."""
    return [*_leaders(rows), *_clearest(rows), *_visible(looked)]


def _decided(rows: Sequence[ViaRow]) -> list[tuple[ViaRow, Winner]]:
    """The rows in which at least two middleboxes were measured."""
    return [(row, row.winner) for row in rows if row.winner is not None and row.winner.second]


def _leaders(rows: Sequence[ViaRow]) -> Iterator[str]:
    """A sentence about the leading middleboxes over all links."""
    decided = _decided(rows)
    if not decided:
        return
    parts = []
    for link in dict.fromkeys(row.case.link.base_name for row, _ in decided):
        ahead = Counter(best.name for row, best in decided if row.case.link.base_name == link)
        named = [f"{via} in {times}" for via, times in ahead.most_common(_MOST_NAMED)]
        parts.append(f"over {link}, {listed(named)} of {amount(ahead.total(), 'row')}")
    sure = sum(best.certain for _, best in decided)
    able = sum(best.q is not None for _, best in decided)
    chance = (
        f"{sure} of {amount(len(decided), 'lead')} {'is' if sure == 1 else 'are'} more than chance"
        if able
        else f"{least_n(FALSE_DISCOVERY_RATE)} iterations of each middlebox would show whether this is more than chance"
    )
    yield f"Middleboxes with the shortest median time: {'; '.join(parts)}; {chance}."


def _clearest(rows: Sequence[ViaRow]) -> Iterator[str]:
    """A sentence about the greatest margin that is statistically significant."""
    sure = [(row, best) for row, best in _decided(rows) if best.certain and best.margin is not None]
    if not sure:
        return
    row, best = max(sure, key=lambda pair: pair[1].margin or 0.0)
    margin = best.margin or 0.0
    span = (
        ""
        if best.low is None or best.high is None
        else f", 95 % interval {_percent(best.low)} to {_percent(best.high)}"
    )
    yield (
        f"The greatest margin that is more than chance: {best.name} in {row.case.name}, {value(best)}, "
        f"{_percent(margin)}{NARROW}% less time than {best.second}{span}."
    )


def value(best: Winner) -> str:
    """The winner's median with its unit."""
    return f"{digits(best.value)}{NARROW}s"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}"


def _visible(looked: dict[str, tuple[int, int]]) -> Iterator[str]:
    hidden = [via for via, (shown, _) in looked.items() if not shown]
    parts = [f"none with {listed(hidden)}"] if hidden else []
    parts += [f"{visible} of {of} with {via}" for via, (visible, of) in looked.items() if visible]
    if parts:
        yield f"Kinds of private data that an eavesdropper on the satellite link sees: {listed(parts)}."


def _wrong(view: RunView) -> Iterator[str]:
    failed = [result for result in view.results.values() if result.outcome is Outcome.FAILED]
    if not failed:
        return
    codes = Counter(result.findings[0].code if result.findings else "unknown" for result in failed)
    named = [f"{code} ({jobs:,})" for code, jobs in codes.most_common(_MOST_NAMED)]
    vias = Counter(label(result.via) for result in failed)
    via, times = vias.most_common(1)[0]
    route = f"; {times} of them via {via}" if len(vias) > 1 else f"; all via {via}"
    yield f"{amount(len(failed), 'job')} failed, by cause: {', '.join(named)}{route}."
