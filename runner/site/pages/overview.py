"""The overview of one run: sentences, changes, failures, the matrices of measurements, leading middleboxes, stacks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from runner.compare import report
from runner.model.result import BY_KEY, PAIR_NUMBERS, Finding, Outcome
from runner.model.run import CaseRecord, ClientKind, Kind
from runner.model.stack import NO_VIA
from runner.site import headlines
from runner.site import view as words
from runner.site.front_data import stack_names
from runner.site.pages import Page, Pages, has_stacks
from runner.site.pages.vias import ViaRow, findings, rows_of, sentences, visibility
from runner.site.view import (
    COLOURED,
    STATISTICS,
    SWITCHABLE,
    Cell,
    RunView,
    agreements,
    case_href,
    ordered_cases,
    stack_href,
    step_of,
)

# The matrices of measurements on the overview: rows, columns and their cells, with numbers and means.

Means = Mapping[str, float]  # means of the number that the matrix shows first, by label of the cells
SHOWN = SWITCHABLE[0]
AXES = ("server", "client", "via", "link")


@dataclass(frozen=True)
class MatrixCell:
    """A cell of a measurement with its sparkline. `values`: numbers in SI units, by metric. `axes`: the cell's name on
    each axis."""

    cell: Cell | None
    axes: Mapping[str, str]
    values: Mapping[str, float]  # medians of the metrics that the matrix can show
    spark: Markup

    @property
    def shade(self) -> str:
        """The CSS class of the colour scale; `plain` when the link share is unknown, empty when the delivery time is
        unknown."""
        if SHOWN not in self.values:
            return ""
        return f"e{step_of(self.values[COLOURED])}" if COLOURED in self.values else "plain"


@dataclass(frozen=True)
class Head:
    """The head of a row or a column. `axes`: the names that its cells share. `href`: relative to the run's folder;
    empty when there is no page."""

    name: str
    axes: Mapping[str, str]
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The matrix of one measurement.

    Rows and columns are servers and clients, with one matrix for each link. When only one pair ran, rows and columns
    are links and middleboxes. A mean is the mean of the cells' medians. It is computed separately for each label,
    because cells of different protocols have no common mean. There are no means over several links.
    """

    name: str
    case: CaseRecord
    axes: Mapping[str, str]  # names that all cells share: the case, and the link of a matrix of pairs
    corner: tuple[str, str]
    columns: list[Head]
    rows: list[tuple[Head, list[MatrixCell]]]
    transfer: list[str]

    @property
    def has_means(self) -> bool:
        return "link" in self.axes

    @property
    def href(self) -> str:
        """URL of the case's page, relative to the run's folder; empty when there is none."""
        return case_href(self.case.name) if self.has_means and self.case.client is ClientKind.STACK else ""

    @property
    def every(self) -> list[MatrixCell]:
        """All cells, row by row."""
        return [cell for _, row in self.rows for cell in row]

    @property
    def column_means(self) -> list[Means]:
        return [means(column) for column in zip(*(row for _, row in self.rows), strict=True)]

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers that the page's script can show. For each `metric/statistic` there is a list of the numbers of
        all cells, row by row; an unknown number is null."""
        cells = [entry.cell if entry.cell is not None and SHOWN in entry.values else None for entry in self.every]
        row: dict[str, Any] = {"labels": [cell and cell.label for cell in cells]}
        for key in SWITCHABLE:
            for statistic in STATISTICS:
                values = (getattr(cell.summaries.get(key), statistic, None) if cell else None for cell in cells)
                row[f"{key}/{statistic}"] = [None if value is None else float(f"{value:.6g}") for value in values]
        return row


def matrices(view: RunView) -> list[Matrix]:
    """The matrices of all measurements of the run, in the order of the cases."""
    questions: dict[str, list[CaseRecord]] = {}
    for case in ordered_cases(view.run, Kind.MEASUREMENT):
        questions.setdefault(case.case, []).append(case)
    matrices = []
    for name, cases in questions.items():
        cells = [cell for case in cases for cell in view.cells_of(case.name)]
        pairs = {(cell.server, cell.stack) for cell in cells}
        if len(pairs) == 1 and (len(cases) > 1 or len({cell.via for cell in cells}) > 1):
            matrices.append(_over_links(name, cases, cells, view))
        else:
            matrices += [_of_pairs(case, view.cells_of(case.name), view) for case in cases]
    return matrices


def axes_of(cell: Cell) -> dict[str, str]:
    """The name of a cell on every axis."""
    return {"server": cell.server, "client": cell.stack, "via": cell.via or NO_VIA, "link": cell.case.link.name}


def _of_pairs(case: CaseRecord, cells: Sequence[Cell], view: RunView) -> Matrix:
    """Servers × clients with their middleboxes."""
    page = stack_href if case.client is ClientKind.STACK else lambda _: ""
    by_client = {cell.client: cell for cell in cells}
    shown_servers = {cell.server for cell in cells}
    columns = [
        Head(name, {axis: axes_of(by_client[name])[axis] for axis in ("client", "via")}, page(name))
        for name in view.clients
        if name in by_client
    ]
    rows = []
    for server in (name for name in view.servers if name in shown_servers):
        row = [
            _matrix_cell((server, head.name, case.name), {"server": server, "link": case.link.name, **head.axes}, view)
            for head in columns
        ]
        rows.append((Head(server, {"server": server}, page(server)), row))
    return Matrix(
        name=case.name,
        case=case,
        axes={"case": case.case, "link": case.link.name},
        corner=("server", "client"),
        columns=columns,
        rows=rows,
        transfer=words.transfer_facts(case, cells),
    )


def _over_links(name: str, cases: Sequence[CaseRecord], cells: Sequence[Cell], view: RunView) -> Matrix:
    """Links × middleboxes of one pair."""
    first = cells[0]
    vias = [via for via in view.run.vias if any(cell.via == via for cell in cells)]
    columns = [Head(via or NO_VIA, {"via": via or NO_VIA}, "vias.html" if via else "") for via in vias]
    rows = []
    for case in cases:
        fixed = {"server": first.server, "client": first.stack, "link": case.link.name}
        clients = [f"{first.stack}+{via}" if via else first.stack for via in vias]
        row = [
            _matrix_cell((first.server, client, case.name), {**fixed, **head.axes}, view)
            for client, head in zip(clients, columns, strict=True)
        ]
        rows.append((Head(case.link.name, {"link": case.link.name}), row))
    axes = {"case": name}
    return Matrix(name=name, case=cases[0], axes=axes, corner=("link", "via"), columns=columns, rows=rows, transfer=[])


def _matrix_cell(key: tuple[str, str, str], axes: Mapping[str, str], view: RunView) -> MatrixCell:
    cell = view.table.get(key)
    summaries = cell.summaries if cell is not None else {}
    return MatrixCell(
        cell=cell,
        axes=axes,
        values={name: summaries[name].median for name in (*SWITCHABLE, COLOURED) if name in summaries},
        spark=view.sparks.get(key, Markup()),
    )


def means(group: Iterable[MatrixCell]) -> Means:
    """The means over the cells with a delivery time, by label. The mean of cells without a label comes first."""
    values: dict[str, list[float]] = {}
    for cell in group:
        if cell.cell is not None and SHOWN in cell.values:
            values.setdefault(cell.cell.label, []).append(cell.values[SHOWN])
    return {label: fmean(values[label]) for label in sorted(values)}


NAV = (0, "Overview", "index.html")
_MOST_CHANGES = 40
_COMPACT = 9  # from this number of servers or clients on, a matrix cell of the test cases has one line
_LONGEST_NAME = 16  # characters; the largest width of a column: longer names are broken into several lines


@dataclass(frozen=True)
class FailureGroup:
    """All findings with one code. `cells`: each cell with its first such finding, and the iterations in which the code
    occurred."""

    code: str
    requirement: str
    section: str
    jobs: int
    cells: list[tuple[Cell, Finding, list[int]]]
    share: float  # fraction of all findings of jobs that ran; 0: the jobs are unsupported

    @property
    def whom(self) -> str:
        """A text about the stack that is in more than half of the cells; empty for a single cell, or when there is no
        such stack."""
        roles = Counter(
            f"{getattr(cell, role)} as {role}" for cell, _, _ in self.cells for role in ("server", "client")
        )
        name, cells = roles.most_common(1)[0]
        return f"{cells} of {len(self.cells)} cells with {name}" if 1 < len(self.cells) < 2 * cells else ""


def pages(view: RunView) -> Pages:
    yield Page("index.html", "run.html", context(view))


def context(view: RunView) -> dict[str, Any]:
    """The variables of the template `run.html`."""
    run = view.run
    rows = rows_of(view) if any(run.vias) else []
    drawn = matrices(view)
    return (
        news(view)
        | _tests(view)
        | {
            "decisions": view.decided if has_stacks(run) else [],
            "agreements": agreements(run, view.table) if has_stacks(run) else [],
            "sentences": _sentences(view, rows),
            "rows": sorted(rows, key=lambda row: (row.case.link.base_name, row.case.forward.loss)),
            "visibility": visibility(view),
            "shown_first": BY_KEY[SHOWN],
            "filters": _filters(view),
            "axes": AXES,
            "name_length": min(_LONGEST_NAME, max(map(len, view.stacks), default=0)),
            "matrices": drawn,
            "means": means,
            "widest": max((len(matrix.columns) for matrix in drawn), default=0),
            "tallest": max((len(matrix.rows) for matrix in drawn), default=0),
            "stacks": {name: stack for name, stack in run.implementations.items() if name not in run.middleboxes},
            "tested_stacks": stack_names(view),
            "labels": sorted({cell.label for cell in view.table.values()} - {""}),
            "refuted": any(cell.refuted for cell in view.table.values()),
            "modes": any(cell.modes for cell in view.table.values()),
            "metrics": PAIR_NUMBERS,
            "switchable": [BY_KEY[key] for key in SWITCHABLE],
            "statistics": STATISTICS,
            "units": {key: (BY_KEY[key].factor, BY_KEY[key].shown_in) for key in SWITCHABLE},
        }
    )


def _sentences(view: RunView, rows: Sequence[ViaRow]) -> list[str]:
    """Sentences about the run. When the run has middleboxes, also sentences about the leading middleboxes and about the
    data that an eavesdropper sees."""
    if has_stacks(view.run):
        return [*headlines.sentences(view, view.decided), *findings(rows, visibility(view))]
    return sentences(view, rows)


def _filters(view: RunView) -> list[tuple[str, str, list[str]]]:
    """Name in the URL, axis and values of each filter. The page always has filters for servers, clients and cases. It
    has another filter only when that filter has more than one value."""
    cells = [(axes_of(cell), cell.case) for cell in view.table.values()]
    parts = []
    for axis in AXES:
        known = {axes[axis] for axes, _ in cells}
        configured = {"server": view.servers, "client": [*view.run.clients]}.get(axis, [])
        values = [name for name in dict.fromkeys([*configured, *(axes[axis] for axes, _ in cells)]) if name in known]
        if len(values) > 1 or axis in ("server", "client"):
            parts.append((f"{axis}s", axis, values))
    kinds = [case for kind in (Kind.MEASUREMENT, Kind.TEST_CASE) for case in ordered_cases(view.run, kind)]
    present = {case.case for _, case in cells}
    parts.append(("cases", "case", [name for name in dict.fromkeys(case.case for case in kinds) if name in present]))
    return parts


def _tests(view: RunView) -> dict[str, Any]:
    """The matrix of the test cases."""
    table = view.table
    tests = [case for case in ordered_cases(view.run, Kind.TEST_CASE) if any(key[2] == case.name for key in table)]
    cells = [cell for cell in table.values() if cell.case in tests]
    servers = [name for name in view.servers if any(cell.server == name for cell in cells)]
    heads = {cell.client: axes_of(cell) for cell in cells}
    clients = [name for name in view.clients if name in heads]
    return {
        "tests": tests,
        "test_clients": [(name, heads[name]) for name in clients],
        "test_counts": [(case, _counts(case, table.values())) for case in tests],
        "broken": sum(bool(cell.broken_rules) for cell in cells),
        "public_differs": sum(cell.public is not None for cell in cells),
        "compact": max(len(servers), len(clients)) >= _COMPACT,
        "test_rows": [
            (server, [[table.get((server, client, case.name)) for case in tests] for client in clients])
            for server in servers
        ],
    }


def _counts(case: CaseRecord, table: Iterable[Cell]) -> list[tuple[str, str, int]]:
    """Name, sign and number of jobs of each outcome of a case, over all pairs; last, the jobs with a broken MUST."""
    results = [result for cell in table if cell.case.name == case.name for result in cell.results]
    outcomes = Counter(result.outcome for result in results)
    broken = sum(bool(result.violations) for result in results)
    return [*((outcome.value, outcome.sign, outcomes[outcome]) for outcome in Outcome), ("broken", "§", broken)]


def news(view: RunView) -> dict[str, Any]:
    """The content of `news.html`: changes since the previous run, and jobs that did not succeed."""
    return {
        "previous": view.previous,
        "changes": view.changes,
        "changed": changed_rows(view)[:_MOST_CHANGES],
        "failures": failures(view.table.values()),
    }


def changed_rows(view: RunView) -> list[tuple[str, tuple[str, ...], str]]:
    """State, fields under `report.HEAD`, and URL of the cell's page, of each change since the previous run."""
    if view.changes is None:
        return []
    hrefs = {(cell.ends, cell.case.name): cell.href for cell in view.table.values()}
    rows = report.rows(view.changes, everything=False)
    return [(state.value, fields, hrefs.get((fields[0], fields[1]), "")) for state, fields in rows]


def failures(table: Iterable[Cell]) -> list[FailureGroup]:
    """The findings grouped by code: first those of jobs that ran, the most frequent code first."""
    failures: dict[tuple[bool, str], dict[str, tuple[Cell, Finding, list[int]]]] = {}
    for cell in table:
        for result in cell.results:
            for finding in result.findings:
                by_cell = failures.setdefault((result.outcome is Outcome.UNSUPPORTED, finding.code), {})
                by_cell.setdefault(cell.href, (cell, finding, []))[2].append(result.iteration)
    groups = []
    amounts = {key: sum(len(iterations) for _, _, iterations in by_cell.values()) for key, by_cell in failures.items()}
    total = sum(amount for (unsupported, _), amount in amounts.items() if not unsupported)
    for unsupported, code in sorted(failures, key=lambda key: (key[0], -amounts[key], key[1])):
        entries = list(failures[unsupported, code].values())
        first = entries[0][1]
        groups.append(
            FailureGroup(
                code=code,
                requirement=first.requirement,
                section=first.section,
                jobs=amounts[unsupported, code],
                cells=entries,
                share=0 if unsupported else amounts[unsupported, code] / total,
            )
        )
    return groups
