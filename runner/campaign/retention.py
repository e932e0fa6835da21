"""Decides which captures are kept. Captures are 96 % of a job's bytes. Tables, series and logs are always kept."""

from dataclasses import replace
from enum import StrEnum

from runner.files.safe_files import beneath
from runner.model.job import Job
from runner.model.result import Outcome
from runner.stats import median_iteration
from runner.store import RunFolder


class Retention(StrEnum):
    """Values of `--keep-captures`. `median`: captures of failed jobs and of the median iteration of each cell."""

    ALL = "all"
    FAILED = "failed"
    MEDIAN = "median"
    NONE = "none"


def apply_retention(folder: RunFolder, job: Job, policy: Retention) -> None:
    """Delete captures of the job's cell that the policy doesn't keep."""
    if policy is Retention.ALL:
        return
    cell = folder.run.cells.get(job.cell, ())
    results = {other: result for other in cell if (result := folder.result(other)) is not None}
    if policy is Retention.MEDIAN and len(results) < len(cell):
        return  # the median is not known before the last iteration
    median = median_iteration(list(results.values())) if policy is Retention.MEDIAN else None
    for other, result in results.items():
        failed = result.outcome in (Outcome.FAILED, Outcome.ERROR)
        keep = policy is not Retention.NONE and (failed or result.iteration == median)
        if keep or not result.captures_kept:
            continue
        artifacts = folder.artifacts(other)
        folder.save_result(replace(result, captures_kept=False))
        for capture in artifacts.captures:
            beneath(artifacts.folder, capture.relative_to(artifacts.folder)).unlink(missing_ok=True)
