"""One job from its start to its stored result: attempts in a lane, the verdict, retention."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner import store
from runner.campaign.retention import Retention, apply_retention
from runner.campaign.schedule import Schedule
from runner.campaign.space import lack_of_space
from runner.errors import BentpipeError, LaneError
from runner.files.compressed import compress_logs
from runner.files.safe_files import remove_tree
from runner.judge.harness import transient
from runner.judge.judging import judge_job
from runner.judge.limits import Limits
from runner.judge.process import AnalysisLimitError, Judges, StoppedError, over_the_limit
from runner.model.artifacts import Artifacts, EndpointRecord, Evidence
from runner.model.deployment import Deployment
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result
from runner.plan.jobs import GATE, gated
from runner.plan.runs import without_run
from runner.store import RunFolder
from testcases.base import Case

MAX_ATTEMPTS = 3  # attempts at a job that is disturbed or fails because of the harness, including the first attempt


@dataclass(kw_only=True)
class Execution:
    """Runs jobs, repeats disturbed attempts, and stores the results. Thread-safe."""

    folder: RunFolder
    cases: Mapping[str, Case]
    deployment: Deployment
    schedule: Schedule
    judges: Judges
    retention: Retention
    handshakes: dict[Job, Result] = field(default_factory=dict)  # handshakes with results, also of earlier calls

    def run(self, job: Job, lane: int) -> Result | None:
        """Run a job that the schedule has started, and store its result. Returns None when the campaign was stopped.
        When the disk is full, the job waits for space and runs again.
        """
        while True:
            try:
                result = self._run(job, lane)
            except OSError:  # errors of files and tables; some of them have no errno
                if not lack_of_space(self.folder.path):
                    raise
            else:
                if result is not None and job.case == GATE:
                    self.handshakes[job] = result
                return result
            remove_tree(self.folder.path, self.folder.run.folder(job))
            if not self.schedule.start_again(job, lane):
                return None

    def _run(self, job: Job, lane: int) -> Result | None:
        if refusal := gated(job, self.handshakes):
            self.schedule.leave(job)
            skipped = without_run(job, Outcome.SKIPPED, refusal)
            self.folder.save_result(skipped)
            return skipped
        result = self._attempts(job, lane)
        if result is None:
            return None
        self.folder.save_result(result)
        for role in Role:
            compress_logs(self.folder.artifacts(job).folder / role.value / "qlog")
        apply_retention(self.folder, job, self.retention)
        return result

    def _attempts(self, job: Job, lane: int) -> Result | None:
        """The result of the first undisturbed attempt, or of the last attempt. None when the campaign was stopped."""
        disturbances: list[str] = []
        printed: list[str] = []
        while True:
            attempt = len(disturbances) + 1
            result = self._timed_attempt(job, attempt, lane)
            if result is None:
                return None
            result = replace(result, attempts=attempt, disturbed=tuple(disturbances))
            self.schedule.width.learn(result, self.folder.run.case(job).kind)
            reason = transient(result)
            if reason is None or attempt == MAX_ATTEMPTS:
                break
            disturbances.append(reason)
            printed.append(f"== attempt {attempt} ==\n{reason}\n{result.findings[0].log_tail}\n")
            self.schedule.report("retried", job, result, message=reason)
        if printed:
            self.folder.artifacts(job).attempts_log.write_text("".join(printed))
        return result

    def _timed_attempt(self, job: Job, attempt: int, lane: int) -> Result | None:
        if attempt > 1 and not self.schedule.start_again(job, lane):
            return None
        self.schedule.report("started", job)
        clock = self.schedule.clock
        began = clock()
        try:
            result = self._judge_attempt(job) if self._run_attempt(job, attempt) else None
        finally:
            self.schedule.leave(job)
        if result is None:
            return None
        wall = clock() - began
        return replace(result, wall_s=wall, overhead_s=wall - result.transfer_s)

    def _run_attempt(self, job: Job, attempt: int) -> bool:
        """Run the job and put its artifacts in its folder. False when the campaign was stopped meanwhile."""
        clock = self.schedule.clock
        began = clock()
        inside = Path(".partial") / "-".join(job.path.parts)
        remove_tree(self.folder.path, inside)
        partial = self.folder.path / inside
        partial.mkdir(parents=True)
        try:
            self.deployment.run(job, partial, attempt=attempt)
        except LaneError as error:
            wall = clock() - began
            store.save_evidence(Artifacts(partial), _lost(error, time.time() - wall, wall))
        if self.schedule.stopped.is_set():
            return False
        final = self.folder.artifacts(job).folder
        remove_tree(self.folder.path, self.folder.run.folder(job))
        final.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(final)
        return True

    def _judge_attempt(self, job: Job) -> Result | None:
        """The verdict on the job's folder. None when the campaign was stopped meanwhile."""
        artifacts, case = self.folder.artifacts(job), self.cases.get(job.case)
        limits = Limits.of(artifacts)
        try:
            result: Result = self.judges.call(limits, judge_job, job, artifacts, case, self.folder.run.case(job))
        except StoppedError:
            return None
        except AnalysisLimitError as error:
            return over_the_limit(job, artifacts, limits, error)
        except (BentpipeError, OSError):
            raise
        except Exception as error:  # a bug of bentpipe must end only one job, not the whole campaign
            return _judge_failed(job, error)
        return result


def _lost(error: LaneError, started: float, wall: float) -> Evidence:
    unknown = EndpointRecord(image="", image_id="")
    return Evidence(
        started_unix_s=started,
        wall_s=wall,
        transfer_s=0.0,
        stages_s={},
        client=unknown,
        server=unknown,
        server_ready=None,
        files=(),
        error=error.record(),
    )


def _judge_failed(job: Job, error: Exception) -> Result:
    finding = Finding(
        code="judge-failed",
        requirement="The judge reads every job's folder.",
        expected="a verdict",
        actual=f"{type(error).__name__}: {error}",
    )
    return Result.of(job, Outcome.ERROR, finding)
