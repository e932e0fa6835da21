"""The work of one `run`: its stages, and the loop over its jobs: the next job, attempts, verdict, stored result."""

import os
import shutil
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from runner.compare.conditions import unchanged
from runner.compare.stats import median_iteration
from runner.decode.decode import Difference, first_difference
from runner.errors import BentpipeError, BudgetError, HostRefusedError, InterruptedRunError, LaneError, SetupError
from runner.files import compress_logs, remove_tree
from runner.images.setup import consent, prepare
from runner.judge.execution import transient
from runner.judge.process import Judges
from runner.model.result import (
    Artifacts,
    EndpointRecord,
    Evidence,
    Finding,
    JobVerdict,
    Observer,
    Outcome,
    Progress,
    Result,
    Silent,
)
from runner.model.run import REAL, VIRTUAL, Job, Kind, Pause, Retention, Run, estimate, waits
from runner.model.stack import Role
from runner.paths import LOGS
from runner.places.lane_job import Deployment
from runner.places.place import Concurrency, Place, place_of
from runner.plan import jobs as plan
from runner.plan.catalog import Catalog, load_present
from runner.plan.choice import choose
from runner.plan.jobs import FIRST_CASE, handshake_of, prevented, without_run
from runner.plan.options import MatrixOptions
from runner.store import runs
from runner.store.runs import NamedRuns, RunFolder, load_evidence
from runner.terminal.printing import RunWatch, markdown_matrix, print_matrix
from runner.units import MIB, format_count, format_size
from testcases.base import Case

# Estimates how long the rest of a run takes: the planned seconds of the jobs left, divided by the rate so far.

_PRIOR = 20.0  # seconds: weight of the first guess of a group's rate against the measured rate


class TimeLeft:
    """Groups of jobs, such as measurements and test cases, run at different rates. The rate of a group is the time that
    the plan expected for its finished jobs, divided by the time in which jobs of the group ran. So disturbed attempts,
    slow stacks and changes in the number of lanes change the rate. When jobs of several groups run at the
    same time, this time is divided among all running jobs."""

    def __init__(self, expected: Mapping[Job, float], group_of: Callable[[Job], str]) -> None:
        self._group_of = group_of
        self._expected: dict[Job, float] = {}
        self._left: dict[str, float] = defaultdict(float)
        self._done: dict[str, float] = defaultdict(float)
        self._ran: dict[str, float] = defaultdict(float)
        self._now: float | None = None
        for job, seconds in expected.items():
            self.expect(job, seconds)

    def expect(self, job: Job, seconds: float) -> None:
        """Note one more job of the plan."""
        self._expected[job] = seconds
        self._left[self._group_of(job)] += seconds

    def passed(self, now: float, running: Collection[Job]) -> None:
        """Note that these jobs ran until `now`. Call it before any of them begins or ends."""
        if self._now is not None:
            for job in running:
                self._ran[self._group_of(job)] += (now - self._now) / len(running)
        self._now = now

    def finished(self, job: Job, *, ran: bool) -> None:
        """Note that the job is done. `ran` is False when it needed no run."""
        expected, group = self._expected.pop(job, 0.0), self._group_of(job)
        self._left[group] = self._left[group] - expected if self._expected else 0.0
        if ran:
            self._done[group] += expected

    def seconds(self, rate_of: Callable[[str], float]) -> float:
        """Seconds until the end of the run. `rate_of`: first guess of a group's rate; 1: one job after the other."""
        return sum(
            expected * (self._ran[group] + _PRIOR) / (self._done[group] + _PRIOR * rate_of(group))
            for group, expected in self._left.items()
        )


# Checks free disk space before each job. A full disk pauses the run.

LEAST_FREE = 512 * MIB  # bytes; a SAT job with its captures and tables needs about a tenth of this


def lack_of_space(folder: Path) -> str:
    """Why no job can begin now, and the fix; empty when LEAST_FREE bytes are free in the file system of `folder`."""
    if shutil.disk_usage(folder).free >= LEAST_FREE:
        return ""
    return (
        f"paused: less than {format_size(LEAST_FREE)} are free in {folder}. Make space there; the run then "
        "continues by itself. Ctrl-C ends the run; the same command continues it later."
    )


# Keeps the queues of jobs. Decides which job starts next, which jobs may run at the same time, and when lanes pause.

_ALL_LANES = -1
_POLL = 0.2  # seconds between two checks whether a job may start
_WAITING = "waiting"  # the group of the jobs that mostly wait


@dataclass(kw_only=True)
class Schedule:
    """The jobs that are left, the jobs that run, and how many are done. Thread-safe.

    A measurement needs a calmer host than a test case: `width` limits the number of running jobs for each kind. Jobs
    that mostly wait have their own queue and their own limit. Lanes start no job without disk space for `folder`, in a
    `pause` of the user, and while the deployment lets them rest.
    """

    folder: RunFolder
    width: Concurrency
    deployment: Deployment
    pause: Pause | None
    observer: Observer
    stopped: threading.Event
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _shared: deque[Job] = field(default_factory=deque)  # jobs for any lane
    _own: defaultdict[int, deque[Job]] = field(default_factory=lambda: defaultdict(deque))  # jobs for one lane, by lane
    _waiting: deque[Job] = field(default_factory=deque)  # jobs that mostly wait, for any lane
    _waiting_cases: frozenset[str] = field(init=False)
    _running: list[Job] = field(default_factory=list)
    _time: TimeLeft = field(init=False)
    _reported: dict[int, str] = field(default_factory=dict)  # the last reason of a pause, by lane
    _done: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        self.run = self.folder.run
        cases = self.run.cases
        self._waiting_cases = frozenset(name for name in cases if self.width.waiting and waits(cases[name]))
        self._time = TimeLeft({}, self._group)

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs at the end of their queues."""
        with self._changed:
            for job in jobs:
                self._queue_of(job).append(job)
                self._total += 1
                cost = estimate((job,), self.run.cases)
                virtual = self.run.clock_of(job.case_link, job.cell) == VIRTUAL
                self._time.expect(job, cost.guest_seconds if virtual else cost.seconds)

    def settle(self, verdicts_without_run: Mapping[Job, Result]) -> None:
        """Note the results of jobs that need no run."""
        self._total += len(verdicts_without_run)
        for job, preset in verdicts_without_run.items():
            self.finish(job, preset)

    def _queue_of(self, job: Job) -> deque[Job]:
        if self._waits(job):
            return self._waiting
        lane = self.deployment.lane_of(job)
        return self._shared if lane is None else self._own[lane]

    def next(self, lane: int) -> Job | None:
        """Wait until a job may start in `lane`, and return the job. None when no job is left for `lane`."""
        while not self.stopped.is_set():
            with self._changed:
                if not (self._own[lane] or self._shared or self._waiting):
                    return None
                job = None if self._resting(lane) else self._take(self._own[lane] or self._shared)
                if job is not None:
                    self._start(job)
                    return job
                self._changed.wait(_POLL)
        return None

    def start_again(self, job: Job, lane: int) -> bool:
        """Wait until another attempt at `job` may start. Returns False when the campaign was stopped meanwhile."""
        with self._changed:
            while self._resting(lane) or not self._has_room(job):
                if self.stopped.is_set():
                    return False
                self._changed.wait(_POLL)
            self._start(job)
        return True

    def leave(self, job: Job) -> None:
        """Note that `job` no longer runs."""
        with self._changed:
            self._time.passed(self.clock(), self._running)
            self._running.remove(job)
            self._changed.notify_all()

    def _start(self, job: Job) -> None:
        self._time.passed(self.clock(), self._running)
        self._running.append(job)

    def _take(self, queue: deque[Job]) -> Job | None:
        """Remove the first job that may start now from its queue, and return it. None when no job may start.

        A job that must run alone waits until all other jobs have ended; later jobs of the queue may start before it.
        A job that mostly waits starts after all handshakes, because a failed handshake makes it unnecessary. It never
        starts beside a measurement. It doesn't start when a measurement is next in the queue either, because the
        measurement would have to wait for it.
        """
        for job in queue:
            if self._has_room(job):
                queue.remove(job)
                return job
            if not self.width.alone(job, self._kind(job)):
                break
        first = bool(queue) and (queue[0].case == FIRST_CASE or self._kind(queue[0]) is Kind.MEASUREMENT)
        if self._waiting and not first and self._has_room(self._waiting[0]):
            return self._waiting.popleft()
        return None

    def _has_room(self, job: Job) -> bool:
        """True when `job` may run beside the jobs that run now."""
        kind, waiting = self._kind(job), self._waits(job)
        if waiting and any(self._kind(other) is Kind.MEASUREMENT for other in self._running):
            return False
        beside = [other for other in self._running if kind is Kind.MEASUREMENT or self._waits(other) == waiting]
        if waiting:
            return len(beside) < self.width.waiting
        return len(beside) < min(self._lanes_for(other) for other in (job, *beside))

    def _lanes_for(self, job: Job) -> int:
        """The number of jobs that may run when `job` is among them."""
        kind = self._kind(job)
        return 1 if self.width.alone(job, kind) else self.width.of(kind)

    def _waits(self, job: Job) -> bool:
        return job.case_link in self._waiting_cases

    def _kind(self, job: Job) -> Kind:
        return self.run.case(job).kind

    def _resting(self, lane: int) -> bool:
        """True when `lane` starts no job now. Each new reason is reported to the observer."""
        of_all = lack_of_space(self.folder.path)
        if not of_all and self.pause is not None and self.pause.seconds_left():
            of_all = f"paused until {self.pause.end:%H:%M}"
        reasons = {_ALL_LANES: of_all, lane: "" if of_all else self.deployment.resting(lane)}
        reason = of_all or reasons[lane]
        if any(why and self._reported.get(key) != why for key, why in reasons.items()):
            self.report("paused", message=reason)
        self._reported |= reasons
        return bool(reason)

    def finish(self, job: Job, result: Result) -> None:
        """Note the result of a job."""
        with self._changed:
            self._done += 1
            self._time.finished(job, ran=result.outcome is not Outcome.SKIPPED)
            self.report("finished", job, result)

    def report(self, event: str, job: Job | None = None, result: Result | None = None, message: str = "") -> None:
        """Report an event (see Progress) to the observer, with the running jobs and the time left."""
        with self._changed:
            kind = Kind.TEST_CASE if job is None else self._kind(job)
            self.observer.report(
                Progress(
                    event=event,
                    done=self._done,
                    total=self._total,
                    running=tuple(self._running),
                    lanes=self.width.of(kind),
                    seconds_left=self._time.seconds(self._first_rate),
                    job=job,
                    kind=kind,
                    result=result,
                    message=message,
                )
            )

    def _group(self, job: Job) -> str:
        return _WAITING if self._waits(job) else self._kind(job)

    def _first_rate(self, group: str) -> float:
        """The first guess of how many lanes a group of jobs has. When the number of lanes adapts, the guess is half of
        the open lanes, because lanes may be closed again."""
        lanes = self.width.waiting if group == _WAITING else self.width.of(Kind(group))
        return max(1.0, lanes / 2) if self.width.adaptive else lanes


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
    for result in results.values():
        failed = result.outcome in (Outcome.FAILED, Outcome.ERROR)
        keep = policy is not Retention.NONE and (failed or result.iteration == median)
        if keep or not result.captures_kept:
            continue
        folder.remove_captures(result)


# One job from its start to its stored result: attempts in a lane, the verdict, retention.

MAX_ATTEMPTS = 3  # attempts at a job that is disturbed or fails because of the harness, including the first attempt


@dataclass(kw_only=True)
class Execution:
    """Runs jobs, repeats disturbed attempts, and stores the results. Thread-safe."""

    schedule: Schedule
    cases: Mapping[str, Case]
    judges: Judges
    retention: Retention
    handshakes: dict[Job, Result] = field(default_factory=dict)  # handshakes with results, also of earlier calls

    def __post_init__(self) -> None:
        self.folder = self.schedule.folder

    def run(self, job: Job, lane: int) -> Result | None:
        """Run a job that the schedule has started, and store its result. Returns None when the campaign was stopped.
        When the disk is full, the job waits for space and runs again."""
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
        began, cpu = clock(), time.thread_time()
        try:
            result = self._judge_attempt(job) if self._run_attempt(job, attempt) else None
        finally:
            self.schedule.leave(job)
        if result is None:
            return None
        wall = clock() - began
        spent = result.cpu_s + time.thread_time() - cpu
        return replace(result, wall_s=wall, overhead_s=wall - result.transfer_s, cpu_s=spent)

    def _run_attempt(self, job: Job, attempt: int) -> bool:
        """Run the job and put its artifacts in its folder. False when the campaign was stopped meanwhile."""
        clock = self.schedule.clock
        began = clock()
        inside = Path(".partial") / "-".join(job.path.parts)
        remove_tree(self.folder.path, inside)
        partial = self.folder.path / inside
        partial.mkdir(parents=True)
        try:
            self.schedule.deployment.run(job, partial, attempt=attempt)
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
        try:
            return self.judges.judged(job, artifacts, case, self.folder.run.case(job))
        except (BentpipeError, OSError):
            raise
        except Exception as error:  # a bug of bentpipe must end only one job, not the whole campaign
            finding = Finding(
                code="judge-failed",
                requirement="The judge reads every job's folder.",
                expected="a verdict",
                actual=f"{type(error).__name__}: {error}",
            )
            return Result.of(job, Outcome.ERROR, finding)


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


# The loop over the jobs without a result: run each job in a lane, judge it, store it. Results are saved after every
# job.


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
    clock: Callable[[], float] = time.monotonic
    _stop: threading.Event = field(default_factory=threading.Event)
    _results: dict[Job, Result] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failure: BaseException | None = None

    def stop(self) -> None:
        """End soon: no new job starts, running jobs end without a result. A signal handler may call it."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def execute(self) -> dict[Job, Result]:
        """Run all jobs that are left. Returns the results of this call. Raises the error that ended a lane."""
        schedule = self._schedule()
        remove_tree(self.folder.path, ".partial")
        half = max(1, (os.cpu_count() or 1) // 2)  # jobs need the other CPUs
        with Judges(min(self.width.all, half), stopped=self._stop.is_set) as judges:
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
            folder=self.folder,
            width=self.width,
            deployment=self.deployment,
            pause=self.pause,
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
        before = {handshake_of(job) for job in self.todo} - set(self.todo)
        handshakes = {job: result for job in before if (result := self.folder.result(job)) is not None}
        return Execution(
            schedule=schedule,
            cases=self.cases,
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
                    schedule.finish(job, result)
        except (BudgetError, HostRefusedError) as error:  # only this lane's link or host ends: other lanes go on
            self._failure = self._failure or error
        except OSError as error:
            self._fail(self._setup_error(error))
        except BaseException as error:
            self._fail(error)

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


# Ctrl-C and SIGTERM during a campaign.


@contextmanager
def stopping(*works: Campaign) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the campaigns cleanly. A second Ctrl-C raises KeyboardInterrupt."""

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


# Takes over results of an earlier run into a new run, for jobs whose images, case and link have not changed.


def take_over(folder: RunFolder, source: RunFolder) -> int:
    """Copy results of `source` into `folder`, for jobs without a result whose images, case and link are unchanged.
    Returns the number of copied results; it is 0 when the runs differ in a condition such as host, clock or order.
    Files are hard links where the file system allows it; `result.json` is a new file that names the run in which the
    job ran."""
    taken = list(unchanged(folder.run, source, frozenset(folder.verdicts())))
    for job, result in taken:
        artifacts = folder.artifacts(job)
        shutil.rmtree(artifacts.folder, ignore_errors=True)  # the folder of a job that was interrupted
        shutil.copytree(source.artifacts(job).folder, artifacts.folder, copy_function=_link)
        artifacts.result.unlink()
        folder.save_result(replace(result, reused_from=result.reused_from or source.name))
    return len(taken)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


# Compares the packets of two runs with the same jobs and the same seed, and finds the first packet that differs.


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A job that both runs have. `same` is None when one run has no hashes of it, such as after an error."""

    job: Job
    same: bool | None
    difference: Difference | None = None  # None also when the captures are not kept


def again(options: MatrixOptions, run: Run) -> MatrixOptions:
    """The options for a second run with the jobs and the seed of `run`."""
    options = replace(options, name=f"{options.name}-again", seed=run.seed, clock=run.clock, yes=True)
    if options.selects:
        return options
    most = max(job.iteration for job in run.order)
    cases = tuple(dict.fromkeys(record.declared or record.case for record in run.cases.values()))
    return replace(options, servers=run.servers, clients=run.clients, cases=cases, iterations=most)


def compare_packets(before: RunFolder, after: RunFolder) -> Iterator[Repeat]:
    """Compare every job that ran in both runs, in the order of `before`."""
    done, again = before.results(), after.results()
    for job in before.run.order:
        folders = before.artifacts(job), after.artifacts(job)
        if job in done and job in again and all(folder.evidence.is_file() for folder in folders):
            yield compare_job(job, *folders)


def compare_job(job: Job, before: Artifacts, after: Artifacts) -> Repeat:
    """Compare one job by the hashes of its captures. When the hashes differ, compare the packets of the captures."""
    first, second = (packet_hashes(load_evidence(folder)) for folder in (before, after))
    if not first or not second:
        return Repeat(job=job, same=None)
    if first == second:
        return Repeat(job=job, same=True)
    captures = {
        "client": (before.client_capture, after.client_capture),
        "server": (before.server_capture, after.server_capture),
    }
    differences = [
        difference
        for side, paths in captures.items()
        if all(path.is_file() for path in paths) and (difference := first_difference(side, *paths)) is not None
    ]
    return Repeat(
        job=job, same=False, difference=min(differences, key=lambda difference: difference.time, default=None)
    )


def packet_hashes(evidence: Evidence | None) -> dict[str, str]:
    """SHA-256 of the capture of each endpoint, by role; empty for a job in real time."""
    return evidence.guest.captures if evidence is not None and evidence.guest is not None else {}


def sentences(repeats: Sequence[Repeat]) -> Iterator[str]:
    """How many jobs had the same packets twice and, for each job with other packets, the first packet that differs."""
    known = [repeat for repeat in repeats if repeat.same is not None]
    yield f"{sum(repeat.same is True for repeat in known)} of {len(known)} jobs had the same packets in both runs."
    if len(known) < len(repeats):
        yield f"{len(repeats) - len(known)} more jobs can't be compared: captures of one of the two runs are missing."
    for repeat in known:
        if repeat.same is False:
            yield f"{repeat.job}: {_sentence(repeat.difference)}"


def _sentence(difference: Difference | None) -> str:
    if difference is None:
        return "the packets differ; its captures, which would show the difference, were not kept"
    where = f"packet {difference.number} at the {difference.side}, {difference.time:.6f} s after the first"
    return f"{where}: {difference.what}"


# The stages of `run` in their order: set-up, plan, probe, lanes, loop.


def run_matrix(options: MatrixOptions, named: NamedRuns, *, out: Console, err: Console) -> dict[Job, JobVerdict]:
    """Run the selected jobs without a result. `named`: their runs. Returns all verdicts of the selection."""
    say = partial(out.print, soft_wrap=True, markup=False)
    stored, source = named.stored, named.source
    clock = plan.chosen_clock(options.clock, stored)
    guest = plan.guest_of_run(clock, options.cpu_model, stored)
    plan.refuse_contradictions(options, clock)
    catalog = load_present(options.implementations, options.rootless, options.images)
    selection = choose(options, catalog, stored.run if stored else None)
    for sentence in selection.doubts:
        out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)

    def place_for(clock: str) -> Place:
        local = place_of(clock, links=selection.real, say=say, saved=catalog.saved)
        if options.on is None:
            return local
        from runner.places.workers.workers import WorkerPlace  # noqa: PLC0415 - it needs Dask: optional, slow to import

        return WorkerPlace.at(local, options.on, spread=options.spread, store=options.store)

    place = place_for(clock)
    place.refuse(selection)
    place.width(options.lanes)
    load = "" if selection.real else plan.busy(clock)
    new_run = plan.new_run(
        named.path,
        selection,
        clock=clock,
        guest=guest,
        busy_host=bool(load),
        seed=source.run.seed if source is not None and options.seed is None else options.seed,
        shuffled=options.shuffle,
    )
    if size := plan.large(new_run, stored, selection.catalog, options):
        say(size)
        if not consent(err, options.yes)("Start them?"):
            raise InterruptedRunError("Nothing was started.")
    images = prepare(
        selection.images_of,
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=clock != REAL,
        saved=catalog.saved,
    )
    new_run = replace(images.recorded_in(new_run), started_unix_s=time.time())
    with named.opened(new_run, seed=options.seed, widens=options.selects) as (folder, jobs):
        if source is not None:
            reused = take_over(folder, source)
            say(f"{reused} results of {named.source_name} are taken over, because nothing changed for them.")
        verdicts = folder.verdicts()
        todo = plan.remaining(jobs, verdicts, frozenset(map(Outcome, options.retry)))
        say(plan.announcement(folder, jobs, todo, selection.catalog, options.keep_captures))
        if load:
            say(load)
        for name, part in folder.run.parts_by_clock(todo):
            if len(part) < len(todo):
                say(f"{format_count(len(part), 'job')} in {name} time:")
            there = place if name == clock else place_for(name)
            _execute(folder, selection.catalog, part, there, options=options, out=out)
    verdicts |= {job: result for job in todo if (result := folder.result(job)) is not None}
    verdicts = {job: verdicts[job] for job in jobs if job in verdicts}
    if options.markdown:
        print(markdown_matrix(verdicts, folder.run))
    else:
        print_matrix(out, verdicts, folder.run)
    return verdicts


def _execute(
    folder: RunFolder, catalog: Catalog, todo: tuple[Job, ...], place: Place, *, options: MatrixOptions, out: Console
) -> None:
    """Run the jobs at the place. After an interruption, the error names the command that resumes the run."""
    how = f"To go on: ./bentpipe run --run {folder.name if folder.path.parent == LOGS else folder.path}"
    with place.open(folder.run, place.width(options.lanes)):
        not_compliant = place.probe(folder.run, folder.path / "compliance.json", todo)
        with RunWatch(out) as watch:
            for (name, role), reason in not_compliant.items():
                out.print(f"[yellow]{name} as {role.value} does not keep the contract: {reason}[/yellow]")
            work = Campaign(
                folder=folder,
                cases=catalog.cases,
                todo=todo,
                verdicts_without_run=plan.verdicts_without_run(catalog, todo, not_compliant),
                deployment=place.deployment(folder.run),
                width=place.width(options.lanes),  # of the open place: workers know their number only then
                retention=Retention(options.keep_captures),
                observer=watch,
                pause=options.pause,
            )
            try:
                with stopping(work):
                    results = work.execute()
            except (BudgetError, SetupError) as error:
                raise type(error)(f"{error} {how}") from error
            if work.stopped:
                raise InterruptedRunError(f"Stopped after {len(results)} of {len(work.todo)} jobs. {how}")
