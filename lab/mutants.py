"""Tests that the judge really checks every rule of docs/rules.md: `.venv/bin/python -m lab.mutants`.

A mutant is a copy of a recording of real stacks in which one rule is broken (lab/mutate). Each mutant is
judged like any job, and counted: *killed* when the judge found exactly that rule, *wrong* when it found other rules,
*survived* when it found none. Rules without a mutant are listed. Exit code 1 when the share of killed mutants is below
`--least`.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lab.mutate.mutants import MUTANTS, Mutant
from lab.mutate.mutation import make
from lab.mutate.recording import Recording
from lab.run_folders import RECORDINGS
from runner.judge.judges import analyse
from runner.model.result import Artifacts
from runner.model.rules import RULES, Where
from runner.model.run import Job
from runner.plan.catalog import Catalog, load_catalog

# Cases whose recordings have damaged packets, which can't be edited.
UNEDITED = ("transfercorruption", "handshakecorruption")
KILLED, WRONG, SURVIVED, UNFIT = "killed", "wrong", "survived", "unfit"
Broken = frozenset[tuple[str, str]]
out = Console(highlight=False, width=180)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One mutant that was judged. `found`: rule and role of each violation that the recording did not have before."""

    mutant: Mutant
    end: str
    recording: str = ""
    found: Broken = frozenset()
    why: str = ""


def good_recordings() -> tuple[Path, ...]:
    """Job folders of real stacks whose packets can all be edited."""
    folders = sorted(RECORDINGS.glob("*_*/*/1"))
    return tuple(folder for folder in folders if folder.parent.name not in UNEDITED)


def violations(folder: Path, catalog: Catalog) -> Broken:
    """Rule and role of each violation that the judge finds in a job folder."""
    case = catalog.cases["handshake"]
    job = Job(server="s", client="c", case=case.name, iteration=1)
    result = analyse(job, Artifacts(folder), case, case.record())
    return frozenset((finding.code, finding.role) for finding in (*result.violations, *result.notes))


def try_mutant(
    mutant: Mutant, folders: Sequence[Path], *, seed: int, catalog: Catalog, before: dict[Path, Broken]
) -> Trial:
    """Make a mutant and judge it. `before`: a cache of the violations in unchanged recordings."""
    with tempfile.TemporaryDirectory() as scratch:
        made = make(mutant, folders, seed, Path(scratch) / "job")
        if isinstance(made, str):
            return Trial(mutant=mutant, end=UNFIT, why=made)
        source, folder = made
        if source not in before:
            before[source] = unchanged(source, Path(scratch) / "unchanged", catalog)
        broken = violations(folder, catalog) - before[source]
    expected = (mutant.rule, mutant.role)
    others = {(rule, role) for rule, role in broken if (rule, role) != expected and rule not in mutant.along}
    end = KILLED if expected in broken and not others else WRONG if broken else SURVIVED
    return Trial(mutant=mutant, end=end, recording="/".join(source.parts[-3:-1]), found=broken)


def unchanged(source: Path, target: Path, catalog: Catalog) -> Broken:
    """The violations of a recording that is decrypted and encrypted again without a change."""
    recording = Recording.load(source)
    for datagram in recording.datagrams:
        for packet in datagram.packets:
            packet.changed = True
    return violations(recording.save(target), catalog)


def report(trials: Iterable[Trial], *, everything: bool) -> float:
    """Print the results by outcome; returns the share of killed mutants."""
    trials = list(trials)
    table = Table("mutant", "recording", "end", "found", box=None)
    for trial in trials:
        if everything or trial.end != KILLED:
            rules = ", ".join(sorted(f"{rule} ({role})" for rule, role in trial.found))
            table.add_row(trial.mutant.title, trial.recording, trial.end, rules or trial.why)
    out.print(table)
    checked = {rule.id for rule in RULES if rule.where is Where.INVARIANT}
    killed = {trial.mutant.rule for trial in trials if trial.end == KILLED}
    missing = sorted(checked - {trial.mutant.rule for trial in trials if trial.end != UNFIT})
    ends = Counter(trial.end for trial in trials)
    judged = len(trials) - ends[UNFIT]
    out.print(f"No mutant yet: {', '.join(missing) or 'none'}.")
    out.print(
        f"{ends[KILLED]} of {judged} mutants killed, {ends[WRONG]} wrong, {ends[SURVIVED]} survived; "
        f"{ends[UNFIT]} fit no recording. "
        f"{len(killed & checked)} of {len(checked)} rules that are invariants were killed by a mutant."
    )
    return ends[KILLED] / judged if judged else 0.0


@click.command()
@click.option("--rows", default="", help="Only rules whose names begin with one of these texts, separated by commas.")
@click.option("--seed", default=1, help="Seed of the packets and values that the mutants change.")
@click.option("--least", default=0.0, help="Share of mutants that must be killed, for the exit code.")
@click.option("--all", "everything", is_flag=True, help="List killed mutants, too.")
def main(rows: str, seed: int, least: float, everything: bool) -> None:
    """Break one rule in each of many copies of recordings, and count the rules that the judge finds."""
    prefixes = tuple(rows.split(",")) if rows else ("",)
    chosen = [mutant for mutant in MUTANTS if mutant.rule.startswith(prefixes)]
    if not chosen:
        raise click.UsageError(f"--rows: no mutant of a rule that begins with {rows!r}; expected e.g. rfc9000-12.")
    catalog, folders = load_catalog(), good_recordings()
    before: dict[Path, Broken] = {}
    trials = [try_mutant(mutant, folders, seed=seed, catalog=catalog, before=before) for mutant in chosen]
    for source, broken in before.items():
        for rule, role in sorted(broken):
            out.print(f"unchanged {'/'.join(source.parts[-3:-1])} has {rule} ({role})")
    share = report(trials, everything=everything)
    sys.exit(share < least)


if __name__ == "__main__":
    main()
