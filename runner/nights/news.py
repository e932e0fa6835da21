"""The news of a night, at most ten lines for each run: whether its results can be trusted, and changes since the night
before."""

from dataclasses import dataclass

from runner.compare import compare, report, run_means
from runner.compare.causes import change_lines
from runner.compare.trust import trust
from runner.errors import UsageError
from runner.store import RunFolder

_MOST = 10  # the most lines for one run
_MOST_RUNS = 20  # most earlier runs from which the deviation between runs is estimated


@dataclass(frozen=True, kw_only=True)
class News:
    """The news of one run in at most ten lines. `changed`: something got worse, better or otherwise different."""

    lines: tuple[str, ...]
    changed: bool = False


def news(folder: RunFolder, earlier: list[RunFolder]) -> News:
    """The news of one run. `earlier`: the same run of earlier nights, the newest first."""
    trusted = trust(len(folder.run.order), folder.results().values())
    lines = [f"{folder.name} {trusted.sentence}."]
    if not earlier:
        return News(lines=(*lines, "There is no earlier night to compare with."), changed=not trusted.trusted)
    try:
        others = [run_means(other) for other in earlier[1:_MOST_RUNS]]
        comparison = compare(earlier[0], folder, others=others)
    except UsageError as error:
        return News(lines=(*lines, str(error)), changed=True)
    changes = [line.sentence for line in change_lines(comparison, earlier[0], folder)]
    lines.append(report.sentence(comparison))
    room = _MOST - len(lines)
    left = len(changes) - room + 1
    lines += changes if len(changes) <= room else [*changes[: room - 1], f"and {left} more lines of changes"]
    return News(lines=tuple(lines), changed=bool(changes) or not trusted.trusted)
