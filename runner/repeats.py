"""Two runs of the same jobs with one seed → whether their packets are the same, and which of them differ first."""

from collections.abc import Iterator
from dataclasses import dataclass

from runner.decode.difference import Difference, first_difference
from runner.model.artifacts import Artifacts, Evidence
from runner.model.job import Job
from runner.store import RunFolder, load_evidence


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A job that two runs have. `same` None: one of them left no hashes, such as a job that ended as an error."""

    job: Job
    same: bool | None
    difference: Difference | None = None  # None too when the captures are not kept


def compare_packets(before: RunFolder, after: RunFolder) -> Iterator[Repeat]:
    """Every job that ran in both runs, in the order of the first one."""
    done, again = before.results(), after.results()
    for job in before.run.order:
        folders = before.artifacts(job), after.artifacts(job)
        if job in done and job in again and all(folder.evidence.is_file() for folder in folders):
            yield compare_job(job, *folders)


def compare_job(job: Job, before: Artifacts, after: Artifacts) -> Repeat:
    """One job: by the hashes that its evidence has, and where these differ by the captures."""
    one, other = (_hashes(load_evidence(folder)) for folder in (before, after))
    if not one or not other:
        return Repeat(job=job, same=None)
    if one == other:
        return Repeat(job=job, same=True)
    captures = {
        "client": (before.client_capture, after.client_capture),
        "server": (before.server_capture, after.server_capture),
    }
    found = [
        difference
        for side, paths in captures.items()
        if all(path.is_file() for path in paths) and (difference := first_difference(side, *paths)) is not None
    ]
    return Repeat(job=job, same=False, difference=min(found, key=lambda one: one.time, default=None))


def _hashes(evidence: Evidence | None) -> dict[str, str]:
    return evidence.guest.captures if evidence is not None and evidence.guest is not None else {}
