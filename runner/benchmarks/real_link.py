"""A measurement in lanes against the same over the real path: `.venv/bin/python -m runner.benchmarks.real_link`.

Three pairs, five times each: first between two containers of a lane, then over SSH between this host and another one,
behind the simulator with the case's own parameters (`runner/tests/remote`). The table has medians of goodput,
their 95 % intervals, and whether these overlap; below, what could not be measured, and why, and what a job over a real
link takes beside its transfer.

Needs root and the images of the tests; nothing else may run meanwhile. 12 minutes for `--case sat`. Ended, it goes on
with `--run`; called so once more, it repeats what was disturbed.
"""

import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from runner.benchmarks.line import goodput, with_interval
from runner.campaign.matrix import run_matrix
from runner.config.catalog import load_catalog
from runner.config.options import MatrixOptions
from runner.errors import BentpipeError
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.plan import runs
from runner.stats import Summary
from runner.tests.remote.sky import LINK, sky_over
from runner.units import format_duration

Results = dict[Job, Result]

out = Console(highlight=False)


@click.command()
@click.option("--case", "cases", multiple=True, default=("sat",), show_default=True, help="Repeat for several.")
@click.option("--server", "servers", default="quic-go,quinn,aioquic", show_default=True)
@click.option("--client", "clients", default="quic-go", show_default=True)
@click.option("--iterations", default=5, show_default=True)
@click.option("--run", "name", help="That began earlier, to go on with. [real-link-HHMMSS]")
def main(cases: tuple[str, ...], servers: str, clients: str, iterations: int, name: str | None) -> None:
    """Lanes against the real path, in the same session.

    Exit code 1 when two intervals don't overlap, 3 when something could not be measured.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # the other host is taken down then, too
    name = name or time.strftime("real-link-%H%M%S")
    asked = MatrixOptions(
        servers=(servers,), clients=(clients,), iterations=iterations, seed=1, keep_captures="none", retry=("error",)
    )
    try:
        measured = {case: _measure(replace(asked, cases=(case,)), f"{name}-{case}") for case in cases}
    except BentpipeError as error:
        out.print(f"{error} Here: the same command with --run {name}.", soft_wrap=True)
        sys.exit(error.exit_code)
    table = Table("pair", "case", "in lanes", "over the real path", "difference", "intervals", box=None)
    apart = False
    for case, (lanes, real) in measured.items():
        for pair in sorted({job.pair for job in lanes}):
            apart |= _add_row(table, pair, case, goodput(lanes, pair, case), goodput(real, pair, case))
    out.print(table)
    missing = [line for case, both in measured.items() for line in _missing(case, *both)]
    for line in missing:
        out.print(line, soft_wrap=True)
    overheads = [result.overhead_s for _, real in measured.values() for result in real.values() if result.transfer_s]
    if overheads:
        out.print(f"\na job over the real path takes {format_duration(median(overheads))} beside its transfer (median)")
    if missing:
        out.print(f"Repeated by the same command with --run {name}.")
    sys.exit(1 if apart else 3 if missing else 0)


def _measure(asked: MatrixOptions, folder: str) -> tuple[Results, Results]:
    """In lanes, then over the real path with the case's own parameters."""
    case = load_catalog().cases[asked.cases[0]].record()
    lanes = _run(replace(asked, name=str(runs.LOGS / f"{folder}-lanes")))
    with (
        tempfile.TemporaryDirectory(prefix="bentpipe-real-") as place,
        sky_over(Path(place), case.forward, case.return_) as sky,
    ):
        path = str(runs.LOGS / f"{folder}-path")
        return lanes, _run(replace(asked, name=path, links=(LINK,), links_file=sky.links))


def _missing(case: str, lanes: Results, real: Results) -> Iterator[str]:
    """A sentence for each pair and place in which some jobs have no number: how many, and why."""
    for where, results in (("in lanes", lanes), ("over the real path", real)):
        for pair in sorted({job.pair for job in results}):
            ones = [result for job, result in results.items() if job.pair == pair]
            whys = Counter(
                f"{one.outcome.value}: {one.findings[0].actual}" if one.findings else one.outcome.value
                for one in ones
                if one.outcome is not Outcome.SUCCEEDED
            )
            for why, count in whys.items():
                yield f"{pair}, {case}, {where}: {count} of {len(ones)} not measured ({why})"


def _run(options: MatrixOptions) -> Results:
    return run_matrix(options, out=out, err=out)


def _add_row(table: Table, pair: str, case: str, lanes: Summary | None, real: Summary | None) -> bool:
    """Whether the two intervals lie apart."""
    if lanes is None or real is None:
        table.add_row(pair, case, *(with_interval(one) if one else "–" for one in (lanes, real)), "", "no successes")
        return False
    overlap = _overlap(lanes, real)
    words = {True: "overlap", False: "lie apart", None: "none for n = 1"}
    difference = f"{real.median / lanes.median - 1:+.1%}"
    table.add_row(pair, case, with_interval(lanes), with_interval(real), difference, words[overlap])
    return overlap is False


def _overlap(one: Summary, other: Summary) -> bool | None:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


if __name__ == "__main__":
    main()
