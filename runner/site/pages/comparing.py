"""The page *Compare*: efficiencies in every two measurements by server or congestion controller, variants compared with
their stack, this run compared with the previous run."""

from itertools import combinations
from statistics import median
from typing import Any

from markupsafe import Markup

from runner.compare import report
from runner.compare.rankings import spearman
from runner.model.result import BY_KEY
from runner.model.run import Kind
from runner.site.charts import Axis, Mark, scatter
from runner.site.pages import Page, Pages
from runner.site.pages.overview import changed_rows
from runner.site.view import Cell, RunView, controller
from runner.units import NARROW

NAV = (3, "Compare", "compare.html")
NEEDS = "stacks"
_MOST_PAIRS = 15  # pairs of measurements: all pairs of six measurements
_VARIANT_METRICS = ("ttlb", "goodput", "efficiency", "handshake_time", "retransmission_ratio")


def pages(view: RunView) -> Pages:
    pairs = list(combinations(cases_with(view, "efficiency"), 2))
    context: dict[str, Any] = {
        "grid": [_against(view, first, other) for first, other in pairs[:_MOST_PAIRS]],
        "left_out": max(0, len(pairs) - _MOST_PAIRS),
        "server_groups": list(groups(view, "server").items()),
        "controller_groups": list(groups(view, "controller").items()),
        "variants": _variants(view),
        "variant_metrics": [BY_KEY[key] for key in _VARIANT_METRICS],
        "two_runs": _two_runs(view),
        "changes": view.changes,
        "previous": view.previous,
        "every_change": changed_rows(view),
        "head": report.HEAD,
    }
    yield Page("compare.html", "compare.html", context)


def cases_with(view: RunView, metric: str) -> list[str]:
    """The measurements that have the metric (goodput or efficiency). When there are none, the test cases that transfer
    enough data for it."""
    known = {cell.case.name for cell in view.measured if metric in cell.summaries and not cell.label}
    named = [name for name in view.scenarios if name in known]
    return [name for name in named if view.run.cases[name].kind is Kind.MEASUREMENT] or named


def _against(view: RunView, first: str, other: str) -> dict[str, Any]:
    """The efficiencies of the pairs in two measurements: a chart for each kind of colours, and their correlation."""
    title = f"Efficiency in {other} against {first}, by"
    marks = {by: scatter_marks(view, first, other, by) for by in ("server", "controller")}
    charts = {f"by_{by}": relation(some, first, other, title=f"{title} {by}") for by, some in marks.items()}
    correlation = spearman([mark.x for mark in marks["server"]], [mark.y for mark in marks["server"]])
    return charts | {"first": first, "other": other, "correlation": correlation}


def groups(view: RunView, by: str) -> dict[str, int]:
    """The number of each group, by the group's name. Groups are the servers, or the congestion controllers of the
    servers."""
    if by == "server":
        return {name: number for number, name in enumerate(view.servers)}
    names = sorted({controller(view.run.implementations, name) for name in view.servers})
    return {name: number for number, name in enumerate(names)}


def _medians(view: RunView, case: str, metric: str) -> dict[tuple[str, str], Cell]:
    return {
        (cell.server, cell.client): cell for cell in view.cells_of(case) if metric in cell.summaries and not cell.label
    }


def scatter_marks(view: RunView, first: str, other: str, by: str) -> list[Mark]:
    """A mark for each pair that has an efficiency in both cases. The axes are in per cent."""
    x, y = (_medians(view, case, "efficiency") for case in (first, other))
    numbers = groups(view, by)
    marks = []
    for pair in x.keys() & y.keys():
        server, client = pair
        values = [100 * cells[pair].summaries["efficiency"].median for cells in (x, y)]
        name = server if by == "server" else controller(view.run.implementations, server)
        marks.append(
            Mark(
                x=values[0],
                y=values[1],
                title=f"{client} → {server} ({controller(view.run.implementations, server)}): "
                f"{first} {values[0]:.1f}{NARROW}%, {other} {values[1]:.1f}{NARROW}%",
                href=y[pair].href,
                group=numbers[name],
            )
        )
    return sorted(marks, key=lambda mark: mark.title)


def relation(marks: list[Mark], first: str, other: str, *, title: str) -> Markup:
    """The efficiencies of pairs in one case against those in another case."""
    across, up = (Axis(label=f"η in {case} (%)", end=100.0) for case in (first, other))
    return scatter(marks, across, up, title=title, diagonal=True)


def _variants(view: RunView) -> list[dict[str, Any]]:
    """The numbers of each stack that has variants in this run, and the numbers of its variants, by role and case."""
    table_rows = []
    stacks = view.run.implementations
    for name in dict.fromkeys(stack.variant_of for stack in stacks.values() if stack.variant_of):
        family = [name, *(stack.name for stack in stacks.values() if stack.variant_of == name)]
        for role in ("server", "client"):
            rows = [(member, _numbers(view, role, member)) for member in family]
            rows = [(member, numbers) for member, numbers in rows if numbers]
            if len(rows) > 1:
                cases = [case for case in view.scenarios if any(case in numbers for _, numbers in rows)]
                table_rows.append({"stack": name, "role": role, "rows": rows, "cases": cases})
    return table_rows


def _numbers(view: RunView, role: str, name: str) -> dict[str, dict[str, float]]:
    """For each case, the median of each metric over the stacks of the opposite role."""
    values: dict[str, dict[str, float]] = {}
    for case in view.scenarios:
        cells = [cell for cell in view.cells_of(case) if getattr(cell, role) == name and not cell.label]
        for metric in _VARIANT_METRICS:
            known = [cell.summaries[metric].median for cell in cells if metric in cell.summaries]
            if known:
                values.setdefault(case, {})[metric] = median(known)
    return values


def _two_runs(view: RunView) -> list[tuple[str, Markup]]:
    """For each measurement, a chart of the delivery time of each pair in the previous run and in this run."""
    before = view.previous
    if before is None:
        return []
    delivery = BY_KEY["ttlb"]
    tables = []
    for case in cases_with(view, "efficiency"):
        old, new = _medians(before, case, "ttlb"), _medians(view, case, "ttlb")
        numbers = groups(view, "server")
        marks = [
            Mark(
                x=old[pair].summaries["ttlb"].median * delivery.factor,
                y=new[pair].summaries["ttlb"].median * delivery.factor,
                title=f"{pair[1]} → {pair[0]}: {delivery.text(old[pair].summaries['ttlb'].median)} before, "
                f"{delivery.text(new[pair].summaries['ttlb'].median)} now",
                href=new[pair].href,
                group=numbers.get(pair[0], 0),
            )
            for pair in sorted(old.keys() & new.keys())
        ]
        end = 1.04 * max((max(mark.x, mark.y) for mark in marks), default=0.0)
        chart = scatter(
            marks,
            Axis(label=f"{before.name} (s)", end=end),
            Axis(label=f"{view.name} (s)", end=end),
            title=f"Delivery time in {case}: {view.name} against {before.name}",
            diagonal=True,
        )
        if chart:
            tables.append((case, chart))
    return tables
