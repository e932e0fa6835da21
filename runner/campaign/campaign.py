"""The loop: plan − done → lanes → collect → analyse → store, saved after every job, for as many lanes as are fit."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from runner import store
from runner.campaign.retention import Retention, apply_retention
from runner.campaign.space import lack_of_space
from runner.campaign.time_left import TimeLeft
from runner.campaign.width import Width
from runner.errors import BentpipeError, BudgetError, HostRefusedError, LaneError, SetupError
from runner.files.compressed import compress_logs
from runner.files.safe_files import remove_tree
from runner.judge.analyse import transient
from runner.judge.judging import judge_job
from runner.judge.limits import Limits
from runner.judge.process import AnalysisLimitError, Judges, StoppedError, over_the_limit
from runner.model.artifacts import Artifacts, EndpointRecord, Evidence
from runner.model.estimate import estimate, waits
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.pause import Pause
from runner.model.progress import Progress
from runner.model.result import Finding, Outcome, Result
from runner.model.run import Kind
from runner.plan.jobs import GATE, gated
from runner.plan.runs import without_run
from runner.store import RunFolder

MAX_ATTEMPTS = 3  # of a job that was disturbed or that the harness spoiled, the first one included
_WAIT = 0.2  # seconds between looks at events
_WAITING = "waiting"  # the group of the jobs that mostly wait


class Deployment(Protocol):
    """Where jobs run: lanes, real links, or the replay of recorded jobs."""

    def run(self, job: Job, folder: Path, *, attempt: int) -> object:
        """Run `job`, leave its artifacts and at last `evidence.json` in `folder`. Raises LaneError when it can't."""

    def stop(self) -> None:
        """Make running jobs end soon; may be called from another thread."""


@dataclass(kw_only=True)
class Campaign:
    """The work of one call: jobs of a run that are still to do. Thread-safe where it says so."""

    folder: RunFolder
    cases: Mapping[str, Any]  # what the judge is given of a job's case
    todo: tuple[Job, ...]
    presets: Mapping[Job, Result]  # verdicts that need no run: declared unsupported
    deployment: Deployment
    width: Width
    retention: Retention
    watch: Callable[[Progress], None]
    pause: Pause | None = None
    lane_of: Callable[[Job], int] | None = None  # None: any lane takes any job
    more: Callable[[Job, Mapping[Job, Result]], Sequence[Job]] | None = None  # what a result, with others, lets one ask
    quiet: Callable[[int], str] = lambda _: ""  # why a lane begins no job now, until when; empty: it may
    clock: Callable[[], float] = time.monotonic
    _stop: threading.Event = field(default_factory=threading.Event)
    _state: threading.Condition = field(default_factory=threading.Condition)
    _running: list[Job] = field(default_factory=list)
    _gates: dict[Job, Result] = field(default_factory=dict)  # handshakes that were judged, in earlier calls too
    _done: int = 0
    _total: int = 0
    _busy: set[int] = field(default_factory=set)  # lanes whose job may give reason to ask more
    _time: TimeLeft = field(init=False)
    _failure: BaseException | None = None
    _told: dict[int, str] = field(default_factory=dict)  # why each lane rests, as was told
    _waiting: deque[Job] = field(default_factory=deque)  # jobs that mostly wait, where there is room of their own
    _waiting_cases: frozenset[str] = frozenset()

    def stop(self) -> None:
        """End soon: no new job starts, running ones are given up and stay undone. Callable from a signal handler."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def execute(self) -> dict[Job, Result]:
        """Run everything that is left. Returns the results of this call; raises what a lane could not survive."""
        results: dict[Job, Result] = {}
        records = self.folder.run.cases
        expected = {job: self._expected(job) for job in self.todo if job not in self.presets}
        self._time = TimeLeft(expected, self._group)
        self._total = len(self.todo)
        self._waiting_cases = frozenset(name for name in records if self.width.waiting and waits(records[name]))
        again = set(self.todo)
        self._gates = {
            job: result for job, result in self.folder.results().items() if job.case == GATE and job not in again
        }
        for job, preset in self.presets.items():
            self.folder.save_result(preset)
            results[job] = preset
            self._done += 1
            self._tell("finished", job, preset)
        works = self._queues()
        remove_tree(self.folder.path, ".partial")
        with Judges(min(self.width.all, _judges()), stopped=self._stop.is_set) as judge:
            lanes = [
                threading.Thread(target=self._lane, args=(number, works[number], judge, results), name=f"lane-{number}")
                for number in range(self.width.all)
            ]
            for lane in lanes:
                lane.start()
            while any(lane.is_alive() for lane in lanes):
                if self._stop.wait(_WAIT):
                    self.deployment.stop()
                    break
            for lane in lanes:
                lane.join()
        remove_tree(self.folder.path, ".partial")
        if self._failure is not None:
            raise self._failure
        return results

    def _queues(self) -> list[deque[Job]]:
        """Per lane, its queue of jobs: one for all, unless each job has a lane of its own."""
        shared: deque[Job] = deque()
        works = [deque() if self.lane_of else shared for _ in range(self.width.all)]
        for job in self.todo:
            if job not in self.presets:
                work = works[self.lane_of(job) if self.lane_of else 0]
                (self._waiting if self._waits(job) else work).append(job)
        return works

    def _lane(self, number: int, work: deque[Job], judge: Judges, results: dict[Job, Result]) -> None:
        try:
            while (job := self._next(number, work)) is not None:
                result = self._job_with_space(job, judge, number)
                if result is None:
                    return
                with self._state:
                    results[job] = result
                    if job.case == GATE:
                        self._gates[job] = result
                    self._done += 1
                    self._ask_more(job, work, results)
                self._tell("finished", job, result)
        except (BudgetError, HostRefusedError) as error:  # of this lane's link: the others go on
            self._failure = self._failure or error
        except OSError as error:
            why = error.strerror or error
            self._fail(SetupError(f"{self.folder.path} can't be written ({why}): mend that, then resume the run."))
        except BaseException as error:
            self._fail(error)
        finally:
            self._busy.discard(number)

    def _ask_more(self, job: Job, work: deque[Job], results: Mapping[Job, Result]) -> None:
        """Put what the result of `job` gives reason to ask before all that is left."""
        for one in reversed(self.more(job, results) if self.more is not None else ()):
            (self._waiting if self._waits(one) else work).appendleft(one)
            self._time.expect(one, self._expected(one))
            self._total += 1

    def _expected(self, job: Job) -> float:
        return estimate((job,), self.folder.run.cases).seconds

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stop.set()

    def _next(self, number: int, work: deque[Job]) -> Job | None:
        """Wait until the next job may run beside those that do. None when nothing is left to start."""
        self._busy.discard(number)
        while not self._stop.is_set():
            with self._state:
                left = bool(work or self._waiting)
                if not left and not (self.more is not None and self._busy):
                    return None
                job = self._first(work) if left and not self._rests(number) else None
                if job is not None:
                    self._begin(job)
                    self._busy.add(number)
                    return job
                self._state.wait(_WAIT)
        return None

    def _first(self, work: deque[Job]) -> Job | None:
        """The first job that has room; who must run alone lets others pass. One that mostly waits does so after all
        handshakes, which may spare it, and not beside a measurement, nor when one is next, which would wait for it."""
        for job in work:
            if self._room_for(job):
                work.remove(job)
                return job
            if not self.width.alone(job, self._kind(job)):
                break
        first = bool(work) and (work[0].case == GATE or self._kind(work[0]) is Kind.MEASUREMENT)
        if self._waiting and not first and self._room_for(self._waiting[0]):
            return self._waiting.popleft()
        return None

    def _room_for(self, job: Job) -> bool:
        kind, waiting = self._kind(job), self._waits(job)
        if waiting and any(self._kind(other) is Kind.MEASUREMENT for other in self._running):
            return False
        beside = [one for one in self._running if kind is Kind.MEASUREMENT or self._waits(one) == waiting]
        if waiting:
            return len(beside) < self.width.waiting
        return len(beside) < min(self._lanes_for(one) for one in (job, *beside))

    def _lanes_for(self, job: Job) -> int:
        """How many jobs may run when this is one of them."""
        kind = self._kind(job)
        return 1 if self.width.alone(job, kind) else self.width.of(kind)

    def _waits(self, job: Job) -> bool:
        return job.case_link in self._waiting_cases

    def _kind(self, job: Job) -> Kind:
        return self.folder.run.case(job).kind

    def _rests(self, number: int) -> bool:
        """True when the lane begins no job now: for want of disk space, or in these hours.

        The user is told the reason at the first time, and when it changes.
        """
        pause = self.pause is not None and self.pause.seconds_left() > 0
        why = lack_of_space(self.folder.path)
        if not why and self.pause is not None and pause:
            why = f"paused until {self.pause.end:%H:%M}"
        teller = 0 if why else number  # these two reasons hold for all lanes
        why = why or self.quiet(number)
        if why and self._told.get(teller) != why:
            self._tell("paused", message=why)
        self._told[teller] = why
        return bool(why)

    def _job_with_space(self, job: Job, judge: Judges, number: int) -> Result | None:
        """Run one job until it counts; what a full disk has spoiled doesn't. None when the campaign was stopped."""
        while True:
            try:
                return self._job(job, judge, number)
            except OSError:  # of files and tables; not all of them carry a number
                if not lack_of_space(self.folder.path):
                    raise
            remove_tree(self.folder.path, self.folder.run.folder(job))
            if not self._begin_again(job, number):
                return None

    def _begin_again(self, job: Job, number: int) -> bool:
        """Wait until there is room for another attempt: lanes beyond the present width would disturb it again. False
        when the campaign was stopped meanwhile."""
        with self._state:
            while self._rests(number) or not self._room_for(job):
                if self._stop.is_set():
                    return False
                self._state.wait(_WAIT)
            self._begin(job)
        return True

    def _job(self, job: Job, judge: Judges, number: int) -> Result | None:
        """Run one job until it counts. None when the campaign was stopped meanwhile."""
        if refusal := gated(job, self._gates):
            self._leave(job)
            skipped = without_run(job, Outcome.SKIPPED, refusal)
            self.folder.save_result(skipped)
            return skipped
        disturbances: list[str] = []
        printed: list[str] = []
        while True:
            result = self._timed_attempt(job, len(disturbances) + 1, judge, number)
            if result is None:
                return None
            result = replace(result, attempts=len(disturbances) + 1, disturbed=tuple(disturbances))
            self.width.learn(result, self._kind(job))
            reason = transient(result)
            if reason is None or result.attempts == MAX_ATTEMPTS:
                break
            disturbances.append(reason)
            printed.append(f"== attempt {result.attempts} ==\n{reason}\n{result.findings[0].log_tail}\n")
            self._tell("retried", job, result, message=reason)
        if printed:
            self.folder.artifacts(job).attempts_log.write_text("".join(printed))
        self.folder.save_result(result)
        for role in Role:
            compress_logs(self.folder.artifacts(job).folder / role.value / "qlog")
        apply_retention(self.folder, job, self.retention)
        return result

    def _timed_attempt(self, job: Job, attempt: int, judge: Judges, number: int) -> Result | None:
        if attempt > 1 and not self._begin_again(job, number):
            return None
        self._tell("started", job)
        try:
            return self._attempt(job, attempt, judge)
        finally:
            self._leave(job)

    def _leave(self, job: Job) -> None:
        """The job's place is free."""
        with self._state:
            self._time.passed(self.clock(), self._running)
            self._running.remove(job)
            self._state.notify_all()

    def _begin(self, job: Job) -> None:
        self._time.passed(self.clock(), self._running)
        self._running.append(job)

    def _attempt(self, job: Job, attempt: int, judge: Judges) -> Result | None:
        began = self.clock()
        inside = Path(".partial") / "-".join(job.path.parts)
        remove_tree(self.folder.path, inside)
        partial = self.folder.path / inside
        partial.mkdir(parents=True)
        try:
            self.deployment.run(job, partial, attempt=attempt)
        except LaneError as error:
            wall = self.clock() - began
            store.save_evidence(Artifacts(partial), _lost(error, time.time() - wall, wall))
        if self._stop.is_set():
            return None
        final = self.folder.artifacts(job)
        remove_tree(self.folder.path, self.folder.run.folder(job))
        final.folder.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(final.folder)
        record = self.folder.run.case(job)
        limits = Limits.of(final)
        try:
            result: Result = judge.call(limits, judge_job, job, final, self.cases.get(job.case), record)
        except StoppedError:
            return None
        except AnalysisLimitError as error:
            result = over_the_limit(job, final, limits, error)
        except (BentpipeError, OSError):
            raise
        except Exception as error:  # a fault of ours must cost one job, not the night
            result = _judge_failed(job, error)
        wall = self.clock() - began
        return replace(result, wall_s=wall, overhead_s=wall - result.transfer_s)

    def _tell(self, event: str, job: Job | None = None, result: Result | None = None, message: str = "") -> None:
        with self._state:
            if event == "finished" and job is not None:
                self._time.finished(job, ran=result is not None and result.outcome is not Outcome.SKIPPED)
            kind = Kind.TEST_CASE if job is None else self._kind(job)
            lanes = self.width.of(kind)
            progress = Progress(
                event=event,
                done=self._done,
                total=self._total,
                running=tuple(self._running),
                lanes=lanes,
                seconds_left=self._time.seconds(self._first_rate),
                job=job,
                kind=kind,
                result=result,
                message=message,
            )
            self.watch(progress)

    def _group(self, job: Job) -> str:
        return _WAITING if self._waits(job) else self._kind(job)

    def _first_rate(self, group: str) -> float:
        """Lanes that a group of jobs is to have. Of those that open on their own half are taken for closed again."""
        lanes = self.width.waiting if group == _WAITING else self.width.of(Kind(group))
        return max(1.0, lanes / 2) if self.width.adaptive else lanes


def _judges() -> int:
    """How many judges pay: as many as half of the CPUs, for the jobs need theirs."""
    return max(1, (os.cpu_count() or 1) // 2)


def _lost(error: LaneError, started: float, wall: float) -> Evidence:
    nobody = EndpointRecord(image="", image_id="")
    return Evidence(
        started_unix_s=started,
        wall_s=wall,
        transfer_s=0.0,
        stages_s={},
        client=nobody,
        server=nobody,
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
