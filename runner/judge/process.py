"""Runs the judge in separate processes with limits for each call, and measures stored jobs again."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runner.decode.columns import Trace
from runner.decode.tables import cached_decode, load_tables
from runner.errors import BentpipeError, CaptureError
from runner.model.result import DEFINITIONS, Artifacts, Finding, Outcome, Result
from runner.model.run import CaseRecord, Job
from runner.store import runs
from runner.store.runs import RunFolder
from runner.trace.measure import renewed
from runner.units import MIB, format_size
from testcases.base import Case

# The time and memory that the judge may use for one job. A hostile capture must not harm other jobs of the run.


@dataclass(frozen=True, kw_only=True)
class JudgeLimits:
    """The limits of one job: seconds of CPU time and of wall time, bytes of resident memory."""

    cpu_s: float = 60.0
    wall_s: float = 600.0
    memory: int = 1024 * MIB

    @property
    def sentence(self) -> str:
        memory = format_size(self.memory)
        return f"at most {self.cpu_s:.0f} s of CPU time, {self.wall_s:.0f} s of wall time, and {memory} of memory"

    @classmethod
    def of(cls, artifacts: Artifacts) -> "JudgeLimits":
        """The limits of a job. They grow with the size of its captures. A normal job needs a tenth of its limits."""
        mebibytes = captured(artifacts) / MIB
        return cls(cpu_s=cls.cpu_s + 2 * mebibytes, wall_s=cls.wall_s + 10 * mebibytes)


def captured(artifacts: Artifacts) -> int:
    """Bytes of the job's captures."""
    return sum(capture.stat().st_size for capture in artifacts.captures if capture.is_file())


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The time and memory that the judge had used when it ended or was killed."""

    cpu_s: float
    wall_s: float
    memory: int

    @property
    def sentence(self) -> str:
        return f"{self.cpu_s:.1f} s of CPU time, {self.wall_s:.1f} s of wall time, {format_size(self.memory)} of memory"

    def exceeds(self, limits: JudgeLimits) -> bool:
        return self.cpu_s > limits.cpu_s or self.wall_s > limits.wall_s or self.memory > limits.memory


# Runs the judge in separate processes, with limits for each call. A call can harm only its own process.
#
# The processes are started as new programs, not forked, so that they inherit no lock and no descriptor of the runner.
# They end when the runner ends, even when the runner is killed.

_POLL_S = 0.1
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
SPARE = 512 * MIB  # bytes of data beyond the memory limit: thread stacks, arenas of the allocator


class AnalysisLimitError(BentpipeError):
    """A call exceeded its limits, or its process died. `cost`: the time and memory that the call had used."""

    def __init__(self, sentence: str, cost: Cost) -> None:
        super().__init__(sentence)
        self.cost = cost


class _KilledError(AnalysisLimitError):
    """The process got SIGKILL, but not from the runner."""


def over_the_limit(job: Job, artifacts: Artifacts, limits: JudgeLimits, error: AnalysisLimitError) -> Result:
    """The result of a job whose judge exceeded its limits."""
    why = "" if str(error) == limits.sentence else f": {error}"
    finding = Finding(
        code="analysis-limit",
        requirement="The judge reads every job within limits of time and memory.",
        expected=limits.sentence,
        actual=f"ended after {error.cost.sentence}; the captures have {format_size(captured(artifacts))}{why}",
    )
    return Result.of(job, Outcome.ERROR, finding)


def _timed_judge(job: Job, artifacts: Artifacts, case: Case | None, record: CaseRecord) -> Result:
    """The verdict of `judge_job`; its CPU time includes that of the judge."""
    from runner.judge.judges import judge_job  # noqa: PLC0415 - slow to import, and comparisons don't need it

    began = time.process_time()
    result = judge_job(job, artifacts, case, record)
    return replace(result, cpu_s=result.cpu_s + time.process_time() - began)


class StoppedError(BentpipeError):
    """The call was ended because the caller must end."""


class Judges:
    """Up to `most` processes, which are started when they are needed. Any thread may use `call`. When the context ends,
    all processes are killed at once and their calls end."""

    def __init__(self, most: int, *, stopped: Callable[[], bool] = lambda: False) -> None:
        self._free = threading.BoundedSemaphore(max(1, most))
        self._stopped = stopped
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
        for process in busy:
            process.end()  # the thread that waits for the process notices its end, and closes it
        for process in idle:
            process.end()
            process.close()

    def judged(self, job: Job, artifacts: Artifacts, case: Case | None, record: CaseRecord) -> Result | None:
        """The verdict of `judge_job` in one of the processes; an error when it exceeds its limits. None when the caller
        must end."""
        limits = JudgeLimits.of(artifacts)
        try:
            result: Result = self.call(limits, _timed_judge, job, artifacts, case, record)
        except StoppedError:
            return None
        except AnalysisLimitError as error:
            return over_the_limit(job, artifacts, limits, error)
        return result

    def call(self, limits: JudgeLimits, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run `function(*arguments)` in one of the processes; both must be picklable.

        Raises the exceptions of `function`, AnalysisLimitError, or StoppedError.
        """
        while not self._free.acquire(timeout=_POLL_S):
            self._check()
        try:
            try:
                return self._call(limits, function, arguments)
            except _KilledError:  # killed by the kernel (no memory) or by a user: the call is not at fault
                return self._call(limits, function, arguments)
        finally:
            self._free.release()

    def _call(self, limits: JudgeLimits, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        process = self._take(limits.memory)
        try:
            return process.call(limits, self._must_end, function, arguments)
        except (AnalysisLimitError, StoppedError):
            process.end()
            raise
        finally:
            self._give_back(process)

    def _must_end(self) -> bool:
        return self._closed or self._stopped()

    def _check(self) -> None:
        if self._must_end():
            raise StoppedError("The judge was ended.")

    def _take(self, memory: int) -> "_Process":
        with self._lock:
            self._check()
            if self._idle:
                return self._idle.pop()
            process = _Process(memory)
            self._all.add(process)
            return process

    def _give_back(self, process: "_Process") -> None:
        with self._lock:
            if process.alive and not self._closed:
                self._idle.append(process)
                return
            self._all.discard(process)
        process.end()
        process.close()


class _Process:
    """One process of the judge."""

    def __init__(self, memory: int) -> None:
        calls, self._calls = Pipe(duplex=False)
        self._results, results = Pipe(duplex=False)
        life, self._life = Pipe(duplex=False)
        paths = os.pathsep.join(path or os.curdir for path in sys.path)
        with calls, results, life:
            descriptors = [calls.fileno(), results.fileno(), life.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runner.judge.child", *map(str, (*descriptors, memory + SPARE))],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                # Arrow's own allocator reserves 1 GiB at its first call, and the limit of data counts that.
                env={**os.environ, "PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system"},
                pass_fds=descriptors,
            )
        self._ending = threading.Lock()
        self.alive = True

    def call(
        self, limits: JudgeLimits, stopped: Callable[[], bool], function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Send the call and wait for its result. Raises the same exceptions as `Judges.call`."""
        began, cpu = time.monotonic(), self._cpu_s()
        peak = 0
        with suppress(OSError):  # the loop below notices that the process ended
            self._calls.send_bytes(pickle.dumps((function, arguments)))
        while True:
            answered = self._results.poll(_POLL_S)
            peak = max(peak, self._memory())
            cost = Cost(cpu_s=self._cpu_s() - cpu, wall_s=time.monotonic() - began, memory=peak)
            if answered and (answer := self._answer()):
                return _value(answer, limits, cost)
            if stopped():
                raise StoppedError("The judge was ended.")
            if (code := self._process.poll()) is not None:
                kind = _KilledError if code == -signal.SIGKILL else AnalysisLimitError
                raise kind(f"the judge's process ended ({code})", cost)
            if cost.exceeds(limits):
                raise AnalysisLimitError(limits.sentence, cost)

    def _answer(self) -> bytes:
        """The next result; empty when the process has ended."""
        try:
            return self._results.recv_bytes()
        except EOFError:
            return b""

    def end(self) -> None:
        """Kill the process."""
        with self._ending:
            if not self.alive:
                return
            self.alive = False
            self._process.kill()
            self._process.wait()
            self._calls.close()
            self._life.close()

    def close(self) -> None:
        """Close the pipe of the results. Call this after `end`, when no thread waits for the pipe."""
        with self._ending:
            self._results.close()

    def _cpu_s(self) -> float:
        """CPU seconds of all threads of the process (proc(5)); 0 when it has ended."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _memory(self) -> int:
        """Resident bytes of the process; 0 when it has ended."""
        try:
            return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0


def _value(answer: bytes, limits: JudgeLimits, cost: Cost) -> Any:
    kind, value = pickle.loads(answer)
    if kind == "error":
        raise value
    if kind == "memory":
        raise AnalysisLimitError(limits.sentence, cost)
    return value


# Measures stored jobs again when their numbers have older definitions. Verdicts don't change.


class RenewedRun(RunFolder):
    """A stored run whose numbers follow today's definitions, as far as its packets still exist. Results on disk don't
    change."""

    @classmethod
    def of(cls, folder: RunFolder) -> "RenewedRun":
        """The run of `folder`."""
        return cls(folder.path, folder.run, folder.skip)

    @cached_property
    def _results(self) -> dict[Job, Result]:
        return dict(self._renewed(super().results()))

    def results(self) -> dict[Job, Result]:
        """The results, measured again at the first call. A sample that can't be measured again keeps its older
        definitions."""
        return self._results

    def _renewed(self, stored: dict[Job, Result]) -> Iterator[tuple[Job, Result]]:
        for job, result in stored.items():
            sample, case = result.sample, self.run.cases.get(job.case)
            if sample is None or case is None or sample.definitions >= DEFINITIONS:
                yield job, result
                continue
            client_side = _client_side(self.artifacts(job))
            if client_side is not None:
                sample = renewed(sample, client_side, case.forward)
            yield job, replace(result, sample=sample)


def _client_side(artifacts: Artifacts) -> Trace | None:
    """The trace at the client, from its tables or its capture; None when neither can be read."""
    try:
        if artifacts.client_tables.is_dir():
            return load_tables(artifacts.client_tables)
    except CaptureError:
        pass  # another version of the decoder wrote the tables; the capture may still exist
    evidence = runs.load_evidence(artifacts)
    if evidence is None or not artifacts.client_capture.is_file():
        return None
    try:
        drops = evidence.capture_drops
        return cached_decode(artifacts.client_capture, artifacts.key_logs, artifacts.client_tables, kernel_drops=drops)
    except CaptureError:
        return None
