"""Whether two runs are comparable: their conditions, their hosts, and whether their results can be trusted."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from math import exp, log
from statistics import fmean
from typing import Any

from runner.errors import UsageError
from runner.model.link import LinkParameters
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Job, Run
from runner.store.runs import RunFolder
from runner.units import format_count

# Conditions that must be the same in two runs. Otherwise a difference of their numbers may have other causes than the
# stacks.

TOPICS = {
    "link": "parameters of the links",
    "case": "files, time-outs and names that the case sends",
    "seed": "the order of the jobs: as planned, or shuffled by the seed",
    "host": "the machine and its system",
    "clock": "real or virtual time, and the time that CPU work takes in virtual time",
}
_OF_THE_CASE = ("kind", "file_sizes", "timeout", "wire_names", "host", "name_length", "chain_length")


def differences(before: Run, after: Run) -> dict[str, list[str]]:
    """By topic, a sentence for each difference between the conditions of the two runs. Only cases that both runs have
    are compared. Topics without a difference are left out."""
    shared = [(name, before.cases[name], after.cases[name]) for name in before.cases if name in after.cases]
    differing = {
        "link": [sentence for name, old, new in shared for sentence in _links(name, old, new)],
        "case": [sentence for name, old, new in shared for sentence in _case(name, old, new)],
        "seed": list(_seed(before, after)),
        "host": list(_host(before.host, after.host)),
        "clock": [sentence for name, _, _ in shared for sentence in _clock(name, before, after)]
        + list(_cell_clocks(before, after)),
    }
    return {topic: sentences for topic, sentences in differing.items() if sentences}


_OF_THE_WHOLE_RUN = frozenset(("seed", "host", "clock"))  # conditions that `unchanged` does not compare job by job


def unchanged(run: Run, source: RunFolder, done: frozenset[Job]) -> Iterator[tuple[Job, Result]]:
    """The jobs of `run` outside of `done`, with their results in `source`, whose images, case and link are the same in
    both runs. None when the runs differ in a condition such as host, clock or order."""
    if not _OF_THE_WHOLE_RUN.isdisjoint(differences(source.run, run)):
        return
    results = source.results()
    for job in run.order:
        result = results.get(job)
        if job in done or result is None or result.outcome is Outcome.ERROR:
            continue
        images = _image_ids(run, job)
        if not all(images) or images != _image_ids(source.run, job):
            continue
        stored, case = source.run.cases[job.case_link], run.case(job)
        # Their descriptions for people may differ.
        if replace(stored, description=case.description) != case or source.run.protocol(job) != run.protocol(job):
            continue
        try:
            source.own(job)
        except UsageError:  # the folder has a symbolic link or a device file; bentpipe makes neither
            continue
        yield job, result


def _image_ids(run: Run, job: Job) -> tuple[str, ...]:
    """Image ids of everything that takes part in a job; empty where unknown."""
    names = [name for name in (job.server, job.client, job.via) if name]
    known = [run.implementations.get(name) for name in names]
    return tuple("" if stack is None else stack.image_id for stack in known)


def refuse(differing: Mapping[str, list[str]], despite: Set[str]) -> None:
    """Raise UsageError with each difference of a topic that is not in `despite`."""
    refused = {topic: sentences for topic, sentences in differing.items() if topic not in despite}
    if refused:
        every = " ".join(sentence for sentences in refused.values() for sentence in sentences)
        topics = ",".join(topic for topic in TOPICS if topic in refused or topic in despite)
        raise UsageError(
            f"These runs differ in more than their stacks. {every} "
            f"Compare runs with equal conditions, or accept the differences: --despite {topics}."
        )


def _links(name: str, before: CaseRecord, after: CaseRecord) -> Iterator[str]:
    for way, old, new in (("forward", before.forward, after.forward), ("return", before.return_, after.return_)):
        yield from _link(f"{name}, {way} link", old, new)
    if before.impairments != after.impairments:
        old_text, new_text = (_sentences(case.impairments.sentences()) for case in (before, after))
        yield f"{name}, both directions: {old_text} before, {new_text} after."


def _link(where: str, before: LinkParameters, after: LinkParameters) -> Iterator[str]:
    for field in fields(LinkParameters):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if field.name == "impairments":
            old, new = _sentences(old.sentences()), _sentences(new.sentences())
        units = {"data_rate": " bit/s", "delay": " s", "queue_packets": " packets"}
        unit = units.get(field.name, "")
        label = field.name.removesuffix("_packets").replace("_", " ")
        yield f"{where}: {label} {old}{unit} before, {new}{unit} after."


def _sentences(parts: Iterator[str]) -> str:
    return ", ".join(parts) or "nothing"


def _case(name: str, before: CaseRecord, after: CaseRecord) -> Iterator[str]:
    for field in _OF_THE_CASE:
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            yield f"{name}: {field.replace('_', ' ')} {_plain(old)} before, {_plain(new)} after."


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " + ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return str(value)


def _seed(before: Run, after: Run) -> Iterator[str]:
    if before.shuffled != after.shuffled:
        order = {True: "shuffled by the seed", False: "as planned"}
        yield f"Order of the jobs: {order[before.shuffled]} before, {order[after.shuffled]} after."


def _clock(case: str, before: Run, after: Run) -> Iterator[str]:
    old, new = before.clock_of(case), after.clock_of(case)
    if old != new:
        yield f"{case}: {old} time before, {new} time after; in virtual time computing takes no time."
    elif old != "real" and before.guest.get("charge") != after.guest.get("charge"):
        yield f"{case}: CPU charge {_charge(before)} before, {_charge(after)} after."
    elif old != "real" and before.guest.get("noise") != after.guest.get("noise"):
        yield f"{case}: noise of the virtual host {_noise(before)} before, {_noise(after)} after."


def _cell_clocks(before: Run, after: Run) -> Iterator[str]:
    """A sentence for each change of the clock in cells with a clock of their own, when the cases have the same
    clock."""
    changed: dict[str, list[str]] = {}
    for cell in sorted((before.clocks.keys() | after.clocks.keys()) & before.cells.keys() & after.cells.keys()):
        case = before.cells[cell][0].case_link
        old, new = before.clock_of(case, cell), after.clock_of(case, cell)
        if old != new and before.clock_of(case) == after.clock_of(case):
            changed.setdefault(f"{old} time before, {new} time after", []).append(cell)
    for sentence, cells in changed.items():
        others = f" and {format_count(len(cells) - 1, 'more cell')}" if len(cells) > 1 else ""
        yield f"{cells[0]}{others}: {sentence}."


def _charge(run: Run) -> str:
    return run.guest.get("charge") or "none"


def _noise(run: Run) -> str:
    return f"{run.guest['noise']} s" if "noise" in run.guest else "none"


def _host(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, "unknown"), after.get(key, "unknown")
        if old != new:
            yield f"Host, {key}: {old} before, {new} after."


# The compared numbers, and the scale on which they are added.

# Metric → True when a larger value is better.
METRICS = {"ttlb": False, "goodput": True, "handshake_time": False, "retransmission_ratio": False}
RATIOS = ("retransmission_ratio",)  # metrics that are fractions; their change is given in percentage points


def scaled(metric: str, values: Iterable[float]) -> list[float]:
    """The logarithms of the values, so that deviations are fractions. For a ratio, which may be 0: the values."""
    return list(values) if metric in RATIOS else [log(value) for value in values if value > 0]


# The influence of the host: numbers of a cell are compared on the same hosts, without the differences between
# hosts.


def host_of(result: Result) -> str:
    """The name of the worker's host; empty when the job ran on the run's own host."""
    return result.host.get("name", "")


def on_same_hosts(before: Sequence[Result], after: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The results from the hosts that both sides have in common. The differences between hosts are removed from their
    numbers.

    The effect of a host is the average of its mean before and its mean after, on the scale of `scaled`. Without this
    step, a different number of iterations on a host would look like a change.
    """
    shared = {host_of(result) for result in before} & {host_of(result) for result in after}
    sides = [[result for result in side if host_of(result) in shared] for side in (before, after)]
    if len(shared) > 1:
        for metric in METRICS:
            sides = _aligned(sides, sorted(shared), metric)
    return sides[0], sides[1]


def hosts_sentence(before: Sequence[Result], after: Sequence[Result]) -> str:
    """A text about the hosts of a cell; empty when all its results come from the same host."""
    names = [sorted({host_of(result) or "the run's own" for result in side}) for side in (before, after)]
    if names[0] != names[1]:
        return (
            f"{', '.join(names[0])} before, {', '.join(names[1])} after; numbers are compared on the shared hosts, or "
            "on all hosts with --despite host"
        )
    return f"{', '.join(names[0])}; the differences between hosts are removed" if len(names[0]) > 1 else ""


def _aligned(sides: list[list[Result]], hosts: Sequence[str], metric: str) -> list[list[Result]]:
    """Both sides without the effect of the hosts on one metric. They stay unchanged when a host has no value of the
    metric on one side."""
    means = {}
    for host in hosts:
        values = [
            [value for result in side if host_of(result) == host for value in _value(result, metric)] for side in sides
        ]
        if not all(values):
            return sides
        means[host] = fmean(map(fmean, values))
    whole = fmean(means.values())

    def shifted(result: Result) -> Result:
        values = _value(result, metric)
        if not values or result.sample is None:
            return result
        moved = values[0] + whole - means[host_of(result)]
        numbers: dict[str, Any] = {metric: moved if metric in RATIOS else exp(moved)}
        return replace(result, sample=replace(result.sample, **numbers))

    return [[shifted(result) for result in side] for side in sides]


def _value(result: Result, metric: str) -> list[float]:
    """The scaled value of an iteration that succeeded; empty when there is no value."""
    value = getattr(result.sample, metric, None) if result.outcome is Outcome.SUCCEEDED else None
    return [] if value is None else scaled(metric, [value])


# Decides whether the results of a run can be trusted. They can when they are complete and few jobs ended as errors.

DOUBTFUL = 0.05
"""A run is doubtful when a larger share of its finished jobs ended as errors."""
_MOST_NAMED = 3  # codes


@dataclass(frozen=True, kw_only=True)
class Trust:
    """`trusted`: True when all jobs are done and the results can be trusted, except those of jobs without a verdict.
    `verdict`: `can be trusted`, `can be trusted except for 1 job`, `is not complete`, or `is doubtful`, because too
    many jobs ended as errors. `reasons`: the reasons, as parts of a sentence."""

    trusted: bool
    verdict: str
    reasons: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """`can be trusted: 12 of 12 jobs done, no error`."""
        return f"{self.verdict}: {', '.join(self.reasons)}"


def trust(planned: int, results: Collection[Result]) -> Trust:
    """Decide for one run. `planned`: the number of planned jobs. `results`: the results of all finished jobs."""
    errors = [result for result in results if result.outcome is Outcome.ERROR]
    repeated = sum(bool(result.disturbed) and not result.reused_from for result in results)
    reasons = [f"{len(results)} of {planned} jobs done"]
    if errors:
        codes = Counter(result.findings[0].code if result.findings else "error" for result in errors)
        named = ", ".join(f"{code} {count}" for code, count in codes.most_common(_MOST_NAMED))
        reasons.append(f"{len(errors)} ended as {'an error' if len(errors) == 1 else 'errors'} ({named})")
    else:
        reasons.append("no error")
    if reused := sum(bool(result.reused_from) for result in results):
        reasons.append(f"{reused} taken over from an earlier run")
    if repeated:
        reasons.append(f"{repeated} repeated after a disturbance")
    doubtful = len(errors) > DOUBTFUL * len(results)
    trusted = bool(results) and len(results) >= planned and not doubtful
    verdict = "is doubtful" if doubtful else "is not complete"
    if trusted:
        verdict = f"can be trusted except for {format_count(len(errors), 'job')}" if errors else "can be trusted"
    return Trust(trusted=trusted, verdict=verdict, reasons=tuple(reasons))
