"""Figures 5.7 to 5.20 of the thesis: for each pattern, the trace of this run that shows it best."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from runner.model.result import Result
from runner.site import charts
from runner.site.cells import BY_KEY, Cell
from runner.site.charts import Axis, Mark, curves, scatter
from runner.site.series import KINDS, Series, joined, load_series
from runner.site.view import RunView

# Finds the trace of a run that shows a pattern best, and draws this trace: offset, data rates, a magnified detail.

Row = dict[str, object]
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
        return f"{self.cell.client} → {self.cell.server}, {self.cell.case.name}, iteration {self.result.iteration}"


def candidates(view: RunView) -> Iterator[tuple[Cell, Result]]:
    """Iterations with numbers, of cells that transfer enough data for a curve."""
    for cell in view.measured:
        for result in cell.results:
            if result.sample is not None and result.sample.goodput is not None:
                yield cell, result


def best(view: RunView, score: Callable[[Cell, Result], float | None], why: str) -> DrawnTrace | None:
    """The iteration with the highest score; None when no iteration has a score."""
    scored = [(value, cell, result) for cell, result in candidates(view) if (value := score(cell, result)) is not None]
    if not scored:
        return None
    _, cell, result = max(scored, key=lambda entry: entry[0])
    return DrawnTrace(cell=cell, result=result, why=why)


def diagnosed(view: RunView, *codes: str) -> DrawnTrace | None:
    """The iteration in which one of these diagnoses has the largest share."""
    diagnosed = [
        (diagnosis.share or 0.0, cell, result, diagnosis)
        for cell, result in candidates(view)
        for diagnosis in result.diagnoses
        if diagnosis.code in codes
    ]
    if not diagnosed:
        return None
    _, cell, result, diagnosis = max(diagnosed, key=lambda entry: entry[0])
    return DrawnTrace(cell=cell, result=result, why=diagnosis.sentence, start=diagnosis.start, end=diagnosis.end)


def series_of(view: RunView, cell: Cell, iteration: int) -> Series | None:
    """The data of the iteration's plots; None when there is no such data."""
    job = next(result.job for result in cell.results if result.iteration == iteration)
    return load_series(view.folder.artifacts(job).series)


def offset(view: RunView, trace: DrawnTrace) -> Markup:
    """Offset versus time, with the cell's other iterations in the background."""
    front = series_of(view, trace.cell, trace.result.iteration)
    iterations = [result.iteration for result in trace.cell.results if result.iteration != trace.result.iteration]
    others = (series_of(view, trace.cell, iteration) for iteration in iterations[:_MOST_OTHERS])
    behind = [series for series in others if series is not None]
    return charts.offset_plot(front, behind, title=f"Offset versus time, {trace.name}")


def rates(view: RunView, trace: DrawnTrace) -> Markup:
    """Data rates at the client, as in figure 5.7b: forward with headers, forward goodput, and return with headers."""
    series = series_of(view, trace.cell, trace.result.iteration)
    if series is None:
        return Markup()
    named = (("forward, IP", "forward_raw"), ("forward, goodput", "forward_goodput"), ("return, IP", "return_raw"))
    lines = [(words, series.rates[key]) for words, key in named]
    return curves(lines, Axis(label="time (s)"), Axis(label="data rate (Mbit/s)"), title=f"Data rates, {trace.name}")


def detail(view: RunView, trace: DrawnTrace) -> Markup:
    """The single STREAM frames from the start of the pattern on, as the server sent them."""
    series = series_of(view, trace.cell, trace.result.iteration)
    if series is None:
        return Markup()
    frames = series.server
    width = max(0.05, min(0.3, (trace.end - trace.start) / 4))
    inside = (frames.time >= 1e6 * trace.start) & (frames.time <= 1e6 * (trace.start + width))
    if not inside.any():
        return Markup()
    low = int(frames.offset[inside].min())
    marks = [
        Mark(
            x=at / 1e3 - 1e3 * trace.start,
            y=(place - low) / 1024,
            group=2 if kind else 0,
            title=f"{at / 1e6:.4f} s, offset {place}",
        )
        for at, place, kind in zip(
            frames.time[inside].tolist(), frames.offset[inside].tolist(), frames.kind[inside].tolist(), strict=True
        )
    ]
    return scatter(
        marks[:2000],
        Axis(label=f"ms after {trace.start:.3f} s"),
        Axis(label=f"offset above {low / 2**20:.2f} MiB (KiB)"),
        title=f"Detail, {trace.name}",
        size=(860, 380),
    )


def trace_rows(view: RunView, trace: DrawnTrace) -> list[Row]:
    """The frames at both vantage points, joined as by `joined`."""
    series = series_of(view, trace.cell, trace.result.iteration)
    if series is None:
        return []
    rows: list[Row] = []
    for vantage in ("client", "server"):
        frames = joined(getattr(series, vantage))
        kinds = np.array(KINDS)[frames.kind].tolist()
        rows += [
            {
                "client": trace.cell.client,
                "server": trace.cell.server,
                "case": trace.cell.case.name,
                "iteration": trace.result.iteration,
                "vantage": vantage,
                "time_s": at / 1e6,
                "offset": place,
                "length": length,
                "kind": kind,
            }
            for at, place, length, kind in zip(
                frames.time.tolist(), frames.offset.tolist(), frames.length.tolist(), kinds, strict=True
            )
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


Figure = dict[str, Any]


def _ideal(_: Cell, result: Result) -> float | None:
    """The share of the time in which the link was full, minus the retransmission ratio."""
    retransmitted = result.sample.retransmission_ratio if result.sample is not None else None
    return result.limits["link"] - (retransmitted or 0.0) if "link" in result.limits else None


def _lossy(cell: Cell, result: Result) -> bool:
    lost = result.truth is not None and result.truth.forward.dropped_loss > 0
    return lost or cell.case.forward.loss > 0


def _good_in_loss(cell: Cell, result: Result) -> float | None:
    return result.sample.efficiency if result.sample is not None and _lossy(cell, result) else None


def _bad_in_loss(cell: Cell, result: Result) -> float | None:
    good = _good_in_loss(cell, result)
    return None if good is None else -good


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


def _spread_in_loss(cell: Cell, result: Result) -> float | None:
    return _spread(cell, result) if _lossy(cell, result) else None


@dataclass(frozen=True)
class TraceFigure:
    """One figure. `find`: the function that finds its trace; `missing`: the sentence for a run without such a trace."""

    number: str
    title: str
    find: Callable[[RunView], DrawnTrace | None]
    missing: str
    with_rates: bool = False
    with_detail: bool = False

    def __call__(self, view: RunView) -> Figure:
        trace = self.find(view)
        figure: Figure = {"number": self.number, "title": self.title, "missing": self.missing}
        if trace is None:
            return figure
        panels = [("offset versus time", offset(view, trace))]
        if self.with_rates:
            panels.append(("data rates", rates(view, trace)))
        if self.with_detail:
            panels = [("detail", detail(view, trace))]
        href = f"{trace.cell.href}#iteration={trace.result.iteration}"
        text = sentence(trace)
        return figure | {"panels": panels, "rows": trace_rows(view, trace), "text": text, "href": href}


def _second_spread(view: RunView) -> DrawnTrace | None:
    first = best(view, _spread, "")
    if first is None:
        return None

    def score(cell: Cell, result: Result) -> float | None:
        return None if (cell.server, cell.client) == (first.cell.server, first.cell.client) else _spread(cell, result)

    return best(view, score, _SLOWEST)


_SLOWEST = (
    "The slowest iteration, drawn in front of the others. Of the traces for this figure, its TTLB has the highest "
    "ratio to the median of its cell."
)


def windows(view: RunView) -> Figure:
    """Figure 5.10: two variants of one stack with different initial windows, in one case and with one client."""
    figure: Figure = {
        "number": "5.10",
        "title": "Two initial windows of one stack",
        "missing": "No stack has a variant with another IW in this run: ./bentpipe run --variant STACK:IW=50 adds one.",
    }
    stacks = view.run.implementations
    for cell in view.measured:
        record = stacks.get(cell.server)
        if record is None or "IW" not in record.parameters or cell.shown is None:
            continue
        plain = view.table.get((record.variant_of, cell.client, cell.case.name))
        if plain is None or plain.shown is None or "goodput" not in plain.summaries:
            continue
        series = [series_of(view, drawn, drawn.shown or 0) for drawn in (cell, plain)]
        if series[0] is None or series[1] is None:
            continue
        chosen = next(result for result in cell.results if result.iteration == cell.shown)
        trace = DrawnTrace(cell=cell, result=chosen, why=f"In grey: {record.variant_of} with its default window.")
        svg = charts.offset_plot(series[0], [series[1]], title=f"Offset versus time, {trace.name}")
        first = next(result for result in plain.results if result.iteration == plain.shown)
        rows = trace_rows(view, trace) + trace_rows(view, replace(trace, cell=plain, result=first))
        return figure | {"panels": [("", svg)], "rows": rows, "text": sentence(trace), "href": cell.href}
    return figure


_NONE = "No trace of this run shows this pattern."
TRACE_FIGURES: tuple[Callable[[RunView], Figure], ...] = (
    TraceFigure(
        "5.7",
        "A virtually ideal trace",
        lambda v: best(
            v,
            _ideal,
            "Its share of time with a full forward link, minus its retransmission ratio, is the largest of this run.",
        ),
        "No trace of this run has limits.",
        with_rates=True,
    ),
    TraceFigure(
        "5.8",
        "High performance over a lossy link",
        lambda v: best(v, _good_in_loss, "The highest η of all jobs in which the link lost packets."),
        "No job of this run lost packets on the link.",
    ),
    TraceFigure(
        "5.9",
        "Slow growth without losses",
        lambda v: best(
            v,
            _growing,
            "Of all traces without losses, the congestion window limited this trace for the largest share of time.",
        ),
        _NONE,
    ),
    windows,
    TraceFigure("5.11", "Bend and bursts", lambda v: diagnosed(v, "bursts", "slow-start-left-early"), _NONE),
    TraceFigure(
        "5.12",
        "Different reactions to losses in one pair",
        lambda v: best(v, _spread_in_loss, _SLOWEST),
        "No pair has several iterations over a lossy link.",
    ),
    TraceFigure(
        "5.13",
        "Slow but ordered progress under loss",
        lambda v: best(v, _bad_in_loss, "The lowest η of all jobs in which the link lost packets."),
        "No job of this run lost packets on the link.",
    ),
    TraceFigure("5.14", "Out-of-order transmission", lambda v: diagnosed(v, "out-of-order"), _NONE),
    TraceFigure("5.15", "A detail of 5.14, magnified", lambda v: diagnosed(v, "out-of-order"), _NONE, with_detail=True),
    TraceFigure("5.16", "Retransmissions at the end", lambda v: diagnosed(v, "retransmitted-tail"), _NONE),
    TraceFigure(
        "5.17", "Early retransmissions", lambda v: diagnosed(v, "spurious-retransmissions", "sent-twice"), _NONE
    ),
    TraceFigure("5.18", "Drop of the data rate", lambda v: diagnosed(v, "rate-collapse"), _NONE),
    TraceFigure("5.19", "High tail latency", lambda v: best(v, _spread, _SLOWEST), "No pair has several iterations."),
    TraceFigure("5.20", "High tail latency, another pair", _second_spread, "No other pair has several iterations."),
)
