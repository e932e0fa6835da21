"""Decides whether a link was up before, during and after a transfer, and compares the clocks. No input or
output."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.containers import State
from runner.model.real_link import Clock, Probing
from runner.remote.probes import Exchange, clock, probing

_OUTAGE = 3.0  # seconds without any answer that count as an outage
_OUTAGE_RTTS = 4  # RTTs without any answer that count as an outage; the longer of both times counts
_BAD_BASELINE = 0.2  # share of probes that may be lost while the link carries only probes


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The link in each phase of a job, and the clocks. `problem`: why the link did not work; empty when it
    worked."""

    before: Probing
    during: Probing | None
    after: Probing | None
    clock: Clock | None
    problem: str


def judge(exchanges: Sequence[Exchange], client: State | None) -> Conditions:
    """Judge the link from the probes. `client`: the state of the client's container, with times of the same clock as
    the probes; None when the client never ran."""
    end = float("inf")
    started = client.started if client is not None and client.started is not None else end
    ended = client.ended if client is not None and client.ended is not None else end
    before = probing(exchanges, 0.0, started)
    during = probing(exchanges, started, ended) if started < end else None
    after = probing(exchanges, ended, end) if ended < end else None
    return Conditions(
        before=before, during=during, after=after, clock=clock(exchanges), problem=_problem(before, during, after)
    )


def _problem(before: Probing, during: Probing | None, after: Probing | None) -> str:
    if before.sent and not before.received:
        return f"none of {before.sent} probes was answered before the transfer"
    if before.loss > _BAD_BASELINE:
        return f"{before.loss:.0%} of the probes were lost before the transfer, when nothing else was on the link"
    limit = max(_OUTAGE, _OUTAGE_RTTS * (before.rtt_median or 0.0))
    for phase, when in ((during, "during"), (after, "after")):
        if phase is not None and phase.longest_gap > limit:
            return f"no probe was answered for {phase.longest_gap:.1f} s {when} the transfer, limit {limit:.1f} s"
    return ""
