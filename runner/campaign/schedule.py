"""Decides which job starts next and which jobs may run beside it, when lanes pause, and how long the rest takes."""

import shutil
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.model.deployment import Deployment, Observer, Progress, estimate, waits
from runner.model.result import Outcome, Result
from runner.model.run import Job, Kind, Pause, Run
from runner.places.place import Concurrency
from runner.plan.jobs import FIRST_CASE
from runner.units import MIB, format_size

# Estimates how long the rest of a run takes: the planned seconds of the jobs left, divided by the rate so far.

_PRIOR = 20.0  # seconds: weight of the first guess of a group's rate against the measured rate


class TimeLeft:
    """Groups of jobs, such as measurements and test cases, run at different rates. The rate of a group is the time that
    the plan expected for its finished jobs, divided by the time in which jobs of the group ran. So disturbed attempts,
    slow stacks and changes in the number of lanes change the rate. When jobs of several groups run at the
    same time, this time is divided among all running jobs.
    """

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
        """Seconds until the end of the run. `rate_of`: the first guess of a group's rate; 1 means one job after the
        other."""
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


# Reasons why lanes start no job now: no disk space, a pause of the user, quiet hours of a link.

_ALL_LANES = -1


@dataclass(frozen=True)
class Rest:
    """The reason why a lane starts no job now, as a sentence; empty when the lane may start a job. `new`: the reason
    has changed."""

    reason: str
    new: bool


@dataclass
class Pauses:
    """Decides whether lanes may start jobs. Not thread-safe."""

    folder: Path  # the run's folder: its file system must have space
    deployment: Deployment
    pause: Pause | None = None
    _reported: dict[int, str] = field(default_factory=dict)  # the last reason, by lane

    def look(self, lane: int) -> Rest:
        """The reason that is valid now for `lane`."""
        of_all = lack_of_space(self.folder) or self._paused()
        reasons = {_ALL_LANES: of_all, lane: "" if of_all else self.deployment.resting(lane)}
        new = any(reason and self._reported.get(key) != reason for key, reason in reasons.items())
        self._reported |= reasons
        return Rest(of_all or reasons[lane], new)

    def _paused(self) -> str:
        if self.pause is None or not self.pause.seconds_left():
            return ""
        return f"paused until {self.pause.end:%H:%M}"


# Keeps the queues of jobs, and decides which job starts next and which jobs may run at the same time.

_POLL = 0.2  # seconds between two checks whether a job may start
_WAITING = "waiting"  # the group of the jobs that mostly wait


@dataclass(kw_only=True)
class Schedule:
    """The jobs that are left, the jobs that run, and how many are done. Thread-safe.

    A measurement needs a calmer host than a test case: `width` limits the number of running jobs for each kind. Jobs
    that mostly wait have their own queue and their own limit.
    """

    run: Run
    width: Concurrency
    pauses: Pauses
    observer: Observer
    stopped: threading.Event
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _shared: deque[Job] = field(default_factory=deque)  # jobs for any lane
    _own: defaultdict[int, deque[Job]] = field(default_factory=lambda: defaultdict(deque))  # jobs for one lane, by lane
    _waiting: deque[Job] = field(default_factory=deque)  # jobs that mostly wait, for any lane
    _waiting_cases: frozenset[str] = field(init=False)
    _running: list[Job] = field(default_factory=list)
    _busy: set[int] = field(default_factory=set)  # lanes whose job may still cause further jobs
    _time: TimeLeft = field(init=False)
    _done: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        cases = self.run.cases
        self._waiting_cases = frozenset(name for name in cases if self.width.waiting and waits(cases[name]))
        self._time = TimeLeft({}, self._group)

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs at the end of their queues."""
        with self._changed:
            for job in jobs:
                self._queue_of(job).append(job)
                self._count(job)

    def settle(self, verdicts_without_run: Mapping[Job, Result]) -> None:
        """Note the results of jobs that need no run."""
        self._total += len(verdicts_without_run)
        for job, preset in verdicts_without_run.items():
            self.finish(job, preset)

    def add_first(self, jobs: Sequence[Job]) -> None:
        """Put jobs at the front of their queues."""
        with self._changed:
            for job in reversed(jobs):
                self._queue_of(job).appendleft(job)
                self._count(job)

    def _queue_of(self, job: Job) -> deque[Job]:
        if self._waits(job):
            return self._waiting
        lane = self.pauses.deployment.lane_of(job)
        return self._shared if lane is None else self._own[lane]

    def _count(self, job: Job) -> None:
        self._time.expect(job, estimate((job,), self.run.cases).seconds)
        self._total += 1

    def next(self, lane: int) -> Job | None:
        """Wait until a job may start in `lane`, and return the job. None when no job is left for `lane`."""
        self.release(lane)
        while not self.stopped.is_set():
            with self._changed:
                left = bool(self._own[lane] or self._shared or self._waiting)
                if not left and not self._busy:
                    return None
                job = self._take(self._own[lane] or self._shared) if left and not self._resting(lane) else None
                if job is not None:
                    self._start(job)
                    self._busy.add(lane)
                    return job
                self._changed.wait(_POLL)
        return None

    def release(self, lane: int) -> None:
        """Note that the last job of `lane` causes no further jobs."""
        self._busy.discard(lane)

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
        rest = self.pauses.look(lane)
        if rest.new:
            self.report("paused", message=rest.reason)
        return bool(rest.reason)

    def finish(self, job: Job, result: Result, further: Sequence[Job] = ()) -> None:
        """Note the result of a job, and put the `further` jobs that it caused at the front of their queues."""
        with self._changed:
            self._done += 1
            self.add_first(further)
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
