"""A run in five sentences, made of its numbers."""

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
# What a limit means, for a reader who does not know the term.
_LIMITS = {
    "handshake": "the handshake and the request",
    "receive window": "the client's receive window",
    "congestion window": "the server's congestion window",
    "pacing": "bursts without pacing",
    "link": "a full link, the good case",
    "application": "a server that had nothing to send",
    "recovery": "sending again what was lost",
    "unknown": "nothing that the trace shows",
}


def sentences(view: RunView, decided: Sequence[Decision]) -> list[str]:
    """At most six sentences: what ran, the results, who decides, what limited transfers, what failed, what is
    outdated."""
    found = [words.run_sentence(view.run, view.results.values())]
    found += list(_speed(view))[:1]
    found += list(_deciding(decided))[:1]
    found += list(_limits(view))[:1]
    found += list(_wrong(view))[:1]
    found += list(_outdated(view))
    return found


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
        first, last_one = ordered[-1], ordered[0]
        goodput = BY_KEY["goodput"]
        yield (
            f"No measurement ran, but {words.amount(len(measured), 'cell')} of its test cases transferred enough "
            f"to have a goodput: from {goodput.text(last_one.summaries['goodput'].median)} ({last_one.client} → "
            f"{last_one.server}, {last_one.case.name}) to {goodput.text(first.summaries['goodput'].median)} "
            f"({first.client} → {first.server}, {first.case.name})."
        )


def _deciding(decided: Sequence[Decision]) -> Iterator[str]:
    """The sentence about the measurement whose numbers differ most."""
    known = [(one, one.shares) for one in decided if one.shares is not None and not one.label]
    if not known:
        return
    one, shares = max(known, key=lambda pair: pair[1].deviation)
    once = shares.residual is None
    pairing = "pairing of the two" + (" or chance" if once else "")
    parts = {"server": shares.server, "client": shares.client, pairing: shares.pair}
    who = max(parts, key=lambda name: parts[name].share)
    rest = ", ".join(f"the {name} {100 * part.share:.0f}{NARROW}%" for name, part in parts.items() if name != who)
    if shares.residual is not None and shares.residual.share > parts[who].share:
        yield (
            f"In {one.case.name} chance decides more than the stacks: {100 * shares.residual.share:.0f}{NARROW}% of "
            f"the difference in delivery time is between iterations of one pair, the {who} has "
            f"{100 * parts[who].share:.0f}{NARROW}%, {rest}."
        )
        return
    if once and who == pairing:
        yield (
            f"Who decides in {one.case.name} is not known from this run: {100 * shares.pair.share:.0f}{NARROW}% of the "
            "difference in delivery time is neither the server's nor the client's, and with one iteration of each pair "
            "chance is in it. More iterations would tell."
        )
        return
    interval = f"95 % interval {100 * parts[who].low:.0f} to {100 * parts[who].high:.0f}"
    if parts[who].low < max(part.share for name, part in parts.items() if name != who):
        yield (
            f"Who decides in {one.case.name} is not known from this run: of the difference in delivery time "
            f"the {who} has "
            f"{100 * parts[who].share:.0f}{NARROW}% ({interval}), {rest}. More stacks would narrow the interval."
        )
        return
    yield (
        f"In {one.case.name} the {who} decides {100 * parts[who].share:.0f}{NARROW}% of the difference in delivery "
        f"time ({interval}), {rest}."
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
    codes = Counter(code for result in limited for code in {one.code for one in result.diagnoses})
    often = ""
    if codes:
        code, jobs = codes.most_common(1)[0]
        often = f"; the most frequent diagnosis, {code.replace('-', ' ')}, is in {jobs:,} of {len(limited):,} transfers"
    yield f"Limits of the transfers, by time: {', '.join(named)}{often}."


def _wrong(view: RunView) -> Iterator[str]:
    failed = [result for result in view.results.values() if result.outcome is Outcome.FAILED]
    if not failed:
        judged = sum(one.outcome is Outcome.SUCCEEDED for one in view.results.values())
        yield "No job failed by fault of a stack." if judged else "Nothing succeeded yet."
        return
    codes = Counter(result.findings[0].code if result.findings else "unknown" for result in failed)
    named = [f"{code} ({jobs:,})" for code, jobs in codes.most_common(_MOST_NAMED)]
    roles = Counter((getattr(result, role), role) for result in failed for role in ("server", "client"))
    (who, role), times = roles.most_common(1)[0]
    lead = f"{words.amount(len(failed), 'job')} failed, by cause: {', '.join(named)}"
    yield f"{lead}; {times} of them with {who} as {role}." if times > 1 else f"{lead}."


def _outdated(view: RunView) -> Iterator[str]:
    if view.outdated:
        yield (
            f"Goodput and η of {words.amount(view.outdated, 'cell')} were measured by an older formula, up to the last "
            f"new byte: ./bentpipe analyse {view.name} renews them."
        )


def mean_limits(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Share of each limit, averaged, the largest first."""
    names = {name for one in results for name in one}
    found = {name: fmean(one.get(name, 0.0) for one in results) for name in names}
    return dict(sorted(found.items(), key=lambda item: -item[1]))
