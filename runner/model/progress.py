"""What the campaign loop reports while it works."""

from dataclasses import dataclass

from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import Kind


@dataclass(frozen=True, kw_only=True)
class Progress:
    """An event of the loop. `event`: started, finished, retried, paused, width."""

    event: str
    done: int
    total: int
    running: tuple[Job, ...]
    lanes: int
    seconds_left: float  # 0: nothing is left
    job: Job | None = None
    kind: Kind = Kind.TEST_CASE  # of the job's case
    result: Result | None = None
    message: str = ""
