"""The changes between two runs in a few lines, with causes and packets. Cells that changed in the same way are in one
line."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.compare import report
from runner.compare.changes import Comparison, Key, NumberChange, RateChange, StackChange, State, VerdictChange
from runner.compare.sides import by_cell
from runner.model.numbers import BY_KEY
from runner.model.result import Outcome, Result
from runner.store import RunFolder

_ORDER = (State.WORSE, State.BETTER, State.OTHER)
_METRICS = ("ttlb", "goodput", "handshake_time", "retransmission_ratio")  # a line describes the first that changed


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """One cell that changed. `cause` is empty when the cause is unknown. Cells with the same cause have the same
    `code`."""

    state: State
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
    def state(self) -> State:
        return self.first.state

    @property
    def subject(self) -> str:
        """`quinn → quic-go, sat`, or `quinn as server, sat, 4 cells`."""
        server, client, case = self.first.key
        if len(self.cells) == 1:
            return f"{client} → {server}, {case}"
        role, name = _shared([cell.key for cell in self.cells])
        return f"{name} as {role}, {case}, {len(self.cells)} cells"

    @property
    def sentence(self) -> str:
        """The line as plain text."""
        first = self.first
        example = "" if len(self.cells) == 1 else f"{first.key[1]} → {first.key[0]}: "
        causes = "; ".join(part for part in (first.cause, *self.images) if part)
        return f"{self.state.value}: {self.subject}: {example}{first.aspect} {first.text}" + (
            f" ({causes})" if causes else ""
        )


def change_lines(comparison: Comparison, before: RunFolder, after: RunFolder) -> list[ChangeLine]:
    """The lines about all cells with a changed outcome or a statistically significant change. Worse cells come first,
    and then lines with more cells. Only the most important change of a cell is shown."""
    old, new = by_cell(before.results()), by_cell(after.results())
    changed = {stack.name: stack for stack in comparison.stacks if stack.changed}
    cells = sorted(_cells(comparison, old, new), key=lambda cell: (_ORDER.index(cell.state), cell.key[2], cell.key))
    lines = [ChangeLine(cells=tuple(group), images=tuple(_images(group[0].key, changed))) for group in _grouped(cells)]
    return sorted(lines, key=lambda line: (_ORDER.index(line.state), -len(line.cells)))


def _cells(comparison: Comparison, old: dict[Key, list[Result]], new: dict[Key, list[Result]]) -> Iterator[CellChange]:
    by_key: dict[Key, list[VerdictChange | RateChange | NumberChange]] = {}
    every: list[VerdictChange | RateChange | NumberChange] = [
        *comparison.verdicts,
        *comparison.rates,
        *comparison.numbers,
    ]
    for change in every:
        if change.state in _ORDER:
            by_key.setdefault((change.server, change.client, change.case), []).append(change)
    for key, changes in by_key.items():
        yield _cell(key, min(changes, key=_importance), old.get(key, []), new.get(key, []))


def _importance(change: VerdictChange | RateChange | NumberChange) -> int:
    """The rank of a change in its cell: outcomes first, then rates, then numbers."""
    if isinstance(change, VerdictChange):
        return 0
    return 1 if isinstance(change, RateChange) else 2 + _METRICS.index(change.metric)


def _cell(
    key: Key, change: VerdictChange | RateChange | NumberChange, old: Sequence[Result], new: Sequence[Result]
) -> CellChange:
    if isinstance(change, NumberChange):
        before, after = (
            report.quantity(change.metric, value) for value in (change.shift.median_before, change.shift.median_after)
        )
        code, cause, iteration = _diagnosis(old, new, gone=change.state is State.BETTER)
        aspect = BY_KEY[change.metric].label
        text = f"{before} → {after}" + (f" ({_percent(change)})" if change.shift.median_before else "")
        return CellChange(
            state=change.state, key=key, aspect=aspect, text=text, code=code, cause=cause, iteration=iteration
        )
    code, cause, iteration = _finding(old if change.state is State.BETTER else new)
    if change.state is State.BETTER and cause:
        cause = f"before: {cause}"
    if isinstance(change, VerdictChange):
        aspect, text = "outcome", f"{change.before.value} → {change.after.value}"
    else:
        aspect = "successes"
        text = " → ".join(f"{good}/{tried}" for good, tried in (change.before, change.after))
    return CellChange(
        state=change.state, key=key, aspect=aspect, text=text, code=code, cause=cause, iteration=iteration
    )


def _percent(change: NumberChange) -> str:
    return f"{100 * (change.shift.median_after / change.shift.median_before - 1):+.0f} %"


def _finding(results: Sequence[Result]) -> tuple[str, str, int | None]:
    """The first reason why a result did not succeed: code, sentence with packets, iteration."""
    for result in results:
        if result.outcome not in (Outcome.SUCCEEDED, Outcome.ERROR):
            for finding in result.findings:
                packets = f"; packets {finding.places}, capture of the {finding.vantage}" if finding.packets else ""
                return finding.code, f"{finding.code}: {finding.actual}{packets}", result.iteration
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
        groups.setdefault((cell.state, cell.key[2], cell.aspect, cell.code), []).append(cell)
    for group in groups.values():
        left = group
        while left:
            role, name = _shared([cell.key for cell in left], most=True)
            index = 0 if role == "server" else 1
            yield [cell for cell in left if cell.key[index] == name]
            left = [cell for cell in left if cell.key[index] != name]


def _shared(keys: Sequence[Key], *, most: bool = False) -> tuple[str, str]:
    """Role and name of the stack that is in all cells. With `most`: of the stack that is in most cells; when a server
    and a client are in equally many cells, of the server."""
    counted = Counter(("server", key[0]) for key in keys)
    counted.update(("client", key[1]) for key in keys)
    (role, name), count = max(counted.items(), key=lambda item: (item[1], item[0][0] == "server"))
    assert most or count == len(keys)
    return role, name


def _images(key: Key, changed: dict[str, StackChange]) -> Iterator[str]:
    """Texts about changed images of the server, the client and the middlebox. The middlebox is the last part of
    `<client>[+via]`."""
    server, client, _ = key
    for name, stack in changed.items():
        if name in (server, client) or client.startswith(f"{name}+") or client.endswith(f"+{name}"):
            yield f"new image of {name}: {report.version_text(stack)}"
