"""The interface of judges. A judge decides one part of the verdict on a job; `judging` chooses and calls the judges."""

from dataclasses import dataclass
from typing import Protocol

from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import CaseRecord
from testcases.base import Case


@dataclass(frozen=True, kw_only=True)
class JudgedJob:
    """All data that a judge may read."""

    job: Job
    artifacts: Artifacts
    case: Case | None
    """The declaration of the case with its checks. None when the case has no checks, or when it no longer exists."""
    record: CaseRecord


class Judge(Protocol):
    """Decides one part of the verdict."""

    def judge(self, judged: JudgedJob, result: Result) -> Result:
        """`result` with the verdict of this judge. Reads only the job's folder. Raises no error because of files that
        endpoints wrote."""
