"""Comparisons of the middleboxes of one run: which jobs are pairs, and the output of the command."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.run_folders import vias_run
from runner.cli.group import main
from runner.compare.report import compare_vias, pairs_of
from runner.errors import UsageError
from runner.model.result import Outcome, Result, Sample
from runner.model.run import Job
from runner.store.runs import RunFolder

JOB = Job(server="origin", client="curl", case="download", iteration=1)


def result(iteration: int, started: float, seconds: float, outcome: Outcome = Outcome.SUCCEEDED) -> Result:
    made = Result.of(replace(JOB, iteration=iteration), outcome)
    sample = Sample(file_size=1, definitions=1, ttlb=seconds)
    return replace(made, started_unix_s=started, wall_s=60.0, sample=sample)


def test_jobs_of_one_iteration_that_follow_each_other_are_pairs() -> None:
    theirs = [result(1, 1000.0, 5.0), result(2, 2000.0, 6.0), result(3, 3000.0, 7.0)]
    ours = [result(1, 1060.0, 4.0), result(2, 1400.0, 4.5), result(3, 3661.0, 4.7)]
    assert pairs_of(ours, theirs) == [(4.0, 5.0), (4.5, 6.0)]  # the job of the third pair was run again an hour later


def test_a_failure_is_a_pair_and_an_error_of_the_harness_is_none() -> None:
    theirs = [result(1, 1000.0, 5.0), result(2, 2000.0, 6.0)]
    ours = [result(1, 1060.0, 4.0, Outcome.FAILED), result(2, 2060.0, 4.0, Outcome.ERROR)]
    assert pairs_of(ours, theirs) == [(inf, 5.0)]


def test_results_that_do_not_say_when_they_ran_are_no_pairs() -> None:
    assert pairs_of([result(1, 0.0, 4.0)], [result(1, 0.0, 5.0)]) == []


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = vias_run(tmp_path / "run", iterations=7)
    for job, stored in folder.results().items():
        weather, faster = 1 + (job.iteration * 5 % 7) / 2, 0.95 if job.via == "pep-split" else 1.0
        if stored.sample is not None:
            sample = replace(stored.sample, ttlb=weather * faster * (1 + 0.001 * job.iteration))
            started = 1e9 + 3600 * job.iteration + 60 * folder.run.vias.index(job.via)
            folder.save_result(replace(stored, sample=sample, started_unix_s=started, wall_s=50.0))
    return RunFolder.open(folder.path)


def test_pairs_tell_a_middlebox_that_is_5_percent_ahead_in_changing_weather(run: RunFolder) -> None:
    reference, changes = compare_vias(run)
    ahead = [one for one in changes if one.via == "pep-split" and one.case.startswith("download-500kB")]
    assert reference == "plain"
    assert [(one.versus.pairs, one.versus.certain) for one in ahead] == [(7, True)]
    assert ahead[0].versus.change == pytest.approx(-0.05)
    assert not any(one.versus.certain for one in changes if one.via == "openvpn" and one.case.startswith("download-5"))


def test_the_command_prints_them(run: RunFolder) -> None:
    done = CliRunner().invoke(main, ["compare", str(run.path)])
    assert done.exit_code == 0, done.output
    assert "against plain" in done.output and "7 pairs" in done.output and "▲ shorter" in done.output


def test_options_of_two_runs_and_runs_without_middleboxes_are_refused(run: RunFolder) -> None:
    done = CliRunner().invoke(main, ["compare", str(run.path), "--least", "5"])
    assert done.exit_code != 0
    alone = RunFolder(run.path, replace(run.run, vias=("",)))
    with pytest.raises(UsageError, match="no two middleboxes to compare"):
        compare_vias(alone)
