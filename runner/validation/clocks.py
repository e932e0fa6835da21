"""How far virtual time agrees with real time: `python -m runner.validation.clocks LANES GUESTS`.

Both are folders of runs of the same cases and stacks, the first in lanes, the second with `--clock virtual`. Compared:
the outcomes of all jobs that both have, and the medians of goodput of each cell of a measurement. Jobs that ended as an
`error` in either run are counted on their own: the harness could not decide them.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import Kind
from runner.store import RunFolder

Results = Mapping[Job, Result]


def load(path: Path, clock: str) -> Results:
    """The results of a run. Raises UsageError when it ran with another clock."""
    folder = RunFolder.open(path)
    if folder.run.clock != clock:
        raise UsageError(f"{path} ran with --clock {folder.run.clock}; a run with --clock {clock} is expected.")
    return folder.results()


def differing(real: Results, virtual: Results) -> tuple[Counter[str], list[str]]:
    """How many jobs have equal, other and undecided outcomes; a sentence for each of the others."""
    counts: Counter[str] = Counter()
    sentences = []
    for job in sorted(real.keys() & virtual.keys(), key=str):
        one, other = real[job], virtual[job]
        if Outcome.ERROR in (one.outcome, other.outcome):
            counts["undecided"] += 1
        elif one.outcome is other.outcome:
            counts["equal"] += 1
        else:
            counts["other"] += 1
            sentences.append(f"{job}: {_told(one)} in real time, {_told(other)} in virtual time")
    return counts, sentences


def goodputs(real: Results, virtual: Results) -> dict[tuple[str, str, str], tuple[float, float, int, int]]:
    """By client, server and case: medians of goodput in bit/s, real and virtual, and the number of samples of each."""
    samples: dict[tuple[str, str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for side, results in enumerate((real, virtual)):
        for job, result in results.items():
            if result.outcome is Outcome.SUCCEEDED and result.sample is not None and result.sample.goodput:
                samples[job.client, job.server, job.case][side].append(result.sample.goodput)
    return {
        cell: (median(one), median(other), len(one), len(other))
        for cell, (one, other) in sorted(samples.items())
        if one and other
    }


def _told(result: Result) -> str:
    return f"{result.outcome.value} ({result.findings[0].code})" if result.findings else result.outcome.value


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m runner.validation.clocks", description=__doc__)
    parser.add_argument("lanes", type=Path)
    parser.add_argument("guests", type=Path)
    asked = parser.parse_args()
    try:
        real, virtual = load(asked.lanes, "real"), load(asked.guests, "virtual")
    except UsageError as error:
        parser.exit(2, f"{error}\n")
    counts, sentences = differing(real, virtual)
    decided = counts["equal"] + counts["other"]
    share = f"{counts['equal'] / decided:.1%}" if decided else "none"
    print(f"{decided} jobs were decided by both clocks: {share} alike. {counts['undecided']} more ended as an error.")
    for sentence in sentences:
        print(f"  {sentence}")
    cases = RunFolder.open(asked.lanes).run.cases
    for (client, server, case), (one, other, n, m) in goodputs(real, virtual).items():
        if cases[case].kind is Kind.MEASUREMENT:
            print(
                f"{case:12} {client:>10} → {server:10} {one / 1e6:7.3f} (n={n}) {other / 1e6:7.3f} Mbit/s (n={m}) "
                f"{other / one - 1:+.1%}"
            )


if __name__ == "__main__":
    main()
