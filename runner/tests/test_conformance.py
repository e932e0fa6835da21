"""Every code that a check can give has a recording that gets it, and it alone, with the right words."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.decode.capture import open_capture
from runner.decode.tables import cached_decode
from runner.judge.judges import analyse
from runner.model.facts import Close, TraceFacts
from runner.model.result import Artifacts, Outcome, Result
from runner.model.rules import RULES
from runner.model.run import Job, Kind
from runner.plan.catalog import Catalog, load_catalog
from runner.store.runs import load_evidence
from runner.tests.recordings.conformance import BAD, GOOD, GOOD_ONES, Bad, Changes, Good, changed
from runner.tests.records import directed
from runner.trace.establish import facts
from testcases.base import CaseEvidence
from testcases.rebinding import new_paths_are_validated

Recorded = Callable[[str], Artifacts]
JOB = Job(server="s", client="c", case="x", iteration=1)
TESTCASES = Path(__file__).parents[2] / "testcases"

CASES = load_catalog().cases
IMPAIRED = [good for good in GOOD if CASES[good.case].preconditions and not CASES[good.case].capabilities]
"""Successful recordings of the cases with an impairment. Cases that need a capability are left out: there the same pair
would already count as unsupported."""

# Recordings whose finding is in no packet: how the client saved its files.
WITHOUT_PACKETS = {"corrupt-file", "extra-file"}

# Codes without a bad recording, and why.
ELSEWHERE = {
    "impairment-missed": "the link's part, not an endpoint's: test_an_impairment_that_missed_is_no_verdict",
    **dict.fromkeys(
        (
            "address-not-validated",
            "chain-not-sent",
            "close-code-undefined",
            "closed-with-error",
            "early-data-unread",
            "limit-not-reached",
            "limits-never-raised",
            "no-probe",
            "not-concurrent",
            "server-began-update",
            "stream-limit-high",
            "stream-limit-not-met",
        ),
        "made from another recording: test_crafted.py",
    ),
    **dict.fromkeys(("no-headers", "no-settings"), "a mutant breaks the rule: lab/mutate"),
    **dict.fromkeys(
        ("client-hello-small", "packets-small", "no-migration"),
        "no fault, so the job is unsupported: test_what_a_pair_is_not_able_to_do_is_unsupported",
    ),
}


def judge(catalog: Catalog, artifacts: Artifacts, case: str, changes: Changes) -> Result:
    """The verdict of `case`, changed as it was when the recording was made."""
    declared = catalog.cases[case]
    return analyse(JOB, artifacts, declared, changed(declared.record(), changes))


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.case)
def test_good_recordings_pass(catalog: Catalog, recorded: Recorded, good: Good) -> None:
    result = judge(catalog, recorded(good.path), good.case, good.changes)
    assert result.findings == ()
    assert result.outcome is Outcome.SUCCEEDED
    assert [invariant.name for invariant in result.invariants if invariant.holds is False] == []


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_recordings_fail_with_the_right_finding_alone(catalog: Catalog, recorded: Recorded, bad: Bad) -> None:
    artifacts = recorded(bad.path)
    result = judge(catalog, artifacts, bad.case, bad.changes)
    assert result.outcome is Outcome.FAILED
    assert {finding.code for finding in result.findings} - bad.also == {bad.code}
    unable = [finding.role for finding in result.findings if finding.code == "limits-never-raised"]
    assert not any(unable), "what an endpoint can't do is no fault"
    finding = next(one for one in result.findings if (one.code, one.role) == (bad.code, bad.role))
    assert finding.section == bad.section
    assert finding.requirement
    assert re.fullmatch(bad.expected, finding.expected), finding.expected
    assert re.fullmatch(bad.actual, finding.actual), finding.actual
    assert bool(finding.packets) == (bad.name not in WITHOUT_PACKETS)
    assert len(finding.times) == len(finding.packets)
    assert finding.packets == tuple(sorted(set(finding.packets)))
    if finding.packets:
        captures = {"client": artifacts.client_capture, "server": artifacts.server_capture}
        file, _ = open_capture(captures[finding.vantage])
        assert finding.packets[-1] <= sum(1 for _ in file.records())


@pytest.mark.parametrize("good", IMPAIRED, ids=lambda good: good.case)
def test_an_impairment_that_missed_is_no_verdict(catalog: Catalog, recorded: Recorded, good: Good) -> None:
    changes = {**good.changes, "file_sizes": (1024,)}
    result = judge(catalog, recorded("quinn_quinn/handshake"), good.case, changes)
    assert (result.outcome, {finding.code for finding in result.findings}) == (Outcome.ERROR, {"impairment-missed"})


@pytest.mark.parametrize(("whole", "outcome"), [("return", Outcome.SUCCEEDED), ("forward", Outcome.ERROR)])
def test_a_client_may_send_so_few_acks_that_none_is_corrupted(
    catalog: Catalog, recorded: Recorded, whole: str, outcome: Outcome
) -> None:
    good = next(one for one in GOOD if one.case == "transfercorruption")
    artifacts = recorded("quic-go_quic-go/transfercorruption")
    truth = json.loads(artifacts.link_truth.read_text())
    truth[whole]["corrupted"] = 0
    artifacts.link_truth.write_text(json.dumps(truth))
    assert judge(catalog, artifacts, good.case, good.changes).outcome is outcome


def test_every_code_has_a_bad_recording_or_a_reason() -> None:
    sources = "".join(path.read_text() for path in TESTCASES.glob("*.py"))
    declared = set(re.findall(r'(?:code=|MISSED = )"([a-z0-9-]+)"', sources))
    declared |= {rule.finding for rule in RULES if rule.finding}
    assert declared == {bad.code for bad in BAD} | ELSEWHERE.keys()


def test_every_case_has_a_good_recording(catalog: Catalog) -> None:
    requested = {name for name, case in catalog.cases.items() if case.kind is Kind.TEST_CASE}
    assert requested == {good.case for good in GOOD} | {case for _, case, _ in GOOD_ONES if case in requested}


@pytest.mark.parametrize("case", ["rebind-port", "rebind-addr"])
def test_a_path_that_was_left_at_once_needs_no_challenge(catalog: Catalog, recorded: Recorded, case: str) -> None:
    """The bad recording passes when its new path would have been too short-lived to judge."""
    bad = next(one for one in BAD if one.case == case and one.code == "path-not-challenged")
    declared = catalog.cases[case]
    record = changed(declared.record(), bad.changes)
    slow = directed(record, forward=replace(record.forward, delay=1.0), return_=replace(record.return_, delay=1.0))
    assert analyse(JOB, recorded(bad.path), declared, slow).outcome is Outcome.SUCCEEDED


def test_a_challenge_that_arrives_after_the_close_needs_no_answer(catalog: Catalog, recorded: Recorded) -> None:
    bad = next(one for one in BAD if one.code == "path-challenge-unanswered")
    artifacts = recorded(bad.path)
    evidence = load_evidence(artifacts)
    assert evidence is not None
    sides = (
        cached_decode(capture, artifacts.key_logs, artifacts.folder / f"{capture.stem}.tables", kernel_drops=0)
        for capture in (artifacts.client_capture, artifacts.server_capture)
    )
    recorded_facts = facts(*sides)
    closed = Close(sender="client", application=True, code=0, reason="", time=0.0)
    early = tuple(replace(connection, closes=(closed,)) for connection in recorded_facts.connections)
    record = changed(catalog.cases[bad.case].record(), bad.changes)

    def codes(recorded_facts: TraceFacts) -> set[str]:
        case = CaseEvidence(facts=recorded_facts, evidence=evidence, case=record, truth=None, protocol="hq-interop")
        return {finding.code for finding in new_paths_are_validated(case)}

    assert codes(recorded_facts) == {bad.code}
    assert codes(replace(recorded_facts, connections=early)) == set()
