"""The loop over the jobs without a result: run each job in a lane, judge it, store it, decide which captures are
kept."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Protocol

from runner.campaign.schedule import Pauses, Schedule, lack_of_space
from runner.compare.stats import median_iteration
from runner.errors import BentpipeError, BudgetError, HostRefusedError, LaneError, SetupError
from runner.files import beneath, compress_logs, remove_tree
from runner.judge.execution import transient
from runner.judge.judges import judge_job
from runner.judge.process import AnalysisLimitError, JudgeLimits, Judges, StoppedError, over_the_limit
from runner.model.deployment import Deployment, Observer, Silent
from runner.model.result import Artifacts, EndpointRecord, Evidence, Finding, Outcome, Result
from runner.model.run import Job, Pause, Retention
from runner.model.stack import Role
from runner.places.place import Concurrency
from runner.plan.jobs import FIRST_CASE, prevented, without_run
from runner.store import runs
from runner.store.runs import RunFolder
from testcases.base import Case

# Decides which captures are kept. Captures are 96 % of a job's bytes. Tables, series and logs are always kept.


def apply_retention(folder: RunFolder, job: Job, policy: Retention) -> None:
    """Delete captures of the job's cell that the policy doesn't keep."""
    if policy is Retention.ALL:
        return
    cell = folder.run.cells.get(job.cell, ())
    results = {other: result for other in cell if (result := folder.result(other)) is not None}
    if policy is Retention.MEDIAN and len(results) < len(cell):
        return  # the median is not known before the last iteration
    median = median_iteration(list(results.values())) if policy is Retention.MEDIAN else None
    for other, result in results.items():
        failed = result.outcome in (Outcome.FAILED, Outcome.ERROR)
        keep = policy is not Retention.NONE and (failed or result.iteration == median)
        if keep or not result.captures_kept:
            continue
        artifacts = folder.artifacts(other)
        folder.save_result(replace(result, captures_kept=False))
        for capture in artifacts.captures:
            beneath(artifacts.folder, capture.relative_to(artifacts.folder)).unlink(missing_ok=True)


# One job from its start to its stored result: attempts in a lane, the verdict, retention.

MAX_ATTEMPTS = 3  # attempts at a job that is disturbed or fails because of the harness, including the first attempt


@dataclass(kw_only=True)
class Execution:
    """Runs jobs, repeats disturbed attempts, and stores the results. Thread-safe."""

    folder: RunFolder
    cases: Mapping[str, Case]
    deployment: Deployment
    schedule: Schedule
    judges: Judges
    retention: Retention
    handshakes: dict[Job, Result] = field(default_factory=dict)  # handshakes with results, also of earlier calls

    def run(self, job: Job, lane: int) -> Result | None:
        """Run a job that the schedule has started, and store its result. Returns None when the campaign was stopped.
        When the disk is full, the job waits for space and runs again.
        """
        while True:
            try:
                result = self._run(job, lane)
            except OSError:  # errors of files and tables; some of them have no errno
                if not lack_of_space(self.folder.path):
                    raise
            else:
                if result is not None and job.case == FIRST_CASE:
                    self.handshakes[job] = result
                return result
            remove_tree(self.folder.path, self.folder.run.folder(job))
            if not self.schedule.start_again(job, lane):
                return None

    def _run(self, job: Job, lane: int) -> Result | None:
        if refusal := prevented(job, self.handshakes):
            self.schedule.leave(job)
            skipped = without_run(job, Outcome.SKIPPED, refusal)
            self.folder.save_result(skipped)
            return skipped
        result = self._attempts(job, lane)
        if result is None:
            return None
        self.folder.save_result(result)
        for role in Role:
            compress_logs(self.folder.artifacts(job).folder / role.value / "qlog")
        apply_retention(self.folder, job, self.retention)
        return result

    def _attempts(self, job: Job, lane: int) -> Result | None:
        """The result of the first undisturbed attempt, or of the last attempt. None when the campaign was stopped."""
        disturbances: list[str] = []
        printed: list[str] = []
        while True:
            attempt = len(disturbances) + 1
            result = self._timed_attempt(job, attempt, lane)
            if result is None:
                return None
            result = replace(result, attempts=attempt, disturbed=tuple(disturbances))
            self.schedule.width.learn(result, self.folder.run.case(job).kind)
            reason = transient(result)
            if reason is None or attempt == MAX_ATTEMPTS:
                break
            disturbances.append(reason)
            printed.append(f"== attempt {attempt} ==\n{reason}\n{result.findings[0].log_tail}\n")
            self.schedule.report("retried", job, result, message=reason)
        if printed:
            self.folder.artifacts(job).attempts_log.write_text("".join(printed))
        return result

    def _timed_attempt(self, job: Job, attempt: int, lane: int) -> Result | None:
        if attempt > 1 and not self.schedule.start_again(job, lane):
            return None
        self.schedule.report("started", job)
        clock = self.schedule.clock
        began = clock()
        try:
            result = self._judge_attempt(job) if self._run_attempt(job, attempt) else None
        finally:
            self.schedule.leave(job)
        if result is None:
            return None
        wall = clock() - began
        return replace(result, wall_s=wall, overhead_s=wall - result.transfer_s)

    def _run_attempt(self, job: Job, attempt: int) -> bool:
        """Run the job and put its artifacts in its folder. False when the campaign was stopped meanwhile."""
        clock = self.schedule.clock
        began = clock()
        inside = Path(".partial") / "-".join(job.path.parts)
        remove_tree(self.folder.path, inside)
        partial = self.folder.path / inside
        partial.mkdir(parents=True)
        try:
            self.deployment.run(job, partial, attempt=attempt)
        except LaneError as error:
            wall = clock() - began
            runs.save_evidence(Artifacts(partial), _lost(error, time.time() - wall, wall))
        if self.schedule.stopped.is_set():
            return False
        final = self.folder.artifacts(job).folder
        remove_tree(self.folder.path, self.folder.run.folder(job))
        final.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(final)
        return True

    def _judge_attempt(self, job: Job) -> Result | None:
        """The verdict on the job's folder. None when the campaign was stopped meanwhile."""
        artifacts, case = self.folder.artifacts(job), self.cases.get(job.case)
        limits = JudgeLimits.of(artifacts)
        try:
            result: Result = self.judges.call(limits, judge_job, job, artifacts, case, self.folder.run.case(job))
        except StoppedError:
            return None
        except AnalysisLimitError as error:
            return over_the_limit(job, artifacts, limits, error)
        except (BentpipeError, OSError):
            raise
        except Exception as error:  # a bug of bentpipe must end only one job, not the whole campaign
            return _judge_failed(job, error)
        return result


def _lost(error: LaneError, started: float, wall: float) -> Evidence:
    unknown = EndpointRecord(image="", image_id="")
    return Evidence(
        started_unix_s=started,
        wall_s=wall,
        transfer_s=0.0,
        stages_s={},
        client=unknown,
        server=unknown,
        server_ready=None,
        files=(),
        error=error.record(),
    )


def _judge_failed(job: Job, error: Exception) -> Result:
    finding = Finding(
        code="judge-failed",
        requirement="The judge reads every job's folder.",
        expected="a verdict",
        actual=f"{type(error).__name__}: {error}",
    )
    return Result.of(job, Outcome.ERROR, finding)


# The loop over the jobs without a result: run each job in a lane, judge it, store it. Results are saved after every
# job.

_POLL = 0.2  # seconds between two checks whether the campaign was stopped


class Extension(Protocol):
    """A policy that adds jobs to a campaign while it runs."""

    def further(self, job: Job, results: Mapping[Job, Result]) -> Sequence[Job]:
        """Return the jobs to run next, after `job` has got its result. `results`: all results of this call so far,
        including the result of `job`."""


class NoExtension:
    """The policy of a campaign whose jobs are known at its start."""

    def further(self, job: Job, results: Mapping[Job, Result]) -> Sequence[Job]:  # noqa: ARG002 - no result matters
        """No jobs."""
        return ()


@dataclass(kw_only=True)
class Campaign:
    """The work of one call: jobs of a run that are still to do."""

    folder: RunFolder
    cases: Mapping[str, Case]  # by name; a case that was deleted from testcases/ has no entry
    todo: tuple[Job, ...]
    verdicts_without_run: Mapping[Job, Result]  # results of jobs that need no run, see `runs.verdicts_without_run`
    deployment: Deployment
    width: Concurrency
    retention: Retention
    observer: Observer = field(default_factory=Silent)
    pause: Pause | None = None
    extension: Extension = field(default_factory=NoExtension)
    clock: Callable[[], float] = time.monotonic
    _stop: threading.Event = field(default_factory=threading.Event)
    _results: dict[Job, Result] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failure: BaseException | None = None

    def stop(self) -> None:
        """End soon: no new job starts, and running jobs are stopped without a result. A signal handler may call
        it."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def execute(self) -> dict[Job, Result]:
        """Run all jobs that are left. Returns the results of this call. Raises the error that ended a lane."""
        schedule = self._schedule()
        remove_tree(self.folder.path, ".partial")
        with Judges(min(self.width.all, _judges()), stopped=self._stop.is_set) as judges:
            execution = self._execution(schedule, judges)
            lanes = [
                threading.Thread(target=self._lane, args=(lane, schedule, execution), name=f"lane-{lane}")
                for lane in range(self.width.all)
            ]
            for thread in lanes:
                thread.start()
            while any(thread.is_alive() for thread in lanes) and not self._stop.is_set():
                # Not `_stop.wait`: it holds a lock that the signal handler needs to set `_stop` in this same thread.
                time.sleep(_POLL)
            if self._stop.is_set():
                self.deployment.stop()
            for thread in lanes:
                thread.join()
        remove_tree(self.folder.path, ".partial")
        if self._failure is not None:
            raise self._failure
        return self._results

    def _schedule(self) -> Schedule:
        """A schedule with all jobs in their queues; jobs that need no run are already finished."""
        schedule = Schedule(
            run=self.folder.run,
            width=self.width,
            pauses=Pauses(self.folder.path, self.deployment, self.pause),
            observer=self.observer,
            stopped=self._stop,
            clock=self.clock,
        )
        schedule.add(job for job in self.todo if job not in self.verdicts_without_run)
        for preset in self.verdicts_without_run.values():
            self.folder.save_result(preset)
        self._results.update(self.verdicts_without_run)
        schedule.settle(self.verdicts_without_run)
        return schedule

    def _execution(self, schedule: Schedule, judges: Judges) -> Execution:
        handshakes = {job: result for job, result in self.folder.results().items() if job.case == FIRST_CASE}
        for job in self.todo:
            handshakes.pop(job, None)
        return Execution(
            folder=self.folder,
            cases=self.cases,
            deployment=self.deployment,
            schedule=schedule,
            judges=judges,
            retention=self.retention,
            handshakes=handshakes,
        )

    def _lane(self, lane: int, schedule: Schedule, execution: Execution) -> None:
        """Run jobs until no job is left for this lane."""
        try:
            while (job := schedule.next(lane)) is not None:
                result = execution.run(job, lane)
                if result is None:
                    return
                with self._lock:
                    self._results[job] = result
                    schedule.finish(job, result, self.extension.further(job, self._results))
        except (BudgetError, HostRefusedError) as error:  # only this lane's link or host ends: other lanes go on
            self._failure = self._failure or error
        except OSError as error:
            self._fail(self._setup_error(error))
        except BaseException as error:
            self._fail(error)
        finally:
            schedule.release(lane)

    def _setup_error(self, error: OSError) -> SetupError:
        """The sentence for a file or a program that the host refuses, which need not be in the run's folder."""
        why, path = error.strerror or error, self.folder.path
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else str(path)
        if Path(name).is_relative_to(path):
            return SetupError(f"{path} can't be written ({why}): make it writable, then resume the run.")
        return SetupError(f"The host refuses {name} ({why}): change this on the host, then resume the run.")

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stop.set()


def _judges() -> int:
    """The number of judges: half of the CPUs, because jobs need the other half."""
    return max(1, (os.cpu_count() or 1) // 2)


# Ctrl-C and SIGTERM during a campaign.


@contextmanager
def stopping(*works: Campaign) -> Iterator[None]:
    """Inside the context, the first Ctrl-C or SIGTERM ends the campaigns cleanly. A second Ctrl-C raises
    KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is Python's
        # First of all, because a second signal must not call this function again while it holds a campaign's lock.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for work in works:
            work.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
