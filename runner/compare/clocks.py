"""`compare --across-clocks`: the differences between a run in real time and a run in virtual time, with causes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.markup import escape
from rich.table import Table

from runner.compare.compare import Key, OfCell, by_cell
from runner.compare.stats import least_p, least_rate_p, rate_test, shift
from runner.errors import UsageError
from runner.model.result import Outcome, Result
from runner.model.run import Job, Kind
from runner.model.stack import Role
from runner.store.runs import RunFolder, load_evidence
from runner.units import format_count

REAL, VIRTUAL = "real", "virtual"
BUSY = 0.5  # share of one CPU: from here on, the CPU limits an endpoint at least for some time
SMALL = 0.02  # relative difference of medians that needs no cause
LEVEL = 0.05  # a test whose p is at least this doesn't reject chance
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class OtherOutcome:
    """One job with different outcomes in the two clocks."""

    job: Job
    real: str  # outcome, with the code of the first finding
    virtual: str


@dataclass(frozen=True, kw_only=True)
class CellOutcomes(OfCell):
    """The outcomes of one cell in both clocks: all iterations of each run that did not end as an error. `busy`: as in
    CellClocks."""

    real: tuple[Outcome, ...]
    virtual: tuple[Outcome, ...]
    others: tuple[OtherOutcome, ...]  # iterations with different outcomes
    busy: dict[str, float]

    @property
    def cause(self) -> str:
        """The cause of the difference, as far as the outcomes and the CPU time show it.

        Chance is a cause only when the outcome varies between iterations in the same clock, and Fisher's test finds no
        difference between the rates of success.
        """
        rates = [(outcomes.count(Outcome.SUCCEEDED), len(outcomes)) for outcomes in (self.real, self.virtual)]
        p = rate_test(*rates)
        varies = [len(set(outcomes)) > 1 for outcomes in (self.real, self.virtual)]
        if any(varies) and p >= LEVEL:
            where = "in both clocks" if all(varies) else f"in {REAL if varies[0] else VIRTUAL} time alone"
            return f"chance: the outcome varies {where}, and the rates of success don't differ (p={p:.2g})"
        if cause := _cpu_cause(self.busy):
            return cause
        if not (rates[0][0] or rates[1][0]):
            return f"{UNKNOWN}: no iteration succeeded, but not with the same outcome"
        if least_rate_p(*rates) >= LEVEL:
            return f"{UNKNOWN}: too few iterations (n={len(self.real)} and {len(self.virtual)}) to rule out chance"
        return f"{UNKNOWN}: chance does not explain it (p={p:.2g})"

    def sentence(self) -> str:
        """Both rates of success, and the cause."""
        rates = [
            f"{outcomes.count(Outcome.SUCCEEDED)} of {len(outcomes)} succeeded in {clock} time"
            for clock, outcomes in ((REAL, self.real), (VIRTUAL, self.virtual))
        ]
        return f"{self.key}: {', '.join(rates)}. {self.cause}"


@dataclass(frozen=True, kw_only=True)
class CellClocks(OfCell):
    """One cell of a measurement in both clocks. `real` and `virtual`: goodputs in bit/s. `busy`: by role, the largest
    share of one CPU that the endpoint used in real time; empty when no CPU time was recorded."""

    real: tuple[float, ...]
    virtual: tuple[float, ...]
    busy: dict[str, float]

    @property
    def difference(self) -> float:
        """Median in virtual time ÷ median in real time − 1."""
        return median(self.virtual) / median(self.real) - 1

    @property
    def cause(self) -> str:
        """The cause of the difference, as far as the records show it. Empty for a small difference."""
        if abs(self.difference) <= SMALL:
            return ""
        if cause := _cpu_cause(self.busy):
            return cause
        if least_p(len(self.real), len(self.virtual)) < LEVEL:
            p = shift(self.real, self.virtual).p
            if p >= LEVEL:
                return f"chance: the rank test finds no difference (p={p:.2g})"
            return f"{UNKNOWN}: neither CPU time nor chance explains it (p={p:.2g})"
        if min(self.real) <= median(self.virtual) <= max(self.real) and len(self.real) > 1:
            return "chance: the median in virtual time is within the values in real time"
        return f"{UNKNOWN}: too few values (n={len(self.real)} and {len(self.virtual)}) to rule out chance"


def _cpu_cause(busy: Mapping[str, float]) -> str:
    """The sentence about an endpoint that was limited by its CPU; empty when no endpoint was."""
    if not busy or max(busy.values()) < BUSY:
        return ""
    role = max(busy, key=lambda role: busy[role])
    return f"CPU: in real time the {role} used {busy[role]:.0%} of one CPU"


@dataclass(frozen=True, kw_only=True)
class AcrossClocks:
    """The comparison of a run in real time with a run in virtual time."""

    real: str
    virtual: str
    equal: int  # jobs with the same outcome in both clocks
    undecided: int  # jobs that ended as an error in either run
    same: int  # cells in which every iteration had the same outcome in both clocks
    other_cells: tuple[CellOutcomes, ...]
    cells: tuple[CellClocks, ...]  # largest difference first

    @property
    def decided(self) -> int:
        """The number of jobs that have an outcome other than an error in both runs."""
        return self.equal + len(self.others)

    @property
    def others(self) -> list[OtherOutcome]:
        """The jobs with different outcomes."""
        return [other for cell in self.other_cells for other in cell.others]

    def unexplained(self) -> list[CellClocks]:
        """Cells with a difference of goodput that neither CPU time nor chance explains."""
        return [cell for cell in self.cells if cell.cause.startswith(UNKNOWN)]

    def unexplained_outcomes(self) -> list[CellOutcomes]:
        """Cells with different outcomes that neither CPU time nor chance explains."""
        return [cell for cell in self.other_cells if cell.cause.startswith(UNKNOWN)]


def across_clocks(first: RunFolder, second: RunFolder) -> AcrossClocks:
    """Compare a run in real time and a run in virtual time, in any order. Raises UsageError for other runs, and when
    the runs have no job in common."""
    by_clock = {folder.run.clock: folder for folder in (first, second)}
    if by_clock.keys() != {REAL, VIRTUAL}:
        clocks = " and ".join(folder.run.clock for folder in (first, second))
        raise UsageError(
            f"--across-clocks needs one run in real time and one in virtual time, not {clocks}: leave out "
            "--across-clocks."
        )
    real, virtual = by_clock[REAL], by_clock[VIRTUAL]
    results = real.results(), virtual.results()
    shared = sorted(results[0].keys() & results[1].keys(), key=str)
    if not shared:
        raise UsageError(f"{first.path} and {second.path} can't be compared: they have no job in common.")
    decided = [job for job in shared if Outcome.ERROR not in (each[job].outcome for each in results)]
    different = tuple(_other_cells(real, results, decided))
    return AcrossClocks(
        real=real.name,
        virtual=virtual.name,
        equal=len(decided) - sum(len(cell.others) for cell in different),
        undecided=len(shared) - len(decided),
        same=len(set(map(Key.of, decided))) - len(different),
        other_cells=different,
        cells=tuple(sorted(_cells(real, results, shared), key=lambda cell: -abs(cell.difference))),
    )


_BothResults = tuple[Mapping[Job, Result], Mapping[Job, Result]]
"""The results in real and in virtual time."""


def _jobs_by_key(jobs: Sequence[Job]) -> dict[Key, list[Job]]:
    jobs_by_key: dict[Key, list[Job]] = {}
    for job in jobs:
        jobs_by_key.setdefault(Key.of(job), []).append(job)
    return jobs_by_key


def _other_cells(real: RunFolder, results: _BothResults, decided: Sequence[Job]) -> Iterator[CellOutcomes]:
    """The cells with a job that has different outcomes in the two clocks."""
    cells = [by_cell(each) for each in results]
    for key, jobs in _jobs_by_key(decided).items():
        different = tuple(
            OtherOutcome(job=job, real=_outcome(results[0][job]), virtual=_outcome(results[1][job]))
            for job in jobs
            if results[0][job].outcome is not results[1][job].outcome
        )
        if different:
            outcomes = [
                tuple(result.outcome for result in each[key] if result.outcome is not Outcome.ERROR) for each in cells
            ]
            yield CellOutcomes(
                **key._asdict(), real=outcomes[0], virtual=outcomes[1], others=different, busy=_busy(real, jobs)
            )


def _outcome(result: Result) -> str:
    return f"{result.outcome.value} ({result.findings[0].code})" if result.findings else result.outcome.value


def _cells(real: RunFolder, results: _BothResults, shared: Sequence[Job]) -> Iterator[CellClocks]:
    """The cells of measurements with a goodput in both clocks."""
    for key, jobs in _jobs_by_key(shared).items():
        if key.case not in real.run.cases or real.run.cases[key.case].kind is not Kind.MEASUREMENT:
            continue
        goodputs = [
            tuple(
                result.sample.goodput
                for result in map(each.__getitem__, jobs)
                if result.outcome is Outcome.SUCCEEDED and result.sample is not None and result.sample.goodput
            )
            for each in results
        ]
        if all(goodputs):
            yield CellClocks(**key._asdict(), real=goodputs[0], virtual=goodputs[1], busy=_busy(real, jobs))


def _busy(folder: RunFolder, jobs: Sequence[Job]) -> dict[str, float]:
    """By role, the largest CPU time of a job, per second of its transfer."""
    shares: dict[str, float] = {}
    for evidence in (load_evidence(folder.artifacts(job)) for job in jobs):
        if evidence is None or not evidence.transfer_s:
            continue
        for role, endpoint in ((Role.CLIENT, evidence.client), (Role.SERVER, evidence.server)):
            if endpoint.cpu_s:
                share = endpoint.cpu_s / evidence.transfer_s
                shares[role.value] = max(shares.get(role.value, 0.0), share)
    return shares


def sentences(comparison: AcrossClocks) -> Iterator[str]:
    """Sentences about the number of equal and undecided jobs, about each job with different outcomes, and about the
    cells."""
    share = f"{comparison.equal / comparison.decided:.1%}" if comparison.decided else "none"
    yield (
        f"Both clocks decided {format_count(comparison.decided, 'job')}, {share} of them with the same outcome. "
        f"{comparison.undecided} more ended as an error in one of the clocks."
    )
    different, unknown = len(comparison.other_cells), len(comparison.unexplained_outcomes())
    yield (
        f"Cells: {comparison.same} with the same outcome in every iteration; {different - unknown} with differences "
        f"that chance or CPU time explains; {unknown} with unexplained differences."
    )
    for cell in comparison.other_cells:
        yield cell.sentence()
        for other in cell.others:
            yield f"  {other.job}: {other.real} in real time, {other.virtual} in virtual time"
    if (unexplained := comparison.unexplained()) or comparison.cells:
        yield (
            f"Goodput of {len(comparison.cells)} cells: {len(comparison.cells) - len(unexplained)} agree within "
            f"{SMALL:.0%} or differ with a known cause."
        )


def table(comparison: AcrossClocks) -> Table:
    """Goodput of each cell in both clocks, with the cause of the difference."""
    shown = Table("case", "pair", "real", "virtual", "difference", "cause", box=None)
    for cell in comparison.cells:
        shown.add_row(
            escape(cell.case),
            escape(cell.key.pair),
            f"{median(cell.real) / 1e6:.3f} Mbit/s (n={len(cell.real)})",
            f"{median(cell.virtual) / 1e6:.3f} Mbit/s (n={len(cell.virtual)})",
            f"{cell.difference:+.1%}",
            cell.cause,
        )
    return shown
