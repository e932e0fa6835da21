"""Numbers of older definitions: measured again from what is kept of a job, or left out by name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lab.run_folders import recorded_run
from runner.compare import compare
from runner.judge.process import RenewedRun
from runner.model.result import DEFINITIONS, Result
from runner.model.run import Job
from runner.site import render
from runner.store.runs import RunFolder
from runner.tests.program import bentpipe

JOB = Job(server="quinn", client="quinn", case="goodput", iteration=1)


def aged(folder: RunFolder) -> tuple[Result, Result]:
    """(as it was judged, as the first definitions had it) of one job; the folder holds the latter."""
    now = folder.result(JOB)
    assert now is not None and now.sample is not None and now.sample.ttlb and now.sample.first_server_1rtt
    goodput = 8 * now.sample.file_size / (now.sample.ttlb - now.sample.first_server_1rtt)
    names = ("throughput", "link_share", "delivery_rate", "efficiency_of_bound", "last_server_1rtt")
    sample = replace(now.sample, definitions=1, goodput=goodput, **dict.fromkeys(names))  # type: ignore[arg-type]
    old = replace(now, sample=sample)
    folder.save_result(old)
    return now, old


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return recorded_run(tmp_path / "old")


def keep(folder: RunFolder, kept: str) -> None:
    artifacts = folder.artifacts(JOB)
    if kept != "captures":
        for capture in (artifacts.client_capture, artifacts.server_capture):
            capture.unlink()
    if kept != "tables":
        shutil.rmtree(artifacts.client_tables)


@pytest.mark.parametrize("kept", ["tables", "captures"])
def test_goodput_is_measured_again_from_tables_or_captures_and_nothing_is_written(folder: RunFolder, kept: str) -> None:
    now, old = aged(folder)
    keep(folder, kept)
    assert now.sample is not None and old.sample is not None
    assert now.sample.goodput != pytest.approx(old.sample.goodput, rel=1e-4)
    stored = folder.artifacts(JOB).result.read_bytes()
    again = RenewedRun.of(folder).results()[JOB].sample
    assert again is not None
    assert again.definitions == DEFINITIONS
    for name in ("goodput", "efficiency", "efficiency_exact", "throughput", "delivery_rate", "last_server_1rtt"):
        assert getattr(again, name) == pytest.approx(getattr(now.sample, name))
    assert folder.artifacts(JOB).result.read_bytes() == stored


def test_without_packets_the_older_number_stays_and_compare_leaves_it_out_by_name(folder: RunFolder) -> None:
    _, old = aged(folder)
    newer = RunFolder.create(folder.path.with_name("new"), replace(folder.run, name="new"))
    for result in RenewedRun.of(folder).results().values():
        newer.save_result(result)
    keep(folder, "nothing")
    before = RenewedRun.of(folder)
    sample = before.results()[JOB].sample
    assert sample is not None and old.sample is not None
    assert (sample.goodput, sample.definitions) == (old.sample.goodput, 1)
    comparison = compare(before, newer)
    assert (
        "goodput of old was measured by an older formula in 1 cells, and their packets are gone: these values are left "
        "out." in comparison.notes
    )
    compared = {(number.server, number.client, number.metric) for number in comparison.numbers}
    assert ("quinn", "quinn", "ttlb") in compared
    assert ("quinn", "quinn", "goodput") not in compared
    both = compare(before, before)
    assert "goodput of both runs was measured by an older formula in 1 cells; these values are compared." in both.notes
    assert ("quinn", "quinn", "goodput") in {(number.server, number.client, number.metric) for number in both.numbers}


def test_the_commands_say_it_and_analyse_renews(folder: RunFolder, tmp_path: Path) -> None:
    now, _ = aged(folder)
    assert now.sample is not None and now.sample.goodput is not None
    shown = bentpipe("show", str(folder.artifacts(JOB).folder))
    assert shown.stdout.count("(older formula)") == 3
    render([folder], tmp_path / "site")
    warning = "Goodput and η of 1\u00a0cell were measured by an older formula"
    assert warning in (tmp_path / "site" / folder.name / "index.html").read_text()
    newer = RunFolder.create(tmp_path / "new", replace(folder.run, name="new"))
    for result in RenewedRun.of(folder).results().values():
        newer.save_result(result)
    both = bentpipe("compare", str(folder.path), str(newer.path), "--json", str(tmp_path / "compared.json"))
    assert "older formula" not in both.stdout
    compared = json.loads((tmp_path / "compared.json").read_text())["numbers"]
    (goodput,) = [
        number["shift"] for number in compared if (number["server"], number["metric"]) == ("quinn", "goodput")
    ]
    assert goodput["median_before"] == pytest.approx(goodput["median_after"])
    assert bentpipe("analyse", str(folder.path)).returncode == 0
    again = folder.result(JOB)
    assert again is not None and again.sample is not None
    assert again.sample.goodput == pytest.approx(now.sample.goodput)
    assert "older formula" not in bentpipe("show", str(folder.artifacts(JOB).folder)).stdout
    render([folder], tmp_path / "site")
    assert "older formula" not in (tmp_path / "site" / folder.name / "index.html").read_text()
