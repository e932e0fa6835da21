"""Compares measurements in lanes with measurements over a real path: `.venv/bin/python -m lab.speed.real_link`.

Each pair runs in lanes first. Then it runs over SSH between this host and another host. The path between the hosts is a
simulator with the parameters of the same link (`runner/tests/links`). With `--via`, middleboxes are at both ends. The
table has medians of file size ÷ delivery time, their 95 % intervals (from 6 iterations on), and whether these intervals
overlap. Below the table are the jobs without a number, with reasons, and the median overhead of a job over a real link.

    … --case download --size 5M --server origin --client downloader --link sat --via none,openvpn,qpep --iterations 6

Needs root, the images of the tests, and an otherwise idle host. `--case sat` takes 12 minutes. The same command with
`--run` continues an interrupted benchmark, and repeats disturbed jobs.
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

from lab.speed.line import with_interval
from lab.testbed.sky import LINK, sky_over
from runner.campaign.matrix import run_matrix
from runner.compare.stats import Summary, summarise
from runner.errors import BentpipeError, UsageError
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.plan import jobs
from runner.plan.options import MatrixOptions
from runner.store.runs import RunFolder
from runner.units import format_duration

Results = dict[Job, Result]

out = Console(highlight=False)


@click.command()
@click.option(
    "--case",
    "cases",
    multiple=True,
    default=("sat",),
    show_default=True,
    help="A case. Repeat the option for several cases.",
)
@click.option("--server", "servers", default="quic-go,quinn,aioquic", show_default=True)
@click.option("--client", "clients", default="quic-go", show_default=True)
@click.option("--via", "vias", default="none", show_default=True, help="Middleboxes, separated by commas.")
@click.option("--link", help="An emulated link with one segment. [the case's link]")
@click.option("--size", help="Size of the file, as in `./bentpipe run`.")
@click.option("--iterations", default=5, show_default=True)
@click.option("--run", "name", help="Name of the benchmark, to continue an earlier one. [real-link-HHMMSS]")
def main(cases: tuple[str, ...], iterations: int, name: str | None, **selection: str | None) -> None:
    """Compare lanes with the real path in the same session.

    Exit code 1 when two intervals don't overlap, 3 when a job has no number.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # an exit also removes the other host
    name = name or time.strftime("real-link-%H%M%S")
    servers, clients, vias, links, sizes = (
        (named,) if (named := selection[option]) else () for option in ("servers", "clients", "vias", "link", "size")
    )
    options = MatrixOptions(
        servers=servers,
        clients=clients,
        vias=vias,
        links=links,
        sizes=sizes,
        iterations=iterations,
        seed=1,
        keep_captures="none",
        retry=("error",),
    )
    try:
        measured = {case: _measure(replace(options, cases=(case,)), f"{name}-{case}") for case in cases}
    except BentpipeError as error:
        out.print(f"{error} Then call the same command with --run {name}.", soft_wrap=True)
        sys.exit(error.exit_code)
    table = Table("pair", "case", "in lanes", "over the real path", "difference", "intervals", box=None)
    apart = False
    for case, (lanes, real) in measured.items():
        for ends in sorted({job.ends for job in lanes}):
            apart |= _add_row(table, ends, case, _throughput(lanes, ends), _throughput(real, ends))
    out.print(table)
    missing = [line for case, both in measured.items() for line in _missing(case, *both)]
    for line in missing:
        out.print(line, soft_wrap=True)
    overheads = [result.overhead_s for _, real in measured.values() for result in real.values() if result.transfer_s]
    if overheads:
        out.print(
            f"\nMedian time of a job over the real path, without its transfer: {format_duration(median(overheads))}"
        )
    if missing:
        out.print(f"The same command with --run {name} repeats these jobs.")
    sys.exit(1 if apart else 3 if missing else 0)


def _measure(options: MatrixOptions, folder: str) -> tuple[Results, Results]:
    """Run in lanes, then over the real path with the parameters of the same link."""
    lanes_path = jobs.LOGS / f"{folder}-lanes"
    lanes = _run(replace(options, name=str(lanes_path)))
    case = next(iter(RunFolder.open(lanes_path).run.cases.values()))
    if len(case.link.segments) > 1:
        raise UsageError(f"--link: {case.link.name} has {len(case.link.segments)} segments; choose a link with one.")
    with (
        tempfile.TemporaryDirectory(prefix="bentpipe-real-") as place,
        sky_over(Path(place), case.forward, case.return_) as sky,
    ):
        path = str(jobs.LOGS / f"{folder}-path")
        return lanes, _run(replace(options, name=path, links=(LINK,), links_file=sky.links))


def _missing(case: str, lanes: Results, real: Results) -> Iterator[str]:
    """For each pair, a sentence for each reason why jobs have no number, with the number of these jobs. The jobs in
    lanes come first, then the jobs over the real path."""
    for where, results in (("in lanes", lanes), ("over the real path", real)):
        for pair in sorted({job.ends for job in results}):
            pair_results = [result for job, result in results.items() if job.ends == pair]
            reasons = Counter(
                f"{result.outcome.value}: {result.findings[0].actual}" if result.findings else result.outcome.value
                for result in pair_results
                if result.outcome is not Outcome.SUCCEEDED
            )
            for reason, count in reasons.items():
                yield f"{pair}, {case}, {where}: {count} of {len(pair_results)} not measured ({reason})"


def _throughput(results: Results, ends: str) -> Summary | None:
    """The summary of file size ÷ delivery time in bit/s, over the jobs that succeeded. Downloads have no goodput."""
    samples = (
        result.sample for job, result in results.items() if job.ends == ends and result.outcome is Outcome.SUCCEEDED
    )
    return summarise(sample.throughput for sample in samples if sample is not None)


def _run(options: MatrixOptions) -> Results:
    return run_matrix(options, out=out, err=out)


def _add_row(table: Table, pair: str, case: str, lanes: Summary | None, real: Summary | None) -> bool:
    """Add a row. Returns True when the two intervals don't overlap."""
    if lanes is None or real is None:
        table.add_row(
            pair, case, *(with_interval(summary) if summary else "–" for summary in (lanes, real)), "", "no successes"
        )
        return False
    overlap = _overlap(lanes, real)
    words = {True: "overlap", False: "lie apart", None: "too few iterations"}
    difference = f"{real.median / lanes.median - 1:+.1%}"
    table.add_row(pair, case, with_interval(lanes), with_interval(real), difference, words[overlap])
    return overlap is False


def _overlap(summary: Summary, other: Summary) -> bool | None:
    if summary.low is None or summary.high is None or other.low is None or other.high is None:
        return None
    return summary.low <= other.high and other.low <= summary.high


if __name__ == "__main__":
    main()
