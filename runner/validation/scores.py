"""Precision and recall of diagnoses, for all labelled sets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GOAL = 0.95
"""The goal for precision and for recall of each detector."""


@dataclass
class Counts:
    """The counts of one detector in one part of a set: labels found, labels missed, and diagnoses without a label."""

    right: int = 0
    missed: int = 0
    wrong: int = 0

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


def table(counts: Mapping[str, Counts]) -> Iterator[str]:
    """A row for every diagnosis, then a row for all diagnoses together."""
    yield f"{'':28} {'labels':>6} {'found':>6} {'missed':>6} {'wrong':>6} {'precision':>9} {'recall':>7}"
    total = Counts(
        right=sum(each.right for each in counts.values()),
        missed=sum(each.missed for each in counts.values()),
        wrong=sum(each.wrong for each in counts.values()),
    )
    for code, each in [*sorted(counts.items()), ("all", total)]:
        yield (
            f"{code:28} {each.right + each.missed:6} {each.right:6} {each.missed:6} {each.wrong:6} "
            f"{each.precision:9.3f} {each.recall:7.3f}"
        )
