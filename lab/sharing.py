"""Tests whether two TCP flows share a link evenly: `python -m lab.sharing RUN`.

This checks the harness: two flows of the same kind over equal paths must have equal mean shares. Make the run with
`./bentpipe run --server nginx+h1 --client curl+h1 --case crosstraffic --run RUN`. Other pairs are printed, but not
checked.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from runner.compare.stats import student_tail
from runner.errors import BentpipeError
from runner.model.result import Outcome, Sample
from runner.model.stack import OVER_TCP
from runner.plan.jobs import run_path
from runner.store.runs import RunFolder

_LEAST = 5  # iterations
_WIDEST = 0.15  # largest half-width of the mean share's interval: a wider interval nearly always contains one half
_ALPHA = 0.05


@dataclass(frozen=True)
class MeanShare:
    """The mean of a job's shares of the bottleneck, 0 to 1, with half of its 95 % confidence interval."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> "MeanShare":
        """The mean and Student's interval of at least two shares."""
        low, high = 0.0, 1e4
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if 2 * student_tail(len(shares) - 1, middle) > _ALPHA else (low, middle)
        return cls(fmean(shares), high * stdev(shares) / math.sqrt(len(shares)))

    @property
    def even(self) -> bool:
        """True when the interval is narrow and contains one half."""
        return abs(self.mean - 0.5) <= self.half_width <= _WIDEST


def samples(folder: RunFolder) -> dict[tuple[str, bool], list[Sample]]:
    """The samples of jobs that have a second flow, by cell and by whether both flows use TCP (the second flow with
    CUBIC)."""
    cells: dict[tuple[str, bool], list[Sample]] = {}
    for job, result in folder.results().items():
        sample = result.sample
        if result.outcome is Outcome.SUCCEEDED and sample is not None and sample.fairness is not None:
            is_tcp = result.protocol in OVER_TCP and folder.run.case(job).beside == "tcp-cubic"
            cells.setdefault((job.cell, is_tcp), []).append(sample)
    return cells


def main(arguments: list[str]) -> int:
    """Print the shares. Returns 0 when there is a cell in which both flows use TCP, and every such cell has an even
    mean share over at least 5 iterations."""
    parser = argparse.ArgumentParser(prog="python -m lab.sharing")
    parser.add_argument("run", help="the name or the folder of a run")
    try:
        folder = RunFolder.open(Path(run_path(parser.parse_args(arguments).run)))
        cells = samples(folder)
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return 2
    checked = []
    print("cell | iterations | share of the bottleneck, mean | Jain's index, median | goodput beside, median, Mbit/s")
    for (cell, is_tcp), measured in sorted(cells.items()):
        shares = [sample.bottleneck_share or 0.0 for sample in measured]
        share = MeanShare.of(shares) if len(shares) > 1 else MeanShare(shares[0], math.inf)
        fairness = median(sample.fairness or 0.0 for sample in measured)
        beside = median(sample.beside_goodput or 0.0 for sample in measured) / 1e6
        verdict = ""
        if is_tcp:
            checked.append(share.even and len(shares) >= _LEAST)
            verdict = " | even" if checked[-1] else " | NOT EVEN, or too few iterations"
        print(
            f"{cell} | {len(shares)} | {100 * share.mean:.1f} ± {100 * share.half_width:.1f} % | {fairness:.3f} | "
            f"{beside:.2f}{verdict}"
        )
    if not checked:
        print("no job of TCP beside tcp-cubic: run nginx+h1 with curl+h1", file=sys.stderr)
    return 0 if checked and all(checked) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
