"""The influence of the host: numbers of a cell are compared on the same hosts, without the differences between
hosts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Any

from runner.model.result import Outcome, Result


def host_of(result: Result) -> str:
    """The name of the worker's host; empty when the job ran on the run's own host."""
    return result.host.get("name", "")


def on_same_hosts(
    before: Sequence[Result], after: Sequence[Result], *, metrics: Iterable[str], ratios: Sequence[str]
) -> tuple[list[Result], list[Result]]:
    """The results from the hosts that both sides have in common. The differences between hosts are removed from their
    numbers.

    The effect of a host is the average of its mean before and its mean after. Means are means of logarithms, so that
    the effect is a factor; for `ratios` they are means of the values. Without this step, a different number of
    iterations on a host would look like a change.
    """
    shared = {host_of(result) for result in before} & {host_of(result) for result in after}
    sides = [[result for result in side if host_of(result) in shared] for side in (before, after)]
    if len(shared) > 1:
        for metric in metrics:
            sides = _aligned(sides, sorted(shared), metric, ratio=metric in ratios)
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


def _aligned(sides: list[list[Result]], hosts: Sequence[str], metric: str, *, ratio: bool) -> list[list[Result]]:
    """Both sides without the effect of the hosts on one metric. They stay unchanged when a host has no value of the
    metric on one side."""
    means = {}
    for host in hosts:
        values = [
            [value for result in side if host_of(result) == host for value in _value(result, metric, ratio)]
            for side in sides
        ]
        if not all(values):
            return sides
        means[host] = fmean(map(fmean, values))
    whole = fmean(means.values())

    def shifted(result: Result) -> Result:
        values = _value(result, metric, ratio)
        if not values or result.sample is None:
            return result
        moved = values[0] + whole - means[host_of(result)]
        numbers: dict[str, Any] = {metric: moved if ratio else exp(moved)}
        return replace(result, sample=replace(result.sample, **numbers))

    return [[shifted(result) for result in side] for side in sides]


def _value(result: Result, metric: str, ratio: bool) -> list[float]:
    """The value of an iteration that succeeded, on the scale on which the effects of hosts are added: the logarithm or,
    for a ratio, the value. Empty when there is no value."""
    value = getattr(result.sample, metric, None) if result.outcome is Outcome.SUCCEEDED else None
    if value is None or (value <= 0 and not ratio):
        return []
    return [value if ratio else log(value)]
