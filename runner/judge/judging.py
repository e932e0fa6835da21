"""Judges one job with a list of judges. The topology and the case decide which judges are in the list."""

from collections.abc import Iterator

from runner import store
from runner.judge.analyse import EndpointJudge
from runner.judge.beside import BesideJudge
from runner.judge.crossing.crossing_judge import CrossingJudge
from runner.judge.judge import Judge, JudgedJob
from runner.judge.load import LoadJudge
from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, ClientKind
from testcases.base import Case


def judges_for(job: Job, record: CaseRecord) -> Iterator[Judge]:
    """The judges of a job, in order."""
    yield EndpointJudge() if record.client is ClientKind.STACK else LoadJudge()
    if job.via or len(record.link.segments) > 1:
        yield CrossingJudge()
    if record.beside:
        yield BesideJudge()


def judge_job(job: Job, artifacts: Artifacts, case: Case | None, record: CaseRecord) -> Result:
    """Judge one job. Writes `series.json` and the tables beside the captures; the result is returned, not stored."""
    judged = JudgedJob(job=job, artifacts=artifacts, case=case, record=record)
    result = Result.of(job, Outcome.SUCCEEDED)
    for judge in judges_for(job, record):
        result = judge.judge(judged, result)
    return result


def can_judge(artifacts: Artifacts, case: Case | None, record: CaseRecord) -> bool:
    """True when the files of the job suffice for a verdict. Downloads, page loads and jobs with a second flow need
    their captures, because tables exist only for stacks."""
    if store.load_evidence(artifacts) is None:
        return False
    if record.client is ClientKind.STACK and case is None:
        return False
    if record.client is not ClientKind.STACK or record.beside:
        return artifacts.link_captures[0].is_file()
    return True
