"""The loop over the jobs without a result: run each job in a lane, judge it, store it. Results are saved after every
job."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner.campaign.execution import Execution
from runner.campaign.rests import Rests
from runner.campaign.retention import Retention
from runner.campaign.schedule import Schedule
from runner.campaign.width import Width
from runner.errors import BudgetError, HostRefusedError, SetupError
from runner.files.safe_files import remove_tree
from runner.judge.process import Judges
from runner.model.deployment import Deployment
from runner.model.job import Job
from runner.model.pause import Pause
from runner.model.progress import Observer, Silent
from runner.model.result import Result
from runner.plan.jobs import GATE
from runner.store import RunFolder
from testcases.base import Case

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
    presets: Mapping[Job, Result]  # results of jobs that need no run, see `runs.presets`
    deployment: Deployment
    width: Width
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
            rests=Rests(self.folder.path, self.deployment, self.pause),
            observer=self.observer,
            stopped=self._stop,
            clock=self.clock,
        )
        schedule.add(job for job in self.todo if job not in self.presets)
        for preset in self.presets.values():
            self.folder.save_result(preset)
        self._results.update(self.presets)
        schedule.settle(self.presets)
        return schedule

    def _execution(self, schedule: Schedule, judges: Judges) -> Execution:
        handshakes = {job: result for job, result in self.folder.results().items() if job.case == GATE}
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
