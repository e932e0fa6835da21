"""The page of one path in one case: what its template is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.model.path import PageLoad
from runner.model.result import Invariant, Outcome, Result
from runner.model.run import Run
from runner.path_words import carried
from runner.render import words
from runner.render.cells import SIGNS, Cell
from runner.render.files import Download
from runner.render.metrics import digits
from runner.render.pair import reasons
from runner.stats import Summary, summarise


@dataclass(frozen=True)
class Column:
    """One number of each iteration, in its unit."""

    label: str
    unit: str
    formula: str
    of: Callable[[Result], float | None]

    def number(self, value: float) -> str:
        """Without its unit; a count without decimals."""
        return digits(value) if self.unit else f"{value:,.0f}"


def _sample(name: str, factor: float) -> Callable[[Result], float | None]:
    def value(result: Result) -> float | None:
        found = getattr(result.sample, name, None)
        return None if found is None else factor * found

    return value


def _page(name: str) -> Callable[[Result], float | None]:
    def value(result: Result) -> float | None:
        page: PageLoad | None = result.crossing.page if result.crossing is not None else None
        found: float | None = getattr(page, name, None)
        return found

    return value


_DOWNLOAD = (
    Column("goodput", "Mbit/s", "8 · size / (last new byte − the client's first packet)", _sample("goodput", 1e-6)),
    Column("efficiency η", "%", "goodput / data rate of the satellite's forward link", _sample("efficiency", 100.0)),
    Column("connected", "ms", "as curl has it: TCP, and TLS where there is any", _sample("handshake_time", 1e3)),
    Column("TTFB", "ms", "first byte of the response, as curl has it", _sample("ttfb", 1e3)),
    Column("TTLB", "s", "last new byte − the client's first packet", _sample("ttlb", 1.0)),
)
_LOAD = (
    Column("Page Load Time", "s", "loadEventStart, Navigation Timing", _page("load")),
    Column("Response Start", "s", "responseStart, Navigation Timing", _page("response_start")),
    Column("First Contentful Paint", "s", "Paint Timing", _page("first_contentful_paint")),
    Column("objects", "", "that arrived whole, with status 200", _page("completed")),
)


@dataclass(frozen=True)
class Row:
    """One iteration of the table."""

    result: Result
    sign: str
    numbers: tuple[str, ...]  # one per column
    crossed: tuple[str, ...]  # sentences
    visible: tuple[str, ...]  # to an eavesdropper
    broken: tuple[Invariant, ...]
    downloads: Sequence[Download]


def context(run: Run, cell: Cell, *, downloads: Mapping[int, Sequence[Download]]) -> dict[str, Any]:
    """Everything that `path_cell.html` prints. `downloads` by iteration."""
    workload = cell.case.workload
    assert workload is not None  # only runs of paths come here
    columns = _LOAD if workload.page else _DOWNLOAD
    return {
        "cell": cell,
        "path": run.paths[cell.client],
        "workload": workload,
        "verdict": words.outcomes_text(cell.results, "iteration") + "." if cell.results else "Not run yet.",
        "links": [*words.links(cell.case), ("ground", words.link_facts(workload.ground_forward))],
        "tiles": [(column, found) for column in columns if (found := _summary(cell, column)) is not None],
        "columns": columns,
        "rows": [_row(result, columns, downloads) for result in cell.results],
        "reasons": reasons(cell.results),
    }


def _summary(cell: Cell, column: Column) -> Summary | None:
    good = (one for one in cell.results if one.outcome is Outcome.SUCCEEDED)
    return summarise((column.of(one) for one in good), seed=cell.seed)


def _row(result: Result, columns: Sequence[Column], downloads: Mapping[int, Sequence[Download]]) -> Row:
    values = [column.of(result) for column in columns]
    crossing = result.crossing
    return Row(
        result=result,
        sign=SIGNS[result.outcome],
        numbers=tuple(
            "–" if value is None else column.number(value) for column, value in zip(columns, values, strict=True)
        ),
        crossed=tuple(carried(crossing)) if crossing is not None else (),
        visible=crossing.visible if crossing is not None else (),
        broken=tuple(one for one in result.invariants if one.holds is False),
        downloads=downloads.get(result.iteration, ()),
    )
