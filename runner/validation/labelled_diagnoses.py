"""Precision and recall of the diagnoses over the labelled set, each detector and each half of the set by itself.

`python -m runner.validation.labelled_diagnoses FOLDER…` reads what `runner.validation.labelled` left, and nothing of a
stored result but whether the harness spoiled it: the tables are explained anew, by the detectors as they are now. The
labels are those of `causes.py`. A trace that the harness spoiled is left out; `--all` counts it, too.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.decode import load_tables
from runner.diagnose import Explanation
from runner.diagnose.transfer_diagnoses import explained, measured
from runner.judge.disturbance import disturbed, load_truth
from runner.model.job import Job
from runner.model.result import Sample
from runner.stats.modes import two_modes
from runner.store import RunFolder, load_evidence
from runner.trace import facts
from runner.validation.causes import CELL, HELD, LOOK, Labelled, labelled
from runner.validation.scores import GOAL, Counts, table

_KNOWN = 0.90  # of a transfer's time


@dataclass
class Score:
    """One half of the set."""

    counts: dict[str, Counts] = field(default_factory=dict)
    traces: int = 0
    cells: int = 0
    spoiled: int = 0
    known: list[float] = field(default_factory=list)
    """Per trace, the part of its time whose limit is named."""

    def judge(self, wanted: frozenset[str], allowed: frozenset[str], found: frozenset[str]) -> list[str]:
        """Count; what was wrong as `+code`, what was missed as `-code`."""
        for code in wanted | (found - allowed):
            one = self.counts.setdefault(code, Counts())
            one.right += code in wanted and code in found
            one.missed += code not in found
            one.wrong += code not in wanted
        return [f"+{code}" for code in sorted(found - wanted - allowed)] + [
            f"-{code}" for code in sorted(wanted - found)
        ]

    @property
    def all(self) -> Counts:
        every = self.counts.values()
        return Counts(
            right=sum(one.right for one in every),
            missed=sum(one.missed for one in every),
            wrong=sum(one.wrong for one in every),
        )


def explain_again(folder: RunFolder, job: Job) -> tuple[Explanation, Sample] | None:
    """By the detectors of today; None without tables of both sides."""
    artifacts, record = folder.artifacts(job), folder.run.case(job)
    if not (artifacts.client_tables.is_dir() and artifacts.server_tables.is_dir()):
        return None
    client_side, server_side = load_tables(artifacts.client_tables), load_tables(artifacts.server_tables)
    found = facts(client_side, server_side)
    numbers = measured(client_side, server_side, found, record)
    truth = load_truth(artifacts.link_truth)
    return explained(client_side, server_side, found, numbers, record=record, truth=truth), numbers


def _spoiled(folder: RunFolder, job: Job) -> str | None:
    """Why the trace says nothing, by the rules for test cases and the simulator's lateness."""
    evidence = load_evidence(folder.artifacts(job))
    if evidence is None or evidence.error:
        return "no evidence"
    spoiled = disturbed(evidence, load_truth(folder.artifacts(job).link_truth), folder.run.case(job))
    return spoiled.why if spoiled else None


def judge(folders: list[RunFolder], *, everything: bool) -> tuple[dict[str, Score], list[str]]:
    """Scores by half, and a line for every trace with something wrong."""
    known = {one.name: one for one in labelled()}
    scores = {LOOK: Score(), HELD: Score()}
    lines = []
    for folder in folders:
        goodputs: dict[str, list[float]] = {}
        for job in folder.results():
            if (one := known.get(job.case)) is None:
                continue
            score = scores[one.part]
            reason = _spoiled(folder, job)
            if reason is not None and not everything:
                score.spoiled += 1
                lines.append(f"{one.part} {job}: left out, {reason}")
                continue
            again = explain_again(folder, job)
            if again is None or not again[0].spans:
                score.spoiled += 1
                lines.append(f"{one.part} {job}: left out, no response data in both captures")
                continue
            explanation, numbers = again
            goodputs.setdefault(one.name, []).extend([numbers.goodput] if numbers.goodput else [])
            score.traces += 1
            score.known.append(1 - explanation.limits.get("unknown", 0.0))
            found = frozenset(diagnosis.code for diagnosis in explanation.diagnoses)
            if wrong := score.judge(one.expected - {CELL}, one.allowed, found):
                lines.append(f"{one.part} {job}: {', '.join(wrong)}")
        lines += _cells(goodputs, known, scores)
    return scores, lines


def _cells(goodputs: dict[str, list[float]], known: dict[str, Labelled], scores: dict[str, Score]) -> Iterator[str]:
    """What shows in several iterations only."""
    for name, values in goodputs.items():
        one = known[name]
        if one.iterations == 1:
            continue
        scores[one.part].cells += 1
        found = frozenset({CELL}) if two_modes(values) is not None else frozenset[str]()
        if wrong := scores[one.part].judge(one.expected & {CELL}, frozenset(), found):
            yield f"{one.part} {name}, {len(values)} iterations: {', '.join(wrong)}"


def main(arguments: list[str]) -> int:
    """The tables, and what went wrong trace by trace. 0: what was held out reaches the goals, detector by detector."""
    paths = [Path(one) for one in arguments if one != "--all"]
    scores, lines = judge([RunFolder.open(path) for path in paths], everything="--all" in arguments)
    print("\n".join(lines))
    good = True
    for part, score in scores.items():
        if not score.traces:
            continue
        least = min(score.known)
        named = Counter(one >= _KNOWN for one in score.known)[True]
        print(f"\n{part}: {score.traces} traces, {score.cells} cells of several iterations, {score.spoiled} left out")
        print("\n".join(table(score.counts)))
        print(
            f"limit named for at least {_KNOWN:.0%} of the time in {named} of {score.traces} traces, least {least:.1%}"
        )
        counts = [*score.counts.values(), score.all]
        if part == HELD:
            good = all(min(one.precision, one.recall) >= GOAL for one in counts) and least >= _KNOWN
    return 0 if good and scores[HELD].traces else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
