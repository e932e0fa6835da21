"""News by run: an Atom feed (RFC 4287), and the list behind the run selector."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from runner.compare import report
from runner.model.run import Run
from runner.render import words
from runner.render.view import RunView

Runs = Sequence[tuple[str, Run, dict[str, Any]]]  # name, record, what `entry` gave


def entry(view: RunView) -> dict[str, Any]:
    """The data of one run in the feed and in the list of runs."""
    changes = view.changes
    told = words.run_sentence(view.run, view.results.values())
    lines: list[str] = []
    if changes is not None:
        lines = [" · ".join(field for field in row.fields if field) for row in report.rows(changes, everything=False)]
        told += " " + report.sentence(changes)
    states = {} if changes is None else dict.fromkeys(("worse", "better", "other"), 0)
    for state in changes.states() if changes is not None else ():
        if state.value in states:
            states[state.value] += 1
    ended = max((one.started_unix_s + one.wall_s for one in view.results.values()), default=0.0)
    return {"told": told, "lines": lines[:50], "states": states, "ended": max(ended, view.run.started_unix_s)}


def _stamp(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def document(runs: Runs) -> bytes:
    """The feed. Ids are made of what a run was recorded with, so that they stay when the site moves."""
    newest = max((told["ended"] for _, _, told in runs), default=0.0)
    parts = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        "<title>bentpipe: what changed</title>",
        "<id>urn:bentpipe:runs</id>",
        '<link rel="alternate" type="text/html" href="index.html"/>',
        '<link rel="self" type="application/atom+xml" href="atom.xml"/>',
        "<author><name>bentpipe</name></author>",
        f"<updated>{_stamp(newest)}</updated>",
    ]
    for name, run, told in runs:
        text = "\n".join([told["told"], *told["lines"]])
        title = f"{name}: {_title(told['states'])}"
        parts += [
            "<entry>",
            f"<title>{_text(title)}</title>",
            f"<id>urn:bentpipe:run:{run.started_unix_s:.0f}:{run.seed}:{quote(name)}</id>",
            f"<link href={quoteattr(quote(name) + '/index.html')}/>",
            f"<published>{_stamp(run.started_unix_s)}</published>",
            f"<updated>{_stamp(told['ended'])}</updated>",
            f"<summary>{_text(told['told'])}</summary>",
            f'<content type="text">{_text(text)}</content>',
            "</entry>",
        ]
    return "\n".join([*parts, "</feed>", ""]).encode()


def _title(states: dict[str, int]) -> str:
    if not states:
        return "a run without one before it to compare with"
    return ", ".join(f"{count} {state}" for state, count in states.items() if count) or "no change shows"


def _text(text: str) -> str:
    """Without what XML 1.0 forbids: control characters that an endpoint may have written."""
    allowed = "".join(one for one in text if one in "\t\n\r" or (one >= " " and one not in "\ufffe\uffff"))
    return escape(allowed.encode("utf-8", "replace").decode())


def public_list(runs: Runs) -> bytes:
    """`logs.json` of the public runner's page: the folders in which it finds a `result.json`, the oldest first."""
    return json.dumps([name for name, _, _ in reversed(runs)]).encode() + b"\n"


def selector(runs: Runs) -> bytes:
    """Names and dates for the run selector, as a script: a page on `file://` can't fetch."""
    listed = [[name, words.moment(run.started_unix_s)] for name, run, _ in runs]
    text = json.dumps(listed, separators=(",", ":")).replace("<", "\\u003c")
    return f"bentpipeRuns={text};\n".encode()
