"""The overview of one run: sentences, changes, failures, matrices, leading middleboxes, stacks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.compare import report
from runner.model.result import Finding
from runner.model.run import CaseRecord, Kind
from runner.render import ahead, telling, words
from runner.render.cells import SIGNS, Cell, ordered_cases
from runner.render.deciding import DEFINITIONS, agreements
from runner.render.matrices import AXES, SHOWN, axes_of, matrices
from runner.render.metrics import BY_KEY, METRICS, STATISTICS, SWITCHABLE
from runner.render.pages import Page, Pages, has_stacks
from runner.render.pages.vias import Row, rows_of, visibility
from runner.render.standing import stack_names
from runner.render.view import RunView

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
    share: float  # fraction of all findings

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
    """The first page of a run."""
    yield Page("index.html", "run.html", context(view))


def context(view: RunView) -> dict[str, Any]:
    """The variables of the template `run.html`."""
    run = view.run
    rows = rows_of(view) if any(run.vias) else []
    drawn = matrices(view)
    return (
        news(view)
        | _tests(view)
        | _deciding(view)
        | {
            "sentences": _sentences(view, rows),
            "rows": sorted(rows, key=lambda row: (row.case.link.base_name, row.case.forward.loss)),
            "visibility": visibility(view),
            "shown_first": BY_KEY[SHOWN],
            "filters": _filters(view),
            "axes": AXES,
            "name_length": min(_LONGEST_NAME, max(map(len, view.stacks), default=0)),
            "matrices": drawn,
            "widest": max((len(matrix.columns) for matrix in drawn), default=0),
            "tallest": max((len(matrix.rows) for matrix in drawn), default=0),
            "stacks": {name: stack for name, stack in run.implementations.items() if name not in run.middleboxes},
            "tested_stacks": stack_names(view),
            "labels": sorted({cell.label for cell in view.table.values()} - {""}),
            "refuted": any(cell.refuted for cell in view.table.values()),
            "modes": any(cell.modes for cell in view.table.values()),
            "metrics": METRICS,
            "switchable": [BY_KEY[key] for key in SWITCHABLE],
            "statistics": STATISTICS,
            "units": {key: (BY_KEY[key].unit.factor, BY_KEY[key].unit.name) for key in SWITCHABLE},
        }
    )


def _sentences(view: RunView, rows: Sequence[Row]) -> list[str]:
    """Sentences about the run. When the run has middleboxes, also sentences about the leading middleboxes and about the
    data that an eavesdropper sees."""
    if has_stacks(view.run):
        return [*telling.sentences(view, view.decided), *ahead.findings(rows, visibility(view))]
    return ahead.sentences(view, rows)


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
        "test_links": [(case, words.links(case)) for case in tests],
        "test_rows": [
            (server, [[table.get((server, client, case.name)) for case in tests] for client in clients])
            for server in servers
        ],
    }


def _deciding(view: RunView) -> dict[str, Any]:
    stacks = has_stacks(view.run)
    return {
        "decisions": view.decided if stacks else [],
        "agreements": agreements(view.run, view.table) if stacks else [],
        "deciding": DEFINITIONS,
    }


def _counts(case: CaseRecord, table: Iterable[Cell]) -> list[tuple[str, str, int]]:
    """Name, sign and number of jobs of each outcome of a case, over all pairs; last, the jobs with a broken MUST."""
    results = [result for cell in table if cell.case.name == case.name for result in cell.results]
    outcomes = Counter(result.outcome for result in results)
    broken = sum(bool(result.violations) for result in results)
    return [*((outcome.value, SIGNS[outcome], outcomes[outcome]) for outcome in SIGNS), ("broken", "§", broken)]


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
    return [(row.state.value, row.fields, hrefs.get((row.fields[0], row.fields[1]), "")) for row in rows]


def failures(table: Iterable[Cell]) -> list[FailureGroup]:
    """The findings grouped by code, the most frequent code first."""
    failures: dict[str, dict[str, tuple[Cell, Finding, list[int]]]] = {}
    for cell in table:
        for result in cell.results:
            for finding in result.findings:
                by_cell = failures.setdefault(finding.code, {})
                by_cell.setdefault(cell.href, (cell, finding, []))[2].append(result.iteration)
    groups = []
    total = sum(len(iterations) for by_cell in failures.values() for _, _, iterations in by_cell.values())
    for code, by_cell in failures.items():
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
