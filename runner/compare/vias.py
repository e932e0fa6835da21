"""Compares the middleboxes of one run with a reference middlebox, separately for each pair and case. Jobs of the same
iteration that ran shortly after each other had the same weather on a real link, so their times are compared as
pairs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from runner.compare.changes import Key
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.middlebox import NO_VIA
from runner.model.result import Outcome, Result
from runner.stats.versus import Versus, versus
from runner.store import RunFolder

_SHARED_SECONDS = 600.0  # longest time from one job's end to the next job's start with the same weather and load


@dataclass(frozen=True, kw_only=True)
class ViaChange:
    """The times of one pair in one case through `via`, compared with the times through the reference."""

    server: str
    client: str
    case: str
    via: str
    versus: Versus


def time_of(result: Result) -> float | None:
    """The time of a delivery or a page load in seconds; infinite for a failed attempt. None for a job that is not an
    attempt."""
    if result.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
        return None
    measured = result.sample.ttlb if result.sample is not None and result.outcome is Outcome.SUCCEEDED else None
    return inf if measured is None else measured


def times_of(results: Iterable[Result]) -> list[float]:
    """The times of all attempts."""
    return [time for result in results if (time := time_of(result)) is not None]


def pairs_of(ours: Iterable[Result], reference: Iterable[Result]) -> list[tuple[float, float]]:
    """The times of two jobs as a pair, for all jobs of the same iteration that ran within ten minutes of each other."""
    partners = {result.iteration: result for result in reference}
    pairs = []
    for result in ours:
        partner = partners.get(result.iteration)
        if partner is not None and _adjacent(result, partner):
            times = time_of(result), time_of(partner)
            if times[0] is not None and times[1] is not None:
                pairs.append((times[0], times[1]))
    return pairs


def _adjacent(earlier: Result, other: Result) -> bool:
    """True when the later job started at most ten minutes after the end of the earlier job. False when a start is
    unknown."""
    first, second = sorted((earlier, other), key=lambda result: result.started_unix_s)
    between = second.started_unix_s - (first.started_unix_s + first.wall_s)
    return first.started_unix_s > 0 and between <= _SHARED_SECONDS


def compare_vias(folder: RunFolder) -> tuple[str, list[ViaChange]]:
    """The name of the reference, and the comparison of every other middlebox with the reference.

    The reference is `none` (no middlebox) when the run has it, otherwise the run's first middlebox. Raises UsageError
    when there is nothing to compare with the reference.
    """
    vias = folder.run.vias
    if len(vias) < 2:
        raise UsageError(
            f"{folder.path} has no two middleboxes to compare: name a second run, or run it with --via none,openvpn."
        )
    reference = "" if "" in vias else vias[0]
    questions = _questions(folder.results())
    answers = versus(
        [{via: times_of(results) for via, results in groups.items()} for groups in questions.values()],
        reference,
        [
            {via: pairs_of(results, groups.get(reference, ())) for via, results in groups.items()}
            for groups in questions.values()
        ],
    )
    changes = [
        ViaChange(server=key[0], client=key[1], case=key[2], via=via, versus=answer)
        for key, comparison in zip(questions, answers, strict=True)
        for via, answer in comparison.items()
    ]
    return reference or NO_VIA, changes


def _questions(results: Mapping[Job, Result]) -> dict[Key, dict[str, Sequence[Result]]]:
    """Results by server, client and case, then by middlebox."""
    results_by_key: dict[Key, dict[str, list[Result]]] = {}
    for job, result in results.items():
        results_by_key.setdefault((job.server, job.client, job.case_link), {}).setdefault(job.via, []).append(result)
    return {key: dict(groups) for key, groups in results_by_key.items()}
