"""The size that a change must exceed: the deviations between runs are known here. Counts false alarms with and without
them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.compare import compare, run_means
from runner.compare.compare import BetweenRuns, ChangeState, RunMeans, between_runs, cell_mean
from runner.model.result import DEFINITIONS, Result
from runner.model.run import Job, Run
from runner.store.runs import RunFolder
from runner.tests.compare.test_compare import Fill, folder


def known_images(run: Run) -> Run:
    stacks = {name: replace(stack, image_id=f"sha256:{name}") for name, stack in run.implementations.items()}
    return replace(run, implementations=stacks)


def night(path: Path, number: int, fill: Fill, *, images: str = "", iterations: int = 10) -> RunFolder:
    def change(run: Run) -> Run:
        known = known_images(run)
        stacks = dict(known.implementations)
        if images:
            stacks["kwik"] = replace(stacks["kwik"], image_id=images)
        return replace(known, clock="real", implementations=stacks, started_unix_s=1e9 + number)

    return folder(path / f"n{number}", fill, change=change, iterations=iterations)


def moved(random: np.random.Generator, between: float, within: float) -> Fill:
    """Delivery times of about 10 s. `between`: the deviation of a whole run, `within`: of an iteration; both are
    fractions."""
    of_run = random.normal(0, between)

    def fill(_: Job, result: Result) -> Result:
        assert result.sample is not None
        time = 10 * float(np.exp(of_run + random.normal(0, within)))
        sample = replace(result.sample, definitions=DEFINITIONS, ttlb=time, goodput=8e7 / time, handshake_time=time)
        return replace(result, sample=sample)

    return fill


def test_the_deviation_between_runs_is_the_one_that_was_put_in(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    runs = [run_means(night(tmp_path, number, moved(random, 0.02, 0.005))) for number in range(12)]
    between = between_runs(runs[0], None, runs[1:])["sat", "ttlb"]
    assert (len(between.runs), between.cells) == (12, 6)
    assert between.deviation == pytest.approx(0.02, rel=0.5)
    assert between.inside == pytest.approx(0.005**2 / 10, rel=0.2)


def test_iterations_alone_would_call_half_of_all_unchanged_cells_changed_and_the_deviation_between_runs_none(
    tmp_path: Path,
) -> None:
    """The deviation is 0.5 % within a run and 1 % between runs. Nothing is changed."""
    random = np.random.default_rng(3)
    runs = [night(tmp_path, number, moved(random, 0.01, 0.005)) for number in range(8)]
    means = [run_means(one) for one in runs]
    alarms = {True: 0, False: 0}
    for number in range(1, 8):
        for known in alarms:
            others = [one for index, one in enumerate(means) if index not in (number - 1, number)] if known else []
            comparison = compare(runs[number - 1], runs[number], others=others)
            shown = (ChangeState.WORSE, ChangeState.BETTER) if known else (ChangeState.UNKNOWN,)
            alarms[known] += any(one.state in shown for one in comparison.numbers)
            assert known or comparison.exit_code == 0
    assert alarms[False] >= 4
    assert alarms[True] <= 1


def test_a_change_beyond_the_deviation_is_still_found_and_the_note_says_what_it_had_to_exceed(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    runs = [night(tmp_path, number, moved(random, 0.002, 0.005)) for number in range(6)]
    fill = moved(random, 0.002, 0.005)

    def slower(job: Job, result: Result) -> Result:
        filled = fill(job, result)
        assert filled.sample is not None and filled.sample.ttlb is not None
        factor = 1.05 if job.server == "kwik" else 1.0
        return replace(filled, sample=replace(filled.sample, ttlb=filled.sample.ttlb * factor))

    after = night(tmp_path, 9, slower, images="sha256:new")
    comparison = compare(runs[-1], after, others=[run_means(one) for one in runs[:-1]])
    worse = [(one.server, one.metric) for one in comparison.numbers if one.state is ChangeState.WORSE]
    assert set(worse) == {("kwik", "ttlb")}
    (note,) = [one for one in comparison.notes if "between runs of the same images" in one]
    assert note.startswith("sat: delivery time deviates by 0.")
    assert "(n0, n1, n2, n3, n4 and 1 more; 6 cells). A change must exceed that." in note


def test_runs_of_other_images_other_conditions_and_the_judged_one_tell_nothing(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    first, after = (run_means(night(tmp_path, number, moved(random, 0.01, 0.005))) for number in (0, 1))
    assert between_runs(first, after, [after]) == {}
    other_host = RunMeans(replace(first.run, name="x", host={"cores": "64"}), first.cells)
    assert between_runs(first, after, [other_host]) == {}
    newer = run_means(night(tmp_path, 2, moved(random, 0.01, 0.005), images="sha256:new"))
    between = between_runs(first, after, [newer])["sat", "ttlb"]
    assert between.cells == 2  # kwik is server or client of four of the six cells
    assert RunMeans.load(first.run, first.document()) == first


def test_more_runs_and_cells_know_the_deviation_better() -> None:
    values = [0.0, 0.01, -0.01, 0.0], [0.05, 0.06, 0.04, 0.05]
    first, other = (cell_mean("retransmission_ratio", some) for some in values)
    assert first is not None and other is not None

    def p(runs: int, cells: int) -> float:
        common, special = 1e-4 / cells, 1e-4 * (1 - 1 / cells)
        known = BetweenRuns(
            case="sat", metric="ttlb", runs=("r",) * runs, cells=cells, common=common, special=special, inside=1e-5
        )
        return known.p(first, other)

    assert p(2, 1) > p(3, 1) > p(10, 1)
    assert p(2, 1) > p(2, 9)
    assert 0.0 <= p(10, 9) < 0.01 < p(2, 1) <= 1.0
