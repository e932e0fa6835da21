"""Estimates how long the rest of a run takes: the planned seconds of the jobs left, divided by the rate so far."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from runner.model.job import Job

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
