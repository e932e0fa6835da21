"""The sentences at the top of a run's overview, made from its numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from runner.model.result import Outcome
from runner.model.run import Kind
from runner.render import words
from runner.render.deciding import Decision
from runner.render.metrics import BY_KEY, NARROW
from runner.render.view import RunView

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
    """At most six sentences: plan and outcomes, delivery times, deciding factors, limits of the transfers, failures,
    outdated numbers."""
    sentences = [words.run_sentence(view.run, view.results.values())]
    sentences += list(_speed(view))[:1]
    sentences += list(_deciding(decided))[:1]
    sentences += list(_limits(view))[:1]
    sentences += list(_wrong(view))[:1]
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
            f"No measurement ran, but {words.amount(len(measured), 'cell')} of its test cases transferred enough "
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
    codes = Counter(code for result in limited for code in {diagnosis.code for diagnosis in result.diagnoses})
    often = ""
    if codes:
        code, jobs = codes.most_common(1)[0]
        often = f"; the most frequent diagnosis, {code.replace('-', ' ')}, is in {jobs:,} of {len(limited):,} transfers"
    yield f"Limits of the transfers, by time: {', '.join(named)}{often}."


def _wrong(view: RunView) -> Iterator[str]:
    failed = [result for result in view.results.values() if result.outcome is Outcome.FAILED]
    if not failed:
        judged = sum(result.outcome is Outcome.SUCCEEDED for result in view.results.values())
        yield "No job failed by the fault of a stack." if judged else "No job has succeeded yet."
        return
    codes = Counter(result.findings[0].code if result.findings else "unknown" for result in failed)
    named = [f"{code} ({jobs:,})" for code, jobs in codes.most_common(_MOST_NAMED)]
    roles = Counter((getattr(result, role), role) for result in failed for role in ("server", "client"))
    (stack, role), times = roles.most_common(1)[0]
    lead = f"{words.amount(len(failed), 'job')} failed, by cause: {', '.join(named)}"
    yield f"{lead}; {times} of them with {stack} as {role}." if times > 1 else f"{lead}."


def _outdated(view: RunView) -> Iterator[str]:
    if view.outdated:
        yield (
            f"Goodput and η of {words.amount(view.outdated, 'cell')} were measured by an older formula, which counted "
            f"up to the last new byte: `./bentpipe analyse {view.name}` computes them again."
        )


def mean_limits(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean share of each limit, the largest first."""
    names = {name for result in results for name in result}
    shares_by_name = {name: fmean(result.get(name, 0.0) for result in results) for name in names}
    return dict(sorted(shares_by_name.items(), key=lambda item: -item[1]))
