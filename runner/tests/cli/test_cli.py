"""Bad input at the command line: one clear sentence with the fix, exit code 2, never a traceback."""

import json
import os
import re
from pathlib import Path

import pytest

from runner.model.result import Outcome, Result
from runner.plan import jobs
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder
from runner.tests.program import bentpipe
from runner.tests.records import select


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--server", "quicgo"), "--server: there is no server 'quicgo'. Did you mean quic-go?"),
        (("run", "--client", "x"), "Choices: quic-go, "),
        (("run", "--case", "satt"), "there is no case 'satt'. Did you mean sat?"),
        (
            ("plan", "--link", "roof", "--links", "/nonexistent.json"),
            "--link: there is no link 'roof'. Choices: default",
        ),
        (("run", "--case", "astra"), "--case astra runs over a real link: name a link of links.json with --link."),
        (("run", "--via", "opnvpn"), "--via: there is no middlebox 'opnvpn'. Did you mean openvpn?"),
        (("plan", "--case", "page", "--size", "5000"), "--size is for measurements of one file, not for page"),
        (("plan", "--case", "satloss", "--link", "leo"), "--case satloss: it tests its own link"),
        (("plan", "--size", ""), "--size has no value: write --size 500000,2000000 (bytes), or all."),
        (
            ("plan", "--via", "qpep", "--case", "download", "--variant", "qpep:CCA=vegas"),
            "CCA is bbr or cubic or newreno, not 'vegas'.",
        ),
        (("run", "--lanes", "none"), "--lanes: 'none' is neither 'auto' nor a number"),
        (("run", "--pause", "6pm-11pm"), "write it as 18:00-23:00"),
        (("run", "--retry", "all"), "'all' is not one of"),
        (("run", "--iterations", "0"), "--iterations"),
        (("plan", "--case", "nothing"), "Choices: handshake"),
        (("run", "--variant", "quinn"), "--variant quinn: write STACK:NAME=VALUE,… such as quinn:CCA=bbr,IW=32."),
        (("plan", "--variant", "quinn:CCA=bbbr"), "Did you mean bbr? Choices: cubic, newreno, bbr."),
        (("show", "nowhere/quinn_quinn/sat/1"), "There is no finished job in"),
        (("analyse", "nowhere"), "contains no run"),
        (("compare", "nowhere", "night"), "contains no run"),
        (("compare", "night", "logs/night"), "Name two runs"),
        (("render", "nowhere"), "contains no run"),
        (("serve", "--site", "/nonexistent"), "draw it with ./bentpipe render"),
        (("build", "quik"), "There is no stack or middlebox 'quik'"),
        (("build", "mvfst"), "run `./bentpipe build --pull mvfst`"),
        (("build", "--pull", "quinn"), "the published image is quinn-public"),
        (("decode", "/nonexistent.pcap"), "does not exist"),
        (("schema", "results.json"), "Choices: run.json"),
        (("--implementations", "/nonexistent.json", "list"), "/nonexistent.json can't be read"),
        (("render", "--site", "x"), "Did you mean '--single'? `./bentpipe render --help`"),
        (("nonsense",), "No such command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], sentence: str) -> None:
    process = bentpipe(*arguments)
    text = " ".join(process.stderr.split())
    assert process.returncode == 2, process.stderr
    assert sentence in text
    assert "Traceback" not in process.stderr


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.pcap"
    path.write_text("this is not a capture")
    process = bentpipe("decode", str(path))
    assert process.returncode == 2
    assert str(path) in process.stderr
    assert "Traceback" not in process.stderr


def test_the_plan_says_jobs_time_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 1e6, 1e6))
    stacks = "quic-go,quinn,aioquic"
    process = bentpipe("plan", "--case", "sat", "--iterations", "5", "--server", stacks, "--client", stacks)
    assert process.returncode == 0
    assert "45 jobs: " in process.stdout
    assert "with one lane" in process.stdout
    assert re.search(r" SAT sat +9 +5 +45 .* virtual", process.stdout), "what --clock auto does on a busy host"
    assert "0 jobs" not in process.stdout
    assert "0 more" not in process.stdout


def test_the_plan_of_a_run_says_what_the_run_still_lacks(tmp_path: Path) -> None:
    catalog = load_catalog()
    selection = select(catalog, servers=("quinn",), clients=("aioquic",), cases=("sat",), iterations=3)
    folder = RunFolder.create(tmp_path / "run", jobs.new_run(tmp_path / "run", selection, seed=7))
    for job, outcome in zip(folder.run.order, (Outcome.SUCCEEDED, Outcome.ERROR), strict=False):
        folder.save_result(Result.of(job, outcome))
    plan = bentpipe("plan", "--run", str(folder.path), "--lanes", "2")
    assert "1 job: " in plan.stdout
    assert "2 jobs of run ended before" in plan.stdout
    assert re.search(r"--clock real \(this run\): about .* with 2 lanes", plan.stdout)
    assert "2 jobs: " in bentpipe("plan", "--run", str(folder.path), "--retry", "error").stdout


def test_the_plan_says_which_cases_a_middlebox_carries() -> None:
    process = bentpipe("plan", "--via", "qpep", "--server", "quinn", "--client", "quinn", "--case", "v2")
    assert process.returncode == 0
    assert "qpep carries tcp only: add a case such as --case download" in process.stdout


def test_the_list_names_stacks_cases_and_queues() -> None:
    process = bentpipe("list")
    assert process.returncode == 0
    for word in ("quic-go", "quinn", "aioquic", "SATL", "queue"):
        assert word in process.stdout


@pytest.mark.parametrize("name", ["run.json", "result.json", "evidence.json", "implementations.json"])
def test_schemas_are_json(name: str) -> None:
    assert "properties" in json.loads(bentpipe("schema", name).stdout)
