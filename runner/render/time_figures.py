"""Figures 5.21 to 5.24 of the thesis: comparison with other results, values over several runs, values over the time of
a run."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from runner.model.estimate import REAL
from runner.model.result import Outcome, Result
from runner.render.axes import Axis
from runner.render.cells import Cell
from runner.render.charts import Mark, Strip, lines, scatter, strips
from runner.render.statistics_figures import Figure, cases_of, plain, shapes
from runner.render.view import RunView


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


FIGURES: tuple[Callable[[RunView], Figure], ...] = (before_and_now, over_runs, conditions, over_time)
