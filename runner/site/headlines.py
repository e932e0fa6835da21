"""Counts over cells, and the sentences at the top of a run's overview that are made from them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from runner.compare.stats import Attempts
from runner.model.result import BY_KEY, Diagnosis, Outcome
from runner.model.run import Kind
from runner.model.stack import NO_VIA
from runner.site.charts import Mark
from runner.site.pages import has_stacks
from runner.site.view import Cell, Decision, RunView, amount, run_sentence
from runner.units import NARROW

_SLOW = 0.85  # share of the slow-start bound below which a transfer needs a diagnosis
_MOST_NAMED = 3
# Each limit in words, for a reader who does not know the term.
_LIMITS = {
    "handshake": "the handshake and the request",
    "receive window": "the client's receive window",
    "congestion window": "the server's congestion window",
    "pacing": "bursts without pacing",
    "link": "a full link, the good case",
    "application": "a server that had nothing to send",
    "recovery": "retransmission of lost data",
    "unknown": "a limit that the trace does not show",
}


def sentences(view: RunView, decided: Sequence[Decision]) -> list[str]:
    """At most seven sentences: plan and outcomes, delivery times, deciding factors, limits of the transfers, slow ones
    without a diagnosis, failures, outdated numbers."""
    sentences = [run_sentence(view.run, view.results().values())]
    sentences += list(_speed(view))[:1]
    sentences += list(_deciding(decided))[:1]
    sentences += list(_limits(view))[:1]
    sentences += list(_unexplained(view))
    sentences += list(failed(view))
    sentences += list(_outdated(view))
    return sentences


def _speed(view: RunView) -> Iterator[str]:
    delivery = BY_KEY["ttlb"]
    parts = []
    for name in view.scenarios:
        medians = {}
        for cell in view.cells_of(name):
            if cell.case.kind is Kind.MEASUREMENT and "ttlb" in cell.summaries and not cell.label:
                medians[cell.server, cell.client] = cell.summaries["ttlb"].median
        if not medians:
            continue
        best = min(medians, key=lambda pair: medians[pair])
        last = max(medians.values())
        span = f", from {delivery.text(medians[best])} ({best[1]} → {best[0]}) to {delivery.text(last)}"
        parts.append(f"{name} {delivery.text(median(medians.values()))}{span if len(medians) > 1 else ''}")
    if parts:
        more = f"; and {len(parts) - 4} more measurements" if len(parts) > 4 else ""
        yield f"Delivery time of the median pair: {'; '.join(parts[:4])}{more}."
        return
    measured = [cell for cell in view.measured if not cell.label]
    if measured:
        ordered = sorted(measured, key=lambda cell: cell.summaries["goodput"].median)
        highest, lowest = ordered[-1], ordered[0]
        goodput = BY_KEY["goodput"]
        yield (
            f"No measurement ran, but {amount(len(measured), 'cell')} of its test cases transferred enough "
            f"to have a goodput: from {goodput.text(lowest.summaries['goodput'].median)} ({lowest.client} → "
            f"{lowest.server}, {lowest.case.name}) to {goodput.text(highest.summaries['goodput'].median)} "
            f"({highest.client} → {highest.server}, {highest.case.name})."
        )


def _deciding(decided: Sequence[Decision]) -> Iterator[str]:
    """A sentence about the measurement with the largest deviation of delivery times."""
    known = [(decision, decision.shares) for decision in decided if decision.shares is not None and not decision.label]
    if not known:
        return
    decision, shares = max(known, key=lambda pair: pair[1].deviation)
    case = decision.case.name
    once = shares.residual is None
    pairing = "pairing of the two" + (" or chance" if once else "")
    parts = {"server": shares.server, "client": shares.client, pairing: shares.pair}
    largest = max(parts, key=lambda name: parts[name].share)
    share = parts[largest]
    others = ", ".join(f"the {name} {100 * part.share:.0f}{NARROW}%" for name, part in parts.items() if name != largest)
    if shares.residual is not None and shares.residual.share > share.share:
        yield (
            f"In {case} chance decides more than the stacks: {100 * shares.residual.share:.0f}{NARROW}% of "
            f"the difference in delivery time is between iterations of one pair, the {largest} causes "
            f"{100 * share.share:.0f}{NARROW}%, {others}."
        )
        return
    if once and largest == pairing:
        yield (
            f"This run does not show whether the server or the client decides in {case}: "
            f"{100 * share.share:.0f}{NARROW}% of the difference in delivery time is neither the server's nor the "
            "client's. It may be chance, because each pair has one iteration; more iterations would show it."
        )
        return
    interval = f"95 % interval {100 * share.low:.0f} to {100 * share.high:.0f}"
    if share.low < max(part.share for name, part in parts.items() if name != largest):
        yield (
            f"This run does not show whether the server or the client decides in {case}: the {largest} causes "
            f"{100 * share.share:.0f}{NARROW}% of the difference in delivery time ({interval}), {others}. "
            "More stacks would narrow the interval."
        )
        return
    yield (
        f"In {case} the {largest} causes {100 * share.share:.0f}{NARROW}% of the difference in delivery time "
        f"({interval}), {others}."
    )


def _limits(view: RunView) -> Iterator[str]:
    measurements = [cell for cell in view.table.values() if cell.case.kind is Kind.MEASUREMENT]
    of_interest = [cell for cell in measurements if any(result.limits for result in cell.results)]
    chosen = of_interest or list(view.table.values())
    limited = [result for cell in chosen for result in cell.results if result.limits]
    if not limited:
        return
    shares = list(mean_limits([result.limits for result in limited]).items())
    named = [f"{100 * share:.0f}{NARROW}% {_LIMITS.get(limit, limit)}" for limit, share in shares[:_MOST_NAMED]]
    codes = Counter(code for result in limited for code in dict.fromkeys(found.code for found in result.diagnoses))
    often = ""
    if codes:
        code, jobs = codes.most_common(1)[0]
        often = f"; the most frequent diagnosis, {code.replace('-', ' ')}, is in {jobs:,} of {len(limited):,} transfers"
    yield f"Limits of the transfers, by time: {', '.join(named)}{often}."


def _unexplained(view: RunView) -> Iterator[str]:
    slow = [
        result
        for cell in view.table.values()
        for result in cell.results
        if cell.case.kind is Kind.MEASUREMENT
        and result.sample is not None
        and (result.sample.efficiency_of_bound or 1.0) < _SLOW
    ]
    if unexplained := [result for result in slow if not result.diagnoses]:
        job = max(unexplained, key=lambda result: result.transfer_s).job
        yield (
            f"Without a diagnosis: {len(unexplained)} of the {amount(len(slow), 'transfer')} below "
            f"{100 * _SLOW:.0f}{NARROW}% of the slow-start bound, such as {job.client} → {job.server} in "
            f"{job.case_link}. Please report it: the detectors lack its pattern."
        )


def failed(view: RunView) -> Iterator[str]:
    """A sentence about the jobs that failed: their causes, and the stack (or the middlebox, when the run tests only
    middleboxes) of most of them."""
    stacks = has_stacks(view.run)
    failed = [result for result in view.results().values() if result.outcome is Outcome.FAILED]
    if not failed:
        judged = any(result.outcome is Outcome.SUCCEEDED for result in view.results().values())
        whose = "stack" if stacks else "middlebox"
        yield f"No job failed by the fault of a {whose}." if judged else "No job has succeeded yet."
        return
    codes = Counter(result.findings[0].code if result.findings else "unknown" for result in failed)
    named = [f"{code} ({jobs:,})" for code, jobs in codes.most_common(_MOST_NAMED)]
    lead = f"{amount(len(failed), 'job')} failed, by cause: {', '.join(named)}"
    if stacks:
        words = [f"with {getattr(result, role)} as {role}" for result in failed for role in ("server", "client")]
    else:
        words = [f"via {result.via or NO_VIA}" for result in failed]
    where, times = Counter(words).most_common(1)[0]
    of = "all" if times == len(failed) else f"{times} of them"
    yield f"{lead}; {of} {where}." if times > 1 or not stacks else f"{lead}."


def _outdated(view: RunView) -> Iterator[str]:
    if view.outdated:
        yield (
            f"Goodput and η of {amount(view.outdated, 'cell')} were measured by an older formula, which counted "
            f"up to the last new byte: `./bentpipe analyse {view.name}` computes them again."
        )


def mean_limits(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean share of each limit, the largest first."""
    names = dict.fromkeys(name for result in results for name in result)
    shares_by_name = {name: fmean(result.get(name, 0.0) for result in results) for name in names}
    return dict(sorted(shares_by_name.items(), key=lambda item: -item[1]))


# Counts over cells, for several pages: diagnoses, limits, applied parameters, successes.


@dataclass(frozen=True, kw_only=True)
class Typical:
    """The transfers with one diagnosis: `jobs` out of `of` transfers, and the first of them with its `cell` and
    `iteration`."""

    first: Diagnosis
    jobs: int
    of: int
    cell: Cell
    iteration: int


def typical(cells: Iterable[Cell]) -> list[Typical]:
    """Every diagnosis of these cells, the most frequent first."""
    jobs: Counter[str] = Counter()
    first: dict[str, tuple[Cell, int, Diagnosis]] = {}
    of = 0
    for cell in cells:
        for result in cell.results:
            of += bool(result.limits or result.diagnoses)
            jobs.update(dict.fromkeys((diagnosis.code for diagnosis in result.diagnoses), 1))
            for diagnosis in result.diagnoses:
                first.setdefault(diagnosis.code, (cell, result.iteration, diagnosis))
    return [
        Typical(first=diagnosis, jobs=count, of=of, cell=cell, iteration=iteration)
        for code, count in jobs.most_common()
        for cell, iteration, diagnosis in (first[code],)
    ]


def limits(cells: Iterable[Cell]) -> dict[str, float]:
    """The mean share of the time for each limit, the largest share first; empty when no transfer has limits."""
    return mean_limits([result.limits for cell in cells for result in cell.results if result.limits])


def attempts(cells: Iterable[Cell]) -> Attempts:
    """Successes and attempts over all cells, without errors of the harness."""
    known = list(cells)
    return Attempts(
        successes=sum(cell.attempts.successes for cell in known),
        attempts=sum(cell.attempts.attempts - cell.errors for cell in known),
    )


def applied(cells: Iterable[Cell], name: str) -> list[tuple[str, str, str, list[tuple[str, str, int]]]]:
    """The applied parameters of stack `name`: role, parameter, requested value (empty: the stack's default), and each
    applied value with its source and the number of readings."""
    counted: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    requested: dict[tuple[str, str], str] = {}
    for cell in cells:
        for result in cell.results:
            for reading in result.readings:
                if getattr(cell, reading.role, "") == name and reading.found:
                    counted.setdefault((reading.role, reading.parameter), Counter())[reading.found, reading.source] += 1
                    requested.setdefault((reading.role, reading.parameter), reading.asked)
    return [
        (*key, requested[key], [(*reading, count) for reading, count in counts.most_common(6)])
        for key, counts in sorted(counted.items())
    ]


def marks(cells: Iterable[Cell], metric: str, *, base: str, full: float | None = None) -> list[Mark]:
    """A mark at the median of each cell that has the metric, in the metric's unit or in per cent of `full`."""
    unit = BY_KEY[metric]
    factor = unit.factor if full is None else 100 / full
    rows = []
    for cell in cells:
        summary = cell.summaries.get(metric)
        if summary is None:
            continue
        span = ""
        if summary.spread is not None:
            kind, low, high = summary.spread
            span = f", {kind} {unit.number(low)} to {unit.number(high)}"
        rows.append(
            Mark(
                x=summary.median * factor,
                title=f"{cell.client} → {cell.server}, {cell.case.name}: {unit.text(summary.median)}{span}, "
                f"{cell.attempts}",
                href=f"{base}{cell.href}",
            )
        )
    return rows


def measurements(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of measurements that ran over the case's own protocol. Only these cells can be compared."""
    return [cell for cell in cells if cell.case.kind is Kind.MEASUREMENT and not cell.label]
