"""Jobs per hour with one lane and with many: `.venv/bin/python -m lab.speed`.

Runs the same selection twice, with `--lanes 1` and with `--lanes auto` (or N). Prints the ratio of the durations of the
two runs, the overhead per job outside the transfer, and the medians of both runs with their 95 % intervals.
"""

import time
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from runner.campaign.matrix import run_matrix
from runner.compare.stats import Summary, summarise
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.plan.jobs import LOGS
from runner.plan.options import MatrixOptions
from runner.units import format_data_rate, format_duration

out = Console(highlight=False)


@click.command()
@click.option("--cases", default="handshake,goodput,sat", show_default=True)
@click.option("--stacks", default="quic-go,quinn,aioquic", show_default=True)
@click.option("--iterations", default=1, show_default=True)
@click.option("--lanes", default="auto", show_default=True)
@click.option("--name", default="benchmark", show_default=True, help="Prefix of the two runs in logs/.")
def main(lanes: str, name: str, **selection: Any) -> None:
    """Compare one lane with many lanes."""
    runs = {}
    for width in ("1", lanes):
        began = time.monotonic()
        results = run_matrix(
            MatrixOptions(
                servers=(selection["stacks"],),
                clients=(selection["stacks"],),
                cases=(selection["cases"],),
                iterations=selection["iterations"],
                seed=1,
                lanes=width,
                name=str(LOGS / f"{name}-{width}-{time.strftime('%H%M%S')}"),
            ),
            out=out,
            err=out,
        )
        runs[width] = (time.monotonic() - began, results)
    _report(runs)


def _report(runs: dict[str, tuple[float, dict[Job, Result]]]) -> None:
    table = Table("lanes", "jobs", "wall", "jobs per hour", "overhead median", "overhead p90", "disturbed", box=None)
    for width, (wall, results) in runs.items():
        overheads = sorted(result.overhead_s for result in results.values() if result.transfer_s)
        table.add_row(
            width,
            str(len(results)),
            format_duration(wall),
            f"{3600 * len(results) / wall:.0f}",
            format_duration(median(overheads)),
            format_duration(overheads[int(0.9 * (len(overheads) - 1))]),
            str(sum(len(result.disturbed) for result in results.values())),
        )
    out.print(table)
    (first, single), (second, many) = runs.values()
    out.print(f"\nratio of the times, one lane / many: {first / second:.2f}")
    _compare(single, many)


def _compare(single: dict[Job, Result], many: dict[Job, Result]) -> None:
    table = Table("pair", "case", "one lane", "many lanes", "difference", box=None)
    for pair, case in sorted({(job.pair, job.case) for job in single}):
        first, second = (goodput(results, pair, case) for results in (single, many))
        if first is None or second is None:
            table.add_row(pair, case, "–", "–", "")
            continue
        table.add_row(
            pair,
            case,
            with_interval(first),
            with_interval(second),
            f"{second.median / first.median - 1:+.1%}",
        )
    out.print(table)


def goodput(results: dict[Job, Result], pair: str, case: str) -> Summary | None:
    """Goodput in bit/s of the successful jobs of a pair in a case."""
    samples = [
        result.sample
        for job, result in results.items()
        if (job.pair, job.case) == (pair, case) and result.outcome is Outcome.SUCCEEDED
    ]
    return summarise(sample.goodput for sample in samples if sample is not None)


def with_interval(summary: Summary) -> str:
    """A median of data rates with its 95 % interval in Mbit/s."""
    if summary.low is None or summary.high is None:
        return format_data_rate(summary.median)
    return f"{format_data_rate(summary.median)} [{summary.low / 1e6:.2f}, {summary.high / 1e6:.2f}]"


if __name__ == "__main__":
    main()
