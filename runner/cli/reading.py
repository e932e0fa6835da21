"""Commands over stored files: analyse, render, serve, show, schema."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runner import store
from runner.cli.base import SITE, Skipped, draw_site, err, out
from runner.cli.group import main
from runner.config.catalog import Catalog, implementations_schema, load_catalog
from runner.config.emulated_links import emulated_links_schema
from runner.config.links import links_schema
from runner.config.over_links import declaration
from runner.errors import UsageError
from runner.files.safe_files import beneath
from runner.judge.judging import can_judge, judge_job
from runner.judge.limits import Limits
from runner.judge.process import AnalysisLimitError, Judges, StoppedError, over_the_limit
from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.result import Result
from runner.nights.plan import night_schema
from runner.plan import runs
from runner.plan.runs import LOGS
from runner.render.site_server import SiteServer
from runner.store import RunFolder, find_runs, load_evidence
from runner.terminal import tables
from runner.units import format_count


@main.command("analyse")
@click.argument("name", metavar="RUN")
def analyse_(name: str) -> None:
    """Judge a stored run again, offline, and print the changed verdicts."""
    skipped = Skipped()
    folder = RunFolder.open(runs.run_path(name), skipped)
    catalog = load_catalog()
    changes: list[tuple[Job, Result, Result]] = []
    count = 0
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", style="dim"))
    with folder.locked(), Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        results = folder.results()
        task = progress.add_task("", total=len(results))
        for job, before, after in _all_judged_again(folder, catalog, results, skipped):
            progress.update(task, description=str(job))
            progress.advance(task)
            if after is None:
                continue
            count += 1
            folder.save_result(after)
            if (before.outcome, before.findings) != (after.outcome, after.findings):
                changes.append((job, before, after))
    if count < len(results):
        kept = f"{len(results) - count} of {len(results)} jobs keep their verdict"
        out.print(f"{kept}: their packets are gone, or their test case no longer exists.")
    out.print(
        tables.changes_table(changes) if changes else f"{format_count(count, 'job')} judged again, no verdict changed."
    )


def _all_judged_again(
    folder: RunFolder, catalog: Catalog, results: Mapping[Job, Result], skipped: Skipped
) -> Iterator[tuple[Job, Result, Result | None]]:
    """Each job with its old and its new result, in the order of `results`. The new result is None when the job can't be
    judged."""
    stop, judges_count = threading.Event(), os.cpu_count() or 1

    def judge(item: tuple[Job, Result]) -> Result | None:
        try:
            return _judged_again(judges, folder, catalog, *item)
        except (UsageError, OSError) as error:
            skipped(str(error))
        except Exception as error:  # a bug of bentpipe must affect only one job
            skipped(f"{item[0]}: the judge failed ({type(error).__name__}: {error}); this is a bug of bentpipe.")
        return None

    with Judges(judges_count, stopped=stop.is_set) as judges, ThreadPoolExecutor(judges_count) as threads:
        try:
            judged = threads.map(judge, results.items())
            for (job, before), after in zip(results.items(), judged, strict=True):
                yield job, before, after
        finally:  # after Ctrl-C the judges end at once
            stop.set()
            threads.shutdown(cancel_futures=True)


def _judged_again(judges: Judges, folder: RunFolder, catalog: Catalog, job: Job, before: Result) -> Result | None:
    """The new result of `job`; None when its captures are gone or its case is unknown."""
    artifacts, record = folder.own(job), folder.run.cases.get(job.case_link)
    if record is None:
        return None
    case = declaration(catalog.cases, record)
    if not can_judge(artifacts, case, record):
        return None
    limits = Limits.of(artifacts)
    try:
        judged = judges.call(limits, judge_job, job, artifacts, case, record)
    except AnalysisLimitError as error:
        judged = over_the_limit(job, artifacts, limits, error)
    except StoppedError:
        return None
    return runs.rejudged(before, judged)


@main.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path),
    default=SITE,
    show_default="web/site",
    help="Folder of the site.",
)
def render(names: tuple[str, ...], target: Path) -> None:
    """Draw the site from the results of runs. Without RUN it draws all runs in logs/."""
    skipped = Skipped()
    folders = [RunFolder.open(runs.run_path(name), skipped) for name in names] or find_runs(LOGS, skipped)
    out.print(f"{draw_site(folders, target, skipped if not names else None)}", markup=False)


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="TCP port.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--site", type=click.Path(path_type=Path), default=SITE, show_default="web/site", help="Folder of the site."
)
@click.option("--name", "names", multiple=True, help="Another host name that browsers may use for this server.")
def serve(port: int, bind: str, site: Path, names: tuple[str, ...]) -> None:
    """Serve the rendered site. Files of jobs are sent as text or as downloads, never as pages."""
    if not (site / "index.html").is_file():
        raise UsageError(f"There is no site in {site}: draw it with ./bentpipe render.")
    try:
        server = SiteServer((bind, port), site, names)
    except OSError as error:
        raise UsageError(f"--bind {bind} --port {port} can't be used: {error.strerror}.") from error
    with server:
        out.print(f"http://{bind}:{port}/ — Ctrl-C ends it.")
        server.serve_forever()


@main.command()
@click.argument("name", metavar="RUN/SERVER_CLIENT/CASE/ITERATION")
def show(name: str) -> None:
    """Show one job: verdict, evidence, numbers."""
    path = Path(name) if Path(name).is_dir() else LOGS / name
    if not (path / "result.json").is_file():
        raise UsageError(
            f"There is no finished job in {path}: write RUN/SERVER_CLIENT/CASE/ITERATION, such as "
            "demo/quinn_aioquic/sat/1."
        )
    here = path.absolute()
    beneath(here.parents[2], Path(*here.parts[-3:]))  # a symbolic link in a run may lead to a place outside the run
    folder = RunFolder.open(here.parents[2], Skipped())
    results = {folder.artifacts(job).folder: result for job, result in folder.results().items()}
    if here not in results:
        raise UsageError(f"The job in {path} can't be shown, because its result.json can't be read.")
    result = results[here]
    artifacts = Artifacts(path)
    tables.show_result(out, result, folder.run.cases.get(result.job.case_link), load_evidence(artifacts), artifacts)
    out.print(f"files: {path}")


@main.command()
@click.argument("name", metavar="FILE")
def schema(name: str) -> None:
    """Print the JSON Schema of a file format.

    FILE is run.json, result.json, evidence.json, implementations.json, links.json, emulated-links.json or night.json.
    """
    schemas = {
        **store.schemas(),
        "implementations.json": implementations_schema(),
        "links.json": links_schema(),
        "night.json": night_schema(),
        "emulated-links.json": emulated_links_schema(),
    }
    if name not in schemas:
        raise UsageError(f"There is no schema of '{name}'. Choices: {', '.join(schemas)}.")
    click.echo(json.dumps(schemas[name], indent=1))
