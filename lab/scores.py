"""Precision and recall of diagnoses, for all labelled sets."""

from collections.abc import Iterable, Iterator, Mapping
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
    def labels(self) -> int:
        return self.right + self.missed

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.labels if self.labels else 1.0

    @property
    def is_good(self) -> bool:
        return min(self.precision, self.recall) >= GOAL

    @classmethod
    def total(cls, counts: Iterable["Counts"]) -> "Counts":
        """The counts of all detectors together."""
        every = list(counts)
        return cls(*(sum(getattr(each, name) for each in every) for name in ("right", "missed", "wrong")))


def judge(
    counts: dict[str, Counts], wanted: frozenset[str], unsure: frozenset[str], diagnosed: frozenset[str]
) -> list[str]:
    """Count the diagnoses of one transfer, except those that are `unsure`. Returns diagnoses without a label as `+code`
    and missed labels as `-code`."""
    wanted, diagnosed = wanted - unsure, diagnosed - unsure
    for code in wanted | diagnosed:
        each = counts.setdefault(code, Counts())
        each.right += code in wanted and code in diagnosed
        each.missed += code not in diagnosed
        each.wrong += code not in wanted
    return [f"+{code}" for code in sorted(diagnosed - wanted)] + [f"-{code}" for code in sorted(wanted - diagnosed)]


def table(counts: Mapping[str, Counts]) -> Iterator[str]:
    """A row for every diagnosis, then a row for all diagnoses together."""
    yield f"{'':28} {'labels':>6} {'found':>6} {'missed':>6} {'wrong':>6} {'precision':>9} {'recall':>7}"
    for code, each in [*sorted(counts.items()), ("all", Counts.total(counts.values()))]:
        yield (
            f"{code:28} {each.labels:6} {each.right:6} {each.missed:6} {each.wrong:6} "
            f"{each.precision:9.3f} {each.recall:7.3f}"
        )
