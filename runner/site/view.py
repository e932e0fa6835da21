"""The input of a run's pages: the run with its results grouped into cells, as numbers, colours and words, the factors
that decide its numbers, the other runs of the site."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from math import exp
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from runner.compare import compare
from runner.compare.compare import Comparison, Key, RunMeans, by_cell, run_means
from runner.compare.conditions import differences
from runner.compare.rankings import (
    Correlation,
    Modes,
    RankedStack,
    Share,
    Shares,
    groups,
    ranking,
    shares,
    spearman,
    two_modes,
)
from runner.compare.stats import Attempts, Summary, count, median_iteration, rate_text, summarise
from runner.errors import UsageError
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
from runner.model.run import CaseRecord, ImplementationRecord, Job, Kind, Run
from runner.model.stack import PageLoad
from runner.store.runs import RunFolder
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
JUDGED = ("succeeded", "failed", "mixed")  # `Cell.css` of cells with a verdict
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
    def times(self) -> list[float]:
        """The delivery times, in seconds, of the iterations that count in the cell's summaries."""
        return [sample.ttlb for sample in self._samples if sample is not None and sample.ttlb is not None]

    @cached_property
    def modes(self) -> Modes | None:
        """The two groups of the iterations' delivery times (s); None when they don't form two groups."""
        return two_modes(self.times)

    @property
    def noted(self) -> bool:
        """True when the cell shows notes beside its numbers in a matrix."""
        return bool(self.refuted or self.modes or self.without_keys)

    @cached_property
    def without_keys(self) -> bool:
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


Cells = dict[tuple[str, str, str], Cell]  # by the fields of `Key`


def cells(run: Run, results: Mapping[Job, Result]) -> Cells:
    """Every cell of the run that was planned or has a result. A cell that was not planned has results that were merged
    from another run."""
    grouped = by_cell({job: result for job, result in results.items() if job.case_link in run.cases})
    planned = Counter(map(Key.of, run.order))
    vias = {Key.of(job): job.via for job in (*run.order, *results)}
    return {
        key: Cell(
            key.server,
            key.client,
            case=run.cases[key.case],
            results=tuple(sorted(grouped.get(key, ()), key=lambda result: result.iteration)),
            planned=planned[key],
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


def moment(unix_s: float) -> str:
    """`2026-11-21 05:40 UTC`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def amount(number: int, noun: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number:,}{NO_BREAK}{noun if number == 1 else noun + 's'}"


def transfer_facts(case: CaseRecord, group: Sequence[Cell]) -> list[str]:
    """RTT and BDP of the link, the files, the time-out, the number of iterations, and the slow-start bound."""
    rtt = case.link.rtt
    bdp = rtt * case.forward.data_rate / 8
    bdp_text = f"{bdp / 1e6:.3g}{NARROW}MB" if bdp >= 1e6 else f"{bdp / 1e3:.3g}{NARROW}kB"
    path = [f"RTT {format_duration(rtt)}", f"BDP {bdp_text}"]
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
    planned = Counter(map(Key.of, run.order))
    stored = Counter(Key.of(result.job) for result in results)
    cases: dict[str, list[str]] = {}
    for case in run.cases:
        begun = [(stored[key], planned[key]) for key in planned if key.case == case and stored[key]]
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


# Explains why goodput and delivery time rank stacks differently: their intervals begin and end at different
# packets.

_KEYS = ("ttlb", "goodput", "first_server_1rtt", "last_server_1rtt")
_LEAST = 0.002  # fraction of a goodput; smaller differences don't count as a different order


def other_order(cells: Sequence[Cell], role: str, places: Sequence[RankedStack]) -> str:
    """Sentences about the stacks of `role` (`server` or `client`) that goodput and delivery time rank differently.
    Empty when both orders agree.

    Delivery time = first 1-RTT packet + interval of goodput − (last 1-RTT packet − last new byte), each as a median
    over the stack's cells. Two stacks can differ in the first term and in the term in brackets. The sentences give the
    term with the larger difference as the reason.
    """
    known = {place.name: values for place in places if (values := _medians(cells, role, place.name)) is not None}
    names = [place.name for place in places if place.name in known]
    swapped = [
        (slow, fast)
        for fast, slow in combinations(names, 2)
        if known[fast]["ttlb"] < known[slow]["ttlb"] and known[slow]["goodput"] > known[fast]["goodput"] * (1 + _LEAST)
    ]
    if not swapped:
        return ""
    order = sorted(names, key=lambda name: -known[name]["goodput"])
    slow, fast = max(swapped, key=lambda pair: known[pair[0]]["goodput"] / known[pair[1]]["goodput"])
    return f"By goodput the order of the {role}s is different: {', '.join(order)}. {_why(known, slow, fast)}"


def _medians(cells: Sequence[Cell], role: str, name: str) -> dict[str, float] | None:
    chosen = [cell for cell in cells if getattr(cell, role) == name and not cell.outdated]
    medians = {key: [cell.summaries[key].median for cell in chosen if key in cell.summaries] for key in _KEYS}
    return {key: median(values) for key, values in medians.items()} if all(medians.values()) else None


def _why(known: Mapping[str, Mapping[str, float]], slow: str, fast: str) -> str:
    """A sentence that explains why `slow`, which delivers later, has more goodput than `fast`."""
    begin = {name: known[name]["first_server_1rtt"] for name in (slow, fast)}
    tail = {name: known[name]["last_server_1rtt"] - known[name]["ttlb"] for name in (slow, fast)}
    goodput = BY_KEY["goodput"]
    has = f"{slow} has {goodput.text(known[slow]['goodput'])} and {fast} {goodput.text(known[fast]['goodput'])}"
    if begin[slow] - begin[fast] >= tail[fast] - tail[slow]:
        return (
            f"{has}, although {fast} delivers earlier: goodput counts only from the server's first 1-RTT packet on, "
            f"which comes after {begin[slow]:.2f} s with {slow} and after {begin[fast]:.2f} s with {fast}."
        )
    return (
        f"{has}, although {fast} delivers earlier: goodput counts up to the server's last 1-RTT packet, which comes "
        f"{tail[fast]:.2f} s after the last new byte with {fast} and {tail[slow]:.2f} s after it with {slow}."
    )


# The factors that decide a measurement's delivery time: shares of the variance, rankings, congestion controllers,
# agreement between measurements.
#
# Cells of different protocols are never mixed. Only iterations that succeeded count.


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One measurement over one protocol. `shares` is None when the table of cells is too small to compute shares."""

    case: CaseRecord
    label: str
    shares: Shares | None
    servers: list[RankedStack]
    clients: list[RankedStack]
    controllers: list[tuple[str, Summary]]
    other_orders: list[str]  # sentences about roles whose order by goodput is different, with the reason

    @property
    def why_not(self) -> str:
        """The reasons why stacks have no rank, by role; empty when all stacks have a rank."""
        roles = []
        for role, places in (("servers", self.servers), ("clients", self.clients)):
            if reasons := sorted({place.why_not for place in places if place.why_not}):
                some = "" if all(place.why_not for place in places) else "some "
                roles.append(f"{some}{role}, {'; '.join(reasons)}")
        return "; ".join(roles)

    @property
    def parts(self) -> list[tuple[str, str, Share]]:
        """CSS class, words and share of each component that can be separated."""
        if self.shares is None:
            return []
        parts = [("server", "server", self.shares.server), ("client", "client", self.shares.client)]
        if self.shares.residual is None:
            return [*parts, ("pair", "pair or iteration", self.shares.pair)]
        return [*parts, ("pair", "pair", self.shares.pair), ("residual", "iteration", self.shares.residual)]

    @property
    def factor(self) -> float:
        """The factor by which delivery times differ from their geometric mean at one standard deviation."""
        return exp(self.shares.deviation) if self.shares is not None else 1.0


@dataclass(frozen=True)
class Agreement:
    """The agreement of two measurements over the same protocol."""

    first: CaseRecord
    other: CaseRecord
    label: str
    correlation: Correlation


def decisions(run: Run, table: Cells) -> list[Decision]:
    """One decision for each measurement and protocol in which at least two cells have a delivery time.

    Cells through a middlebox are compared on the page *Middleboxes*. They are never in one ranking with cells without a
    middlebox.
    """
    decisions = []
    for case in ordered_cases(run, Kind.MEASUREMENT):
        measured = [cell for cell in table.values() if cell.case == case and "ttlb" in cell.summaries]
        vias = {cell.via for cell in measured}
        measured = [cell for cell in measured if cell.via == min(vias)]  # "" (no middlebox) sorts first
        for label in sorted({cell.label for cell in measured}):
            group = [cell for cell in measured if cell.label == label]
            if len(group) > 1:
                decisions.append(_decision(run, case, label, group))
    return decisions


def _decision(run: Run, case: CaseRecord, label: str, group: list[Cell]) -> Decision:
    medians = {(cell.server, cell.client): cell.summaries["ttlb"].median for cell in group}
    times = {(cell.server, cell.client): cell.times for cell in group}
    by_controller = ((controller(run.implementations, server), value) for (server, _), value in medians.items())
    servers, clients = ranking(times, place=0, others="clients"), ranking(times, place=1, others="servers")
    orders = (other_order(group, role, places) for role, places in (("server", servers), ("client", clients)))
    return Decision(
        case=case,
        label=label,
        shares=shares(times, seed=run.seed),
        servers=servers,
        clients=clients,
        controllers=groups(by_controller),
        other_orders=[sentence for sentence in orders if sentence],
    )


def controller(implementations: Mapping[str, ImplementationRecord], server: str) -> str:
    """The congestion controller of a stack, as its variant or its entry names it."""
    record = implementations.get(server)
    if record is None:
        return "unknown"
    return record.parameters.get("CCA") or record.congestion_control or "unknown"


def agreements(run: Run, table: Cells) -> list[Agreement]:
    """The agreement of every two measurements over the same protocol that have at least 3 pairs in common."""
    times: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for cell in table.values():
        if "ttlb" in cell.summaries and cell.case.kind is Kind.MEASUREMENT:
            of_case = times.setdefault((cell.label, cell.case.name), {})
            of_case[cell.server, cell.client] = cell.summaries["ttlb"].median
    shared_pairs = []
    cases = ordered_cases(run, Kind.MEASUREMENT)
    for label in sorted({label for label, _ in times}):
        for first, other in combinations(cases, 2):
            x, y = (times.get((label, case.name), {}) for case in (first, other))
            pairs = sorted(x.keys() & y.keys())
            correlation = spearman([x[pair] for pair in pairs], [y[pair] for pair in pairs])
            if correlation is not None:
                shared_pairs.append(Agreement(first, other, label, correlation))
    return shared_pairs


# The inputs from which a site was drawn, so that the next drawing draws only changed pages again.
#
# Inputs are compared by name, size and modification time of their files; the contents are not read. The manifest is the
# site's marker file. It is emptied before a drawing changes any page, and written at the end of the drawing. After an
# interrupted drawing it is empty, so the next drawing draws all pages.

MARKER = ".bentpipe-site"  # bentpipe never replaces a folder without this file


@dataclass
class Manifest:
    """The inputs of a drawing. `program`: digest of the program that drew.

    `cells` by `<run>/<pair>/<case>`. `runs` by name: digests of the inputs, and values that later drawings need.
    """

    program: str = ""
    cells: dict[str, tuple[str, str]] = field(default_factory=dict)  # digest, sparkline
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, site: Path, program: str) -> "Manifest":
        """The manifest of `site`; an empty manifest when `site` has none, or when another version of the program drew
        the site."""
        try:
            document = json.loads((site / MARKER).read_text(encoding="utf-8"))
            manifest = cls(**document)
            manifest.cells = {key: (value[0], value[1]) for key, value in manifest.cells.items()}
        except (OSError, ValueError, TypeError, IndexError):
            return cls(program=program)
        return manifest if manifest.program == program else cls(program=program)

    def save(self, site: Path) -> None:
        (site / MARKER).write_text(json.dumps(asdict(self), separators=(",", ":"), sort_keys=True), encoding="utf-8")


def digest(parts: Iterable[object]) -> str:
    """A digest of the parts, in their order."""
    digest_of_all = blake2b(digest_size=16)
    for part in parts:
        digest_of_all.update(repr(part).encode())
        digest_of_all.update(b"\0")
    return digest_of_all.hexdigest()


def folder_state(folder: Path, *, depth: int) -> list[tuple[str, int, int]]:
    """Name, size and modification time of every file in `folder`, and in its subfolders down to `depth`."""
    files: list[tuple[str, int, int]] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return files
    for entry in entries:
        about = entry.stat(follow_symlinks=False)
        files.append((entry.name, about.st_size, about.st_mtime_ns))
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            files += folder_state(Path(entry.path), depth=depth - 1)
    return files


_ALIKE = 0.5  # share of a run's cells that another run of the same plan must exceed


class Level(NamedTuple):
    """The level of a server in one case, over `cells` cells.

    `delivery`: the median of the cells' median delivery times, in seconds. `goodput`: the mean of the cells' mean
    goodputs, in bit/s; None when a cell was measured by an older formula.
    """

    delivery: float
    goodput: float | None
    cells: int

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> "Level":
        """The level over these cells. There is at least one cell, and each cell has both numbers."""
        delivery = median(cell.summaries["ttlb"].median for cell in cells)
        goodput = fmean(cell.summaries["goodput"].mean for cell in cells)
        return cls(delivery, None if any(cell.outdated for cell in cells) else goodput, len(cells))


Levels = Mapping[str, Mapping[str, Level]]  # by case and server


class RunView(RunFolder):
    """A stored run with everything that its pages show. It reads its results only once. `folders`: all runs of the
    site, the newest first. `sparks`: the sparklines by cell, after they have been drawn."""

    def __init__(self, folder: RunFolder, folders: Sequence["RunView"]) -> None:
        super().__init__(folder.path, folder.run, folder.skip)
        self.folders = folders
        self.sparks: dict[tuple[str, str, str], Markup] = {}

    @classmethod
    def all(cls, folders: Iterable[RunFolder]) -> list["RunView"]:
        """The runs of a site, the newest first."""
        views: list[RunView] = []
        ordered = sorted(folders, key=lambda folder: folder.run.started_unix_s, reverse=True)
        views += [cls(folder, views) for folder in ordered]
        return views

    @cached_property
    def _results(self) -> dict[Job, Result]:
        return super().results()

    def results(self) -> dict[Job, Result]:
        """The results as they were at the first call."""
        return self._results

    @cached_property
    def table(self) -> Cells:
        """The run's cells. Pages of later runs show them as well."""
        return cells(self.run, self.results())

    @cached_property
    def levels(self) -> Levels:
        """The levels that pages of later runs show. When an earlier drawing stored the levels, this run's results need
        not be read."""
        table: dict[str, dict[str, list[Cell]]] = {}
        for cell in self.table.values():
            known = "goodput" in cell.summaries and "ttlb" in cell.summaries
            if known and tells_rates(cell.case) and not cell.label:
                table.setdefault(cell.case.name, {}).setdefault(cell.server, []).append(cell)
        return {case: {server: Level.of(cells) for server, cells in some.items()} for case, some in table.items()}

    @cached_property
    def means(self) -> RunMeans:
        """The means that comparisons of later runs need. The manifest stores them, too."""
        return run_means(self)

    @cached_property
    def states(self) -> dict[str, str]:
        """Digest of names, sizes and times of all files of each cell, by `<pair>/<case>`."""
        cells = sorted(path for path in self.path.glob("*_*/*/") if not (path.is_symlink() or path.parent.is_symlink()))
        digests = {path.relative_to(self.path).as_posix(): digest(folder_state(path, depth=3)) for path in cells}
        return digests | {new: digests[old] for new, old in self.run.old_folders.items() if old in digests}

    @cached_property
    def planned(self) -> frozenset[Key]:
        return frozenset(map(Key.of, self.run.order))

    @cached_property
    def servers(self) -> list[str]:
        return names(self.run.servers, {server for server, _, _ in self.table})

    @cached_property
    def clients(self) -> list[str]:
        """The clients, each with each of its middleboxes: `quinn`, `quinn+openvpn`."""
        clients = {client for _, client, _ in self.table}
        named = [f"{client}+{via}" if via else client for client in self.run.clients for via in self.run.vias]
        return names([name for name in named if name in clients or not any(self.run.vias)], clients)

    @cached_property
    def stacks(self) -> list[str]:
        """Every stack of either role."""
        return list(dict.fromkeys((*self.servers, *self.clients)))

    @cached_property
    def measured(self) -> list[Cell]:
        """The cells with a goodput, of cases with meaningful data rates."""
        return [cell for cell in self.table.values() if "goodput" in cell.summaries and tells_rates(cell.case)]

    @cached_property
    def outdated(self) -> int:
        """The number of cells whose numbers were measured by an older formula."""
        return sum(cell.outdated for cell in self.table.values())

    @cached_property
    def by_stack(self) -> dict[tuple[str, str], list[Cell]]:
        cells_by_pair: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.table.values():
            cells_by_pair.setdefault(("server", cell.server), []).append(cell)
            cells_by_pair.setdefault(("client", cell.client), []).append(cell)
        return cells_by_pair

    def cells_of(self, case: str) -> list[Cell]:
        """The cells of a case, in the order of servers and clients."""
        cells = ((server, client, case) for server in self.servers for client in self.clients)
        return [self.table[key] for key in cells if key in self.table]

    @cached_property
    def decided(self) -> list[Decision]:
        return decisions(self.run, self.table)

    def prepare(self) -> None:
        """Compute the values that several pages show. Later the pages are drawn in several processes, which can't share
        computed values."""
        previous = self.previous
        _ = self.decided, self.changes, previous and previous.measured, [folder.levels for folder in self.alike]

    @cached_property
    def previous(self) -> "RunView | None":
        """The newest earlier run of the same plan, made under the same conditions."""
        older = [folder for folder in self.alike if folder.run.started_unix_s < self.run.started_unix_s]
        return older[-1] if older else None

    @cached_property
    def changes(self) -> Comparison | None:
        """Changes since `previous`. None when there is no previous run, or when the two runs have nothing in common
        that can be compared."""
        if self.previous is None:
            return None
        try:
            others = [folder.means for folder in self.alike if folder not in (self.previous, self)]
            return compare(self.previous, self, others=others)
        except UsageError:
            return None

    @cached_property
    def alike(self) -> list["RunView"]:
        """This run and all earlier runs of the same plan under the same conditions, the oldest first."""
        alike = [folder for folder in self.folders if folder is self or same_plan(folder, self)]
        earlier = [folder for folder in alike if folder.run.started_unix_s <= self.run.started_unix_s]
        return sorted(earlier, key=lambda folder: folder.run.started_unix_s)

    @cached_property
    def scenarios(self) -> list[str]:
        """Names of the cases that have a page: measurements first, then the test cases."""
        return [case.name for kind in (Kind.MEASUREMENT, Kind.TEST_CASE) for case in ordered_cases(self.run, kind)]


def same_plan(first: RunView, other: RunView) -> bool:
    """True when `first` has more than half of the cells of `other`'s plan and was made under the same conditions."""
    shared = len(first.planned & other.planned)
    return shared > _ALIKE * len(other.planned) and not differences(first.run, other.run)


def stack_path(name: str) -> str:
    return f"implementations/{name}.html"


def stack_href(name: str) -> str:
    """URL of a stack's page, relative to the run's folder."""
    return quote(stack_path(name))


def case_path(name: str) -> str:
    return f"scenarios/{name}.html"


def case_href(name: str) -> str:
    """URL of a case's page, relative to the run's folder."""
    return quote(case_path(name))
