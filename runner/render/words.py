"""Parameters and counts in words, for pages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from markupsafe import Markup, escape

from runner.model.link_record import LinkParameters
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.render.cells import Cell, tells_rates
from runner.render.metrics import BY_KEY, NARROW
from runner.units import format_data_rate, format_duration, format_size

NO_BREAK = "\u00a0"
_SUBSCRIPT = re.compile(r"(?<=η)_(\w+)")


def moment(unix_s: float) -> str:
    """`2026-11-21 05:40 UTC`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def amount(number: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number:,}{NO_BREAK}{noun if number == 1 else plural or noun + 's'}"


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


def loss_text(loss: float) -> str:
    return f"{100 * loss:g}{NARROW}% loss" if loss else "no loss"


def link_facts(link: LinkParameters) -> list[str]:
    """The parameters of one direction: all parameters of an emulated link, the advertised data rate of a real link."""
    if link.is_real:
        return [f"{format_data_rate(link.data_rate)} advertised", "real link"]
    return [
        format_data_rate(link.data_rate),
        f"{format_duration(link.delay)} one way",
        f"queue {amount(link.queue_packets, 'packet')}",
        loss_text(link.loss),
        *link.impairments.sentences(),
    ]


def links(case: CaseRecord) -> list[tuple[str, list[str]]]:
    """Each direction of each segment with its parameters, and the impairments of both directions together."""
    facts = []
    for segment in case.link.segments:
        name = f"{segment.name} " if segment.name else ""
        facts += [(f"{name}forward", link_facts(segment.forward)), (f"{name}return", link_facts(segment.return_))]
        if both := list(segment.impairments.sentences()):
            facts.append((f"{name}both", both))
    return facts


def transfer_facts(case: CaseRecord, group: Sequence[Cell]) -> list[str]:
    """RTT and BDP of the link, the files, the time-out, the number of iterations, and the slow-start bound."""
    rtt = case.link.rtt
    path = [f"RTT {format_duration(rtt)}", f"BDP {_decimal_size(rtt * case.forward.data_rate / 8)}"]
    facts = [
        *([] if case.forward.is_real else path),
        files_text(case.file_sizes),
        f"time-out {format_duration(case.timeout)}",
        amount(max((cell.planned for cell in group), default=0) or case.iterations, "iteration"),
    ]
    bounds = sorted(summary.median for cell in group if (summary := cell.summaries.get("slow_start_bound")) is not None)
    if bounds and tells_rates(case):
        bound = BY_KEY["slow_start_bound"]
        low, high = bound.number(bounds[0]), bound.number(bounds[-1])
        span = low if low == high else f"{low} to {high}"
        facts.append(f"slow-start bound η_ss {span}{NARROW}% (delivery rate)")
    return facts


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
        Outcome.ERROR: "ended as errors of the harness",
        Outcome.UNSUPPORTED: "unsupported",
        Outcome.SKIPPED: "skipped",
    }
    parts += [f"{outcomes.count(outcome):,} {word}" for outcome, word in words.items() if outcome in outcomes]
    return ", ".join(parts)


def run_sentence(run: Run, results: Iterable[Result]) -> str:
    """The run in one sentence."""
    stored = list(results)
    left = len(run.order) - len(stored)
    missing = f"; {amount(left, 'job')} not done yet" if left > 0 else ""
    return f"{_plan_text(run)}: {outcomes_text(stored)}{missing}."


def _plan_text(run: Run) -> str:
    """`3 servers × 2 clients × 2 vias, 1 measurement`."""
    kinds = [case.kind for case in run.cases.values()]
    cases = " and ".join(
        amount(kinds.count(kind), kind.value) for kind in (Kind.MEASUREMENT, Kind.TEST_CASE) if kind in kinds
    )
    vias = f" × {amount(len(run.vias), 'via')}" if any(run.vias) else ""
    return f"{amount(len(run.servers), 'server')} × {amount(len(run.clients), 'client')}{vias}, {cases}"
