"""Counts over cells, for several pages: diagnoses, limits, applied parameters, successes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.model.run import Kind
from runner.render.cells import Cell
from runner.render.charts import Mark
from runner.render.metrics import BY_KEY
from runner.render.telling import mean_limits
from runner.stats import Attempts


@dataclass(frozen=True, kw_only=True)
class Typical:
    """One diagnosis code. `jobs`: the number of transfers with this diagnosis, out of `of` transfers. `cell`,
    `iteration` and `sentence`: its first occurrence."""

    code: str
    jobs: int
    of: int
    cell: Cell
    iteration: int
    sentence: str
    section: str


def typical(cells: Iterable[Cell]) -> list[Typical]:
    """Every diagnosis of these cells, the most frequent first."""
    jobs: Counter[str] = Counter()
    first: dict[str, tuple[Cell, int, str, str]] = {}
    of = 0
    for cell in cells:
        for result in cell.results:
            of += bool(result.limits or result.diagnoses)
            for code in {diagnosis.code for diagnosis in result.diagnoses}:
                jobs[code] += 1
            for diagnosis in result.diagnoses:
                first.setdefault(diagnosis.code, (cell, result.iteration, diagnosis.sentence, diagnosis.section))
    return [
        Typical(
            code=code,
            jobs=count,
            of=of,
            cell=first[code][0],
            iteration=first[code][1],
            sentence=first[code][2],
            section=first[code][3],
        )
        for code, count in jobs.most_common()
    ]


def limits(cells: Iterable[Cell]) -> dict[str, float]:
    """The mean share of the time for each limit, the largest share first; empty when no transfer has limits."""
    return mean_limits([result.limits for cell in cells for result in cell.results if result.limits])


def attempts(cells: Iterable[Cell]) -> Attempts:
    """Successes and attempts over all cells, without errors of the harness."""
    known = list(cells)
    return Attempts(
        successes=sum(cell.attempts.successes for cell in known),
        attempts=sum(cell.attempts.attempts - cell.errors for cell in known),
    )


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The readings of one parameter of a stack in one role."""

    role: str
    parameter: str
    requested: str  # empty: the stack's default
    values: list[tuple[str, str, int]]  # value, its source, number of readings


def applied(cells: Iterable[Cell], name: str) -> list[Applied]:
    """The applied parameters of stack `name`, in both roles."""
    counted: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    requested: dict[tuple[str, str], str] = {}
    for cell in cells:
        for result in cell.results:
            for reading in result.readings:
                if getattr(cell, reading.role, "") == name and reading.found:
                    counted.setdefault((reading.role, reading.parameter), Counter())[reading.found, reading.source] += 1
                    requested.setdefault((reading.role, reading.parameter), reading.asked)
    return [
        Applied(
            role=role,
            parameter=parameter,
            requested=requested[role, parameter],
            values=[(value, source, count) for (value, source), count in counts.most_common(6)],
        )
        for (role, parameter), counts in sorted(counted.items())
    ]


def marks(
    cells: Iterable[Cell],
    metric: str,
    *,
    base: str,
    groups: Mapping[str, int] | None = None,
    full: float | None = None,
) -> list[Mark]:
    """A mark at the median of each cell that has the metric, in the metric's unit or in per cent of `full`. `groups`:
    the number of the colour of each server."""
    unit = BY_KEY[metric]
    factor = unit.unit.factor if full is None else 100 / full
    rows = []
    for cell in cells:
        summary = cell.summaries.get(metric)
        if summary is None:
            continue
        span = ""
        if summary.spread is not None:
            kind, low, high = summary.spread
            span = f", {kind} {unit.number(low)} to {unit.number(high)}"
        rows.append(
            Mark(
                x=summary.median * factor,
                title=f"{cell.client} → {cell.server}, {cell.case.name}: {unit.text(summary.median)}{span}, "
                f"{cell.attempts}",
                href=f"{base}{cell.href}",
                group=groups.get(cell.server, 0) if groups is not None else 0,
            )
        )
    return rows


def measurements(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of measurements that ran over the case's own protocol. Only these cells can be compared."""
    return [cell for cell in cells if cell.case.kind is Kind.MEASUREMENT and not cell.label]
