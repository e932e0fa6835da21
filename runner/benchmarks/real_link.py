"""A measurement in lanes against the same over the real path: `.venv/bin/python -m runner.benchmarks.real_link`.

Three pairs, five times each: first between two containers of a lane, then over SSH between this host and another one,
behind the simulator with the case's own parameters (`runner/tests/deploy/remote`). The table has medians of goodput,
their 95 % intervals, and whether these overlap; below, what a job over a real link takes beside its transfer.

Needs root and the images of the tests; nothing else may run meanwhile. 12 minutes for `--case sat`.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from runner import campaign
from runner.benchmarks.line import goodput, with_interval
from runner.catalog import load_catalog
from runner.matrix import run_matrix
from runner.model.job import Job
from runner.model.result import Result
from runner.session import MatrixOptions
from runner.stats import Summary
from runner.tests.deploy.remote.sky import LINK, sky_over
from runner.units import format_duration

Results = dict[Job, Result]

out = Console(highlight=False)


@click.command()
@click.option("--case", "cases", multiple=True, default=("sat",), show_default=True, help="Repeat for several.")
@click.option("--server", "servers", default="quic-go,quinn,aioquic", show_default=True)
@click.option("--client", "clients", default="quic-go", show_default=True)
@click.option("--iterations", default=5, show_default=True)
def main(cases: tuple[str, ...], servers: str, clients: str, iterations: int) -> None:
    """Lanes against the real path, in the same session. Exit code 1 when two intervals don't overlap."""
    catalog = load_catalog()
    table = Table("pair", "case", "in lanes", "over the real path", "difference", "intervals", box=None)
    apart = False
    overheads: list[float] = []
    for name in cases:
        case = catalog.cases[name].record()
        asked = MatrixOptions(
            servers=(servers,), clients=(clients,), cases=(name,), iterations=iterations, seed=1, keep_captures="none"
        )
        folder = f"real-link-{name}-{time.strftime('%H%M%S')}"
        lanes = _run(replace(asked, name=str(campaign.LOGS / f"{folder}-lanes")))
        with (
            tempfile.TemporaryDirectory(prefix="bentpipe-real-") as place,
            sky_over(Path(place), case.forward, case.return_) as sky,
        ):
            path = str(campaign.LOGS / f"{folder}-path")
            real = _run(replace(asked, name=path, links=(LINK,), links_file=sky.links))
        overheads += [result.overhead_s for result in real.values() if result.transfer_s]
        for pair in sorted({job.pair for job in lanes}):
            apart |= _add_row(table, pair, name, goodput(lanes, pair, name), goodput(real, pair, name))
    out.print(table)
    if overheads:
        out.print(f"\na job over the real path takes {format_duration(median(overheads))} beside its transfer (median)")
    sys.exit(apart)


def _run(options: MatrixOptions) -> Results:
    return run_matrix(options, out=out, err=out)


def _add_row(table: Table, pair: str, case: str, lanes: Summary | None, real: Summary | None) -> bool:
    """Whether the two intervals lie apart, or one is missing."""
    if lanes is None or real is None:
        table.add_row(pair, case, *(with_interval(one) if one else "–" for one in (lanes, real)), "", "no successes")
        return True
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
