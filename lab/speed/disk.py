"""Disk use of a run compared with the estimate of `plan`: `.venv/bin/python -m lab.speed.disk RUN…`.

Prints the estimated bytes, the bytes of the files, and their ratio, for each case and in total. Only jobs that
succeeded or failed count.
"""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from runner.model.deployment import estimate
from runner.model.result import Outcome
from runner.plan.jobs import run_path
from runner.store.runs import RunFolder
from runner.units import format_size

out = Console(highlight=False)
_BLOCK = 512  # bytes in the unit of st_blocks


@click.command()
@click.argument("runs", nargs=-1, required=True)
def main(runs: tuple[str, ...]) -> None:
    """Print estimated and used bytes of stored runs."""
    for name in runs:
        folder = RunFolder.open(run_path(name))
        results = folder.results()
        jobs = [job for job, result in results.items() if result.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)]
        policy = "all" if all(results[job].captures_kept for job in jobs) else "median"
        table = Table("case", "jobs", "estimated", "used", "used / estimated", box=None)
        for case in (*folder.run.cases, ""):
            chosen = [job for job in jobs if case in ("", job.case)]
            if chosen:
                estimated = estimate(chosen, folder.run.cases).disk(policy)
                used = sum(_used(folder.artifacts(job).folder) for job in chosen)
                sizes = format_size(estimated), format_size(used), f"{used / estimated:.2f}"
                table.add_row(case or "all", str(len(chosen)), *sizes)
        out.print(f"{folder.name}, captures kept: {policy}", table, sep="\n")


def _used(folder: Path) -> int:
    """Bytes that the files of a job take on disk."""
    return sum(path.lstat().st_blocks * _BLOCK for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    main()
