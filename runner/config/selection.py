"""The user's selection: servers, clients, middleboxes, cases over their links, iterations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.model.run import CaseRecord


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The user's selection, resolved to names of the catalogue. `cases` are names of records, `<case>[@link]`."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    vias: tuple[str, ...] = ("",)  # empty: no middlebox
    cases: tuple[str, ...]
    iterations: int | None = None  # None: the number in `counts`, or the one that the case declares
    counts: Mapping[str, int] = field(default_factory=dict)  # iterations that a stored run has, by case


def iterations_of(selection: Selection, case: CaseRecord) -> int:
    """The iterations of a case: `--iterations` for measurements; a test case has its declared number, 1 by default."""
    if case.iterations == 1:
        return 1
    return selection.iterations or selection.counts.get(case.name, case.iterations)
