"""How often `compare` reports a change when nothing changed: `.venv/bin/python -m lab.alarms [RUN…]`.

Without RUN it simulates runs of the same images (A/A) with known deviations between and within runs, and compares them.
RUN: three or more real runs of one selection with the same images, such as `./bentpipe run … --repeat-runs 6` makes.
Each run is compared with the run before it; the other runs show how much runs differ. Exit code 1 when more than 5 % of
the comparisons raise an alarm, beyond the noise of the simulation.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from runner.compare import Comparison, compare, run_means
from runner.compare.compare import ChangeState
from runner.compare.stats import FALSE_DISCOVERY_RATE
from runner.judge.process import RenewedRun
from runner.model.numbers import DEFINITIONS
from runner.model.result import Outcome, Result, Sample
from runner.model.run import Job, Run
from runner.model.stack import Implementation
from runner.plan import jobs
from runner.plan.catalog import Selection, load_catalog
from runner.store.runs import RunFolder

# Without the deviation between runs, a difference is *not known yet*; here it counts as the alarm that it would be.
_CHANGED = (ChangeState.WORSE, ChangeState.BETTER, ChangeState.UNKNOWN)
_CASE = "sat"
out = Console(highlight=False)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of a simulation. Standard deviations are fractions: `common` of the deviation that all cells of a
    run share, `special` of a cell in a run, `within` of an iteration in a cell."""

    stacks: int
    iterations: int
    runs: int  # in the history, including the previous run
    common: float
    special: float
    within: float
    scattered: bool = False  # cells differ in their deviations, and iterations have heavy tails


SETTINGS = (
    Setting(stacks=2, iterations=10, runs=5, common=0.0, special=0.002, within=0.005),
    Setting(stacks=3, iterations=10, runs=3, common=0.002, special=0.002, within=0.005),
    Setting(stacks=3, iterations=10, runs=5, common=0.01, special=0.0, within=0.005),
    Setting(stacks=3, iterations=5, runs=8, common=0.002, special=0.004, within=0.01),
    Setting(stacks=3, iterations=10, runs=5, common=0.002, special=0.004, within=0.01, scattered=True),
)


class SimulatedRun(RunFolder):
    """A simulated run, kept in memory only."""

    def __init__(self, run: Run, results: dict[Job, Result]) -> None:
        super().__init__(Path(run.name), run)
        self._results = results

    def results(self) -> dict[Job, Result]:
        return self._results


class Nights:
    """Simulated runs of one selection, one after another, all with the same images."""

    def __init__(self, setting: Setting, random: np.random.Generator) -> None:
        self._setting, self._random = setting, random
        names = tuple(f"stack{number}" for number in range(setting.stacks))
        stacks = {name: Implementation(name=name, image=name, url="", version="1") for name in names}
        self._run = jobs.new_run(
            Path("night"),
            replace(load_catalog(), implementations=stacks),
            Selection(servers=names, clients=names, cases=(_CASE,), iterations=setting.iterations),
            seed=1,
            shuffled=False,
            image_ids={name: f"sha256:{name}" for name in names},
            timeout_scale=1.0,
        )
        wide = np.exp(random.normal(0, 0.8, (setting.stacks, setting.stacks))) if setting.scattered else 1.0
        self._wide = np.ones((setting.stacks, setting.stacks)) * wide
        self._made = 0

    def make(self, *, slower: float = 0.0) -> SimulatedRun:
        """The next run; the first pair's times are longer by the fraction `slower`."""
        setting, random = self._setting, self._random
        shape = (setting.stacks, setting.stacks)
        middle = random.normal(0, setting.common) + random.normal(0, 1, shape) * setting.special * self._wide
        middle[0, 0] += np.log1p(slower)
        self._made += 1
        results = {}
        for job in self._run.order:
            place = self._run.servers.index(job.server), self._run.clients.index(job.client)
            noise = random.standard_t(4) if setting.scattered else random.normal()
            time = 10 * float(np.exp(middle[place] + noise * setting.within * self._wide[place]))
            sample = Sample(file_size=10_000_000, definitions=DEFINITIONS, ttlb=time)
            results[job] = replace(Result.of(job, Outcome.SUCCEEDED), sample=sample)
        started = self._run.started_unix_s + self._made
        return SimulatedRun(replace(self._run, name=f"night-{self._made}", started_unix_s=started), results)


@dataclass(kw_only=True)
class Alarms:
    """Counts over comparisons in which nothing changed: comparisons with an alarm, and changed numbers."""

    comparisons: int = 0
    alarmed: int = 0
    numbers: int = 0
    changed: int = 0

    def count(self, comparison: Comparison) -> None:
        """Count one more comparison."""
        changed = sum(number.state in _CHANGED for number in comparison.numbers)
        self.comparisons += 1
        self.alarmed += changed > 0 or any(rate.state in _CHANGED for rate in comparison.rates)
        self.numbers += len(comparison.numbers)
        self.changed += changed

    @property
    def holds(self) -> bool:
        """True when at most 5 % of the comparisons raise an alarm, within three standard errors."""
        error = sqrt(FALSE_DISCOVERY_RATE * (1 - FALSE_DISCOVERY_RATE) / self.comparisons)
        return self.alarmed / self.comparisons <= FALSE_DISCOVERY_RATE + 3 * error

    def fields(self) -> tuple[str, str]:
        """Both rates as texts for a table."""
        return (
            f"{self.alarmed} of {self.comparisons} ({self.alarmed / self.comparisons:.1%})",
            f"{self.changed} of {self.numbers} ({self.changed / max(1, self.numbers):.1%})",
        )


def simulated(setting: Setting, random: np.random.Generator, times: int) -> tuple[Alarms, Alarms, int]:
    """Alarms when `compare` knows the deviation between runs, alarms when it doesn't, and how often `compare` finds a
    pair that is 2 % slower."""
    with_it, without, detected = Alarms(), Alarms(), 0
    for _ in range(times):
        nights = Nights(setting, random)
        *earlier, before = [nights.make() for _ in range(setting.runs)]
        others = [run_means(folder) for folder in earlier]
        after = nights.make()
        with_it.count(compare(before, after, others=others))
        without.count(compare(before, after))
        slower = compare(before, nights.make(slower=0.02), others=others)
        detected += any(
            number.state is ChangeState.WORSE and (number.server, number.client) == _FIRST for number in slower.numbers
        )
    return with_it, without, detected


_FIRST = ("stack0", "stack0")


def recorded(folders: Sequence[RunFolder]) -> Iterator[tuple[str, Comparison, Comparison]]:
    """Comparisons of each of these runs with the run before it: the name, the comparison that uses the deviation
    between the other runs, and the comparison that doesn't use it."""
    runs = [RenewedRun.of(folder) for folder in sorted(folders, key=lambda folder: folder.run.started_unix_s)]
    means = [run_means(run) for run in runs]
    for number in range(1, len(runs)):
        before, after = runs[number - 1], runs[number]
        others = [mean for index, mean in enumerate(means) if index not in (number - 1, number)]
        yield f"{before.name} → {after.name}", compare(before, after, others=others), compare(before, after)


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option("--times", default=200, show_default=True, help="Simulated comparisons of each setting.")
@click.option("--seed", default=1, show_default=True)
def main(names: tuple[str, ...], times: int, seed: int) -> None:
    """Print how often false alarms occur, with and without knowledge of the deviation between runs."""
    holds = _real(names) if names else _simulated(times, seed)
    sys.exit(0 if holds else 1)


def _simulated(times: int, seed: int) -> bool:
    random = np.random.default_rng(seed)
    table = Table(
        *("pairs", "n", "runs", "common", "special", "within", "alarms", "cells", "without: alarms", "cells"),
        *("2 % found", ""),
        box=None,
    )
    every, holds = Alarms(), True
    for setting in SETTINGS:
        with_it, without, detected = simulated(setting, random, times)
        spread = " scattered" if setting.scattered else ""
        table.add_row(
            *(str(setting.stacks**2), str(setting.iterations), str(setting.runs)),
            *(f"{100 * rate:.1f} %" for rate in (setting.common, setting.special)),
            f"{100 * setting.within:.1f} %{spread}",
            *with_it.fields(),
            *without.fields(),
            f"{detected / times:.0%}",
            "[green]✓[/green]" if with_it.holds else "[red]✗[/red]",
        )
        holds &= with_it.holds
        every.comparisons, every.alarmed = every.comparisons + with_it.comparisons, every.alarmed + with_it.alarmed
        every.numbers, every.changed = every.numbers + with_it.numbers, every.changed + with_it.changed
    out.print(table)
    out.print("All: {} comparisons with an alarm, {} cells changed.".format(*every.fields()))
    return holds


def _real(names: Sequence[str]) -> bool:
    folders = [RunFolder.open(jobs.run_path(name)) for name in names]
    if len(folders) < 3:
        raise click.UsageError("Name at least three runs: two are compared, and the others show how much runs differ.")
    with_it, without = Alarms(), Alarms()
    for name, known, unknown in recorded(folders):
        with_it.count(known)
        without.count(unknown)
        for change in known.numbers:
            if change.state in _CHANGED:
                cell = f"{change.client} → {change.server}, {change.case}, {change.metric}"
                out.print(f"{name}: {cell} {change.shift.median_before:.6g} → {change.shift.median_after:.6g}")
    out.print("{} comparisons with an alarm, {} numbers changed.".format(*with_it.fields()))
    out.print(
        "Without the deviation between runs: {} comparisons with an alarm, {} numbers changed.".format(
            *without.fields()
        )
    )
    return with_it.holds


if __name__ == "__main__":
    main()
