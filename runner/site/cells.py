"""Results grouped into matrix cells, with their summaries, as numbers, colours and words."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from urllib.parse import quote

from markupsafe import Markup, escape

from runner.compare.rankings import Modes, two_modes
from runner.compare.stats import Attempts, Summary, count, median_iteration, rate_text, summarise
from runner.model.result import (
    BY_KEY,
    DEFINITIONS,
    PAIR_NUMBERS,
    Finding,
    Outcome,
    PublicVerdict,
    Reading,
    Result,
    Sample,
)
from runner.model.run import CaseRecord, Job, Kind, Run
from runner.model.stack import PageLoad
from runner.units import NARROW, format_duration, format_size

# The metrics that a matrix can show. Without scripts it shows the first metric.
SWITCHABLE = ("ttlb", "goodput", "efficiency", "retransmission_ratio", "handshake_time")
COLOURED = "link_share"
"""The metric that decides the colour of a cell. It is a fraction, and it orders cells in the same way as delivery
times."""
STATISTICS = ("median", "mean")
"""Statistics over the iterations of a cell, as fields of `Summary`. A matrix shows the first statistic when the browser
runs no scripts."""


def value(numbers: Sample | PageLoad | None, key: str) -> float | None:
    """The metric's value in SI units; None when it could not be measured."""
    number: float | None = getattr(numbers, key, None)
    return number


# Results grouped into matrix cells: one cell per pair and case, with its summaries.

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
        return bool(self.refuted or self.modes or self.without_keys)

    @cached_property
    def without_keys(self) -> bool:
        """True when an iteration was judged without keys."""
        return any(result.without_keys for result in self.results)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """The summary of each metric over the iterations that succeeded and ran over the cell's protocol."""
        summaries = {
            metric.key: summarise(value(sample, metric.key) for sample in self._samples) for metric in PAIR_NUMBERS
        }
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
        return "" if self.outcome is None else self.outcome.sign

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
        return self.public.outcome.sign if self.public is not None else ""

    @cached_property
    def errors(self) -> int:
        """The number of iterations that ended as errors of the harness. They say nothing about the pair."""
        return sum(result.outcome is Outcome.ERROR for result in self.results)

    @property
    def stack(self) -> str:
        """The client without its middlebox."""
        return self.client.removesuffix(f"+{self.via}") if self.via else self.client

    @property
    def place(self) -> dict[str, str]:
        """Server, client and case: the first columns of a table for other programs."""
        return {"server": self.server, "client": self.client, "case": self.case.name}

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


STEPS = 40
"""The last step of the colour scale of η, which is `web/static/scale.css`."""


def step_of(fraction: float) -> int:
    """The step of the scale for `fraction`. Values outside of 0…1 count as 0 or 1."""
    return round(STEPS * min(1.0, max(0.0, fraction)))


# Parameters and counts in words, for pages.

NO_BREAK = "\u00a0"
_SUBSCRIPT = re.compile(r"(?<=η)_(\w+)")


def moment(unix_s: float) -> str:
    """`2026-11-21 05:40 UTC`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def amount(number: int, noun: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number:,}{NO_BREAK}{noun if number == 1 else noun + 's'}"


def host_text(host: Mapping[str, str]) -> str:
    """`lab-7, 2 cores, python 3.11.2, system Linux-6.1`: the name first, other properties after their keys."""
    others = {key: value for key, value in host.items() if key not in ("name", "cores")}
    named = [host["name"]] if "name" in host else []
    cores = [f"{host['cores']}{NO_BREAK}cores"] if "cores" in host else []
    return ", ".join([*named, *cores, *(f"{key} {value}" for key, value in others.items())])


@lru_cache(maxsize=512)  # every page has the same labels and formulas
def subscript(text: str) -> Markup:
    """`text` escaped; the index after `η_` becomes a subscript."""
    return Markup(_SUBSCRIPT.sub(r"<sub>\1</sub>", str(escape(text))))


def transfer_facts(case: CaseRecord, group: Sequence[Cell]) -> list[str]:
    """RTT and BDP of the link, the files, the time-out, the number of iterations, and the slow-start bound."""
    rtt = case.link.rtt
    path = [f"RTT {format_duration(rtt)}", f"BDP {_decimal_size(rtt * case.forward.data_rate / 8)}"]
    facts = [
        *([] if case.forward.is_real else path),
        files_text(case.file_sizes),
        f"time-out {format_duration(case.timeout)}",
        _iterations(case, group),
    ]
    bounds = sorted(summary.median for cell in group if (summary := cell.summaries.get("slow_start_bound")) is not None)
    if bounds and tells_rates(case):
        bound = BY_KEY["slow_start_bound"]
        low, high = bound.number(bounds[0]), bound.number(bounds[-1])
        span = low if low == high else f"{low} to {high}"
        facts.append(f"slow-start bound η_ss {span}{NARROW}% (delivery rate)")
    return facts


def _iterations(case: CaseRecord, group: Sequence[Cell]) -> str:
    """`5 iterations`; `n = 3 of 5 planned iterations` when no cell has all of them."""
    planned = max((cell.planned for cell in group), default=0) or case.iterations
    done = max((len(cell.results) for cell in group), default=0)
    return f"n = {done} of {planned} planned iterations" if 0 < done < planned else amount(planned, "iteration")


def files_text(sizes: tuple[int, ...]) -> str:
    """`file 10 MiB`, `files 2 MiB + 3 MiB + 5 MiB`, `50 files of 1 KiB`."""
    if len(sizes) == 1:
        return f"file {format_size(sizes[0])}"
    if len(set(sizes)) == 1:
        return f"{len(sizes)} files of {format_size(sizes[0])}"
    return "files " + " + ".join(format_size(size) for size in sizes)


def _decimal_size(size: float) -> str:
    return f"{size / 1e6:.3g}{NARROW}MB" if size >= 1e6 else f"{size / 1e3:.3g}{NARROW}kB"


def outcomes_text(results: Iterable[Result], noun: str = "job") -> str:
    """`8 of 10 jobs succeeded, 2 failed`."""
    outcomes = [result.outcome for result in results]
    parts = [f"{outcomes.count(Outcome.SUCCEEDED):,} of {amount(len(outcomes), noun)} succeeded"]
    words = {
        Outcome.FAILED: "failed",
        Outcome.ERROR: f"error{'s' if outcomes.count(Outcome.ERROR) > 1 else ''} of the harness",
        Outcome.UNSUPPORTED: "unsupported",
        Outcome.SKIPPED: "skipped",
    }
    parts += [f"{outcomes.count(outcome):,} {word}" for outcome, word in words.items() if outcome in outcomes]
    return ", ".join(parts)


def run_sentence(run: Run, results: Iterable[Result]) -> str:
    """The run in one sentence."""
    stored = list(results)
    return f"{_plan_text(run)}: {'; '.join([outcomes_text(stored), *_missing(run, stored)])}."


def _missing(run: Run, results: Iterable[Result]) -> Iterator[str]:
    """What was planned and has no result: `n = 3 of 5 planned iterations in sat and satloss`, `2 cells not run yet`."""
    planned = Counter((job.server, job.client_via, job.case_link) for job in run.order)
    stored = Counter((result.server, result.job.client_via, result.job.case_link) for result in results)
    cases: dict[str, list[str]] = {}
    for case in run.cases:
        begun = [(stored[cell], iterations) for cell, iterations in planned.items() if cell[2] == case and stored[cell]]
        if any(done < iterations for done, iterations in begun):
            low, high = min(begun)[0], max(begun)[0]
            span = f"{low}" if low == high else f"{low} to {high}"
            cases.setdefault(f"n = {span} of {max(of for _, of in begun)} planned iterations", []).append(case)
    yield from (f"{text} in {listed(names)}" for text, names in cases.items())
    if not_run := sum(not stored[cell] for cell in planned):
        yield f"{amount(not_run, 'cell')} not run yet"


def listed(names: Sequence[str]) -> str:
    """`sat`, `sat and satloss`, `sat, satloss and goodput`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _plan_text(run: Run) -> str:
    """`3 servers × 2 clients × 2 vias, 1 measurement`."""
    kinds = [case.kind for case in run.cases.values()]
    cases = " and ".join(
        amount(kinds.count(kind), kind.value) for kind in (Kind.MEASUREMENT, Kind.TEST_CASE) if kind in kinds
    )
    vias = f" × {amount(len(run.vias), 'via')}" if any(run.vias) else ""
    return f"{amount(len(run.servers), 'server')} × {amount(len(run.clients), 'client')}{vias}, {cases}"
