"""Prints comparisons and histories: as tables for a terminal, as Markdown, as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from runner.compare.changes import (
    Comparison,
    NumberChange,
    RateChange,
    StackChange,
    State,
    VerdictChange,
)
from runner.compare.history import History, Trend, least_runs
from runner.compare.vias import ViaChange
from runner.model.middlebox import NO_VIA
from runner.model.numbers import BY_KEY
from runner.units import format_data_rate

SCHEMA = 1
HEAD = ("client → server", "case", "what", "before", "after", "change", "δ", "q", "n")
_SIGNS = {
    State.WORSE: ("▼ worse", "red"),
    State.BETTER: ("▲ better", "green"),
    State.OTHER: ("● other", "yellow"),
    State.SMALL: ("~ below --least", "dim"),
    State.UNKNOWN: ("? not known yet", "dim"),
    State.ALIKE: ("= no change shown", "dim"),
    State.TOO_FEW: ("? too few iterations", "dim"),
}
_SHOWN = (State.WORSE, State.BETTER, State.OTHER)
_HOW = (
    "change: Hodges-Lehmann shift of the iterations · δ: Cliff's delta, -1 to 1 · q: for numbers the larger p of the "
    "Mann-Whitney test and of the test against the deviation between runs, for rates the p of Fisher's test, corrected "
    "for all tests (Benjamini-Hochberg) · n: iterations before and after"
)
_HOW_VIAS = (
    "[dim]pairs: jobs of one iteration that ran within ten minutes of each other, compared by Wilcoxon's signed-rank "
    "test from 6 pairs on; otherwise all times are compared by the Mann-Whitney test · q: p, corrected for all tests "
    "(Benjamini-Hochberg)[/dim]"
)


@dataclass(frozen=True)
class Row:
    """One line of the table. `fields`: its texts in the columns of `HEAD`."""

    state: State
    fields: tuple[str, ...]


def rows(comparison: Comparison, *, everything: bool) -> list[Row]:
    """The lines of the table: worse cells first, then better cells, then other changes. With `everything` also cells
    without a shown change."""
    every = [
        *map(_verdict_row, comparison.verdicts),
        *map(_rate_row, comparison.rates),
        *map(_number_row, comparison.numbers),
    ]
    order = list(State)
    chosen = [row for row in every if everything or row.state in _SHOWN]
    return sorted(chosen, key=lambda row: (order.index(row.state), row.fields[1]))


def _who(change: NumberChange | RateChange | VerdictChange) -> tuple[str, str]:
    return f"{change.client} → {change.server}", change.case


def _verdict_row(change: VerdictChange) -> Row:
    why = change.why if change.state in (State.WORSE, State.OTHER) else ""
    return Row(change.state, (*_who(change), "outcome", change.before.value, change.after.value, why, "", "", ""))


def _rate_row(change: RateChange) -> Row:
    before, after = (f"{good}/{tried}" for good, tried in (change.before, change.after))
    points = 100 * (change.after[0] / change.after[1] - change.before[0] / change.before[1])
    n = f"{change.before[1]}, {change.after[1]}"
    return Row(change.state, (*_who(change), "successes", before, after, f"{points:+.0f} points", "", _q(change.q), n))


def _number_row(change: NumberChange) -> Row:
    shift = change.shift
    before, after = (quantity(change.metric, median) for median in (shift.median_before, shift.median_after))
    moved = quantity(change.metric, shift.hodges_lehmann, signed=True)
    if shift.median_before and change.metric != "retransmission_ratio":
        moved += f" ({100 * shift.hodges_lehmann / shift.median_before:+.1f} %)"
    label = BY_KEY[change.metric].label
    n = f"{shift.before}, {shift.after}"
    fields = (*_who(change), label, before, after, moved, f"{shift.cliffs_delta:+.2f}", _q(change.q), n)
    return Row(change.state, fields)


def quantity(metric: str, value: float, *, signed: bool = False) -> str:
    """The text of a value of `metric`, which is in SI units. `signed`: with a plus sign for a positive value."""
    sign = "-" if value < 0 else "+" if signed else ""
    size = abs(value)
    if metric == "goodput":
        return sign + format_data_rate(size)
    if metric == "retransmission_ratio":
        return f"{sign}{100 * size:.2f} {'points' if signed else '%'}"
    return sign + (f"{1e3 * size:.1f} ms" if size < 1 else f"{size:.3f} s")


def _q(q: float | None) -> str:
    if q is None:
        return "–"
    return "<0.001" if q < 0.001 else f"{q:.3f}"


def sentence(comparison: Comparison) -> str:
    """The result in one sentence."""
    states = comparison.states()
    worse, better, other = (states.count(state) for state in _SHOWN)
    compared = f"{len(comparison.verdicts)} outcomes, {len(comparison.rates)} rates, {len(comparison.numbers)} numbers"
    more = f", {other} different in another way" if other else ""
    small = (
        f"; {states.count(State.SMALL)} changes of less than {100 * comparison.least:g} % left out"
        if comparison.least
        else ""
    )
    unknown = states.count(State.UNKNOWN)
    differ = f"; {unknown} numbers differ, but whether they changed is not known yet" if unknown else ""
    return (
        f"{comparison.before} → {comparison.after}: {worse} worse, {better} better{more}, of {compared}; "
        f"{comparison.tests} tests at a false discovery rate of {comparison.rate:.0%}{small}{differ}."
    )


def renderable(comparison: Comparison, *, everything: bool) -> Group:
    """The comparison for a rich console."""
    parts: list[Any] = [f"[bold]{escape(sentence(comparison))}[/bold]"]
    for topic, sentences in comparison.despite.items():
        parts += [f"[yellow]despite {topic}: {escape(sentence)}[/yellow]" for sentence in sentences]
    parts += [f"[dim]{escape(note)}[/dim]" for note in comparison.notes]
    parts += ["", *(escape(line) for line in _stack_lines(comparison))]
    if chosen := rows(comparison, everything=everything):
        table = Table("", *HEAD, box=None, pad_edge=False)
        for row in chosen:
            sign, style = _SIGNS[row.state]
            table.add_row(f"[{style}]{sign}[/{style}]", *(escape(field) for field in row.fields))
        parts += ["", table, f"[dim]{_HOW}[/dim]"]
    else:
        parts += ["", "No change is significant. `--all` lists every cell."]
    return Group(*parts)


def _stack_lines(comparison: Comparison) -> Iterator[str]:
    changed = [stack for stack in comparison.stacks if stack.changed]
    for stack in changed:
        yield f"{stack.name}: {version_text(stack)}"
    alike = [stack.name for stack in comparison.stacks if not stack.changed]
    if alike:
        yield f"The same image on both sides: {', '.join(alike)}."


def version_text(stack: StackChange) -> str:
    """`0.11.11 4be1c2a0d9ff → 0.11.12 c083ff95e0fa`."""
    before, after = (
        f"{version or 'unknown version'} {image_id.removeprefix('sha256:')[:12] or 'image id unknown'}"
        for version, image_id in (
            (stack.version_before, stack.image_id_before),
            (stack.version_after, stack.image_id_after),
        )
    )
    return f"{before} → {after}"


def markdown(comparison: Comparison, *, everything: bool) -> str:
    """The comparison as Markdown, for a pull request or the summary of a CI."""
    lines = [f"## {comparison.before} → {comparison.after}", "", sentence(comparison), ""]
    lines += [f"- despite {topic}: {text}" for topic, sentences in comparison.despite.items() for text in sentences]
    lines += [f"- {text}" for text in (*comparison.notes, *_stack_lines(comparison))]
    lines.append("")
    if chosen := rows(comparison, everything=everything):
        lines += [_line(("", *HEAD)), _line(["---"] * (len(HEAD) + 1))]
        lines += [_line((_SIGNS[row.state][0], *row.fields)) for row in chosen]
        lines += ["", _HOW]
    else:
        lines.append("No change is significant.")
    return "\n".join(lines) + "\n"


def _line(fields: tuple[str, ...] | list[str]) -> str:
    inside = (field.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for field in fields)
    return "| " + " | ".join(" ".join(field.split()) for field in inside) + " |"


def document(comparison: Comparison) -> str:
    """The comparison as JSON, in SI units, one field per line."""
    every = {"schema": SCHEMA, "exit_code": comparison.exit_code, **asdict(comparison)}
    return json.dumps(every, indent=1, sort_keys=True, allow_nan=False) + "\n"


def vias_renderable(reference: str, changes: Sequence[ViaChange]) -> Group:
    """The times through each middlebox compared with the times through `reference`, for a rich console."""
    table = Table("", "client → server", "case", "via", "time", "95 %", "compared", "q", box=None, pad_edge=False)
    for change in changes:
        versus = change.versus
        sign, style = _SIGNS[State.ALIKE if versus.q is not None else State.TOO_FEW]
        if versus.certain:
            shorter = versus.change < 0 if versus.change is not None else not versus.lost
            sign, style = ("▲ shorter", "green") if shorter else ("▼ longer", "red")
        time = f"{100 * versus.change:+.1f} %" if versus.change is not None else "mostly failed" if versus.lost else "–"
        ends95 = versus.low, versus.high
        interval = "–" if None in ends95 else " to ".join(f"{100 * end:+.1f} %" for end in ends95 if end is not None)
        compared = f"{versus.n} with {versus.reference_n}" if versus.pairs is None else f"{versus.pairs} pairs"
        ends = f"{change.client} → {change.server}"
        fields = (ends, change.case, change.via or NO_VIA, time, interval, compared, _q(versus.q))
        table.add_row(f"[{style}]{sign}[/{style}]", *(escape(field) for field in fields))
    return Group(f"[bold]Time of delivery or page load, against {escape(reference)}[/bold]", "", table, _HOW_VIAS)


def history_renderable(past: History, *, everything: bool) -> Group:
    """The changed and the flaky cells, for a rich console. With `everything`: all cells."""
    amount = f"{len(past.runs)} runs, {len(past.trends)} cells in the cases of the newest"
    parts: list[Any] = [f"[bold]{amount}[/bold]: {escape(', '.join(past.runs))}"]
    parts += [f"[dim]left out: {escape(name)}. {escape(why)}[/dim]" for name, why in past.left_out]
    if len(past.runs) < (least := least_runs()):
        parts.append(
            f"[dim]A change point needs at least {least} runs: no split of fewer runs can be significant.[/dim]"
        )
    table = Table("client → server", "case", "successes", "95 %", "flips", "delivery time by run", "change", box=None)
    chosen = [
        trend
        for trend in past.trends
        if everything or trend.change or 0 < trend.attempts.successes < trend.attempts.attempts
    ]
    for trend in chosen:
        table.add_row(*(escape(field) for field in _history_fields(trend)))
    parts += ["", table] if chosen else ["", "No cell changed and none is flaky. `--all` lists every cell."]
    return Group(*parts)


def _history_fields(trend: Trend) -> tuple[str, ...]:
    interval = "–" if trend.rate is None else f"{trend.rate[0]:.0%} to {trend.rate[1]:.0%}"
    medians = " ".join(f"{value:.3g}" for _, value in trend.medians[-12:])
    change = trend.change
    moved = (
        f"since {change.run}: {quantity('ttlb', change.before)} → {quantity('ttlb', change.after)}, q {_q(change.q)}"
        if change
        else ""
    )
    series = f"{medians} s" if medians else ""
    return (
        f"{trend.client} → {trend.server}",
        trend.case,
        str(trend.attempts),
        interval,
        str(trend.flips),
        series,
        moved,
    )
