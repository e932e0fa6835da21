"""The data of the page of one matrix cell with a download or a page load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.model.crossing_words import carried
from runner.model.load_numbers import DOWNLOAD_NUMBERS, PAGE_NUMBERS
from runner.model.number import Number
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
    """One column of numbers in the table of iterations."""

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
        number_value: float | None = getattr(result.page, number.key, None)
        return number_value

    return Column(shown(number), value)


_DOWNLOAD = tuple(map(_sample, DOWNLOAD_NUMBERS))
_LOAD = tuple(map(_page, PAGE_NUMBERS))


@dataclass(frozen=True)
class Row:
    """One iteration of the table."""

    result: Result
    sign: str
    numbers: tuple[str, ...]  # one number for each column
    crossed: tuple[str, ...]  # sentences about how the traffic crossed the satellite link
    visible: tuple[str, ...]  # names of the private data that an eavesdropper sees
    broken: tuple[Invariant, ...]
    downloads: Sequence[Download]


def context(run: Run, cell: Cell, *, downloads: Mapping[int, Sequence[Download]]) -> dict[str, Any]:
    """The variables of the template `load_cell.html`. `downloads` is by iteration."""
    columns = _LOAD if cell.case.page else _DOWNLOAD
    return {
        "cell": cell,
        "middlebox": run.middleboxes.get(cell.via),
        "verdict": words.outcomes_text(cell.results, "iteration") + "." if cell.results else "Not run yet.",
        "links": words.links(cell.case),
        "tiles": [(column, summary) for column in columns if (summary := _summary(cell, column)) is not None],
        "columns": columns,
        "rows": [_row(result, columns, downloads) for result in cell.results],
        "reasons": reasons(cell.results),
    }


def _summary(cell: Cell, column: Column) -> Summary | None:
    return summarise(column.of(result) for result in cell.results if result.outcome is Outcome.SUCCEEDED)


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
        broken=tuple(invariant for invariant in result.invariants if invariant.holds is False),
        downloads=downloads.get(result.iteration, ()),
    )
