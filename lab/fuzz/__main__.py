"""`.venv/bin/python -m lab.fuzz`: a million mutated captures, key logs, qlogs and tables.

Every input has a number; the number and the seed determine the input. After an interruption (Ctrl-C) the same command
continues the campaign. `--only N` repeats one input, with its traceback. Exit code 1: there are findings; exit code 3:
the command was interrupted.
"""

import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import click

from lab.fuzz.campaign import Limits, State, campaign
from lab.fuzz.target import Target, load, scratch
from runner.paths import ROOT

_PROGRESS_S = 10.0


class _Line:
    """Prints the line of progress at intervals."""

    def __init__(self, inputs: int, path: Path) -> None:
        self._inputs = inputs
        self._path = path
        self._told = 0.0
        self._first: tuple[float, int] | None = None

    def __call__(self, state: State) -> None:
        now = time.monotonic()
        self._first = self._first or (now, state.done)
        if now - self._told < _PROGRESS_S:
            return
        self._told = now
        state.save(self._path)
        rate = (state.done - self._first[1]) / max(now - self._first[0], 1.0)
        left = f", {(self._inputs - state.done) / rate / 60:.0f} min left" if rate else ""
        click.echo(f"{state.done:,} of {self._inputs:,}, {rate:.0f}/s, {state.finding_count} findings{left}", err=True)


@click.command()
@click.option("--inputs", default=1_000_000, show_default=True, help="How many, those of earlier calls included.")
@click.option("--seed", default=1, show_default=True, help="Another seed makes other inputs.")
@click.option("--only", type=int, default=None, metavar="N", help="Repeat input N alone.")
@click.option(
    "--state", "path", type=click.Path(path_type=Path), default=ROOT / "logs" / "fuzz.json", show_default=True
)
def main(inputs: int, seed: int, only: int | None, path: Path) -> None:
    """Send mutated captures, key logs, qlogs and tables through the decoder, the facts and every check."""
    if only is not None:
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            Target(Path(folder), seed)(only)
        return
    load()
    state = State.load(path, seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        campaign(partial(Target, series_seed=seed), state, inputs, limits=Limits(), progress=_Line(inputs, path))
    except KeyboardInterrupt:
        state.save(path)
        click.echo(f"Interrupted after {state.done:,} inputs: the same command goes on.", err=True)
        sys.exit(3)
    state.save(path)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(state.counts.items()))
    click.echo(f"{state.done:,} inputs in {state.seconds:.0f} s, peak {state.peak_mebibytes} MiB ({kinds})")
    for finding in state.findings:
        click.echo(f"{finding.number}: {finding.what}: {finding.text}")
    click.echo(f"{state.finding_count} findings")
    sys.exit(1 if state.finding_count else 0)


if __name__ == "__main__":
    main()
