"""`compare --across-clocks` counts outcomes, finds causes, and refuses two runs with the same clock."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.compare.clocks import UNKNOWN, CellClocks, across_clocks, sentences
from runner.errors import UsageError
from runner.model.result import Finding, Outcome, Result, Sample
from runner.model.run import REAL, VIRTUAL, Job, Kind
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder
from runner.tests.guests.test_description import run_of

CASE = "handshake"


def folder_of(path: Path, clock: str, outcomes: list[Outcome], goodputs: list[float]) -> RunFolder:
    """A run with this clock and one job for each outcome."""
    run = run_of(clock, load_catalog())
    record = replace(run.cases[CASE], kind=Kind.MEASUREMENT)
    folder = RunFolder.create(path, replace(run, cases={**run.cases, CASE: record}))
    for number, (outcome, goodput) in enumerate(zip(outcomes, goodputs, strict=True), start=1):
        job = Job(server="server", client="client", case=CASE, iteration=number)
        finding = Finding(code="timeout", requirement="", expected="", actual="")
        result = Result.of(job, outcome, *(() if outcome is Outcome.SUCCEEDED else (finding,)))
        folder.save_result(replace(result, sample=Sample(file_size=1, goodput=goodput)))
    return folder


def test_outcomes_are_counted_and_medians_are_of_successes_alone(tmp_path: Path) -> None:
    good, bad, ours = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.ERROR
    real = folder_of(tmp_path / "real", REAL, [good, good, good, bad], [10.0, 11.0, 12.0, 99.0])
    virtual = folder_of(tmp_path / "virtual", VIRTUAL, [good, bad, ours, bad], [5.0, 99.0, 99.0, 99.0])
    comparison = across_clocks(virtual, real)  # the order of the two runs doesn't matter
    assert (comparison.decided, comparison.undecided) == (3, 1)
    [cell] = comparison.measured
    assert len(cell.others) == 1
    assert "succeeded in real time, failed (timeout) in virtual time" in cell.others[0]
    assert cell.others[0] in sentences(comparison)
    assert cell.goodputs == ((10.0, 11.0, 12.0), (5.0,))
    assert cell.difference == pytest.approx(5.0 / 11.0 - 1)
    assert cell.goodput_cause.startswith(UNKNOWN)


def cell_of(
    *,
    outcomes: tuple[tuple[Outcome, ...], tuple[Outcome, ...]] = ((), ()),
    goodputs: tuple[tuple[float, ...], tuple[float, ...]] = ((), ()),
    busy: dict[str, float],
) -> CellClocks:
    names = {"server": "server", "client": "client", "case": CASE}
    return CellClocks(**names, decided=1, outcomes=outcomes, others=(), goodputs=goodputs, busy=busy)


GOOD, BAD, NONE = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.UNSUPPORTED


@pytest.mark.parametrize(
    ("real", "virtual", "busy", "cause"),
    [
        ((GOOD, BAD, GOOD), (GOOD, GOOD, GOOD), {}, "chance: the outcome varies in real time alone"),
        ((GOOD, BAD, GOOD), (BAD, GOOD, GOOD), {}, "chance: the outcome varies in both clocks"),
        ((BAD, BAD, BAD), (GOOD, GOOD, GOOD), {}, "unknown: too few iterations (n=3 and 3)"),
        ((BAD,) * 4, (GOOD,) * 4, {}, "unknown: chance does not explain it"),
        ((BAD,) * 9 + (GOOD,), (GOOD,) * 10, {}, "unknown: chance does not explain it"),  # although it varies
        ((BAD,) * 4, (GOOD,) * 4, {"server": 0.8}, "CPU: in real time the server used 80%"),
        ((BAD,) * 9, (NONE,) * 9, {}, "unknown: no iteration succeeded"),  # equal rates of success, and still different
    ],
)
def test_chance_explains_outcomes_only_where_they_vary_within_a_clock(
    real: tuple[Outcome, ...], virtual: tuple[Outcome, ...], busy: dict[str, float], cause: str
) -> None:
    assert cell_of(outcomes=(real, virtual), busy=busy).outcome_cause.startswith(cause)


def test_every_iteration_of_a_cell_counts_even_when_only_one_run_has_it(tmp_path: Path) -> None:
    real = folder_of(tmp_path / "real", REAL, [BAD], [1.0])
    virtual = folder_of(tmp_path / "virtual", VIRTUAL, [GOOD, BAD, GOOD], [1.0, 1.0, 1.0])
    comparison = across_clocks(real, virtual)
    [cell] = comparison.different
    assert (len(cell.outcomes[0]), len(cell.outcomes[1]), len(cell.others)) == (1, 3, 1)
    assert any("Cells: 0 with the same outcome in every iteration; 1 with" in text for text in sentences(comparison))
    assert any(
        "0 of 1 succeeded in real time, 2 of 3 succeeded in virtual time. chance" in text
        for text in sentences(comparison)
    )


def test_two_runs_of_one_clock_are_refused(tmp_path: Path) -> None:
    runs = [folder_of(tmp_path / name, VIRTUAL, [Outcome.SUCCEEDED], [1.0]) for name in ("one", "two")]
    with pytest.raises(UsageError, match="not virtual and virtual"):
        across_clocks(*runs)


@pytest.mark.parametrize(
    ("real", "virtual", "busy", "cause"),
    [
        ((10.0, 10.0, 10.0), (10.1,), {"client": 0.99}, ""),
        ((10.0, 10.0, 10.0), (15.0,), {"client": 0.4, "server": 0.9}, "CPU: in real time the server used 90%"),
        ((8.0, 10.0, 14.0), (13.0,), {"client": 0.1}, "chance"),
        ((10.0, 10.1, 10.2, 10.3), (13.0, 13.1, 13.2, 13.3), {"client": 0.1}, "unknown: neither"),
        ((10.0, 10.1, 10.2, 14.0), (10.3, 10.4, 13.2, 13.3), {"client": 0.1}, "chance: the rank test"),
        ((10.0, 10.1, 10.2), (13.0,), {"client": 0.1}, "unknown: too few values"),
        ((10.0,), (13.0,), {}, "unknown: too few values (n=1 and 1)"),
    ],
)
def test_the_cause_of_a_difference(
    real: tuple[float, ...], virtual: tuple[float, ...], busy: dict[str, float], cause: str
) -> None:
    cell = cell_of(goodputs=(real, virtual), busy=busy)
    assert cell.goodput_cause.startswith(cause)
    assert bool(cell.goodput_cause) == bool(cause)
