"""Commands over several runs: compare, history."""

import sys
from pathlib import Path

import click

from runner.campaign import LOGS, run_path
from runner.catalog import split
from runner.cli.base import Skipped, main, out
from runner.compare import TOPICS, compare, report
from runner.compare.history import history
from runner.errors import UsageError
from runner.store import RunFolder, find_runs

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
    """What changed from run A to run B, of which one can say so.

    Exit codes: 0 nothing got worse · 1 something got worse · 2 bad input, or runs that can't be compared.
    """
    topics = frozenset(split(despite))
    if unknown := topics - TOPICS.keys():
        raise UsageError(f"--despite: there is no topic '{min(unknown)}'. Choices: {', '.join(TOPICS)}.")
    skipped = Skipped()
    folders = [RunFolder.open(run_path(name), skipped) for name in (before, after)]
    found = compare(folders[0], folders[1], despite=topics, least=least / 100)
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


@main.command("history")
@click.option(
    "--logs", type=click.Path(exists=True, file_okay=False, path_type=Path), default=LOGS, show_default="logs"
)
@click.option("--all", "everything", is_flag=True, help="Every cell, not only those that changed or are flaky.")
def history_(logs: Path, everything: bool) -> None:
    """Each cell in the newest run's cases, over all runs made as it was: trend, change point, rate of success."""
    out.print(report.history_renderable(history(find_runs(logs, Skipped())), everything=everything))
