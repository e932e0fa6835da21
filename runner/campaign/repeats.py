"""Compares the packets of two runs with the same jobs and the same seed, and finds the first packet that differs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runner.config.options import MatrixOptions
from runner.decode.difference import Difference, first_difference
from runner.model.artifacts import Artifacts, Evidence
from runner.model.job import Job
from runner.model.run import Run
from runner.store import RunFolder, load_evidence


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The comparison of a job that both runs have. `same` is None when one run has no hashes of the job, for example
    because the job ended as an error."""

    job: Job
    same: bool | None
    difference: Difference | None = None  # None also when the captures are not kept


def again(options: MatrixOptions, run: Run) -> MatrixOptions:
    """The options for a second run with the jobs and the seed of `run`."""
    options = replace(options, name=f"{options.name}-again", seed=run.seed, clock=run.clock)
    if options.selects:
        return options
    most = max(job.iteration for job in run.order)
    cases = tuple(dict.fromkeys(record.declared or record.case for record in run.cases.values()))
    return replace(options, servers=run.servers, clients=run.clients, cases=cases, iterations=most)


def compare_packets(before: RunFolder, after: RunFolder) -> Iterator[Repeat]:
    """Compare every job that ran in both runs, in the order of `before`."""
    done, again = before.results(), after.results()
    for job in before.run.order:
        folders = before.artifacts(job), after.artifacts(job)
        if job in done and job in again and all(folder.evidence.is_file() for folder in folders):
            yield compare_job(job, *folders)


def compare_job(job: Job, before: Artifacts, after: Artifacts) -> Repeat:
    """Compare one job by the hashes of its captures. When the hashes differ, compare the packets of the captures."""
    first, second = (packet_hashes(load_evidence(folder)) for folder in (before, after))
    if not first or not second:
        return Repeat(job=job, same=None)
    if first == second:
        return Repeat(job=job, same=True)
    captures = {
        "client": (before.client_capture, after.client_capture),
        "server": (before.server_capture, after.server_capture),
    }
    differences = [
        difference
        for side, paths in captures.items()
        if all(path.is_file() for path in paths) and (difference := first_difference(side, *paths)) is not None
    ]
    return Repeat(
        job=job, same=False, difference=min(differences, key=lambda difference: difference.time, default=None)
    )


def packet_hashes(evidence: Evidence | None) -> dict[str, str]:
    """SHA-256 of the capture of each endpoint, by role; empty for a job in real time."""
    return evidence.guest.captures if evidence is not None and evidence.guest is not None else {}


def sentences(repeats: Sequence[Repeat]) -> Iterator[str]:
    """How many jobs had the same packets twice and, for each job with other packets, the first packet that differs."""
    known = [repeat for repeat in repeats if repeat.same is not None]
    yield f"{sum(repeat.same is True for repeat in known)} of {len(known)} jobs had the same packets in both runs."
    if len(known) < len(repeats):
        yield f"{len(repeats) - len(known)} more jobs can't be compared: captures of one of the two runs are missing."
    for repeat in known:
        if repeat.same is False:
            yield f"{repeat.job}: {_sentence(repeat.difference)}"


def _sentence(difference: Difference | None) -> str:
    if difference is None:
        return "the packets differ; its captures, which would show the difference, were not kept"
    where = f"packet {difference.number} at the {difference.side}, {difference.time:.6f} s after the first"
    return f"{where}: {difference.what}"
