"""Figures 5.1 to 5.6 of the thesis: matrices, distributions, relations."""

from collections.abc import Callable, Iterable
from typing import Any

from runner.model.result import Outcome
from runner.model.run import Kind
from runner.render import gather
from runner.render.axes import Axis
from runner.render.cells import Cell
from runner.render.charts import Mark, Strip, heat, scatter, strips
from runner.render.deciding import controller
from runner.render.pages.comparing import groups, scatter_marks
from runner.render.view import RunView, stack_href

Figure = dict[str, Any]
_BASE = "../"
_MOST_PANELS = 6


def cases_of(view: RunView) -> list[str]:
    """The measurements with a goodput. When there are none, the test cases that transfer enough data for a goodput."""
    known = {cell.case.name for cell in view.measured if not cell.label}
    named = [name for name in view.scenarios if name in known]
    return [name for name in named if view.run.cases[name].kind is Kind.MEASUREMENT] or named


def plain(view: RunView, case: str) -> list[Cell]:
    """The cells of the case that ran over the case's own protocol."""
    return [cell for cell in view.cells_of(case) if not cell.label]


def _rows(
    view: RunView, cases: Iterable[str], metrics: tuple[str, ...] = ("goodput", "efficiency")
) -> list[dict[str, Any]]:
    """One row for each cell: mean and median over its iterations, in SI units."""
    figures = []
    for case in cases:
        for cell in plain(view, case):
            if metrics[0] in cell.summaries:
                row: dict[str, Any] = {"server": cell.server, "client": cell.client, "case": case}
                row["controller"] = controller(view.run.implementations, cell.server)
                for metric in metrics:
                    summary = cell.summaries.get(metric)
                    row |= {f"{metric}_mean": summary and summary.mean, f"{metric}_median": summary and summary.median}
                figures.append(row)
    return figures


def matrices(view: RunView) -> Figure:
    """Figure 5.1: the mean goodput of each pair as matrices."""
    panels = []
    for case in cases_of(view)[:_MOST_PANELS]:
        values = {
            (cell.server, cell.client): (
                cell.summaries["goodput"].mean / 1e6 if "goodput" in cell.summaries else None,
                cell.summaries["efficiency"].mean if "efficiency" in cell.summaries else None,
                cell.sign,
            )
            for cell in plain(view, case)
            if cell.results
        }
        panels.append((case, heat(view.servers, view.clients, values, title=f"Mean goodput (Mbit/s) in {case}")))
    return {
        "number": "5.1",
        "title": "Result matrices",
        "panels": panels,
        "rows": _rows(view, cases_of(view)),
        "text": "Mean goodput in Mbit/s of the iterations that succeeded, servers by clients; the colour shows η.",
        "href": "index.html",
        "missing": "No case of this run has a goodput.",
    }


def distributions(view: RunView) -> Figure:
    """Figure 5.2: the distribution over all jobs; failed jobs count as 0."""
    rows, left, right = [], [], []
    for case in cases_of(view):
        goodput, efficiency = [], []
        for cell in plain(view, case):
            for result in cell.results:
                if result.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
                    continue
                sample = result.sample if result.outcome is Outcome.SUCCEEDED else None
                rate = sample.goodput if sample is not None and sample.goodput is not None else 0.0
                share = rate / cell.case.forward.data_rate
                title = f"{cell.client} → {cell.server}, {case}, iteration {result.iteration}"
                goodput.append(Mark(x=rate / 1e6, title=title, href=_BASE + cell.href))
                efficiency.append(Mark(x=100 * share, title=title, href=_BASE + cell.href))
                rows.append(
                    {
                        "server": cell.server,
                        "client": cell.client,
                        "case": case,
                        "iteration": result.iteration,
                        "outcome": result.outcome.value,
                        "goodput": rate,
                        "efficiency": share,
                    }
                )
        left.append(Strip(label=case, marks=goodput, note=f"n {len(goodput)}"))
        right.append(Strip(label=case, marks=efficiency, note=f"n {len(efficiency)}"))
    panels = [
        ("goodput", strips(left, Axis(label="goodput (Mbit/s)"), title="Goodput of all jobs")),
        ("normalised", strips(right, Axis(label="efficiency η (%)", end=100.0), title="Efficiency of all jobs")),
    ]
    return {
        "number": "5.2",
        "title": "Distribution of the results of all measurements",
        "panels": panels,
        "rows": rows,
        "text": "All jobs. A failed job counts as 0, as in the thesis.",
        "missing": "No case of this run has a goodput.",
    }


def swarms(view: RunView) -> Figure:
    """Figure 5.3: mean goodput of each pair, coloured by server."""
    numbers = groups(view, "server")
    rows = []
    for case in cases_of(view):
        marks = [
            Mark(
                x=cell.summaries["goodput"].mean / 1e6,
                title=f"{cell.client} → {cell.server}",
                href=_BASE + cell.href,
                group=numbers[cell.server],
            )
            for cell in plain(view, case)
            if "goodput" in cell.summaries
        ]
        rows.append(Strip(label=case, marks=marks, note=f"n {len(marks)}"))
    chart = strips(rows, Axis(label="mean goodput (Mbit/s)"), title="Mean goodput of each pair, by measurement")
    return {
        "number": "5.3",
        "title": "Mean goodput of each pair",
        "panels": [("", chart)],
        "rows": _rows(view, cases_of(view)),
        "text": "Each server has its colour and shape, the same as on the page Compare.",
        "missing": "No case of this run has a goodput.",
    }


def by_implementation(view: RunView) -> Figure:
    """Figure 5.4: the goodput of each stack as server and as client."""
    panels = []
    for case in cases_of(view)[:_MOST_PANELS]:
        cells = plain(view, case)
        rows = []
        for name in view.stacks:
            for group, role in enumerate(("server", "client")):
                marks = gather.marks([c for c in cells if getattr(c, role) == name], "goodput", base=_BASE)
                if marks:
                    rows.append(Strip(label=f"{name}, {role}", marks=marks, group=group, href=_BASE + stack_href(name)))
        panels.append(
            (case, strips(rows, Axis(label="median goodput (Mbit/s)"), title=f"Goodput by implementation in {case}"))
        )
    return {
        "number": "5.4",
        "title": "Distribution by implementation",
        "panels": panels,
        "rows": _rows(view, cases_of(view)),
        "text": "Points with quartiles. The thesis draws violin plots, which need more values than this run has.",
        "missing": "No case of this run has a goodput.",
    }


def relations(view: RunView) -> Figure:
    """Figure 5.5: efficiency in one measurement against efficiency in another measurement, by server."""
    return _relations(view, "5.5", "Efficiency of the same pairs in different measurements", "server", 15)


def controllers(view: RunView) -> Figure:
    """Figure 5.6: efficiency in one measurement against efficiency in another measurement, by congestion controller."""
    return _relations(view, "5.6", "The same, by the server's congestion controller", "controller", 2)


def _relations(view: RunView, number: str, title: str, by: str, most: int) -> Figure:
    cases = cases_of(view)
    pairs = [(first, other) for index, other in enumerate(cases) for first in cases[:index]][:most]
    panels = []
    rows = []
    for first, other in pairs:
        marks = scatter_marks(view, first, other, by)
        rows += [
            {
                "pair": mark.title.partition(":")[0],
                "x": first,
                "y": other,
                "x_value": mark.x / 100,
                "y_value": mark.y / 100,
            }
            for mark in marks
        ]
        marks = [Mark(x=m.x, y=m.y, title=m.title, href=_BASE + m.href, group=m.group) for m in marks]
        panels.append(
            (
                f"{first}, {other}",
                scatter(
                    marks,
                    Axis(label=f"η in {first} (%)", end=100.0),
                    Axis(label=f"η in {other} (%)", end=100.0),
                    title=f"{other} against {first}",
                    diagonal=True,
                ),
            )
        )
    legend = shapes(groups(view, by))
    return {
        "number": number,
        "title": title,
        "panels": panels,
        "rows": rows,
        "text": f"Median η of each pair. {by.capitalize()}: {legend}.",
        "missing": "This figure needs two cases with a goodput.",
    }


def shapes(names: Iterable[str]) -> str:
    """A legend of the marks: each name with its shape, in the order of the groups."""
    return ", ".join(f"{name} ({_SHAPES[group % len(_SHAPES)]})" for group, name in enumerate(names))


_SHAPES = ("circle", "square", "triangle", "diamond", "cross", "triangle down", "plus", "hourglass")


FIGURES: tuple[Callable[[RunView], Figure], ...] = (
    matrices,
    distributions,
    swarms,
    by_implementation,
    relations,
    controllers,
)
