import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.images.setup import Ready
from runner.model.result import EVIDENCE_SCHEMA, RESULT_SCHEMA, Finding, JobVerdict, Outcome, Result, Sample
from runner.model.run import Job, Run, core_seconds, estimate
from runner.model.stack import same_fields
from runner.plan import jobs
from runner.plan.catalog import load_catalog
from runner.store import runs as migrations
from runner.store import runs as store
from runner.store.runs import RunFolder
from runner.tests.records import RECORDINGS, directed, select


def new(path: Path, cases: tuple[str, ...] = ("handshake",), **images: str) -> Run:
    catalog = load_catalog()
    selection = select(catalog, servers=("quinn",), clients=("aioquic",), cases=cases, iterations=2)
    ids = {"quinn": "sha256:1", "aioquic": "sha256:2", **images}
    return Ready(ids=ids).recorded_in(jobs.new_run(path, selection, seed=7))


def result(iteration: int = 1) -> Result:
    return Result(
        server="quinn",
        client="aioquic",
        case="sat",
        iteration=iteration,
        outcome=Outcome.FAILED,
        findings=(Finding(code="timeout", requirement="r", expected="e", actual="a"),),
        sample=Sample(file_size=10, goodput=1.5e6),
    )


def test_a_run_and_its_results_survive_the_disk(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    folder.save_result(result())
    again = RunFolder.open(tmp_path / "run")
    assert again.run == folder.run
    assert again.results() == {Job(server="quinn", client="aioquic", case="sat", iteration=1): result()}


def test_verdicts_are_the_same_as_in_results_and_are_refused_through_links(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    for number in (2, 1):
        folder.save_result(replace(result(number), wall_s=float(number), invariants=(), clock="virtual"))
    (folder.path / "quinn_aioquic/sat/3").mkdir()  # a job without a result isn't done
    verdicts = folder.verdicts()
    assert list(verdicts) == list(folder.results())
    for job, stored in folder.results().items():
        assert same_fields(JobVerdict, stored) == same_fields(JobVerdict, verdicts[job])
    (folder.path / "quinn_aioquic/sat/4").symlink_to(folder.path / "quinn_aioquic/sat/1")
    with pytest.raises(UsageError, match="symbolic link"):
        folder.verdicts()


def test_results_are_sorted_json_with_numbers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    folder.save_result(result())
    text = (tmp_path / "run/quinn_aioquic/sat/1/result.json").read_text()
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert document["sample"]["goodput"] == 1.5e6
    assert document["schema"] == 4


def test_runs_merge_by_copying_job_folders(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "a", new(tmp_path / "a"))
    second = RunFolder.create(tmp_path / "b", new(tmp_path / "b"))
    first.save_result(result(1))
    second.save_result(result(2))
    source = second.artifacts(Job(server="quinn", client="aioquic", case="sat", iteration=2)).folder
    source.rename(first.artifacts(Job(server="quinn", client="aioquic", case="sat", iteration=2)).folder)
    assert [job.iteration for job in first.results()] == [1, 2]


def test_a_second_runner_on_the_folder_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    with folder.locked(), pytest.raises(UsageError, match="Another runner"), RunFolder.open(folder.path).locked():
        pass
    with folder.locked():
        pass


VALID = '{"schema": 4, "server": "quinn", "client": "quinn", "case": "sat", "iteration": 1, "outcome": "succeeded"}'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON: it ends too early, in line 1. Restore it, or delete it and run again."),
        ('{"schema": 4,\n "server" 1}', "is not JSON: line 2, column 11: write a colon."),
        ('{"schema": 4, "server": 1}', "field 'server' is 1: write text, in quotes, \"…\". Restore it"),
        ('{"schema": 2, "findings": [1]}', "has schema 2, but a field of this schema is missing or has another form."),
        ("[]", "has no schema number"),
        ('{"schema": 99}', "use a newer bentpipe"),
        ('{"schema": 1, "server": "a"}', "field 'client'"),
        (f'{VALID[:-1]}, "clock": "[/]"}}', "field 'clock' is \"[/]\": write 'real' or 'virtual'."),
    ],
)
def test_a_broken_result_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    folder.save_result(result())
    (tmp_path / "run/quinn_aioquic/sat/1/result.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        folder.results()
    assert sentence in str(caught.value)
    assert "result.json" in str(caught.value)


def test_a_write_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    store.write_atomically(path, b"old")
    with pytest.raises(TypeError):
        store.write_atomically(path, "text, not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"


def test_a_write_that_fails_names_the_file_that_the_user_knows(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()  # nobody can put a file in the place of a folder
    with pytest.raises(OSError) as caught:
        store.write_atomically(tmp_path / "result.json", b"new")
    assert caught.value.filename == str(tmp_path / "result.json")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_run_is_extended_by_new_cases(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    longer = store.extend_run(folder, new(tmp_path / "run", cases=("handshake", "sat")))
    assert len(longer.order) == 1 + 2
    assert longer.order[0] == folder.run.order[0]
    assert longer.seed == folder.run.seed


def test_a_changed_image_is_refused_on_resume(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    with pytest.raises(UsageError, match="image of quinn has changed"):
        store.extend_run(folder, new(tmp_path / "run", quinn="sha256:9"))


def test_changed_links_are_refused_on_resume(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    wanted = new(tmp_path / "run")
    case = wanted.cases["handshake"]
    other = replace(wanted, cases={"handshake": directed(case, forward=replace(case.forward, delay=0.5))})
    with pytest.raises(UsageError, match="handshake"):
        store.extend_run(folder, other)


def test_a_pair_that_now_shares_something_else_is_refused_on_resume(tmp_path: Path) -> None:
    wanted = new(tmp_path / "run", cases=("sat",))
    folder = RunFolder.create(tmp_path / "run", wanted)
    with pytest.raises(UsageError, match="would use h3 now, and used hq-interop"):
        store.extend_run(folder, replace(wanted, protocols={"quinn_aioquic/sat": "h3"}))


def test_files_of_before_protocols_and_variants_still_load(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run", cases=("sat",)))
    folder.save_result(result())
    for path in (tmp_path / "run/run.json", tmp_path / "run/quinn_aioquic/sat/1/result.json"):
        document = json.loads(path.read_text())
        for name in ("protocols", "protocol", "readings"):
            document.pop(name, None)
        for record in document.get("implementations", {}).values():
            del record["variant_of"], record["parameters"]
        path.write_text(json.dumps(document))
    again = RunFolder.open(tmp_path / "run")
    assert again.run.protocol(again.run.order[0]) == "hq-interop"
    assert [one.protocol for one in again.results().values()] == [""]


def test_results_and_evidence_of_schema_2_get_the_codes_of_today(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    folder.save_result(result())
    artifacts = folder.artifacts(result().job)
    document = json.loads(artifacts.result.read_text()) | {"schema": 2}
    document["findings"][0]["code"] = "path-not-ready"
    artifacts.result.write_text(json.dumps(document, indent=1))
    (loaded,) = folder.results().values()
    assert (loaded.schema, loaded.findings[0].code) == (RESULT_SCHEMA, "box-not-ready")

    evidence = json.loads((RECORDINGS / "schema_1/paths/origin_openvpn/h3-5kB-geo/1/evidence.json").read_text())
    evidence["error"] = {"code": "path-not-ready", "message": "The gateway box ended."}
    artifacts.evidence.write_text(json.dumps(evidence))
    of_schema_1 = store.load_evidence(artifacts)
    assert of_schema_1 is not None
    assert (of_schema_1.schema, of_schema_1.error["code"]) == (EVIDENCE_SCHEMA, "box-not-ready")


def test_beginning_twice_is_refused_with_the_way_to_resume(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", new(tmp_path / "run"))
    with pytest.raises(UsageError, match="--run run"):
        RunFolder.create(tmp_path / "run", new(tmp_path / "run"))


def test_every_file_format_has_a_json_schema() -> None:
    for name, schema in store.schemas().items():
        assert "properties" in schema or "$ref" in schema, name


def test_older_results_blame_nobody_for_what_a_client_only_shows() -> None:
    old = {"schema": 3, "findings": [{"code": "timeout", "role": "client"}, {"code": "no-ect", "role": "server"}]}
    assert [finding["role"] for finding in migrations.result_3(old)["findings"]] == ["", "server"]


def test_the_debug_logs_of_earlier_jobs_count_in_the_estimate_of_disk(tmp_path: Path) -> None:
    cases = {name: load_catalog().cases[name].record() for name in ("handshake", "goodput")}
    for case, size, logs in (("handshake", 1024, 300_000), ("goodput", 10 * 2**20, 50_000_000)):
        folder = tmp_path / "night" / "loud_quinn" / case / "1"
        for role in ("server", "client"):
            (folder / role).mkdir(parents=True)
        (folder / "server" / "debug.log").touch()
        os.truncate(folder / "server" / "debug.log", logs)  # a sparse file, which needs no disk space
        document = json.loads((RECORDINGS / "quinn_quinn/handshake/1/evidence.json").read_text())
        document["files"][0] |= {"size": size, "received": size}
        (folder / "evidence.json").write_text(json.dumps(document))
    loud = [Job(server="loud", client="quinn", case="goodput", iteration=number) for number in (1, 2)]
    assert store.own_logs(tmp_path, loud, cases) == pytest.approx(2 * 49_000_000, rel=0.02)
    assert store.own_logs(tmp_path, [replace(loud[0], case="handshake")], cases) == pytest.approx(200_000, rel=0.1)
    assert store.own_logs(tmp_path, [replace(loud[0], server="new", client="quinn")], cases) == 0


@pytest.mark.parametrize("before", ["", "-"])
@pytest.mark.parametrize("text", ["{0}", "[{0}]", "[1,{0}]", "[\n{0}\n]", '{{"a":{0}}}', '{{"a":\t{0}}}'])
@pytest.mark.parametrize("number", ["1e16", "1E+40", "4.5e300", str(2**64), "9" * 40])
def test_numbers_that_no_file_can_have_are_found_wherever_they_stand(number: str, text: str, before: str) -> None:
    with pytest.raises(ValueError, match=r"number|infinite"):
        store.parse(text.format(before + number).encode())
    assert store.parse(text.format(before + "0.009583909546591551e-07").encode())


def test_the_pace_of_guests_comes_from_the_newest_run_in_virtual_time_on_this_host(tmp_path: Path) -> None:
    assert store.guest_pace(tmp_path) == {}
    virtual = replace(new(tmp_path / "run"), clock="virtual")
    case = virtual.cases["sat"] if "sat" in virtual.cases else next(iter(virtual.cases.values()))
    order = tuple(Job(server="quinn", client="aioquic", case=case.name, iteration=number) for number in range(1, 7))
    virtual = replace(virtual, cases={case.name: case}, order=order)
    usual = estimate(order[:1], virtual.cases).guest_seconds
    for name, run in (
        ("far", replace(virtual, host={"name": "another"}, started_unix_s=3e9)),
        ("real", replace(virtual, clock="real", started_unix_s=4e9)),
        ("near", replace(virtual, started_unix_s=2e9)),
    ):
        folder = RunFolder.create(tmp_path / name, run)
        for number, job in enumerate(order):
            unrun = number == 5  # such as a job that a pair declares as unsupported
            folder.save_result(replace(result(), case=job.case, iteration=number + 1, cpu_s=0 if unrun else 3 * usual))
    groups = [(name, False, server) for name in (case.name, "") for server in ("quinn", "")]
    assert store.guest_pace(tmp_path) == dict.fromkeys(groups, pytest.approx(core_seconds(3 * usual) / usual))
    paced = estimate(order, virtual.cases, store.guest_pace(tmp_path))
    assert paced.guest_seconds == pytest.approx(6 * core_seconds(3 * usual))
    assert estimate(order, virtual.cases, {("other", False, ""): 9.0}).guest_seconds == pytest.approx(6 * usual)


def test_each_server_has_a_pace_of_its_own_and_another_gets_that_of_all(tmp_path: Path) -> None:
    run = replace(new(tmp_path / "run"), clock="virtual")
    case = next(iter(run.cases.values()))
    servers = {"quinn": 1, "aioquic": 5}
    order = tuple(
        Job(server=server, client="aioquic", case=case.name, iteration=number)
        for server in servers
        for number in range(1, 51)
    )
    folder = RunFolder.create(tmp_path / "run", replace(run, cases={case.name: case}, order=order))
    usual = estimate(order[:1], {case.name: case}).guest_seconds
    for job in order:
        cpu = usual * servers[job.server] * (1 if job.iteration <= 25 else 2)  # the first ones are the fastest
        folder.save_result(
            replace(result(), server=job.server, client=job.client, case=job.case, iteration=job.iteration, cpu_s=cpu)
        )
    pace = store.guest_pace(tmp_path)
    for server, expected in {"quinn": 1.5, "aioquic": 7.5, "unknown": 4.5}.items():
        asked = replace(order[0], server=server)
        assert estimate((asked,), {case.name: case}, pace).guest_seconds == pytest.approx(
            core_seconds(expected * usual), rel=0.15
        )


def test_the_pace_of_jobs_with_a_middlebox_says_nothing_of_jobs_without(tmp_path: Path) -> None:
    boxes = {"wireguard": load_catalog().middleboxes["wireguard"]}
    direct = replace(new(tmp_path / "run"), clock="virtual", vias=("", "wireguard"), middleboxes=boxes)
    case = next(iter(direct.cases.values()))
    plain = tuple(Job(server="quinn", client="aioquic", case=case.name, iteration=number) for number in range(1, 6))
    boxed = tuple(replace(job, via="wireguard") for job in plain)
    usual = estimate(plain[:1], {case.name: case}).guest_seconds
    for name, order, started, multiple in (("direct", plain, 1e9, 2), ("boxed", boxed, 2e9, 8)):
        run = replace(direct, cases={case.name: case}, order=order, started_unix_s=started)
        folder = RunFolder.create(tmp_path / name, run)
        for job in order:
            folder.save_result(
                replace(result(), case=job.case, via=job.via, iteration=job.iteration, cpu_s=multiple * usual)
            )
    pace = store.guest_pace(tmp_path)
    assert estimate(plain, {case.name: case}, pace).guest_seconds == pytest.approx(5 * core_seconds(2 * usual))
    assert estimate(boxed, {case.name: case}, pace).guest_seconds == pytest.approx(5 * core_seconds(8 * usual))
