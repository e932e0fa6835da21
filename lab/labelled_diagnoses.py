"""Precision and recall of the diagnoses on the labelled set, for each detector and each part of the set.

`python -m lab.labelled_diagnoses FOLDER…` reads the folders of `lab.labelled`. It diagnoses
the stored tables again with the current detectors. The labels are those of `causes.py`. A trace that the harness
disturbed is left out; `--all` counts it, too.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.causes import CELL, HELD, LOOK, Labelled, labelled
from lab.scores import Counts, judge, table
from runner.compare.rankings import two_modes
from runner.decode import load_tables
from runner.diagnose.explain import Explanation, explained, measured
from runner.judge.execution import disturbed, load_truth
from runner.model.result import Sample
from runner.model.run import Job
from runner.store.runs import RunFolder, load_evidence
from runner.trace.establish import facts

_KNOWN = 0.90  # least fraction of a transfer's time that must have a named limit


@dataclass
class Score:
    """The counts of one part of the set."""

    counts: dict[str, Counts] = field(default_factory=dict)
    traces: int = 0
    cells: int = 0
    disturbed: int = 0
    known: list[float] = field(default_factory=list)
    """Per trace: the share of its time with a known limit."""


def explain_again(folder: RunFolder, job: Job) -> tuple[Explanation, Sample] | None:
    """The explanation by the current detectors, and the numbers of the job; None unless both captures have tables."""
    artifacts, record = folder.artifacts(job), folder.run.case(job)
    if not (artifacts.client_tables.is_dir() and artifacts.server_tables.is_dir()):
        return None
    client_side, server_side = load_tables(artifacts.client_tables), load_tables(artifacts.server_tables)
    connection_facts = facts(client_side, server_side)
    numbers = measured(client_side, server_side, connection_facts, record)
    truth = load_truth(artifacts.link_truth)
    return explained(client_side, server_side, connection_facts, numbers, record=record, truth=truth), numbers


def _disturbance(folder: RunFolder, job: Job) -> str | None:
    """The reason why the harness disturbed the trace; None when it didn't. The rules are those for test cases, which
    include the simulator's lateness."""
    evidence = load_evidence(folder.artifacts(job))
    if evidence is None or evidence.error:
        return "no evidence"
    disturbance = disturbed(evidence, load_truth(folder.artifacts(job).link_truth), folder.run.case(job))
    return disturbance.why if disturbance else None


def judge_runs(folders: list[RunFolder], *, everything: bool) -> tuple[dict[str, Score], list[str]]:
    """Scores by part, and a line for every trace with an error."""
    known = {transfer.name: transfer for transfer in labelled()}
    scores = {LOOK: Score(), HELD: Score()}
    lines = []
    for folder in folders:
        goodputs: dict[str, list[float]] = {}
        for job in folder.results():
            if (transfer := known.get(job.case)) is None:
                continue
            score = scores[transfer.part]
            reason = _disturbance(folder, job)
            if reason is not None and not everything:
                score.disturbed += 1
                lines.append(f"{transfer.part} {job}: left out, {reason}")
                continue
            again = explain_again(folder, job)
            if again is None or not again[0].spans:
                score.disturbed += 1
                lines.append(f"{transfer.part} {job}: left out, no response data in both captures")
                continue
            explanation, numbers = again
            goodputs.setdefault(transfer.name, []).extend([numbers.goodput] if numbers.goodput else [])
            score.traces += 1
            score.known.append(1 - explanation.limits.get("unknown", 0.0))
            diagnosed = frozenset(diagnosis.code for diagnosis in explanation.diagnoses)
            expected = transfer.expected - {CELL}
            if errors := judge(score.counts, expected, transfer.allowed - expected, diagnosed):
                lines.append(f"{transfer.part} {job}: {', '.join(errors)}")
        lines += _cells(goodputs, known, scores)
    return scores, lines


def _cells(goodputs: dict[str, list[float]], known: dict[str, Labelled], scores: dict[str, Score]) -> Iterator[str]:
    """Judge the diagnosis that is made from all iterations of a matrix cell. Yields a line for every cell with an
    error."""
    for name, values in goodputs.items():
        transfer = known[name]
        if transfer.iterations == 1:
            continue
        scores[transfer.part].cells += 1
        diagnosed = frozenset({CELL}) if two_modes(values) is not None else frozenset[str]()
        if errors := judge(scores[transfer.part].counts, transfer.expected & {CELL}, frozenset(), diagnosed):
            yield f"{transfer.part} {name}, {len(values)} iterations: {', '.join(errors)}"


def main(arguments: list[str]) -> int:
    """Print the tables, and the errors of each trace. Returns 0 when every detector reaches the goals on the held-out
    part."""
    paths = [Path(path) for path in arguments if path != "--all"]
    scores, lines = judge_runs([RunFolder.open(path) for path in paths], everything="--all" in arguments)
    print("\n".join(lines))
    good = True
    for part, score in scores.items():
        if not score.traces:
            continue
        least = min(score.known)
        named = Counter(share >= _KNOWN for share in score.known)[True]
        print(f"\n{part}: {score.traces} traces, {score.cells} cells of several iterations, {score.disturbed} left out")
        print("\n".join(table(score.counts)))
        print(
            f"limit named for at least {_KNOWN:.0%} of the time in {named} of {score.traces} traces, least {least:.1%}"
        )
        if part == HELD:
            counts = (*score.counts.values(), Counts.total(score.counts.values()))
            good = all(count.is_good for count in counts) and least >= _KNOWN
    return 0 if good and scores[HELD].traces else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
