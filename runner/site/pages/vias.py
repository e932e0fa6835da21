"""The page of middleboxes: the leading one over each link, throughput by size and loss, page loads, what can be
read."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, isfinite, log10
from statistics import median
from typing import Any

from markupsafe import Markup

from runner.compare.rankings import Versus, Winner, versus, winners
from runner.compare.report import pairs_of, times_of
from runner.compare.stats import FALSE_DISCOVERY_RATE, Attempts, Summary, least_n, summarise
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, ClientKind
from runner.model.stack import NO_VIA, Middlebox, Sight
from runner.site import headlines
from runner.site.charts import Axis, Mark, curves, lines
from runner.site.pages import Page, Pages
from runner.site.view import Cell, RunView, amount, listed, run_sentence
from runner.units import NARROW, format_digits

# Finds middlebox variants that differ in one parameter, and the axis that shows its values.

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")
_FEWEST = 3  # least number of settings for a curve
_DECADES = 2.0  # from this span on, the axis is logarithmic: a linear axis would show most values in one place


def sweeps(variants: Iterable[Middlebox]) -> list[tuple[str, str, list[tuple[float, str]]]]:
    """The variants of each middlebox that differ only in one parameter: a title with the parameters that they share,
    the parameter with its unit, and its values in increasing order, each with the name of its variant."""
    curves: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for box in variants:
        for parameter, setting in box.parameters.items():
            if number := _NUMBER.fullmatch(setting):
                others = (f", {name}={value}" for name, value in box.parameters.items() if name != parameter)
                title = f"{box.variant_of} by {parameter}{''.join(others)}"
                unit = f" ({number[2]})" if number[2] else ""
                curves[title, f"{parameter}{unit}"].append((float(number[1]), box.name))
    return [(title, axis, sorted(chosen)) for (title, axis), chosen in curves.items() if len(chosen) >= _FEWEST]


def scaled(values: Sequence[float], label: str) -> tuple[Axis, Callable[[float], float]]:
    """An axis for these values, and the place of a value on it: the value itself or, when the values span at least two
    decades, its logarithm. On a logarithmic axis, zero is at the left end."""
    positive = [value for value in values if value > 0]
    if not positive or log10(max(positive) / min(positive)) < _DECADES:
        return Axis(label=label), lambda value: value
    first, last = floor(log10(min(positive)) + 1e-9), ceil(log10(max(positive)) - 1e-9)
    zero = [(first - 1.0, "0")] if len(positive) < len(values) else []
    decades = [(float(decade), f"{10.0**decade:g}") for decade in range(first, last + 1)]
    axis = Axis(label=label, named=[*zero, *decades])
    return axis, lambda value: log10(value) if value > 0 else first - 1.0


NAV = (1, "Middleboxes", "vias.html")
NEEDS = "vias"


@dataclass(frozen=True)
class ViaRow:
    """One pair in one case over its link: a row of the tables, whose middleboxes are compared with each other.

    `cells`: its cell by middlebox, in the order of the run; `none` is the cell without a middlebox. Errors of the
    harness count nowhere, because they are not the middlebox's fault.
    """

    server: str
    client: str
    case: CaseRecord
    cells: Mapping[str, Cell | None]
    winner: Winner | None = None

    @property
    def label(self) -> str:
        """The case's abbreviation. When the pair consists of stacks under test, the label begins with the pair."""
        return self._with_pair(self.case.abbreviation)

    @property
    def title(self) -> str:
        """The case's title, which has no file size and no link. It begins with the pair when `label` does."""
        return self._with_pair(self.case.title)

    def _with_pair(self, name: str) -> str:
        return f"{self.client} → {self.server}, {name}" if self.case.client is ClientKind.STACK else name

    def results(self, via: str) -> Sequence[Result]:
        cell = self.cells[via]
        return () if cell is None else cell.results

    def succeeded(self, via: str) -> list[Result]:
        """The results of the downloads or page loads through `via` that succeeded."""
        return [result for result in self.results(via) if result.outcome is Outcome.SUCCEEDED]

    def attempts(self, via: str) -> Attempts:
        return headlines.attempts(filter(None, [self.cells[via]]))

    def summary(self, via: str) -> Summary | None:
        """The times of the downloads or page loads through `via` that succeeded, in seconds."""
        return summarise(result.sample.ttlb for result in self.succeeded(via) if result.sample is not None)

    @cached_property
    def times(self) -> dict[str, list[float]]:
        """The time of every attempt, in seconds, by middlebox. The time of a failed attempt is infinite, so that
        failures never make a middlebox look faster."""
        return {via: times_of(self.results(via)) for via in self.cells}


def pages(view: RunView) -> Pages:
    yield Page("vias.html", "vias.html", _context(view))


def label(via: str) -> str:
    """The middlebox's name; `none` when the traffic crosses no middlebox."""
    return via or NO_VIA


def rows_of(view: RunView) -> list[ViaRow]:
    """The rows of the run, in the order of the page."""
    rows = []
    for server, client, name in {(job.server, job.client, job.case_link) for job in (*view.run.order, *view.results())}:
        clients = {label(via): f"{client}+{via}" if via else client for via in view.run.vias}
        cells = {via: view.table.get((server, through, name)) for via, through in clients.items()}
        if name in view.run.cases:
            rows.append(ViaRow(server, client, view.run.cases[name], cells))
    rows.sort(key=_place)
    best = winners([row.times for row in rows])
    return [replace(row, winner=winner) for row, winner in zip(rows, best, strict=True)]


def _place(row: ViaRow) -> tuple[object, ...]:
    """The key by which rows are ordered."""
    case = row.case
    return row.title, case.link.base_name, case.forward.loss, case.file_sizes, case.name, row.server, row.client


def _context(view: RunView) -> dict[str, Any]:
    rows = rows_of(view)
    return {
        "vias": [label(via) for via in view.run.vias],
        "middleboxes": [view.run.middleboxes[name] for name in view.run.vias if name],
        "downloads": [row for row in rows if not row.case.page],
        "page_loads": [row for row in rows if row.case.page],
        "page_times": [(row, {via: _page_times(row, via) for via in row.cells}) for row in rows if row.case.page],
        "warm": any(row.case.warm for row in rows),
        "against": _against(view, rows),
        "links": {row.case.link.name: row.case.link for row in rows}.values(),
        "by_size": _by(
            (row for row in rows if not row.case.page),
            lambda row: f"{row.title} over {row.case.link.name}",
            lambda row: sum(row.case.file_sizes) / 1e6,
            "size of the file (MB)",
        ),
        "ecdf": list(_ecdf(rows)),
        "by_loss": _by(
            rows,
            lambda row: f"{row.label.partition('@')[0]} over {row.case.link.base_name}",
            lambda row: 100 * row.case.forward.loss,
            "loss, both ways (%)",
        ),
        "by_parameter": _by_parameter(view, rows),
        "sights": _sights(view),
        "visibility": visibility(view),
        "sight_names": _sight_names(view.results().values()),
    }


def _against(view: RunView, rows: Sequence[ViaRow]) -> list[dict[str, Any]]:
    """For each reference: the other middleboxes, and by row their times compared with its times. The references are
    `none` and each middlebox that is not a variant. References that don't encrypt packets and don't split TCP
    connections come first."""
    boxes = view.run.middleboxes
    bases = [via for via in view.run.vias if not via or not boxes[via].variant_of]
    bases.sort(key=lambda via: bool(via and (boxes[via].encrypts or boxes[via].splits)))
    comparisons = []
    for base in map(label, bases if len(view.run.vias) > 1 else ()):
        pairs = [{via: pairs_of(row.results(via), row.results(base)) for via in row.cells} for row in rows]
        answers = versus([row.times for row in rows], base, pairs)
        if answered := [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer]:
            others = [via for via in map(label, view.run.vias) if via != base]
            comparisons.append({"reference": base, "others": others, "rows": answered})
    return comparisons


def _page_times(row: ViaRow, via: str) -> list[Summary | None]:
    """Summaries over the successful page loads: response start, first contentful paint, load event."""
    loads = [result.page for result in row.succeeded(via) if result.page]
    return [
        summarise(getattr(load, name) for load in loads)
        for name in ("response_start", "first_contentful_paint", "load")
    ]


def _by(
    rows: Iterable[ViaRow], name_of: Callable[[ViaRow], str], value: Callable[[ViaRow], float], axis: str
) -> list[tuple[str, Markup]]:
    """Charts of the medians by `value`, with one line for each middlebox. There is one chart for each name whose rows
    have more than one value."""
    groups: dict[str, list[ViaRow]] = defaultdict(list)
    for row in rows:
        groups[name_of(row)].append(row)
    several = {name: chosen for name, chosen in groups.items() if len(set(map(value, chosen))) > 1}
    return [(name, _lines(chosen, value, axis, name)) for name, chosen in several.items()]


def _by_parameter(view: RunView, rows: Sequence[ViaRow]) -> list[tuple[str, Markup]]:
    """Charts of medians by a parameter of a middlebox, such as an ACK ratio, with one line for each row. The variants
    in a chart differ only in that parameter."""
    boxes = view.run.middleboxes.values()
    charts = []
    for title, axis, settings in sweeps(box for box in boxes if box.variant_of):
        across, place = scaled([value for value, _ in settings], axis)
        for page in (False, True):
            drawn = []
            for row in (row for row in rows if row.case.page is page):
                marks = [_mark(row, via, place(value)) for value, via in settings]
                drawn.append((f"{row.label} over {row.case.link.name}", [mark for mark in marks if mark]))
            if drawn := [(name, marks) for name, marks in drawn if marks]:
                charts.append((title, lines(drawn, across, Axis(label=_unit(page)), title=title)))
    return charts


def _unit(page: bool) -> str:
    return "page load time (s)" if page else "throughput (Mbit/s)"


def _mark(row: ViaRow, via: str, at: float) -> Mark | None:
    """A mark at the median of all attempts: page load time in s, or throughput of a download in Mbit/s. None when there
    is no attempt, or when most page loads failed.

    When all attempts succeeded, the mark also has the 95 % interval, or the range for 2 to 5 values.
    """
    values, attempts = row.times[via], row.attempts(via)
    if not row.case.page:  # the throughput of a failed attempt is 8 · size / infinity = 0
        values = [8 * sum(row.case.file_sizes) / 1e6 / value for value in values]
    if not values or not isfinite(median(values)):
        return None
    summary = summarise(values) if attempts.successes == attempts.attempts else None
    spread = summary.spread if summary is not None else None
    low, high = spread[1:] if spread is not None else (None, None)
    title = f"{via}: median {median(values):.3g}, completed {attempts}" + (f", {spread[0]}" if spread else "")
    return Mark(x=at, y=median(values), low=low, high=high, title=title)


def _lines(rows: Sequence[ViaRow], value: Callable[[ViaRow], float], axis: str, title: str) -> Markup:
    """A line for each middlebox over `value`."""
    across, place = scaled([value(row) for row in rows], axis)
    marks = {via: [_mark(row, via, place(value(row))) for row in rows] for via in rows[0].cells}
    series = [(via, [mark for mark in known if mark]) for via, known in marks.items() if any(known)]
    return lines(series, across, Axis(label=_unit(rows[0].case.page)), title=title)


def _ecdf(rows: Iterable[ViaRow]) -> Iterator[tuple[str, Markup]]:
    """Charts with one curve for each middlebox: the share of its attempted page loads that had ended successfully, over
    time. When page loads failed, the curve ends below 1."""
    for row in (row for row in rows if row.case.page):
        last = max((time for times in row.times.values() for time in times if isfinite(time)), default=0.0)
        series = [(via, _steps(times, last)) for via, times in row.times.items() if times]
        share = Axis(label="share of loads", end=1.0)
        if chart := curves(series, Axis(label="page load time (s)"), share, title=row.case.name):
            yield row.case.name, chart


def _steps(times: Sequence[float], last: float) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for done, time in enumerate(sorted(filter(isfinite, times)), start=1):
        points += [(time, points[-1][1]), (time, done / len(times))]
    return [*points, (last, points[-1][1])]


def visibility(view: RunView) -> dict[str, tuple[int, int]]:
    """For each middlebox: the number of kinds of private data that were visible in at least one job, and the number of
    kinds that were searched for."""
    searched: dict[str, dict[str, bool]] = {}
    for job, result in view.results().items():
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
    for job, result in view.results().items():
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
    return [run_sentence(view.run, view.results().values()), *findings(rows, visibility(view)), *headlines.failed(view)]


def findings(rows: Sequence[ViaRow], looked: dict[str, tuple[int, int]]) -> list[str]:
    """Sentences about the leading middlebox over each link, its margin, and the data that an eavesdropper sees. Empty
    when the run has no middlebox."""
    return [*_leaders(rows), *_clearest(rows), *_visible(looked)]


def _decided(rows: Sequence[ViaRow]) -> list[tuple[ViaRow, Winner, Versus]]:
    """The rows in which at least two middleboxes were measured, with the winner and its lead."""
    return [(row, row.winner, row.winner.lead) for row in rows if row.winner is not None and row.winner.lead]


def _leaders(rows: Sequence[ViaRow]) -> Iterator[str]:
    """A sentence about the leading middleboxes over all links."""
    decided = _decided(rows)
    if not decided:
        return
    parts = []
    for link in dict.fromkeys(row.case.link.base_name for row, *_ in decided):
        ahead = Counter(best.name for row, best, _ in decided if row.case.link.base_name == link)
        named = [f"{via} in {times}" for via, times in ahead.most_common(_MOST_NAMED)]
        parts.append(f"over {link}, {listed(named)} of {amount(ahead.total(), 'row')}")
    sure = sum(lead.certain for *_, lead in decided)
    able = any(lead.q is not None for *_, lead in decided)
    chance = (
        f"{sure} of {amount(len(decided), 'lead')} {'is' if sure == 1 else 'are'} more than chance"
        if able
        else f"{least_n(FALSE_DISCOVERY_RATE)} iterations of each middlebox would show whether this is more than chance"
    )
    yield f"Middleboxes with the shortest median time: {'; '.join(parts)}; {chance}."


def _clearest(rows: Sequence[ViaRow]) -> Iterator[str]:
    """A sentence about the greatest margin that is statistically significant."""
    sure = [(row, best, lead) for row, best, lead in _decided(rows) if lead.certain and lead.change is not None]
    if not sure:
        return
    row, best, lead = min(sure, key=lambda decided: decided[2].change or 0.0)
    less, most, least = (f"{-100 * (share or 0.0):.0f}" for share in (lead.change, lead.low, lead.high))
    span = "" if lead.low is None else f", 95 % interval {least} to {most}"
    yield (
        f"The greatest margin that is more than chance: {best.name} in {row.case.name}, "
        f"{format_digits(best.value)}{NARROW}s, {less}{NARROW}% less time than {best.second}{span}."
    )


def _visible(looked: dict[str, tuple[int, int]]) -> Iterator[str]:
    hidden = [via for via, (shown, _) in looked.items() if not shown]
    parts = [f"none with {listed(hidden)}"] if hidden else []
    parts += [f"{visible} of {of} with {via}" for via, (visible, of) in looked.items() if visible]
    if parts:
        yield f"Kinds of private data that an eavesdropper on the satellite link sees: {listed(parts)}."
