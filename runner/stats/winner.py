"""The group with the best median among several groups, its margin, and whether the margin is more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from runner.stats.change import FALSE_DISCOVERY_RATE, adjusted, least_n, least_p, rank_test, ratio_interval

Groups = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The group with the best median, and the runner-up. A failed attempt counts as an infinite time, or as a goodput
    of 0.

    `value`: the winner's median of `n` values. `margin`: the advantage of this median as a fraction of the runner-up's
    median. It is None when there is no runner-up, or when most attempts of the runner-up failed. `low` and `high`: its
    95 % interval. The interval exists when no attempt failed and there are enough values; 4 values in each group are
    enough. `p`: the result of the Mann-Whitney test of the two groups. `q`: p after the correction for all questions of
    the call; None when there are too few values for a significant result.
    """

    name: str
    value: float
    n: int
    second: str = ""
    second_n: int = 0
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    q: float | None = None

    @property
    def testable(self) -> bool:
        """True when the test of the two groups can give a significant result."""
        return bool(self.second) and least_p(self.n, self.second_n) <= FALSE_DISCOVERY_RATE

    @property
    def certain(self) -> bool:
        """True when the difference between winner and runner-up is statistically significant."""
        return self.q is not None and self.q <= FALSE_DISCOVERY_RATE

    @property
    def doubt(self) -> str:
        """The reason why the result is not certain; empty when the result is certain or there is no runner-up."""
        if self.second and self.margin is None:
            return "which failed in most attempts"
        if self.certain or self.margin is None:
            return ""
        if self.q is None:
            need = least_n(FALSE_DISCOVERY_RATE)
            return f"too few iterations: n {self.n} and {self.second_n}, {need} of each are needed"
        return f"no significant difference, q {self.q:.2g}"


def winners(questions: Sequence[tuple[Groups, bool]]) -> list[Winner | None]:
    """The winner of each question; None when no group has a measured median. A question consists of the groups of
    values, and of True when the lowest value wins or False when the highest value wins.

    All rank tests that can give a significant result are corrected together (Benjamini-Hochberg). The same values
    select the two best groups and test them. So q is about the two best of many groups, not about two groups that were
    chosen before the measurement.
    """
    results = [_winner(groups, lowest=lowest) for groups, lowest in questions]
    q_values = adjusted([None if result is None or not result.testable else result.p for result in results])
    return [None if result is None else replace(result, q=q) for result, q in zip(results, q_values, strict=True)]


def _winner(groups: Groups, *, lowest: bool) -> Winner | None:
    ranked = sorted(
        ((median(values), name) for name, values in groups.items() if values),
        key=lambda pair: pair[0] if lowest else -pair[0],
    )
    if not ranked or not _counts(ranked[0][0]):
        return None
    value, name = ranked[0]
    if len(ranked) == 1:
        return Winner(name=name, value=value, n=len(groups[name]))
    other, second = ranked[1]
    change = value / other - 1 if _counts(other) else None
    low, high = ratio_interval(groups[name], groups[second], change) or (None, None)
    if lowest and change is not None:  # a shorter time is an advantage
        change = -change
        low, high = (None, None) if low is None or high is None else (-high, -low)
    return Winner(
        name=name,
        value=value,
        n=len(groups[name]),
        second=second,
        second_n=len(groups[second]),
        margin=change,
        low=low,
        high=high,
        p=rank_test(groups[name], groups[second]),
    )


def _counts(value: float) -> bool:
    """True for a measured value, False for a value that represents a failure."""
    return 0 < value < inf
