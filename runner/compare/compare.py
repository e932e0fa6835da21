"""Compares two runs: numbers by the rank test, rates by Fisher's test, verdicts of deterministic cases directly.

All tests that can give a significant result are corrected together. A test with too few iterations can't give such a
result, so it is left out of the correction (Gilbert, "A modified false discovery rate multiple-comparisons procedure
for discrete data", 2005). This is allowed, because the smallest possible p of a test depends only on the number of
iterations and not on their values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeVar

from runner.compare.between import BetweenRuns, RunMeans, between_runs, cell_mean, scaled
from runner.compare.changes import (
    RATIOS,
    Comparison,
    Key,
    NumberChange,
    RateChange,
    StackChange,
    State,
    VerdictChange,
)
from runner.compare.conditions import differences, refuse
from runner.compare.hosts import hosts_sentence, on_same_hosts
from runner.compare.sides import Outdated, Side, by_cell, is_random, key_of
from runner.errors import UsageError
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.stats.change import (
    FALSE_DISCOVERY_RATE,
    adjusted,
    least_n,
    least_p,
    least_rate_p,
    rate_test,
    shift,
)
from runner.store import RunFolder

# Metric → True when a larger value is better.
METRICS = {"ttlb": False, "goodput": True, "handshake_time": False, "retransmission_ratio": False}
_Change = TypeVar("_Change", NumberChange, RateChange)


def compare(
    before: RunFolder,
    after: RunFolder,
    *,
    despite: Set[str] = frozenset(),
    least: float = 0.0,
    others: Sequence[RunMeans] = (),
) -> Comparison:
    """Find the changes from `before` to `after`. A number counts as changed when it differs by the fraction `least` or
    more.

    `others`: other runs, from which the variation between runs of the same images is estimated. Raises UsageError when
    the conditions of the two runs differ in a topic that is not in `despite`, or when the runs have no cell in common
    that can be compared.
    """
    differing = differences(before.run, after.run)
    refuse(differing, despite)
    old, new = by_cell(before.results()), by_cell(after.results())
    shared = sorted(key for key in old.keys() & new.keys() if key[2] in before.run.cases and key[2] in after.run.cases)
    if not shared:
        raise UsageError(f"{before.path} and {after.path} can't be compared: they have no pair and case in common.")
    between = between_runs(run_means(before), run_means(after), others)
    cells = _Cells(before.run, Outdated(before.name, after.name), between, same_hosts="host" not in despite)
    for key in shared:
        cells.compare(key, after.run.cases[key[2]], old[key], new[key])
    notes = [*_notes(before, after, old, new), *cells.notes()]
    if cells.empty:
        raise UsageError(f"{before.name} and {after.name} have no cell that can be compared. {' '.join(notes)}")
    numbers, rates, tests = _corrected(cells.numbers, cells.rates)
    return Comparison(
        before=before.name,
        after=after.name,
        stacks=_stacks(before.run, after.run),
        numbers=tuple(_at_least(number, least) for number in numbers),
        rates=tuple(rates),
        verdicts=tuple(cells.verdicts),
        despite=differing,
        notes=(*notes, *_enough(numbers, tests)),
        tests=tests,
        between=tuple(between.values()),
        least=least,
    )


class _Cells:
    """Compares the cells of two runs one after another, and keeps the changes before the correction. `same_hosts`:
    numbers are compared on the hosts that both runs have."""

    def __init__(
        self, run: Run, outdated: Outdated, between: Mapping[tuple[str, str], BetweenRuns], *, same_hosts: bool
    ) -> None:
        self.numbers: list[NumberChange] = []
        self.rates: list[RateChange] = []
        self.verdicts: list[VerdictChange] = []
        self._run, self._outdated, self._between, self._same_hosts = run, outdated, between, same_hosts
        self._reused = 0
        self._left_out: list[str] = []  # sentences
        self._undecided: dict[str, list[str]] = {}  # runs without a verdict → cells
        self._hosts: dict[str, list[str]] = {}  # sentence about the hosts → cells

    def compare(self, key: Key, case: CaseRecord, old: Sequence[Result], new: Sequence[Result]) -> None:
        """Compare one cell."""
        if all(result.reused_from for result in new):
            self._reused += 1
            return
        earlier, later = Side(old), Side(new)
        if earlier.protocol and later.protocol and earlier.protocol != later.protocol:
            protocols = f"over {earlier.protocol} before, over {later.protocol} after"
            self._left_out.append(f"{title(key)} was left out, because it ran {protocols}.")
            return
        if case.kind is Kind.MEASUREMENT:
            if sentence := hosts_sentence(old, new):
                self._hosts.setdefault(sentence, []).append(title(key))
            sides = _on_same_hosts(earlier, later) if self._same_hosts else (earlier, later)
            alone = _independent_iterations(self._run, key[2])
            self.numbers += _numbers(key, *sides, self._between, self._outdated, alone=alone)
        if is_random(case) and earlier.judged[1] and later.judged[1]:
            self.rates.append(_rate(key, earlier, later))
        elif earlier.outcome and later.outcome:
            self.verdicts.append(_verdict(key, earlier.outcome, later.outcome, later.why))
        else:
            where = "before" if later.outcome else "after" if earlier.outcome else "before and after"
            self._undecided.setdefault(where, []).append(title(key))

    @property
    def empty(self) -> bool:
        """True when no cell could be compared."""
        return not (self.numbers or self.rates or self.verdicts or self._reused)

    def notes(self) -> Iterator[str]:
        """Sentences about cells that were left out or have no verdict, about hosts, and about the variation between
        runs."""
        yield from self._left_out
        for where, names in self._undecided.items():
            yield f"No verdict {where}, because every iteration ended as an error of the harness: {_some(names)}."
        for sentence, names in self._hosts.items():
            yield f"Hosts of {_some(names)}: {sentence}."
        yield from self._outdated.sentences()
        yield from _between_sentences(self.numbers, self._between)
        if self._reused:
            yield f"{self._reused} cells were taken over from an earlier run and have no numbers of their own."


def _at_least(change: NumberChange, least: float) -> NumberChange:
    """The change, marked as small when it is below `least`. Its test is still counted in the correction."""
    shown = change.state in (State.WORSE, State.BETTER)
    return replace(change, state=State.SMALL) if shown and change.relative < least else change


def run_means(folder: RunFolder) -> RunMeans:
    """The means of a run that `between_runs` needs."""
    means_by_key = {}
    for key, results in by_cell(folder.results()).items():
        case = folder.run.cases.get(key[2])
        if case is not None and case.kind is Kind.MEASUREMENT:
            side = Side([result for result in results if not result.reused_from])
            means = {metric: cell_mean(scaled(metric, side.values(metric), RATIOS)) for metric in METRICS}
            means_by_key[key] = {metric: mean for metric, mean in means.items() if mean is not None}
    return RunMeans(folder.run, means_by_key)


def title(key: Key) -> str:
    """`client → server, case`."""
    return f"{key[1]} → {key[0]}, {key[2]}"


def _on_same_hosts(earlier: Side, later: Side) -> tuple[Side, Side]:
    before, after = on_same_hosts(earlier.results, later.results, metrics=METRICS, ratios=RATIOS)
    return Side(before), Side(after)


def _some(names: Sequence[str], separator: str = "; ") -> str:
    return separator.join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _independent_iterations(run: Run, case: str) -> bool:
    """Whether the iterations of a case vary as much as runs do. In virtual time, no condition of the host is common to
    the iterations of a run, unless its CPU time is charged."""
    return run.clock_of(case) == "virtual" and not run.guest.get("charge")


def _numbers(
    key: Key,
    earlier: Side,
    later: Side,
    between: Mapping[tuple[str, str], BetweenRuns],
    outdated: Outdated,
    *,
    alone: bool,
) -> Iterable[NumberChange]:
    """The changes of a cell's numbers. `alone`: the rank test suffices where the variation between runs is unknown."""
    for metric in METRICS:
        before, after = outdated.values(metric, earlier, later)
        if not before or not after:
            continue
        change = shift(before, after)
        p, known = change.p, between.get((key[2], metric))
        means = [cell_mean(scaled(metric, values, RATIOS)) for values in (before, after)]
        if known is not None and means[0] is not None and means[1] is not None:
            p = max(p, known.p(means[0], means[1]))
        sure = alone or known is not None
        yield NumberChange(server=key[0], client=key[1], case=key[2], metric=metric, shift=change, p=p, known=sure)


def _between_sentences(
    numbers: Sequence[NumberChange], between: Mapping[tuple[str, str], BetweenRuns]
) -> Iterator[str]:
    """Sentences about the variation between runs of the same images, and about cases whose variation is unknown."""
    cases = list(dict.fromkeys(number.case for number in numbers))
    known = {case: deviation for case in cases if (deviation := between.get((case, "ttlb"))) is not None}
    for case, deviation in known.items():
        yield (
            f"{case}: delivery time deviates by {100 * deviation.deviation:.2g} % between runs of the same images "
            f"({_some(deviation.runs, ', ')}; {deviation.cells} cells). A change must exceed that."
        )
    if unknown := list(dict.fromkeys(number.case for number in numbers if not number.known)):
        yield (
            f"{', '.join(unknown)}: no number counts as changed, because it is not known yet how much runs of the same "
            "images differ. Earlier nights of this selection tell it, or ./bentpipe run … --repeat-runs 5."
        )


def _rate(key: Key, earlier: Side, later: Side) -> RateChange:
    return RateChange(
        server=key[0],
        client=key[1],
        case=key[2],
        before=earlier.judged,
        after=later.judged,
        p=rate_test(earlier.judged, later.judged),
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
    """The numbers and rates after the common correction of all tests, and the number of these tests."""
    p_values = [
        change.p if least_p(change.shift.before, change.shift.after) <= FALSE_DISCOVERY_RATE else None
        for change in numbers
    ]
    p_values += [
        change.p if least_rate_p(change.before, change.after) <= FALSE_DISCOVERY_RATE else None for change in rates
    ]
    q_values = adjusted(p_values)
    judged_numbers = [
        _with_q(change, q, better=(change.shift.cliffs_delta > 0) is METRICS[change.metric])
        for change, q in zip(numbers, q_values[: len(numbers)], strict=True)
    ]
    judged_rates = [
        _with_q(change, q, better=change.after[0] * change.before[1] > change.before[0] * change.after[1])
        for change, q in zip(rates, q_values[len(numbers) :], strict=True)
    ]
    return [_if_known(change) for change in judged_numbers], judged_rates, sum(q is not None for q in q_values)


def _if_known(change: NumberChange) -> NumberChange:
    significant = change.state in (State.WORSE, State.BETTER)
    return replace(change, state=State.UNKNOWN) if significant and not change.known else change


def _with_q(change: _Change, q: float | None, *, better: bool) -> _Change:
    if q is None:
        return change
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
    """Sentences about cells that were left out, and about differences that don't prevent a comparison."""
    notes = []
    for folder, own_cells, other_cells in ((before, old, new), (after, new, old)):
        if alone := own_cells.keys() - other_cells.keys():
            cases = ", ".join(sorted({key[2] for key in alone}))
            notes.append(f"{len(alone)} cells ({cases}) are only in {folder.name}; they are not compared.")
        cells = set(map(key_of, folder.run.order))
        if missing := len(cells - own_cells.keys()):
            notes.append(f"{folder.name} has not ended: {missing} of its {len(cells)} cells have no result yet.")
    if before.run.seed == after.run.seed:
        notes.append(
            f"Both runs have the seed {before.run.seed} and so the same losses. The p values tend to be too large."
        )
    if before.run.bentpipe_version != after.run.bentpipe_version:
        versions = f"{before.run.bentpipe_version} before, {after.run.bentpipe_version} after"
        notes.append(f"bentpipe {versions}: judge both runs with the same version (./bentpipe analyse).")
    return notes


def _enough(numbers: Sequence[NumberChange], tests: int) -> list[str]:
    """Sentences with the number of iterations that a significant result needs, when the runs have fewer iterations."""
    few = [number for number in numbers if number.state is State.TOO_FEW]
    notes = []
    if few:
        sizes = sorted({(number.shift.before, number.shift.after) for number in few})
        counts = ", ".join(f"{before} and {after}" for before, after in sizes[:4]) + (", …" if len(sizes) > 4 else "")
        need = least_n(FALSE_DISCOVERY_RATE)
        notes.append(
            f"{len(few)} of {len(numbers)} numbers have too few iterations to show any change ({counts}): "
            f"{need} in each run are enough."
        )
    smallest = min(
        (min(number.shift.before, number.shift.after) for number in numbers if number.q is not None), default=0
    )
    if smallest and (need := least_n(FALSE_DISCOVERY_RATE / tests)) > smallest:
        notes.append(
            f"The p values are corrected for {tests} tests: to show the change of a single cell, each run needs {need} "
            f"iterations of it; the smallest number here is {smallest}."
        )
    return notes
