from dataclasses import replace

from lab.run_folders import case, link, run
from runner.model.result import Outcome, Result, Sample
from runner.model.run import Job, Kind
from runner.site import view as words
from runner.site.view import cells, ordered_cases
from runner.site.writer import subscript
from runner.tests.records import directed


def job(iteration: int, client: str = "c", name: str = "sat") -> Job:
    return Job(server="s", client=client, case=name, iteration=iteration)


def done(item: Job, outcome: Outcome = Outcome.SUCCEEDED, goodput: float | None = None) -> Result:
    sample = None if goodput is None else Sample(file_size=1, goodput=goodput, ttlb=8 / goodput)
    return Result(
        server=item.server, client=item.client, case=item.case, iteration=item.iteration, outcome=outcome, sample=sample
    )


def test_numbers_are_those_of_the_iterations_that_succeeded() -> None:
    jobs = tuple(job(number) for number in range(1, 5))
    results = {
        jobs[0]: done(jobs[0], goodput=4e6),
        jobs[1]: done(jobs[1], Outcome.FAILED, goodput=9e6),
        jobs[2]: done(jobs[2], goodput=2e6),
        jobs[3]: done(jobs[3], Outcome.ERROR),
    }
    cell = cells(run("r", {"sat": case("sat", iterations=4)}, jobs), results)["s", "c", "sat"]
    assert cell.summaries["goodput"].median == 3e6
    assert str(cell.attempts) == "2/4"
    assert cell.median == 3
    assert cell.errors == 1
    assert cell.outcome is Outcome.FAILED


def test_a_random_case_that_passes_now_and_then_is_neither_green_nor_red() -> None:
    jobs = tuple(job(number, name="l2") for number in range(1, 12))
    record = case("l2", kind=Kind.TEST_CASE, iterations=11)
    results = {one: done(one) for one in jobs[:9]}
    results |= {jobs[9]: done(jobs[9], Outcome.FAILED), jobs[10]: done(jobs[10], Outcome.ERROR)}
    cell = cells(run("r", {"l2": record}, jobs), results)["s", "c", "l2"]
    assert (cell.mixed, cell.css, cell.sign) == (True, "mixed", "≈")
    assert cell.says == "9/10 succeeded, a rate of 55% to 100% (95 %)"
    whole = {one: result for one, result in results.items() if result.outcome is not Outcome.FAILED}
    clean = cells(run("r", {"l2": record}, jobs), whole)["s", "c", "l2"]
    assert not clean.mixed


def test_a_cell_without_a_result_is_not_run() -> None:
    cell = cells(run("r", {"sat": case("sat")}, (job(1),)), {})["s", "c", "sat"]
    assert cell.outcome is None
    assert cell.shown is None
    assert cell.planned == 1


def test_results_that_were_merged_in_are_shown_too() -> None:
    other = job(1, client="guest")
    table = cells(run("r", {"sat": case("sat")}, (job(1),)), {other: done(other)})
    assert table["s", "guest", "sat"].outcome is Outcome.SUCCEEDED


def test_results_of_a_case_that_the_run_does_not_know_are_left_out() -> None:
    stray = job(1, name="gone")
    assert ("s", "c", "gone") not in cells(run("r", {"sat": case("sat")}, (job(1),)), {stray: done(stray)})


def test_cases_go_from_short_clean_links_to_long_lossy_ones() -> None:
    records = {
        "loss": directed(case("loss"), forward=link(loss=0.01)),
        "geo": case("geo"),
        "ground": directed(case("ground"), forward=link(delay=0.015), return_=link(delay=0.015)),
        "hs": case("hs", Kind.TEST_CASE),
    }
    planned = run("r", records, (job(1),))
    assert [one.name for one in ordered_cases(planned, Kind.MEASUREMENT)] == ["ground", "geo", "loss"]
    assert [one.name for one in ordered_cases(planned, Kind.TEST_CASE)] == ["hs"]


def test_a_link_is_printed_with_all_its_parameters() -> None:
    assert link(loss=0.01).facts() == ["20 Mbit/s", "300 ms one way", "queue 125 packets", "1 % loss"]


def test_iterations_are_those_that_were_asked_for() -> None:
    jobs = (job(1), job(2))
    table = cells(run("r", {"sat": case("sat", iterations=10)}, jobs), {})
    facts = words.transfer_facts(case("sat", iterations=10), list(table.values()))
    assert "2\u00a0iterations" in facts
    assert "10\u00a0iterations" in words.transfer_facts(case("sat", iterations=10), [])
    begun = cells(run("r", {"sat": case("sat")}, (job(1), job(2))), {job(1): done(job(1))})
    assert "n = 1 of 2 planned iterations" in words.transfer_facts(case("sat"), list(begun.values()))


def test_files_in_words() -> None:
    assert words.files_text((10 * 2**20,)) == "file 10 MiB"
    assert words.files_text((1024, 2048)) == "files 1 KiB + 2 KiB"
    assert words.files_text((1024,) * 50) == "50 files of 1 KiB"


def test_the_sentence_counts_what_is_missing() -> None:
    jobs = (job(1), job(2))
    planned = run("r", {"sat": case("sat")}, jobs)
    sentence = words.run_sentence(planned, [done(jobs[0], Outcome.FAILED)]).replace("\u00a0", " ")
    head = "1 server × 1 client, 1 measurement: 0 of 1 job succeeded, 1 failed"
    assert sentence == f"{head}; n = 1 of 2 planned iterations in sat."
    assert words.run_sentence(planned, []).endswith("; 1\u00a0cell not run yet.")
    assert "planned" not in words.run_sentence(replace(planned, order=()), [done(jobs[0], Outcome.FAILED)])


def test_subscripts_are_escaped_text() -> None:
    assert subscript("η_ss < file_size") == "η<sub>ss</sub> &lt; file_size"


def test_iterations_in_two_groups_are_told() -> None:
    goodputs = (4.1e6, 8.2e6, 8.0e6, 4.0e6, 8.1e6, 4.05e6, 8.3e6, 8.2e6)
    jobs = tuple(job(number) for number in range(1, 9))
    results = {one: done(one, goodput=goodput) for one, goodput in zip(jobs, goodputs, strict=True)}
    planned = run("r", {"sat": case("sat", iterations=8)}, jobs)
    modes = cells(planned, results)["s", "c", "sat"].modes
    assert modes is not None
    assert (modes.lower, modes.upper) == (5, 3)
    failed = results | {jobs[0]: done(jobs[0], Outcome.FAILED, goodput=4.1e6)}
    assert cells(planned, failed)["s", "c", "sat"].modes is None
