"""Comparisons of two synthetic runs whose change is known, and the exit code."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lab.run_folders import case, link, run
from runner.compare import Comparison, compare, report
from runner.compare.compare import ChangeState
from runner.errors import UsageError
from runner.model.result import Finding, Outcome, Result, Sample
from runner.model.run import CaseRecord, Job, Kind, Run
from runner.store.runs import RunFolder
from runner.tests.program import bentpipe
from runner.tests.records import directed
from runner.tests.test_hostile_folders import rewrite

Fill = Callable[[Job, Result], Result]
RANDOM = np.random.default_rng(11)
NOISE = RANDOM.lognormal(0, 0.02, 1000)


def folder(
    path: Path,
    fill: Fill,
    *,
    iterations: int = 10,
    servers: Sequence[str] = ("quinn", "kwik", "mvfst"),
    change: Callable[[Run], Run] = lambda entry: entry,
    cases: dict[str, CaseRecord] | None = None,
) -> RunFolder:
    """A run of `servers` × two clients in virtual time; `fill` gets each job with a success and may change it."""
    requested = cases or {"sat": case("sat", iterations=iterations)}
    jobs = tuple(
        Job(server=server, client=client, case=name, iteration=number)
        for server in servers
        for client in ("quinn", "kwik")
        for name, entry in requested.items()
        for number in range(1, entry.iterations + 1)
    )
    made = RunFolder.create(path, change(replace(run(path.name, requested, jobs), clock="virtual")))
    for number, job in enumerate(jobs):
        noise = float(NOISE[(number * 7 + len(path.name)) % 1000])
        goodput = 8e6 * noise
        sample = Sample(
            file_size=1_000_000, goodput=goodput, ttlb=8e6 / goodput, handshake_time=0.6, retransmission_ratio=0.0
        )
        names = {"server": job.server, "client": job.client, "case": job.case, "iteration": job.iteration}
        made.save_result(fill(job, Result(**names, outcome=Outcome.SUCCEEDED, sample=sample)))  # type: ignore[arg-type]
    return made


def same(_: Job, result: Result) -> Result:
    return result


def test_a_run_that_has_not_ended_says_how_many_jobs_it_lacks(tmp_path: Path) -> None:
    before, after = folder(tmp_path / "before", same), folder(tmp_path / "after", same)
    for job in after.run.order:
        if job.iteration > 3:  # jobs run by iteration: each cell has results
            after.artifacts(job).result.unlink()
    notes = compare(before, after).notes
    assert "after has not ended: 42 of its 60 jobs have no result yet. To go on: ./bentpipe run --run after" in notes
    assert not any("before has not ended" in note for note in notes)


def slower(server: str, factor: float) -> Fill:
    def fill(job: Job, result: Result) -> Result:
        assert result.sample and result.sample.goodput and result.sample.ttlb
        if job.server != server:
            return result
        goodput, ttlb = result.sample.goodput * factor, result.sample.ttlb / factor
        return replace(result, sample=replace(result.sample, goodput=goodput, ttlb=ttlb))

    return fill


def failing(server: str, up_to: int = 1000) -> Fill:
    finding = Finding(code="timeout", requirement="It ends.", expected="an end", actual="none | <b>")

    def fill(job: Job, result: Result) -> Result:
        if job.server != server or job.iteration > up_to:
            return result
        return replace(result, outcome=Outcome.FAILED, sample=None, findings=(finding,))

    return fill


def spoiled(server: str) -> Fill:
    def fill(job: Job, result: Result) -> Result:
        return replace(result, outcome=Outcome.ERROR) if job.server == server else result

    return fill


def changed(comparison: Comparison) -> set[tuple[str, str, ChangeState]]:
    return {
        (number.server, number.metric, number.state)
        for number in comparison.numbers
        if number.state not in (ChangeState.ALIKE, ChangeState.TOO_FEW)
    }


def test_a_slower_server_is_found_and_nothing_else(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path / "a", same), folder(tmp_path / "bb", slower("kwik", 0.8)))
    assert changed(comparison) == {("kwik", "goodput", ChangeState.WORSE), ("kwik", "ttlb", ChangeState.WORSE)}
    assert comparison.exit_code == 1
    worst = next(one for one in comparison.numbers if (one.server, one.metric) == ("kwik", "goodput"))
    assert worst.shift.cliffs_delta == -1.0
    assert worst.shift.hodges_lehmann == pytest.approx(-1.6e6, rel=0.1)
    # 6 cells with 4 metrics each; rates can show nothing, because all iterations of both runs succeeded
    assert (comparison.tests, len(comparison.rates)) == (24, 6)


def test_better_is_no_reason_for_a_ci_to_fail(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path / "a", slower("kwik", 0.8)), folder(tmp_path / "bb", same))
    assert {state for _, _, state in changed(comparison)} == {ChangeState.BETTER}
    assert comparison.exit_code == 0


def test_the_same_run_twice_shows_nothing(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path / "a", same), folder(tmp_path / "bb", same))
    assert changed(comparison) == set()
    assert comparison.exit_code == 0
    assert any("Both runs have the seed 5" in note for note in comparison.notes)


def test_chance_alone_is_seldom_called_a_change(tmp_path: Path) -> None:
    """Of 40 comparisons without a change, only a fraction of about q raises a false alarm."""
    random = np.random.default_rng(3)

    def noisy(_: Job, result: Result) -> Result:
        assert result.sample
        goodput, time = random.lognormal(16, 0.3), random.lognormal(-0.5, 0.1)
        return replace(result, sample=replace(result.sample, goodput=goodput, handshake_time=time))

    alarms = 0
    for number in range(40):
        before = folder(tmp_path / f"a{number}", noisy, iterations=5, servers=("quinn",))
        after = folder(tmp_path / f"b{number}", noisy, iterations=5, servers=("quinn",))
        alarms += bool(changed(compare(before, after)))
    assert alarms <= 6  # probability 0.997 when each of the 40 comparisons raises an alarm with probability 0.05


def test_in_real_time_a_difference_is_no_change_until_the_deviation_between_runs_is_known(tmp_path: Path) -> None:
    def real(entry: Run) -> Run:
        return replace(entry, clock="real")

    before, after = folder(tmp_path / "a", same, change=real), folder(tmp_path / "bb", slower("kwik", 0.8), change=real)
    comparison = compare(before, after)
    assert changed(comparison) == {("kwik", "goodput", ChangeState.UNKNOWN), ("kwik", "ttlb", ChangeState.UNKNOWN)}
    assert comparison.exit_code == 0
    assert "4 numbers differ, but whether they changed is not known yet" in report.sentence(comparison)
    (note,) = [one for one in comparison.notes if "not known yet" in one]
    assert note == (
        "sat: no number counts as changed, because it is not known yet how much runs of the same images differ. "
        "Earlier nights of this selection tell it, or ./bentpipe run … --repeat-runs 5."
    )


@pytest.mark.parametrize("iterations", [1, 3])
def test_too_few_iterations_are_noted_with_the_number_that_is_needed(tmp_path: Path, iterations: int) -> None:
    before = folder(tmp_path / "a", same, iterations=iterations)
    comparison = compare(before, folder(tmp_path / "bb", slower("kwik", 0.1), iterations=iterations))
    assert {one.state for one in comparison.numbers} == {ChangeState.TOO_FEW}
    assert comparison.exit_code == 0
    assert comparison.tests == 0
    assert any(
        f"24 of 24 numbers have too few iterations to show any change ({iterations} and {iterations}): "
        "4 in each run are enough." in note
        for note in comparison.notes
    )


def test_many_questions_need_more_iterations_and_the_note_says_how_many(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path / "a", same, iterations=4), folder(tmp_path / "bb", same, iterations=4))
    assert any("to show the change of a single cell, each run needs 7 iterations" in note for note in comparison.notes)


def test_a_deterministic_case_that_fails_now_is_worse_without_a_test(tmp_path: Path) -> None:
    cases = {"hs": case("hs", Kind.TEST_CASE)}
    before, after = folder(tmp_path / "a", same, cases=cases), folder(tmp_path / "bb", failing("mvfst"), cases=cases)
    comparison = compare(before, after)
    assert comparison.exit_code == 1
    assert [one.server for one in comparison.verdicts if one.state is ChangeState.WORSE] == ["mvfst", "mvfst"]
    assert compare(after, before).exit_code == 0
    assert compare(after, after).exit_code == 0


@pytest.mark.parametrize(("failures", "code"), [(2, 0), (9, 1)])
def test_a_random_case_is_worse_only_when_chance_is_no_explanation(tmp_path: Path, failures: int, code: int) -> None:
    cases = {"l2": directed(case("l2", Kind.TEST_CASE, iterations=10), forward=link(loss=0.02))}
    before = folder(tmp_path / "a", same, cases=cases)
    comparison = compare(before, folder(tmp_path / "bb", failing("kwik", failures), cases=cases))
    assert comparison.exit_code == code
    assert comparison.verdicts == ()
    assert not comparison.numbers


def test_a_measurement_that_no_longer_succeeds_has_no_number_but_is_worse(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path / "a", same), folder(tmp_path / "bb", failing("kwik")))
    assert {(one.server, one.state) for one in comparison.rates if one.state is ChangeState.WORSE} == {
        ("kwik", ChangeState.WORSE)
    }
    assert comparison.exit_code == 1


def test_errors_of_the_harness_do_not_count(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path / "a", same), folder(tmp_path / "bb", spoiled("kwik")))
    assert comparison.exit_code == 0
    assert {one.server for one in comparison.numbers} == {"quinn", "mvfst"}
    cells = "kwik → kwik, sat; quinn → kwik, sat"
    sentence = f"No verdict after, because every iteration ended as an error of the harness: {cells}."
    assert sentence in comparison.notes


def test_a_comparison_of_nothing_is_refused_and_no_success(tmp_path: Path) -> None:
    before = folder(tmp_path / "a", same, servers=("kwik",))
    with pytest.raises(UsageError, match=r"a and bb have no cell that can be compared\. .*error of the harness"):
        compare(before, folder(tmp_path / "bb", spoiled("kwik"), servers=("kwik",)))


def test_protocols_are_not_compared_with_each_other(tmp_path: Path) -> None:
    def over(protocol: str) -> Fill:
        return lambda job, result: replace(result, protocol=protocol if job.server == "kwik" else "hq-interop")

    comparison = compare(folder(tmp_path / "a", over("hq-interop")), folder(tmp_path / "bb", over("h3")))
    assert {one.server for one in comparison.numbers} == {"quinn", "mvfst"}
    assert "quinn → kwik, sat was left out, because it ran over hq-interop before, over h3 after." in comparison.notes


CHANGES: dict[str, tuple[Callable[[Run], Run], str]] = {
    "host": (
        lambda one: replace(one, host={**one.host, "cores": "64"}),
        "Host, cores: 2 before, 64 after.",
    ),
    "seed": (
        lambda one: replace(one, shuffled=True),
        "Order of the jobs: as planned before, shuffled by the seed after.",
    ),
    "link": (
        lambda one: replace(one, cases={"sat": directed(one.cases["sat"], forward=link(queue=25))}),
        "sat, forward link: queue 125 packets before, 25 packets after.",
    ),
    "case": (
        lambda one: replace(one, cases={"sat": replace(one.cases["sat"], file_sizes=(5,))}),
        "sat: file sizes 1000000 before, 5 after.",
    ),
}


@pytest.mark.parametrize("topic", CHANGES)
def test_other_conditions_are_refused_by_name_unless_they_are_known(tmp_path: Path, topic: str) -> None:
    change, sentence = CHANGES[topic]
    before, after = folder(tmp_path / "a", same), folder(tmp_path / "bb", same, change=change)
    with pytest.raises(UsageError) as refusal:
        compare(before, after)
    assert sentence in str(refusal.value)
    assert f"--despite {topic}" in str(refusal.value)
    with pytest.raises(UsageError):
        compare(before, after, despite={"host", "seed", "link", "case"} - {topic})
    comparison = compare(before, after, despite={topic})
    assert comparison.despite == {topic: [sentence]}


def test_runs_of_guests_with_other_noise_are_other_conditions(tmp_path: Path) -> None:
    def noisy(one: Run) -> Run:
        return replace(one, guest={"noise": "0.0001"})

    before, after = folder(tmp_path / "a", same), folder(tmp_path / "bb", same, change=noisy)
    with pytest.raises(UsageError, match=r"sat: noise of the virtual host none before, 0\.0001 s after\."):
        compare(before, after)
    assert compare(before, after, despite={"clock"}).exit_code == 0
    assert compare(after, folder(tmp_path / "c", same, change=noisy)).exit_code == 0


def test_another_image_is_what_is_compared_and_is_listed(tmp_path: Path) -> None:
    def newer(item: Run) -> Run:
        stack = replace(item.implementations["kwik"], version="1.1", image_id="sha256:feed")
        return replace(item, implementations={**item.implementations, "kwik": stack})

    comparison = compare(folder(tmp_path / "a", same), folder(tmp_path / "bb", same, change=newer))
    assert [stack.name for stack in comparison.stacks if stack.changed] == ["kwik"]
    assert "kwik: 1.0 (image not recorded) → 1.1 (image feed)" in report.markdown(comparison, everything=False)
    assert report.image_text("", "sha256:feed") == "image feed"


def test_the_reports_agree(tmp_path: Path) -> None:
    cases = {"sat": case("sat", iterations=10), "hs": case("hs", Kind.TEST_CASE)}
    before = folder(tmp_path / "a", same, cases=cases)
    comparison = compare(before, folder(tmp_path / "bb", failing("kwik"), cases=cases))
    text = report.markdown(comparison, everything=False)
    table = [line for line in text.splitlines() if line.startswith("| ▼")]
    worse = comparison.states().count(ChangeState.WORSE)
    assert len(table) == worse == 4
    assert "timeout: none \\| &lt;b>" in text
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    console = Console(width=200, record=True, file=StringIO())
    console.print(report.renderable(comparison, everything=False))
    assert console.export_text().count("▼ worse") == worse
    data = json.loads(report.document(comparison))
    assert [one["state"] for one in data["verdicts"]].count("worse") == 2
    assert data["exit_code"] == 1


def test_the_command_has_exit_codes_and_files(tmp_path: Path) -> None:
    folder(tmp_path / "a", same)
    folder(tmp_path / "bb", slower("kwik", 0.8))
    rewrite(tmp_path / "bb/run.json", lambda document: document["implementations"]["kwik"].update(version="\udc80"))
    files = ("--json", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md"))
    worse = bentpipe("compare", str(tmp_path / "a"), str(tmp_path / "bb"), *files)
    assert worse.returncode == 1, worse.stderr
    assert "▼ worse" in worse.stdout
    assert json.loads((tmp_path / "c.json").read_text())["tests"] == 24
    assert "| ▼ worse |" in (tmp_path / "c.md").read_text()
    folder(tmp_path / "c", same)
    assert bentpipe("compare", str(tmp_path / "a"), str(tmp_path / "c")).returncode == 0
    wrong = bentpipe("compare", str(tmp_path / "a"), str(tmp_path / "bb"), "--despite", "weather")
    assert wrong.returncode == 2
    assert "there is no topic 'weather'" in wrong.stderr


@pytest.mark.parametrize(
    ("least", "state"), [(0.0, ChangeState.WORSE), (0.05, ChangeState.WORSE), (0.15, ChangeState.SMALL)]
)
def test_changes_below_least_are_not_reported(tmp_path: Path, least: float, state: ChangeState) -> None:
    before, after = folder(tmp_path / "a", same), folder(tmp_path / "b", slower("kwik", 0.9))
    comparison = compare(before, after, least=least)
    changed = [one for one in comparison.numbers if one.server == "kwik" and one.metric == "goodput"]
    assert [one.state for one in changed] == [state, state]
    assert all(one.relative == pytest.approx(0.1, abs=0.02) for one in changed)
    assert comparison.exit_code == (1 if state is ChangeState.WORSE else 0)
    shown = [fields for _, fields in report.rows(comparison, everything=False) if fields[0].endswith("kwik")]
    assert bool(shown) is (state is ChangeState.WORSE)
    assert ("changes of less than 15 % left out" in report.sentence(comparison)) is (least == 0.15)


def test_a_ratio_changes_by_points(tmp_path: Path) -> None:
    def lossy(job: Job, result: Result) -> Result:
        assert result.sample
        ratio = 0.03 + job.iteration * 1e-4 if job.server == "kwik" else 0.0
        return replace(result, sample=replace(result.sample, retransmission_ratio=ratio))

    before, after = folder(tmp_path / "a", same), folder(tmp_path / "b", lossy)
    for least, worse in ((0.02, 2), (0.05, 0)):
        comparison = compare(before, after, least=least)
        ratios = [one for one in comparison.numbers if one.metric == "retransmission_ratio"]
        assert sum(one.state is ChangeState.WORSE for one in ratios) == worse


def test_least_is_a_percentage(tmp_path: Path) -> None:
    folder(tmp_path / "a", same), folder(tmp_path / "b", slower("kwik", 0.9))
    pair = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert bentpipe("compare", *pair, "--least", "5").returncode == 1
    assert bentpipe("compare", *pair, "--least", "15").returncode == 0
    refused = bentpipe("compare", *pair, "--least", "-1")
    assert refused.returncode == 2
    assert "--least" in refused.stderr
