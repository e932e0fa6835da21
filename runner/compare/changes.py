"""Changes between two runs, cell by cell, and the comparison that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runner.compare.between import BetweenRuns
from runner.model.result import Outcome
from runner.stats.change import FALSE_DISCOVERY_RATE, Shift

RATIOS = ("retransmission_ratio",)  # these are fractions: their change is in points
Key = tuple[str, str, str]  # server, client with its via, case with its link


class State(StrEnum):
    """The possible results for a cell. The values are in the JSON document."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"  # from one outcome without success to another
    SMALL = "smaller than asked for"  # a significant change below `--least`
    ALIKE = "no change shown"
    TOO_FEW = "too few iterations"


@dataclass(frozen=True, kw_only=True)
class NumberChange:
    """One metric of one cell. `p`: the larger p of the rank test and, when the variation between runs is known, of the
    test against it. `q`: p after the correction; None when the test took no part in it."""

    server: str
    client: str
    case: str
    metric: str
    shift: Shift
    p: float
    q: float | None = None
    state: State = State.TOO_FEW

    @property
    def relative(self) -> float:
        """The shift's size as a fraction of the median before, infinite when that is 0. For a ratio it is the shift
        itself."""
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
    """Outcomes of a deterministic cell, or of a random cell without a verdict in one run."""

    server: str
    client: str
    case: str
    before: Outcome
    after: Outcome
    why: str  # the first finding of the later run
    state: State


@dataclass(frozen=True, kw_only=True)
class StackChange:
    """One implementation in both runs. Image IDs are empty when the engine gave none."""

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
    """The comparison of two runs. `despite`: accepted differences of their conditions, by topic; `notes`: sentences."""

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
        """1 when something got worse, else 0."""
        return 1 if State.WORSE in self.states() else 0
