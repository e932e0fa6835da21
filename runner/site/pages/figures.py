"""The page *Figures*: counterparts of the thesis' figures 5.1 to 5.24, made from this run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from runner.model.deployment import REAL
from runner.model.result import Outcome, Result
from runner.model.run import Kind
from runner.site import exports, headlines, trace_figures
from runner.site.cells import Cell
from runner.site.charts import Axis, Mark, Strip, heat, lines, scatter, standalone, strips
from runner.site.pages import Asset, Page, Pages
from runner.site.pages.comparing import groups, scatter_marks
from runner.site.view import RunView, controller, stack_href

# Figures 5.1 to 5.6 of the thesis: matrices, distributions, relations.

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
                marks = headlines.marks([c for c in cells if getattr(c, role) == name], "goodput", base=_BASE)
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


STATISTICS_FIGURES: tuple[Callable[[RunView], Figure], ...] = (
    matrices,
    distributions,
    swarms,
    by_implementation,
    relations,
    controllers,
)


# Figures 5.21 to 5.24 of the thesis: comparison with other results, values over several runs, values over the time of
# a run.


def before_and_now(view: RunView) -> Figure:
    """Figure 5.21: this run compared with the previous run. The thesis compares with the public runner instead."""
    rows: list[dict[str, Any]] = []
    figure_rows = []
    if view.before is not None:
        for case in cases_of(view):
            for group, view_of_group in enumerate((view.before, view)):
                cells = [cell for cell in plain(view_of_group, case) if "goodput" in cell.summaries]
                marks = [Mark(x=c.summaries["goodput"].mean / 1e6, title=f"{c.client} → {c.server}") for c in cells]
                figure_rows.append(
                    Strip(label=f"{case}, {view_of_group.name}", marks=marks, group=group, note=f"n {len(marks)}")
                )
                rows += [
                    {
                        "run": view_of_group.name,
                        "server": c.server,
                        "client": c.client,
                        "case": case,
                        "goodput_mean": c.summaries["goodput"].mean,
                    }
                    for c in cells
                ]
    chart = strips(
        figure_rows,
        Axis(label="mean goodput (Mbit/s)"),
        title="Mean goodput of each pair, in this run and the previous one",
    )
    return {
        "number": "5.21",
        "title": "Against other results",
        "panels": [("", chart)] if figure_rows else [],
        "rows": rows,
        "text": "The thesis compares with the public runner. Here it is the previous run of the same plan.",
        "missing": "This site has no earlier run of this plan on the same host.",
    }


def over_runs(view: RunView) -> Figure:
    """Figure 5.22: goodput by server over the runs of the plan."""
    rows: list[dict[str, Any]] = []
    panels: list[tuple[str, Markup]] = []
    for case in cases_of(view)[:2] if len(view.alike) > 1 else ():
        series: dict[str, list[Mark]] = {}
        for folder in view.alike:
            known = folder.levels.get(case, {})
            for server, level in [(server, known[server]) for server in view.servers if server in known]:
                if level.goodput is None:
                    continue
                at = folder.run.started_unix_s
                title = f"{folder.name}, {server}: {level.goodput / 1e6:.2f} Mbit/s"
                series.setdefault(server, []).append(Mark(x=at, y=level.goodput / 1e6, title=title))
                row = {"run": folder.name, "started_unix_s": at, "server": server, "case": case}
                rows.append(row | {"goodput_mean": level.goodput, "n": level.cells})
        chart = lines(
            list(series.items()),
            Axis(label="begin of the run (UTC)", dates=True),
            Axis(label="mean goodput (Mbit/s)"),
            title=f"Goodput in {case} by server over the runs",
        )
        panels.append((case, chart))
    return {
        "number": "5.22",
        "title": "Goodput over several runs, by server",
        "panels": panels,
        "rows": rows,
        "missing": "This figure needs two runs of this plan, made on the same host.",
    }


def conditions(view: RunView) -> Figure:
    """Figure 5.23: the load of the host over time. The thesis shows the weather instead."""
    rows = []
    pressure, late = [], []
    for job, result in view.results.items():
        if not result.started_unix_s or result.clock != REAL:  # every guest begins at the same virtual time
            continue
        if result.cpu_pressure is not None:
            pressure.append(Mark(x=result.started_unix_s, y=100 * result.cpu_pressure, title=str(job)))
        if result.truth is not None:
            late.append(Mark(x=result.started_unix_s, y=1e3 * result.truth.lateness_p99, title=str(job), group=1))
        rows.append(
            {
                "job": str(job),
                "started_unix_s": result.started_unix_s,
                "cpu_pressure": result.cpu_pressure,
                "lateness_p99_s": result.truth and result.truth.lateness_p99,
            }
        )
    clock = Axis(label="begin of the job (UTC)", dates=True)
    panels = [
        (
            "time in which some task waited for a CPU",
            scatter(pressure, clock, Axis(label="CPU pressure (%)"), title="CPU pressure over time", size=(860, 300)),
        ),
        (
            "99th percentile of the simulator's lateness",
            scatter(late, clock, Axis(label="lateness (ms)"), title="Lateness over time", size=(860, 300)),
        ),
    ]
    return {
        "number": "5.23",
        "title": "Conditions during the measurement",
        "panels": panels,
        "rows": rows,
        "text": "The thesis shows the weather at its antennas. Emulated links depend on the load of the host instead.",
        "missing": "No job in real time recorded its conditions.",
    }


def _efficiencies(view: RunView) -> Iterator[tuple[int, Cell, Result, float]]:
    """Every efficiency of a successful job whose start is known: the number of its case, its cell, its result, and the
    value as a fraction."""
    for group, case in enumerate(cases_of(view)):
        for cell in plain(view, case):
            for result in cell.results:
                efficiency = result.sample.efficiency if result.sample is not None else None
                if efficiency is not None and result.started_unix_s and result.outcome is Outcome.SUCCEEDED:
                    yield group, cell, result, efficiency


def over_time(view: RunView) -> Figure:
    """Figure 5.24: every efficiency over the time of the run and over the time of day, with least-squares lines."""
    rows, along, daily = [], [], []
    for group, cell, result, efficiency in _efficiencies(view):
        at = result.started_unix_s
        moment = datetime.fromtimestamp(at, UTC)
        hour = moment.hour + moment.minute / 60 + moment.second / 3600
        title = f"{cell.client} → {cell.server}, {cell.case.name}"
        along.append(Mark(x=at, y=100 * efficiency, title=title, group=group))
        daily.append(Mark(x=hour, y=100 * efficiency, title=title, group=group))
        rows.append(
            {
                "server": cell.server,
                "client": cell.client,
                "case": cell.case.name,
                "iteration": result.iteration,
                "started_unix_s": at,
                "hour_utc": hour,
                "efficiency": efficiency,
                "goodput": result.sample.goodput if result.sample is not None else None,
            }
        )
    panels = [
        (
            "over the run",
            scatter(
                along,
                Axis(label="begin of the job (UTC)", dates=True),
                Axis(label="η (%)", end=100.0),
                title="Efficiency over time",
                size=(860, 320),
                trend=True,
            ),
        ),
        (
            "over the day",
            scatter(
                daily,
                Axis(label="hour of the day (UTC)", end=24.0),
                Axis(label="η (%)", end=100.0),
                title="Efficiency over the time of day",
                size=(860, 320),
                trend=True,
            ),
        ),
    ]
    return {
        "number": "5.24",
        "title": "All values over time",
        "panels": panels,
        "rows": rows,
        "text": "Dashed: least squares of each measurement. When the jobs ran in shuffled order, a slope comes from "
        f"the host. {shapes(cases_of(view))}.",
        "missing": "No job has a value and a time.",
    }


TIME_FIGURES: tuple[Callable[[RunView], Figure], ...] = (before_and_now, over_runs, conditions, over_time)


# The page *Figures*: counterparts of the thesis' figures 5.1 to 5.24, made from this run.
#
# Each figure has files in SVG, CSV and Parquet; the page's script makes PNG.

NAV = (4, "Figures", "figures/index.html")
NEEDS = "stacks"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A drawn figure: its panels (caption, SVG), the rows of its CSV file, and the reason when it is empty."""

    number: str
    title: str
    panels: Sequence[tuple[str, Markup]] = ()
    rows: Sequence[dict[str, Any]] = ()
    text: str = ""
    missing: str = ""
    href: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)  # words, path relative to the run


def pages(view: RunView) -> Pages:
    """The page with all figures, and their files."""
    drawn = []
    figures: list[Callable[[RunView], dict[str, Any]]] = [
        *STATISTICS_FIGURES,
        *trace_figures.TRACE_FIGURES,
        *TIME_FIGURES,
    ]
    for figure in figures:
        content = figure(view)
        panels = [(caption, svg) for caption, svg in content.pop("panels", ()) if svg]
        rows = content.pop("rows", ())
        drawing = Drawn(panels=panels, rows=rows, **content)
        stem = f"figures/{drawing.number.replace('.', '-').replace(' ', '')}"
        for number, (_, svg) in enumerate(drawing.panels):
            path = f"{stem}{'' if len(drawing.panels) == 1 else '-' + str(number + 1)}.svg"
            drawing.files.append(("SVG" if len(drawing.panels) == 1 else f"SVG {number + 1}", path))
            yield Asset(path, standalone(svg))
        if drawing.rows and drawing.panels:
            drawing.files.extend([("CSV", f"{stem}.csv"), ("Parquet", f"{stem}.parquet")])
            yield Asset(f"{stem}.csv", exports.as_csv(drawing.rows))
            yield Asset(f"{stem}.parquet", exports.as_parquet(drawing.rows))
        drawn.append(drawing)
    drawn.sort(key=lambda drawing: [int(part) for part in drawing.number.split(".")])
    yield Page("figures/index.html", "figures.html", {"figures": drawn})
