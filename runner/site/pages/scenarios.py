"""The page of each case (its link, its slow-start bound, the distribution of its pairs, the counts of the link), the
list of all cases, and the scoreboard of the IETF's satellite paths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from runner.compare.stats import Summary, summarise
from runner.model.result import BY_KEY, DROPS, DirectionTruth, LinkTruth, Outcome
from runner.model.run import CaseRecord, Kind
from runner.site import headlines
from runner.site.charts import Axis, Strip, sky, strips
from runner.site.pages import Page, Pages
from runner.site.view import Cell, RunView, case_path, stack_href, tells_rates, transfer_facts

NAV = (2, "Scenarios", "scenarios/index.html")
NEEDS = "stacks"
_BASE = "../"
_FAST = (
    "ttlb",
    "goodput",
    "efficiency",
    "delivery_rate",
    "slow_start_bound",
    "efficiency_of_bound",
    "handshake_time",
    "retransmission_ratio",
)
_SHORT = ("handshake_time", "ttlb")  # numbers of a case that transfers too little data for a goodput


def pages(view: RunView) -> Pages:
    """One page per case, the list of cases, and the scoreboard when the run has a path of the IETF's draft."""
    board = _scoreboard(view)
    rows = [_row(view, name) for name in view.scenarios]
    yield Page("scenarios/index.html", "scenarios.html", {"rows": rows, "scoreboard": board is not None})
    if board is not None:
        yield Page(SCOREBOARD, "scoreboard.html", board)
    for name in view.scenarios:
        yield Page(case_path(name), "scenario.html", _context(view, name))


# Targets of draft-kuhn-quic-4-sat-07 §4, in seconds from the start of the transfer. The draft leaves 4.5 open, and has
# one target for both kinds of loss in 4.7.

SCOREBOARD = "scenarios/ietf.html"
_SIZES = (2, 10, 100)  # MB
_AGAIN = _SIZES[:2]  # MB over the second connection of a repeated transfer
TARGETS: dict[str, tuple[float, ...]] = {
    "ietf-small": (3, 10, 85),
    "ietf-small, upload": (10, 50, 420),
    "ietf-medium": (3, 5, 20),
    "ietf-thin": (3, 5, 20),
    "ietf-step": (),
    "ietf-large": (3, 5, 8),
    "ietf-loss": (3, 6, 10),
    "ietf-bursts": (3, 6, 10),
}


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The time of one pair, over one path, to one size; None: no transfer came so far. `met`: whether the median is
    within the target; None: the draft has no target."""

    time: Summary | None
    met: bool | None


@dataclass(frozen=True, kw_only=True)
class PathResult:
    """What one pair did over one path. `times`: for each of the sizes; None: not measured. `reason`: what most limited
    it, when it missed a target."""

    cell: Cell
    times: tuple[Reached | None, ...]
    attempts: str
    reason: str


def _scoreboard(view: RunView) -> dict[str, Any] | None:
    """Rows are pairs, columns are the draft's paths; None when the run has none of these paths."""
    rows: dict[tuple[str, str, str], dict[str, list[Cell]]] = {}
    repeats: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for cell in (cell for name in view.scenarios for cell in view.cells_of(name) if _path(cell.case) in TARGETS):
        link = _path(cell.case)
        if cell.results and cell.case.kind is Kind.MEASUREMENT and len(cell.case.file_sizes) > 1:
            repeats.setdefault((cell.client, cell.server, cell.case.wire_names["client"]), {})[link] = cell
        elif cell.results and cell.case.kind is Kind.MEASUREMENT:
            rows.setdefault((cell.client, cell.server, cell.protocol), {}).setdefault(link, []).append(cell)
    used = [cell for pair in rows.values() for cells in pair.values() for cell in cells]
    used += [cell for pair in repeats.values() for cell in pair.values()]
    if not used:
        return None
    records = {_path(cell.case): cell.case for cell in used}
    paths = [name for name in TARGETS if name in records]
    repeated = [name for name in paths if any(name in cells for cells in repeats.values())]
    return {
        "paths": [(name, TARGETS[name]) for name in paths],
        "links": {records[name].link.name: records[name].link for name in paths},
        "sizes": _SIZES,
        "rows": [
            (client, server, protocol, [_path_result(pair.get(name, ()), TARGETS[name]) for name in paths])
            for (client, server, protocol), pair in sorted(rows.items(), key=lambda row: (row[0][2], row[0][:2]))
        ],
        "repeated": repeated,
        "repeats": [
            (*pair, [_again(cells[name]) if name in cells else None for name in repeated])
            for pair, cells in sorted(repeats.items())
        ],
    }


def _path(case: CaseRecord) -> str:
    return f"{case.link.name}{', upload' if case.upload else ''}"


def _again(cell: Cell) -> tuple[Cell, list[tuple[Summary | None, Summary | None]], str]:
    """A repeated transfer: its cell; for each size the times over the second connection and over the first one; and
    successes/attempts."""
    numbers = [(f"repeat_{size}_mb", f"first_{size}_mb") for size in _AGAIN]
    pairs = [(cell.summaries.get(again), cell.summaries.get(first)) for again, first in numbers]
    return cell, pairs, f"{headlines.attempts([cell])}"


def _path_result(cells: Sequence[Cell], targets: tuple[float, ...]) -> PathResult | None:
    if not cells:
        return None
    times: list[Reached | None] = []
    for number, size in enumerate(_SIZES):
        large = [cell for cell in cells if sum(cell.case.file_sizes) >= size * 1_000_000]
        judged = [
            each for cell in large for each in cell.results if each.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
        ]
        values = [getattr(result.sample, f"first_{size}_mb", None) for result in judged]
        summary = summarise([value for value in values if value is not None])
        within = [value is not None and bool(targets) and value <= targets[number] for value in values]
        met = 2 * sum(within) > len(values) if targets else None
        times.append(Reached(time=summary, met=met) if values else None)
    missed = any(time is not None and time.met is False for time in times)
    largest = max(cells, key=lambda cell: cell.case.file_sizes)
    return PathResult(
        cell=largest,
        times=tuple(times),
        attempts=f"{headlines.attempts(cells)}",
        reason=_reason(cells) if missed else "",
    )


def _reason(cells: Sequence[Cell]) -> str:
    """The largest limit of these transfers, and their most frequent diagnosis."""
    limits, typical = headlines.limits(cells), headlines.typical(cells)
    words = [f"{limit} {share:.0%}" for limit, share in list(limits.items())[:1]]
    return ", ".join([*words, *(found.first.code for found in typical[:1])])


def _row(view: RunView, name: str) -> dict[str, Any]:
    case, cells = view.run.cases[name], view.cells_of(name)
    fast = tells_rates(case)
    return {
        "case": case,
        "attempts": headlines.attempts(cells),
        "efficiency": _over_pairs(cells, "efficiency") if fast else None,
        "bound": _over_pairs(cells, "slow_start_bound") if fast else None,
    }


def _over_pairs(cells: list[Cell], metric: str) -> Summary | None:
    values = [cell.summaries[metric].median for cell in cells if metric in cell.summaries and not cell.label]
    return summarise(values)


def _context(view: RunView, name: str) -> dict[str, Any]:
    case = view.run.cases[name]
    cells = view.cells_of(name)
    rtt = case.forward.delay + case.return_.delay
    fast = tells_rates(case)
    return {
        "case": case,
        "sky": _sky(case),
        "transfer": transfer_facts(case, cells),
        "bdp": rtt * case.forward.data_rate / 8,
        "queue_share": case.forward.queue_packets * 1500 / max(rtt * case.forward.data_rate / 8, 1.0),
        "cells": cells,
        "attempts": headlines.attempts(cells),
        "decisions": [decision for decision in view.decided if decision.case == case],
        "by_server": _chart(view, cells, "server") if fast else "",
        "by_client": _chart(view, cells, "client") if fast else "",
        "numbers": [
            (BY_KEY[key], summary)
            for key in (_FAST if fast else _SHORT)
            if (summary := _over_pairs(cells, key)) is not None
        ],
        "columns": [BY_KEY[key] for key in (_FAST[:2] if fast else _SHORT)],
        "limits": headlines.limits(cells),
        "typical": headlines.typical(cells),
        "truth": _truth(cells),
        "measurement": case.kind is Kind.MEASUREMENT,
    }


def _sky(case: CaseRecord) -> Markup:
    """The parameters of the satellite segment that change over time: their whole list, once."""
    ways = case.link.satellite.forward.impairments, case.link.satellite.return_.impairments
    last = max((way.changes[-1].time for way in ways if way.changes), default=0.0)
    end = max(way.changes_period for way in ways) or 1.2 * last + 1
    return sky(case.link.satellite, end=end, title=f"Data rate, delay and loss of {case.link.name} over time")


def _chart(view: RunView, cells: list[Cell], role: str) -> Markup:
    """Delivery rate by stack in one role, as a fraction of the data rate, with the median slow-start bound. Delivery
    rate and bound both count from the first byte to the last byte."""
    rows = []
    for name in view.servers if role == "server" else view.clients:
        chosen = [cell for cell in cells if getattr(cell, role) == name and not cell.label]
        full = cells[0].case.forward.data_rate if cells else None
        marks = headlines.marks(chosen, "delivery_rate", base=_BASE, full=full)
        if marks:
            rows.append(
                Strip(
                    label=name,
                    marks=marks,
                    group=0 if role == "server" else 1,
                    href=_BASE + stack_href(name),
                    note=f"n {len(marks)}",
                )
            )
    rows.sort(key=lambda row: -sorted(mark.x for mark in row.marks)[len(row.marks) // 2])
    bound = _over_pairs(cells, "slow_start_bound")
    axis = Axis(
        label="median delivery rate / data rate of each pair (%)",
        end=100.0,
        reference=None if bound is None else 100 * bound.median,
        reference_label="slow-start bound, median",
    )
    case = cells[0].case.name if cells else ""
    return strips(rows, axis, title=f"Delivery rate in {case} by {role}", width=640)


def _truth(cells: list[Cell]) -> dict[str, Any] | None:
    """The simulator's counts over all jobs of the case; None when no job has counts.

    Packets are sums over the jobs. `guest_speed` is the speed of the median job; None in real time.
    """
    speeds = sorted(result.guest_speed for cell in cells for result in cell.results if result.guest_speed is not None)
    truths = [result.truth for cell in cells for result in cell.results if result.truth is not None]
    if not truths:
        return None
    return {
        "jobs": len(truths),
        "guest_speed": speeds[len(speeds) // 2] if speeds else None,
        "ways": [("forward", _sum(truths, "forward")), ("return", _sum(truths, "return_"))],
        "lateness_p99": sorted(truth.lateness_p99 for truth in truths)[len(truths) // 2],
        "lateness_max": max(truth.lateness_max for truth in truths),
        "socket_drops": sum(truth.socket_drops for truth in truths),
    }


def _sum(truths: list[LinkTruth], way: str) -> dict[str, float]:
    ways: list[DirectionTruth] = [getattr(truth, way) for truth in truths]
    packets = sum(way.packets_in for way in ways)
    drops: dict[str, float] = {name: sum(getattr(way, name) for way in ways) for name in DROPS}
    return drops | {
        "packets": packets,
        "loss": drops["dropped_loss"] / packets if packets else 0.0,
        "full": sum(way.dropped_queue > 0 for way in ways),
        "queue_mean": sum(way.queue_mean_packets for way in ways) / len(ways),
        "queue_max": max(way.queue_max_packets for way in ways),
    }
