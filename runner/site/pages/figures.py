"""The page *Figures*: counterparts of the thesis' figures 5.1 to 5.24, made from this run."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from runner.model.result import BY_KEY, Outcome, Result
from runner.model.run import REAL
from runner.site import charts, exports, headlines
from runner.site.charts import Axis, Mark, Strip, curves, heat, lines, scatter, standalone, strips
from runner.site.pages import Asset, Page, Pages
from runner.site.pages.comparing import cases_with, groups, relation, scatter_marks
from runner.site.series import KINDS, Series, joined, load_series
from runner.site.view import Cell, RunView, controller, stack_href

# Figures 5.1 to 5.6 of the thesis: matrices, distributions, relations.

Figure = dict[str, Any]  # `panels` (caption, SVG), `rows` of its CSV file, `text`, `href` relative to the run's folder
_BASE = "../"
_MOST_PANELS = 6
_FLAT = (860.0, 320.0)  # size of a drawing over time


def cases_of(view: RunView) -> list[str]:
    """The cases of the figures, which have a goodput."""
    return cases_with(view, "goodput")


def plain(view: RunView, case: str) -> list[Cell]:
    """The cells of the case that ran over the case's own protocol."""
    return [cell for cell in view.cells_of(case) if not cell.label]


def _rows(view: RunView, cases: Iterable[str]) -> list[dict[str, Any]]:
    """One row for each cell with a goodput: mean and median over its iterations, in SI units."""
    rows = []
    for cell in (cell for case in cases for cell in plain(view, case) if "goodput" in cell.summaries):
        row: dict[str, Any] = cell.place | {"controller": controller(view.run.implementations, cell.server)}
        for metric in ("goodput", "efficiency"):
            summary = cell.summaries.get(metric)
            row |= {f"{metric}_mean": summary and summary.mean, f"{metric}_median": summary and summary.median}
        rows.append(row)
    return rows


def _goodput_mark(cell: Cell, **more: Any) -> Mark:
    """A mark at the cell's mean goodput in Mbit/s."""
    return Mark(x=cell.summaries["goodput"].mean / 1e6, title=cell.ends, **more)


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
        "panels": panels,
        "rows": _rows(view, cases_of(view)),
        "text": "Mean goodput in Mbit/s of the iterations that succeeded, servers by clients; the colour shows η.",
        "href": "index.html",
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
                title = f"{cell.ends}, {case}, iteration {result.iteration}"
                goodput.append(Mark(x=rate / 1e6, title=title, href=_BASE + cell.href))
                efficiency.append(Mark(x=100 * share, title=title, href=_BASE + cell.href))
                row = cell.place | {"iteration": result.iteration, "outcome": result.outcome.value}
                rows.append(row | {"goodput": rate, "efficiency": share})
        left.append(Strip(label=case, marks=goodput, note=f"n {len(goodput)}"))
        right.append(Strip(label=case, marks=efficiency, note=f"n {len(efficiency)}"))
    panels = [
        ("goodput", strips(left, Axis(label="goodput (Mbit/s)"), title="Goodput of all jobs")),
        ("normalised", strips(right, Axis(label="efficiency η (%)", end=100.0), title="Efficiency of all jobs")),
    ]
    return {
        "panels": panels,
        "rows": rows,
        "text": "All jobs. A failed job counts as 0, as in the thesis.",
    }


def swarms(view: RunView) -> Figure:
    """Figure 5.3: mean goodput of each pair, coloured by server."""
    numbers = groups(view, "server")
    rows = []
    for case in cases_of(view):
        known = [cell for cell in plain(view, case) if "goodput" in cell.summaries]
        marks = [_goodput_mark(cell, href=_BASE + cell.href, group=numbers[cell.server]) for cell in known]
        rows.append(Strip(label=case, marks=marks, note=f"n {len(marks)}"))
    chart = strips(rows, Axis(label="mean goodput (Mbit/s)"), title="Mean goodput of each pair, by measurement")
    return {
        "panels": [("", chart)],
        "rows": _rows(view, cases_of(view)),
        "text": "Each server has its colour and shape, the same as on the page Compare.",
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
        "panels": panels,
        "rows": _rows(view, cases_of(view)),
        "text": "Points with quartiles. The thesis draws violin plots, which need more values than this run has.",
    }


def relations(view: RunView, by: str, most: int) -> Figure:
    """Figures 5.5 and 5.6: efficiency in one measurement against efficiency in another measurement. `by`: `server` or
    `controller`, for the colours."""
    cases = cases_of(view)
    rows, panels = [], []
    for first, other in [(first, other) for index, other in enumerate(cases) for first in cases[:index]][:most]:
        marks = [replace(mark, href=_BASE + mark.href) for mark in scatter_marks(view, first, other, by)]
        for mark in marks:
            row = {"pair": mark.title.partition(":")[0], "x": first, "y": other}
            rows.append(row | {"x_value": mark.x / 100, "y_value": mark.y / 100})
        panels.append((f"{first}, {other}", relation(marks, first, other, title=f"{other} against {first}")))
    return {
        "panels": panels,
        "rows": rows,
        "text": f"Median η of each pair. {by.capitalize()}: {shapes(groups(view, by))}.",
    }


def shapes(names: Iterable[str]) -> str:
    """A legend of the marks: each name with its shape, in the order of the groups."""
    return ", ".join(f"{name} ({_SHAPES[group % len(_SHAPES)]})" for group, name in enumerate(names))


_SHAPES = ("circle", "square", "triangle", "diamond", "cross", "triangle down", "plus", "hourglass")


# Figures 5.21 to 5.24 of the thesis: comparison with other results, values over several runs, values over the time of
# a run.


def before_and_now(view: RunView) -> Figure:
    """Figure 5.21: this run compared with the previous run. The thesis compares with the public runner instead."""
    if view.previous is None:
        return {}
    rows: list[dict[str, Any]] = []
    drawn = []
    for case in cases_of(view):
        for group, run in enumerate((view.previous, view)):
            cells = [cell for cell in plain(run, case) if "goodput" in cell.summaries]
            marks = [_goodput_mark(cell) for cell in cells]
            drawn.append(Strip(label=f"{case}, {run.name}", marks=marks, group=group, note=f"n {len(marks)}"))
            rows += [
                {"run": run.name} | cell.place | {"goodput_mean": cell.summaries["goodput"].mean} for cell in cells
            ]
    title = "Mean goodput of each pair, in this run and the previous one"
    return {
        "panels": [("", strips(drawn, Axis(label="mean goodput (Mbit/s)"), title=title))],
        "rows": rows,
        "text": "The thesis compares with the public runner. Here it is the previous run of the same plan.",
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
    return {"panels": panels, "rows": rows}


def conditions(view: RunView) -> Figure:
    """Figure 5.23: the load of the host over time. The thesis shows the weather instead."""
    rows = []
    pressure, late = [], []
    for job, result in view.results().items():
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
        (caption, scatter(marks, clock, Axis(label=label), title=title, size=_FLAT))
        for marks, caption, label, title in (
            (pressure, "time in which some task waited for a CPU", "CPU pressure (%)", "CPU pressure over time"),
            (late, "99th percentile of the simulator's lateness", "lateness (ms)", "Lateness over time"),
        )
    ]
    return {
        "panels": panels,
        "rows": rows,
        "text": "The thesis shows the weather at its antennas. Emulated links depend on the load of the host instead.",
    }


def over_time(view: RunView) -> Figure:
    """Figure 5.24: every efficiency over the time of the run and over the time of day, with least-squares lines."""
    rows: list[dict[str, Any]] = []
    along: list[Mark] = []
    daily: list[Mark] = []
    for group, case in enumerate(cases_of(view)):
        for cell, result in ((known, result) for known in plain(view, case) for result in known.results):
            at, sample = result.started_unix_s, result.sample
            if not at or result.outcome is not Outcome.SUCCEEDED or sample is None or sample.efficiency is None:
                continue
            hour = at % 86_400 / 3600  # Unix time has no leap seconds
            mark = Mark(x=at, y=100 * sample.efficiency, title=f"{cell.ends}, {case}", group=group)
            along.append(mark)
            daily.append(replace(mark, x=hour))
            row = cell.place | {"iteration": result.iteration, "started_unix_s": at, "hour_utc": hour}
            rows.append(row | {"efficiency": sample.efficiency, "goodput": sample.goodput})
    panels = [
        (caption, scatter(marks, across, Axis(label="η (%)", end=100.0), title=title, size=_FLAT, trend=True))
        for marks, across, caption, title in (
            (along, Axis(label="begin of the job (UTC)", dates=True), "over the run", "Efficiency over time"),
            (daily, Axis(label="hour of the day (UTC)", end=24.0), "over the day", "Efficiency over the time of day"),
        )
    ]
    return {
        "panels": panels,
        "rows": rows,
        "text": "Dashed: least squares of each measurement. When the jobs ran in shuffled order, a slope comes from "
        f"the host. {shapes(cases_of(view))}.",
    }


# Figures 5.7 to 5.20 of the thesis: for each pattern, the trace of this run that shows it best.

_MOST_OTHERS = 9


@dataclass(frozen=True, kw_only=True)
class DrawnTrace:
    """One iteration of a cell. `why`: the reason for its choice. `start` and `end`: the bounds of the part to show, in
    seconds."""

    cell: Cell
    result: Result
    why: str
    start: float = 0.0
    end: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.cell.ends}, {self.cell.case.name}, iteration {self.result.iteration}"


def candidates(view: RunView) -> Iterator[tuple[Cell, Result]]:
    """Iterations with numbers, of cells that transfer enough data for a curve."""
    for cell in view.measured:
        for result in cell.results:
            if result.sample is not None and result.sample.goodput is not None:
                yield cell, result


def best(
    view: RunView, score: Callable[[Cell, Result], float | None], why: str, *, least: bool = False
) -> DrawnTrace | None:
    """The iteration with the highest score or, with `least`, the lowest; None when no iteration has a score."""
    scored = [(value, cell, result) for cell, result in candidates(view) if (value := score(cell, result)) is not None]
    if not scored:
        return None
    _, cell, result = (min if least else max)(scored, key=lambda entry: entry[0])
    return DrawnTrace(cell=cell, result=result, why=why)


def diagnosed(view: RunView, *codes: str) -> DrawnTrace | None:
    """The iteration in which one of these diagnoses has the largest share."""
    found = [
        (diagnosis, cell, result)
        for cell, result in candidates(view)
        for diagnosis in result.diagnoses
        if diagnosis.code in codes
    ]
    if not found:
        return None
    most, cell, result = max(found, key=lambda entry: entry[0].share or 0.0)
    return DrawnTrace(cell=cell, result=result, why=most.sentence, start=most.start, end=most.end)


def series_of(view: RunView, result: Result) -> Series | None:
    """The data of the iteration's plots; None when there is no such data."""
    return load_series(view.artifacts(result.job).series)


def offset(view: RunView, trace: DrawnTrace) -> Markup:
    """Offset versus time, with the cell's other iterations in the background."""
    others = [result for result in trace.cell.results if result.iteration != trace.result.iteration]
    behind = [series for result in others[:_MOST_OTHERS] if (series := series_of(view, result)) is not None]
    return charts.offset_plot(series_of(view, trace.result), behind, title=f"Offset versus time, {trace.name}")


def rates(view: RunView, trace: DrawnTrace) -> Markup:
    """Data rates at the client, as in figure 5.7b: forward with headers, forward goodput, and return with headers."""
    series = series_of(view, trace.result)
    if series is None:
        return Markup()
    named = (("forward, IP", "forward_raw"), ("forward, goodput", "forward_goodput"), ("return, IP", "return_raw"))
    lines = [(words, series.rates[key]) for words, key in named]
    return curves(lines, Axis(label="time (s)"), Axis(label="data rate (Mbit/s)"), title=f"Data rates, {trace.name}")


def detail(view: RunView, trace: DrawnTrace) -> Markup:
    """The single STREAM frames from the start of the pattern on, as the server sent them."""
    series = series_of(view, trace.result)
    if series is None:
        return Markup()
    frames = series.server
    width = max(0.05, min(0.3, (trace.end - trace.start) / 4))
    inside = (frames.time >= 1e6 * trace.start) & (frames.time <= 1e6 * (trace.start + width))
    if not inside.any():
        return Markup()
    low = int(frames.offset[inside].min())
    chosen = (column[inside][:2000].tolist() for column in (frames.time, frames.offset, frames.kind))
    marks = [
        Mark(
            x=at / 1e3 - 1e3 * trace.start,
            y=(place - low) / 1024,
            group=2 if kind else 0,
            title=f"{at / 1e6:.4f} s, offset {place}",
        )
        for at, place, kind in zip(*chosen, strict=True)
    ]
    across, up = Axis(label=f"ms after {trace.start:.3f} s"), Axis(label=f"offset above {low / 2**20:.2f} MiB (KiB)")
    return scatter(marks, across, up, title=f"Detail, {trace.name}", size=(860, 380))


def trace_rows(view: RunView, trace: DrawnTrace) -> list[dict[str, Any]]:
    """The frames at both vantage points, joined as by `joined`."""
    series = series_of(view, trace.result)
    if series is None:
        return []
    rows: list[dict[str, Any]] = []
    for vantage in ("client", "server"):
        frames = joined(getattr(series, vantage))
        head = trace.cell.place | {"iteration": trace.result.iteration, "vantage": vantage}
        columns = (column.tolist() for column in (frames.time, frames.offset, frames.length, frames.kind))
        rows += [
            head | {"time_s": at / 1e6, "offset": place, "length": length, "kind": KINDS[kind]}
            for at, place, length, kind in zip(*columns, strict=True)
        ]
    return rows


def sentence(trace: DrawnTrace) -> str:
    """The trace's numbers and the reason for its choice."""
    sample = trace.result.sample
    assert sample is not None  # candidates
    efficiency, goodput = BY_KEY["efficiency"], BY_KEY["goodput"]
    return (
        f"{trace.name}: η {efficiency.text(sample.efficiency)}, {goodput.text(sample.goodput)}, "
        f"TTLB {BY_KEY['ttlb'].text(sample.ttlb)}. {trace.why}"
    )


def _ideal(_: Cell, result: Result) -> float | None:
    """The share of the time in which the link was full, minus the retransmission ratio."""
    retransmitted = result.sample.retransmission_ratio if result.sample is not None else None
    return result.limits["link"] - (retransmitted or 0.0) if "link" in result.limits else None


def _lossy(cell: Cell, result: Result) -> bool:
    lost = result.truth is not None and result.truth.forward.dropped_loss > 0
    return lost or cell.case.forward.loss > 0


def _in_loss(cell: Cell, result: Result) -> float | None:
    return result.sample.efficiency if result.sample is not None and _lossy(cell, result) else None


def _growing(cell: Cell, result: Result) -> float | None:
    if _lossy(cell, result) or result.sample is None or (result.sample.retransmission_ratio or 0) > 0.01:
        return None
    return result.limits.get("congestion window")


def _spread(cell: Cell, result: Result) -> float | None:
    """The ratio of the slowest iteration's TTLB to the cell's median TTLB; None for other iterations."""
    ttlb = cell.summaries.get("ttlb")
    if ttlb is None or ttlb.n < 2 or result.sample is None or result.sample.ttlb != ttlb.maximum:
        return None
    return ttlb.maximum / ttlb.median


def _traced(view: RunView, trace: DrawnTrace | None, *, with_rates: bool = False, with_detail: bool = False) -> Figure:
    """The figure of a trace; empty without a trace."""
    if trace is None:
        return {}
    panels = [("detail", detail(view, trace)) if with_detail else ("offset versus time", offset(view, trace))]
    if with_rates:
        panels.append(("data rates", rates(view, trace)))
    href = f"{trace.cell.href}#iteration={trace.result.iteration}"
    return {"panels": panels, "rows": trace_rows(view, trace), "text": sentence(trace), "href": href}


def _second_spread(view: RunView) -> DrawnTrace | None:
    first = best(view, _spread, "")
    return first and best(view, lambda c, r: None if c.ends == first.cell.ends else _spread(c, r), _SLOWEST)


_SLOWEST = (
    "The slowest iteration, drawn in front of the others. Of the traces for this figure, its TTLB has the highest "
    "ratio to the median of its cell."
)


def windows(view: RunView) -> Figure:
    """Figure 5.10: two variants of one stack with different initial windows, in one case and with one client."""
    stacks = view.run.implementations
    for cell in view.measured:
        record = stacks.get(cell.server)
        if record is None or "IW" not in record.parameters or cell.shown is None:
            continue
        plain = view.table.get((record.variant_of, cell.client, cell.case.name))
        if plain is None or plain.shown is None or "goodput" not in plain.summaries:
            continue
        chosen, other = (
            next(result for result in drawn.results if result.iteration == drawn.shown) for drawn in (cell, plain)
        )
        front, behind = series_of(view, chosen), series_of(view, other)
        if front is None or behind is None:
            continue
        trace = DrawnTrace(cell=cell, result=chosen, why=f"In grey: {record.variant_of} with its default window.")
        svg = charts.offset_plot(front, [behind], title=f"Offset versus time, {trace.name}")
        rows = trace_rows(view, trace) + trace_rows(view, replace(trace, cell=plain, result=other))
        return {"panels": [("", svg)], "rows": rows, "text": sentence(trace), "href": cell.href}
    return {}


_IDEAL = "Its share of time with a full forward link, minus its retransmission ratio, is the largest of this run."
_GROWING = "Of all traces without losses, the congestion window limited this trace for the largest share of time."
_HIGHEST = "The highest η of all jobs in which the link lost packets."
_LOWEST = "The lowest η of all jobs in which the link lost packets."
TRACE_FIGURES: dict[str, Callable[[RunView], Figure]] = {
    "5.7": lambda v: _traced(v, best(v, _ideal, _IDEAL), with_rates=True),
    "5.8": lambda v: _traced(v, best(v, _in_loss, _HIGHEST)),
    "5.9": lambda v: _traced(v, best(v, _growing, _GROWING)),
    "5.10": windows,
    "5.11": lambda v: _traced(v, diagnosed(v, "bursts", "slow-start-left-early")),
    "5.12": lambda v: _traced(v, best(v, lambda c, r: _spread(c, r) if _lossy(c, r) else None, _SLOWEST)),
    "5.13": lambda v: _traced(v, best(v, _in_loss, _LOWEST, least=True)),
    "5.14": lambda v: _traced(v, diagnosed(v, "out-of-order")),
    "5.15": lambda v: _traced(v, diagnosed(v, "out-of-order"), with_detail=True),
    "5.16": lambda v: _traced(v, diagnosed(v, "retransmitted-tail")),
    "5.17": lambda v: _traced(v, diagnosed(v, "spurious-retransmissions", "sent-twice")),
    "5.18": lambda v: _traced(v, diagnosed(v, "rate-collapse")),
    "5.19": lambda v: _traced(v, best(v, _spread, _SLOWEST)),
    "5.20": lambda v: _traced(v, _second_spread(v)),
}


# The page. Each figure has files in SVG, CSV and Parquet; the page's script makes PNG. The template has the titles, and
# the sentences for figures that this run can't show.

NAV = (4, "Figures", "figures/index.html")
NEEDS = "stacks"

FIGURES: dict[str, Callable[[RunView], Figure]] = {
    "5.1": matrices,
    "5.2": distributions,
    "5.3": swarms,
    "5.4": by_implementation,
    "5.5": lambda view: relations(view, "server", 15),
    "5.6": lambda view: relations(view, "controller", 2),
    **TRACE_FIGURES,
    "5.21": before_and_now,
    "5.22": over_runs,
    "5.23": conditions,
    "5.24": over_time,
}


def pages(view: RunView) -> Pages:
    drawn = []
    for key, draw in FIGURES.items():
        figure: Figure = {"number": key, "rows": (), "text": "", "href": ""} | draw(view)
        panels = [(caption, svg) for caption, svg in figure.get("panels", ()) if svg]
        files = []  # words, path relative to the run
        stem = f"figures/{key.replace('.', '-')}"
        for number, (_, svg) in enumerate(panels):
            path = f"{stem}{'' if len(panels) == 1 else '-' + str(number + 1)}.svg"
            files.append(("SVG" if len(panels) == 1 else f"SVG {number + 1}", path))
            yield Asset(path, standalone(svg))
        if figure["rows"] and panels:
            files += [("CSV", f"{stem}.csv"), ("Parquet", f"{stem}.parquet")]
            yield Asset(f"{stem}.csv", exports.as_csv(figure["rows"]))
            yield Asset(f"{stem}.parquet", exports.as_parquet(figure["rows"]))
        drawn.append(figure | {"panels": panels, "files": files})
    yield Page("figures/index.html", "figures.html", {"figures": drawn})
