"""The events that the campaign loop reports."""

from dataclasses import dataclass
from typing import Protocol

from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import Kind


@dataclass(frozen=True, kw_only=True)
class Progress:
    """An event of the campaign loop. `event`: started, finished, retried or paused."""

    event: str
    done: int
    total: int
    running: tuple[Job, ...]
    lanes: int
    seconds_left: float  # 0: no job is left
    job: Job | None = None
    kind: Kind = Kind.TEST_CASE  # kind of the job's case; TEST_CASE when the event has no job
    result: Result | None = None
    message: str = ""


class Observer(Protocol):
    """A receiver of the events of a campaign."""

    def report(self, progress: Progress) -> None:
        """Receive an event. The threads of all lanes call this method, but never two threads at the same time."""


class Silent:
    """An observer that shows nothing."""

    def report(self, progress: Progress) -> None:
        """Ignore the event."""
