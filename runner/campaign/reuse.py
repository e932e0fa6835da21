"""Takes over results of an earlier run into a new run, for jobs whose images, case and link have not changed."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

from runner.compare.conditions import differences
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import Run
from runner.store import RunFolder

_OF_THE_WHOLE_RUN = frozenset(("seed", "host", "clock"))  # conditions that `_unchanged` does not compare job by job


def take_over(folder: RunFolder, source: RunFolder) -> int:
    """Copy results of `source` into `folder`, for jobs without a result whose images, case and link are unchanged.
    Returns the number of copied results; it is 0 when the runs differ in a condition such as host, clock or order.
    Files are hard links where the file system allows it; `result.json` is a new file that names the run in which the
    job ran.
    """
    if not _OF_THE_WHOLE_RUN.isdisjoint(differences(source.run, folder.run)):
        return 0
    done = folder.results()
    taken = list(_unchanged(folder.run, source, frozenset(done)))
    for job, result in taken:
        artifacts = folder.artifacts(job)
        shutil.rmtree(artifacts.folder, ignore_errors=True)  # the folder of a job that was interrupted
        shutil.copytree(source.artifacts(job).folder, artifacts.folder, copy_function=_link)
        artifacts.result.unlink()
        folder.save_result(replace(result, reused_from=result.reused_from or source.name))
    return len(taken)


def _unchanged(run: Run, source: RunFolder, done: frozenset[Job]) -> Iterator[tuple[Job, Result]]:
    results = source.results()
    for job in run.order:
        result = results.get(job)
        if job in done or result is None or result.outcome is Outcome.ERROR:
            continue
        images = _images(run, job)
        if not all(images) or images != _images(source.run, job):
            continue
        case = source.run.cases[job.case_link]
        if not case.asks_the_same(run.case(job)) or source.run.protocol(job) != run.protocol(job):
            continue
        try:
            source.own(job)
        except UsageError:  # the folder has a symbolic link or a device file; bentpipe makes neither
            continue
        yield job, result


def _images(run: Run, job: Job) -> tuple[str, ...]:
    """Image ids of everything that takes part in a job; empty where unknown."""
    names = [name for name in (job.server, job.client, job.via) if name]
    known = [run.implementations.get(name) for name in names]
    return tuple("" if stack is None else stack.image_id for stack in known)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
