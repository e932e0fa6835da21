"""The best of several groups by the median, its margin, and whether the runner-up might be as good."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, inf
from statistics import median

import numpy as np

from runner.stats.change import FALSE_DISCOVERY_RATE, adjusted, least_n, least_p, rank_test, shift_interval

Groups = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The best median of `n` values, and the runner-up. A failed attempt counts as infinite time, or as no
    goodput.

    `margin`: by which fraction of the runner-up's median the winner's is better. It has a 95 % interval when both
    groups have at least 4 values and no failure. It is None without a runner-up, or when most attempts of the
    runner-up failed. `p`: Mann-Whitney between the two. `q`: p after the correction for all questions asked
    together; None when there are too few values for any result.
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
    def certain(self) -> bool:
        """True when the samples distinguish winner and runner-up."""
        return self.q is not None and self.q <= FALSE_DISCOVERY_RATE

    @property
    def doubt(self) -> str:
        """Why they don't, in words; empty when they do, or when there is no runner-up."""
        if self.second and self.margin is None:
            return "which failed in most attempts"
        if self.certain or self.margin is None:
            return ""
        if self.q is None:
            need = least_n(FALSE_DISCOVERY_RATE)
            return f"too few to tell: n {self.n} and {self.second_n}, it takes {need} of each"
        return f"not told apart, q {self.q:.2g}"


def winners(questions: Sequence[tuple[Groups, bool]]) -> list[Winner | None]:
    """The best group of each question; None where no median counts. Each question says whether the lowest value
    wins.

    All rank tests that could give a result are corrected together (Benjamini-Hochberg). The runner-up is chosen by
    the same values that test it, so a small q between two of many still means: the two best of many.
    """
    found = [_winner(groups, lowest=lowest) for groups, lowest in questions]
    able = [
        number
        for number, one in enumerate(found)
        if one is not None and one.second and least_p(one.n, one.second_n) <= FALSE_DISCOVERY_RATE
    ]
    q_values = adjusted([p for number in able if (one := found[number]) is not None and (p := one.p) is not None])
    for number, q in zip(able, q_values, strict=True):
        one = found[number]
        assert one is not None  # able
        found[number] = replace(one, q=q)
    return found


def _winner(groups: Groups, *, lowest: bool) -> Winner | None:
    ranked = sorted(
        ((median(values), name) for name, values in groups.items() if values),
        key=lambda one: one[0] if lowest else -one[0],
    )
    if not ranked or not _counts(ranked[0][0]):
        return None
    value, name = ranked[0]
    if len(ranked) == 1:
        return Winner(name=name, value=value, n=len(groups[name]))
    other, second = ranked[1]
    margin = abs(other - value) / other if _counts(other) else None
    low, high = _interval(groups[name], groups[second], margin, lowest=lowest) or (None, None)
    return Winner(
        name=name,
        value=value,
        n=len(groups[name]),
        second=second,
        second_n=len(groups[second]),
        margin=margin,
        low=low,
        high=high,
        p=rank_test(groups[name], groups[second]),
    )


def _counts(value: float) -> bool:
    """True for a measured value, false for a value that stands for a failure."""
    return 0 < value < inf


def _interval(
    best: Sequence[float], other: Sequence[float], margin: float | None, *, lowest: bool
) -> tuple[float, float] | None:
    """The interval of the margin: the exact interval of the rank test's shift of logarithms, widened to contain
    the margin of the medians."""
    if margin is None or not all(map(_counts, (*best, *other))):
        return None
    found = shift_interval(np.log(np.asarray(other)), np.log(np.asarray(best)))
    if found is None:
        return None
    # The shift is ln(best / other): of times a margin is 1 - best / other, of rates best / other - 1.
    ends = [-expm1(one) if lowest else expm1(one) for one in found]
    return min(margin, *ends), max(margin, *ends)
