"""The data of one run that the front page and the pages about all runs show. The site's manifest stores this data."""

from collections.abc import Collection, Iterator, Sequence
from typing import TypedDict

from runner.compare.conditions import trust
from runner.compare.report import ChangeLine, change_lines, image_text
from runner.model.result import BY_KEY, Outcome, Result
from runner.model.run import CaseRecord, ClientKind, Kind
from runner.site.view import COLOURED, JUDGED, Cell, RunView, ordered_cases, step_of
from runner.units import format_count

MOST_LINES = 10
_GEO_RTT = (0.45, 0.9)  # s: RTTs over one geostationary satellite
_GEO_NAMES, _LEO_NAMES = ("astra", "eutelsat"), ("leo", "starlink")


class Failure(TypedDict):
    """A failed cell of a stack. `whose`: the stack's `own` fault, the fault of the `peer`, or `either` when the role at
    fault is unknown."""

    role: str  # of the stack
    peer: str
    case: str
    href: str  # relative to the run's folder
    whose: str
    code: str
    actual: str
    packets: str
    vantage: str


class StackVerdicts(TypedDict):
    """One stack in one run, in both roles."""

    judged: int  # cells with a verdict
    passed: int  # cells that succeeded
    errors: int  # cells without a verdict, because the harness failed
    failures: list[Failure]
    cells: list[tuple[str, str, str, str, str]]  # of every cell: role, peer, case, outcome, URL


class Best(TypedDict):
    """The fastest server over one orbit. `loss`: of the link. `among`: how many servers were measured. `equals`: the
    other servers whose interval of ranks includes rank 1."""

    orbit: str
    case: str
    loss: float
    among: int
    href: str
    server: str
    delivery: str
    spread: str
    why_not: str
    equals: list[str]


class Changed(TypedDict):
    """One line about cells that changed in the same way. `href`: relative to the run's folder; empty when there is no
    page."""

    state: str
    subject: str
    text: str
    cause: str
    href: str
    stacks: list[str]


class PairState(TypedDict):
    """A pair in the compact matrix. `href`: relative to the run's folder."""

    href: str
    judged: int  # test cases with a verdict
    passed: int
    broken: int  # cases in which an endpoint broke a MUST of an RFC
    colour: str  # CSS class: failed, mixed, succeeded or none
    delivery: str  # median delivery time in seconds, without its unit; empty: no iteration succeeded
    shade: str  # CSS class of the colour scale; empty: no delivery time


class Grid(TypedDict):
    """The compact matrix of a run: servers × clients."""

    satellite: str  # the measurement over a satellite whose delivery times are shown; empty: the run has none
    clients: list[str]
    rows: list[tuple[str, list[PairState | None]]]  # server, and its cells in the order of `clients`


class FrontData(TypedDict):
    """The document of one run."""

    trusted: bool
    verdict: str  # `Trust.verdict`
    reasons: list[str]
    previous: str  # name of the run with which this run is compared; empty: there is no such run
    stacks: dict[str, StackVerdicts]
    grid: Grid
    best: list[Best]
    changes: list[Changed]  # at most `MOST_LINES`
    more: int  # number of lines that are left out
    new: list[str]  # texts about images, stacks, cases and causes that the previous run does not have
    disturbed: list[str]  # texts about jobs that were run again or ended as errors


def front_data(view: RunView) -> FrontData:
    """The document of one run."""
    trusted = trust(len(view.run.order), view.results().values())
    lines = change_lines(view.changes, view.previous, view) if view.changes and view.previous else []
    return {
        "trusted": trusted.trusted,
        "verdict": trusted.verdict,
        "reasons": list(trusted.reasons),
        "previous": view.previous.name if view.previous else "",
        "stacks": {name: stack for name in stack_names(view) if (stack := _stack(view, name))["cells"]},
        "grid": _grid(view),
        "best": list(_best(view)),
        "changes": [_changed(view, line) for line in lines[:MOST_LINES]],
        "more": max(0, len(lines) - MOST_LINES),
        "new": list(_new(view)),
        "disturbed": list(_disturbed(view.results().values())),
    }


def stack_names(view: RunView) -> list[str]:
    """The stacks under test, in the order of the run: no middlebox, no origin server, no stock client."""
    cells = [cell for cell in view.table.values() if cell.case.client is ClientKind.STACK]
    stacks = {name for cell in cells for name in (cell.server, cell.stack)}
    return [name for name in view.run.implementations if name in stacks]


def colour(verdicts: StackVerdicts) -> str:
    """The colour of a stack, which is also its CSS class.

    `failed`: at least one cell failed by the stack's own fault. `mixed`: cells failed, and it is unknown by whose
    fault. `succeeded`: no cell failed, or cells failed only by the peer's fault. `none`: there is no verdict.
    """
    if not verdicts["judged"]:
        return "none"
    whose = {failure["whose"] for failure in verdicts["failures"]}
    return "failed" if "own" in whose else "mixed" if "either" in whose else "succeeded"


def _stack(view: RunView, name: str) -> StackVerdicts:
    verdicts: StackVerdicts = {"judged": 0, "passed": 0, "errors": 0, "failures": [], "cells": []}
    for cell in view.table.values():
        if cell.case.client is not ClientKind.STACK:
            continue
        for role, stack, peer in (("server", cell.server, cell.client), ("client", cell.stack, cell.server)):
            if stack != name:
                continue
            outcome = cell.css if cell.results else "none"
            verdicts["cells"].append((role, peer, cell.case.name, outcome, cell.href))
            verdicts["errors"] += outcome == "error"
            if outcome in JUDGED:
                verdicts["judged"] += 1
                verdicts["passed"] += outcome == "succeeded"
            if outcome in ("failed", "mixed"):
                verdicts["failures"].append(_failure(cell, role, peer))
    return verdicts


def _grid(view: RunView) -> Grid:
    measured = ordered_cases(view.run, Kind.MEASUREMENT)
    over_satellite = [case for case in measured if case.client is ClientKind.STACK and orbit(case)]
    satellite = min(over_satellite, key=lambda case: (orbit(case) != "GEO", case.forward.loss), default=None)
    by_pair: dict[tuple[str, str], list[Cell]] = {}
    for cell in view.table.values():
        if cell.case.client is ClientKind.STACK and (cell.case.kind is Kind.TEST_CASE or cell.case is satellite):
            by_pair.setdefault((cell.server, cell.client), []).append(cell)
    clients = [name for name in view.clients if any(client == name for _, client in by_pair)]
    rows: list[tuple[str, list[PairState | None]]] = [
        (server, [_pair_state(by_pair[server, client]) if (server, client) in by_pair else None for client in clients])
        for server in view.servers
        if any(known == server for known, _ in by_pair)
    ]
    return {"satellite": "" if satellite is None else satellite.name, "clients": clients, "rows": rows}


def _pair_state(cells: Sequence[Cell]) -> PairState:
    tests = [cell for cell in cells if cell.case.kind is Kind.TEST_CASE]
    transfers = [cell for cell in cells if cell.case.kind is Kind.MEASUREMENT]
    outcomes = [cell.css for cell in tests if cell.css in JUDGED]
    summaries = transfers[0].summaries if transfers else {}
    delivery, share = summaries.get("ttlb"), summaries.get(COLOURED)
    return {
        "href": (transfers or tests)[0].href,
        "judged": len(outcomes),
        "passed": outcomes.count("succeeded"),
        "broken": sum(bool(cell.broken_rules) for cell in cells),
        "colour": next((name for name in ("failed", "mixed", "succeeded") if name in outcomes), "none"),
        "delivery": "" if delivery is None else BY_KEY["ttlb"].number(delivery.median),
        "shade": "" if delivery is None else "plain" if share is None else f"e{step_of(share.median)}",
    }


def _failure(cell: Cell, role: str, peer: str) -> Failure:
    failed = [result for result in cell.results if result.outcome is Outcome.FAILED]
    result = next((result for result in failed if result.culprit), next(iter(failed), None))
    finding = result.cause if result is not None else None
    culprit = result.culprit if result is not None else ""
    at_fault = culprit == role or cell.server == cell.stack
    return {
        "role": role,
        "peer": peer,
        "case": cell.case.name,
        "href": cell.href,
        "whose": "either" if not culprit else "own" if at_fault else "peer",
        "code": finding.code if finding is not None else "",
        "actual": finding.actual if finding is not None else "",
        "packets": finding.places if finding is not None else "",
        "vantage": finding.vantage if finding is not None else "",
    }


def _best(view: RunView) -> Iterator[Best]:
    """For each orbit, the fastest server in the measurement with the least loss and the most servers."""
    for name in ("GEO", "LEO"):
        over_orbit = [
            decision
            for decision in view.decided
            if orbit(decision.case) == name and decision.servers and not decision.label
        ]
        over_orbit.sort(key=lambda decision: (decision.case.forward.loss, -len(decision.servers)))
        for decision in over_orbit[:1]:
            first = decision.servers[0]
            delivery = BY_KEY["ttlb"]
            spread = first.summary.spread
            span = f"{spread[0]} {delivery.number(spread[1])} to {delivery.text(spread[2])}" if spread else "n = 1"
            yield {
                "orbit": name,
                "case": decision.case.name,
                "loss": decision.case.forward.loss,
                "among": len(decision.servers),
                "href": f"index.html#{decision.case.name}",
                "server": first.name,
                "delivery": delivery.text(first.summary.median),
                "spread": span,
                "why_not": first.why_not,
                "equals": [place.name for place in decision.servers[1:] if place.rank_low == 1],
            }


def orbit(case: CaseRecord) -> str:
    """GEO or LEO, the orbit of a case's link; empty when the link has no satellite."""
    link = case.link
    names = {"LEO": _LEO_NAMES, "GEO": _GEO_NAMES}
    for name, parts in names.items():
        if any(part in link.base_name.lower() for part in parts):
            return name
    return "GEO" if _GEO_RTT[0] <= link.rtt <= _GEO_RTT[1] else ""


def _changed(view: RunView, line: ChangeLine) -> Changed:
    first, cells = line.first, [view.table.get(change.key) for change in line.cells]
    cell = cells[0]
    part = "" if first.iteration is None else "#findings" if first.aspect in ("outcome", "successes") else "#diagnoses"
    many = len(line.cells) > 1
    example = f"{first.key[1]} → {first.key[0]}: " if many else ""
    return {
        "state": line.state.value,
        "subject": line.subject,
        "text": f"{example}{first.aspect} {first.text}",
        "cause": "; ".join(text for text in (first.cause, *line.images) if text),
        "href": cell.href + part if cell is not None else "",
        "stacks": sorted({change.key.server for change in line.cells} | {cell.stack for cell in cells if cell}),
    }


def _new(view: RunView) -> Iterator[str]:
    """Texts about stacks, images, cases and causes that the previous run doesn't have."""
    if view.previous is None:
        return
    old, new = view.previous.run, view.run
    for name, stack in new.implementations.items():
        known = old.implementations.get(name)
        if known is None:
            yield f"stack {name} {stack.version}"
        elif (known.image_id, known.version) != (stack.image_id, stack.version):
            yield f"{name}: {' → '.join(image_text(record.version, record.image_id) for record in (known, stack))}"
    cases = [case for case in new.cases if case not in old.cases]
    if cases:
        yield f"cases {', '.join(cases)}"
    codes = _codes(view.results().values()) - _codes(view.previous.results().values())
    for code in sorted(codes):
        cells = [cell for cell in view.table.values() if code in _codes(cell.results)]
        yield f"cause {code}, in {len(cells)} cells, first {cells[0].ends}, {cells[0].case.name}"


def _codes(results: Collection[Result]) -> set[str]:
    """Codes of findings and of broken rules."""
    return {finding.code for result in results for finding in (*result.findings, *result.violations)}


def _disturbed(results: Collection[Result]) -> Iterator[str]:
    """Texts about jobs that ended as errors (one text for each code), and about jobs that were run again."""
    reasons: dict[str, list[Result]] = {}
    for result in results:
        if result.outcome is Outcome.ERROR:
            reasons.setdefault(result.findings[0].code if result.findings else "error", []).append(result)
    for code, errors in sorted(reasons.items(), key=lambda item: -len(item[1])):
        first = errors[0]
        actual = f": {first.findings[0].actual}" if first.findings else ""
        where = f"{first.client} → {first.server}, {first.case}"
        yield f"{format_count(len(errors), 'job')} ended as error {code}, first {where}{actual}"
    again = [result for result in results if result.disturbed and not result.reused_from]
    if again:
        first = again[0]
        where = f"{first.client} → {first.server}, {first.case}"
        yield f"{format_count(len(again), 'job')} ran again, first {where}: {first.disturbed[0]}"
