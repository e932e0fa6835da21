"""Conditions that must be the same in two runs. Otherwise a difference of their numbers may have other causes than the
stacks."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields

from runner.errors import UsageError
from runner.model.link_record import LinkParameters
from runner.model.run import CaseRecord, Run

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
        "clock": [sentence for name, _, _ in shared for sentence in _clock(name, before, after)],
    }
    return {topic: sentences for topic, sentences in differing.items() if sentences}


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


def _charge(run: Run) -> str:
    return run.guest.get("charge") or "none"


def _host(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, "unknown"), after.get(key, "unknown")
        if old != new:
            yield f"Host, {key}: {old} before, {new} after."
