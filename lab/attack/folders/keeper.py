"""Sends run folders, which have numbers, through the commands, in the cage. A forked worker takes a batch of folders at
a time, and is killed when it needs too much time or memory. When a batch has a loss, its folders are tried again one by
one, to find the folder that causes the loss.

    unshare … python -m lab.attack.folders.keeper SEED PATIENCE FIRST END

The keeper writes a line of JSON to its standard output for each batch.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lab.attack.folders import cage
from lab.attack.folders.worker import MUTATE, Worker
from lab.attack.processes import cpu_s, family, resident, runs

_BATCH = 10  # folders that share a site
_LIFE = 400  # folders of one worker
_POLL_S = 0.1
_CPU_S = 10.0  # the most CPU time of one command
_MUTATE_S = 120.0  # the most CPU time for making a folder
_WALL_S = 60.0  # the longest time in one command in which no process can run; waiting for a CPU doesn't count
_MEMORY = 1 << 30  # the most resident bytes of one process


@dataclass(kw_only=True)
class _Batch:
    """A worker's report about some folders."""

    numbers: list[int]
    kinds: list[str] = field(default_factory=list)
    found: list[dict[str, str]] = field(default_factory=list)
    peak: dict[str, float] = field(default_factory=dict)


class _ExcessError(Exception):
    """A worker needed too much time or memory, or died."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.what = kind


class Keeper:
    """Forks workers from a process that has already made the seeds and loaded templates and modules."""

    def __init__(self, worker: Worker, patience: float) -> None:
        self._worker = worker
        self._wall_s = _WALL_S * patience

    def reports(self, numbers: list[int]) -> Iterator[dict[str, Any]]:
        """The results of the folders, batch by batch, in order."""
        while numbers:
            with closing(self._batches(numbers[:_LIFE], _BATCH)) as batches:
                for batch in batches:
                    numbers = numbers[len(batch.numbers) :]
                    if batch.found:  # end this worker before its folders are sent again
                        break
                    yield self._report(batch, [])
            if batch.found:
                yield self._report(batch, self._alone(batch))

    @staticmethod
    def _report(batch: "_Batch", losses: list[tuple[int, dict[str, str]]]) -> dict[str, Any]:
        return {"numbers": batch.numbers, "kinds": batch.kinds, "peak": batch.peak, "losses": losses}

    def _alone(self, batch: "_Batch") -> list[tuple[int, dict[str, str]]]:
        """Send each folder of the batch alone through the commands. Returns the losses with the numbers of their
        folders. When no folder causes a loss again, the losses of the batch count for its first folder."""
        losses: list[tuple[int, dict[str, str]]] = []
        for number in batch.numbers:
            for alone in self._batches([number], 1):
                losses += [(number, loss) for loss in alone.found]
        return losses or [(batch.numbers[0], loss) for loss in batch.found]

    def _batches(self, numbers: list[int], size: int) -> Generator[_Batch]:
        """The batches of one worker until it ends or is killed."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._work(writing, numbers, size)
        os.close(writing)
        doing = ["start"]
        try:
            for batch in self._watched(pid, reading, doing):
                numbers = numbers[len(batch.numbers) :]
                yield batch
        except _ExcessError as excess:
            self._end(pid)
            losses = [{"verdict": "lost", "what": excess.what, "text": f"{doing[0]}: {excess}\n"}]
            losses += self._worker.escapes()
            yield _Batch(numbers=numbers[:size], found=losses)
        finally:
            self._end(pid)
            os.close(reading)

    def _work(self, writing: int, numbers: list[int], size: int) -> None:
        """The work of a worker process."""
        code, report = 1, os.fdopen(writing, "w")
        try:
            self._worker.renew(report)
            for start in range(0, len(numbers), size):
                self._worker.batch(numbers[start : start + size])
            code = 0
        except BaseException:
            report.write(json.dumps({"doing": traceback.format_exc()}) + "\n")
            report.flush()
        finally:
            os._exit(code)

    def _watched(self, pid: int, reading: int, doing: list[str]) -> Iterator[_Batch]:
        began, idle, cpu, buffer = time.monotonic(), 0.0, 0.0, b""
        while True:
            data = b""
            if select.select([reading], [], [], _POLL_S)[0]:
                data = os.read(reading, 1 << 20)
                if not data:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if status == 0:
                        return
                    raise _ExcessError("death", f"the process ended with {status}")
            *lines, buffer = (buffer + data).split(b"\n")
            for line in map(json.loads, lines):
                doing[0], began, cpu = str(line.get("doing", "between")), time.monotonic(), cpu_s(pid)
                if line.get("done"):
                    yield _Batch(numbers=line["done"], kinds=line["kinds"], found=line["found"], peak=line["peak"])
                    began, cpu = time.monotonic(), cpu_s(pid)
            if any(map(runs, family(pid))):
                idle = time.monotonic()
            burnt, waited = cpu_s(pid) - cpu, time.monotonic() - max(began, idle)
            if burnt > (_CPU_S if doing[0] != MUTATE else _MUTATE_S):
                raise _ExcessError("time", f"{burnt:.1f} s of CPU time")
            if waited > self._wall_s:
                raise _ExcessError("time", f"{waited:.1f} s, of them {burnt:.1f} s of CPU time")
            largest = max(map(resident, family(pid)))
            if largest > _MEMORY:
                raise _ExcessError("memory", f"{largest / 2**20:.0f} MiB")

    @staticmethod
    def _end(pid: int) -> None:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
            for process in reversed(family(pid)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(arguments: list[str]) -> None:
    """Enter the cage and work."""
    seed, patience = int(arguments[0]), float(arguments[1])
    numbers = list(range(int(arguments[2]), int(arguments[3])))
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cage.enter_cage()
    os.chdir(cage.WORK)
    os.environ["COLUMNS"] = "120"
    # With a single CPU, `render` draws all pages in its own process.
    os.sched_setaffinity(0, {Random(numbers[0]).choice(sorted(os.sched_getaffinity(0)))})
    for line in Keeper(Worker(seed), patience).reports(numbers):
        report.write(json.dumps(line) + "\n")
        report.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
