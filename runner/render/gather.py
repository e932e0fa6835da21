"""Counts over cells that several pages show: diagnoses, limits, applied parameters, successes."""

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
    """One diagnosis code: its share of the transfers, and the first cell and sentence that show it."""

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
            for code in {one.code for one in result.diagnoses}:
                jobs[code] += 1
            for one in result.diagnoses:
                first.setdefault(one.code, (cell, result.iteration, one.sentence, one.section))
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
    """Mean share of the time that each limit had, the largest first; empty without a transfer that has them."""
    return mean_limits([result.limits for cell in cells for result in cell.results if result.limits])


def attempts(cells: Iterable[Cell]) -> Attempts:
    """Successes and attempts of all, errors of the harness left out."""
    known = list(cells)
    return Attempts(
        successes=sum(cell.attempts.successes for cell in known),
        attempts=sum(cell.attempts.attempts - cell.errors for cell in known),
    )


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The readings of one parameter of a stack in one role: values, how often, and in which source."""

    role: str
    parameter: str
    asked: str
    found: list[tuple[str, str, int]]  # value, source, how often


def applied(cells: Iterable[Cell], name: str) -> list[Applied]:
    """The applied parameters of stack `name`, in both roles."""
    counted: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    asked: dict[tuple[str, str], str] = {}
    for cell in cells:
        for result in cell.results:
            for one in result.readings:
                if getattr(cell, one.role, "") == name and one.found:
                    counted.setdefault((one.role, one.parameter), Counter())[one.found, one.source] += 1
                    asked.setdefault((one.role, one.parameter), one.asked)
    return [
        Applied(
            role=role,
            parameter=parameter,
            asked=asked[role, parameter],
            found=[(value, source, count) for (value, source), count in counts.most_common(6)],
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
    """The median of each cell that has one, in the metric's unit or in per cent of `full`, coloured by server if
    `groups` has colours."""
    unit = BY_KEY[metric]
    factor = unit.unit.factor if full is None else 100 / full
    found = []
    for cell in cells:
        summary = cell.summaries.get(metric)
        if summary is None:
            continue
        span = ""
        if summary.spread is not None:
            kind, low, high = summary.spread
            span = f", {kind} {unit.number(low)} to {unit.number(high)}"
        found.append(
            Mark(
                x=summary.median * factor,
                title=f"{cell.client} → {cell.server}, {cell.case.name}: {unit.text(summary.median)}{span}, "
                f"{cell.attempts}",
                href=f"{base}{cell.href}",
                group=groups.get(cell.server, 0) if groups is not None else 0,
            )
        )
    return found


def measurements(cells: Sequence[Cell]) -> list[Cell]:
    """Those of measurements that spoke the case's own protocol: what can be compared."""
    return [cell for cell in cells if cell.case.kind is Kind.MEASUREMENT and not cell.label]
