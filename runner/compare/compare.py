"""Compares two runs cell by cell: numbers by the rank test, rates by Fisher's test, deterministic cases directly."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from math import sqrt
from typing import NamedTuple

import numpy as np

from runner.compare.conditions import METRICS, RATIOS, differences, hosts_sentence, on_same_hosts, refuse, scaled
from runner.compare.stats import (
    FALSE_DISCOVERY_RATE,
    Shift,
    adjusted,
    least_n,
    least_p,
    least_rate_p,
    rate_test,
    shift,
    student_tail,
)
from runner.errors import UsageError
from runner.model.result import Outcome, Result, is_current
from runner.model.run import CaseRecord, Job, Kind, Run
from runner.store.runs import RunFolder

# The variation of a number between runs of the same images. A change counts only when it is larger than this
# variation.
#
# Iterations of one run have the same conditions, such as the host's load, so they are not replicates of the run. Runs
# of the same images under the same conditions are replicates. For a case and a metric, the cells' means form a table
# of runs × cells. An analysis of variance (Searle, Casella and McCulloch, "Variance Components", 1992, chapter 4)
# separates the part that all cells of a run share from the part that is specific to a cell in a run.

_SEPARATOR = "/"


class Key(NamedTuple):
    """A matrix cell: server, client with its via, and case with its link."""

    server: str
    client: str
    case: str

    @classmethod
    def of(cls, job: Job) -> "Key":
        return cls(job.server, job.client_via, job.case_link)

    @property
    def pair(self) -> str:
        """`client → server`."""
        return f"{self.client} → {self.server}"

    def __str__(self) -> str:
        return f"{self.pair}, {self.case}"


@dataclass(frozen=True, kw_only=True)
class OfCell:
    """A record about one cell."""

    server: str
    client: str
    case: str

    @property
    def key(self) -> Key:
        return Key(self.server, self.client, self.case)


class CellMean(NamedTuple):
    """A metric in a cell of one run, on the scale of `scaled`: the mean, the variance and the number of its values."""

    mean: float
    variance: float
    n: int


@dataclass(frozen=True)
class RunMeans:
    """The means of one run, by cell and metric."""

    run: Run
    cells: Mapping[Key, Mapping[str, CellMean]]

    def images(self, key: Key) -> tuple[str, str]:
        """The image IDs of the cell's server and client; an unknown ID is empty."""
        stacks = [self.run.implementations.get(name) for name in (key.server, key.client)]
        server, client = (stack.image_id if stack is not None else "" for stack in stacks)
        return server, client

    def document(self) -> dict[str, dict[str, list[float]]]:
        """`cells` as a JSON document."""
        return {
            _SEPARATOR.join(key): {name: list(mean) for name, mean in means.items()}
            for key, means in self.cells.items()
        }

    @classmethod
    def load(cls, run: Run, document: Mapping[str, Mapping[str, Sequence[float]]]) -> "RunMeans":
        """The means of `run` from the document that `document` returned."""
        cells = {
            Key(*text.split(_SEPARATOR)): {
                name: CellMean(mean, variance, int(n)) for name, (mean, variance, n) in means.items()
            }
            for text, means in document.items()
        }
        return cls(run, cells)


def cell_mean(metric: str, values: Sequence[float]) -> CellMean | None:
    """The mean of a cell's values; None when no value has a place on the scale."""
    known = np.array(scaled(metric, values), dtype=np.float64)
    if not len(known):
        return None
    return CellMean(float(known.mean()), float(known.var(ddof=1)) if len(known) > 1 else 0.0, len(known))


@dataclass(frozen=True, kw_only=True)
class BetweenRuns:
    """The variation between runs for one case and metric. All variances are variances of a cell's mean, so they include
    the noise of its iterations.

    `common`: the variance between runs of the mean over all cells. `special`: the variance that is specific to a cell
    in a run. `inside`: the mean noise of the iterations, which both parts contain.
    """

    case: str
    metric: str
    runs: tuple[str, ...]
    cells: int
    common: float
    special: float
    inside: float

    @property
    def deviation(self) -> float:
        """The standard deviation of a cell's mean between runs. It is a fraction; for a ratio, it is in the ratio's
        unit."""
        return sqrt(self.common + self.special)

    def p(self, before: CellMean, after: CellMean) -> float:
        """The two-sided p of the hypothesis that a cell's mean did not change, from the variation between runs. The
        degrees of freedom are by Satterthwaite, "An Approximate Distribution of Estimates of Variance Components"
        (1946)."""
        freedom, inside = len(self.runs) - 1, _inside(before, after)
        # When the cell's iterations vary more than the iterations of the earlier runs, its variation between runs is
        # multiplied by the same factor.
        more = max(1.0, inside / self.inside) if self.inside > 0 else 1.0
        parts = [(2 * self.common, freedom), (2 * self.special * more, freedom * max(1, self.cells - 1))]
        if self.cells == 1 or self.inside <= 0:
            parts.append((2 * max(0.0, inside - self.inside), max(1, before.n + after.n - 2)))
        variance = sum(part for part, _ in parts)
        moved = abs(after.mean - before.mean)
        if variance <= 0.0:
            return 0.0 if moved > 0 else 1.0
        degrees = variance**2 / sum(part**2 / part_degrees for part, part_degrees in parts)
        return 2 * student_tail(degrees, moved / sqrt(variance))


def _inside(before: CellMean, after: CellMean) -> float:
    """The variance of a mean that comes from the iterations, over both runs; 0 when each run has one value."""
    degrees = before.n + after.n - 2
    if degrees < 1:
        return 0.0
    pooled = ((before.n - 1) * before.variance + (after.n - 1) * after.variance) / degrees
    return pooled * (1 / before.n + 1 / after.n) / 2


def between_runs(
    before: RunMeans, after: RunMeans | None, others: Sequence[RunMeans]
) -> dict[tuple[str, str], BetweenRuns]:
    """The variation between runs by case and metric. It is computed from `before` and those runs of `others` that have
    the same conditions. The compared run `after` is never used. A case is left out when no cell has the same images in
    two runs."""
    compared = None if after is None else _identity(after.run)
    alike = {_identity(before.run): before}
    for other in others:
        name = _identity(other.run)
        if name != compared and name not in alike and not differences(other.run, before.run):
            alike[name] = other
    known = sorted(alike.values(), key=lambda run_means: run_means.run.started_unix_s)
    metrics = {(key.case, metric) for run_means in known for key, means in run_means.cells.items() for metric in means}
    deviations = {}
    for case, metric in sorted(metrics):
        estimate = _estimate(case, metric, known)
        if estimate is not None:
            deviations[case, metric] = estimate
    return deviations


def _identity(run: Run) -> tuple[str, float]:
    return run.name, run.started_unix_s


def _estimate(case: str, metric: str, known: Sequence[RunMeans]) -> BetweenRuns | None:
    """The estimate from the largest set of runs with cells that had the same images in all these runs. All these cells
    are used."""
    blocks: dict[tuple[int, ...], list[Key]] = {}
    for key in sorted({key for run_means in known for key in run_means.cells if key.case == case}):
        by_images: dict[tuple[str, str], list[int]] = {}
        for index, run_means in enumerate(known):
            if metric in run_means.cells.get(key, {}) and all(run_means.images(key)):
                by_images.setdefault(run_means.images(key), []).append(index)
        for indices in by_images.values():
            if len(indices) > 1:
                blocks.setdefault(tuple(indices), []).append(key)
    if not blocks:
        return None
    largest = max(blocks, key=lambda block: (len(block), len(blocks[block])))
    cells = [[known[index].cells[key][metric] for key in blocks[largest]] for index in largest]
    means = np.array([[cell.mean for cell in row] for row in cells])
    runs, count = means.shape
    by_run = means.mean(axis=1)
    common = float(by_run.var(ddof=1))  # MS(runs) / cells
    residuals = means - by_run[:, None] - means.mean(axis=0)[None, :] + means.mean()
    special = float((residuals**2).sum()) / ((runs - 1) * (count - 1)) * (1 - 1 / count) if count > 1 else 0.0
    return BetweenRuns(
        case=case,
        metric=metric,
        runs=tuple(known[index].run.name for index in largest),
        cells=count,
        common=common,
        special=special,
        inside=float(np.mean([cell.variance / cell.n for row in cells for cell in row])),
    )


# Changes between two runs, cell by cell, and the comparison that contains them.


class ChangeState(StrEnum):
    """The possible results for a cell. The JSON document contains the values."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"  # from one outcome without success to another
    SMALL = "smaller than --least"  # but statistically significant
    UNKNOWN = "not known yet"  # the two runs differ, but runs of the same images may differ as much
    ALIKE = "no change shown"
    TOO_FEW = "too few iterations"


@dataclass(frozen=True, kw_only=True)
class TestedChange(OfCell):
    """A change that a test can show. `q`: p after the correction for all tests; None when the test was left out of the
    correction."""

    p: float
    q: float | None = None
    state: ChangeState = ChangeState.TOO_FEW


@dataclass(frozen=True, kw_only=True)
class NumberChange(TestedChange):
    """One metric of one cell. `p`: the p of the rank test or, when the variation between runs is known, the larger p of
    the rank test and the test against this variation. `known`: False when iterations of one run share conditions such
    as the host's load, and the variation between runs is unknown; a difference is then no change."""

    metric: str
    shift: Shift
    known: bool = True

    @property
    def relative(self) -> float:
        """The size of the shift as a fraction of the median before; infinite when that median is 0. For a ratio: the
        size of the shift itself."""
        moved = abs(self.shift.hodges_lehmann)
        if self.metric in RATIOS:
            return moved
        return moved / self.shift.median_before if self.shift.median_before else float("inf")

    @property
    def least_p(self) -> float:
        """The smallest p that the rank test can give with these numbers of values."""
        return least_p(self.shift.before, self.shift.after)

    @property
    def better(self) -> bool:
        """True when the values after the change are the better ones."""
        return (self.shift.cliffs_delta > 0) is METRICS[self.metric]


@dataclass(frozen=True, kw_only=True)
class RateChange(TestedChange):
    """Successes and attempts of a random test case or of a measurement. Iterations that ended as errors don't
    count. `p`: of Fisher's test."""

    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def least_p(self) -> float:
        """The smallest p that Fisher's test can give with these numbers."""
        return least_rate_p(self.before, self.after)

    @property
    def better(self) -> bool:
        """True when the rate after the change is the higher one."""
        return self.after[0] * self.before[1] > self.before[0] * self.after[1]


@dataclass(frozen=True, kw_only=True)
class VerdictChange(OfCell):
    """The outcomes of a deterministic cell, or of a random cell that has no attempt in one of the runs."""

    before: Outcome
    after: Outcome
    why: str  # the first finding of the later run
    state: ChangeState


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

    def changes(self) -> list[VerdictChange | RateChange | NumberChange]:
        """Every cell and metric that was compared: outcomes, then rates, then numbers."""
        return [*self.verdicts, *self.rates, *self.numbers]

    def states(self) -> list[ChangeState]:
        """The states of every cell and metric that was compared."""
        return [change.state for change in self.changes()]

    @property
    def exit_code(self) -> int:
        """1 when at least one cell or number got worse, else 0."""
        return 1 if ChangeState.WORSE in self.states() else 0


# One cell in one run: a side of a comparison, or a point of a history.

_NO_RUN = (Outcome.UNSUPPORTED, Outcome.SKIPPED)


def by_cell(results: Mapping[Job, Result]) -> dict[Key, list[Result]]:
    """The results by cell; within a cell in the order of the jobs."""
    results_by_key: dict[Key, list[Result]] = {}
    for job, result in results.items():
        results_by_key.setdefault(Key.of(job), []).append(result)
    return results_by_key


def is_random(case: CaseRecord) -> bool:
    """True when chance affects the result: in every measurement, and in a test case with losses, jitter, or several
    iterations."""
    return case.kind is Kind.MEASUREMENT or case.iterations > 1 or case.has_chance


class CellIterations:
    """The iterations of one cell in one run. Errors are faults of the harness, so they are left out."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = [result for result in results if result.outcome is not Outcome.ERROR]
        protocols = [result.protocol for result in self.results if result.protocol]
        self.protocol = max(protocols, key=protocols.count, default="")
        outcomes = [result.outcome for result in self.results]
        self.judged = (outcomes.count(Outcome.SUCCEEDED), sum(outcome not in _NO_RUN for outcome in outcomes))
        order = (Outcome.FAILED, Outcome.SUCCEEDED, *_NO_RUN)
        self.outcome = next((outcome for outcome in order if outcome in outcomes), None)
        self.why = next((finding.headline for result in self.results for finding in result.findings), "")

    def values(self, metric: str, *, current: bool = True) -> list[float]:
        """The values of the iterations that succeeded over the cell's protocol. With `current`: only values by the
        present formula, otherwise only values by an older formula. When the formula of a number never changed, all its
        values are by the present formula.
        """
        return [
            value
            for result in self.results
            if result.outcome is Outcome.SUCCEEDED and result.sample and result.protocol in ("", self.protocol)
            if (value := getattr(result.sample, metric)) is not None
            and is_current(metric, result.sample.definitions) is current
        ]


class Outdated:
    """Counts cells whose numbers were measured by an older formula and can't be computed again, because their packets
    are gone."""

    def __init__(self, before: str, after: str) -> None:
        self._names = before, after
        self._alone = Counter[tuple[str, str]]()  # cells that are left out, because their formulas differ
        self._both = Counter[str]()  # cells that are compared by the older formula, which both runs have

    def values(self, metric: str, earlier: CellIterations, later: CellIterations) -> tuple[list[float], list[float]]:
        """The values of both sides by the same formula. It is the present formula when at least one side has it."""
        current = earlier.values(metric), later.values(metric)
        older = earlier.values(metric, current=False), later.values(metric, current=False)
        if all(older) and not any(current):
            self._both[metric] += 1
            return older
        self._alone.update((name, metric) for name, values in zip(self._names, older, strict=True) if values)
        return current

    def sentences(self) -> Iterator[str]:
        """Sentences about numbers that were left out, and about numbers that were compared by an older formula."""
        for (name, metric), cells in self._alone.items():
            yield (
                f"{metric} of {name} was measured by an older formula in {cells} cells, and their packets are gone: "
                "these values are left out."
            )
        for metric, cells in self._both.items():
            yield f"{metric} of both runs was measured by an older formula in {cells} cells; these values are compared."


# All tests that can give a significant result are corrected together. A test with too few iterations can't give such a
# result, so it is left out of the correction (Gilbert, "A modified false discovery rate multiple-comparisons procedure
# for discrete data", 2005). This is allowed, because the smallest possible p of a test depends only on the number of
# iterations and not on their values.


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
    cases = before.run.cases.keys() & after.run.cases.keys()
    shared = sorted(key for key in old.keys() & new.keys() if key.case in cases)
    if not shared:
        raise UsageError(f"{before.path} and {after.path} can't be compared: they have no pair and case in common.")
    between = between_runs(run_means(before), run_means(after), others)
    cells = _Cells(before.run, Outdated(before.name, after.name), between, same_hosts="host" not in despite)
    for key in shared:
        cells.compare(key, after.run.cases[key.case], old[key], new[key])
    notes = [*_notes(before, after, old, new), *cells.notes()]
    if cells.empty:
        raise UsageError(f"{before.name} and {after.name} have no cell that can be compared. {' '.join(notes)}")
    changes = _corrected([*cells.numbers, *cells.rates], least)
    numbers = tuple(change for change in changes if isinstance(change, NumberChange))
    tests = sum(change.q is not None for change in changes)
    return Comparison(
        before=before.name,
        after=after.name,
        stacks=_stacks(before.run, after.run),
        numbers=numbers,
        rates=tuple(change for change in changes if isinstance(change, RateChange)),
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
        if all(result.reused_from for result in new):
            self._reused += 1
            return
        earlier, later = CellIterations(old), CellIterations(new)
        if earlier.protocol and later.protocol and earlier.protocol != later.protocol:
            protocols = f"over {earlier.protocol} before, over {later.protocol} after"
            self._left_out.append(f"{key} was left out, because it ran {protocols}.")
            return
        if case.kind is Kind.MEASUREMENT:
            if sentence := hosts_sentence(old, new):
                self._hosts.setdefault(sentence, []).append(str(key))
            results = earlier.results, later.results
            sides = on_same_hosts(*results) if self._same_hosts else results
            self.numbers += self._numbers(key, *map(CellIterations, sides))
        if is_random(case) and earlier.judged[1] and later.judged[1]:
            p = rate_test(earlier.judged, later.judged)
            self.rates.append(RateChange(**key._asdict(), before=earlier.judged, after=later.judged, p=p))
        elif earlier.outcome and later.outcome:
            self.verdicts.append(_verdict(key, earlier.outcome, later.outcome, later.why))
        else:
            where = "before" if later.outcome else "after" if earlier.outcome else "before and after"
            self._undecided.setdefault(where, []).append(str(key))

    def _numbers(self, key: Key, earlier: CellIterations, later: CellIterations) -> Iterator[NumberChange]:
        """The changes of a cell's numbers. Where the variation between runs is unknown, the rank test suffices only if
        the iterations vary as much as runs do."""
        # In virtual time, no condition of the host is common to the iterations of a run, unless CPU time is charged.
        alone = self._run.clock_of(key.case) == "virtual" and not self._run.guest.get("charge")
        for metric in METRICS:
            before, after = self._outdated.values(metric, earlier, later)
            if not before or not after:
                continue
            change = shift(before, after)
            p, known = change.p, self._between.get((key.case, metric))
            means = [cell_mean(metric, values) for values in (before, after)]
            if known is not None and means[0] is not None and means[1] is not None:
                p = max(p, known.p(means[0], means[1]))
            sure = alone or known is not None
            yield NumberChange(**key._asdict(), metric=metric, shift=change, p=p, known=sure)

    @property
    def empty(self) -> bool:
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


def run_means(folder: RunFolder) -> RunMeans:
    means_by_key = {}
    for key, results in by_cell(folder.results()).items():
        case = folder.run.cases.get(key.case)
        if case is not None and case.kind is Kind.MEASUREMENT:
            side = CellIterations([result for result in results if not result.reused_from])
            means = {metric: cell_mean(metric, side.values(metric)) for metric in METRICS}
            means_by_key[key] = {metric: mean for metric, mean in means.items() if mean is not None}
    return RunMeans(folder.run, means_by_key)


def _some(names: Sequence[str], separator: str = "; ") -> str:
    return separator.join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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


def _verdict(key: Key, before: Outcome, after: Outcome, why: str) -> VerdictChange:
    if before is after:
        state = ChangeState.ALIKE
    elif before is Outcome.SUCCEEDED:
        state = ChangeState.WORSE
    else:
        state = ChangeState.BETTER if after is Outcome.SUCCEEDED else ChangeState.OTHER
    return VerdictChange(**key._asdict(), before=before, after=after, why=why, state=state)


def _corrected(changes: Sequence[NumberChange | RateChange], least: float) -> list[NumberChange | RateChange]:
    """The changes with their states, after the common correction of all tests that can give a significant result."""
    q_values = adjusted([change.p if change.least_p <= FALSE_DISCOVERY_RATE else None for change in changes])
    return [
        change if q is None else replace(change, q=q, state=_state(change, q, least))
        for change, q in zip(changes, q_values, strict=True)
    ]


def _state(change: NumberChange | RateChange, q: float, least: float) -> ChangeState:
    if q > FALSE_DISCOVERY_RATE:
        return ChangeState.ALIKE
    if isinstance(change, NumberChange) and not change.known:
        return ChangeState.UNKNOWN
    if isinstance(change, NumberChange) and change.relative < least:
        return ChangeState.SMALL
    return ChangeState.BETTER if change.better else ChangeState.WORSE


def _stacks(before: Run, after: Run) -> tuple[StackChange, ...]:
    return tuple(
        StackChange(
            name=name,
            version_before=old.version,
            version_after=new.version,
            image_id_before=old.image_id,
            image_id_after=new.image_id,
        )
        for name, old in before.implementations.items()
        if (new := after.implementations.get(name)) is not None
    )


def _notes(
    before: RunFolder, after: RunFolder, old: Mapping[Key, Collection[Result]], new: Mapping[Key, Collection[Result]]
) -> list[str]:
    """Sentences about cells that were left out, and about differences that don't prevent a comparison."""
    notes = []
    for folder, own_cells, other_cells in ((before, old, new), (after, new, old)):
        if alone := own_cells.keys() - other_cells.keys():
            cases = ", ".join(sorted({key.case for key in alone}))
            notes.append(f"{len(alone)} cells ({cases}) are only in {folder.name}; they are not compared.")
        if missing := len(folder.run.order) - sum(map(len, own_cells.values())):
            notes.append(
                f"{folder.name} has not ended: {missing} of its {len(folder.run.order)} jobs have no result yet. "
                f"To go on: ./bentpipe run --run {folder.name}"
            )
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
    few = [number for number in numbers if number.state is ChangeState.TOO_FEW]
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
