"""The changes between two runs in a few lines with causes, and comparisons as tables, Markdown and JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from runner.compare.compare import (
    ChangeState,
    Comparison,
    Key,
    NumberChange,
    OfCell,
    RateChange,
    StackChange,
    VerdictChange,
    by_cell,
)
from runner.compare.conditions import METRICS, RATIOS
from runner.compare.history import History, Trend, least_runs
from runner.compare.rankings import Versus, versus
from runner.errors import UsageError
from runner.model.result import BY_KEY, Outcome, Result
from runner.model.stack import NO_VIA
from runner.store.runs import RunFolder
from runner.units import format_count, format_data_rate

# Compares the middleboxes of one run with a reference middlebox, separately for each pair and case. Jobs of the same
# iteration that ran shortly after each other had the same weather on a real link, so their times are compared as
# pairs.

_SHARED_SECONDS = 600.0  # longest time from one job's end to the next job's start with the same weather and load


@dataclass(frozen=True, kw_only=True)
class ViaChange(OfCell):
    """The times of one pair in one case through `via`, compared with the times through the reference."""

    via: str
    versus: Versus


def time_of(result: Result) -> float | None:
    """The time of a delivery or a page load in seconds; infinite for a failed attempt. None for a job that is not an
    attempt."""
    if result.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
        return None
    measured = result.sample.ttlb if result.sample is not None and result.outcome is Outcome.SUCCEEDED else None
    return inf if measured is None else measured


def times_of(results: Iterable[Result]) -> list[float]:
    return [time for result in results if (time := time_of(result)) is not None]


def pairs_of(ours: Iterable[Result], reference: Iterable[Result]) -> list[tuple[float, float]]:
    """The times of two jobs as a pair, for all jobs of the same iteration that ran within ten minutes of each other."""
    partners = {result.iteration: result for result in reference}
    pairs = []
    for result in ours:
        partner = partners.get(result.iteration)
        if partner is not None and _adjacent(result, partner):
            times = time_of(result), time_of(partner)
            if times[0] is not None and times[1] is not None:
                pairs.append((times[0], times[1]))
    return pairs


def _adjacent(earlier: Result, other: Result) -> bool:
    """True when the later job started at most ten minutes after the end of the earlier job. False when a start is
    unknown."""
    first, second = sorted((earlier, other), key=lambda result: result.started_unix_s)
    between = second.started_unix_s - (first.started_unix_s + first.wall_s)
    return first.started_unix_s > 0 and between <= _SHARED_SECONDS


def compare_vias(folder: RunFolder) -> tuple[str, list[ViaChange]]:
    """The name of the reference, and the comparison of every other middlebox with the reference.

    The reference is `none` (no middlebox) when the run has it, otherwise the run's first middlebox. Raises UsageError
    when there is nothing to compare with the reference.
    """
    vias = folder.run.vias
    if len(vias) < 2:
        raise UsageError(
            f"{folder.path} has no two middleboxes to compare: name a second run, or run it with --via none,openvpn."
        )
    reference = "" if "" in vias else vias[0]
    questions: dict[Key, dict[str, list[Result]]] = {}
    for job, result in folder.results().items():
        groups = questions.setdefault(Key(job.server, job.client, job.case_link), {})
        groups.setdefault(job.via, []).append(result)
    answers = versus(
        [{via: times_of(results) for via, results in groups.items()} for groups in questions.values()],
        reference,
        [
            {via: pairs_of(results, groups.get(reference, ())) for via, results in groups.items()}
            for groups in questions.values()
        ],
    )
    changes = [
        ViaChange(**key._asdict(), via=via, versus=answer)
        for key, comparison in zip(questions, answers, strict=True)
        for via, answer in comparison.items()
    ]
    return reference or NO_VIA, changes


# Prints comparisons and histories: as tables for a terminal, as Markdown, as JSON.

SCHEMA = 1
HEAD = ("client → server", "case", "what", "before", "after", "change", "δ", "q", "n")
_SIGNS = {
    ChangeState.WORSE: ("▼ worse", "red"),
    ChangeState.BETTER: ("▲ better", "green"),
    ChangeState.OTHER: ("● other", "yellow"),
    ChangeState.SMALL: ("~ below --least", "dim"),
    ChangeState.UNKNOWN: ("? not known yet", "dim"),
    ChangeState.ALIKE: ("= no change shown", "dim"),
    ChangeState.TOO_FEW: ("? too few iterations", "dim"),
}
_SHOWN = (ChangeState.WORSE, ChangeState.BETTER, ChangeState.OTHER)
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


def rows(comparison: Comparison, *, everything: bool) -> list[tuple[ChangeState, tuple[str, ...]]]:
    """The lines of the table, each with its texts in the columns of `HEAD`: worse cells first, then better cells, then
    other changes. With `everything` also cells without a shown change."""
    order = list(ChangeState)
    chosen = [change for change in comparison.changes() if everything or change.state in _SHOWN]
    return [
        (change.state, (change.key.pair, change.case, *_before_after(change), *_details(change)))
        for change in sorted(chosen, key=lambda change: (order.index(change.state), change.case))
    ]


_Change = VerdictChange | RateChange | NumberChange


def _before_after(change: _Change) -> tuple[str, str, str]:
    """The aspect that changed, and its texts before and after."""
    if isinstance(change, VerdictChange):
        return "outcome", change.before.value, change.after.value
    if isinstance(change, RateChange):
        before, after = (f"{good}/{tried}" for good, tried in (change.before, change.after))
        return "successes", before, after
    medians = change.shift.median_before, change.shift.median_after
    before, after = (quantity(change.metric, median) for median in medians)
    return BY_KEY[change.metric].label, before, after


def _details(change: _Change) -> tuple[str, str, str, str]:
    """The texts of the columns from `change` on."""
    if isinstance(change, VerdictChange):
        return change.why if change.state in (ChangeState.WORSE, ChangeState.OTHER) else "", "", "", ""
    if isinstance(change, RateChange):
        points = 100 * (change.after[0] / change.after[1] - change.before[0] / change.before[1])
        return f"{points:+.0f} points", "", _q(change.q), f"{change.before[1]}, {change.after[1]}"
    shift = change.shift
    moved = quantity(change.metric, shift.hodges_lehmann, signed=True)
    if shift.median_before and change.metric not in RATIOS:
        moved += f" ({100 * shift.hodges_lehmann / shift.median_before:+.1f} %)"
    return moved, f"{shift.cliffs_delta:+.2f}", _q(change.q), f"{shift.before}, {shift.after}"


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
    states = comparison.states()
    worse, better, other = (states.count(state) for state in _SHOWN)
    compared = f"{len(comparison.verdicts)} outcomes, {len(comparison.rates)} rates, {len(comparison.numbers)} numbers"
    more = f", {other} different in another way" if other else ""
    small = (
        f"; {states.count(ChangeState.SMALL)} changes of less than {100 * comparison.least:g} % left out"
        if comparison.least
        else ""
    )
    unknown = states.count(ChangeState.UNKNOWN)
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
        for state, fields in chosen:
            sign, style = _SIGNS[state]
            table.add_row(f"[{style}]{sign}[/{style}]", *map(escape, fields))
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
    """`image 4be1c2a0d9ff → 0.11.12 (image c083ff95e0fa)`: an image of the user has no version."""
    before = image_text(stack.version_before, stack.image_id_before)
    return f"{before} → {image_text(stack.version_after, stack.image_id_after)}"


def image_text(version: str, image_id: str) -> str:
    """The version of a stack, if it is known, with the beginning of its image id."""
    image = f"image {image_id.removeprefix('sha256:')[:12]}" if image_id else "image not recorded"
    return f"{version} ({image})" if version else image


def markdown(comparison: Comparison, *, everything: bool) -> str:
    """The comparison as Markdown, for a pull request or the summary of a CI."""
    lines = [f"## {comparison.before} → {comparison.after}", "", sentence(comparison), ""]
    lines += [f"- despite {topic}: {text}" for topic, sentences in comparison.despite.items() for text in sentences]
    lines += [f"- {text}" for text in (*comparison.notes, *_stack_lines(comparison))]
    lines.append("")
    if chosen := rows(comparison, everything=everything):
        lines += [markdown_row(("", *HEAD)), markdown_row(["---"] * (len(HEAD) + 1))]
        lines += [markdown_row((_SIGNS[state][0], *fields)) for state, fields in chosen]
        lines += ["", _HOW]
    else:
        lines.append("No change is significant.")
    return "\n".join(lines) + "\n"


def markdown_row(fields: Iterable[str]) -> str:
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
        sign, style = _SIGNS[ChangeState.ALIKE if versus.q is not None else ChangeState.TOO_FEW]
        if versus.certain:
            shorter = versus.change < 0 if versus.change is not None else not versus.lost
            sign, style = ("▲ shorter", "green") if shorter else ("▼ longer", "red")
        time = f"{100 * versus.change:+.1f} %" if versus.change is not None else "mostly failed" if versus.lost else "–"
        ends95 = versus.low, versus.high
        interval = "–" if None in ends95 else " to ".join(f"{100 * end:+.1f} %" for end in ends95 if end is not None)
        compared = f"{versus.n} with {versus.reference_n}" if versus.pairs is None else f"{versus.pairs} pairs"
        fields = (change.key.pair, change.case, change.via or NO_VIA, time, interval, compared, _q(versus.q))
        table.add_row(f"[{style}]{sign}[/{style}]", *(escape(field) for field in fields))
    return Group(f"[bold]Time of delivery or page load, against {escape(reference)}[/bold]", "", table, _HOW_VIAS)


def history_renderable(past: History, *, everything: bool) -> Group:
    """The changed and the flaky cells, for a rich console. With `everything`: all cells."""
    cells = format_count(len(past.trends), "cell")
    amount = f"{format_count(len(past.runs), 'run')}, {cells} in the cases of the newest"
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
    return (trend.key.pair, trend.case, str(trend.attempts), interval, str(trend.flips), series, moved)


# The changes between two runs in a few lines, with causes and packets. Cells that changed in the same way are in one
# line.


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """One cell that changed. `cause` is empty when the cause is unknown. Cells with the same cause have the same
    `code`."""

    state: ChangeState
    key: Key
    aspect: str  # such as `outcome`, `delivery time`
    text: str  # before → after
    code: str = ""
    cause: str = ""
    iteration: int | None = None  # the iteration that shows the cause


@dataclass(frozen=True, kw_only=True)
class ChangeLine:
    """Cells that changed in the same way. The text describes the first cell."""

    cells: tuple[CellChange, ...]
    images: tuple[str, ...]  # texts about changed images of the cells' stacks

    @property
    def first(self) -> CellChange:
        return self.cells[0]

    @property
    def state(self) -> ChangeState:
        return self.first.state

    @property
    def subject(self) -> str:
        """`quinn → quic-go, sat`, or `quinn as server, sat, 4 cells`."""
        if len(self.cells) == 1:
            return str(self.first.key)
        role, name = _shared([cell.key for cell in self.cells])
        return f"{name} as {role}, {self.first.key.case}, {len(self.cells)} cells"

    @property
    def sentence(self) -> str:
        first = self.first
        example = "" if len(self.cells) == 1 else f"{first.key.pair}: "
        causes = "; ".join(part for part in (first.cause, *self.images) if part)
        return f"{self.state.value}: {self.subject}: {example}{first.aspect} {first.text}" + (
            f" ({causes})" if causes else ""
        )


def change_lines(comparison: Comparison, before: RunFolder, after: RunFolder) -> list[ChangeLine]:
    """The lines about all cells with a changed outcome or a statistically significant change. Worse cells come first,
    and then lines with more cells. Only the most important change of a cell is shown."""
    old, new = by_cell(before.results()), by_cell(after.results())
    changed = {stack.name: stack for stack in comparison.stacks if stack.changed}
    cells = sorted(_cells(comparison, old, new), key=lambda cell: (_SHOWN.index(cell.state), cell.key.case, cell.key))
    lines = [ChangeLine(cells=tuple(group), images=tuple(_images(group[0].key, changed))) for group in _grouped(cells)]
    return sorted(lines, key=lambda line: (_SHOWN.index(line.state), -len(line.cells)))


def _cells(comparison: Comparison, old: dict[Key, list[Result]], new: dict[Key, list[Result]]) -> Iterator[CellChange]:
    by_key: dict[Key, list[_Change]] = {}
    for change in comparison.changes():
        if change.state in _SHOWN:
            by_key.setdefault(change.key, []).append(change)
    for key, changes in by_key.items():
        yield _cell(min(changes, key=_importance), old.get(key, []), new.get(key, []))


def _importance(change: _Change) -> int:
    """The rank of a change in its cell: outcomes first, then rates, then numbers."""
    if isinstance(change, NumberChange):
        return 2 + list(METRICS).index(change.metric)
    return int(isinstance(change, RateChange))


def _cell(change: _Change, old: Sequence[Result], new: Sequence[Result]) -> CellChange:
    gone = change.state is ChangeState.BETTER
    aspect, *ends = _before_after(change)
    text = " → ".join(ends)
    if isinstance(change, NumberChange):
        code, cause, iteration = _diagnosis(old, new, gone=gone)
        if change.shift.median_before:
            text += f" ({100 * (change.shift.median_after / change.shift.median_before - 1):+.0f} %)"
    else:
        code, cause, iteration = _finding(old if gone else new)
        cause = f"before: {cause}" if gone and cause else cause
    return CellChange(
        state=change.state, key=change.key, aspect=aspect, text=text, code=code, cause=cause, iteration=iteration
    )


def _finding(results: Sequence[Result]) -> tuple[str, str, int | None]:
    """The first reason why a result did not succeed: code, sentence with packets, iteration."""
    for result in results:
        if result.outcome not in (Outcome.SUCCEEDED, Outcome.ERROR):
            for finding in result.findings:
                return finding.code, f"{finding.code}: {finding.evidence}", result.iteration
    return "", "", None


def _diagnosis(old: Sequence[Result], new: Sequence[Result], *, gone: bool) -> tuple[str, str, int | None]:
    """The diagnosis whose share of the transfers grew most; with `gone`, the diagnosis whose share fell most."""
    shares = [_shares(results) for results in ((new, old) if gone else (old, new))]
    grown = {code: share - shares[0].get(code, 0.0) for code, share in shares[1].items()}
    code = max(grown, key=lambda name: (grown[name], name), default="")
    if not code or grown[code] <= 0:
        return "", "", None
    for result in old if gone else new:
        for diagnosis in result.diagnoses:
            if diagnosis.code == code:
                packets = f"; packets {', '.join(map(str, diagnosis.packets))}" if diagnosis.packets else ""
                when = f"{diagnosis.start:.2f} to {diagnosis.end:.2f} s"
                sentence = f"{'no longer ' if gone else ''}{code}: {diagnosis.sentence.rstrip('.')} ({when}{packets})"
                return code, sentence, None if gone else result.iteration
    return "", "", None


def _shares(results: Sequence[Result]) -> dict[str, float]:
    """The fraction of the transfers with each diagnosis, by the diagnosis's code."""
    judged = [result for result in results if result.outcome is Outcome.SUCCEEDED]
    codes = Counter(code for result in judged for code in {diagnosis.code for diagnosis in result.diagnoses})
    return {code: count / len(judged) for code, count in codes.items()}


def _grouped(cells: Sequence[CellChange]) -> Iterator[list[CellChange]]:
    """Groups of cells with the same case, state, aspect and cause, and with the same server or client."""
    groups: dict[tuple[str, ...], list[CellChange]] = {}
    for cell in cells:
        groups.setdefault((cell.state, cell.key.case, cell.aspect, cell.code), []).append(cell)
    for group in groups.values():
        left = group
        while left:
            role, name = _shared([cell.key for cell in left], most=True)
            yield [cell for cell in left if getattr(cell.key, role) == name]
            left = [cell for cell in left if getattr(cell.key, role) != name]


def _shared(keys: Sequence[Key], *, most: bool = False) -> tuple[str, str]:
    """Role and name of the stack that is in all cells. With `most`: of the stack that is in most cells; when a server
    and a client are in equally many cells, of the server."""
    counted = Counter(end for key in keys for end in (("server", key.server), ("client", key.client)))
    (role, name), count = max(counted.items(), key=lambda item: (item[1], item[0][0] == "server"))
    assert most or count == len(keys)
    return role, name


def _images(key: Key, changed: dict[str, StackChange]) -> Iterator[str]:
    """Texts about changed images of the server, the client and the middlebox. The middlebox is the last part of
    `<client>[+via]`."""
    for name, stack in changed.items():
        if name in (key.server, key.client) or key.client.startswith(f"{name}+") or key.client.endswith(f"+{name}"):
            yield f"new image of {name}: {version_text(stack)}"
