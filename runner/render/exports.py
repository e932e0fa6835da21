"""A run's data for other programs: rows of jobs and of cells as CSV and Parquet, and badges."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from runner.model.result import DROPS, Result, Sample
from runner.model.run import RUN_SCHEMA, Kind, Run
from runner.render.metrics import BY_KEY, METRICS
from runner.render.view import RunView
from runner.stats.modes import Modes
from runner.stats.ranking import Place
from runner.store import RunFolder

Row = dict[str, Any]
_SAMPLE = tuple(field.name for field in fields(Sample))


def job_rows(view: RunView) -> list[Row]:
    """One row per stored job. SI units; None where unknown."""
    return [_job_row(result) for result in view.results.values()]


def _job_row(result: Result) -> Row:
    finding = result.cause
    row: Row = {
        "server": result.server,
        "client": result.client,
        "via": result.via,
        "case": result.case,
        "link": result.link,
        "iteration": result.iteration,
        "outcome": result.outcome.value,
        "protocol": result.protocol,
        "finding": finding.code if finding else "",
        "finding_role": finding.role if finding else "",
        "attempts": result.attempts,
        "started_unix_s": result.started_unix_s,
        "wall_s": result.wall_s,
        "cpu_pressure": result.cpu_pressure,
        "diagnoses": " ".join(sorted({diagnosis.code for diagnosis in result.diagnoses})),
    }
    row |= {name: getattr(result.sample, name, None) for name in _SAMPLE}
    for way, truth in (
        ("forward", result.truth and result.truth.forward),
        ("return", result.truth and result.truth.return_),
    ):
        row |= {f"{way}_{name}": getattr(truth, name, None) for name in DROPS}
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


def run_document(folder: RunFolder, cells: Sequence[CellRecord]) -> bytes:
    """The whole run as one JSON document, in the terms of `run.json` and `result.json`."""
    document = RunDocument(run=folder.run, cells=list(cells), results=list(folder.results().values()))
    # `json` writes text without indentation many times faster. Unlike pydantic, it accepts lone surrogates.
    return json.dumps(_DOCUMENT.dump_python(document, mode="json"), sort_keys=True, allow_nan=False).encode() + b"\n"


@cache
def run_document_schema() -> bytes:
    """The JSON Schema of the run document. Making it takes as long as drawing half of the pages of a small run."""
    return json.dumps(_DOCUMENT.json_schema(), indent=1).encode() + b"\n"


def cell_records(view: RunView) -> list[CellRecord]:
    """The cells as `run.json` describes them."""
    return [
        CellRecord(
            server=cell.server,
            client=cell.client,
            case=cell.case.name,
            protocol=cell.protocol,
            successes=cell.attempts.successes,
            attempts=cell.attempts.attempts,
            median_iteration=cell.median,
            modes=cell.modes,
        )
        for cell in view.table.values()
    ]


def cell_rows(view: RunView) -> list[Row]:
    """One row per cell and metric: the summary over the iterations that succeeded. SI units.

    `lower_n` to `upper_median` describe the two groups of a cell's delivery times; None when the delivery times do not
    form two groups.
    """
    rows = []
    for cell in view.table.values():
        for metric in METRICS:
            summary = cell.summaries.get(metric.key)
            if summary is None:
                continue
            rows.append(
                {
                    "server": cell.server,
                    "client": cell.client,
                    "case": cell.case.name,
                    "kind": cell.case.kind.value,
                    "protocol": cell.protocol,
                    "successes": cell.attempts.successes,
                    "attempts": cell.attempts.attempts,
                    "metric": metric.key,
                    "n": summary.n,
                    "median": summary.median,
                    "low": summary.low,
                    "high": summary.high,
                    "mean": summary.mean,
                    "deviation": summary.deviation,
                    "minimum": summary.minimum,
                    "maximum": summary.maximum,
                    **_modes(cell.modes if metric.key == "ttlb" else None),
                }
            )
    return rows


def _modes(modes: Modes | None) -> Row:
    return {
        "lower_n": modes and modes.lower,
        "lower_median": modes and modes.lower_median,
        "upper_n": modes and modes.upper,
        "upper_median": modes and modes.upper_median,
    }


def as_csv(rows: Sequence[Row]) -> bytes:
    """The rows as CSV with a header; an unknown value is empty."""
    file = io.StringIO(newline="")
    if rows:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([row[name] for name in rows[0]] for row in rows)
    return file.getvalue().encode("utf-8", "replace")


def _whole(value: object) -> object:
    """`value` with `?` in place of each half of a surrogate pair. An endpoint may have written such a half, and UTF-8
    can't encode it."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def as_parquet(rows: Sequence[Row]) -> bytes:
    """The rows as Parquet."""
    sink = pa.BufferOutputStream()
    columns = {name: [_whole(row[name]) for row in rows] for name in rows[0]} if rows else {}
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def badge(label: str, value: str, *, good: bool | None) -> bytes:
    """An SVG badge with two fields. Its colour has the same meaning as its words."""
    colour = {True: "#0f6a5b", False: "#a1310b", None: "#225fa6"}[good]
    left, right = (round(6.6 * len(text) + 14) for text in (label, value))
    title = escape(f"{label}: {value}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{title.replace(chr(34), "&quot;")}"><title>{title}</title>'
        f'<rect width="{left}" height="20" rx="3" fill="#3b434c"/>'
        f'<rect x="{left - 3}" width="{right + 3}" height="20" rx="3" fill="{colour}"/>'
        f'<rect x="{left - 3}" width="6" height="20" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:.1f}" y="14" textLength="{left - 14}">{escape(label)}</text>'
        f'<text x="{left + right / 2:.1f}" y="14" textLength="{right - 14}">{escape(value)}</text></g></svg>\n'
    ).encode()


def badges(view: RunView) -> dict[str, bytes]:
    """Badges by file name. In each role, a stack has a badge for its test cases, and a badge for its rank in each
    measurement."""
    columns = {}
    for role in ("server", "client"):
        for name in view.servers if role == "server" else view.clients:
            label = f"{name} {role}"
            cells = view.by_stack.get((role, name), [])
            tests = [
                cell
                for cell in cells
                if cell.case.kind is Kind.TEST_CASE and cell.css in ("succeeded", "failed", "mixed")
            ]
            good = sum(cell.css == "succeeded" for cell in tests)
            if tests:
                badge_name = f"{name}-{role}-tests.svg"
                columns[badge_name] = badge(label, f"bentpipe: {good} of {len(tests)} passed", good=good == len(tests))
            for decision in view.decided:
                places: list[Place] = decision.servers if role == "server" else decision.clients
                for place in places:
                    if place.name == name and not decision.label:
                        time = BY_KEY["ttlb"].text(place.summary.median)
                        rank = "not ranked" if place.why_not else f"rank {place.rank} of {len(places)}"
                        text = f"bentpipe {decision.case.name}: {rank}, {time}"
                        columns[f"{name}-{role}-{decision.case.name}.svg"] = badge(label, text, good=None)
    return columns
