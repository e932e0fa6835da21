"""A run as `result.json` of the public QUIC Interop Runner. The web pages of that runner and of the thesis read it.

interop.py writes this format and web/script.js reads it: lists of pairs by client, then by server; `tests` by
abbreviation. The page makes class names, ids and selectors from names and abbreviations. It does not escape them, and
it writes ids in lower case. So names and abbreviations must have plain characters only, and they must differ even when
upper and lower case count as equal. The page links a cell to `logs/<log_dir>/<server>_<client>/<name>`.
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
    """`result.json` of the public runner. Cells with errors and skipped cells are left out, because the format has no
    word for them.

    `details` of a measurement: mean ± deviation of the goodput in kbit/s.
    """
    run, names, letters = view.run, plain_names(view), _abbreviations(view)
    pairs = [
        [view.table[server, client, case] for case in view.scenarios if (server, client, case) in view.table]
        for client in view.clients
        for server in view.servers
    ]
    results, measurements = (
        [[_cell(cell, letters) for cell in pair if cell.case.kind is kind and _has_word(cell)] for pair in pairs]
        for kind in (Kind.TEST_CASE, Kind.MEASUREMENT)
    )
    ends = [result.started_unix_s + result.wall_s for result in view.results.values()]
    document = {
        "start_time": run.started_unix_s,
        "end_time": max([run.started_unix_s, *ends]),
        "log_dir": view.name,
        "servers": [names[name] for name in view.servers],
        "clients": [names[name] for name in view.clients],
        "urls": {names[name]: run.implementations[name].url for name in view.stacks if name in run.implementations},
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


def _has_word(cell: Cell) -> bool:
    return cell.outcome in _OUTCOMES


def _cell(cell: Cell, letters: dict[str, str]) -> dict[str, Any]:
    assert cell.outcome is not None  # _has_word
    entry = {"abbr": letters[cell.case.name], "name": cell.case.name, "result": _OUTCOMES[cell.outcome]}
    if cell.case.kind is Kind.MEASUREMENT:
        goodput = cell.summaries.get("goodput")
        deviation = 0.0 if goodput is None or goodput.deviation is None else goodput.deviation
        entry["details"] = "" if goodput is None else f"{goodput.mean / 1e3:.0f} (± {deviation / 1e3:.0f}) kbps"
    return entry


def plain_names(view: RunView) -> dict[str, str]:
    """The name of each stack on the public runner's page: `quinn+iw=32` → `quinn-iw-32`."""
    return _apart(view.stacks, [_UNSAFE.sub("-", name.lower()).strip("-") for name in view.stacks])


def _abbreviations(view: RunView) -> dict[str, str]:
    """The abbreviation of each case. Cases that share an abbreviation use their names instead."""
    cases = list(view.run.cases.values())
    taken = [case.abbreviation.lower() for case in cases]
    texts = [case.abbreviation if taken.count(case.abbreviation.lower()) == 1 else case.name for case in cases]
    return _apart([case.name for case in cases], [_UNSAFE.sub("-", text).strip("-") for text in texts])


def _apart(names: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """The texts by name, made different from each other. A number is added to a text that is empty, or that differs
    from another text only in upper and lower case. Texts that equal their name are handled first, so that they stay as
    they are."""
    details: dict[str, str] = {}
    taken = {""}
    for name, text in sorted(zip(names, texts, strict=True), key=lambda pair: pair[0] != pair[1]):
        number, free = 2, text
        while free.lower() in taken:
            number, free = number + 1, f"{text}-{number}".strip("-")
        taken.add(free.lower())
        details[name] = free
    return details


def redirections(view: RunView) -> Iterator[tuple[str, bytes]]:
    """Path and content of pages that redirect the public page's links to cells. They are needed for stacks whose name
    on the public page is different."""
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
