"""One matrix cell of two builds, base and head: the rule for further iterations, and the verdict on a change.

Both builds run a cell once, with the same seed. When the two results differ, both builds run the cell again with other
seeds, until each build has 5 iterations and, if these decide nothing, 10 iterations. A difference counts as a change
only when these iterations confirm it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import comb
from statistics import median

from runner.check.cell import TRIES, Place, by_the_peer, code_of
from runner.model.result import Outcome, Result
from runner.plan.jobs import GATE_FAILED
from runner.stats.change import FALSE_DISCOVERY_RATE, rank_test, rate_test
from testcases.hits import MISSED

FIRST, SECOND = 5, 10  # iterations of each build after which a difference is judged
# The largest two-sided p of a change. With 5 iterations of each build, p is smaller only when one build always succeeds
# and the other never (0.008). With 10 iterations, the numbers of successes must differ by 7 (0.003). A cell that fails
# by chance, with any probability, counts as worse in at most 0.2 % of comparisons. A cell that fails one time in ten
# counts as worse in 0.001 % of comparisons (runner/tests/check/test_change.py computes both).
LEAST_P = 0.01
# The largest p of a change that all peers together show; such a change needs no further iterations. When 7 of 7 peers
# fail with head and none with base, p is smaller.
GROUP_P = 0.001
_GOOD = Outcome.SUCCEEDED


class State(StrEnum):
    """The result for one cell. Only WORSE turns a pull request red."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "fails for another reason"
    UNCONFIRMED = "differed, but chance can explain this"
    SAME = "unchanged"
    OPEN = "not decided"


@dataclass(frozen=True, kw_only=True)
class Change:
    """The iterations of one cell with both builds, in order. `least`: the smallest relative change of the delivery
    time that counts, a fraction. `questions`: the number of all compared cells of measurements."""

    place: Place
    base: tuple[Result, ...]
    head: tuple[Result, ...]
    measured: bool = False
    least: float = 0.1
    questions: int = 1
    confirmed: bool = False  # by the other peers of the same case and role

    @cached_property
    def decided(self) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
        """The iterations of base and of head that have a verdict."""
        before, after = (tuple(result for result in side if has_verdict(result)) for side in (self.base, self.head))
        return before, after

    @cached_property
    def rates(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Successes and attempts of base and of head. When head itself causes a failure, failures of base that the peer
        caused count as successes: otherwise they would hide the new failure."""
        excused = self._peers_fault if any(map(self._own_fault, self.decided[1])) else lambda _: False
        good = sum(result.outcome is _GOOD or excused(result) for result in self.decided[0])
        good_after = sum(result.outcome is _GOOD for result in self.decided[1])
        return (good, len(self.decided[0])), (good_after, len(self.decided[1]))

    def _own_fault(self, result: Result) -> bool:
        return result.culprit == self.place.role.value

    def _peers_fault(self, result: Result) -> bool:
        return by_the_peer(result, self.place.role)

    @cached_property
    def times(self) -> tuple[list[float], list[float]]:
        """Delivery times in seconds of base and of head; empty for a test case."""
        if not self.measured:
            return [], []
        before, after = (
            [result.sample.ttlb for result in side if result.outcome is _GOOD and result.sample and result.sample.ttlb]
            for side in self.decided
        )
        return before, after

    @cached_property
    def about_times(self) -> bool:
        """True when every iteration succeeded, so that only the delivery times can differ."""
        (good, tried), (good_after, tried_after) = self.rates
        return good == tried and good_after == tried_after and all(self.times)

    @property
    def slowdown(self) -> float:
        """Relative change of the median delivery time from base to head; 0 for a test case."""
        before, after = self.times
        return median(after) / median(before) - 1 if before and after else 0.0

    @cached_property
    def way(self) -> int:
        """-1 when head is worse, 1 when it is better, 0 when both are equal."""
        if not all(self.decided):
            return 0
        if self.about_times:
            return 0 if abs(self.slowdown) < self.least else -1 if self.slowdown > 0 else 1
        (good, tried), (good_after, tried_after) = self.rates
        difference = good_after * tried - good * tried_after
        return (difference > 0) - (difference < 0)

    @cached_property
    def pairs(self) -> int:
        """The number of iterations with a verdict, of the build that has fewer of them."""
        return min(map(len, self.decided))

    @cached_property
    def p(self) -> float:
        """Two-sided p of the hypothesis that base and head behave equally."""
        return rank_test(*self.times) if self.about_times else rate_test(*self.rates)

    @property
    def further(self) -> int:
        """The number of iterations that both builds must run next."""
        if any(sum(not has_verdict(result) for result in side) >= TRIES for side in (self.base, self.head)):
            return 0
        if not all(self.decided):
            codes = {code_of(result) for result in (*self.base, *self.head) if result.outcome is Outcome.ERROR}
            return int(codes == {MISSED})
        if self.way == 0 or self.confirmed:
            return 0
        if self.pairs < FIRST:
            return FIRST - self.pairs
        return SECOND - self.pairs if self.pairs < SECOND and self._may_be_shown else 0

    @property
    def _may_be_shown(self) -> bool:
        """True when the first iterations decide nothing, but more iterations can show a change."""
        if self.about_times:
            return self.p <= LEAST_P  # many numbers are compared, so a second, stricter test is needed
        (good, _), (good_after, _) = self.rates
        return self.p > LEAST_P and abs(good - good_after) > 1

    @cached_property
    def state(self) -> State:
        """The result of the iterations so far."""
        if not all(self.decided):
            return State.OPEN
        if self.way == 0:
            return State.OTHER if self._other_reason else State.SAME
        if self.about_times:
            shown = self.pairs >= SECOND and self.p <= FALSE_DISCOVERY_RATE / max(1, self.questions)
        else:
            shown = self.pairs >= FIRST and self.p <= LEAST_P
        if not (shown or self.confirmed):
            return State.UNCONFIRMED
        return State.WORSE if self.way < 0 else State.BETTER

    @property
    def _other_reason(self) -> bool:
        before, after = self.decided
        reasons = [{reason(result) for result in side} for side in (before, after)]
        return self.rates[1][0] == 0 and reasons[0].isdisjoint(reasons[1])

    @property
    def shown(self) -> Result:
        """The iteration that represents the cell: the first of head (of base for a better cell) that did not succeed,
        otherwise the first iteration of all."""
        side = self.base if self.state is State.BETTER else self.head
        return next(
            (result for result in side if result.outcome is not _GOOD and has_verdict(result)),
            (*self.head, *self.base)[0],
        )


def has_verdict(result: Result) -> bool:
    """True unless the result is an error of the harness, or the case was not run because the handshake had failed."""
    return result.outcome is not Outcome.ERROR and code_of(result) != GATE_FAILED


def reason(result: Result) -> str:
    """The code of the first finding; without a finding the outcome."""
    return code_of(result) or result.outcome.value


def confirmed_by_peers(changes: Mapping[Place, Change]) -> frozenset[Place]:
    """The cells whose difference needs no further iterations, because many peers of the same case and role show it.

    All cells of a case and role form a group. Its cells that differ for the same reason and in the same direction are
    confirmed when the whole group differs between base and head with p ≤ GROUP_P.
    """
    groups: dict[tuple[str, str], list[Change]] = {}
    for place, change in changes.items():
        if all(change.decided):
            groups.setdefault((place.case, place.role.value), []).append(change)
    return frozenset(
        change.place
        for group in groups.values()
        for change in group
        if change.way != 0 and _group_p(group, change) <= GROUP_P
    )


def _group_p(group: Sequence[Change], change: Change) -> float:
    """Two-sided p of the hypothesis that base and head are equal with all peers in the aspect in which `change`
    differs."""
    if change.about_times:
        ways = [other.way for other in group if other.about_times]
        less, more = sorted((ways.count(-1), ways.count(1)))
        return float(min(1.0, 2 * sum(comb(less + more, k) for k in range(less + 1)) / 2 ** (less + more)))
    sides: list[Callable[[Change], Result]] = [lambda change: change.decided[0][0], lambda change: change.decided[1][0]]
    cause = reason(sides[1 if change.way < 0 else 0](change))
    before, after = (sum(reason(side(other)) != cause for other in group) for side in sides)
    return rate_test((before, len(group)), (after, len(group)))
