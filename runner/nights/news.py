"""What a night brought, in at most ten lines: changes since the night before, and whether the run can be trusted."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from runner.compare import compare, report, run_means
from runner.errors import UsageError
from runner.model.result import Outcome
from runner.store import RunFolder

_MOST = 10  # lines
_MOST_RUNS = 20  # earlier ones that tell how much runs differ by themselves
_DOUBTFUL = 0.05  # share of jobs that ended as errors, from which on the night is called doubtful


@dataclass(frozen=True, kw_only=True)
class News:
    """What one run brought: at most ten lines; `changed`: anything got worse, better or otherwise different."""

    lines: tuple[str, ...]
    changed: bool = False


def news(folder: RunFolder, earlier: list[RunFolder]) -> News:
    """The news of one run. `earlier`: the same run of earlier nights, the newest first."""
    trusted, sentence = trust(folder)
    lines = [f"{folder.name}: {sentence}"]
    if not earlier:
        return News(lines=(*lines, "There is no earlier night to compare with."), changed=not trusted)
    try:
        others = [run_means(other) for other in earlier[1:_MOST_RUNS]]
        comparison = compare(earlier[0], folder, others=others)
    except UsageError as error:
        return News(lines=(*lines, str(error)), changed=True)
    rows = [" ".join(text for text in row.fields if text) for row in report.rows(comparison, everything=False)]
    lines.append(report.sentence(comparison))
    room = _MOST - len(lines)
    lines += rows[:room] if len(rows) <= room else [*rows[: room - 1], f"and {len(rows) - room + 1} more changes"]
    return News(lines=tuple(lines), changed=bool(rows) or not trusted)


def trust(folder: RunFolder) -> tuple[bool, str]:
    """Whether the run can be trusted, and why, in one sentence."""
    results = list(folder.results().values())
    planned = len(folder.run.order)
    errors = [result for result in results if result.outcome is Outcome.ERROR]
    causes = Counter(result.findings[0].code if result.findings else "error" for result in errors)
    trusted = bool(results) and len(errors) <= _DOUBTFUL * len(results) and len(results) >= planned
    parts = ", ".join(_parts(len(results), planned, causes))
    return trusted, f"{'can be trusted' if trusted else 'is doubtful'}; {parts}."


def _parts(done: int, planned: int, causes: Counter[str]) -> Iterator[str]:
    yield f"{done} of {planned} jobs done"
    if causes:
        named = ", ".join(f"{code} {count}" for code, count in causes.most_common(3))
        yield f"{causes.total()} ended as errors ({named})"
