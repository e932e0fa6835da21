"""Figures 5.7 to 5.20 of the thesis: for each pattern, the trace of this run that shows it best."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from runner.model.result import Result
from runner.render import drawing, traces
from runner.render.cells import Cell
from runner.render.traces import Trace
from runner.render.view import RunView

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
class Pattern:
    """One figure. `find`: the function that finds its trace; `missing`: the sentence for a run without such a trace."""

    number: str
    title: str
    find: Callable[[RunView], Trace | None]
    missing: str
    with_rates: bool = False
    with_detail: bool = False

    def __call__(self, view: RunView) -> Figure:
        trace = self.find(view)
        figure: Figure = {"number": self.number, "title": self.title, "missing": self.missing}
        if trace is None:
            return figure
        panels = [("offset versus time", traces.offset(view, trace))]
        if self.with_rates:
            panels.append(("data rates", traces.rates(view, trace)))
        if self.with_detail:
            panels = [("detail", traces.detail(view, trace))]
        href = f"{trace.cell.href}#iteration={trace.result.iteration}"
        text = traces.sentence(trace)
        return figure | {"panels": panels, "rows": traces.rows(view, trace), "text": text, "href": href}


def _second_spread(view: RunView) -> Trace | None:
    first = traces.best(view, _spread, "")
    if first is None:
        return None

    def score(cell: Cell, result: Result) -> float | None:
        return None if (cell.server, cell.client) == (first.cell.server, first.cell.client) else _spread(cell, result)

    return traces.best(view, score, _SLOWEST)


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
        series = [traces.series_of(view, drawn, drawn.shown or 0) for drawn in (cell, plain)]
        if series[0] is None or series[1] is None:
            continue
        chosen = next(result for result in cell.results if result.iteration == cell.shown)
        trace = Trace(cell=cell, result=chosen, why=f"In grey: {record.variant_of} with its default window.")
        svg = drawing.offset_plot(series[0], [series[1]], title=f"Offset versus time, {trace.name}")
        first = next(result for result in plain.results if result.iteration == plain.shown)
        rows = traces.rows(view, trace) + traces.rows(view, replace(trace, cell=plain, result=first))
        return figure | {"panels": [("", svg)], "rows": rows, "text": traces.sentence(trace), "href": cell.href}
    return figure


_NONE = "No trace of this run shows this pattern."
FIGURES: tuple[Callable[[RunView], Figure], ...] = (
    Pattern(
        "5.7",
        "A virtually ideal trace",
        lambda v: traces.best(
            v,
            _ideal,
            "Its share of time with a full forward link, minus its retransmission ratio, is the largest of this run.",
        ),
        "No trace of this run has limits.",
        with_rates=True,
    ),
    Pattern(
        "5.8",
        "High performance over a lossy link",
        lambda v: traces.best(v, _good_in_loss, "The highest η of all jobs in which the link lost packets."),
        "No job of this run lost packets on the link.",
    ),
    Pattern(
        "5.9",
        "Slow growth without losses",
        lambda v: traces.best(
            v,
            _growing,
            "Of all traces without losses, the congestion window limited this trace for the largest share of time.",
        ),
        _NONE,
    ),
    windows,
    Pattern("5.11", "Bend and bursts", lambda v: traces.diagnosed(v, "bursts", "slow-start-left-early"), _NONE),
    Pattern(
        "5.12",
        "Different reactions to losses in one pair",
        lambda v: traces.best(v, _spread_in_loss, _SLOWEST),
        "No pair has several iterations over a lossy link.",
    ),
    Pattern(
        "5.13",
        "Slow but ordered progress under loss",
        lambda v: traces.best(v, _bad_in_loss, "The lowest η of all jobs in which the link lost packets."),
        "No job of this run lost packets on the link.",
    ),
    Pattern("5.14", "Out-of-order transmission", lambda v: traces.diagnosed(v, "out-of-order"), _NONE),
    Pattern(
        "5.15", "A detail of 5.14, magnified", lambda v: traces.diagnosed(v, "out-of-order"), _NONE, with_detail=True
    ),
    Pattern("5.16", "Retransmissions at the end", lambda v: traces.diagnosed(v, "retransmitted-tail"), _NONE),
    Pattern(
        "5.17", "Early retransmissions", lambda v: traces.diagnosed(v, "spurious-retransmissions", "sent-twice"), _NONE
    ),
    Pattern("5.18", "Drop of the data rate", lambda v: traces.diagnosed(v, "rate-collapse"), _NONE),
    Pattern(
        "5.19", "High tail latency", lambda v: traces.best(v, _spread, _SLOWEST), "No pair has several iterations."
    ),
    Pattern("5.20", "High tail latency, another pair", _second_spread, "No other pair has several iterations."),
)
