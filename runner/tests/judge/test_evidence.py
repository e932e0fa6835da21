"""No verdict without evidence: key logs with parts missing never make a *failed*, nor an unproven *succeeded*."""

import json
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.mutate.recording import Recording as Mutated
from runner.decode.tables import decode_capture
from runner.judge.job_traces import unrecorded
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome, Result
from runner.plan.catalog import Catalog, load_catalog
from runner.store.runs import load_evidence
from runner.tests.decode.rewrite import RAW, read, write_pcap
from runner.tests.judge.key_logs import (
    CUTS,
    JOB,
    Lines,
    Secret,
    campaign,
    expected,
    judged,
    originals,
    recordings,
    secrets,
)
from runner.tests.recordings.conformance import BAD, SHORT_CHAIN, changed
from runner.tests.records import RECORDINGS
from runner.trace.establish import facts
from testcases.base import UNDECIDED, CaseEvidence
from testcases.checks import Alpn

Copy = Callable[[str], Artifacts]
EVERY = recordings(load_catalog())


@pytest.mark.parametrize("number", range(len(EVERY)), ids=[f"{record.path}-{record.case}" for record in EVERY])
def test_a_cut_key_log_is_an_error_that_says_what_is_missing(catalog: Catalog, number: int, tmp_path: Path) -> None:
    """Each cut of every second recording, and every second cut of each recording. Cuts with equal secrets are one."""
    recorded, cuts = EVERY[number], dict[frozenset[Secret], tuple[str, dict[str, Lines]]]()
    for name, cut in CUTS.items():
        logs = {role: cut(lines) for role, lines in originals(recorded.path).items()}
        cuts.setdefault(frozenset(secret for lines in logs.values() for secret in secrets(lines)), (name, logs))
    for name, logs in list(cuts.values())[number % 2 :: 2]:
        result = judged(catalog, recorded, logs, tmp_path / "job")
        (outcome,) = expected(catalog, recorded, logs)
        assert (name, result.outcome) == (name, outcome)
        assert result.protected is not None
        if outcome is Outcome.SUCCEEDED:
            continue
        assert {finding.code for finding in result.findings} == {"secrets-missing"}
        named = [finding for finding in result.findings if "no known connection" not in finding.actual]
        assert named
        assert all("SECRET" in finding.expected and "client random" in finding.actual for finding in named)
        assert all(0 < len(finding.packets) == len(set(finding.packets)) for finding in result.findings)
        assert 0 < result.protected.unread <= result.protected.packets
        assert (result.sample, result.diagnoses, result.limits) == (None, (), {})


def test_mutated_key_logs_give_no_wrong_verdict(catalog: Catalog, tmp_path: Path) -> None:
    """Seed and number are fixed."""
    outcomes: list[frozenset[Outcome]] = []
    wrong = campaign(catalog, seed="suite", inputs=range(80), folder=tmp_path / "job", tell=outcomes.append)
    assert [str(number) for number in wrong] == []
    assert min(outcomes.count(frozenset({record})) for record in (Outcome.ERROR, Outcome.SUCCEEDED)) > 20


def _judge(catalog: Catalog, artifacts: Artifacts, case: str) -> Result:
    return analyse(JOB, artifacts, catalog.cases[case], catalog.cases[case].record())


def _only_a_comment(artifacts: Artifacts) -> None:
    for path in artifacts.key_logs:
        path.write_text("# nothing\n")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"client": {"exit_code": 1}}, "client-exit"),
        ({"client": {"exit_code": 137, "timed_out": True}}, "timeout"),
        ({"files": {"equal": False, "received": None}}, "files-differ"),
    ],
)
def test_a_verdict_that_needs_no_packet_stands(
    catalog: Catalog, recorded: Copy, change: dict[str, dict[str, object]], code: str
) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    _only_a_comment(artifacts)
    document = json.loads(artifacts.evidence.read_text())
    for section, fields in change.items():
        (document[section][0] if section == "files" else document[section]).update(fields)
    artifacts.evidence.write_text(json.dumps(document))
    result = _judge(catalog, artifacts, "handshake")
    assert (result.outcome, [finding.code for finding in result.findings]) == (Outcome.FAILED, [code])


def test_what_stands_in_open_packets_stands(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("quic-go_quinn/retry")
    _only_a_comment(artifacts)
    result = _judge(catalog, artifacts, "handshake")
    assert (result.outcome, result.findings[0].code) == (Outcome.FAILED, "unexpected-retry")


def test_what_can_not_be_read_does_not_fail(catalog: Catalog, recorded: Copy) -> None:
    """A recording that fails with its keys, because of the content of encrypted packets."""
    artifacts = recorded("aioquic_aioquic/handshake")
    for case in ("keyupdate", "multiplexing"):
        assert _judge(catalog, artifacts, case).outcome is Outcome.FAILED
    _only_a_comment(artifacts)
    for case in ("keyupdate", "multiplexing"):
        result = _judge(catalog, artifacts, case)
        assert (result.outcome, result.findings[0].code) == (Outcome.ERROR, "secrets-missing")
        assert (result.without_keys, result.sample) == (False, None)


@pytest.mark.parametrize("cut", ["", "# nothing\n", "CLIENT_TRAFFIC_SECRET_0 " + 64 * "0" + " " + 64 * "1" + "\n"])
def test_a_stack_without_a_key_log_is_judged_by_what_can_be_seen(catalog: Catalog, recorded: Copy, cut: str) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    with_keys = _judge(catalog, artifacts, "handshake")
    for path in artifacts.key_logs:
        path.write_text(cut)
    result = _judge(catalog, artifacts, "handshake")
    assert (result.outcome, result.without_keys, with_keys.without_keys) == (Outcome.SUCCEEDED, True, False)
    assert "can't be read" in result.notes[-1].actual
    assert result.sample is not None
    assert with_keys.sample is not None
    assert (result.sample.goodput, result.sample.ttlb) == (with_keys.sample.goodput, None)


BY_NAME = {bad.name: bad for bad in BAD}


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        *((name, Outcome.FAILED) for name in ("second-connection", "wrong-version", "wrong-alpn", "unoffered-suite")),
        *((name, Outcome.FAILED) for name in ("never-retries", "resumes-at-once", "forgets-tickets", "takes-unlisted")),
        *((name, Outcome.FAILED) for name in ("no-upgrade-server", "no-ect-server", "over-ipv4", "never-shrinks")),
        *((name, Outcome.FAILED) for name in ("resets-packet-number", "amplifies")),
        *((name, Outcome.ERROR) for name in ("no-ecn-counts", "no-early-data", "exceeds-flow-control")),
    ],
)
def test_a_fault_that_can_be_seen_without_keys_is_a_failure(
    catalog: Catalog, recorded: Copy, name: str, outcome: Outcome
) -> None:
    bad = BY_NAME[name]
    artifacts = recorded(bad.path)
    for path in artifacts.key_logs:
        path.unlink()
    result = analyse(JOB, artifacts, catalog.cases[bad.case], changed(catalog.cases[bad.case].record(), bad.changes))
    assert (result.outcome, result.without_keys) == (outcome, outcome is Outcome.FAILED)
    found = {(finding.code, finding.role) for finding in result.findings}
    assert ((bad.code, bad.role) in found) == (outcome is Outcome.FAILED)


def test_a_client_that_offers_several_protocols_needs_a_key_log(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    traces = [decode_capture(capture, ()) for capture in (artifacts.client_capture, artifacts.server_capture)]
    known = facts(*traces)
    evidence = load_evidence(artifacts)
    assert evidence is not None
    assert known.connections[0].alpn == "hq-interop"
    several = replace(known.connections[0], offered_alpn=("h3", "hq-interop"), alpn=None)
    record = catalog.cases["handshake"].record()
    context = CaseEvidence(
        facts=replace(known, connections=(several,)), evidence=evidence, case=record, truth=None, protocol="hq-interop"
    )
    assert [finding.code for finding in Alpn("hq-interop")(context)] == [UNDECIDED]


@pytest.mark.parametrize("lost", [0, 7], ids=["the-first", "one-amid"])
def test_a_capture_that_lacks_a_delivered_datagram_proves_nothing(catalog: Catalog, tmp_path: Path, lost: int) -> None:
    recording = Mutated.load(RECORDINGS / "quinn_quinn" / "amplificationlimit" / "1")
    case = catalog.cases["amplificationlimit"]
    record = changed(case.record(), SHORT_CHAIN)
    whole = analyse(JOB, Artifacts(recording.save(tmp_path / "whole")), case, record)
    assert whole.outcome is Outcome.SUCCEEDED
    arrived = [each for each in recording.datagrams if each.sender == "client" and each.arrived]
    recording.lose(arrived[lost])
    cut = recording.save(tmp_path / "cut")
    # The link delivered the datagram: its counters are those of the recording.
    shutil.copyfile(recording.folder / "sim" / "truth.json", cut / "sim" / "truth.json")
    result = analyse(JOB, Artifacts(cut), case, record)
    assert (result.outcome, [finding.code for finding in result.findings]) == (Outcome.ERROR, ["disturbed"])
    assert "packets that the link delivered from the client" in result.findings[0].actual
    assert result.violations == ()


BOTH, CLIENTS, SERVERS = (True, True), (True, False), (False, True)


@pytest.mark.parametrize(
    ("path", "case", "sizes"),
    [
        ("quinn_quinn/handshake", "handshake", ()),
        ("quic-go_quinn/retry", "retry", (1024,)),
        ("quic-go_quinn/resumption", "resumption", (1024, 1024)),
    ],
)
@pytest.mark.parametrize("cut", [BOTH, CLIENTS, SERVERS], ids=["both", "client", "server"])
@pytest.mark.parametrize("part", [lambda at: at >= 0.6, lambda at: at < 0.2, lambda at: 0.4 <= at < 0.6])
def test_what_is_not_on_record_is_not_judged(
    catalog: Catalog,
    recorded: Copy,
    path: str,
    case: str,
    sizes: tuple[int, ...],
    cut: tuple[bool, bool],
    part: Callable[[float], bool],
) -> None:
    """`part`: whether the record at this fraction of a capture is missing."""
    artifacts = recorded(path)
    record = replace(catalog.cases[case].record(), file_sizes=sizes or catalog.cases[case].record().file_sizes)
    assert analyse(JOB, artifacts, catalog.cases[case], record).outcome is Outcome.SUCCEEDED
    captures = artifacts.client_capture, artifacts.server_capture
    for capture in (capture for capture, chosen in zip(captures, cut, strict=True) if chosen):
        records = read(capture)
        write_pcap(capture, [each for at, each in enumerate(records) if not part(at / len(records))])
    result = analyse(JOB, artifacts, catalog.cases[case], record)
    assert (result.outcome, [finding.code for finding in result.findings]) == (Outcome.ERROR, ["disturbed"])
    assert " packets that the link " in result.findings[0].actual
    assert result.violations == ()


def test_a_record_that_stands_twice_blames_nobody(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("quic-go_quinn/retry")
    for capture in (artifacts.client_capture, artifacts.server_capture):
        records = read(capture)
        write_pcap(capture, [each for at, record in enumerate(records) for each in (record,) * (2 if at == 3 else 1)])
    result = _judge(catalog, artifacts, "retry")
    assert (result.outcome, result.violations) == (Outcome.ERROR, ())
    assert "recorded twice" in result.findings[0].actual


def test_records_that_were_written_late_have_the_order_of_their_times(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("quic-go_quinn/retry")
    records = read(artifacts.client_capture)
    for at in range(4, len(records) - 1, 7):
        records[at], records[at + 1] = records[at + 1], records[at]
    write_pcap(artifacts.client_capture, records)
    result = _judge(catalog, artifacts, "retry")
    assert (result.outcome, result.violations) == (Outcome.SUCCEEDED, ())


def test_a_clock_that_was_set_back_proves_nothing(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("quic-go_quinn/retry")
    for capture in (artifacts.client_capture, artifacts.server_capture):
        records = read(capture)
        middle = len(records) // 2
        later = [replace(each, time_ns=each.time_ns - 2 * 10**9) for each in records[middle:]]
        write_pcap(capture, [*records[:middle], *later])
    result = _judge(catalog, artifacts, "retry")
    assert (result.outcome, result.violations) == (Outcome.ERROR, ())
    assert "was set back by 2.0 s" in result.findings[0].actual


def test_the_judge_reads_captures_of_any_link_type(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("quic-go_quinn/retry")
    for capture in (artifacts.client_capture, artifacts.server_capture):
        records = [replace(each, frame=each.ip) for each in read(capture) if each.frame[12:14] == b"\x08\0"]
        write_pcap(capture, records, link_type=RAW)
    assert _judge(catalog, artifacts, "retry").outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("capture", "part", "lack"),
    [
        ("left.pcap", lambda at: 0.4 <= at < 0.6, "received files of"),
        ("right.pcap", lambda at: at >= 0.6, "that arrived at the other end"),
        ("left.pcap", lambda at: at < 0.2, "begins after"),
        ("both", lambda at: at < 0.2, "begins after"),
        ("both", lambda at: at >= 0.6, "received files of"),
        ("none", lambda _: True, ""),
    ],
)
def test_without_the_links_truth_the_captures_are_compared_with_each_other_and_with_the_files(
    catalog: Catalog, recorded: Copy, capture: str, part: Callable[[float], bool], lack: str
) -> None:
    """A real link has no simulator that counts packets."""
    artifacts = recorded("quinn_quinn/transfer")
    for path in (artifacts.client_capture, artifacts.server_capture):
        if capture in ("both", path.name):
            records = read(path)
            write_pcap(path, [each for at, each in enumerate(records) if not part(at / len(records))])
    evidence = load_evidence(artifacts)
    assert evidence is not None
    traces = [decode_capture(path, artifacts.key_logs) for path in (artifacts.client_capture, artifacts.server_capture)]
    told = unrecorded(traces[0], traces[1], (None, None), catalog.cases["transfer"].record(), evidence)
    assert lack in told
    assert bool(told) == bool(lack)


def test_without_the_links_truth_a_probe_of_another_version_lacks_no_packets(catalog: Catalog, recorded: Copy) -> None:
    """A scanner sends an unknown version, and the server answers by Version Negotiation (RFC 9000 §6)."""
    artifacts = recorded("quinn_quinn/transfer")
    for path in (artifacts.client_capture, artifacts.server_capture):
        records = read(path)
        hello = next(record for record in records if record.from_client() and record.frame[23] == socket.IPPROTO_UDP)
        ip, rest = hello.frame[26:34], hello.frame[42:]
        other, ids = b"\x13\x37", b"\x08" + b"scanner1" + b"\x08" + b"scanner2"
        asked = hello.frame[:34] + other + hello.frame[36:40] + bytes(2) + b"\xc0\x1a\x2a\x3a\x4a" + ids
        asked += bytes(len(hello.frame) - len(asked))
        answer = b"\x80" + bytes(4) + b"\x08scanner2\x08scanner1" + b"\0\0\0\1" * ((len(rest) - 23) // 4)
        length = struct.pack("!HH", 8 + len(answer), 0)
        head = hello.frame[:16] + struct.pack("!H", 28 + len(answer)) + hello.frame[18:26] + ip[4:] + ip[:4]
        answered = head + hello.frame[36:38] + other + length + answer
        probe = [replace(hello, frame=frame, time_ns=records[0].time_ns) for frame in (asked, answered)]
        write_pcap(path, [*probe, *records])
    evidence = load_evidence(artifacts)
    assert evidence is not None
    traces = [decode_capture(path, artifacts.key_logs) for path in (artifacts.client_capture, artifacts.server_capture)]
    assert "version_negotiation" in traces[0].packets["type"].to_pylist()
    assert unrecorded(traces[0], traces[1], (None, None), catalog.cases["transfer"].record(), evidence) == ""


@pytest.mark.parametrize("side", ["left.pcap", "right.pcap"])
def test_without_the_links_truth_a_record_that_stands_twice_is_the_recorders(
    catalog: Catalog, recorded: Copy, side: str
) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    capture = artifacts.folder / "sim" / side
    records = read(capture)
    write_pcap(capture, [each for at, record in enumerate(records) for each in (record,) * (2 if at > 9 else 1)])
    evidence = load_evidence(artifacts)
    assert evidence is not None
    traces = [decode_capture(path, artifacts.key_logs) for path in (artifacts.client_capture, artifacts.server_capture)]
    told = unrecorded(traces[0], traces[1], (None, None), catalog.cases["handshake"].record(), evidence)
    assert "twice, which arrived once" in told


def test_without_the_links_truth_a_number_that_is_used_twice_is_the_endpoints(catalog: Catalog, recorded: Copy) -> None:
    artifacts = recorded("bad/reuses-packet-numbers")
    evidence = load_evidence(artifacts)
    assert evidence is not None
    traces = [decode_capture(path, artifacts.key_logs) for path in (artifacts.client_capture, artifacts.server_capture)]
    assert unrecorded(traces[0], traces[1], (None, None), catalog.cases["handshake"].record(), evidence) == ""


def test_a_datagram_that_arrived_in_time_excuses_no_other(catalog: Catalog, recorded: Copy) -> None:
    """On a long link, the last datagrams of the client may arrive after the captures have ended. Here they arrived."""
    artifacts = recorded("quic-go_quinn/longrtt")
    for capture in (artifacts.client_capture, artifacts.server_capture):
        records = read(capture)
        lost = next(at for at, record in enumerate(records) if record.from_client())
        write_pcap(capture, [*records[:lost], *records[lost + 1 :]])
    result = _judge(catalog, artifacts, "longrtt")
    assert (result.outcome, [finding.code for finding in result.findings]) == (Outcome.ERROR, ["disturbed"])


def test_an_icmp_answer_to_a_late_datagram_may_arrive_after_the_capture(catalog: Catalog, recorded: Copy) -> None:
    """The client has ended, so its kernel answers the server's last datagram. The link delivers the answer too late."""
    artifacts = recorded("quic-go_quinn/longrtt")
    records = read(artifacts.client_capture)
    example = next(record for record in records if record.from_client())
    icmp = bytearray(example.frame)
    icmp[14 + 9] = 1  # the protocol of the IPv4 header
    write_pcap(artifacts.client_capture, [*records, replace(records[-1], frame=bytes(icmp))])
    truth = artifacts.folder / "sim" / "truth.json"
    counted = json.loads(truth.read_text())
    for counter in ("packets_in", "packets_out"):
        counted["return"][counter] += 1
    truth.write_text(json.dumps(counted))
    evidence = json.loads((artifacts.folder / "evidence.json").read_text())
    evidence["server"]["ended"] = evidence["client"]["ended"]
    (artifacts.folder / "evidence.json").write_text(json.dumps(evidence))
    assert _judge(catalog, artifacts, "longrtt").outcome is Outcome.SUCCEEDED


def test_packets_that_belong_to_no_connection_without_keys_are_not_missed(catalog: Catalog, recorded: Copy) -> None:
    """With an empty connection ID of the client, nobody can assign the server's Handshake packets without secrets."""
    artifacts = recorded("quinn_quinn/handshake")
    traces = [decode_capture(capture, ()) for capture in (artifacts.client_capture, artifacts.server_capture)]
    known, evidence = facts(*traces), load_evidence(artifacts)
    assert evidence is not None
    alone = replace(known.connections[0], unread=(), alpn=None, offered_alpn=("h3", "hq-interop"))
    record = catalog.cases["handshake"].record()
    context = CaseEvidence(
        facts=replace(known, connections=(alone,)), evidence=evidence, case=record, truth=None, protocol="hq-interop"
    )
    assert [finding.code for finding in Alpn("hq-interop")(context)] == [UNDECIDED]
    assert list(catalog.cases["http3"].checks[-2](context)) == []
