"""Changes between two runs, cell by cell, and the comparison that contains them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runner.compare.between import BetweenRuns
from runner.model.result import Outcome
from runner.stats.change import FALSE_DISCOVERY_RATE, Shift

RATIOS = ("retransmission_ratio",)  # metrics that are fractions; their change is given in percentage points
Key = tuple[str, str, str]  # server, client with its via, case with its link


class State(StrEnum):
    """The possible results for a cell. The JSON document contains the values."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"  # from one outcome without success to another
    SMALL = "smaller than --least"  # but statistically significant
    UNKNOWN = "not known yet"  # the two runs differ, but runs of the same images may differ as much
    ALIKE = "no change shown"
    TOO_FEW = "too few iterations"


@dataclass(frozen=True, kw_only=True)
class NumberChange:
    """One metric of one cell. `p`: the p of the rank test or, when the variation between runs is known, the larger p of
    the rank test and the test against this variation. `q`: p after the correction; None when the test was left out of
    the correction. `known`: False when iterations of one run share conditions such as the host's load, and the
    variation between runs is unknown; a difference is then no change."""

    server: str
    client: str
    case: str
    metric: str
    shift: Shift
    p: float
    known: bool = True
    q: float | None = None
    state: State = State.TOO_FEW

    @property
    def relative(self) -> float:
        """The size of the shift as a fraction of the median before; infinite when that median is 0. For a ratio: the
        size of the shift itself."""
        moved = abs(self.shift.hodges_lehmann)
        if self.metric in RATIOS:
            return moved
        return moved / self.shift.median_before if self.shift.median_before else float("inf")


@dataclass(frozen=True, kw_only=True)
class RateChange:
    """Successes and attempts of a random test case or of a measurement. Iterations that ended as errors don't
    count."""

    server: str
    client: str
    case: str
    before: tuple[int, int]
    after: tuple[int, int]
    p: float
    q: float | None = None
    state: State = State.TOO_FEW


@dataclass(frozen=True, kw_only=True)
class VerdictChange:
    """The outcomes of a deterministic cell, or of a random cell that has no attempt in one of the runs."""

    server: str
    client: str
    case: str
    before: Outcome
    after: Outcome
    why: str  # the first finding of the later run
    state: State


@dataclass(frozen=True, kw_only=True)
class StackChange:
    """One implementation in both runs. An image ID is empty when the engine gave none."""

    name: str
    version_before: str
    version_after: str
    image_id_before: str
    image_id_after: str

    @property
    def changed(self) -> bool:
        return (self.version_before, self.image_id_before) != (self.version_after, self.image_id_after)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two runs. `despite`: the accepted differences of their conditions, by topic. `notes`: sentences
    for the user."""

    before: str
    after: str
    stacks: tuple[StackChange, ...]
    numbers: tuple[NumberChange, ...]
    rates: tuple[RateChange, ...]
    verdicts: tuple[VerdictChange, ...]
    despite: Mapping[str, list[str]]
    notes: tuple[str, ...]
    tests: int  # the number of tests in the correction
    between: tuple[BetweenRuns, ...] = ()  # variation between runs of the same images, by case and metric
    rate: float = FALSE_DISCOVERY_RATE
    least: float = 0.0  # smallest relative change of a number that is reported, a fraction

    def states(self) -> list[State]:
        """The states of every cell and metric that was compared."""
        changes: list[VerdictChange | RateChange | NumberChange] = [*self.verdicts, *self.rates, *self.numbers]
        return [change.state for change in changes]

    @property
    def exit_code(self) -> int:
        """1 when at least one cell or number got worse, else 0."""
        return 1 if State.WORSE in self.states() else 0
