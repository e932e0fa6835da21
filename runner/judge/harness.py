"""The harness's record of a job, and findings about faults of the harness. These findings blame no stack."""

from collections.abc import Iterable
from dataclasses import replace

from runner.judge.disturbance import disturbed
from runner.model.artifacts import Evidence
from runner.model.codes import another_attempt_helps
from runner.model.implementation import Role
from runner.model.result import Finding, LinkTruth, Outcome, Result
from runner.model.run import CaseRecord

NOT_STARTED = {"client-not-started": Role.CLIENT, "server-not-started": Role.SERVER}
"""Code of a lane's error → role whose image the engine could not start, for example because the command does not exist
or the architecture is wrong."""


def with_record(result: Result, evidence: Evidence) -> Result:
    """The result with the times, the clock, the delivery and the real link that the harness recorded."""
    return replace(
        result,
        started_unix_s=evidence.started_unix_s,
        wall_s=evidence.wall_s,
        transfer_s=evidence.transfer_s,
        stages_s=evidence.stages_s,
        cpu_pressure=evidence.cpu_pressure,
        clock="virtual" if evidence.guest else "real",
        guest_speed=evidence.guest.speed if evidence.guest else None,
        host=evidence.host,
        real_link=evidence.real_link,
        delivered=any(file.equal for file in evidence.files),
    )


def harness(code: str, actual: str, role: Role | None = None) -> Finding:
    """A finding against the harness itself. `role`: the endpoint that had too little CPU time, if there is one."""
    return Finding(
        code=code,
        requirement="The harness must run each job without disturbance. No stack is at fault.",
        expected="a valid job",
        actual=actual,
        role=role.value if role is not None else "",
    )


def harness_fault(evidence: Evidence, truths: Iterable[LinkTruth | None], record: CaseRecord) -> Finding | None:
    """The fault of the harness that makes the job invalid; None when there is none. `truths`: the simulator's summary
    of each segment.

    An image that could not be started is no fault of the harness.
    """
    if evidence.error:
        if evidence.error["code"] in NOT_STARTED:
            return None
        fault = harness(evidence.error["code"], evidence.error["message"])
        return replace(fault, log_tail=evidence.error.get("printed", ""))
    for truth, _ in zip(truths, record.link.segments, strict=False):
        if disturbance := disturbed(evidence, truth, record):
            return harness("disturbed", disturbance.why, disturbance.role)
    return None


def incomplete_captures(lack: str) -> Finding | None:
    """The finding when the captures are not the whole record of the job, as `lack` says; None without a lack."""
    return harness("disturbed", lack) if lack else None


def transient(result: Result) -> str | None:
    """Why the job gets another attempt, as part of a sentence; None when another attempt would not help. Errors of the
    harness and disturbances lead to another attempt. Verdicts never do.
    """
    if result.outcome is not Outcome.ERROR or not another_attempt_helps(result.findings[0].code):
        return None
    return result.findings[0].actual
