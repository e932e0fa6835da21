"""Many run folders, a worker in a cage for some of them at a time; what hangs, grows or dies is a finding."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

from runner.config.catalog import ROOT
from runner.validation.attack.folders import cage
from runner.validation.attack.processes import cpu_s, family, resident
from runner.validation.attack.verdicts import Finding, Tally, Verdict

_WORKER = "runner.validation.attack.folders.worker"
_CHUNK = 200  # folders of one worker
_BATCH = 10  # folders that share a site
_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one command: seconds of CPU time, and of waiting for nothing; of one process: bytes of resident memory."""

    cpu_s: float = 10.0
    wall_s: float = 60.0
    memory: int = 1 << 30


_STARTING = Limits(cpu_s=60.0, wall_s=300.0)  # until a worker has made its seeds; others use the host, too


def attack_folders(
    tally: Tally,
    *,
    seed: int,
    first: int,
    count: int,
    progress: Callable[[Tally], None],
    limits: Limits,
) -> None:
    """Put folders `first` to `first + count` of `seed` through the commands. What one batch did not bear is tried
    again folder by folder, so that a finding names the folder that it is of."""
    left = list(range(first, first + count))
    while left or tally.suspects:
        began = time.monotonic()
        while tally.suspects:  # a worker that dies leaves some of them undone
            _alone(tally, seed, limits, progress)
        for batch in _batches(seed, left[:_CHUNK], _BATCH, limits) if left else ():
            left = left[len(batch.numbers) :]
            _count(tally, batch)
            tally.suspects += batch.numbers if batch.found else ()
            progress(tally)
        tally.seconds += time.monotonic() - began


def _count(tally: Tally, batch: "_Batch") -> None:
    tally.tried += len(batch.numbers)
    for kind in batch.kinds:
        tally.of_kind(kind)
    for what, value in batch.peak.items():
        tally.peak(what, value)


def _alone(tally: Tally, seed: int, limits: Limits, progress: Callable[[Tally], None]) -> None:
    for batch in _batches(seed, list(tally.suspects), 1, limits):
        tally.suspects.remove(batch.numbers[0])
        for one in batch.found:
            tally.add(
                Finding(
                    attack=f"folders --seed {seed} --only {batch.numbers[0]}",
                    verdict=Verdict(one["verdict"]),
                    what=one["what"],
                    text=f"{', '.join(batch.kinds)}\n{one['text']}",
                )
            )
        progress(tally)


@dataclass(kw_only=True)
class _Batch:
    """What a worker said of some folders."""

    numbers: list[int]
    kinds: list[str] = field(default_factory=list)
    found: list[dict[str, str]] = field(default_factory=list)
    peak: dict[str, float] = field(default_factory=dict)
    ended: bool = False  # the worker


def _batches(seed: int, numbers: list[int], size: int, limits: Limits) -> Iterator[_Batch]:
    """The batches of a worker until it has ended, or was ended for what it took."""
    arguments = (str(seed), str(size), ",".join(map(str, numbers)))
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(cage.command(_WORKER, *arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        try:
            for batch in _watched(process, process.stdout, numbers, size, limits):
                if batch.ended:
                    errors.seek(max(0, errors.tell() - 2000))
                    batch.found[0]["text"] += errors.read().decode(errors="replace")
                yield batch
        finally:
            process.kill()  # --kill-child takes the namespace along
            process.wait()
            process.stdout.close()


def _watched(
    process: "subprocess.Popen[bytes]", told: IO[bytes], numbers: list[int], size: int, limits: Limits
) -> Iterator[_Batch]:
    doing, began, cpu, buffer = "start", time.monotonic(), 0.0, b""
    while numbers:
        if select.select([told], [], [], _POLL_S)[0]:
            data = os.read(told.fileno(), 1 << 20)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in map(json.loads, lines):
                doing, began, cpu = str(line.get("doing", "between")), time.monotonic(), cpu_s(process.pid)
                if line.get("done"):
                    numbers = numbers[len(line["done"]) :]
                    yield _Batch(numbers=line["done"], kinds=line["kinds"], found=line["found"], peak=line["peak"])
            if data:
                continue
        if why := _beyond(process, began, cpu, _STARTING if doing == "start" else limits):
            found = [{"verdict": "lost", "what": why[0], "text": f"{doing}: {why[1]}\n"}]
            yield _Batch(numbers=numbers[:size], found=found, ended=True)
            return


def _beyond(process: "subprocess.Popen[bytes]", began: float, cpu: float, limits: Limits) -> tuple[str, str] | None:
    """What was too much, and how much it was."""
    if process.poll() is not None:
        return "death", f"the process ended with {process.returncode}"
    burnt, waited = cpu_s(process.pid) - cpu, time.monotonic() - began
    if burnt > limits.cpu_s:
        return "time", f"{burnt:.1f} s of CPU time"
    if waited > limits.wall_s:
        return "time", f"{waited:.1f} s, of them {burnt:.1f} s of CPU time"
    largest = max((resident(pid) for pid in family(process.pid)), default=0)
    if largest > limits.memory:
        return "memory", f"{largest / 2**20:.0f} MiB"
    return None


def stop_with_parent() -> None:
    """Make a SIGTERM end this process as Ctrl-C does: its workers end with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
