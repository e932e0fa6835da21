"""A run as `result.json` of the public QUIC Interop Runner, which its web page and that of the thesis read.

What interop.py writes and web/script.js reads: lists of pairs by client, then by server; `tests` by abbreviation. The
page makes class names, ids and selectors of names and abbreviations without escaping them, ids in lower case, so both
have to be plain and apart from each other. It links a cell to `logs/<log_dir>/<server>_<client>/<name>`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from runner.model.result import Outcome
from runner.model.run import Kind
from runner.render.cells import Cell
from runner.render.view import RunView

_OUTCOMES = {Outcome.SUCCEEDED: "succeeded", Outcome.FAILED: "failed", Outcome.UNSUPPORTED: "unsupported"}
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def public_result(view: RunView) -> bytes:
    """`result.json` of the public runner. Jobs for which it has no word (errors, skipped) are left out, as if they
    had not run.

    `details` of a measurement: mean ± deviation of the goodput in kbit/s.
    """
    run, names, letters = view.run, plain_names(view), _abbreviations(view)
    pairs = [
        [view.table[server, client, case] for case in view.scenarios if (server, client, case) in view.table]
        for client in view.clients
        for server in view.servers
    ]
    results, measurements = (
        [[_cell(cell, letters) for cell in of_pair if cell.case.kind is kind and _told(cell)] for of_pair in pairs]
        for kind in (Kind.TEST_CASE, Kind.MEASUREMENT)
    )
    ends = [one.started_unix_s + one.wall_s for one in view.results.values()]
    document = {
        "start_time": run.started_unix_s,
        "end_time": max([run.started_unix_s, *ends]),
        "log_dir": view.name,
        "servers": [names[name] for name in view.servers],
        "clients": [names[name] for name in view.clients],
        "urls": {names[name]: one.url for name in view.stacks if (one := run.implementations.get(name)) is not None},
        "tests": {
            letters[case.name]: {
                "name": case.name,
                "desc": case.description,
                "timeout": case.timeout,
                "theoretical_max_value": case.forward.data_rate / 1e3,  # kbit/s, for the thesis' edition of the page
            }
            for case in run.cases.values()
        },
        "quic_draft": 34,  # the last draft, which became RFC 9000
        "quic_version": "0x1",
        "results": results,
        "measurements": measurements,
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "replace")


def _told(cell: Cell) -> bool:
    return cell.outcome in _OUTCOMES


def _cell(cell: Cell, letters: dict[str, str]) -> dict[str, Any]:
    assert cell.outcome is not None  # _told
    found = {"abbr": letters[cell.case.name], "name": cell.case.name, "result": _OUTCOMES[cell.outcome]}
    if cell.case.kind is Kind.MEASUREMENT:
        goodput = cell.summaries.get("goodput")
        deviation = 0.0 if goodput is None or goodput.deviation is None else goodput.deviation
        found["details"] = "" if goodput is None else f"{goodput.mean / 1e3:.0f} (± {deviation / 1e3:.0f}) kbps"
    return found


def plain_names(view: RunView) -> dict[str, str]:
    """The name of each stack on the public runner's page: `quinn+iw=32` → `quinn-iw-32`."""
    return _apart(view.stacks, [_UNSAFE.sub("-", name.lower()).strip("-") for name in view.stacks])


def _abbreviations(view: RunView) -> dict[str, str]:
    """By case. Workloads over several links share theirs: they are called by their case's name."""
    cases = list(view.run.cases.values())
    taken = [case.abbreviation.lower() for case in cases]
    texts = [one.abbreviation if taken.count(one.abbreviation.lower()) == 1 else one.name for one in cases]
    return _apart([one.name for one in cases], [_UNSAFE.sub("-", text).strip("-") for text in texts])


def _apart(names: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """`texts` by name, numbered where they are empty or equal, ignoring case. Texts that need no change come first."""
    found: dict[str, str] = {}
    taken = {""}
    for name, text in sorted(zip(names, texts, strict=True), key=lambda one: one[0] != one[1]):
        number, free = 2, text
        while free.lower() in taken:
            number, free = number + 1, f"{text}-{number}".strip("-")
        taken.add(free.lower())
        found[name] = free
    return found


def redirections(view: RunView) -> Iterator[tuple[str, bytes]]:
    """Pages where the public page expects a cell's files, of stacks that it knows by another name: path, content."""
    names = plain_names(view)
    for cell in view.table.values():
        server, client = names[cell.server], names[cell.client]
        if (server, client) != (cell.server, cell.client) and cell.outcome in _OUTCOMES:
            href = escape(f"../../{quote(cell.pair)}/{quote(cell.case.name)}.html")
            yield (
                f"{server}_{client}/{cell.case.name}/index.html",
                f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={href}">'
                f'<title>bentpipe</title><a href="{href}">{escape(cell.ends)}, {escape(cell.case.name)}</a>\n'.encode(),
            )
