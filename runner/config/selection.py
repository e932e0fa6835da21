"""What a user selects: servers, clients, cases, iterations."""

from dataclasses import dataclass

from runner.model.run import CaseRecord


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the user asked for, resolved to names of the catalogue."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    cases: tuple[str, ...]
    iterations: int | None = None  # None: what each case declares


def iterations_of(selection: Selection, case: CaseRecord) -> int:
    """How often the case runs: once for a test case unless it declares more, `--iterations` for the others."""
    if selection.iterations is None or case.iterations == 1:
        return case.iterations
    return selection.iterations
