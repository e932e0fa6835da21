"""How often `ci` calls a matrix cell worse when nothing changed.

The runs have the same images and different seeds; `run --clock virtual --repeat-runs 20` makes such runs. For each
comparison and cell, up to 20 of the stored results are drawn without replacement. One half stands for base, the other
half for head, and the rule of `ci` is applied to them. Base and head have different seeds here, and so more random
differences than in `ci`, where both have the same seeds.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.check.cell import CellPlace
from runner.check.change import FIRST, SECOND, CellState, Change, confirmed_by_peers
from runner.model.result import Result
from runner.model.run import Kind
from runner.store.runs import RunFolder

Cells = Mapping[CellPlace, Sequence[Result]]


def load(paths: Sequence[Path], stack: str) -> tuple[Cells, frozenset[str]]:
    """The results of each cell in which `stack` runs with another stack, and the names of the measurements. Cells with
    too few results for the first iterations of base and head are left out."""
    cells: dict[CellPlace, list[Result]] = {}
    measured: set[str] = set()
    for path in paths:
        folder = RunFolder.open(path)
        measured |= {name for name, case in folder.run.cases.items() if case.kind is Kind.MEASUREMENT}
        for job, result in folder.results().items():
            if stack in (job.server, job.client) and job.server != job.client:
                cells.setdefault(CellPlace.of(job, stack), []).append(result)
    return {place: results for place, results in cells.items() if len(results) >= 2 * FIRST}, frozenset(measured)


def compare(cells: Cells, measured: frozenset[str], chance: random.Random, least: float) -> Iterator[Change]:
    """Make one comparison. For each cell, iterations of base and of head are drawn, and more iterations when the rule
    requires them."""
    drawn = {place: chance.sample(results, min(2 * SECOND, len(results))) for place, results in cells.items()}
    questions = sum(place.case in measured for place in cells)

    def change(place: CellPlace, count: int) -> Change:
        half = len(drawn[place]) // 2
        base, head = (drawn[place][begin : min(begin + count, begin + half)] for begin in (0, half))
        return Change(
            place=place,
            base=tuple(base),
            head=tuple(head),
            measured=place.case in measured,
            least=least,
            questions=questions,
        )

    changes = {place: change(place, 1) for place in cells}
    while True:
        confirmed = confirmed_by_peers(changes)
        changes = {place: replace(cell, confirmed=place in confirmed) for place, cell in changes.items()}
        counts = {place: min(SECOND, len(cell.head) + cell.further) for place, cell in changes.items()}
        more = [
            place for place, count in counts.items() if len(changes[place].head) < min(count, len(drawn[place]) // 2)
        ]
        if not more:
            return iter(changes.values())
        changes |= {place: change(place, counts[place]) for place in more}


def main() -> None:
    """Print the states of all cells over all comparisons. Exit code 1 when a comparison had a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m lab.no_change", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--stack", required=True, help="the stack under test; all others are its peers")
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--least", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cells, measured = load(options.runs, options.stack)
    if not cells:
        parser.error(f"no cell of {options.stack} has {2 * FIRST} results in these runs")
    chance, alarmed, states = random.Random(options.seed), 0, Counter[CellState]()
    rerun = 0
    for _ in range(options.comparisons):
        changes = list(compare(cells, measured, chance, options.least))
        worse = [change for change in changes if change.state is CellState.WORSE]
        alarmed += bool(worse)
        rerun += sum(len(change.head) > 1 for change in changes)
        states.update(change.state for change in changes)
        for change in worse:
            print(f"FALSE ALARM: {change.place}, {change.rates}, {change.times}")
    jobs = sum(map(len, cells.values()))
    failed = [place for place, results in cells.items() if len({result.outcome for result in results}) > 1]
    print(
        f"{len(cells)} cells, {jobs} jobs; {len(failed)} cells differ from seed to seed: {'; '.join(map(str, failed))}"
    )
    print(
        f"{options.comparisons} comparisons, {rerun} cells ran again; "
        + ", ".join(f"{n} {s}" for s, n in states.items())
    )
    print(f"{alarmed} comparisons had a false alarm.")
    sys.exit(1 if alarmed else 0)


if __name__ == "__main__":
    main()
