"""Finds the trace of a run that shows a pattern best, and draws this trace: offset, data rates, a magnified detail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from runner.model.result import Result
from runner.render import drawing
from runner.render.axes import Axis
from runner.render.cells import Cell
from runner.render.charts import Mark, curves, scatter
from runner.render.metrics import BY_KEY
from runner.render.series import KINDS, Series, joined, load_series
from runner.render.view import RunView

Row = dict[str, object]
_MOST_OTHERS = 9


@dataclass(frozen=True, kw_only=True)
class Trace:
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


def best(view: RunView, score: Callable[[Cell, Result], float | None], why: str) -> Trace | None:
    """The iteration with the highest score; None when no iteration has a score."""
    scored = [(value, cell, result) for cell, result in candidates(view) if (value := score(cell, result)) is not None]
    if not scored:
        return None
    _, cell, result = max(scored, key=lambda entry: entry[0])
    return Trace(cell=cell, result=result, why=why)


def diagnosed(view: RunView, *codes: str) -> Trace | None:
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
    return Trace(cell=cell, result=result, why=diagnosis.sentence, start=diagnosis.start, end=diagnosis.end)


def series_of(view: RunView, cell: Cell, iteration: int) -> Series | None:
    """The data of the iteration's plots; None when there is no such data."""
    job = next(result.job for result in cell.results if result.iteration == iteration)
    return load_series(view.folder.artifacts(job).series)


def offset(view: RunView, trace: Trace) -> Markup:
    """Offset versus time, with the cell's other iterations in the background."""
    front = series_of(view, trace.cell, trace.result.iteration)
    iterations = [result.iteration for result in trace.cell.results if result.iteration != trace.result.iteration]
    others = (series_of(view, trace.cell, iteration) for iteration in iterations[:_MOST_OTHERS])
    behind = [series for series in others if series is not None]
    return drawing.offset_plot(front, behind, title=f"Offset versus time, {trace.name}")


def rates(view: RunView, trace: Trace) -> Markup:
    """Data rates at the client, as in figure 5.7b: forward with headers, forward goodput, and return with headers."""
    series = series_of(view, trace.cell, trace.result.iteration)
    if series is None:
        return Markup()
    named = (("forward, IP", "forward_raw"), ("forward, goodput", "forward_goodput"), ("return, IP", "return_raw"))
    lines = [(words, series.rates[key]) for words, key in named]
    return curves(lines, Axis(label="time (s)"), Axis(label="data rate (Mbit/s)"), title=f"Data rates, {trace.name}")


def detail(view: RunView, trace: Trace) -> Markup:
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


def rows(view: RunView, trace: Trace) -> list[Row]:
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


def sentence(trace: Trace) -> str:
    """The trace's numbers and the reason for its choice."""
    sample = trace.result.sample
    assert sample is not None  # candidates
    efficiency, goodput = BY_KEY["efficiency"], BY_KEY["goodput"]
    return (
        f"{trace.name}: η {efficiency.text(sample.efficiency)}, {goodput.text(sample.goodput)}, "
        f"TTLB {BY_KEY['ttlb'].text(sample.ttlb)}. {trace.why}"
    )
