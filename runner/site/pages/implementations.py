"""The page of each stack, as server and as client in all cases, and the list of all stacks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from runner.compare.rankings import RankedStack
from runner.compare.stats import Attempts, Summary, summarise
from runner.model.result import BY_KEY
from runner.model.run import Kind
from runner.site import headlines
from runner.site.charts import Axis, Mark, Strip, lines, strips
from runner.site.pages import Page, Pages
from runner.site.view import Cell, RunView, case_href, ordered_cases, stack_href, stack_path

NAV = (1, "Implementations", "implementations/index.html")
NEEDS = "stacks"
ROLES = ("server", "client")
_BASE = "../"


@dataclass(frozen=True, kw_only=True)
class InCase:
    """A stack in one measurement. By role: its place in the ranking, its efficiencies, its successes."""

    case: str
    label: str
    places: dict[str, RankedStack]
    ranked: dict[str, int]  # number of stacks in the role's ranking
    efficiency: dict[str, Summary]
    attempts: dict[str, Attempts]


def pages(view: RunView) -> Pages:
    known = {name: in_cases(view, name) for name in view.stacks}
    yield Page("implementations/index.html", "implementations.html", _list(view, known))
    for name, cases in known.items():
        yield Page(stack_path(name), "implementation.html", _context(view, name, cases))


def _cells(view: RunView, name: str, role: str) -> list[Cell]:
    return view.by_stack.get((role, name), [])


def in_cases(view: RunView, name: str) -> list[InCase]:
    """Every measurement in which the stack has a place in a ranking."""
    ranks = []
    for decision in view.decided:
        places = {"server": decision.servers, "client": decision.clients}
        own_places = {role: place for role in ROLES for place in places[role] if place.name == name}
        if not own_places:
            continue
        cells = {
            role: [c for c in _cells(view, name, role) if c.case == decision.case and c.label == decision.label]
            for role in ROLES
        }
        efficiency = {role: summary for role in ROLES if (summary := summarise(_efficiencies(cells[role]))) is not None}
        ranks.append(
            InCase(
                case=decision.case.name,
                label=decision.label,
                places=own_places,
                ranked={role: len(places[role]) for role in ROLES},
                efficiency=efficiency,
                attempts={role: headlines.attempts(cells[role]) for role in ROLES},
            )
        )
    return ranks


def _efficiencies(cells: list[Cell]) -> list[float]:
    return [cell.summaries["efficiency"].median for cell in cells if "efficiency" in cell.summaries]


def _list(view: RunView, known: Mapping[str, list[InCase]]) -> dict[str, Any]:
    rows = []
    for name, cases in known.items():
        tests = {role: [c for c in _cells(view, name, role) if c.case.kind is Kind.TEST_CASE] for role in ROLES}
        rows.append(
            {
                "name": name,
                "stack": view.run.implementations.get(name),
                "tests": {role: headlines.attempts(cells) for role, cells in tests.items()},
                "cases": {(case.case, case.label): case for case in cases},
            }
        )
    columns = [(decision.case.name, decision.label) for decision in view.decided]
    return {"rows": rows, "columns": columns, "roles": ROLES}


def _context(view: RunView, name: str, cases: list[InCase]) -> dict[str, Any]:
    cells = {role: _cells(view, name, role) for role in ROLES}
    both = list({id(cell): cell for role in ROLES for cell in cells[role]}.values())
    return {
        "name": name,
        "stack": view.run.implementations.get(name),
        "roles": [role for role in ROLES if cells[role]],
        "cases": cases,
        "chart": _chart(view, name, cells),
        "tests": _tests(view, cells),
        "typical": {role: headlines.typical(cells[role]) for role in ROLES},
        "limits": {role: headlines.limits(headlines.measurements(cells[role]) or cells[role]) for role in ROLES},
        "applied": headlines.applied(both, name),
        "history": _history(view, name),
        "efficiency": BY_KEY["efficiency"],
        "delivery": BY_KEY["ttlb"],
    }


def _chart(view: RunView, name: str, cells: dict[str, list[Cell]]) -> Markup:
    rows = []
    for case in view.scenarios:
        for group, role in enumerate(ROLES):
            chosen = [cell for cell in cells[role] if cell.case.name == case and not cell.label]
            marks = headlines.marks(headlines.measurements(chosen), "efficiency", base=_BASE)
            if marks:
                href = _BASE + case_href(case)
                rows.append(
                    Strip(label=f"{case}, as {role}", marks=marks, group=group, href=href, note=f"n {len(marks)}")
                )
    axis = Axis(label="median efficiency η of each pair (%)", end=100.0)
    return strips(rows, axis, title=f"Efficiency of {name} in all measurements, by role")


def _tests(view: RunView, cells: dict[str, list[Cell]]) -> list[dict[str, Any]]:
    """For each test case, by role: all cells with results, the cells that failed, partly failed or ended as errors, and
    the number of unsupported or skipped cells."""
    rows = []
    for case in view.scenarios:
        if view.run.cases[case].kind is not Kind.TEST_CASE:
            continue
        roles = {role: [c for c in cells[role] if c.case.name == case and c.results] for role in ROLES}
        if any(roles.values()):
            bad = {role: [c for c in roles[role] if c.css in ("failed", "mixed", "error")] for role in ROLES}
            none = {role: sum(c.css in ("unsupported", "skipped") for c in roles[role]) for role in ROLES}
            rows.append({"case": view.run.cases[case], "cells": roles, "bad": bad, "none": none})
    return rows


def _history(view: RunView, name: str) -> Markup:
    """A chart of the stack's median delivery time as server, over the runs of this plan."""
    if len(view.alike) < 2:
        return Markup()
    delivery = BY_KEY["ttlb"]
    series: dict[str, list[Mark]] = {}
    for case in ordered_cases(view.run, Kind.MEASUREMENT):
        for folder in view.alike:
            level = folder.levels.get(case.name, {}).get(name)
            if level is not None:
                mark = Mark(
                    x=folder.run.started_unix_s,
                    y=level.delivery,
                    title=f"{folder.name}, {case.name}: {delivery.text(level.delivery)}, n {level.cells}",
                    href=f"../../{quote(folder.name)}/{stack_href(name)}",
                )
                series.setdefault(case.name, []).append(mark)
    days = Axis(label="begin of the run (UTC)", dates=True)
    times = Axis(label="median delivery time (s)")
    return lines(list(series.items()), days, times, title=f"Median delivery time of {name} as server, by run")
