"""Attacks with many run folders: a keeper in a cage sends them through the commands and reports the results."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from lab.attack.folders import cage
from lab.attack.verdicts import Finding, Tally, Verdict
from runner.paths import ROOT

_KEEPER = "lab.attack.folders.keeper"
_CHUNK = 2_000  # folders of one cage


def attack_folders(
    tally: Tally, *, seed: int, numbers: range, progress: Callable[[Tally], None], patience: float = 1.0
) -> None:
    """Send the folders of `seed` with these `numbers` through the commands. Waits may take `patience` times as long as
    usual."""
    while numbers:
        began = time.monotonic()
        for report in _reports(seed, numbers[:_CHUNK], patience):
            done = report["numbers"]
            numbers = numbers[len(done) :]
            tally.tried += len(done)
            _count(tally, seed, report)
            tally.seconds, began = tally.seconds + time.monotonic() - began, time.monotonic()
            progress(tally)


def _count(tally: Tally, seed: int, report: dict[str, Any]) -> None:
    for kind in report["kinds"]:
        tally.of_kind(kind)
    for measurement, value in report["peak"].items():
        tally.peak(measurement, value)
    for number, loss in report["losses"]:
        attack = f"folders --seed {seed} --only {number}"
        tally.add(Finding(attack=attack, verdict=Verdict(loss["verdict"]), what=loss["what"], text=loss["text"]))


def _reports(seed: int, numbers: range, patience: float) -> Iterator[dict[str, Any]]:
    """The batches of one cage. When a cage dies, its current batch counts as lost."""
    arguments = (str(seed), str(patience), str(numbers.start), str(numbers.stop))
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(cage.command(_KEEPER, *arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        try:
            count = 0
            for report in map(json.loads, process.stdout):
                count += len(report["numbers"])
                yield report
            if process.wait() != 0 or count < len(numbers):
                raise RuntimeError(f"The cage ended with {process.returncode}: {_tail(errors)}")
        finally:
            process.kill()  # because of --kill-child, this also ends all processes in the namespace
            process.wait()
            process.stdout.close()


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, 2) - 2000))
    return file.read().decode(errors="replace")


def stop_with_parent() -> None:
    """Make a SIGTERM end this process like Ctrl-C, so that its cages end with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
