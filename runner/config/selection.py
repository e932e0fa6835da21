"""What a user selects: servers, clients, middleboxes, cases over their links, iterations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.model.run import CaseRecord


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the user asked for, resolved to names of the catalogue. `cases` are names of records, `<case>[@link]`."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    vias: tuple[str, ...] = ("",)  # empty: no middlebox
    cases: tuple[str, ...]
    iterations: int | None = None  # None: what `counts` or each case declares
    counts: Mapping[str, int] = field(default_factory=dict)  # iterations that a stored run has, by case


def iterations_of(selection: Selection, case: CaseRecord) -> int:
    """How often the case runs: once for a test case unless it declares more, `--iterations` for the others."""
    if case.iterations == 1:
        return 1
    return selection.iterations or selection.counts.get(case.name, case.iterations)
