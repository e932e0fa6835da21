"""The page of a download or page load in one case: what its template is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.model.crossing_words import carried
from runner.model.numbers import PATH_DOWNLOAD_NUMBERS, PATH_PAGE_NUMBERS, Number
from runner.model.result import Invariant, Outcome, Result
from runner.model.run import Run
from runner.render import words
from runner.render.cells import SIGNS, Cell
from runner.render.files import Download
from runner.render.metrics import Metric, shown
from runner.render.pair import reasons
from runner.stats import Summary, summarise


@dataclass(frozen=True)
class Column:
    """One number of each iteration."""

    metric: Metric
    of: Callable[[Result], float | None]

    @property
    def label(self) -> str:
        return self.metric.label

    @property
    def unit(self) -> str:
        return self.metric.unit.name

    @property
    def formula(self) -> str:
        return self.metric.formula

    def number(self, value: float) -> str:
        """A value in SI units, without its unit."""
        return self.metric.number(value)


def _sample(number: Number) -> Column:
    return Column(shown(number), lambda result: getattr(result.sample, number.key, None))


def _page(number: Number) -> Column:
    def value(result: Result) -> float | None:
        found: float | None = getattr(result.page, number.key, None)
        return found

    return Column(shown(number), value)


_DOWNLOAD = tuple(map(_sample, PATH_DOWNLOAD_NUMBERS))
_LOAD = tuple(map(_page, PATH_PAGE_NUMBERS))


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
    """Everything that `load_cell.html` prints. `downloads` by iteration."""
    columns = _LOAD if cell.case.page else _DOWNLOAD
    return {
        "cell": cell,
        "middlebox": run.middleboxes.get(cell.via),
        "verdict": words.outcomes_text(cell.results, "iteration") + "." if cell.results else "Not run yet.",
        "links": words.links(cell.case),
        "tiles": [(column, found) for column in columns if (found := _summary(cell, column)) is not None],
        "columns": columns,
        "rows": [_row(result, columns, downloads) for result in cell.results],
        "reasons": reasons(cell.results),
    }


def _summary(cell: Cell, column: Column) -> Summary | None:
    good = (one for one in cell.results if one.outcome is Outcome.SUCCEEDED)
    return summarise(column.of(one) for one in good)


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
