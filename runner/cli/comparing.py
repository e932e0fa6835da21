"""Commands over several runs: compare, history."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from runner.cli.base import Skipped, out
from runner.cli.group import main
from runner.compare import TOPICS, RunMeans, compare, report, run_means
from runner.compare.between import between_runs
from runner.compare.conditions import differences
from runner.compare.history import history
from runner.config.names import split
from runner.errors import UsageError
from runner.judge.renewal import RenewedRun
from runner.plan.runs import LOGS, run_path
from runner.store import RunFolder, find_runs

_MOST_OTHERS = 20  # runs; more would hardly make the estimate better
file_type = click.Path(dir_okay=False, path_type=Path)


@main.command("compare")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--despite", multiple=True, metavar="TOPIC,…", help=f"Differences you know of: {', '.join(TOPICS)}.")
@click.option(
    "--least",
    type=click.FloatRange(0, 1000),
    default=0.0,
    metavar="PERCENT",
    help="Report numbers that changed by this much at least; a retransmission ratio by as many points.",
)
@click.option("--all", "everything", is_flag=True, help="What did not change too.")
@click.option("--json", "json_file", type=file_type, metavar="FILE", help="Everything, in SI units.")
@click.option("--markdown", "markdown_file", type=file_type, metavar="FILE", help="The table, for a CI.")
def compare_(
    before: str,
    after: str,
    *,
    despite: tuple[str, ...],
    least: float,
    everything: bool,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Show the statistically significant changes from run A to run B.

    Exit codes: 0 nothing got worse · 1 something got worse · 2 bad input, or runs that can't be compared.
    """
    topics = frozenset(split(despite))
    if unknown := topics - TOPICS.keys():
        raise UsageError(f"--despite: there is no topic '{min(unknown)}'. Choices: {', '.join(TOPICS)}.")
    skipped = Skipped()
    folders = [RenewedRun.of(RunFolder.open(run_path(name), skipped)) for name in (before, after)]
    others = list(_others(folders))
    found = compare(folders[0], folders[1], despite=topics, least=least / 100, others=others)
    for path, text in (
        (json_file, report.document(found)),
        (markdown_file, report.markdown(found, everything=everything)),
    ):
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise UsageError(f"{path} can't be written: {error.strerror}.") from error
    out.print(report.renderable(found, everything=everything))
    sys.exit(found.exit_code)


def between_sentences(paths: Sequence[Path]) -> Iterator[str]:
    """How much the delivery time differs between runs that were made alike, by case."""
    means = [run_means(RunFolder.open(path)) for path in paths]
    found = between_runs(means[0], None, means[1:])
    for (case, metric), one in found.items():
        if metric == "ttlb":
            yield (
                f"{case}: delivery time deviates by {100 * one.deviation:.2g} % between these {len(one.runs)} runs "
                f"({one.cells} cells). ./bentpipe compare takes that into account."
            )


def _others(runs: Sequence[RunFolder]) -> Iterator[RunMeans]:
    """The newest runs beside these two that were made as the first: they tell how much runs of the same images differ.
    What can't be read is left out."""
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
    "--logs", type=click.Path(exists=True, file_okay=False, path_type=Path), default=LOGS, show_default="logs"
)
@click.option("--all", "everything", is_flag=True, help="Every cell, not only those that changed or are flaky.")
def history_(logs: Path, everything: bool) -> None:
    """Show each matrix cell over all runs made like the newest one: trend, change, rate of success."""
    out.print(report.history_renderable(history(find_runs(logs, Skipped())), everything=everything))
