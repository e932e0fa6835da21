"""Sentences about middleboxes: the leading middlebox over each link, its margin, and the data that an eavesdropper
sees."""

from collections import Counter
from collections.abc import Iterator, Sequence

from runner.model.result import Outcome
from runner.render import words
from runner.render.metrics import NARROW, digits
from runner.render.pages.vias import Row, label, visibility
from runner.render.view import RunView
from runner.stats.change import FALSE_DISCOVERY_RATE, least_n
from runner.stats.winner import Winner

_MOST_NAMED = 3


def sentences(view: RunView, rows: Sequence[Row]) -> list[str]:
    """The sentences of a run that tests only middleboxes: plan and outcomes, the leading middleboxes, the data that an
    eavesdropper sees, failures."""
    return [words.run_sentence(view.run, view.results.values()), *findings(rows, visibility(view)), *_wrong(view)]


def findings(rows: Sequence[Row], looked: dict[str, tuple[int, int]]) -> list[str]:
    """Sentences about the leading middlebox over each link, its margin, and the data that an eavesdropper sees. Empty
    when the run has no middlebox."""
    return [*_leaders(rows), *_clearest(rows), *_visible(looked)]


def _decided(rows: Sequence[Row]) -> list[tuple[Row, Winner]]:
    """The rows in which at least two middleboxes were measured."""
    return [(row, row.winner) for row in rows if row.winner is not None and row.winner.second]


def _leaders(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence about the leading middleboxes over all links."""
    decided = _decided(rows)
    if not decided:
        return
    parts = []
    for link in dict.fromkeys(row.case.link.base_name for row, _ in decided):
        ahead = Counter(best.name for row, best in decided if row.case.link.base_name == link)
        named = [f"{via} in {times}" for via, times in ahead.most_common(_MOST_NAMED)]
        parts.append(f"over {link}, {_listed(named)} of {words.amount(ahead.total(), 'row')}")
    sure = sum(best.certain for _, best in decided)
    able = sum(best.q is not None for _, best in decided)
    chance = (
        f"{sure} of {words.amount(len(decided), 'lead')} {'is' if sure == 1 else 'are'} more than chance"
        if able
        else f"{least_n(FALSE_DISCOVERY_RATE)} iterations of each middlebox would show whether this is more than chance"
    )
    yield f"Middleboxes with the shortest median time: {'; '.join(parts)}; {chance}."


def _clearest(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence about the greatest margin that is statistically significant."""
    sure = [(row, best) for row, best in _decided(rows) if best.certain and best.margin is not None]
    if not sure:
        return
    row, best = max(sure, key=lambda pair: pair[1].margin or 0.0)
    margin = best.margin or 0.0
    span = (
        ""
        if best.low is None or best.high is None
        else f", 95 % interval {_percent(best.low)} to {_percent(best.high)}"
    )
    yield (
        f"The greatest margin that is more than chance: {best.name} in {row.case.name}, {value(best)}, "
        f"{_percent(margin)}{NARROW}% less time than {best.second}{span}."
    )


def value(best: Winner) -> str:
    """The winner's median with its unit."""
    return f"{digits(best.value)}{NARROW}s"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}"


def _listed(named: Sequence[str]) -> str:
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _visible(looked: dict[str, tuple[int, int]]) -> Iterator[str]:
    hidden = [via for via, (shown, _) in looked.items() if not shown]
    parts = [f"none with {_listed(hidden)}"] if hidden else []
    parts += [f"{visible} of {of} with {via}" for via, (visible, of) in looked.items() if visible]
    if parts:
        yield f"Kinds of private data that an eavesdropper on the satellite link sees: {_listed(parts)}."


def _wrong(view: RunView) -> Iterator[str]:
    failed = [result for result in view.results.values() if result.outcome is Outcome.FAILED]
    if not failed:
        return
    codes = Counter(result.findings[0].code if result.findings else "unknown" for result in failed)
    named = [f"{code} ({jobs:,})" for code, jobs in codes.most_common(_MOST_NAMED)]
    vias = Counter(label(result.via) for result in failed)
    via, times = vias.most_common(1)[0]
    route = f"; {times} of them via {via}" if len(vias) > 1 else f"; all via {via}"
    yield f"{words.amount(len(failed), 'job')} failed, by cause: {', '.join(named)}{route}."
