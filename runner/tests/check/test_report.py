"""The report of a check from results: verdict, entry, Markdown, JUnit. No engine."""

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from runner.check import Report, Verdict
from runner.check.problems import MENDS, Problem, of_image, of_output, of_probe
from runner.deploy.image_facts import CONTRACT_FILES, ImageFacts
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result

GOOD = ImageFacts(
    image="example/stack:1",
    image_id="sha256:1",
    platform="linux/amd64",
    host_platform="linux/amd64",
    user="",
    starts=True,
    files=frozenset(CONTRACT_FILES),
    url="https://example.org/stack",
    version="1.0",
    size=90_000_000,
)
WIRE = {"handshake": {"client": "handshake", "server": "handshake"}, "http3": {"client": "http3", "server": "http3"}}


def result(server: str, client: str, case: str, outcome: Outcome, *findings: Finding) -> tuple[Job, Result]:
    job = Job(server=server, client=client, case=case, iteration=1)
    return job, Result(server=server, client=client, case=case, iteration=1, outcome=outcome, findings=findings)


def finding(code: str, *, role: str = "", log_tail: str = "") -> Finding:
    return Finding(code=code, requirement="It works.", expected="yes", actual="no", role=role, log_tail=log_tail)


def report(tmp_path: Path, *results: tuple[Job, Result], problems: tuple[Problem, ...] = ()) -> Report:
    return Report(
        name="stack",
        subject="example/stack:1",
        facts=GOOD,
        problems=problems,
        results=dict(results),
        wire_names=WIRE,
        peers=("quic-go", "quinn"),
        run=tmp_path,
        seconds=12.0,
    )


def passed(tmp_path: Path) -> Report:
    return report(
        tmp_path,
        result("stack", "quic-go", "handshake", Outcome.SUCCEEDED),
        result("quic-go", "stack", "handshake", Outcome.UNSUPPORTED, finding("unsupported")),
        result("stack", "quinn", "http3", Outcome.SUCCEEDED),
    )


def test_a_role_that_answers_127_is_left_out_of_the_entry(tmp_path: Path) -> None:
    found = passed(tmp_path)
    assert found.verdict is Verdict.PASSED
    assert found.entry() == {
        "stack": {
            "image": "example/stack:1",
            "url": "https://example.org/stack",
            "version": "1.0",
            "roles": ["server"],
            "alpn": ["hq-interop", "h3"],
            "cases": {"server": ["handshake", "http3"]},
        }
    }


def test_the_entry_is_one_that_the_catalogue_takes(tmp_path: Path) -> None:
    from runner.catalog import load_implementations  # noqa: PLC0415

    path = tmp_path / "implementations.json"
    path.write_text(json.dumps({"schema": 1, "implementations": passed(tmp_path).entry()}))
    stack = load_implementations(path)["stack"]
    assert stack.roles == (Role.SERVER,)
    assert stack.claims(Role.SERVER, "http3")
    assert not stack.claims(Role.SERVER, "retry")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((Outcome.SUCCEEDED, Outcome.FAILED), Verdict.FAILED),
        ((Outcome.SUCCEEDED, Outcome.ERROR), Verdict.INCONCLUSIVE),
        ((Outcome.ERROR,), Verdict.INCONCLUSIVE),
        ((Outcome.UNSUPPORTED,), Verdict.FAILED),
    ],
)
def test_the_verdict_says_whose_fault_it_was(tmp_path: Path, outcomes: tuple[Outcome, ...], verdict: Verdict) -> None:
    peers = ("quic-go", "quinn")
    results = [
        result("stack", peer, "handshake", outcome, finding("x"))
        for peer, outcome in zip(peers, outcomes, strict=False)
    ]
    assert report(tmp_path, *results).verdict is verdict


def test_a_breach_of_the_contract_fails_whatever_the_cases_did(tmp_path: Path) -> None:
    problem = Problem(code="no-setup-script", what="It has none.", mend="Add it.")
    found = report(tmp_path, result("stack", "quic-go", "handshake", Outcome.SUCCEEDED), problems=(problem,))
    assert found.verdict is Verdict.FAILED


def test_junit_counts_what_a_ci_shows_and_survives_any_log(tmp_path: Path) -> None:
    log = finding("timeout", log_tail="bell \x07, nul \x00, <tag> & ]]>", role="client")
    found = report(
        tmp_path,
        result("quic-go", "stack", "handshake", Outcome.FAILED, log),
        result("quinn", "stack", "handshake", Outcome.ERROR, finding("disturbed")),
        result("quic-go", "stack", "http3", Outcome.UNSUPPORTED, finding("unsupported")),
        problems=(Problem(code="not-root", what="USER nobody.", mend="Remove it."),),
    )
    suites = {suite.get("name"): suite for suite in Xml.fromstring(found.junit())}
    client = suites["client"]
    counts = [client.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["3", "1", "1", "1"]
    assert suites["contract"].get("failures") == "1"
    (text,) = [case.findtext("failure") for case in client if case.find("failure") is not None]
    assert text is not None
    assert "<tag> & ]]>" in text
    assert "\x07" not in text


def test_markdown_has_the_table_the_mend_and_the_entry(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        result("stack", "quic-go", "handshake", Outcome.FAILED, finding("server-not-ready", role="server")),
        result("stack", "quinn", "handshake", Outcome.SUCCEEDED),
    )
    text = found.markdown()
    assert "| case | as server, quic-go | as server, quinn |" in text
    assert "| handshake | ✗ server-not-ready | ✓ |" in text
    assert MENDS["server-not-ready"] in text
    assert '"roles": [\n   "server"\n  ]' in text


def facts(**changes: object) -> ImageFacts:
    return ImageFacts(**{**GOOD.__dict__, **changes})


@pytest.mark.parametrize(
    ("changes", "code", "fatal"),
    [
        ({"platform": "linux/arm64"}, "wrong-platform", True),
        ({"starts": False}, "no-entry-point", True),
        ({"files": frozenset({"/run_endpoint.sh"})}, "no-setup-script", False),
        ({"user": "nobody"}, "not-root", False),
    ],
)
def test_what_can_be_told_before_it_runs(changes: dict[str, object], code: str, *, fatal: bool) -> None:
    assert list(of_image(GOOD)) == []
    (problem,) = of_image(facts(**changes))
    assert (problem.code, problem.fatal) == (code, fatal)


def test_root_by_number_is_root() -> None:
    assert list(of_image(facts(user="0:0"))) == []


def test_what_only_a_run_tells() -> None:
    (ignores,) = of_probe({Role.CLIENT: "it exited with 0 instead of 127"})
    assert "it exited with 0 instead of 127" in ignores.what
    assert list(of_output(Role.SERVER, "listening\n")) == []
    (refused,) = of_output(Role.SERVER, "ok\nRTNETLINK answers: Operation not permitted\n")
    assert refused.code == "no-net-admin"
