"""How long the rest of a run takes: what the plan expects, at the rate at which the run has got through it so far."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from runner.model.job import Job

_PRIOR = 20.0  # seconds: what the first guess of a group's rate weighs beside what was seen of it


class TimeLeft:
    """Jobs come in groups that run at rates of their own, such as numbers and verdicts. A rate is the seconds that the
    plan expects of the jobs that are done, per second in which jobs of the group ran; so disturbed attempts, slow
    stacks and lanes that opened or closed are in it. Where several groups run at once, each has its share of the time.
    """

    def __init__(self, expected: Mapping[Job, float], group_of: Callable[[Job], str]) -> None:
        self._expected = dict(expected)
        self._group_of = group_of
        self._done: dict[str, float] = defaultdict(float)
        self._ran: dict[str, float] = defaultdict(float)
        self._now: float | None = None

    def expect(self, job: Job, seconds: float) -> None:
        """Say that the plan has one more job."""
        self._expected[job] = seconds

    def passed(self, now: float, running: Collection[Job]) -> None:
        """Say that these jobs ran until `now`; before any of them begins or ends."""
        if self._now is not None:
            for job in running:
                self._ran[self._group_of(job)] += (now - self._now) / len(running)
        self._now = now

    def finished(self, job: Job, *, ran: bool) -> None:
        """The job is done; not `ran`: nobody had to run it."""
        expected = self._expected.pop(job, 0.0)
        if ran:
            self._done[self._group_of(job)] += expected

    def seconds(self, rate_of: Callable[[str], float]) -> float:
        """Until the end. `rate_of`: the first guess of a group's rate, for jobs one by one 1."""
        left: dict[str, float] = defaultdict(float)
        for job, expected in self._expected.items():
            left[self._group_of(job)] += expected
        return sum(
            expected * (self._ran[group] + _PRIOR) / (self._done[group] + _PRIOR * rate_of(group))
            for group, expected in left.items()
        )
