"""The comparison of two clocks counts what it should, and refuses runs of the wrong clock."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.campaign import clocks
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result, Sample
from runner.store import RunFolder
from runner.tests.guests.test_description import run_of
from runner.validation.clocks import differing, goodputs, load


def job(number: int) -> Job:
    return Job(server="one", client="other", case="sat", iteration=number)


def result(number: int, outcome: Outcome, goodput: float = 0.0) -> Result:
    finding = Finding(code="timeout", requirement="", expected="", actual="")
    made = Result.of(job(number), outcome, *(() if outcome is Outcome.SUCCEEDED else (finding,)))
    return replace(made, sample=Sample(file_size=1, goodput=goodput or None))


def test_outcomes_are_counted_and_told() -> None:
    good, bad, ours = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.ERROR
    real = {job(n): result(n, outcome) for n, outcome in enumerate((good, good, good, bad))}
    virtual = {job(n): result(n, outcome) for n, outcome in enumerate((good, bad, ours, bad))}
    counts, sentences = differing(real, virtual)
    assert counts == {"equal": 2, "other": 1, "undecided": 1}
    [sentence] = sentences
    assert "succeeded in real time, failed (timeout) in virtual time" in sentence


def test_goodput_is_the_median_of_successes_alone() -> None:
    real = {job(n): result(n, Outcome.SUCCEEDED, 10.0 + n) for n in range(3)}
    virtual = {job(0): result(0, Outcome.SUCCEEDED, 5.0), job(1): result(1, Outcome.FAILED, 99.0)}
    assert goodputs(real, virtual) == {("other", "one", "sat"): (11.0, 5.0, 3, 1)}


def test_a_run_of_the_other_clock_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", run_of(clocks.VIRTUAL))
    assert load(tmp_path / "run", "virtual") == {}
    with pytest.raises(UsageError, match="--clock real is expected"):
        load(tmp_path / "run", "real")
