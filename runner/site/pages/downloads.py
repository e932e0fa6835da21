"""The page *Downloads*: the files of a run for other programs, each with a description of its contents."""

from typing import Any
from urllib.parse import quote

from runner.site import exports
from runner.site.exports import public_result, redirections
from runner.site.pages import Asset, Page, Pages
from runner.site.view import RunView
from runner.site.writer import RUN_DOCUMENT

NAV = (5, "Downloads", "downloads/index.html")


def pages(view: RunView) -> Pages:
    jobs, cells = [exports.job_row(result) for result in view.results().values()], exports.cell_rows(view)
    files: list[tuple[str, bytes, str]] = [
        (
            "result.json",
            public_result(view),
            "The matrix in the format that the web page of the public QUIC Interop Runner reads.",
        ),
        (
            RUN_DOCUMENT,
            exports.run_document(view),
            "The whole run in SI units: plan, all stored results, all cells. JSON, compressed by gzip.",
        ),
        ("downloads/run.schema.json", exports.run_document_schema(), "JSON Schema of run.json.gz."),
        (
            "downloads/jobs.csv",
            exports.as_csv(jobs),
            "A row per job: outcome, finding, every number of the iteration, drops on the link.",
        ),
        (
            "downloads/jobs.parquet",
            exports.as_parquet(jobs),
            "The same table as Parquet, for pandas, polars, DuckDB and R.",
        ),
        (
            "downloads/cells.csv",
            exports.as_csv(cells),
            "A row per cell and metric: median with interval, mean, deviation, n; the two groups of delivery times.",
        ),
        ("downloads/cells.parquet", exports.as_parquet(cells), "The same table as Parquet."),
    ]
    for path, content, _ in files:
        yield Asset(path, content)
    for path, content in redirections(view):
        yield Asset(path, content)
    badges = exports.badges(view)
    for name, content in badges.items():
        yield Asset(f"badges/{name}", content)
    context: dict[str, Any] = {
        "files": [(path, len(content), words) for path, content, words in files],
        "badges": [(name, f"badges/{quote(name)}") for name in sorted(badges)],
    }
    yield Page("downloads/index.html", "downloads.html", context)
