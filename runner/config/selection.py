"""The user's selection: servers, clients, middleboxes, cases over their links, numbers of iterations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.model.run import CaseRecord


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The user's selection, resolved to names of the catalogue. `cases` are names of records, `<case>[@link]`."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    vias: tuple[str, ...] = ("",)  # an empty name: no middlebox
    cases: tuple[str, ...]
    iterations: int | None = None  # None: the number in `counts`, or the declared number of the case
    counts: Mapping[str, int] = field(default_factory=dict)  # number of iterations in a stored run, by case


def iterations_of(selection: Selection, case: CaseRecord) -> int:
    """The number of iterations of a case. A case that declares one iteration has one. Other cases have the number of
    `--iterations`; without this option, the number of the stored run or the declared number."""
    if case.iterations == 1:
        return 1
    return selection.iterations or selection.counts.get(case.name, case.iterations)
