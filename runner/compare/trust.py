"""Decides whether the results of a run can be trusted. They can when they are complete and few jobs ended as errors."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from runner.model.result import Outcome, Result

DOUBTFUL = 0.05
"""A run is doubtful when a larger share of its finished jobs ended as errors."""
_MOST_NAMED = 3  # codes


@dataclass(frozen=True, kw_only=True)
class Trust:
    """`trusted`: True when the results can be trusted. `reasons`: the reasons, as parts of a sentence."""

    trusted: bool
    reasons: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """`can be trusted: 12 of 12 jobs done, no error`."""
        return f"{'can be trusted' if self.trusted else 'is doubtful'}: {', '.join(self.reasons)}"


def trust(planned: int, results: Collection[Result]) -> Trust:
    """Decide for one run. `planned`: the number of planned jobs. `results`: the results of all finished jobs."""
    errors = [result for result in results if result.outcome is Outcome.ERROR]
    repeated = sum(bool(result.disturbed) and not result.reused_from for result in results)
    reasons = [f"{len(results)} of {planned} jobs done"]
    if errors:
        codes = Counter(result.findings[0].code if result.findings else "error" for result in errors)
        named = ", ".join(f"{code} {count}" for code, count in codes.most_common(_MOST_NAMED))
        reasons.append(f"{len(errors)} ended as errors ({named})")
    else:
        reasons.append("no error")
    if reused := sum(bool(result.reused_from) for result in results):
        reasons.append(f"{reused} taken over from an earlier run")
    if repeated:
        reasons.append(f"{repeated} repeated after a disturbance")
    return Trust(
        trusted=bool(results) and len(results) >= planned and len(errors) <= DOUBTFUL * len(results),
        reasons=tuple(reasons),
    )
