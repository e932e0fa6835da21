"""Commands over stored files: analyse, render, serve, show, decode, schema, compare, history."""

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runner import notebook
from runner.cli.base import SITE, Skipped, draw_site, err, options_of, out, write_output, write_single
from runner.cli.group import main
from runner.compare import clocks, compare, report
from runner.compare.compare import RunMeans, between_runs, run_means
from runner.compare.conditions import TOPICS, differences
from runner.compare.exchange import export_results, import_results
from runner.compare.history import history
from runner.compare.report import compare_vias
from runner.errors import UsageError
from runner.images.setup import require_tool
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.nights.night import Night
from runner.paths import LOGS
from runner.plan import jobs
from runner.plan.catalog import Catalog, ImplementationsFile, declaration, load_catalog
from runner.plan.choice import split
from runner.plan.link_traces import (
    LinkTrace,
    Measurement,
    add_iperf3,
    add_irtt,
    add_pings,
    add_probes,
    read_leocc,
    read_mahimahi,
    read_trace,
    write_trace,
)
from runner.plan.links import EmulatedLinksFile, LinksFile
from runner.plan.options import JobOptions
from runner.store import runs as store
from runner.store.runs import RunFolder, find_runs, load_evidence, run_path, stored_result
from runner.terminal import printing
from runner.units import format_count, format_data_rate, format_duration, printable

if TYPE_CHECKING:
    from runner.judge.process import Judges


@main.command("analyse")
@click.argument("name", metavar="RUN")
def analyse_(name: str) -> None:
    """Judge a stored run again, offline, and print the changed verdicts."""
    skipped = Skipped()
    folder = RunFolder.open(run_path(name), skipped)
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
        printing.changes_table(changes)
        if changes
        else f"{format_count(count, 'job')} judged again, no verdict changed."
    )


def _all_judged_again(
    folder: RunFolder, catalog: Catalog, results: Mapping[Job, Result], skipped: Skipped
) -> Iterator[tuple[Job, Result, Result | None]]:
    """Each job with its old and its new result, in the order of `results`. The new result is None when the job can't be
    judged."""
    from runner.judge.process import Judges

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


def _judged_again(judges: "Judges", folder: RunFolder, catalog: Catalog, job: Job, before: Result) -> Result | None:
    """The new result of `job`; None when its captures are gone or its case is unknown."""
    from runner.judge.judges import can_judge

    artifacts, record = folder.own(job), folder.run.cases.get(job.case_link)
    if record is None:
        return None
    case = declaration(catalog.cases, record)
    if not can_judge(artifacts, case, record):
        return None
    judged = judges.judged(job, artifacts, case, record)
    return None if judged is None else jobs.rejudged(before, judged)


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
@click.option(
    "--single", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write one HTML file instead."
)
def render(names: tuple[str, ...], target: Path, single: Path | None) -> None:
    """Draw the site from the results of runs. Without RUN it draws all runs in logs/.

    With --single, write one RUN to one HTML file that loads nothing, to attach to a paper, an issue or a mail. It has
    all pages but those of the cells.
    """
    skipped = Skipped()
    if single is not None:
        if len(names) != 1:
            raise UsageError(
                "--single draws one run: write its name, such as ./bentpipe render demo --single demo.html."
            )
        out.print(f"{write_single(RunFolder.open(run_path(names[0]), skipped), single)}", markup=False)
        return
    folders = [RunFolder.open(run_path(name), skipped) for name in names] or find_runs(LOGS, skipped)
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
        from runner.site.server import SiteServer

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
    folder, result = stored_result(name)
    case, artifacts = folder.run.cases.get(result.job.case_link), folder.artifacts(result.job)
    printing.show_result(out, result, case, load_evidence(artifacts), artifacts)
    if result.outcome is Outcome.ERROR:
        run = folder.path.absolute()
        again = shlex.quote(str(run.relative_to(LOGS) if run.is_relative_to(LOGS) else run))
        out.print(f"run it again: ./bentpipe run --run {again} --retry error", markup=False, soft_wrap=True)
    out.print(f"files: {artifacts.folder}", markup=False)


@main.command("packets")
@click.argument("name", metavar="RUN/SERVER_CLIENT/CASE/ITERATION")
@click.option("--filter", "display_filter", default="", metavar="FILTER", help="Display filter of Wireshark. [all]")
@click.option(
    "--vantage",
    type=click.Choice([notebook.CLIENT, notebook.SERVER]),
    default=notebook.CLIENT,
    show_default=True,
    help="End of the link at which the packets were captured.",
)
@click.option("--details", is_flag=True, help="Print every field of the QUIC packets and their frames.")
@options_of(JobOptions, ("yes",))
def packets_(options: JobOptions, name: str, display_filter: str, vantage: str, details: bool) -> None:
    """Show the decrypted packets of one job, as tshark reads them."""
    folder, result = stored_result(name)
    require_tool("tshark", purpose="tshark reads the packets.", assume_yes=options.yes, console=err)
    more = ("-O", "quic") if details else ()
    found = False
    for line in notebook.tshark(folder.own(result.job), *more, display_filter=display_filter, vantage=vantage):
        found = True
        click.echo(printable(line.decode(errors="replace").rstrip("\n")))
    if not found:
        matching = f" match '{printable(display_filter)}'" if display_filter else ""
        err.print(f"No packets at the {vantage}{matching}.", markup=False)


@main.command("rules")
@click.argument("words", nargs=-1, metavar="[WORD]...")
def rules_(words: tuple[str, ...]) -> None:
    """List the rules of the RFCs, and where they are checked. With WORD: only the rules that contain each WORD."""
    from runner.judge.rules.rule_table import rule_lines

    lines = list(rule_lines(words))
    if not lines:
        raise UsageError(f"No rule contains {' and '.join(words)}: `./bentpipe rules` lists all.")
    for line in lines:
        click.echo(line)


@main.command()
@click.argument("name", metavar="FILE")
def schema(name: str) -> None:
    """Print the JSON Schema of a file format.

    FILE is run.json, result.json, evidence.json, implementations.json, links.json, emulated-links.json or night.json.
    """
    schemas = {
        **store.schemas(),
        "implementations.json": ImplementationsFile.model_json_schema(by_alias=True),
        "links.json": LinksFile.model_json_schema(by_alias=True),
        "night.json": Night.model_json_schema(by_alias=True),
        "emulated-links.json": EmulatedLinksFile.model_json_schema(by_alias=True),
    }
    if name not in schemas:
        raise UsageError(f"There is no schema of '{name}'. Choices: {', '.join(schemas)}.")
    click.echo(json.dumps(schemas[name], indent=1))


# Commands over several runs: compare, history.

_MOST_OTHERS = 20  # number of runs; more runs would hardly improve the estimate
file_type = click.Path(dir_okay=False, path_type=Path)


@main.command("compare")
@click.argument("before", metavar="A")
@click.argument("after", metavar="[B]", required=False)
@click.option(
    "--despite",
    multiple=True,
    metavar="TOPIC,…",
    help=f"Compare although the runs differ in TOPIC: {', '.join(TOPICS)}.",
)
@click.option(
    "--least",
    type=click.FloatRange(0, 1000),
    default=0.0,
    metavar="PERCENT",
    help="Report only numbers that changed by at least PERCENT. For a retransmission ratio: percentage points.",
)
@click.option("--all", "everything", is_flag=True, help="Show unchanged cells, too.")
@click.option(
    "--across-clocks",
    is_flag=True,
    help="Compare a run in real time with a run in virtual time, and explain the differences.",
)
@click.option(
    "--json", "json_file", type=file_type, metavar="FILE", help="Write the whole comparison as JSON, in SI units."
)
@click.option("--markdown", "markdown_file", type=file_type, metavar="FILE", help="Write the table as Markdown.")
def compare_(
    before: str,
    after: str | None,
    *,
    despite: tuple[str, ...],
    least: float,
    everything: bool,
    across_clocks: bool,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Show the statistically significant changes from run A to run B. Without B, compare the middleboxes of run A with
    each other.

    Exit codes: 0 nothing got worse · 1 something got worse · 2 bad input, or runs that can't be compared.
    """
    from runner.judge.process import RenewedRun

    topics = frozenset(split(despite))
    if unknown := topics - TOPICS.keys():
        raise UsageError(f"--despite: there is no topic '{min(unknown)}'. Choices: {', '.join(TOPICS)}.")
    if after is not None and run_path(before).resolve() == run_path(after).resolve():
        raise UsageError(f"compare: both names are the run {run_path(before)}. Name two runs.")
    skipped = Skipped()
    if across_clocks:
        if after is None or json_file or markdown_file or topics or least or everything:
            raise UsageError("compare: --across-clocks takes two runs and no other option.")
        both = clocks.across_clocks(*(RunFolder.open(run_path(name), skipped) for name in (before, after)))
        for sentence in clocks.sentences(both):
            out.print(sentence, markup=False)
        out.print(clocks.table(both))
        return
    if after is None:
        if json_file or markdown_file or topics or least:
            raise UsageError("compare: --despite, --least, --json and --markdown need two runs: name the second run.")
        out.print(report.vias_renderable(*compare_vias(RenewedRun.of(RunFolder.open(run_path(before), skipped)))))
        return
    folders = [RenewedRun.of(RunFolder.open(run_path(name), skipped)) for name in (before, after)]
    others = list(_others(folders))
    comparison = compare(folders[0], folders[1], despite=topics, least=least / 100, others=others)
    for path, text in (
        (json_file, report.document(comparison)),
        (markdown_file, report.markdown(comparison, everything=everything)),
    ):
        if path is not None:
            write_output(path, text.encode("utf-8", "replace"))  # a stranger's run may have halves of surrogate pairs
    out.print(report.renderable(comparison, everything=everything))
    sys.exit(comparison.exit_code)


def between_sentences(paths: Sequence[Path]) -> Iterator[str]:
    """A sentence for each case: how much the delivery time differs between runs with equal conditions."""
    means = [run_means(RunFolder.open(path)) for path in paths]
    deviations = between_runs(means[0], None, means[1:])
    for (case, metric), between in deviations.items():
        if metric == "ttlb":
            yield (
                f"{case}: between these {len(between.runs)} runs, delivery time deviates by "
                f"{100 * between.deviation:.2g} % ({between.cells} cells). ./bentpipe compare uses this deviation."
            )


def _others(runs: Sequence[RunFolder]) -> Iterator[RunMeans]:
    """The newest runs in the same folders with the same conditions as the first run. They show how much runs of the
    same images differ. Unreadable runs are left out."""
    from runner.judge.process import RenewedRun

    beside = {path.parent for run in runs for path in run.path.resolve().parent.glob("*/run.json")}
    folders = []
    for path in sorted(beside - {run.path.resolve() for run in runs}):
        with suppress(UsageError):
            folder = RunFolder.open(path, lambda _: None)
            if not differences(folder.run, runs[0].run) and folder.run.cases.keys() & runs[0].run.cases.keys():
                folders.append(folder)
    folders.sort(key=lambda folder: -folder.run.started_unix_s)
    for folder in folders[:_MOST_OTHERS]:
        with suppress(UsageError):
            yield run_means(RenewedRun.of(folder))


@main.command("history")
@click.option(
    "--logs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=LOGS,
    show_default="logs",
    help="Folder of the runs.",
)
@click.option("--all", "everything", is_flag=True, help="Show every cell, not only changed and flaky ones.")
def history_(logs: Path, everything: bool) -> None:
    """Show each matrix cell over all runs: trend, change, rate of success.

    Runs under other conditions than the newest run are left out.
    """
    out.print(report.history_renderable(history(find_runs(logs, Skipped())), everything=everything))


@main.command("export")
@click.argument("name", metavar="RUN")
@click.option("--results", "target", type=file_type, required=True, metavar="FILE", help="File to write.")
def export_(name: str, target: Path) -> None:
    """Write all results of a run, without packets, into one compressed file."""
    count = export_results(RunFolder.open(run_path(name)), target)
    size = target.stat().st_size
    out.print(
        f"{target}: {format_count(count, 'result')}, {size:,} B. `./bentpipe import {quote(str(target))}` reads it.",
        markup=False,
    )


@main.command("import")
@click.argument("path", type=file_type, metavar="FILE")
@click.option("--run", "name", metavar="NAME|DIR", help="Run to make or to extend. [the name of FILE]")
def import_(path: Path, name: str | None) -> None:
    """Make a run of a file of results, or add the file to a run."""
    target = run_path(name or path.name.split(".")[0])
    done = import_results(path, target)
    out.print(
        f"{target.name}: {format_count(done.new, 'new result')}, {done.replaced} in place of an error or a skipped "
        f"job, {done.known} known before. {format_count(done.without_evidence, 'job')} without packets on this host: "
        "they can be shown and compared, and not judged again."
    )


# Traces of links.

_TRACE_OPTIONS = {
    "down": "File of mahimahi with the download's opportunities.",
    "up": "File of mahimahi with the upload's opportunities.",
    "delays": "LeoCC's file with the one-way delay of each 10 ms; with --down and --up.",
    "ping": "Output of `ping -D`.",
    "irtt": "JSON of irtt.",
    "iperf3": "Output of `iperf3 --json`; twice, with and without --reverse, for both directions.",
    "probes": "The file sim/probes.txt of a job over a real link.",
}
_IMPORTERS = {"ping": add_pings, "irtt": add_irtt, "iperf3": add_iperf3, "probes": add_probes}


_WITH_UNIT = {
    "delay": lambda seconds: f"{seconds * 1000:.4g} ms",
    "data_rate": format_data_rate,
    "loss": lambda fraction: f"{fraction * 100:.3g} %",
}


def _trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, about in reversed(_TRACE_OPTIONS.items()):
        several = name == "iperf3"
        command = click.option(f"--{name}", type=file_type, multiple=several, metavar="FILE", help=about)(command)
    return command


@main.command("link-trace")
@click.argument("table", type=file_type, required=False, metavar="[TRACE]")
@_trace_options
@click.option("--save", type=file_type, metavar="FILE", help="File to write: .csv or .parquet.")
def link_trace(table: Path | None, save: Path | None, **files: Any) -> None:
    """Check a trace of a link, or make one of measurements, and print what is in it.

    TRACE is a table, CSV or Parquet. Its form, and the files of other tools, are described in docs/link-traces.md.
    """
    trace = _trace_of(table, {name: value for name, value in files.items() if value})
    out.print(f"{trace.name}: {format_duration(trace.length)}, {format_count(len(trace.times), 'line')}")
    for name, column in trace.columns.items():
        shown = next((text for end, text in _WITH_UNIT.items() if name.endswith(end)), "{:.3g}".format)
        low, mean, high = map(shown, (min(column), trace.mean(name), max(column)))
        out.print(f"  {name:<18} {low} to {high}, mean {mean}")
    if save is not None:
        write_trace(trace, save)
        out.print(f"{save}: --link {quote(f'trace={save}')} replays it.", markup=False)


def _trace_of(table: Path | None, files: dict[str, Any]) -> LinkTrace:
    """The trace in the named files. Raises UsageError when they don't belong together."""
    if table is not None and not files:
        return read_trace(table)
    if table is None and set(files) == {"down", "up"}:
        return read_mahimahi(files["down"], files["up"])
    if table is None and set(files) == {"down", "up", "delays"}:
        return read_leocc(files["down"], files["up"], files["delays"])
    if table is None and files and set(files) <= set(_IMPORTERS) and ("probes" not in files or len(files) == 1):
        measured = Measurement()
        for name, value in files.items():
            for path in value if isinstance(value, tuple) else (value,):
                _IMPORTERS[name](measured, path)
        return measured.trace(path)
    raise UsageError(
        "link-trace: name one table; or --down and --up, with or without --delays; or one of --ping and "
        "--irtt, with or without --iperf3; or --probes."
    )
