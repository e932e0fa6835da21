"""Results grouped into matrix cells: one cell per pair and case, with its summaries."""

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
# A cell shows the first outcome in this list that at least one of its iterations had.
_PRECEDENCE = (Outcome.FAILED, Outcome.ERROR, Outcome.SUCCEEDED, Outcome.UNSUPPORTED, Outcome.SKIPPED)
_LONG = 1_000_000  # files of at least this size in bytes count as long


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
    via: str = ""  # also part of `client`, as `<client>+<via>`

    @cached_property
    def protocol(self) -> str:
        """The ALPN that was requested in most iterations; empty when no iteration ran, or when it wasn't recorded."""
        protocols = [result.protocol for result in self.results if result.protocol]
        return max(protocols, key=protocols.count, default="")

    @cached_property
    def label(self) -> str:
        """The protocol when it differs from the case's protocol, else empty. A cell with a label is not comparable with
        cells that have no label."""
        return "" if self.protocol in ("", self.case.protocol) else self.protocol

    @cached_property
    def refuted(self) -> tuple[Reading, ...]:
        """Requested parameters that an endpoint did not apply in at least one iteration: for each role and parameter,
        the first such reading."""
        first: dict[tuple[str, str], Reading] = {}
        for result in self.results:
            for reading in result.refuted:
                first.setdefault((reading.role, reading.parameter), reading)
        return tuple(first.values())

    @cached_property
    def attempts(self) -> Attempts:
        return count(self.results)

    @cached_property
    def median(self) -> int | None:
        """The median iteration, which represents the cell; None when no iteration succeeded."""
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
        """The two groups of the iterations' delivery times (s); None when they don't form two groups."""
        return two_modes([sample.ttlb for sample in self._samples if sample is not None and sample.ttlb])

    @property
    def noted(self) -> bool:
        """True when the cell shows notes beside its numbers in a matrix."""
        return bool(self.refuted or self.modes)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """The summary of each metric over the iterations that succeeded and ran over the cell's protocol."""
        summaries = {metric.key: summarise(value(sample, metric.key) for sample in self._samples) for metric in METRICS}
        return {key: summary for key, summary in summaries.items() if summary is not None}

    @cached_property
    def outdated(self) -> bool:
        """True when some of the cell's numbers were measured by an older formula."""
        known = [sample for sample in self._samples if sample is not None and sample.goodput is not None]
        return any(sample.definitions < DEFINITIONS for sample in known)

    @cached_property
    def outcome(self) -> Outcome | None:
        """The outcome that the cell shows; None when no iteration has run."""
        outcomes = {result.outcome for result in self.results}
        return next((outcome for outcome in _PRECEDENCE if outcome in outcomes), None)

    @property
    def mixed(self) -> bool:
        """True for a test case in which some iterations succeeded and some failed."""
        return self.case.kind is Kind.TEST_CASE and 0 < self.attempts.successes < self.attempts.attempts - self.errors

    @cached_property
    def css(self) -> str:
        """The CSS class of the cell's colour."""
        return "mixed" if self.mixed else self.outcome.value if self.outcome else "none"

    @cached_property
    def says(self) -> str:
        """The outcome in words; for a mixed cell the rate of success with its 95 % interval."""
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
        """The first finding of the iterations; None when there is no finding."""
        return next((finding for result in self.results for finding in result.findings), None)

    @cached_property
    def broken_rules(self) -> tuple[str, ...]:
        """The protocol rules that an endpoint broke in any iteration, sorted, each with the endpoint's role:
        `server rfc9000-12.3-number-reused`. Rules that the case does not test are included."""
        violations = (violation for result in self.results for violation in result.violations)
        return tuple(sorted({f"{violation.role} {violation.code}" for violation in violations}))

    @cached_property
    def public(self) -> PublicVerdict | None:
        """The public runner's verdict when it differs from this cell's outcome, else None. This verdict is a failure
        when it is a failure for any iteration."""
        verdicts = [result.public for result in self.results if result.public is not None]
        failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED]
        verdict = next(iter(failed or verdicts), None)
        return verdict if verdict is not None and verdict.outcome is not self.outcome else None

    @property
    def public_sign(self) -> str:
        return SIGNS[self.public.outcome] if self.public is not None else ""

    @cached_property
    def errors(self) -> int:
        """The number of iterations that ended as errors of the harness. They say nothing about the pair."""
        return sum(result.outcome is Outcome.ERROR for result in self.results)

    @property
    def stack(self) -> str:
        """The client without its middlebox."""
        return self.client.removesuffix(f"+{self.via}") if self.via else self.client

    @property
    def ends(self) -> str:
        """`client → server`."""
        return f"{self.client} → {self.server}"

    @cached_property
    def pair(self) -> str:
        return f"{self.server}_{self.client}"

    @cached_property
    def href(self) -> str:
        """URL of the cell's page, relative to the run's folder."""
        return f"{quote(self.pair)}/{quote(self.case.name)}.html"


Cells = dict[tuple[str, str, str], Cell]  # by server, client with its via, case with its link


def cells(run: Run, results: Mapping[Job, Result]) -> Cells:
    """Every cell of the run that was planned or has a result. A cell that was not planned has results that were merged
    from another run."""
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


def names(configured: Sequence[str], others: Iterable[str]) -> list[str]:
    """Names of rows or columns: configured names first, then names that occur only in results."""
    return list(dict.fromkeys((*configured, *sorted(others))))
