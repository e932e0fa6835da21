"""The page *Robustness*: what stacks accept from the hostile peer (docs/hostile.md), from the files `hostile.json`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SIGNS = {"passed": "✓", "failed": "✗", "note": "≈", "error": "?", "inapplicable": "·", "unsupported": "–"}
STYLES = {"passed": "succeeded", "failed": "failed", "error": "error"}
"""Verdict → class of the style sheet; the others are drawn as unsupported."""
_RESULTS = "*/hostile.json"


def newest_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Stack → its newest results below `folder`. Broken files are left out."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(_RESULTS), key=lambda path: path.stat().st_mtime):
        try:
            read = json.loads(path.read_bytes())
            stack, flights, results = read["stack"], read["flights"], read["results"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(stack, str) and isinstance(flights, dict) and isinstance(results, list):
            newest[stack] = {**read, "folder": path.parent.name}
    return newest


def robustness(newest: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The variables of the page: a column for each stack in each role, a row for each flight, by RFC."""
    columns = [(stack, role) for stack in sorted(newest) for role in ("client", "server")]
    cells = {
        (stack, str(result.get("role")), str(result.get("flight"))): result
        for stack, read in newest.items()
        for result in read["results"]
        if isinstance(result, dict)
    }
    flights = {name: flight for read in newest.values() for name, flight in read["flights"].items()}
    by_rfc: dict[str, list[dict[str, Any]]] = {}
    for name, flight in flights.items():
        row = [cells.get((stack, role, name)) for stack, role in columns]
        rfc = " ".join(str(flight.get("section", "")).split()[:2])
        by_rfc.setdefault(rfc, []).append({"name": name, "flight": flight, "cells": row})
    return {
        "columns": columns,
        "groups": sorted(by_rfc.items(), key=lambda group: int("0" + group[0].removeprefix("RFC ").strip())),
        "findings": list(_findings(newest, flights)),
        "totals": [_total(cells, stack, role) for stack, role in columns],
        "verdict_signs": SIGNS,
        "styles": STYLES,
    }


def _total(cells: Mapping[tuple[str, str, str], Mapping[str, Any]], stack: str, role: str) -> str:
    """Passed of decided flights."""
    verdicts = [result.get("verdict") for (of, in_role, _), result in cells.items() if (of, in_role) == (stack, role)]
    decided = sum(verdict in ("passed", "failed", "note") for verdict in verdicts)
    return f"{verdicts.count('passed')}/{decided}" if verdicts else ""


def _findings(
    newest: Mapping[str, Mapping[str, Any]], flights: Mapping[str, Mapping[str, Any]]
) -> Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any], str]]:
    """Stack, result, flight and folder of each result that failed."""
    for stack, read in sorted(newest.items()):
        for result in read["results"]:
            if isinstance(result, dict) and result.get("verdict") == "failed":
                yield stack, result, flights.get(str(result.get("flight")), {}), f"{read['folder']}/{result.get('job')}"
