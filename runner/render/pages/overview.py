"""The overview of one run: sentences, what changed, what failed, the matrices."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from runner.compare import report
from runner.model.result import Finding
from runner.model.run import CaseRecord, Kind
from runner.render import telling, words
from runner.render.cells import SIGNS, Cell, ordered_cases
from runner.render.colour import step_of
from runner.render.deciding import DEFINITIONS, agreements
from runner.render.metrics import BY_KEY, COLOURED, METRICS, STATISTICS, SWITCHABLE
from runner.render.pages import Page, Pages
from runner.render.view import RunView

NAV = (0, "Overview", "index.html")
OF = "stacks"
Means = Mapping[str, float]  # mean of the number that is shown first, by label of the cells
SHOWN = SWITCHABLE[0]
_MOST_CHANGES = 40
_COMPACT = 9  # servers or clients from which a cell of the test cases is one line
_LONGEST_NAME = 16  # characters; a column is no wider, and longer names break


@dataclass(frozen=True)
class MatrixCell:
    """A cell of a measurement: its numbers in SI units by metric, its colour, its sparkline."""

    cell: Cell | None
    values: Mapping[str, float]  # medians of what the matrix can show
    spark: Markup

    @property
    def shade(self) -> str:
        """Class of the colour scale; empty without a delivery time."""
        return f"e{step_of(self.values[COLOURED])}" if SHOWN in self.values and COLOURED in self.values else ""


@dataclass(frozen=True)
class Matrix:
    """One measurement: `rows` by server, each with its cells by client. Means are of the cells' medians, by label,
    because cells of different protocols have no common mean."""

    case: CaseRecord
    clients: list[str]
    rows: list[tuple[str, list[MatrixCell], Means]]
    column_means: list[Means]
    overall: Means
    numbers: dict[str, Any]
    links: list[tuple[str, list[str]]]
    transfer: list[str]


@dataclass(frozen=True)
class FailureGroup:
    """All findings with one code. `cells` have the iterations concerned."""

    code: str
    requirement: str
    section: str
    jobs: int
    cells: list[tuple[Cell, Finding, list[int]]]
    share: float  # of the jobs that have a finding

    @property
    def whom(self) -> str:
        """The stack that most of its cells have in common, when that is most of several."""
        roles = Counter(
            f"{getattr(cell, role)} as {role}" for cell, _, _ in self.cells for role in ("server", "client")
        )
        name, cells = roles.most_common(1)[0]
        return f"{cells} of {len(self.cells)} cells with {name}" if 1 < len(self.cells) < 2 * cells else ""


def pages(view: RunView) -> Pages:
    """The first page of a run."""
    yield Page("index.html", "run.html", context(view))


def context(view: RunView) -> dict[str, Any]:
    """Everything that `run.html` prints."""
    run, table = view.run, view.table
    tests = [case for case in ordered_cases(run, Kind.TEST_CASE) if any(key[2] == case.name for key in table)]
    decided = view.decided
    return news(view) | {
        "sentences": telling.sentences(view, decided),
        "shown_first": BY_KEY[SHOWN],
        "servers": view.servers,
        "clients": view.clients,
        "name_length": min(_LONGEST_NAME, max(map(len, view.stacks), default=0)),
        "matrices": [_matrix(case, view) for case in ordered_cases(run, Kind.MEASUREMENT)],
        "tests": tests,
        "test_counts": [(case, _counts(case, table.values())) for case in tests],
        "public_differs": sum(cell.public is not None for cell in table.values() if cell.case in tests),
        "compact": max(len(view.servers), len(view.clients)) >= _COMPACT,
        "test_links": [(case, words.links(case)) for case in tests],
        "test_rows": [
            (server, [[table.get((server, client, case.name)) for case in tests] for client in view.clients])
            for server in view.servers
        ],
        "labels": sorted({cell.label for cell in table.values()} - {""}),
        "refuted": any(cell.refuted for cell in table.values()),
        "modes": any(cell.modes for cell in table.values()),
        "decisions": decided,
        "agreements": agreements(run, table),
        "deciding": DEFINITIONS,
        "metrics": METRICS,
        "switchable": [BY_KEY[key] for key in SWITCHABLE],
        "statistics": STATISTICS,
        "units": {key: (BY_KEY[key].unit.factor, BY_KEY[key].unit.name) for key in SWITCHABLE},
    }


def _counts(case: CaseRecord, table: Iterable[Cell]) -> list[tuple[str, str, int]]:
    """Name, sign and number of jobs of each outcome of a case, over all pairs."""
    outcomes = Counter(result.outcome for cell in table if cell.case.name == case.name for result in cell.results)
    return [(outcome.value, SIGNS[outcome], outcomes[outcome]) for outcome in SIGNS]


def news(view: RunView) -> dict[str, Any]:
    """The content of `news.html`: changes since the previous run, and jobs that did not succeed."""
    return {
        "previous": view.previous,
        "changes": view.changes,
        "changed": changed_rows(view)[:_MOST_CHANGES],
        "failures": failures(view.table.values()),
    }


def changed_rows(view: RunView) -> list[tuple[str, tuple[str, ...], str]]:
    """State, fields under `report.HEAD`, and the URL of the cell's page, of all that changed since the run before."""
    if view.changes is None:
        return []
    hrefs = {(cell.ends, cell.case.name): cell.href for cell in view.table.values()}
    found = report.rows(view.changes, everything=False)
    return [(row.state.value, row.fields, hrefs.get((row.fields[0], row.fields[1]), "")) for row in found]


def _matrix(case: CaseRecord, view: RunView) -> Matrix:
    rows = []
    for server in view.servers:
        row = [_matrix_cell((server, client, case.name), view) for client in view.clients]
        rows.append((server, row, _means(row)))
    columns = [[row[index] for _, row, _ in rows] for index in range(len(view.clients))]
    every = [cell for _, row, _ in rows for cell in row]
    return Matrix(
        case=case,
        clients=view.clients,
        rows=rows,
        column_means=[_means(column) for column in columns],
        overall=_means(every),
        numbers=_numbers(every),
        links=words.links(case),
        transfer=words.transfer_facts(case, [one.cell for one in every if one.cell is not None]),
    )


def _matrix_cell(key: tuple[str, str, str], view: RunView) -> MatrixCell:
    cell = view.table.get(key)
    summaries = cell.summaries if cell is not None else {}
    return MatrixCell(
        cell=cell,
        values={name: summaries[name].median for name in (*SWITCHABLE, COLOURED) if name in summaries},
        spark=view.sparks.get(key, Markup()),
    )


def _numbers(every: Iterable[MatrixCell]) -> dict[str, Any]:
    """The numbers that the script can show instead: by `metric/statistic` a list over all cells, row by row; null
    when unknown."""
    cells = [one.cell if one.cell is not None and SHOWN in one.values else None for one in every]
    found: dict[str, Any] = {"labels": [cell.label if cell is not None else None for cell in cells]}
    for key in SWITCHABLE:
        for statistic in STATISTICS:
            values = (getattr(cell.summaries.get(key), statistic, None) if cell is not None else None for cell in cells)
            found[f"{key}/{statistic}"] = [None if value is None else float(f"{value:.6g}") for value in values]
    return found


def _means(group: Iterable[MatrixCell]) -> Means:
    """Means of the cells with a delivery time, by label; cells without a label first."""
    found: dict[str, list[float]] = {}
    for one in group:
        if one.cell is not None and SHOWN in one.values:
            found.setdefault(one.cell.label, []).append(one.values[SHOWN])
    return {label: fmean(found[label]) for label in sorted(found)}


def failures(table: Iterable[Cell]) -> list[FailureGroup]:
    """By code, the most frequent first."""
    found: dict[str, dict[str, tuple[Cell, Finding, list[int]]]] = {}
    for cell in table:
        for result in cell.results:
            for finding in result.findings:
                by_cell = found.setdefault(finding.code, {})
                by_cell.setdefault(cell.href, (cell, finding, []))[2].append(result.iteration)
    groups = []
    total = sum(len(iterations) for by_cell in found.values() for _, _, iterations in by_cell.values())
    for code, by_cell in found.items():
        entries = list(by_cell.values())
        first = entries[0][1]
        groups.append(
            FailureGroup(
                code=code,
                requirement=first.requirement,
                section=first.section,
                jobs=sum(len(iterations) for _, _, iterations in entries),
                cells=entries,
                share=sum(len(iterations) for _, _, iterations in entries) / total,
            )
        )
    return sorted(groups, key=lambda group: (-group.jobs, group.code))
