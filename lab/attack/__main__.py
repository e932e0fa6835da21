"""`.venv/bin/python -m lab.attack FAMILY` runs the attacks of one family; `table` shows the results of
all families.

Exit code 1: bentpipe lost against an attack, or an attack escaped. Exit code 3: the command was interrupted; the same
command continues it.
"""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from lab.attack import verdicts
from lab.attack.folders import attack_folders, stop_with_parent
from lab.attack.verdicts import Tally, Verdict
from runner.paths import LOGS

out = Console(highlight=False)
_PROGRESS_S = 15.0


class Progress:
    """Prints a line at intervals, and stores the state."""

    def __init__(self, family: str, state: Path, most: int) -> None:
        self._family, self._state, self._most = family, state, most
        self._printed_at = 0.0
        self._began = time.monotonic()
        self._first: int | None = None

    def __call__(self, tally: Tally) -> None:
        first = self._first = tally.tried if self._first is None else self._first
        if time.monotonic() - self._printed_at < _PROGRESS_S and tally.tried < self._most:
            return
        self._printed_at = time.monotonic()
        keep(self._family, tally, self._state)
        rate = (tally.tried - first) / max(1.0, self._printed_at - self._began)
        click.echo(f"{tally.tried:,} of {self._most:,}, {rate:.1f}/s, {len(tally.bad)} did not hold", err=True)


def keep(family: str, tally: Tally, state: Path) -> None:
    """Store the tally of one family beside those of the other families."""
    verdicts.save(verdicts.load(state) | {family: tally}, state)


@contextmanager
def resumable(family: str, tally: Tally, state: Path) -> Iterator[None]:
    """After Ctrl-C, store the tally, say that the same command continues, and exit with 3."""
    try:
        yield
    except KeyboardInterrupt:
        keep(family, tally, state)
        click.echo(f"Interrupted after {tally.tried:,}: the same command continues.", err=True)
        sys.exit(3)


def finish(family: str, tally: Tally, state: Path) -> None:
    """Store the tally, print it with its findings, and exit."""
    keep(family, tally, state)
    out.print(verdicts.table({family: tally}))
    for line in verdicts.sentences(tally.findings):
        out.print(line, markup=False, soft_wrap=True)
    sys.exit(1 if tally.count(Verdict.LOST) + tally.count(Verdict.ESCAPED) else 0)


state_option = click.option(
    "--state", type=click.Path(path_type=Path, dir_okay=False), default=verdicts.STATE, show_default=True
)
scratch_option = click.option(
    "--scratch", type=click.Path(path_type=Path, file_okay=False), default=LOGS / "attack", show_default=True
)
seconds_option = click.option(
    "--seconds", default=500.0, show_default=True, help="Start nothing after this time. The next call does."
)
clock_option = click.option(
    "--clock", type=click.Choice(["real", "virtual"]), default="real", show_default=True, help="The jobs' clock."
)


@click.group()
def main() -> None:
    """Attacks on bentpipe itself."""


@main.command()
@click.option("--count", default=10_000, show_default=True, help="Attacks, including those of earlier calls.")
@click.option("--seed", default=1, show_default=True, help="Another seed gives other folders.")
@click.option("--only", type=int, metavar="N", help="Repeat only folder N.")
@state_option
def folders(count: int, seed: int, only: int | None, state: Path) -> None:
    """Send mutated run folders through compare, show, analyse, history, render and serve."""
    stop_with_parent()
    if only is not None:
        tally = Tally()
        attack_folders(tally, seed=seed, numbers=range(only, only + 1), progress=lambda _: None)
        for finding in tally.findings:
            out.print(finding.text, markup=False)
        sys.exit(1 if tally.bad else 0)
    family = f"folders, seed {seed}"
    tally = verdicts.load(state).get(family, Tally())
    with resumable(family, tally, state):
        progress = Progress(family, state, count)
        attack_folders(tally, seed=seed, numbers=range(tally.tried, count), progress=progress)
    finish(family, tally, state)


@main.command()
@click.option("--only", default="", metavar="PATTERN", help="Only behaviours that match this regular expression.")
@seconds_option
@scratch_option
@clock_option
@state_option
def images(only: str, seconds: float, scratch: Path, clock: str, state: Path) -> None:
    """Run hostile endpoint images in lanes or in guests, each followed by an honest job."""
    from lab.attack.images import attack_images, behaviours  # noqa: PLC0415 - slow to import

    name = "images" if clock == "real" else f"images {clock}"
    tally = verdicts.load(state).get(name, Tally())
    progress = Progress(name, state, len(behaviours()))
    with resumable(name, tally, state):
        attack_images(tally, scratch, clock=clock, seconds=seconds, only=only, progress=progress)
    finish(name, tally, state)


@main.command()
@click.option("--count", default=200, show_default=True, help="Attacks, including those of earlier calls.")
@click.option("--seed", default=1, show_default=True)
@seconds_option
@scratch_option
@clock_option
@click.option("--only", default="", metavar="PATTERN", help="Only targets that match this regular expression.")
@state_option
def kills(count: int, seed: int, seconds: float, *, scratch: Path, clock: str, only: str, state: Path) -> None:
    """Kill runners, judges, containers, engine, memory and disk at random moments; then run the same command again."""
    from lab.attack.kills import attack_kills  # noqa: PLC0415 - docker is slow to import

    stop_with_parent()
    # A shell starts background commands with Ctrl-C ignored. The runners would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    family = "kills" if clock == "real" else "kills, virtual time"
    tally = verdicts.load(state).get(family, Tally())
    progress = Progress(family, state, count)
    with resumable(family, tally, state):
        attack_kills(tally, scratch, clock=clock, only=only, seed=seed, count=count, seconds=seconds, progress=progress)
    finish(family, tally, state)


@main.command("table")
@state_option
def table_(state: Path) -> None:
    """Print the counts of attacks by verdict for all families."""
    out.print(verdicts.table(verdicts.load(state)))


if __name__ == "__main__":
    main()
