"""Every check passes on a good recording and fails on a bad one, with the right code."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.judge.judges import analyse, can_judge
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import CaseRecord, Job
from runner.plan.catalog import Catalog
from runner.tests.recordings.conformance import GOOD_ONES

Recorded = Callable[[str], Artifacts]
JOB = Job(server="s", client="c", case="x", iteration=1)


def judge(catalog: Catalog, artifacts: Artifacts, case: str, *sizes: int) -> Result:
    """The verdict of `case` on a recording whose files had `sizes` bytes."""
    record: CaseRecord = catalog.cases[case].record()
    if sizes:
        record = replace(record, file_sizes=sizes)
    return analyse(JOB, artifacts, catalog.cases[case], record)


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def edit(artifacts: Artifacts, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(artifacts.evidence.read_text())
    change(document)
    artifacts.evidence.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("sizes", "role"), [((30, 10), "client"), ((10, 30), "server"), ((30, 25), ""), ((15, 15), None)]
)
def test_captures_of_a_flood_are_not_decoded(
    catalog: Catalog, recorded: Recorded, sizes: tuple[int, int], role: str | None
) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    for path, mebibytes in zip((artifacts.client_capture, artifacts.server_capture), sizes, strict=True):
        os.truncate(path, mebibytes * 2**20)  # a sparse file, which needs no disk space
    artifacts.link_truth.unlink()
    result = judge(catalog, artifacts, "handshake")
    assert (codes(result) == {"packet-flood"}) == (role is not None)
    if role is not None:
        assert (result.outcome, result.findings[0].role) == (Outcome.FAILED, role)


def test_who_flooded_the_link_is_told_by_the_link(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence.update(flooded=True))
    truth = json.loads(artifacts.link_truth.read_text())
    truth["return"]["bytes_in"] = 100 * truth["forward"]["bytes_in"]
    artifacts.link_truth.write_text(json.dumps(truth))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result), result.findings[0].role) == (Outcome.FAILED, {"packet-flood"}, "client")
    assert "when the job was ended" in result.findings[0].actual


@pytest.mark.parametrize(("recording", "case", "sizes"), GOOD_ONES)
def test_good_recordings_pass(
    catalog: Catalog, recorded: Recorded, recording: str, case: str, sizes: tuple[int, ...]
) -> None:
    result = judge(catalog, recorded(recording), case, *sizes)
    assert result.findings == ()
    assert result.outcome is Outcome.SUCCEEDED
    assert [invariant for invariant in result.invariants if invariant.holds is False] == []
    assert result.sample is not None
    assert result.sample.goodput is not None
    assert result.sample.goodput > 0


@pytest.mark.parametrize(
    ("recording", "case", "code"),
    [
        ("quic-go_quinn/retry", "handshake", "unexpected-retry"),
        ("quic-go_quinn/resumption", "handshake", "handshake-count"),
        ("aioquic_quic-go/multiconnect", "handshake", "handshake-count"),
        ("quic-go_quinn/http3", "handshake", "wrong-alpn"),
        ("quinn_quinn/handshake", "chacha20", "other-suites-offered"),
        ("quinn_quinn/handshake", "multiplexing", "streams-not-refilled"),
        ("quinn_quinn/handshake", "retry", "no-retry"),
        ("aioquic_quic-go/multiconnect", "resumption", "not-resumed"),
        ("quic-go_quinn/resumption", "zerortt", "not-early"),
        ("quinn_quinn/handshake", "http3", "wrong-alpn"),
        ("quinn_quinn/handshake", "keyupdate", "no-key-update"),
        ("aioquic_aioquic/handshake", "ecn", "no-ect"),
        ("quinn_quinn/handshake", "v2", "not-upgraded"),
        ("aioquic_aioquic/v2", "v2", "rfc9369-3.3.1-initial-keys"),
        ("quinn_quinn/handshake", "ipv6", "not-ipv6"),
        ("aioquic_aioquic/v2", "handshake", "wrong-version"),
    ],
)
def test_bad_recordings_fail_with_the_right_finding(
    catalog: Catalog, recorded: Recorded, recording: str, case: str, code: str
) -> None:
    result = judge(catalog, recorded(recording), case)
    assert result.outcome is Outcome.FAILED
    assert code in codes(result)
    finding = next(finding for finding in result.findings if finding.code == code)
    assert finding.requirement
    assert finding.expected
    assert finding.actual


def test_a_measurement_over_http3_expects_http3(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quic-go_quinn/http3")
    result = judge(catalog, artifacts, "goodput", 1024)
    assert (result.outcome, result.protocol) == (Outcome.SUCCEEDED, "h3")
    assert result.sample is not None
    assert result.sample.ttlb is not None
    assert result.sample.stream_bytes_sent is not None
    # HEADERS and the header of DATA stand on the stream, too (RFC 9114 §7.2); the file alone makes the goodput.
    assert 0 < result.sample.stream_bytes_sent - 1024 < 200
    assert result.sample.retransmission_ratio == 0
    edit(artifacts, lambda evidence: evidence["client"]["environment"].update(TESTCASE="transfer"))
    asked_otherwise = judge(catalog, artifacts, "goodput", 1024)
    assert (asked_otherwise.protocol, codes(asked_otherwise)) == ("hq-interop", {"wrong-alpn"})


def test_a_loss_that_missed_is_no_verdict(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, recorded("quinn_quinn/handshake"), "transferloss")
    assert (result.outcome, codes(result)) == (Outcome.ERROR, {"impairment-missed"})


def test_a_file_with_other_content_fails(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence["files"][0].update(equal=False))
    assert codes(judge(catalog, artifacts, "handshake")) == {"files-differ"}


def test_a_missing_and_an_extra_file_fail(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence["files"][0].update(equal=False, received=None))
    edit(artifacts, lambda evidence: evidence.update(extra_files=["index.html"]))
    result = judge(catalog, artifacts, "handshake")
    assert codes(result) == {"files-differ", "files-extra"}
    assert "is missing" in result.findings[0].actual


@pytest.mark.parametrize(
    ("role", "change", "code", "outcome"),
    [
        ("client", {"exit_code": 1}, "client-exit", Outcome.FAILED),
        ("client", {"exit_code": 137, "timed_out": True}, "timeout", Outcome.FAILED),
        ("client", {"exit_code": 127}, "unsupported", Outcome.UNSUPPORTED),
        ("server", {"exit_code": 127, "stopped_by_us": False}, "unsupported", Outcome.UNSUPPORTED),
        ("server", {"exit_code": 2, "stopped_by_us": False}, "server-exit", Outcome.FAILED),
        ("client", {"volumes_full": ["/logs"]}, "volume-full", Outcome.FAILED),
        ("server", {"output_flooded": True}, "output-flood", Outcome.FAILED),
        ("client", {"throttled_s": 9.0}, "disturbed", Outcome.ERROR),
    ],
)
def test_what_the_engine_saw_decides(
    catalog: Catalog, recorded: Recorded, role: str, change: dict[str, Any], code: str, outcome: Outcome
) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence[role].update(change))
    result = judge(catalog, artifacts, "handshake")
    assert codes(result) == {code}
    assert result.outcome is outcome


def test_an_unsupported_case_of_a_missing_program_names_the_program(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence["client"].update(exit_code=127))
    log = artifacts.folder / "client" / "output.log"
    log.parent.mkdir(exist_ok=True)
    for printed, actual in (
        ("setup done\n/run.sh: line 3: quiche-client: command not found\n", "quiche-client: command not found"),
        ("test case 'v2' is not supported\n", "the client exited with 127"),
    ):
        log.write_text(printed)
        assert judge(catalog, artifacts, "handshake").findings[0].actual.endswith(actual)


def test_a_limit_of_ours_is_told_before_what_followed_from_it(catalog: Catalog, recorded: Recorded) -> None:
    """The server was killed because its output flooded: its exit code says nothing of the server."""
    artifacts = recorded("quinn_quinn/handshake")
    change = {"output_flooded": True, "exit_code": 137, "stopped_by_us": False}
    edit(artifacts, lambda evidence: evidence["server"].update(change))
    assert judge(catalog, artifacts, "handshake").findings[0].code == "output-flood"


def test_a_server_that_never_answers_fails(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence.update(server_ready=False))
    assert codes(judge(catalog, artifacts, "handshake")) == {"server-not-ready"}


@pytest.mark.parametrize(("code", "outcome"), [("server-not-started", Outcome.FAILED), ("link-died", Outcome.ERROR)])
def test_what_deploy_could_not_do(catalog: Catalog, recorded: Recorded, code: str, outcome: Outcome) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    edit(artifacts, lambda evidence: evidence.update(error={"code": code, "message": "It broke."}))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result)) == (outcome, {code})


def test_a_late_simulator_makes_an_error_not_a_number(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    truth = json.loads(artifacts.link_truth.read_text())
    truth["receive_lateness_s"]["p99"] = 0.05
    artifacts.link_truth.write_text(json.dumps(truth))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result)) == (Outcome.ERROR, {"disturbed"})
    assert "50.0 ms" in result.findings[0].actual


def test_a_late_simulator_has_no_part_in_a_server_that_exits(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    truth = json.loads(artifacts.link_truth.read_text())
    truth["lateness_s"]["p99"] = 0.05
    artifacts.link_truth.write_text(json.dumps(truth))
    edit(artifacts, lambda evidence: evidence.update(server_ready=False))
    edit(artifacts, lambda evidence: evidence["server"].update(exit_code=2, stopped_by_us=False))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result)) == (Outcome.FAILED, {"server-exit"})


@pytest.mark.parametrize("share", [{"cpu_pressure": 0.9}, {"host_steal": 0.2}])
def test_a_share_of_the_cpu_spoils_a_number_but_not_a_yes_or_no(
    catalog: Catalog, recorded: Recorded, share: dict[str, float]
) -> None:
    number, question = recorded("quinn_quinn/lossy"), recorded("quinn_quinn/handshake")
    for artifacts in (number, question):
        edit(artifacts, lambda evidence: evidence.update(share))
    assert codes(judge(catalog, number, "goodput", 102400)) == {"disturbed"}
    assert judge(catalog, question, "handshake").outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("pressure", [0.1, 0.73])
def test_a_time_out_on_a_real_link_may_be_of_a_crowded_host(
    catalog: Catalog, recorded: Recorded, pressure: float
) -> None:
    """On real links no simulator's lateness shows the load of the host."""
    artifacts = recorded("quinn_quinn/handshake")
    link = {"name": "sky", "server_address": "192.0.2.1", "family": 4, "interface": "eth1", "udp_port": 443}
    edit(artifacts, lambda evidence: evidence.update(real_link=link, cpu_pressure=pressure))
    assert judge(catalog, artifacts, "handshake").outcome is Outcome.SUCCEEDED
    edit(artifacts, lambda evidence: evidence["client"].update(timed_out=True))
    assert codes(judge(catalog, artifacts, "handshake")) == {"timeout" if pressure < 0.5 else "disturbed"}


@pytest.mark.parametrize(("case", "limit"), [("goodput", 0.05), ("sat", 0.03)])
def test_an_endpoint_that_stood_still_spoils_a_number(
    catalog: Catalog, recorded: Recorded, case: str, limit: float
) -> None:
    """Other work of the host does not disturb the number when the kernel reports it separately, nor does an endpoint
    with little work that seldom waits. With a long RTT, the limit is lower. An endpoint that waits in half of its life
    disturbs it even with little work."""
    artifacts = recorded("quinn_quinn/lossy")
    edit(artifacts, lambda evidence: evidence.update(cpu_pressure=0.9, transfer_s=10.0))
    edit(artifacts, lambda evidence: evidence["server"].update(cpu_pressure=0.14, cpu_s=0.1))
    edit(artifacts, lambda evidence: evidence["client"].update(cpu_pressure=limit / 0.5 - 0.01, cpu_s=5.0))
    assert judge(catalog, artifacts, case, 102400).outcome is Outcome.SUCCEEDED
    edit(artifacts, lambda evidence: evidence["server"].update(cpu_pressure=0.5))
    assert "the server waited for a CPU in 50%" in judge(catalog, artifacts, case, 102400).findings[0].actual
    edit(artifacts, lambda evidence: evidence["server"].update(cpu_pressure=0.0))
    edit(artifacts, lambda evidence: evidence["client"].update(cpu_pressure=limit / 0.5 + 0.01))
    result = judge(catalog, artifacts, case, 102400)
    assert codes(result) == {"disturbed"}
    assert f"limit {limit}" in result.findings[0].actual


def test_without_a_key_log_there_is_no_verdict(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    for path in artifacts.key_logs:
        path.unlink()
    result = judge(catalog, artifacts, "keyupdate")
    assert (result.outcome, codes(result)) == (Outcome.ERROR, {"no-key-log"})


def test_one_key_log_is_enough(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    (artifacts.folder / "client/keys.log").unlink()
    assert judge(catalog, artifacts, "handshake").outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("name", ["left.pcap", "right.pcap"])
def test_without_a_capture_there_is_no_verdict(catalog: Catalog, recorded: Recorded, name: str) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    (artifacts.folder / "sim" / name).unlink()
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result)) == (Outcome.ERROR, {"no-capture"})


def test_a_capture_that_is_none_gives_no_verdict(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    artifacts.client_capture.write_bytes(b"not a capture")
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result)) == (Outcome.ERROR, {"no-capture"})


def test_a_truncated_capture_breaks_an_invariant(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quic-go_quic-go/transfer")
    content = artifacts.client_capture.read_bytes()
    artifacts.client_capture.write_bytes(content[: len(content) * 2 // 3])
    result = judge(catalog, artifacts, "transfer", 20480, 30720, 51200)
    assert any(invariant.holds is False for invariant in result.invariants)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}'])
def test_broken_evidence_is_an_error(catalog: Catalog, recorded: Recorded, content: str) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    artifacts.evidence.write_text(content)
    assert codes(judge(catalog, artifacts, "handshake")) == {"no-evidence"}


def test_judging_twice_gives_the_same(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quic-go_quic-go/lossy")
    first = judge(catalog, artifacts, "goodput", 102400)
    artifacts.client_capture.unlink()
    artifacts.server_capture.unlink()
    assert judge(catalog, artifacts, "goodput", 102400) == first


def test_a_server_that_makes_its_peer_close_by_a_lie_is_blamed(catalog: Catalog, recorded: Recorded) -> None:
    """The server acknowledged packets before they were sent; the client closed with PROTOCOL_VIOLATION and failed."""
    result = judge(catalog, recorded("lies/server-acks-unsent"), "transferloss")
    assert result.outcome is Outcome.FAILED
    assert result.findings[0].code == "rfc9000-13.1-ack-of-unsent"
    assert {(finding.code, finding.role) for finding in result.findings} >= {
        ("client-exit", ""),
        ("closed-with-error", ""),
    }
    assert {finding.role for finding in result.findings} == {"server", ""}
    assert result.culprit == "server"


@pytest.mark.parametrize(("exit_code", "role"), [(0, "client"), (None, "")])
def test_a_client_that_reports_success_without_a_connection_is_blamed(
    catalog: Catalog, recorded: Recorded, exit_code: int | None, role: str
) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    for capture in (artifacts.client_capture, artifacts.server_capture):
        capture.write_bytes(capture.read_bytes()[:24])  # the header of a pcap file
    truth = json.loads(artifacts.link_truth.read_text())
    for direction in (truth["forward"], truth["return"]):
        direction.update(packets_in=0, packets_out=0)
    artifacts.link_truth.write_text(json.dumps(truth))

    def plant(document: dict[str, Any]) -> None:
        document["client"].update(exit_code=exit_code)
        for file in document["files"]:
            file.update(received=None, equal=False)

    edit(artifacts, plant)
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome is Outcome.FAILED, result.findings[0].role) == (bool(role), role)


def test_a_job_beside_another_flow_needs_its_case(catalog: Catalog, recorded: Recorded) -> None:
    """For example the case of a run from another version of bentpipe."""
    artifacts = recorded("quic-go_quic-go/handshake")
    artifacts.link_captures[0].parent.mkdir(exist_ok=True)
    artifacts.link_captures[0].touch()
    record = catalog.cases["crosstraffic"].record()
    assert can_judge(artifacts, catalog.cases["crosstraffic"], record)
    assert not can_judge(artifacts, None, record)


@pytest.mark.parametrize("lost", ["link_truth", "client_capture"])
def test_a_job_that_lost_its_files_keeps_its_verdict(catalog: Catalog, recorded: Recorded, lost: str) -> None:
    """`analyse` must not turn a verdict into an error because somebody deleted files to save space."""
    artifacts = recorded("quic-go_quic-go/handshake")
    case = catalog.cases["handshake"]
    assert can_judge(artifacts, case, case.record())
    getattr(artifacts, lost).unlink()
    assert not can_judge(artifacts, case, case.record())
