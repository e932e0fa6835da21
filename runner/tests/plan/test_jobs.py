import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.model.result import Finding, Outcome, Result
from runner.model.run import CaseRecord, Job, estimate, job_seed, waits
from runner.model.stack import Role
from runner.plan import jobs as runs
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.choice import Selection, named_cases
from runner.plan.jobs import (
    FIRST_CASE,
    FIRST_CASE_FAILED,
    declared_unsupported,
    handshake_of,
    jobs,
    prevented,
    protocol,
    remaining,
)
from runner.store.runs import RunFolder
from runner.tests.records import select


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def selection(catalog: Catalog, cases: tuple[str, ...], iterations: int | None = None) -> Selection:
    return select(catalog, servers=(), clients=("quinn",), cases=cases, iterations=iterations)


def records(catalog: Catalog) -> dict[str, CaseRecord]:
    return {name: case.record() for name, case in catalog.cases.items()}


def result(job: Job, outcome: Outcome) -> Result:
    return Result.of(job, outcome)


def test_iterations_are_the_outer_loop(catalog: Catalog) -> None:
    chosen = selection(catalog, ("handshake", "sat"), iterations=2)
    order = jobs(chosen)
    assert [job.iteration for job in order] == sorted(job.iteration for job in order)
    assert len(order) == len(chosen.servers) * (1 + 2)
    assert len(set(order)) == len(order)


def test_middleboxes_of_a_pair_follow_each_other_and_take_turns_at_being_first(catalog: Catalog) -> None:
    chosen = replace(selection(catalog, ("sat",), iterations=3), vias=("", "openvpn"))
    order = jobs(chosen)
    for iteration, wanted in ((1, ["", "openvpn"]), (2, ["openvpn", ""]), (3, ["", "openvpn"])):
        of_one = [job.via for job in order if (job.iteration, job.server) == (iteration, chosen.servers[0])]
        assert of_one == wanted
        number = [(job.iteration, job.server) for job in order].index((iteration, chosen.servers[0]))
        assert {job.server for job in order[number : number + 2]} == {chosen.servers[0]}


def test_a_test_case_runs_once_whatever_iterations_says(catalog: Catalog) -> None:
    order = jobs(selection(catalog, ("handshake",), iterations=7))
    assert {job.iteration for job in order} == {1}


def test_measurements_run_as_often_as_declared(catalog: Catalog) -> None:
    order = jobs(selection(catalog, ("sat",)))
    assert {job.iteration for job in order} == set(range(1, 11))


@given(seed=st.integers(0, 2**31 - 1))
def test_shuffling_is_a_permutation_that_the_seed_repeats(seed: int) -> None:
    catalog = load_catalog()
    chosen = selection(catalog, ("sat", "goodput"), iterations=3)
    plain = jobs(chosen)
    shuffled = jobs(chosen, shuffle_seed=seed)
    assert sorted(shuffled) == sorted(plain)
    assert shuffled == jobs(chosen, shuffle_seed=seed)


def test_what_is_left_is_plan_minus_done_plus_retries(catalog: Catalog) -> None:
    order = jobs(selection(catalog, ("goodput",), iterations=3))
    done = {order[0]: result(order[0], Outcome.SUCCEEDED), order[1]: result(order[1], Outcome.FAILED)}
    assert remaining(order, done, frozenset()) == order[2:]
    assert remaining(order, done, frozenset({Outcome.FAILED})) == order[1:]


def test_job_seeds_differ_by_job_and_run_but_repeat() -> None:
    first = Job(server="a", client="b", case="sat", iteration=1)
    second = Job(server="a", client="b", case="sat", iteration=2)
    assert job_seed(1, first) == job_seed(1, first)
    assert len({job_seed(1, first), job_seed(1, second), job_seed(2, first)}) == 3
    assert 0 <= job_seed(1, first) < 2**31


def test_a_pair_without_a_common_protocol_is_unsupported_by_declaration(catalog: Catalog, tmp_path: Path) -> None:
    text = (
        '{"schema": 1, "implementations": {'
        '"a": {"image": "a", "url": "u", "roles": ["server"], "speaks": ["h3"]},'
        '"b": {"image": "b", "url": "u", "roles": ["client"], "speaks": ["hq-interop"]}}}'
    )
    path = tmp_path / "implementations.json"
    path.write_text(text)
    apart = Catalog(implementations=load_catalog(path).implementations, cases=catalog.cases)
    job = Job(server="a", client="b", case="handshake", iteration=1)
    assert declared_unsupported(apart, job) == "a speaks h3, b speaks hq-interop"
    preset = runs.verdicts_without_run(apart, (job,), {})[job]
    assert preset.outcome is Outcome.UNSUPPORTED


@pytest.fixture(scope="module")
def mixed(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Stacks that speak both protocols, one of them, or both without `transfer`."""
    entries: dict[str, dict[str, object]] = {
        "both": {},
        "old": {"speaks": ["hq-interop"]},
        "web": {"speaks": ["h3"], "cases": {"client": ["http3"], "server": ["http3"]}},
        "tcp": {"speaks": ["h2", "http/1.1"]},
        "old-tcp": {"speaks": ["http/1.1"], "cases": {"client": ["h1"]}},
        "browser": {"speaks": ["hq-interop", "h3"], "cases": {"client": ["handshake", "http3"]}},
    }
    path = tmp_path_factory.mktemp("mixed") / "implementations.json"
    common: dict[str, object] = {"image": "i", "url": "u", "roles": ["client", "server"]}
    stacks = {name: {**common, **entry} for name, entry in entries.items()}
    path.write_text(json.dumps({"schema": 1, "implementations": stacks}))
    return Catalog(implementations=load_catalog(path).implementations, cases=catalog.cases)


@pytest.mark.parametrize(
    ("server", "client", "case", "expected"),
    [
        ("both", "both", "goodput", "hq-interop"),
        ("both", "both", "http3", "h3"),
        ("old", "both", "satloss", "hq-interop"),
        ("both", "web", "goodput", "h3"),
        ("web", "both", "sat", "h3"),
        ("web", "web", "http3", "h3"),
        ("both", "browser", "handshake", "hq-interop"),
        ("both", "browser", "terrestrial", "h3"),  # both endpoints speak h3, but a browser has no `transfer`
        (
            "web",
            "both",
            "handshake",
            "web and both share h3 only, and handshake runs over hq-interop or h2 or http/1.1",
        ),
        ("tcp", "tcp", "sat", "h2"),
        ("tcp", "tcp", "handshake", "h2"),
        ("tcp", "old-tcp", "transferloss", "http/1.1"),
        ("tcp", "tcp", "retry", "tcp and tcp share h2, http/1.1 only, and retry runs over hq-interop"),
        ("both", "tcp", "sat", "both speaks hq-interop, h3, tcp speaks h2, http/1.1"),
        ("old", "both", "http3", "old and both share hq-interop only, and http3 runs over h3"),
        ("old", "web", "sat", "old speaks hq-interop, web speaks h3"),
        ("both", "browser", "transfer", "browser declares no support of 'transfer' as client"),
        ("old", "browser", "sat", "browser declares no support of 'transfer' as client"),
    ],
)
def test_a_pair_is_asked_over_what_it_shares(
    mixed: Catalog, server: str, client: str, case: str, expected: str
) -> None:
    job = Job(server=server, client=client, case=case, iteration=1)
    reason = declared_unsupported(mixed, job)
    assert (protocol(mixed, job) or reason) == expected
    assert (protocol(mixed, job) is None) == (reason is not None)


def test_a_run_records_who_is_asked_over_http3_and_sends_its_name(mixed: Catalog, tmp_path: Path) -> None:
    chosen = select(
        mixed, servers=("both",), clients=("both", "web"), cases=("handshake", "http3", "sat"), iterations=1
    )
    run = runs.new_run(tmp_path / "run", chosen, seed=1)
    assert run.protocols == {"both_web/sat": "h3"}
    job = {(one.client, one.case): one for one in run.order}
    assert run.wire_names(job["web", "sat"]) == {"client": "http3", "server": "http3"}
    assert run.wire_names(job["both", "sat"]) == {"client": "transfer", "server": "transfer"}
    assert run.wire_names(job["both", "http3"]) == {"client": "http3", "server": "http3"}
    assert run.protocol(job["both", "http3"]) == "h3"


def test_a_stack_that_fails_the_probe_is_skipped_with_the_reason(catalog: Catalog) -> None:
    job = Job(server="quinn", client="aioquic", case="handshake", iteration=1)
    verdicts_without_run = runs.verdicts_without_run(catalog, (job,), {("quinn", Role.SERVER): "exited with 0"})
    assert verdicts_without_run[job].outcome is Outcome.SKIPPED
    assert "exited with 0" in verdicts_without_run[job].findings[0].actual


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("quin",), "Did you mean quinn?"),
        (("nothing-like-it",), "Choices: quic-go, "),
    ],
)
def test_a_misspelt_stack_is_refused_with_the_choices(catalog: Catalog, names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match="--server: there is no server"):
        select(catalog, servers=names, clients=(), cases=(), iterations=None)
    with pytest.raises(UsageError) as caught:
        select(catalog, servers=names, clients=(), cases=(), iterations=None)
    assert sentence in str(caught.value)


def test_cases_are_chosen_by_name_or_abbreviation(catalog: Catalog) -> None:
    assert named_cases(catalog, ("SAT,h",)) == ("handshake", "sat")


@pytest.mark.parametrize(
    ("case", "took"),  # core seconds of a job: two pairs each, for sat and satloss the pairs of the field
    [("zerortt", 1.8), ("longrtt", 1.8), ("multiplexing", 6.4), ("transfer", 7.8), ("sat", 9.5), ("satloss", 10.7)],
)
def test_the_pace_of_handshakes_tells_how_long_other_cases_take_in_guests(
    catalog: Catalog, case: str, took: float
) -> None:
    def seconds(name: str) -> float:
        job = Job(server="quinn", client="quinn", case=name, iteration=1)
        return estimate((job,), records(catalog)).guest_seconds

    pace = 1.8 / seconds("handshake")
    assert 0.75 * took < pace * seconds(case) < 1.33 * took


def test_the_estimate_grows_with_the_plan(catalog: Catalog) -> None:
    cases = records(catalog)
    small = estimate(jobs(selection(catalog, ("sat",), iterations=1)), cases)
    large = estimate(jobs(selection(catalog, ("sat",), iterations=4)), cases)
    assert large.seconds == pytest.approx(4 * small.seconds)
    assert large.disk("all") == pytest.approx(4 * small.disk("all"), rel=1e-3)


def test_jobs_that_a_stack_declares_as_unsupported_take_no_time(catalog: Catalog, tmp_path: Path) -> None:
    chosen = select(catalog, servers=("quinn", "x-net"), clients=("quinn",), cases=("zerortt",), iterations=1)
    folder = RunFolder.create(tmp_path / "run", runs.new_run(tmp_path / "run", chosen, seed=1))
    quinn, lacks = folder.run.order
    assert declared_unsupported(catalog, lacks)

    def time(*todo: Job) -> str:
        return runs.announcement(folder, todo, todo, catalog, "all").split(", about ")[1]

    assert time(quinn, lacks) == time(quinn)


def test_cases_that_wait_are_those_whose_handshakes_are_lost_or_slow(catalog: Catalog) -> None:
    records = {name: case.record() for name, case in catalog.cases.items() if not case.is_real}
    waiting = {name for name, record in records.items() if waits(record)}
    assert waiting == {"handshakeloss", "handshakecorruption", "longrtt"}
    job = Job(server="quinn", client="quinn", case="handshakeloss", iteration=1)
    # Measured: 50 to 70 s between quic-go, quinn and aioquic.
    assert 40 < estimate((job,), records).seconds < 80


def test_handshakes_come_first_even_when_shuffled(catalog: Catalog) -> None:
    chosen = selection(catalog, ("sat", "handshake", "goodput"), iterations=2)
    order = jobs(chosen, shuffle_seed=5)
    gates = [job.case == FIRST_CASE for job in order]
    assert gates == sorted(gates, reverse=True)
    assert any(gates)


def test_a_pair_that_fails_the_handshake_is_asked_nothing_else() -> None:
    job = Job(server="a", client="b", case="sat", iteration=2)
    finding = Finding(code="timeout", requirement="r", expected="e", actual="still running")
    failed = replace(result(handshake_of(job), Outcome.FAILED), findings=(finding,), delivered=False)
    refusal = prevented(job, {handshake_of(job): failed})
    assert refusal is not None
    assert (refusal.code, refusal.actual) == (FIRST_CASE_FAILED, "timeout: still running")
    for outcome in (Outcome.SUCCEEDED, Outcome.ERROR, Outcome.UNSUPPORTED):
        assert prevented(job, {handshake_of(job): result(handshake_of(job), outcome)}) is None
    assert prevented(job, {}) is None
    assert prevented(handshake_of(job), {handshake_of(job): failed}) is None


@pytest.mark.parametrize(("delivered", "refused"), [(True, False), (False, True), (None, False)])
def test_a_pair_that_gets_its_file_is_asked_on(delivered: bool | None, refused: bool) -> None:
    """Whatever `handshake` found, such as Retry or a flood of output: the file must arrive."""
    job = Job(server="s", client="c", case="goodput", iteration=1)
    finding = Finding(code="output-flood", requirement="r", expected="e", actual="a")
    failed = replace(Result.of(handshake_of(job), Outcome.FAILED, finding), delivered=delivered)
    assert (prevented(job, {handshake_of(job): failed}) is not None) == refused


def test_what_was_skipped_is_asked_again_once_its_handshake_is() -> None:
    job = Job(server="a", client="b", case="sat", iteration=1)
    first = handshake_of(job)
    refusal = Finding(code=FIRST_CASE_FAILED, requirement="r", expected="e", actual="a")
    skipped = replace(result(job, Outcome.SKIPPED), findings=(refusal,))
    done = {first: replace(result(first, Outcome.FAILED), delivered=False), job: skipped}
    assert remaining((first, job), done, frozenset()) == ()
    assert remaining((first, job), done, frozenset({Outcome.FAILED})) == (first, job)
    assert remaining((first, job), {**done, first: result(first, Outcome.SUCCEEDED)}, frozenset()) == (job,)
