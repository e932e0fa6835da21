"""The verdict on one job: a list of judges, chosen by the topology and the case."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from runner import store
from runner.decode import embed_secrets
from runner.judge.analyse import analyse
from runner.judge.crossing.crossing_judge import crossing_verdict
from runner.judge.load import load_verdict
from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, ClientKind
from testcases.base import Case


@dataclass(frozen=True, kw_only=True)
class JudgedJob:
    """What a judge may look at. `case`: the declaration, None for one that has no checks or is gone."""

    job: Job
    artifacts: Artifacts
    case: Case | None
    record: CaseRecord


class Judge(Protocol):
    """One part of the verdict."""

    def judge(self, of: JudgedJob, result: Result) -> Result:
        """`result` with what this judge says. Offline: it reads the job's folder and nothing else."""


class EndpointJudge:
    """Harness, checks of the case, invariants and numbers, from the packets of both ends."""

    def judge(self, of: JudgedJob, result: Result) -> Result:  # noqa: ARG002 - it is the first
        """A new result. The captures then open with their secrets."""
        assert of.case is not None, "stacks are asked declared cases"
        for capture in (of.artifacts.client_capture, of.artifacts.server_capture):
            embed_secrets(capture, of.artifacts.key_logs)
        return analyse(of.job, of.artifacts, of.case, of.record)


class LoadJudge:
    """Harness, files, objects and times of a download or a page load."""

    def judge(self, of: JudgedJob, result: Result) -> Result:
        """The result with its sample."""
        return load_verdict(of.artifacts, of.record, result)


class CrossingJudge:
    """How the traffic crossed the satellite link, and what an eavesdropper sees."""

    def judge(self, of: JudgedJob, result: Result) -> Result:
        """The result with its crossing; an error where the middlebox did not carry what it should."""
        return crossing_verdict(of.artifacts, of.record, result)


def judges_for(job: Job, record: CaseRecord) -> Iterator[Judge]:
    """The judges of a job, in order."""
    yield EndpointJudge() if record.client is ClientKind.STACK else LoadJudge()
    if job.via or len(record.link.segments) > 1:
        yield CrossingJudge()


def judge_job(job: Job, artifacts: Artifacts, case: Case | None, record: CaseRecord) -> Result:
    """Judge one job. Writes `series.json` and the tables beside the captures; the result is returned, not stored."""
    of = JudgedJob(job=job, artifacts=artifacts, case=case, record=record)
    result = Result.of(job, Outcome.SUCCEEDED)
    for judge in judges_for(job, record):
        result = judge.judge(of, result)
    return result


def can_judge(artifacts: Artifacts, case: Case | None, record: CaseRecord) -> bool:
    """Whether enough is left of a job for a verdict: of what crosses boxes no tables are kept, only captures."""
    if store.load_evidence(artifacts) is None:
        return False
    return artifacts.link_captures[0].is_file() if record.client is not ClientKind.STACK else case is not None
