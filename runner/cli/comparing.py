"""Commands over several runs: compare, history."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from runner.cli.base import Skipped, out
from runner.cli.group import main
from runner.compare import TOPICS, RunMeans, clocks, compare, report, run_means
from runner.compare.between import between_runs
from runner.compare.conditions import differences
from runner.compare.exchange import export_results, import_results
from runner.compare.history import history
from runner.compare.vias import compare_vias
from runner.config.names import split
from runner.errors import UsageError
from runner.judge.renewal import RenewedRun
from runner.plan.runs import LOGS, run_path
from runner.store import RunFolder, find_runs
from runner.units import format_count

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
    topics = frozenset(split(despite))
    if unknown := topics - TOPICS.keys():
        raise UsageError(f"--despite: there is no topic '{min(unknown)}'. Choices: {', '.join(TOPICS)}.")
    skipped = Skipped()
    if across_clocks:
        if after is None or json_file or markdown_file or topics or least or everything:
            raise UsageError("compare: --across-clocks takes two runs and no other option.")
        _show_clocks(*(RunFolder.open(run_path(name), skipped) for name in (before, after)))
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
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise UsageError(f"{path} can't be written: {error.strerror}.") from error
    out.print(report.renderable(comparison, everything=everything))
    sys.exit(comparison.exit_code)


def _show_clocks(first: RunFolder, second: RunFolder) -> None:
    comparison = clocks.across_clocks(first, second)
    for sentence in clocks.sentences(comparison):
        out.print(sentence, soft_wrap=True, markup=False)
    out.print(clocks.table(comparison))


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
    """Write the plan and all results of a run, without packets and logs, into one compressed file."""
    count = export_results(RunFolder.open(run_path(name)), target)
    size = target.stat().st_size
    out.print(f"{target}: {format_count(count, 'result')}, {size:,} B. `./bentpipe import {target}` reads it.")


@main.command("import")
@click.argument("path", type=file_type, metavar="FILE")
@click.option("--run", "name", metavar="NAME|DIR", help="Run to make or to extend. [the name of FILE]")
def import_(path: Path, name: str | None) -> None:
    """Make a run of a file of results, or add the file to the run NAME."""
    target = run_path(name or path.name.split(".")[0])
    done = import_results(path, target)
    out.print(
        f"{target.name}: {format_count(done.new, 'new result')}, {done.replaced} in place of an error, "
        f"{done.known} known before. {format_count(done.without_evidence, 'job')} without packets on this host: "
        "they can be shown and compared, and not judged again."
    )
