"""Compares two runs: numbers by rank test, rates by Fisher's test, verdicts of deterministic cases directly.

Every test that could give a result takes part in one correction for all. A test that could not, because there are
too few iterations, is left out of the correction (Gilbert, "A modified false discovery rate multiple-comparisons
procedure for discrete data", 2005): its smallest possible p depends on the number of iterations, not on their
values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from runner.compare.between import BetweenRuns, RunMeans, between_runs, cell_mean, scaled
from runner.compare.conditions import differences, refuse
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.numbers import is_current
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.stats.change import (
    FALSE_DISCOVERY_RATE,
    Shift,
    adjusted,
    least_n,
    least_p,
    least_rate_p,
    rate_test,
    shift,
)
from runner.store import RunFolder

# Metric → whether more of it is better.
METRICS = {"ttlb": False, "goodput": True, "handshake_time": False, "retransmission_ratio": False}
RATIOS = ("retransmission_ratio",)  # fractions already: what they change by is given in points
_NO_RUN = (Outcome.UNSUPPORTED, Outcome.SKIPPED)
Key = tuple[str, str, str]  # server, client with its via, case with its link


class State(StrEnum):
    """The possible results for a cell."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"  # between two outcomes that are no success
    SMALL = "smaller than asked for"  # a change, but below `--least`
    ALIKE = "no change shown"
    TOO_FEW = "too few iterations"


@dataclass(frozen=True, kw_only=True)
class NumberChange:
    """One metric of one cell. `p` is the larger p of the rank test and of the test against the variation between
    runs, where that is known. `q`: p after the correction; None when the test took no part in it."""

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
        """The shift's size as a fraction of the median before; of a ratio it is the shift itself, in its own unit.

        Infinite where there was nothing before."""
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


_Change = TypeVar("_Change", NumberChange, RateChange)


@dataclass(frozen=True, kw_only=True)
class VerdictChange:
    """Outcomes of a deterministic cell, or of a cell in which one side has no verdict."""

    server: str
    client: str
    case: str
    before: Outcome
    after: Outcome
    why: str  # the first reason of the later run
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
    """`despite` holds the differences of the runs that the user knows of, by topic; `notes` are sentences."""

    before: str
    after: str
    stacks: tuple[StackChange, ...]
    numbers: tuple[NumberChange, ...]
    rates: tuple[RateChange, ...]
    verdicts: tuple[VerdictChange, ...]
    despite: Mapping[str, list[str]]
    notes: tuple[str, ...]
    tests: int  # that took part in the correction
    between: tuple[BetweenRuns, ...] = ()  # how much runs of the same images differ, by case and metric
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


def compare(
    before: RunFolder,
    after: RunFolder,
    *,
    despite: Set[str] = frozenset(),
    least: float = 0.0,
    others: Sequence[RunMeans] = (),
) -> Comparison:
    """Changes from `before` to `after`. A number counts as changed when it differs by the fraction `least` or
    more.

    `others`: further runs, from which the variation between runs of the same images is estimated. Raises
    UsageError when the two runs differ in a topic that is not in `despite`, or when they share no cell.
    """
    found = differences(before.run, after.run)
    refuse(found, despite)
    old, new = by_cell(before.results()), by_cell(after.results())
    shared = sorted(key for key in old.keys() & new.keys() if key[2] in before.run.cases and key[2] in after.run.cases)
    if not shared:
        raise UsageError(f"{before.path} and {after.path} have no pair and case in common: nothing can be compared.")
    numbers: list[NumberChange] = []
    rates: list[RateChange] = []
    verdicts: list[VerdictChange] = []
    spoiled: dict[str, list[str]] = {}
    notes = _notes(before, after, old, new)
    between = between_runs(run_means(before), run_means(after), others)
    outdated = _Outdated(before.name, after.name)
    for key in shared:
        case = after.run.cases[key[2]]
        one, other = Side(old[key]), Side(new[key])
        if one.protocol and other.protocol and one.protocol != other.protocol:
            notes.append(f"{title(key)}: over {one.protocol} before, {other.protocol} after; not comparable.")
            continue
        if case.kind is Kind.MEASUREMENT:
            numbers += _numbers(key, one, other, between, outdated)
        if is_random(case) and one.judged[1] and other.judged[1]:
            rates.append(_rate(key, one, other))
        elif one.outcome and other.outcome:
            verdicts.append(_verdict(key, one.outcome, other.outcome, other.why))
        else:
            where = "before" if other.outcome else "after" if one.outcome else "before and after"
            spoiled.setdefault(where, []).append(title(key))
    notes += [_spoiled(where, names) for where, names in spoiled.items()]
    notes += outdated.sentences()
    notes += _between_sentences(numbers, between)
    if not (numbers or rates or verdicts):
        raise UsageError(f"Nothing of {before.name} and {after.name} can be compared. {' '.join(notes)}")
    numbers, rates, tests = _corrected(numbers, rates)
    return Comparison(
        before=before.name,
        after=after.name,
        stacks=_stacks(before.run, after.run),
        numbers=tuple(_worth(one, least) for one in numbers),
        rates=tuple(rates),
        verdicts=tuple(verdicts),
        despite=found,
        notes=(*notes, *_enough(numbers, tests)),
        tests=tests,
        between=tuple(between.values()),
        least=least,
    )


def _worth(change: NumberChange, least: float) -> NumberChange:
    """The change, treated as no change when it is below `least`. The correction has counted it already."""
    shown = change.state in (State.WORSE, State.BETTER)
    return replace(change, state=State.SMALL) if shown and change.relative < least else change


def is_random(case: CaseRecord) -> bool:
    """True when chance decides in part: in every number, and in a test case with losses, with jitter, or with
    several iterations."""
    return case.kind is Kind.MEASUREMENT or case.iterations > 1 or case.has_chance


class Side:
    """The iterations of one cell in one run. Errors belong to the harness and don't count."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = [result for result in results if result.outcome is not Outcome.ERROR]
        asked = [result.protocol for result in self.results if result.protocol]
        self.protocol = max(asked, key=asked.count, default="")
        outcomes = [result.outcome for result in self.results]
        self.judged = (
            outcomes.count(Outcome.SUCCEEDED),
            sum(outcome not in _NO_RUN for outcome in outcomes),
        )
        order = (Outcome.FAILED, Outcome.SUCCEEDED, *_NO_RUN)
        self.outcome = next((outcome for outcome in order if outcome in outcomes), None)
        self.why = next((f"{one.code}: {one.actual}" for result in self.results for one in result.findings), "")

    def values(self, metric: str, *, current: bool = True) -> list[float]:
        """Values of the iterations that succeeded over the cell's protocol, by today's formula or by an older one.

        Numbers whose formula never changed are measured by today's.
        """
        return [
            value
            for result in self.results
            if result.outcome is Outcome.SUCCEEDED and result.sample and result.protocol in ("", self.protocol)
            if (value := getattr(result.sample, metric)) is not None
            and is_current(metric, result.sample.definitions) is current
        ]


def run_means(folder: RunFolder) -> RunMeans:
    """The means of a run that `between_runs` needs."""
    found = {}
    for key, results in by_cell(folder.results()).items():
        case = folder.run.cases.get(key[2])
        if case is not None and case.kind is Kind.MEASUREMENT:
            side = Side(results)
            means = {metric: cell_mean(scaled(metric, side.values(metric), RATIOS)) for metric in METRICS}
            found[key] = {metric: one for metric, one in means.items() if one is not None}
    return RunMeans(folder.run, found)


class _Outdated:
    """Numbers that were measured by an older formula and whose packets are gone, by run and metric."""

    def __init__(self, before: str, after: str) -> None:
        self._names = before, after
        self._alone: dict[tuple[str, str], int] = {}  # left out, for the other run has today's formula
        self._both: dict[str, int] = {}  # compared by the older formula, which both have

    def values(self, metric: str, one: Side, other: Side) -> tuple[list[float], list[float]]:
        """The values of both sides by one formula: today's when either side has it."""
        current = [side.values(metric) for side in (one, other)]
        older = [side.values(metric, current=False) for side in (one, other)]
        if all(older) and not any(current):
            self._both[metric] = self._both.get(metric, 0) + 1
            return older[0], older[1]
        for name, values in zip(self._names, older, strict=True):
            if values:
                self._alone[name, metric] = self._alone.get((name, metric), 0) + 1
        return current[0], current[1]

    def sentences(self) -> Iterator[str]:
        """Says which numbers were left out and why, and which were compared by an older formula."""
        for (name, metric), cells in self._alone.items():
            yield (
                f"{metric} of {name} was measured by an older formula in {cells} cells, and their packets are gone: "
                "these values are left out."
            )
        for metric, cells in self._both.items():
            yield f"{metric} of both runs was measured by an older formula in {cells} cells, and is compared by that."


def by_cell(results: Mapping[Job, Result]) -> dict[Key, list[Result]]:
    """Results in the order of the jobs, by server, client, case."""
    found: dict[Key, list[Result]] = {}
    for job, result in results.items():
        found.setdefault((job.server, job.client_via, job.case_link), []).append(result)
    return found


def title(key: Key) -> str:
    """`client → server, case`."""
    return f"{key[1]} → {key[0]}, {key[2]}"


def _spoiled(where: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"No verdict {where}, for the harness spoiled every iteration: {'; '.join(names[:5])}{more}."


def _numbers(
    key: Key, one: Side, other: Side, between: Mapping[tuple[str, str], BetweenRuns], outdated: _Outdated
) -> Iterable[NumberChange]:
    for metric in METRICS:
        before, after = outdated.values(metric, one, other)
        if not before or not after:
            continue
        found = shift(before, after)
        p, known = found.p, between.get((key[2], metric))
        means = [cell_mean(scaled(metric, values, RATIOS)) for values in (before, after)]
        if known is not None and means[0] is not None and means[1] is not None:
            p = max(p, known.p(means[0], means[1]))
        yield NumberChange(server=key[0], client=key[1], case=key[2], metric=metric, shift=found, p=p)


def _between_sentences(
    numbers: Sequence[NumberChange], between: Mapping[tuple[str, str], BetweenRuns]
) -> Iterator[str]:
    """Says how much runs of the same images differ, and where this isn't known."""
    cases = list(dict.fromkeys(one.case for one in numbers))
    known = {case: found for case in cases if (found := between.get((case, "ttlb"))) is not None}
    for case, found in known.items():
        runs = ", ".join(found.runs[:5]) + (f" and {len(found.runs) - 5} more" if len(found.runs) > 5 else "")
        yield (
            f"{case}: delivery time deviates by {100 * found.deviation:.2g} % between runs of the same images ({runs}; "
            f"{found.cells} cells), which every change has to exceed."
        )
    if unknown := [case for case in cases if case not in known]:
        yield (
            f"{', '.join(unknown)}: how much runs of the same images differ is not known, so a change may be the run's "
            "and not the stack's. ./bentpipe run … --repeat-runs 5 tells."
        )


def _rate(key: Key, one: Side, other: Side) -> RateChange:
    return RateChange(
        server=key[0],
        client=key[1],
        case=key[2],
        before=one.judged,
        after=other.judged,
        p=rate_test(one.judged, other.judged),
    )


def _verdict(key: Key, before: Outcome, after: Outcome, why: str) -> VerdictChange:
    if before is after:
        state = State.ALIKE
    elif before is Outcome.SUCCEEDED:
        state = State.WORSE
    else:
        state = State.BETTER if after is Outcome.SUCCEEDED else State.OTHER
    return VerdictChange(server=key[0], client=key[1], case=key[2], before=before, after=after, why=why, state=state)


def _corrected(
    numbers: Sequence[NumberChange], rates: Sequence[RateChange]
) -> tuple[list[NumberChange], list[RateChange], int]:
    """Both after the correction for all tests together, and how many tests took part in it."""
    able = [least_p(one.shift.before, one.shift.after) <= FALSE_DISCOVERY_RATE for one in numbers]
    rates_able = [least_rate_p(one.before, one.after) <= FALSE_DISCOVERY_RATE for one in rates]
    asked = [one.p for one, can in zip(numbers, able, strict=True) if can]
    asked += [one.p for one, can in zip(rates, rates_able, strict=True) if can]
    q_values = iter(adjusted(asked))
    judged_numbers = [
        _with_q(one, next(q_values), better=(one.shift.cliffs_delta > 0) is METRICS[one.metric]) if can else one
        for one, can in zip(numbers, able, strict=True)
    ]
    judged_rates = [
        _with_q(one, next(q_values), better=one.after[0] * one.before[1] > one.before[0] * one.after[1]) if can else one
        for one, can in zip(rates, rates_able, strict=True)
    ]
    return judged_numbers, judged_rates, len(asked)


def _with_q(change: _Change, q: float, *, better: bool) -> _Change:
    state = (State.BETTER if better else State.WORSE) if q <= FALSE_DISCOVERY_RATE else State.ALIKE
    return replace(change, q=q, state=state)


def _stacks(before: Run, after: Run) -> tuple[StackChange, ...]:
    names = [name for name in before.implementations if name in after.implementations]
    pairs = [(name, before.implementations[name], after.implementations[name]) for name in names]
    return tuple(
        StackChange(
            name=name,
            version_before=old.version,
            version_after=new.version,
            image_id_before=old.image_id,
            image_id_after=new.image_id,
        )
        for name, old, new in pairs
    )


def _notes(before: RunFolder, after: RunFolder, old: Mapping[Key, object], new: Mapping[Key, object]) -> list[str]:
    """Says what was left out, and which differences don't make the runs incomparable."""
    notes = []
    for folder, mine, theirs in ((before, old, new), (after, new, old)):
        if alone := mine.keys() - theirs.keys():
            cases = ", ".join(sorted({key[2] for key in alone}))
            notes.append(f"Cells in {folder.name} alone, which are not compared: {len(alone)} ({cases}).")
        cells = {(job.server, job.client_via, job.case_link) for job in folder.run.order}
        if missing := len(cells - mine.keys()):
            notes.append(f"{folder.name} has not ended: {missing} of its {len(cells)} cells have no result yet.")
    if before.run.seed == after.run.seed:
        notes.append(f"Both runs have the seed {before.run.seed}: losses fall alike, so p-values are careful ones.")
    if before.run.bentpipe_version != after.run.bentpipe_version:
        versions = f"{before.run.bentpipe_version} before, {after.run.bentpipe_version} after"
        notes.append(f"bentpipe {versions}: judge both runs with one of them (./bentpipe analyse) to compare like.")
    return notes


def _enough(numbers: Sequence[NumberChange], tests: int) -> list[str]:
    """The number of iterations that could give a result, when there are fewer."""
    few = [one for one in numbers if one.state is State.TOO_FEW]
    notes = []
    if few:
        sizes = sorted({(one.shift.before, one.shift.after) for one in few})
        seen = ", ".join(f"{before} and {after}" for before, after in sizes[:4]) + (", …" if len(sizes) > 4 else "")
        need = least_n(FALSE_DISCOVERY_RATE)
        notes.append(
            f"{len(few)} of {len(numbers)} numbers have too few iterations ever to show a change ({seen}): "
            f"at least {need} and {need} are needed."
        )
    smallest = min((min(one.shift.before, one.shift.after) for one in numbers if one.q is not None), default=0)
    if smallest and (need := least_n(FALSE_DISCOVERY_RATE / tests)) > smallest:
        notes.append(
            f"{tests} questions were asked at once: a change of a single cell alone shows from {need} and {need} "
            f"iterations on; the fewest here are {smallest}."
        )
    return notes
