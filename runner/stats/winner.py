"""Who of several is best by the median, by how much, and whether the runner-up might as well be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from runner.stats.change import rank_test

CERTAIN = 0.05  # p of the rank test between winner and runner-up


@dataclass(frozen=True, kw_only=True)
class Winner:
    """`margin`: by how much of the runner-up's median the winner's is better, as a fraction; None: nobody else."""

    name: str
    value: float
    second: str = ""
    margin: float | None = None
    p: float | None = None  # Mann-Whitney, winner against runner-up

    @property
    def certain(self) -> bool:
        """Whether the samples tell the two apart."""
        return self.p is not None and self.p <= CERTAIN


def winner(groups: Mapping[str, Sequence[float]], *, lowest: bool) -> Winner | None:
    """The best of the groups that have values; None without any. `lowest`: the lowest median wins, as for times."""
    ranked = sorted(
        ((median(values), name) for name, values in groups.items() if values),
        key=lambda one: one[0] if lowest else -one[0],
    )
    if not ranked:
        return None
    value, name = ranked[0]
    if len(ranked) == 1:
        return Winner(name=name, value=value)
    other, second = ranked[1]
    margin = abs(other - value) / other if other else None
    return Winner(name=name, value=value, second=second, margin=margin, p=rank_test(groups[name], groups[second]))
