"""One case with one peer: the rule for further iterations, and the verdict over all iterations.

When a case with random impairments failed, it runs again with other seeds. The image fails the case when 3
(`HELD`) of at most 5 (`MOST`) iterations fail.
"""

from dataclasses import dataclass
from functools import cached_property

from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.stats import count, rate_text
from testcases.hits import MISSED

# Good stacks failed 5 of 64 jobs of `handshakeloss` and `handshakecorruption`: a client gave up 1 of 50 handshakes.
# With one iteration for each of 8 cells, `./bentpipe check` would reject a good image in half of its runs. A stack that
# fails 1 job in 10 fails 3 of 5 iterations in 1 of 190 cells.
MOST = 5
HELD = 3
TRIES = 3  # after so many iterations without a verdict (missed impairment, harness error), the cell stays undecided


@dataclass(frozen=True)
class Place:
    """The place of a cell in the table of the image under check: case, role of the image, peer."""

    case: str
    role: Role
    peer: str

    @classmethod
    def of(cls, job: Job, stack: str) -> "Place":
        """The place of a job of `stack` with a peer."""
        is_server = job.server == stack
        return cls(job.case, Role.SERVER if is_server else Role.CLIENT, job.client if is_server else job.server)

    def __str__(self) -> str:
        return f"{self.case} as {self.role.value} with {self.peer}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One case with one peer. `results`: the results of the iterations so far, at least one. `random`: True when
    another seed affects other packets."""

    results: tuple[Result, ...]
    random: bool

    @cached_property
    def decided(self) -> tuple[Result, ...]:
        """Iterations that did not end as errors of the harness."""
        return tuple(result for result in self.results if result.outcome is not Outcome.ERROR)

    @cached_property
    def failures(self) -> int:
        return sum(result.outcome is Outcome.FAILED for result in self.decided)

    @property
    def further(self) -> int:
        """The number of iterations to run next. A disturbed job is not run again here, because it already had all its
        attempts.

        All iterations that may be needed start together: in parallel they take as long as one iteration, about a
        minute.
        """
        undecided = [code_of(result) for result in self.results if result.outcome is Outcome.ERROR]
        if len(undecided) >= TRIES:
            return 0
        if not self.decided:
            return int(set(undecided) == {MISSED})
        passes = len(self.decided) - self.failures
        settled = self.failures >= HELD or passes > MOST - HELD
        return MOST - len(self.decided) if self.random and self.failures and not settled else 0

    @cached_property
    def outcome(self) -> Outcome:
        """The outcome over all iterations; an error means that the case could not be decided."""
        if not self.decided:
            return Outcome.ERROR
        if not (self.random and self.failures):
            return self.decided[0].outcome
        if self.failures >= HELD:
            return Outcome.FAILED
        return Outcome.SUCCEEDED if count(self.decided).successes > self.failures else Outcome.ERROR

    @property
    def excused(self) -> bool:
        """True when the case failed, but not more often than chance allows."""
        return self.outcome is Outcome.SUCCEEDED and self.failures > 0

    @property
    def rate(self) -> str:
        """`4/5 succeeded, a rate of 28% to 99% (95 %)`; empty for a single iteration."""
        judged = count(self.decided)
        return rate_text(judged) if judged.attempts > 1 else ""

    @property
    def shown(self) -> Result:
        """The iteration that represents the cell: the first that failed. In an undecided cell, it is the first that
        ended as an error. In a cell without failures, it is the first with the outcome of the cell."""
        reasons = (Outcome.ERROR, Outcome.FAILED) if self.outcome is Outcome.ERROR else (Outcome.FAILED, self.outcome)
        return next(result for reason in reasons for result in self.results if result.outcome is reason)


def code_of(result: Result) -> str:
    """The code of the finding that explains the outcome; empty without a finding."""
    return result.cause.code if result.cause is not None else ""


def by_the_peer(result: Result, role: Role) -> bool:
    """True when the job failed by the fault of the peer of the stack in `role`."""
    return result.culprit not in ("", role.value)
