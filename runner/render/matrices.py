"""The matrices of measurements on the overview: rows, columns and their cells, with numbers and means."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from runner.model.middlebox import NO_VIA
from runner.model.run import CaseRecord, ClientKind, Kind
from runner.render import words
from runner.render.cells import Cell, ordered_cases
from runner.render.colour import step_of
from runner.render.metrics import COLOURED, STATISTICS, SWITCHABLE
from runner.render.view import RunView, case_href, stack_href

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


@dataclass(frozen=True)
class Matrix:
    """The matrix of one measurement.

    Rows and columns are servers and clients, with one matrix for each link. When only one pair ran, rows and columns
    are links and middleboxes. A mean is the mean of the cells' medians. It is computed separately for each label,
    because cells of different protocols have no common mean. There are no means over several links.
    """

    name: str
    case: CaseRecord
    href: str
    axes: Mapping[str, str]  # names that all cells share: the case, and the link of a matrix of pairs
    corner: tuple[str, str]
    columns: list[Head]
    rows: list[tuple[Head, list[MatrixCell], Means]]
    column_means: list[Means]
    overall: Means
    has_means: bool
    numbers: dict[str, Any]
    links: list[tuple[str, list[str]]]
    transfer: list[str]


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
    by_client = {cell.client: cell for cell in cells}
    shown_servers = {cell.server for cell in cells}
    columns = [
        Head(name, {axis: axes_of(by_client[name])[axis] for axis in ("client", "via")}, _stack_page(by_client[name]))
        for name in view.clients
        if name in by_client
    ]
    rows = []
    for server in (name for name in view.servers if name in shown_servers):
        row = [
            _matrix_cell((server, head.name, case.name), {"server": server, "link": case.link.name, **head.axes}, view)
            for head in columns
        ]
        href = stack_href(server) if case.client is ClientKind.STACK else ""
        rows.append((Head(server, {"server": server}, href), row))
    axes = {"case": case.case, "link": case.link.name}
    return _matrix(case.name, case, axes=axes, corner=("server", "client"), columns=columns, rows=rows, cells=cells)


def _stack_page(cell: Cell) -> str:
    return stack_href(cell.client) if cell.case.client is ClientKind.STACK else ""


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
    return _matrix(name, cases[0], axes={"case": name}, corner=("link", "via"), columns=columns, rows=rows, cells=cells)


def _matrix(
    name: str,
    case: CaseRecord,
    *,
    axes: Mapping[str, str],
    corner: tuple[str, str],
    columns: list[Head],
    rows: Sequence[tuple[Head, list[MatrixCell]]],
    cells: Sequence[Cell],
) -> Matrix:
    one_link = "link" in axes
    every = [cell for _, row in rows for cell in row]
    scenario = case.client is ClientKind.STACK and one_link
    return Matrix(
        name=name,
        case=case,
        href=case_href(case.name) if scenario else "",
        axes=axes,
        corner=corner,
        columns=columns,
        rows=[(head, row, _means(row)) for head, row in rows],
        column_means=[_means([row[index] for _, row in rows]) for index in range(len(columns))],
        overall=_means(every),
        has_means=one_link,
        numbers=_numbers(every),
        links=words.links(case) if one_link else [],
        transfer=words.transfer_facts(case, cells) if one_link else [],
    )


def _matrix_cell(key: tuple[str, str, str], axes: Mapping[str, str], view: RunView) -> MatrixCell:
    cell = view.table.get(key)
    summaries = cell.summaries if cell is not None else {}
    return MatrixCell(
        cell=cell,
        axes=axes,
        values={name: summaries[name].median for name in (*SWITCHABLE, COLOURED) if name in summaries},
        spark=view.sparks.get(key, Markup()),
    )


def _numbers(every: Iterable[MatrixCell]) -> dict[str, Any]:
    """The numbers that the page's script can show. For each `metric/statistic` there is a list of the numbers of all
    cells, row by row; an unknown number is null."""
    cells = [entry.cell if entry.cell is not None and SHOWN in entry.values else None for entry in every]
    row: dict[str, Any] = {"labels": [cell.label if cell is not None else None for cell in cells]}
    for key in SWITCHABLE:
        for statistic in STATISTICS:
            values = (getattr(cell.summaries.get(key), statistic, None) if cell is not None else None for cell in cells)
            row[f"{key}/{statistic}"] = [None if value is None else float(f"{value:.6g}") for value in values]
    return row


def _means(group: Iterable[MatrixCell]) -> Means:
    """The means over the cells with a delivery time, by label. The mean of cells without a label comes first."""
    values: dict[str, list[float]] = {}
    for cell in group:
        if cell.cell is not None and SHOWN in cell.values:
            values.setdefault(cell.cell.label, []).append(cell.values[SHOWN])
    return {label: fmean(values[label]) for label in sorted(values)}
