"""The report of a check from results: verdict, entry, terminal, Markdown, JUnit. No engine."""

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from runner.check.candidate import FIXES, TRIES, Problem, by_the_peer, of_image, of_output, of_probe
from runner.check.check import Report, Verdict, got_through, show_report
from runner.images.images import CONTRACT_FILES, ImageFacts
from runner.model.result import Finding, Outcome, Result
from runner.model.run import Job
from runner.model.stack import Implementation, Role
from testcases.hits import missed

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
WIRE = {
    "handshake": {"client": "handshake", "server": "handshake"},
    "http3": {"client": "http3", "server": "http3"},
    "transferloss": {"client": "transfer", "server": "transfer"},
}


def result(
    server: str, client: str, case: str, outcome: Outcome, *findings: Finding, iteration: int = 1
) -> tuple[Job, Result]:
    job = Job(server=server, client=client, case=case, iteration=iteration)
    return job, Result(server=server, client=client, case=case, iteration=iteration, outcome=outcome, findings=findings)


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
        random=frozenset({"transferloss"}),
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
    checked = passed(tmp_path)
    assert checked.verdict is Verdict.PASSED
    assert checked.entry() == {
        "stack": {
            "image": "example/stack:1",
            "url": "https://example.org/stack",
            "version": "1.0",
            "roles": ["server"],
            "speaks": ["hq-interop", "h3"],
            "cases": {"server": ["handshake", "http3"]},
        }
    }


def test_the_entry_is_one_that_the_catalogue_takes(tmp_path: Path) -> None:
    from runner.plan.catalog import load_catalog  # noqa: PLC0415

    path = tmp_path / "implementations.json"
    path.write_text(json.dumps({"schema": 1, "implementations": passed(tmp_path).entry()}))
    stack = load_catalog(path).implementations["stack"]
    assert stack.roles == (Role.SERVER,)
    assert stack.claims(Role.SERVER, "http3")
    assert not stack.claims(Role.SERVER, "retry")


def test_the_entry_keeps_cases_that_did_not_run(tmp_path: Path) -> None:
    """A check of one case must not remove the other cases of a listed stack."""
    listed = Implementation(
        name="stack",
        image="example/stack:1",
        url="https://example.org/listed",
        version="0.9",
        language="C",
        roles=(Role.CLIENT, Role.SERVER),
        speaks=("hq-interop", "h3"),
        cases={Role.SERVER: ("handshake", "retry")},
    )
    requested = report(tmp_path, result("stack", "quic-go", "handshake", Outcome.SUCCEEDED))
    (entry,) = replace(requested, listed=listed).entry().values()
    assert entry["cases"] == {"server": ["handshake", "retry"]}  # as a client it claims all cases, as before
    assert entry["roles"] == ["client", "server"]
    assert entry["speaks"] == ["hq-interop", "h3"]
    assert entry["language"] == "C"
    refused = report(tmp_path, result("stack", "quic-go", "handshake", Outcome.UNSUPPORTED, finding("unsupported")))
    (entry,) = replace(refused, listed=listed).entry().values()
    assert entry["cases"] == {"server": ["retry"]}


def test_a_stack_that_uploads_over_http3_speaks_no_other_protocol(tmp_path: Path) -> None:
    listed = Implementation(
        name="stack",
        image="example/stack:1",
        url="https://example.org/listed",
        version="0.9",
        roles=(Role.CLIENT,),
        speaks=("h3",),
        cases={Role.CLIENT: ("http3", "upload")},
    )
    checked = report(tmp_path, result("quic-go", "stack", "http3", Outcome.SUCCEEDED))
    (entry,) = replace(checked, listed=listed).entry().values()
    assert entry["cases"] == {"client": ["http3", "upload"]}
    assert entry["speaks"] == ["h3"]


def test_the_summary_counts_what_succeeded(tmp_path: Path) -> None:
    checked = report(
        tmp_path,
        result("stack", "quic-go", "handshake", Outcome.SUCCEEDED),
        result("stack", "quinn", "handshake", Outcome.FAILED, finding("timeout")),
        result("stack", "quic-go", "http3", Outcome.SUCCEEDED),
        result("stack", "quinn", "http3", Outcome.UNSUPPORTED, finding("unsupported")),
        result("quic-go", "stack", "handshake", Outcome.UNSUPPORTED, finding("unsupported")),
    )
    assert checked.summary() == "as server 1 of 2 supported cases succeeded"


def test_a_failure_has_the_fix_of_its_case(tmp_path: Path) -> None:
    for case, word in (("transferloss", "by itself"), ("handshakeloss", "probe time-out")):
        wire = {**WIRE, case: {"client": case, "server": case}}
        failed = result("quic-go", "stack", case, Outcome.FAILED, finding("timeout", role="client"))
        assert word in replace(report(tmp_path, failed), wire_names=wire).markdown()


def test_the_table_fits_into_80_columns(tmp_path: Path) -> None:
    code = "amplification-limit-exceeded"
    checked = report(
        tmp_path,
        *(result("stack", peer, "handshake", Outcome.FAILED, finding(code)) for peer in ("quic-go", "quinn")),
        *(result(peer, "stack", "handshake", Outcome.FAILED, finding(code)) for peer in ("quic-go", "quinn")),
    )
    text = io.StringIO()
    show_report(Console(file=text, width=80), checked)
    lines = text.getvalue().split("\n")
    table = [line for line in lines if (line.startswith(" ") and "with " in line) or " ✗ " in line]
    assert [line.split()[:2] for line in table if "with" in line] == [["as", "client"], ["as", "server"]]
    assert text.getvalue().count(f"✗ {code}") == 4  # all codes are printed in full
    assert all(len(line) <= 80 for line in table)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((Outcome.SUCCEEDED, Outcome.FAILED), Verdict.FAILED),
        ((Outcome.SUCCEEDED, Outcome.ERROR), Verdict.PASSED),  # the case is decided, because one peer gave a verdict
        ((Outcome.UNSUPPORTED, Outcome.ERROR), Verdict.INCONCLUSIVE),
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


def test_the_peers_fault_does_not_count_against_the_image(tmp_path: Path) -> None:
    hang = finding("timeout", role="client")
    peers = result("stack", "quic-go", "handshake", Outcome.FAILED, hang)
    alone = report(tmp_path, peers)
    assert alone.verdict is Verdict.INCONCLUSIVE
    both = report(tmp_path, peers, result("stack", "quinn", "handshake", Outcome.SUCCEEDED))
    assert both.verdict is Verdict.PASSED
    text = both.markdown()
    assert "## Failed by the fault of the peer: this does not count against the image" in text
    assert "| handshake | ✗ timeout (peer's fault) | ✓ |" in text
    assert FIXES["timeout"] not in text  # advice for a client is none for a server
    own = report(tmp_path, result("quic-go", "stack", "handshake", Outcome.FAILED, hang))
    assert own.verdict is Verdict.FAILED
    assert FIXES["timeout"] in own.markdown()


def test_a_breach_of_the_contract_fails_whatever_the_cases_did(tmp_path: Path) -> None:
    problem = Problem(code="no-setup-script", what="It has none.", fix="Add it.")
    checked = report(tmp_path, result("stack", "quic-go", "handshake", Outcome.SUCCEEDED), problems=(problem,))
    assert checked.verdict is Verdict.FAILED


def test_junit_counts_what_a_ci_shows_and_survives_any_log(tmp_path: Path) -> None:
    log = finding("timeout", log_tail="bell \x07, nul \x00, <tag> & ]]>", role="client")
    checked = report(
        tmp_path,
        result("quic-go", "stack", "handshake", Outcome.FAILED, log),
        result("quinn", "stack", "handshake", Outcome.ERROR, finding("disturbed")),
        result("quic-go", "stack", "http3", Outcome.UNSUPPORTED, finding("unsupported")),
        problems=(Problem(code="not-root", what="USER nobody.", fix="Remove it."),),
    )
    suites = {suite.get("name"): suite for suite in Xml.fromstring(checked.junit())}
    client = suites["client"]
    counts = [client.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["3", "1", "1", "1"]
    assert suites["contract"].get("failures") == "1"
    (text,) = [case.findtext("failure") for case in client if case.find("failure") is not None]
    assert text is not None
    assert "<tag> & ]]>" in text
    assert "\x07" not in text


def test_markdown_has_the_table_the_fix_and_the_entry(tmp_path: Path) -> None:
    checked = report(
        tmp_path,
        result("stack", "quic-go", "handshake", Outcome.FAILED, finding("server-not-ready", role="server")),
        result("stack", "quinn", "handshake", Outcome.SUCCEEDED),
    )
    text = checked.markdown()
    assert "| case | as server, quic-go | as server, quinn |" in text
    assert "| handshake | ✗ server-not-ready | ✓ |" in text
    assert FIXES["server-not-ready"] in text
    assert '"roles": [\n   "server"\n  ]' in text


def asked(*outcomes: Outcome, peer: str = "quinn") -> list[tuple[Job, Result]]:
    """Results of `transferloss` as client. A failure has the code of a time-out; an error says that the link missed its
    packets."""
    reasons = {Outcome.FAILED: (finding("timeout", role="client"),), Outcome.ERROR: (missed("a loss", "none"),)}
    return [
        result(peer, "stack", "transferloss", outcome, *reasons.get(outcome, ()), iteration=number)
        for number, outcome in enumerate(outcomes, start=1)
    ]


def terminal(outcome: Report) -> str:
    shown = io.StringIO()
    show_report(Console(file=shown, width=200), outcome)
    return shown.getvalue()


GOOD_RATE = "4/5 succeeded, a rate of 28% to 99% (95 %)"


def test_what_fails_as_chance_may_have_it_passes_and_every_report_says_how_often(tmp_path: Path) -> None:
    checked = report(tmp_path, *asked(Outcome.FAILED, *[Outcome.SUCCEEDED] * 4))
    assert checked.verdict is Verdict.PASSED
    assert f"transferloss as client with quinn: {GOOD_RATE}" in terminal(checked)
    markdown = checked.markdown()
    assert "| transferloss | ≈ 4/5 |" in markdown
    assert "## Failed in some iterations, but in fewer than 3 of 5: this does not count against the image" in markdown
    assert f"{GOOD_RATE}." in markdown
    assert "## Failed\n" not in markdown
    (suite,) = [suite for suite in Xml.fromstring(checked.junit()) if suite.get("name") == "client"]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["1", "0", "0", "0"]
    assert (suite[0].findtext("system-out") or "").startswith(f"{GOOD_RATE}\n- `timeout` of the client: ")
    assert checked.entry()["stack"]["note"] == f"transferloss as client with quinn: {GOOD_RATE}"


def test_the_catalogue_accepts_the_entry_of_a_case_that_ran_again(tmp_path: Path) -> None:
    from runner.plan.catalog import load_catalog  # noqa: PLC0415

    checked = report(tmp_path, *asked(Outcome.FAILED, *[Outcome.SUCCEEDED] * 4))
    path = tmp_path / "implementations.json"
    path.write_text(json.dumps({"schema": 1, "implementations": checked.entry()}))
    assert load_catalog(path).implementations["stack"].note.endswith(GOOD_RATE)


def test_a_case_that_fails_more_often_fails_the_check_with_its_rate(tmp_path: Path) -> None:
    checked = report(tmp_path, *asked(*[Outcome.FAILED] * 3))
    rate = "0/3 succeeded, a rate of 0% to 71% (95 %)"
    assert checked.verdict is Verdict.FAILED
    assert f"transferloss as client with quinn: {rate}" in terminal(checked)
    assert "| transferloss | ✗ timeout 0/3 |" in checked.markdown()
    (suite,) = [suite for suite in Xml.fromstring(checked.junit()) if suite.get("name") == "client"]
    (case,) = suite
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == f"timeout: no; {rate}"


def test_what_was_not_decided_has_a_group_of_its_own_and_says_what_to_do(tmp_path: Path) -> None:
    alone = report(tmp_path, *asked(*[Outcome.ERROR] * TRIES))
    assert alone.verdict is Verdict.INCONCLUSIVE
    shown, markdown = terminal(alone), alone.markdown()
    assert "Not decided" in shown
    assert "fix: The image has no problem" in shown
    assert "inconclusive in" in shown
    assert "## Not decided\n\n### transferloss as client with quinn" in markdown
    assert "| transferloss | ? impairment-missed |" in markdown
    beside = report(tmp_path, *asked(*[Outcome.ERROR] * TRIES), *asked(Outcome.SUCCEEDED, peer="quic-go"))
    assert beside.verdict is Verdict.PASSED, "the case was decided with another peer"
    assert "Not decided" in terminal(beside)
    counts = [
        [suite.get(name) for name in ("errors", "skipped")]
        for outcome in (alone, beside)
        for suite in Xml.fromstring(outcome.junit())
        if suite.get("name") == "client"
    ]
    assert counts == [["1", "0"], ["0", "1"]]


def test_the_fix_for_a_busy_host_concerns_the_host_and_not_the_image(tmp_path: Path) -> None:
    checked = report(tmp_path, result("quinn", "stack", "handshake", Outcome.ERROR, finding("disturbed")))
    assert "while this host is idle" in terminal(checked)
    assert checked.verdict is Verdict.INCONCLUSIVE


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
def test_problems_that_are_visible_before_the_image_runs(changes: dict[str, object], code: str, *, fatal: bool) -> None:
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
    shell = "/entrypoint.sh: line 27: /run_endpoint.sh: No such file or directory\n"  # recorded
    (missing,) = of_output(Role.SERVER, shell, unsupported=True)
    assert missing.code == "program-missing"
    assert list(of_output(Role.SERVER, shell)) == []
    assert list(of_output(Role.SERVER, "test case 'v2' is not supported as server\n", unsupported=True)) == []


def broken(code: str, role: str) -> Finding:
    return replace(finding(code, role=role), section="RFC 9000 §12.3", packets=(7,), times=(0.5,), vantage=role)


def test_a_broken_must_is_as_loud_as_a_failure(tmp_path: Path) -> None:
    """Broken MUSTs on which the purpose of the case does not depend (§): by the image, and not by its peer."""
    job, judged = result("stack", "quic-go", "handshake", Outcome.SUCCEEDED)
    own = job, replace(judged, violations=(broken("rfc9000-12.3-number-reused", "server"),))
    peers = job, replace(judged, violations=(broken("rfc9000-12.3-number-reused", "client"),))
    clean = report(tmp_path, peers)
    assert (clean.verdict, clean.rules_summary()) == (Verdict.PASSED, "")
    assert replace(clean, strict=True).verdict is Verdict.PASSED
    loose = report(tmp_path, own, result("stack", "quinn", "handshake", Outcome.SUCCEEDED))
    strict = replace(loose, strict=True)
    assert (loose.verdict, strict.verdict) == (Verdict.PASSED, Verdict.FAILED)
    sentence = "It broke 1 MUST of RFCs (§) in 1 of 2 cells."
    for shown in (terminal(loose), terminal(strict), loose.markdown()):
        assert sentence in shown
        assert "✓ §" in shown
        assert "rfc9000-12.3-number-reused" in shown
    assert "With --strict, the check fails." in terminal(loose)
    suites = [
        {suite.get("name"): suite.get("failures") for suite in Xml.fromstring(checked.junit())}
        for checked in (loose, strict)
    ]
    assert [each["server"] for each in suites] == ["0", "1"]


def test_an_interrupted_check_reports_what_was_judged(tmp_path: Path) -> None:
    stopped = replace(
        report(tmp_path, result("stack", "quic-go", "handshake", Outcome.SUCCEEDED)), interrupted="Stopped after 1 job."
    )
    assert stopped.verdict is Verdict.INCONCLUSIVE
    assert "Stopped after 1 job." in terminal(stopped)
    assert "| handshake | ✓ |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "junit.xml").is_file()
    assert not (tmp_path / "entry.json").exists(), "the entry would claim too few cases"
    failed = report(tmp_path, result("stack", "quic-go", "handshake", Outcome.FAILED, finding("x", role="server")))
    assert replace(failed, interrupted="Stopped.").verdict is Verdict.FAILED


def test_a_first_case_that_fails_by_the_peers_fault_does_not_end_the_check() -> None:
    """`check.py` decides by this whether the other cases of a role run."""
    hang = finding("timeout", role="client")
    _, failed = result("stack", "quic-go", "handshake", Outcome.FAILED, hang)
    silent = replace(failed, delivered=False)
    assert by_the_peer(silent, Role.SERVER)
    assert got_through(silent, Role.SERVER)
    assert not got_through(silent, Role.CLIENT)
    assert not got_through(replace(silent, findings=(replace(hang, role=""),)), Role.SERVER)
    assert got_through(replace(silent, delivered=True), Role.CLIENT)


def test_a_verdict_without_keys_says_so(tmp_path: Path) -> None:
    job, judged = result("stack", "quic-go", "handshake", Outcome.SUCCEEDED)
    sealed = report(tmp_path, (job, replace(judged, notes=(finding("judged-without-keys"),))))
    assert "| handshake | ✓° |" in sealed.markdown()
    assert "° judged without keys" in sealed.markdown()
    assert "judged without keys" in terminal(sealed)
