"""Handles many inputs in worker processes, one process at a time. When a worker hangs, grows or dies, this is a finding
about its input.

The worker writes the number of its input into shared memory. The time of an input is the CPU time of the worker, so a
stopped or busy host causes no finding.
"""

import gc
import json
import mmap
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lab.fuzz.target import Inputs, scratch
from runner.store.runs import write_atomically

_POLL_S = 0.2
_CHUNK = 20_000  # inputs of one worker; leaked memory is freed at its end
_MOST_FINDINGS = 50  # the most findings that are kept with their text
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Limits:
    """The limits of an input in CPU seconds, and of the worker in MiB of resident memory above its memory at the
    start."""

    seconds: float = 10.0
    mebibytes: int = 500


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A failure with one input."""

    number: int
    what: str  # exception, time, memory, death
    text: str


@dataclass(kw_only=True)
class State:
    """The state of a campaign. It is written to disk after each chunk, so that the campaign can be continued."""

    seed: int
    done: int = 0
    seconds: float = 0.0  # duration of the campaign so far
    peak_mebibytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0

    @classmethod
    def load(cls, path: Path, seed: int) -> "State":
        """The state on disk; a new state when there is none, or when it has another seed."""
        try:
            document = json.loads(path.read_bytes())
            findings = [Finding(**one) for one in document.pop("findings")]
            state = cls(**document, findings=findings)
        except (OSError, ValueError, TypeError, KeyError):
            return cls(seed=seed)
        return state if state.seed == seed else cls(seed=seed)

    def save(self, path: Path) -> None:
        """Write the state atomically."""
        write_atomically(path, json.dumps(asdict(self), indent=1, sort_keys=True).encode())

    def add(self, finding: Finding) -> None:
        """Keep the finding, unless there are too many already."""
        self.finding_count += 1
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)


Make = Callable[[Path], Inputs]
"""Scratch folder → function that takes inputs. The function may have `counts`, by kind of input."""
Progress = Callable[[State], None]


def campaign(make: Make, state: State, inputs: int, *, limits: Limits, progress: Progress) -> None:
    """Handle the inputs from `state.done` to `inputs`, in chunks. `progress` is called after each poll. After a
    KeyboardInterrupt the state has all inputs that were handled."""
    while state.done < inputs:
        _Worker(make, state, min(inputs, state.done + _CHUNK), limits).watch(progress)


class _Worker:
    """One child process for the inputs up to `last`. It ends by itself or is killed."""

    def __init__(self, make: Make, state: State, last: int, limits: Limits) -> None:
        self._state = state
        self._last = last
        self._limits = limits
        self._board = mmap.mmap(-1, mmap.PAGESIZE)
        self._numbers = memoryview(self._board).cast("q")  # [0]: the number of the current input
        self._numbers[0] = state.done
        with tempfile.TemporaryFile() as report:
            self._report = os.dup(report.fileno())
        self._pid = os.fork()
        if self._pid == 0:
            self._child(make)

    def _child(self, make: Make) -> None:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, self._stop)
            with tempfile.TemporaryDirectory(dir=scratch(), prefix="bentpipe-fuzz-") as folder:
                self._take(make(Path(folder)))
            code = 0
        finally:
            os._exit(code)

    def _stop(self, *_: object) -> None:
        self._last = 0

    def _take(self, inputs: Inputs) -> None:
        gc.freeze()  # the garbage collector no longer searches recordings and catalogue,
        gc.set_threshold(50_000)  # and searches the rest less often
        number, most = self._state.done, _peak() + self._limits.mebibytes
        while number < self._last:
            self._numbers[0] = number
            try:
                inputs(number)
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
                self._write(Finding(number=number, what="exception", text=text[:500]))
            number += 1
            if _peak() > most:
                self._write(Finding(number=number - 1, what="memory", text=f"{_peak()} MiB"))
                break
        self._numbers[0] = number
        self._write({"counts": getattr(inputs, "counts", {}), "peak": _peak()})

    def _write(self, line: Finding | dict[str, object]) -> None:
        document = asdict(line) if isinstance(line, Finding) else line
        os.write(self._report, json.dumps(document).encode() + b"\n")

    def watch(self, progress: Progress) -> None:
        """Wait for the end of the process, or kill it when an input takes too long. Then add its findings to the
        state."""
        state = self._state
        before, begun = state.seconds, time.monotonic()
        known, spent = state.done, 0.0
        ended, late = None, False
        try:
            while ended is None and not late:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                ended = status if pid else None
                number, used = self._numbers[0], _cpu_seconds(self._pid)
                if number != known:
                    known, spent = number, used
                late = ended is None and used - spent > self._limits.seconds
                state.seconds = before + time.monotonic() - begun
                progress(replace(state, done=number))
                time.sleep(0 if ended is not None else _POLL_S)
        finally:
            if ended is None:
                ended = self._end(signal.SIGKILL if late else signal.SIGTERM)
            self._read()
            state.done = self._numbers[0]
            if late:
                state.add(Finding(number=known, what="time", text=f"more than {self._limits.seconds:g} s"))
            elif ended != 0:
                state.add(Finding(number=state.done, what="death", text=f"wait status {ended}"))
            state.done += late or ended != 0

    def _end(self, how: signal.Signals) -> int:
        os.kill(self._pid, how)
        return os.waitpid(self._pid, 0)[1]

    def _read(self) -> None:
        """Read the report of the worker. A worker that died wrote no counts, so the kinds of its inputs are unknown."""
        state = self._state
        os.lseek(self._report, 0, os.SEEK_SET)
        text = b"".join(iter(lambda: os.read(self._report, 1 << 16), b""))
        os.close(self._report)
        for line in map(json.loads, text.splitlines()):
            if "number" in line:
                state.add(Finding(**line))
                continue
            for name, count in line["counts"].items():
                state.counts[name] = state.counts.get(name, 0) + count
            state.peak_mebibytes = max(state.peak_mebibytes, line["peak"])


def _peak() -> int:
    """The highest resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _cpu_seconds(pid: int) -> float:
    """The CPU time of a process with its threads; 0 when the process is gone (proc(5), utime and stime)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
