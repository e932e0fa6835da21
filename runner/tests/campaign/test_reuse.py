"""Results of an earlier run are taken over exactly where image, case and link are the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.run_folders import case, measured, run
from runner.campaign.campaign import take_over
from runner.compare import compare
from runner.compare.conditions import trust
from runner.model.result import Finding, Outcome, Result
from runner.model.run import Job, Kind, Run
from runner.plan.jobs import remaining
from runner.store.runs import RunFolder

STACKS = ("a", "b", "c")
ORDER = tuple(
    Job(server=server, client=client, case=name, iteration=iteration)
    for server in STACKS
    for client in STACKS
    for name in ("hs", "sat")
    for iteration in range(1, 5)
)


def planned(name: str, images: dict[str, str], **changes: object) -> Run:
    cases = {"hs": case("hs", Kind.TEST_CASE, iterations=4), "sat": case("sat", iterations=4)}
    record = run(name, cases, ORDER)
    stacks = {
        stack: replace(record.implementations[stack], image_id=images.get(stack, f"sha256:{stack}1"))
        for stack in STACKS
    }
    return replace(record, implementations=stacks, **changes)  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "night-1", planned("night-1", {}))
    for job in ORDER:
        result = Result.of(job, Outcome.SUCCEEDED)
        if job == ORDER[0]:
            finding = Finding(code="engine", requirement="r", expected="e", actual="gone")
            result = Result.of(job, Outcome.ERROR, finding)
        sample = measured(8e6 / (1 + job.iteration / 100), ttlb=1 + job.iteration / 100) if job.case == "sat" else None
        folder.save_result(replace(result, sample=sample))
        (folder.artifacts(job).folder / "client").mkdir()
        (folder.artifacts(job).folder / "client" / "output.log").write_text(str(job))
    return folder


def test_cells_of_a_changed_image_run_again_and_no_others(source: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "night-2", planned("night-2", {"c": "sha256:c2"}))
    taken = take_over(folder, source)
    left = remaining(ORDER, folder.results(), frozenset())
    changed = {job for job in ORDER if "c" in (job.server, job.client)}
    assert set(left) == changed | {ORDER[0]}, "an error of the harness runs again, too"
    assert taken == len(ORDER) - len(left)
    item = folder.results()[ORDER[1]]
    assert item.reused_from == "night-1"
    assert (folder.artifacts(ORDER[1]).folder / "client/output.log").read_text() == str(ORDER[1])
    assert source.results()[ORDER[1]].reused_from == "", "the earlier run stays as it is"
    third = RunFolder.create(tmp_path / "night-3", planned("night-3", {"c": "sha256:c2"}))
    take_over(third, folder)
    assert third.results()[ORDER[1]].reused_from == "night-1", "the run in which it ran, not the last one that had it"


@pytest.mark.parametrize(
    "changes",
    [
        {"host": {"name": "another"}},
        {"clock": "virtual"},
        {"shuffled": True},
        {"images": dict.fromkeys(STACKS, "")},
    ],
)
def test_nothing_is_taken_over_from_other_conditions(
    source: RunFolder, tmp_path: Path, changes: dict[str, object]
) -> None:
    images = changes.pop("images", {})
    folder = RunFolder.create(tmp_path / "night-2", planned("night-2", images, **changes))  # type: ignore[arg-type]
    assert take_over(folder, source) == 0
    assert folder.results() == {}


def _with_another_case(tmp_path: Path, **changes: object) -> RunFolder:
    record = planned("night-2", {})
    cases = {**record.cases, "hs": replace(record.cases["hs"], **changes)}  # type: ignore[arg-type]
    return RunFolder.create(tmp_path / "night-2", replace(record, cases=cases))


def test_a_case_with_another_time_out_runs_again(source: RunFolder, tmp_path: Path) -> None:
    folder = _with_another_case(tmp_path, timeout=71.0)
    take_over(folder, source)
    assert {job.case for job in folder.results()} == {"sat"}


def test_a_case_with_another_description_does_not_run_again(source: RunFolder, tmp_path: Path) -> None:
    folder = _with_another_case(tmp_path, description="Other words for people.")
    take_over(folder, source)
    assert {job.case for job in folder.results()} == {"hs", "sat"}


def test_results_that_were_taken_over_are_no_samples_of_the_night(source: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "night-2", planned("night-2", {"c": "sha256:c2"}))
    taken = take_over(folder, source)
    for job in remaining(ORDER, folder.results(), frozenset()):
        slow = measured(8e6 / (3 + job.iteration / 100), ttlb=3 + job.iteration / 100) if job.case == "sat" else None
        folder.save_result(replace(Result.of(job, Outcome.SUCCEEDED), sample=slow))
    comparison = compare(source, folder)
    assert {"c" in (number.server, number.client) for number in comparison.numbers} == {True}
    assert "7 cells were taken over" in " ".join(comparison.notes)
    assert f"{taken} taken over from an earlier run" in trust(len(ORDER), folder.results().values()).reasons
