"""The page of one run: what its template is told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from runner.model.job import Job
from runner.model.result import Finding, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.render import words
from runner.render.cells import Cell, Cells, names, ordered_cases
from runner.render.colour import step_of
from runner.render.deciding import DEFINITIONS, agreements, decisions
from runner.render.metrics import BY_KEY, METRICS, SWITCHABLE

Sparks = Mapping[tuple[str, str, str], Markup]
Means = Mapping[str, float]  # mean efficiency by label of the cells


@dataclass(frozen=True)
class MatrixCell:
    """A cell of a measurement: its numbers in SI units by metric, its colour, its sparkline."""

    cell: Cell | None
    values: Mapping[str, float]
    spark: Markup

    @property
    def shade(self) -> str:
        """Class of the colour scale; empty without η."""
        return f"e{step_of(self.values['efficiency'])}" if "efficiency" in self.values else ""


@dataclass(frozen=True)
class Matrix:
    """One measurement: `rows` by server, in each the cells by client. Means are those of the cells' medians, by label:
    cells of different protocols have no common mean."""

    case: CaseRecord
    clients: list[str]
    rows: list[tuple[str, list[MatrixCell], Means]]
    column_means: list[Means]
    overall: Means
    links: list[tuple[str, list[str]]]
    transfer: list[str]


@dataclass(frozen=True)
class FailureGroup:
    """All findings of one code. `cells` with the iterations concerned."""

    code: str
    requirement: str
    section: str
    jobs: int
    cells: list[tuple[Cell, Finding, list[int]]]


def context(run: Run, results: Mapping[Job, Result], table: Cells, sparks: Sparks) -> dict[str, Any]:
    """Everything that `run.html` prints beside the list of runs."""
    servers = names(run.servers, {server for server, _, _ in table})
    clients = names(run.clients, {client for _, client, _ in table})
    tests = [case for case in ordered_cases(run, Kind.TEST_CASE) if any(key[2] == case.name for key in table)]
    return {
        "run": run,
        "sentence": words.run_sentence(run, results.values()),
        "servers": servers,
        "clients": clients,
        "matrices": [_matrix(case, servers, clients, table, sparks) for case in ordered_cases(run, Kind.MEASUREMENT)],
        "tests": tests,
        "test_links": [(case, words.links(case)) for case in tests],
        "test_rows": [
            (server, [[table.get((server, client, case.name)) for case in tests] for client in clients])
            for server in servers
        ],
        "labels": sorted({cell.label for cell in table.values()} - {""}),
        "refuted": any(cell.refuted for cell in table.values()),
        "failures": _failures(table.values()),
        "decisions": decisions(run, table),
        "agreements": agreements(run, table),
        "deciding": DEFINITIONS,
        "metrics": METRICS,
        "switchable": [BY_KEY[key] for key in SWITCHABLE],
        "units": {key: (BY_KEY[key].unit.factor, BY_KEY[key].unit.name) for key in SWITCHABLE},
    }


def _matrix(case: CaseRecord, servers: list[str], clients: list[str], table: Cells, sparks: Sparks) -> Matrix:
    rows = []
    for server in servers:
        row = [_matrix_cell((server, client, case.name), table, sparks) for client in clients]
        rows.append((server, row, _means(row)))
    columns = [[row[index] for _, row, _ in rows] for index in range(len(clients))]
    every = [cell for _, row, _ in rows for cell in row]
    return Matrix(
        case=case,
        clients=clients,
        rows=rows,
        column_means=[_means(column) for column in columns],
        overall=_means(every),
        links=words.links(case),
        transfer=words.transfer_facts(case, [one.cell for one in every if one.cell is not None]),
    )


def _matrix_cell(key: tuple[str, str, str], table: Cells, sparks: Sparks) -> MatrixCell:
    cell = table.get(key)
    summaries = cell.summaries if cell is not None else {}
    return MatrixCell(
        cell=cell,
        values={name: summaries[name].median for name in SWITCHABLE if name in summaries},
        spark=sparks.get(key, Markup()),
    )


def _means(group: Iterable[MatrixCell]) -> Means:
    """Of the cells with η, by label, those without one first."""
    found: dict[str, list[float]] = {}
    for one in group:
        if one.cell is not None and "efficiency" in one.values:
            found.setdefault(one.cell.label, []).append(one.values["efficiency"])
    return {label: fmean(found[label]) for label in sorted(found)}


def _failures(table: Iterable[Cell]) -> list[FailureGroup]:
    """By code, the most frequent first."""
    found: dict[str, dict[str, tuple[Cell, Finding, list[int]]]] = {}
    for cell in table:
        for result in cell.results:
            for finding in result.findings:
                by_cell = found.setdefault(finding.code, {})
                by_cell.setdefault(cell.href, (cell, finding, []))[2].append(result.iteration)
    groups = []
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
            )
        )
    return sorted(groups, key=lambda group: (-group.jobs, group.code))
