"""A comparison as a table for a terminal, as Markdown and as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from runner.compare.compare import (
    Comparison,
    NumberChange,
    RateChange,
    StackChange,
    State,
    VerdictChange,
)
from runner.compare.history import History, Trend, least_runs
from runner.model.numbers import BY_KEY
from runner.units import format_data_rate

SCHEMA = 1
HEAD = ("client → server", "case", "what", "before", "after", "change", "δ", "q", "n")
_SIGNS = {
    State.WORSE: ("▼ worse", "red"),
    State.BETTER: ("▲ better", "green"),
    State.OTHER: ("● other", "yellow"),
    State.SMALL: ("~ below --least", "dim"),
    State.ALIKE: ("= no change shown", "dim"),
    State.TOO_FEW: ("? too few iterations", "dim"),
}
_SHOWN = (State.WORSE, State.BETTER, State.OTHER)
_HOW = (
    "change: Hodges-Lehmann shift of the iterations · δ: Cliff's delta, -1 to 1 · q: p of Mann-Whitney and of the test "
    "against the deviation between runs, the larger one (numbers), or of Fisher (rates), after Benjamini-Hochberg for "
    "all of them · n: iterations before and after"
)


@dataclass(frozen=True)
class Row:
    """One line of the table. `fields` stand below `HEAD`."""

    state: State
    fields: tuple[str, ...]


def rows(comparison: Comparison, *, everything: bool) -> list[Row]:
    """Lines of the table: worse first, then better, then different; the rest with `everything`."""
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
    found = change.shift
    before, after = (quantity(change.metric, one) for one in (found.median_before, found.median_after))
    moved = quantity(change.metric, found.hodges_lehmann, signed=True)
    if found.median_before and change.metric != "retransmission_ratio":
        moved += f" ({100 * found.hodges_lehmann / found.median_before:+.1f} %)"
    label = BY_KEY[change.metric].label
    n = f"{found.before}, {found.after}"
    fields = (*_who(change), label, before, after, moved, f"{found.cliffs_delta:+.2f}", _q(change.q), n)
    return Row(change.state, fields)


def quantity(metric: str, value: float, *, signed: bool = False) -> str:
    """A number of `metric`, given in SI units, for people; with its sign also where it is positive."""
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
    asked = f"{len(comparison.verdicts)} outcomes, {len(comparison.rates)} rates, {len(comparison.numbers)} numbers"
    more = f", {other} otherwise different" if other else ""
    small = (
        f"; {states.count(State.SMALL)} changes of less than {100 * comparison.least:g} % left out"
        if comparison.least
        else ""
    )
    return (
        f"{comparison.before} → {comparison.after}: {worse} worse, {better} better{more}, of {asked}; "
        f"{comparison.tests} tests at a false discovery rate of {comparison.rate:.0%}{small}."
    )


def renderable(comparison: Comparison, *, everything: bool) -> Group:
    """For a rich console."""
    parts: list[Any] = [f"[bold]{escape(sentence(comparison))}[/bold]"]
    for topic, found in comparison.despite.items():
        parts += [f"[yellow]despite {topic}: {escape(one)}[/yellow]" for one in found]
    parts += [f"[dim]{escape(one)}[/dim]" for one in comparison.notes]
    parts += ["", *(escape(one) for one in _stack_lines(comparison))]
    if chosen := rows(comparison, everything=everything):
        table = Table("", *HEAD, box=None, pad_edge=False)
        for row in chosen:
            sign, style = _SIGNS[row.state]
            table.add_row(f"[{style}]{sign}[/{style}]", *(escape(field) for field in row.fields))
        parts += ["", table, f"[dim]{_HOW}[/dim]"]
    else:
        parts += ["", "No change shows. `--all` lists every cell."]
    return Group(*parts)


def _stack_lines(comparison: Comparison) -> Iterator[str]:
    changed = [stack for stack in comparison.stacks if stack.changed]
    for stack in changed:
        yield f"{stack.name}: {_version(stack)}"
    alike = [stack.name for stack in comparison.stacks if not stack.changed]
    if alike:
        yield f"The same image on both sides: {', '.join(alike)}."


def _version(stack: StackChange) -> str:
    before, after = (
        f"{version or 'unknown version'} {image_id.removeprefix('sha256:')[:12] or 'image id unknown'}"
        for version, image_id in (
            (stack.version_before, stack.image_id_before),
            (stack.version_after, stack.image_id_after),
        )
    )
    return f"{before} → {after}"


def markdown(comparison: Comparison, *, everything: bool) -> str:
    """For a pull request or the summary of a CI."""
    lines = [f"## {comparison.before} → {comparison.after}", "", sentence(comparison), ""]
    lines += [f"- despite {topic}: {one}" for topic, found in comparison.despite.items() for one in found]
    lines += [f"- {one}" for one in (*comparison.notes, *_stack_lines(comparison))]
    lines.append("")
    if chosen := rows(comparison, everything=everything):
        lines += [_line(("", *HEAD)), _line(["---"] * (len(HEAD) + 1))]
        lines += [_line((_SIGNS[row.state][0], *row.fields)) for row in chosen]
        lines += ["", _HOW]
    else:
        lines.append("No change shows.")
    return "\n".join(lines) + "\n"


def _line(fields: tuple[str, ...] | list[str]) -> str:
    inside = (field.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for field in fields)
    return "| " + " | ".join(" ".join(field.split()) for field in inside) + " |"


def document(comparison: Comparison) -> str:
    """The comparison as JSON, in SI units, one field per line."""
    every = {"schema": SCHEMA, "exit_code": comparison.exit_code, **asdict(comparison)}
    return json.dumps(every, indent=1, sort_keys=True, allow_nan=False) + "\n"


def history_renderable(found: History, *, everything: bool) -> Group:
    """For a rich console: cells that changed or that flip, all of them with `everything`."""
    amount = f"{len(found.runs)} runs, {len(found.trends)} cells in the cases of the newest"
    parts: list[Any] = [f"[bold]{amount}[/bold]: {escape(', '.join(found.runs))}"]
    parts += [f"[dim]left out: {escape(name)}. {escape(why)}[/dim]" for name, why in found.left_out]
    if len(found.runs) < (least := least_runs()):
        parts.append(
            f"[dim]A change point needs at least {least} runs: with fewer, no split of them can show one.[/dim]"
        )
    table = Table("client → server", "case", "successes", "95 %", "flips", "delivery time by run", "change", box=None)
    chosen = [
        one for one in found.trends if everything or one.change or 0 < one.attempts.successes < one.attempts.attempts
    ]
    for one in chosen:
        table.add_row(*(escape(field) for field in _history_fields(one)))
    parts += ["", table] if chosen else ["", "No cell changed and none is flaky. `--all` lists every cell."]
    return Group(*parts)


def _history_fields(trend: Trend) -> tuple[str, ...]:
    interval = "–" if trend.rate is None else f"{trend.rate[0]:.0%} to {trend.rate[1]:.0%}"
    medians = " ".join(f"{value:.3g}" for _, value in trend.medians[-12:])
    change = trend.change
    moved = (
        f"from {change.run} on: {quantity('ttlb', change.before)} → {quantity('ttlb', change.after)}, q {_q(change.q)}"
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
