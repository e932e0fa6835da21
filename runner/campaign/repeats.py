"""Two runs of the same jobs with one seed → whether their packets are the same, and which of them differ first."""

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
    """A job that two runs have. `same` None: one of them left no hashes, such as a job that ended as an error."""

    job: Job
    same: bool | None
    difference: Difference | None = None  # None too when the captures are not kept


def again(options: MatrixOptions, run: Run) -> MatrixOptions:
    """The options that repeat `run`, which these began or resumed, beside it and with its seed."""
    options = replace(options, name=f"{options.name}-again", seed=run.seed, clock=run.clock)
    if options.selects:
        return options
    most = max(job.iteration for job in run.order)
    cases = tuple(dict.fromkeys(record.declared or record.case for record in run.cases.values()))
    return replace(options, servers=run.servers, clients=run.clients, cases=cases, iterations=most)


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


def sentences(repeats: Sequence[Repeat]) -> Iterator[str]:
    """How many jobs repeated, and of each other one the packet that differs first."""
    known = [one for one in repeats if one.same is not None]
    yield f"{sum(one.same is True for one in known)} of {len(known)} jobs left the same packets twice."
    if len(known) < len(repeats):
        yield f"{len(repeats) - len(known)} more can't be compared: one of their two runs left no captures."
    for one in known:
        if one.same is False:
            yield f"{one.job}: {_told(one.difference)}"


def _told(difference: Difference | None) -> str:
    if difference is None:
        return "other packets; its captures are not kept, which would show them"
    where = f"packet {difference.number} at the {difference.side}, {difference.time:.6f} s after the first"
    return f"{where}: {difference.what}"
