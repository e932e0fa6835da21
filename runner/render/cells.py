"""Results grouped as the page shows them: one cell per pair and case, with its summaries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

from runner.model.job import Job
from runner.model.numbers import DEFINITIONS
from runner.model.result import Finding, Outcome, PublicVerdict, Reading, Result, Sample
from runner.model.run import CaseRecord, Kind, Run
from runner.render.metrics import METRICS, value
from runner.stats import Attempts, Summary, count, median_iteration, rate_text, summarise
from runner.stats.modes import Modes, two_modes

SIGNS = {
    Outcome.SUCCEEDED: "✓",
    Outcome.FAILED: "✗",
    Outcome.ERROR: "?",
    Outcome.UNSUPPORTED: "–",
    Outcome.SKIPPED: "·",
}
# The outcome that a cell shows is the first of these that one of its iterations had.
_PRECEDENCE = (Outcome.FAILED, Outcome.ERROR, Outcome.SUCCEEDED, Outcome.UNSUPPORTED, Outcome.SKIPPED)
_LONG = 1_000_000  # bytes


@dataclass(frozen=True)
class Cell:
    """One pair in one case. `results` are in the order of iterations; `planned` is the number of planned
    iterations."""

    server: str
    client: str
    case: CaseRecord
    results: tuple[Result, ...]
    planned: int
    seed: int
    via: str = ""  # which `client` names too, as `<client>+<via>`

    @cached_property
    def protocol(self) -> str:
        """The ALPN that most iterations were asked to use; empty when no iteration ran, or when it wasn't recorded."""
        asked = [result.protocol for result in self.results if result.protocol]
        return max(asked, key=asked.count, default="")

    @cached_property
    def label(self) -> str:
        """The protocol where it is not the case's own: such a cell is not comparable with those without a label."""
        return "" if self.protocol in ("", self.case.protocol) else self.protocol

    @cached_property
    def refuted(self) -> tuple[Reading, ...]:
        """Parameters that an endpoint was asked for and did not apply, in any iteration: the first reading by role
        and parameter."""
        first: dict[tuple[str, str], Reading] = {}
        for result in self.results:
            for one in result.refuted:
                first.setdefault((one.role, one.parameter), one)
        return tuple(first.values())

    @cached_property
    def attempts(self) -> Attempts:
        return count(self.results)

    @cached_property
    def median(self) -> int | None:
        """The iteration that stands for the cell, None when none succeeded."""
        return median_iteration(self.results)

    @cached_property
    def shown(self) -> int | None:
        """The iteration that the plot shows first: the median iteration, otherwise the first."""
        return self.median or next((result.iteration for result in self.results), None)

    @cached_property
    def _samples(self) -> list[Sample | None]:
        """Samples of the iterations that succeeded over the cell's protocol."""
        return [
            result.sample
            for result in self.results
            if result.outcome is Outcome.SUCCEEDED and result.protocol in ("", self.protocol)
        ]

    @cached_property
    def modes(self) -> Modes | None:
        """The two groups into which the delivery times (s) of its iterations fall, None when they don't."""
        return two_modes([sample.ttlb for sample in self._samples if sample is not None and sample.ttlb])

    @property
    def noted(self) -> bool:
        """True when the cell's place in a matrix shows more than numbers."""
        return bool(self.refuted or self.modes)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """By metric, over the iterations that succeeded and ran over the cell's protocol."""
        found = {metric.key: summarise(value(sample, metric.key) for sample in self._samples) for metric in METRICS}
        return {key: summary for key, summary in found.items() if summary is not None}

    @cached_property
    def outdated(self) -> bool:
        """True when some of the cell's numbers were measured by an older formula."""
        known = [sample for sample in self._samples if sample is not None and sample.goodput is not None]
        return any(sample.definitions < DEFINITIONS for sample in known)

    @cached_property
    def outcome(self) -> Outcome | None:
        """None: nothing was run yet."""
        outcomes = {result.outcome for result in self.results}
        return next((outcome for outcome in _PRECEDENCE if outcome in outcomes), None)

    @property
    def mixed(self) -> bool:
        """A test case that some iterations passed and some failed: neither green nor red says it."""
        return self.case.kind is Kind.TEST_CASE and 0 < self.attempts.successes < self.attempts.attempts - self.errors

    @cached_property
    def css(self) -> str:
        """The class of its colour."""
        return "mixed" if self.mixed else self.outcome.value if self.outcome else "none"

    @cached_property
    def says(self) -> str:
        """The outcome in words; of a mixed cell the rate of success with its 95 % interval."""
        judged = Attempts(successes=self.attempts.successes, attempts=self.attempts.attempts - self.errors)
        if self.mixed:
            return rate_text(judged)
        return self.outcome.value if self.outcome else "not run"

    @cached_property
    def sign(self) -> str:
        if self.mixed:
            return "≈"
        return "" if self.outcome is None else SIGNS[self.outcome]

    @cached_property
    def finding(self) -> Finding | None:
        """The first reason why an iteration did not succeed."""
        return next((finding for result in self.results for finding in result.findings), None)

    @cached_property
    def broken_rules(self) -> tuple[str, ...]:
        """Protocol rules that an endpoint broke in any iteration, whether the case is about them or not: `server
        13.2.3-…`, sorted."""
        return tuple(sorted({f"{one.role} {one.code}" for result in self.results for one in result.violations}))

    @cached_property
    def public(self) -> PublicVerdict | None:
        """The public runner's verdict where it differs from this cell's outcome: it fails when any iteration fails."""
        verdicts = [result.public for result in self.results if result.public is not None]
        verdict = next((one for one in verdicts if one.outcome is Outcome.FAILED), verdicts[0] if verdicts else None)
        return verdict if verdict is not None and verdict.outcome is not self.outcome else None

    @property
    def public_sign(self) -> str:
        return SIGNS[self.public.outcome] if self.public is not None else ""

    @cached_property
    def errors(self) -> int:
        """Iterations that ended as errors of the harness; they are no verdict on the pair."""
        return sum(result.outcome is Outcome.ERROR for result in self.results)

    @property
    def ends(self) -> str:
        """`client → server`."""
        return f"{self.client} → {self.server}"

    @cached_property
    def pair(self) -> str:
        return f"{self.server}_{self.client}"

    @cached_property
    def href(self) -> str:
        """URL of the cell's page, relative to the run's."""
        return f"{quote(self.pair)}/{quote(self.case.name)}.html"


Cells = dict[tuple[str, str, str], Cell]  # by server, client with its via, case with its link


def cells(run: Run, results: Mapping[Job, Result]) -> Cells:
    """Every cell of the run that was planned or has a result, including results merged from another run."""
    grouped: dict[tuple[str, str, str], list[Result]] = {}
    planned: dict[tuple[str, str, str], int] = {}
    vias: dict[tuple[str, str, str], str] = {}
    for job in run.order:
        key = (job.server, job.client_via, job.case_link)
        vias[key] = job.via
        planned[key] = planned.get(key, 0) + 1
    for job, result in results.items():
        if job.case_link in run.cases:
            key = (job.server, job.client_via, job.case_link)
            vias[key] = job.via
            grouped.setdefault(key, []).append(result)
    return {
        key: Cell(
            *key[:2],
            case=run.cases[key[2]],
            results=tuple(sorted(grouped.get(key, ()), key=lambda result: result.iteration)),
            planned=planned.get(key, 0),
            seed=run.seed,
            via=vias[key],
        )
        for key in sorted({*grouped, *planned})
    }


def tells_rates(case: CaseRecord) -> bool:
    """True when the cell's data rates are meaningful: for measurements, and for test cases that transfer 1 MB or
    more."""
    return case.kind is Kind.MEASUREMENT or sum(case.file_sizes) >= _LONG


def ordered_cases(run: Run, kind: Kind) -> list[CaseRecord]:
    """The run's cases of one kind, from the shortest to the longest and from the cleanest to the lossiest link."""
    chosen = [case for case in run.cases.values() if case.kind is kind]
    return sorted(
        chosen,
        key=lambda case: (
            case.forward.delay + case.return_.delay,
            case.forward.loss,
            case.forward.data_rate,
            case.name,
        ),
    )


def names(configured: Sequence[str], found: Iterable[str]) -> list[str]:
    """Rows or columns: as configured, then what only results know."""
    return list(dict.fromkeys((*configured, *sorted(found))))
