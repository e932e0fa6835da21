"""`compare --across-clocks`: the differences between a run in real time and a run in virtual time, with causes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from rich.markup import escape
from rich.table import Table

from runner.compare.compare import Key, OfCell, by_cell
from runner.compare.stats import least_p, least_rate_p, rate_test, shift
from runner.errors import UsageError
from runner.model.result import Outcome, Result
from runner.model.run import REAL, VIRTUAL, Job, Kind
from runner.model.stack import Role
from runner.store.runs import RunFolder, load_evidence
from runner.units import format_count

BUSY = 0.5  # share of one CPU: from here on, the CPU limits an endpoint at least for some time
SMALL = 0.02  # relative difference of medians that needs no cause
LEVEL = 0.05  # a test whose p is at least this doesn't reject chance
UNKNOWN = "unknown"
T = TypeVar("T")


Both = tuple[tuple[T, ...], tuple[T, ...]]
"""Values in real and in virtual time."""


@dataclass(frozen=True, kw_only=True)
class CellClocks(OfCell):
    """One cell in both clocks. `decided`: the number of jobs that ended as an error in neither run. `outcomes`: of all
    iterations of each run that did not end as an error. `others`: a line for each job with different outcomes.

    `goodputs`: in bit/s, of the successful jobs that both runs have; empty for a test case. `busy`: by role, the
    largest share of one CPU that the endpoint used in real time; empty when no CPU time was recorded.
    """

    decided: int
    outcomes: Both[Outcome]
    others: tuple[str, ...]
    goodputs: Both[float]
    busy: dict[str, float]

    @property
    def outcome_cause(self) -> str:
        """The cause of different outcomes, as far as the outcomes and the CPU time show it.

        Chance is a cause only when the outcome varies between iterations in the same clock, and Fisher's test finds no
        difference between the rates of success.
        """
        rates = [(outcomes.count(Outcome.SUCCEEDED), len(outcomes)) for outcomes in self.outcomes]
        p = rate_test(*rates)
        varies = [len(set(outcomes)) > 1 for outcomes in self.outcomes]
        if any(varies) and p >= LEVEL:
            where = "in both clocks" if all(varies) else f"in {REAL if varies[0] else VIRTUAL} time alone"
            return f"chance: the outcome varies {where}, and the rates of success don't differ (p={p:.2g})"
        if cause := self._cpu_cause:
            return cause
        if not (rates[0][0] or rates[1][0]):
            return f"{UNKNOWN}: no iteration succeeded, but not with the same outcome"
        if least_rate_p(*rates) >= LEVEL:
            return f"{UNKNOWN}: too few iterations (n={rates[0][1]} and {rates[1][1]}) to rule out chance"
        return f"{UNKNOWN}: chance does not explain it (p={p:.2g})"

    @property
    def difference(self) -> float:
        """Median goodput in virtual time ÷ median goodput in real time − 1."""
        real, virtual = map(median, self.goodputs)
        return virtual / real - 1

    @property
    def goodput_cause(self) -> str:
        """The cause of the difference, as far as the records show it. Empty for a small difference."""
        if abs(self.difference) <= SMALL:
            return ""
        if cause := self._cpu_cause:
            return cause
        real, virtual = self.goodputs
        if least_p(len(real), len(virtual)) < LEVEL:
            p = shift(real, virtual).p
            if p >= LEVEL:
                return f"chance: the rank test finds no difference (p={p:.2g})"
            return f"{UNKNOWN}: neither CPU time nor chance explains it (p={p:.2g})"
        if min(real) <= median(virtual) <= max(real) and len(real) > 1:
            return "chance: the median in virtual time is within the values in real time"
        return f"{UNKNOWN}: too few values (n={len(real)} and {len(virtual)}) to rule out chance"

    @property
    def _cpu_cause(self) -> str:
        """The sentence about an endpoint that was limited by its CPU; empty when no endpoint was."""
        role = max(self.busy, key=lambda role: self.busy[role], default="")
        if not role or self.busy[role] < BUSY:
            return ""
        return f"CPU: in real time the {role} used {self.busy[role]:.0%} of one CPU"

    def sentences(self) -> Iterator[str]:
        """Both rates of success with the cause of their difference, and the jobs with different outcomes."""
        rates = [
            f"{outcomes.count(Outcome.SUCCEEDED)} of {len(outcomes)} succeeded in {clock} time"
            for clock, outcomes in zip((REAL, VIRTUAL), self.outcomes, strict=True)
        ]
        yield f"{self.key}: {', '.join(rates)}. {self.outcome_cause}"
        yield from self.others


@dataclass(frozen=True, kw_only=True)
class AcrossClocks:
    """The comparison of a run in real time with a run in virtual time. `undecided`: the number of jobs that ended as an
    error in either run."""

    undecided: int
    cells: tuple[CellClocks, ...]

    @property
    def decided(self) -> int:
        """The number of jobs that ended as an error in neither run."""
        return sum(cell.decided for cell in self.cells)

    @property
    def different(self) -> list[CellClocks]:
        """The cells with a job that has different outcomes in the two clocks."""
        return [cell for cell in self.cells if cell.others]

    @property
    def measured(self) -> list[CellClocks]:
        """The cells with a goodput in both clocks, the largest difference first."""
        return sorted((cell for cell in self.cells if all(cell.goodputs)), key=lambda cell: -abs(cell.difference))


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
    shared: dict[Key, list[Job]] = {}
    for job in sorted(results[0].keys() & results[1].keys(), key=str):
        shared.setdefault(Key.of(job), []).append(job)
    if not shared:
        raise UsageError(f"{first.path} and {second.path} can't be compared: they have no job in common.")
    cells = by_cell(results[0]), by_cell(results[1])
    compared = []
    for key, jobs in shared.items():
        both = [(job, results[0][job], results[1][job]) for job in jobs]
        judged = [each for each in both if Outcome.ERROR not in (each[1].outcome, each[2].outcome)]
        goodputs = [_goodputs(real, key, [each[job] for job in jobs]) for each in results]
        others = [each for each in judged if each[1].outcome is not each[2].outcome]
        compared.append(
            CellClocks(
                **key._asdict(),
                decided=len(judged),
                outcomes=(_outcomes(cells[0][key]), _outcomes(cells[1][key])),
                others=tuple(
                    f"  {job}: {_outcome(mine)} in real time, {_outcome(other)} in virtual time"
                    for job, mine, other in others
                ),
                goodputs=(goodputs[0], goodputs[1]),
                busy=_busy(real, jobs) if others or all(goodputs) else {},
            )
        )
    undecided = sum(map(len, shared.values())) - sum(cell.decided for cell in compared)
    return AcrossClocks(undecided=undecided, cells=tuple(compared))


def _outcomes(results: Sequence[Result]) -> tuple[Outcome, ...]:
    return tuple(result.outcome for result in results if result.outcome is not Outcome.ERROR)


def _outcome(result: Result) -> str:
    return f"{result.outcome.value} ({result.findings[0].code})" if result.findings else result.outcome.value


def _goodputs(real: RunFolder, key: Key, results: Sequence[Result]) -> tuple[float, ...]:
    """The goodputs of successful jobs of a measurement."""
    if key.case not in real.run.cases or real.run.cases[key.case].kind is not Kind.MEASUREMENT:
        return ()
    return tuple(
        result.sample.goodput
        for result in results
        if result.outcome is Outcome.SUCCEEDED and result.sample is not None and result.sample.goodput
    )


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
    different, measured = comparison.different, comparison.measured
    equal = comparison.decided - sum(len(cell.others) for cell in different)
    share = f"{equal / comparison.decided:.1%}" if comparison.decided else "none"
    yield (
        f"Both clocks decided {format_count(comparison.decided, 'job')}, {share} of them with the same outcome. "
        f"{comparison.undecided} more ended as an error in one of the clocks."
    )
    same = sum(cell.decided > 0 and not cell.others for cell in comparison.cells)
    unknown = sum(cell.outcome_cause.startswith(UNKNOWN) for cell in different)
    yield (
        f"Cells: {same} with the same outcome in every iteration; {len(different) - unknown} with differences "
        f"that chance or CPU time explains; {unknown} with unexplained differences."
    )
    for cell in different:
        yield from cell.sentences()
    if measured:
        explained = sum(not cell.goodput_cause.startswith(UNKNOWN) for cell in measured)
        yield (f"Goodput of {len(measured)} cells: {explained} agree within {SMALL:.0%} or differ with a known cause.")


def table(comparison: AcrossClocks) -> Table:
    """Goodput of each cell in both clocks, with the cause of the difference."""
    shown = Table("case", "pair", "real", "virtual", "difference", "cause", box=None)
    for cell in comparison.measured:
        goodputs = (f"{median(values) / 1e6:.3f} Mbit/s (n={len(values)})" for values in cell.goodputs)
        shown.add_row(
            escape(cell.case), escape(cell.key.pair), *goodputs, f"{cell.difference:+.1%}", cell.goodput_cause
        )
    return shown
