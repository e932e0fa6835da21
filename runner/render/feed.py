"""The Atom feed of all runs (RFC 4287), and the list of the run selector."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from runner.compare import report
from runner.model.run import Run
from runner.render import words
from runner.render.view import RunView

Runs = Sequence[tuple[str, Run, dict[str, Any]]]  # name, record, document of `entry`


def entry(view: RunView) -> dict[str, Any]:
    """The data of one run in the feed and in the list of runs."""
    changes = view.changes
    text = words.run_sentence(view.run, view.results.values())
    lines: list[str] = []
    if changes is not None:
        lines = [" · ".join(field for field in row.fields if field) for row in report.rows(changes, everything=False)]
        text += " " + report.sentence(changes)
    states = {} if changes is None else dict.fromkeys(("worse", "better", "other"), 0)
    for state in changes.states() if changes is not None else ():
        if state.value in states:
            states[state.value] += 1
    ended = max((result.started_unix_s + result.wall_s for result in view.results.values()), default=0.0)
    return {"text": text, "lines": lines[:50], "states": states, "ended": max(ended, view.run.started_unix_s)}


def _stamp(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a feed. `href` is relative to the feed; times in seconds since 1970."""

    id: str
    title: str
    href: str
    published: float
    updated: float
    summary: str
    text: str


def document(runs: Runs) -> bytes:
    """The feed of all runs. An entry's id depends only on the run, so it stays the same when the site moves."""
    entries = [
        Entry(
            id=run_id(name, run),
            title=f"{name}: {_title(about['states'])}",
            href=f"{quote(name)}/index.html",
            published=run.started_unix_s,
            updated=about["ended"],
            summary=about["text"],
            text="\n".join([about["text"], *about["lines"]]),
        )
        for name, run, about in runs
    ]
    return atom("bentpipe: what changed", "urn:bentpipe:runs", entries)


def run_id(name: str, run: Run) -> str:
    """A URN that stays the same as long as the run keeps its name."""
    return f"urn:bentpipe:run:{run.started_unix_s:.0f}:{run.seed}:{quote(name)}"


def atom(title: str, identity: str, entries: Sequence[Entry]) -> bytes:
    """The content of an `atom.xml` in the same folder as its page `index.html`."""
    parts = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<title>{_text(title)}</title>",
        f"<id>{_text(identity)}</id>",
        '<link rel="alternate" type="text/html" href="index.html"/>',
        '<link rel="self" type="application/atom+xml" href="atom.xml"/>',
        "<author><name>bentpipe</name></author>",
        f"<updated>{_stamp(max((entry.updated for entry in entries), default=0.0))}</updated>",
    ]
    for entry in entries:
        parts += [
            "<entry>",
            f"<title>{_text(entry.title)}</title>",
            f"<id>{_text(entry.id)}</id>",
            f"<link href={quoteattr(entry.href)}/>",
            f"<published>{_stamp(entry.published)}</published>",
            f"<updated>{_stamp(entry.updated)}</updated>",
            f"<summary>{_text(entry.summary)}</summary>",
            f'<content type="text">{_text(entry.text)}</content>',
            "</entry>",
        ]
    return "\n".join([*parts, "</feed>", ""]).encode()


def _title(states: dict[str, int]) -> str:
    if not states:
        return "no earlier run to compare with"
    return ", ".join(f"{count} {state}" for state, count in states.items() if count) or "no change"


def _text(text: str) -> str:
    """Escaped text without control characters. XML 1.0 forbids these characters, and an endpoint may have written
    some."""
    allowed = "".join(
        character
        for character in text
        if character in "\t\n\r" or (character >= " " and character not in "\ufffe\uffff")
    )
    return escape(allowed.encode("utf-8", "replace").decode())


def public_list(runs: Runs) -> bytes:
    """`logs.json` of the public runner's page: the folders that hold a `result.json`, the oldest first."""
    return json.dumps([name for name, _, _ in reversed(runs)]).encode() + b"\n"


def selector(runs: Runs) -> bytes:
    """Names and dates for the run selector. They are a script, because a page on `file://` can't fetch a file."""
    listed = [[name, words.moment(run.started_unix_s)] for name, run, _ in runs]
    text = json.dumps(listed, separators=(",", ":")).replace("<", "\\u003c")
    return f"bentpipeRuns={text};\n".encode()
