"""A run's data for other programs: CSV, Parquet, JSON, badges, the public runner's `result.json`, the Atom feed."""

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from runner.compare import report
from runner.compare.rankings import Modes
from runner.model.result import BY_KEY, DROPS, PAIR_NUMBERS, Outcome, Result, Sample
from runner.model.run import RUN_SCHEMA, Kind, Run
from runner.site.view import JUDGED, Cell, RunView, moment, run_sentence
from runner.site.writer import rendered

Row = dict[str, Any]
_OF_JOB = ("server", "client", "via", "case", "link", "iteration", "outcome", "protocol")
_OF_ITS_ATTEMPTS = ("attempts", "started_unix_s", "wall_s", "cpu_pressure")
_SAMPLE = tuple(field.name for field in fields(Sample))
_SUMMARY = ("n", "median", "low", "high", "mean", "deviation", "minimum", "maximum")


def job_row(result: Result) -> Row:
    finding = result.cause
    row: Row = {name: getattr(result, name) for name in _OF_JOB}
    row |= {"finding": finding.code if finding else "", "finding_role": finding.role if finding else ""}
    row |= {name: getattr(result, name) for name in _OF_ITS_ATTEMPTS}
    row |= {"diagnoses": " ".join(sorted({diagnosis.code for diagnosis in result.diagnoses}))}
    row |= {name: getattr(result.sample, name, None) for name in _SAMPLE}
    for way in ("forward", "return_"):
        truth = getattr(result.truth, way, None)
        row |= {f"{way.strip('_')}_{name}": getattr(truth, name, None) for name in DROPS}
    return row


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """Facts about all iterations of a pair in a case."""

    server: str
    client: str
    case: str
    protocol: str  # requested ALPN of most iterations
    successes: int
    attempts: int
    median_iteration: int | None
    modes: Modes | None  # two groups of delivery times, in seconds; None: no two groups, or fewer than 8 times


@dataclass(frozen=True, kw_only=True)
class RunDocument:
    """A whole run in one file, as the site offers it for download."""

    schema: int = RUN_SCHEMA
    run: Run
    cells: list[CellRecord]
    results: list[Result]


_DOCUMENT = TypeAdapter(RunDocument)


def run_document(view: RunView) -> bytes:
    """The whole run as one JSON document, in the terms of `run.json` and `result.json`, compressed by gzip."""
    cells = [
        CellRecord(
            **cell.place,
            protocol=cell.protocol,
            successes=cell.attempts.successes,
            attempts=cell.attempts.attempts,
            median_iteration=cell.median,
            modes=cell.modes,
        )
        for cell in view.table.values()
    ]
    document = RunDocument(run=view.run, cells=cells, results=list(view.results().values()))
    # `json` writes text without indentation many times faster. Unlike pydantic, it accepts lone surrogates.
    text = json.dumps(_DOCUMENT.dump_python(document, mode="json"), sort_keys=True, allow_nan=False)
    return gzip.compress(text.encode() + b"\n", compresslevel=6, mtime=0)


@cache
def run_document_schema() -> bytes:
    """The JSON Schema of the run document. Making it takes as long as drawing half of the pages of a small run."""
    return json.dumps(_DOCUMENT.json_schema(), indent=1).encode() + b"\n"


def cell_rows(view: RunView) -> list[Row]:
    """One row per cell and metric: the summary over the iterations that succeeded. SI units.

    `lower_n` to `upper_median` describe the two groups of a cell's delivery times; None when the delivery times do not
    form two groups.
    """
    rows = []
    for cell in view.table.values():
        for metric in PAIR_NUMBERS:
            summary = cell.summaries.get(metric.key)
            if summary is None:
                continue
            row: Row = cell.place | {"kind": cell.case.kind.value, "protocol": cell.protocol}
            row |= {"successes": cell.attempts.successes, "attempts": cell.attempts.attempts, "metric": metric.key}
            row |= {name: getattr(summary, name) for name in _SUMMARY}
            modes = cell.modes if metric.key == "ttlb" else None
            row |= {"lower_n": modes and modes.lower, "lower_median": modes and modes.lower_median}
            row |= {"upper_n": modes and modes.upper, "upper_median": modes and modes.upper_median}
            rows.append(row)
    return rows


def as_csv(rows: Sequence[Row]) -> bytes:
    """The rows as CSV with a header; an unknown value is empty. An apostrophe begins each text that a spreadsheet would
    take for a formula: an endpoint may have written it."""
    file = io.StringIO(newline="")
    if rows:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([_no_formula(row[name]) for name in rows[0]] for row in rows)
    return file.getvalue().encode("utf-8", "replace")


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _whole(value: object) -> object:
    """`value` with `?` in place of each half of a surrogate pair. An endpoint may have written such a half, and UTF-8
    can't encode it."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def as_parquet(rows: Sequence[Row]) -> bytes:
    sink = pa.BufferOutputStream()
    columns = {name: [_whole(row[name]) for row in rows] for name in rows[0]} if rows else {}
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def badge(label: str, value: str, *, good: bool | None) -> bytes:
    """An SVG badge with two fields. Its colour has the same meaning as its words."""
    colour = {True: "#0f6a5b", False: "#a1310b", None: "#225fa6"}[good]
    return rendered("badge.svg", {"label": label, "value": value, "colour": colour})


def badges(view: RunView) -> dict[str, bytes]:
    """Badges by file name. In each role, a stack has a badge for its test cases, and a badge for its rank in each
    measurement."""
    drawn = {}
    for (role, name), cells in view.by_stack.items():
        tests = [cell for cell in cells if cell.case.kind is Kind.TEST_CASE and cell.css in JUDGED]
        good = sum(cell.css == "succeeded" for cell in tests)
        if tests:
            text = f"bentpipe: {good} of {len(tests)} passed"
            drawn[f"{name}-{role}-tests.svg"] = badge(f"{name} {role}", text, good=good == len(tests))
    for decision in (decision for decision in view.decided if not decision.label):
        for role, places in (("server", decision.servers), ("client", decision.clients)):
            for place in places:
                rank = "not ranked" if place.why_not else f"rank {place.rank} of {len(places)}"
                text = f"bentpipe {decision.case.name}: {rank}, {BY_KEY['ttlb'].text(place.summary.median)}"
                drawn[f"{place.name}-{role}-{decision.case.name}.svg"] = badge(f"{place.name} {role}", text, good=None)
    return drawn


# A run as `result.json` of the public QUIC Interop Runner. The web pages of that runner and of the thesis read it.
#
# interop.py writes this format and web/script.js reads it: lists of pairs by client, then by server; `tests` by
# abbreviation. The page makes class names, ids and selectors from names and abbreviations. It does not escape them,
# and it writes ids in lower case. So names and abbreviations must have plain characters only, and they must differ
# even when upper and lower case count as equal. The page links a cell to `logs/<log_dir>/<server>_<client>/<name>`.

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
        [
            [_cell(cell, letters) for cell in pair if cell.case.kind is kind and cell.outcome in _OUTCOMES]
            for pair in pairs
        ]
        for kind in (Kind.TEST_CASE, Kind.MEASUREMENT)
    )
    ends = [result.started_unix_s + result.wall_s for result in view.results().values()]
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


def _cell(cell: Cell, letters: dict[str, str]) -> dict[str, Any]:
    assert cell.outcome is not None  # only cells with one of `_OUTCOMES` are shown
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
            moved = {"href": f"../../{cell.href}", "words": f"{cell.ends}, {cell.case.name}"}
            yield f"{server}_{client}/{cell.case.name}/index.html", rendered("moved.html", moved)


# The Atom feed of all runs (RFC 4287), and the list of the run selector.

Runs = Sequence[tuple[str, Run, dict[str, Any]]]  # name, record, document of `entry`


def entry(view: RunView) -> dict[str, Any]:
    """The data of one run in the feed and in the list of runs."""
    changes = view.changes
    text = run_sentence(view.run, view.results().values())
    lines: list[str] = []
    if changes is not None:
        lines = [" · ".join(filter(None, fields)) for _, fields in report.rows(changes, everything=False)]
        text += " " + report.sentence(changes)
    states = {} if changes is None else dict.fromkeys(("worse", "better", "other"), 0)
    for state in changes.states() if changes is not None else ():
        if state.value in states:
            states[state.value] += 1
    ended = max((result.started_unix_s + result.wall_s for result in view.results().values()), default=0.0)
    return {"text": text, "lines": lines[:50], "states": states, "ended": max(ended, view.run.started_unix_s)}


@dataclass(frozen=True, kw_only=True)
class FeedEntry:
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
        FeedEntry(
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


def atom(title: str, identity: str, entries: Sequence[FeedEntry]) -> bytes:
    """The content of an `atom.xml` in the same folder as its page `index.html`."""
    page = rendered("atom.xml", {"title": title, "identity": identity, "entries": entries})
    return re.sub("[\ufffe\uffff]", "", page.decode()).encode()  # forbidden in XML 1.0, and a stack wrote some


def _title(states: dict[str, int]) -> str:
    if not states:
        return "no earlier run to compare with"
    return ", ".join(f"{count} {state}" for state, count in states.items() if count) or "no change"


def selector(runs: Runs) -> bytes:
    """Names and dates for the run selector. They are a script, because a page on `file://` can't fetch a file."""
    listed = [[name, moment(run.started_unix_s)] for name, run, _ in runs]
    text = json.dumps(listed, separators=(",", ":")).replace("<", "\\u003c")
    return f"bentpipeRuns={text};\n".encode()
