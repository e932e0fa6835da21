"""The events that the campaign loop reports."""

from dataclasses import dataclass
from typing import Protocol

from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import Kind


@dataclass(frozen=True, kw_only=True)
class Progress:
    """An event of the loop. `event`: started, finished, retried, paused."""

    event: str
    done: int
    total: int
    running: tuple[Job, ...]
    lanes: int
    seconds_left: float  # 0: nothing is left
    job: Job | None = None
    kind: Kind = Kind.TEST_CASE  # time-out of the job's case, in seconds
    result: Result | None = None
    message: str = ""


class Observer(Protocol):
    """A receiver of the events of a campaign."""

    def report(self, progress: Progress) -> None:
        """Take note of an event. Called by the thread of any lane, by one thread at a time."""


class Silent:
    """An observer that shows nothing."""

    def report(self, progress: Progress) -> None:
        """Take no note."""
