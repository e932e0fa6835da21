"""The last words of `run`: what a person and a CI read first."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from runner.model.result import Finding, Outcome, Progress, Result, Sample
from runner.model.run import Job, Run
from runner.plan import jobs
from runner.plan.catalog import Catalog
from runner.terminal.printing import RunWatch, markdown_matrix, print_matrix, sentence
from runner.tests.records import select

STACKS = ("quic-go", "quinn")


@pytest.fixture
def run(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Run:
    chosen = select(catalog, servers=STACKS, clients=STACKS, cases=("handshake", "sat"), iterations=2)
    path = tmp_path_factory.mktemp("logs") / "night"
    return jobs.new_run(path, chosen, seed=1)


def judged(run: Run) -> dict[Job, Result]:
    """Everything succeeded, but: quinn's client timed out once in SAT, and one handshake was disturbed."""
    sample = Sample(file_size=1, ttlb=9.25)
    results = {job: replace(Result.of(job, Outcome.SUCCEEDED), sample=sample) for job in run.order}
    late = Job(server="quic-go", client="quinn", case="sat", iteration=2)
    disturbed = Job(server="quinn", client="quinn", case="handshake", iteration=1)
    slow = Finding(code="timeout", requirement="", expected="", actual="still running\nafter 60 s", role="client")
    ours = Finding(code="disturbed", requirement="", expected="", actual="the simulator was late", role="client")
    return results | {
        late: Result.of(late, Outcome.FAILED, slow),
        disturbed: Result.of(disturbed, Outcome.ERROR, ours),
    }


def printed(run: Run, results: dict[Job, Result], width: int) -> list[str]:
    text = StringIO()
    print_matrix(Console(file=text, width=width), results, run)
    return text.getvalue().rstrip("\n").split("\n")


def test_the_last_line_counts_and_says_how_errors_are_retried(run: Run) -> None:
    results = judged(run)
    assert printed(run, results, 100)[-1] == (
        "12 jobs: 10 succeeded, 1 failed, 1 error. Retry the errors: ./bentpipe run --run night --retry error"
        ", on a quiet host; a new run with --clock virtual needs none"
    )
    ended = Job(server="quinn", client="quinn", case="handshake", iteration=1)
    broken = Finding(code="engine", requirement="", expected="", actual="no answer")
    assert sentence({ended: Result.of(ended, Outcome.ERROR, broken)}, run).endswith("--retry error")
    good = {job: result for job, result in results.items() if result.outcome is Outcome.SUCCEEDED}
    assert sentence(good, run) == "10 jobs: 10 succeeded."


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_reason_is_one_line_with_the_stack_to_blame(run: Run, width: int) -> None:
    lines = printed(run, judged(run), width)
    assert "✗ sat  quinn → quic-go #2: client quinn: timeout: still running after 60 s" in lines
    # The harness owes this job: no stack is named as its cause.
    assert "? handshake  quinn → quinn #1: disturbed: the simulator was late" in lines


def test_markdown_has_the_matrix_and_the_reasons(run: Run) -> None:
    lines = markdown_matrix(judged(run), run).split("\n")
    assert lines[0] == "| client \\ server | quic-go | quinn |"
    rows = {line.split("|")[1].strip(): line for line in lines[2:4]}
    assert "✓ H, SAT 1/2<br>✗ SAT 1/2<br>SAT 9.25 s" in rows["quinn"]
    assert "? H" in rows["quinn"]
    assert "✓ succeeded · ✗ failed · – unsupported · ? error · ⊘ skipped · §" in "\n".join(lines)
    assert "- ✗ sat  quinn → quic-go #2: client quinn: timeout: still running after 60 s" in lines


def test_a_wide_matrix_is_cut_into_tables_that_fit(run: Run) -> None:
    for width in (30, 80):
        table = [line for line in printed(run, judged(run), width) if line.startswith(" ")]
        assert max(map(len, table)) <= width


def test_beside_another_flow_the_fairness_stands_behind_the_time(run: Run) -> None:
    beside = {name: replace(case, beside="tcp-cubic") for name, case in run.cases.items() if name == "sat"}
    shared = replace(run, cases={**run.cases, **beside})
    results = {
        job: replace(result, sample=replace(result.sample, fairness=0.914))
        for job, result in judged(run).items()
        if result.sample is not None
    }
    text = "\n".join(printed(shared, results, 120))
    assert "SAT 9.25 s J 0.91" in text
    assert "J: Jain's fairness index" in text
    assert "Jain" not in "\n".join(printed(run, judged(run), 120))


def test_a_broken_must_is_as_loud_as_a_failure(run: Run) -> None:
    late = Finding(code="rfc9001-4.9.1-initial-late", requirement="", expected="", actual="2 packets", role="server")
    results = {job: Result.of(job, Outcome.SUCCEEDED) for job in run.order}
    results |= {job: replace(result, violations=(late,)) for job, result in results.items() if job.server == "quinn"}
    lines = printed(run, results, 200)
    shown = "§ server quinn: rfc9001-4.9.1-initial-late: 2 packets (handshake  quic-go → quinn #1 and 5 more)"
    assert shown in lines
    assert lines[-1] == "12 jobs: 12 succeeded. In 6 of them an endpoint broke a MUST of an RFC (§)."
    assert any("✓ 2, 2 §" in line for line in lines)
    assert shown in markdown_matrix(results, run)


def test_jobs_that_are_declared_as_unsupported_have_one_line(run: Run) -> None:
    ran, *declared = run.order[:4]
    ends = [jobs.unsupported(job, "no common protocol", requirement="The pair can run the case.") for job in declared]
    ends.insert(2, Result.of(ran, Outcome.SUCCEEDED))
    out = StringIO()
    with RunWatch(Console(file=out, width=100)) as watch:
        for done, result in enumerate(ends, start=1):
            idle = Progress(event="finished", done=done, total=len(ends), running=(), lanes=1, seconds_left=0.0)
            watch.report(replace(idle, job=result.job, result=result))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("2 jobs declared as unsupported")
    assert lines[1].startswith("3/4 ✓ succeeded")
    assert lines[2].startswith("1 job declared as unsupported")
    assert len(lines) == 3
