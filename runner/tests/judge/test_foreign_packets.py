"""Packets that nobody can read, and packets of other protocols, change no verdict: they excuse no violation, and they
hide no success."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.decode.capture import open_capture
from runner.decode.columns import CLIENT, SERVER
from runner.judge.judges import analyse
from runner.judge.readback import sending_end
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.tests.decode.pairs import datagram
from runner.tests.decode.rewrite import Record, write_pcap
from runner.tests.judge.test_analyse import Recorded, edit, judge
from runner.tests.recordings.conformance import BAD, changed
from runner.tests.records import RECORDINGS

JOB = Job(server="s", client="c", case="x", iteration=1)
RANDOM = bytes(range(180, 256))  # no key decrypts these bytes
_ECT0 = 2
BAD_ONES = {bad.name: bad for bad in BAD}

Insert = Callable[[list[Record]], list[Record]]


def _like(record: Record, payload: bytes, *, marked: bool = False) -> Record:
    """Another datagram of the sender of `record`, at the same time."""
    copy = record.with_payload(payload)
    frame = bytearray(copy.frame)
    frame[15] = frame[15] & 0xFC | (_ECT0 if marked else 0)
    return replace(copy, frame=bytes(frame))


def _frames(path: Path) -> list[Record]:
    """All frames of a capture, because the link counts packets of every protocol."""
    file, _ = open_capture(path)
    return [Record(time, file.data[start:end], wire) for time, _, start, end, wire in file.records()]


def _is_short(record: Record, *, from_client: bool) -> bool:
    """Whether the frame contains a short header of this endpoint over IPv4."""
    is_udp = record.frame[12:14] == b"\x08\x00" and record.frame[23] == 17
    return is_udp and record.from_client() is from_client and not record.payload[0] & 0x80


def _short(records: list[Record], *, from_client: bool, known: bool = True, count: int = 1) -> list[Record]:
    """Short headers that nothing decrypts, in the middle. They have a connection ID of the connection, or an unknown
    one."""
    model = next(each for each in reversed(records) if _is_short(each, from_client=from_client))
    cid = model.payload[1:9] if known else bytes(8)
    junk = [_like(model, b"\x41" + cid + bytes((at,)) + RANDOM, marked=True) for at in range(count)]
    middle = len(records) // 2
    return [*records[:middle], *(replace(each, time_ns=records[middle].time_ns) for each in junk), *records[middle:]]


def _text(records: list[Record]) -> list[Record]:
    lines = [
        datagram(records[0].time_ns, b"jobs.done:%d|c" % at, client_port=port, from_client=True)
        for at, port in enumerate((30_000, 5060) * 6)
    ]
    return [*lines, *records]


INSERTS: dict[str, Insert] = {
    "server": lambda records: _short(records, from_client=False),
    "client": lambda records: _short(records, from_client=True),
    "twelve-of-both": lambda records: _short(_short(records, from_client=True, count=12), from_client=False, count=12),
    "unknown-id": lambda records: _short(records, from_client=False, known=False, count=5),
    "text": _text,
}


def _judged(
    catalog: Catalog, source: Path, folder: Path, case: str, changes: Mapping[str, object], insert: Insert
) -> Result:
    shutil.copytree(source / "1", folder)
    artifacts = Artifacts(folder)
    added = 0
    for capture in (artifacts.client_capture, artifacts.server_capture):
        records = _frames(capture)
        inserted = insert(records)
        added = len(inserted) - len(records)
        write_pcap(capture, inserted)
    assert added
    record = changed(catalog.cases[case].record(), changes)
    return analyse(JOB, artifacts, catalog.cases[case], record)


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
@pytest.mark.parametrize(
    ("path", "case", "sizes"),
    [
        ("quinn_quic-go/ecn", "ecn", (20480,)),
        ("quic-go_quinn/http3", "http3", (1024,)),
        ("aioquic_aioquic/handshake", "handshake", ()),
    ],
)
def test_a_good_job_stays_good(
    catalog: Catalog, tmp_path: Path, path: str, case: str, sizes: tuple[int, ...], insert: Insert
) -> None:
    changes = {"file_sizes": sizes} if sizes else {}
    result = _judged(catalog, RECORDINGS / path, tmp_path / "job", case, changes, insert)
    assert (result.outcome, result.violations) == (Outcome.SUCCEEDED, ())


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
@pytest.mark.parametrize(
    "name", ["no-ect-server", "no-ecn-counts", "exceeds-flow-control", "no-control-stream-server", "all-suites"]
)
def test_a_violation_in_readable_packets_stands(catalog: Catalog, tmp_path: Path, name: str, insert: Insert) -> None:
    bad = BAD_ONES[name]
    result = _judged(catalog, RECORDINGS / bad.path, tmp_path / "job", bad.case, dict(bad.changes), insert)
    assert result.outcome is Outcome.FAILED
    assert (bad.code, bad.role) in {(finding.code, finding.role or bad.role) for finding in result.findings}


def test_a_note_tells_of_packets_of_other_protocols(catalog: Catalog, tmp_path: Path) -> None:
    result = _judged(catalog, RECORDINGS / "quinn_quinn" / "handshake", tmp_path / "job", "handshake", {}, _text)
    assert (result.outcome, {note.code for note in result.notes}) == (Outcome.SUCCEEDED, {"foreign-packets"})
    assert "12 other UDP packets in the capture at the client" in result.notes[0].actual


def test_unread_packets_that_the_peer_acknowledged_are_evidence_that_is_missing(
    catalog: Catalog, tmp_path: Path
) -> None:
    """The decoder can't read most packets of the server, but the client could: no verdict."""

    def damage(records: list[Record]) -> list[Record]:
        short = [at for at, each in enumerate(records) if _is_short(each, from_client=False)]
        return [
            each.with_payload(each.payload[:-1] + bytes((each.payload[-1] ^ 1,))) if at in short[4:] else each
            for at, each in enumerate([*records, records[-1]])
        ]

    result = _judged(
        catalog,
        RECORDINGS / "quinn_quinn" / "transfer",
        tmp_path / "job",
        "transfer",
        {"file_sizes": (20480, 30720, 51200)},
        damage,
    )
    assert result.outcome is Outcome.ERROR
    assert [finding.code for finding in result.findings] == ["secrets-missing"]


@pytest.mark.parametrize(
    ("source", "destination", "end"),
    [
        ("193.167.0.100", "193.167.100.100", CLIENT),
        ("193.167.0.100", "193.167.0.1", CLIENT),  # an address of its own network that no host has crosses the link
        ("193.167.100.100", "8.8.8.8", SERVER),
        ("10.0.0.1", "193.167.0.100", SERVER),
        ("10.0.0.1", "8.8.8.8", None),
    ],
)
def test_the_end_that_sent_a_packet(source: str, destination: str, end: int | None) -> None:
    assert sending_end(source, destination) == end


@pytest.mark.parametrize(
    ("client", "code"), [({"timed_out": True, "exit_code": 137}, "timeout"), ({"exit_code": 1}, "client-exit")]
)
def test_a_client_that_sends_no_quic_packet_is_blamed(
    catalog: Catalog, recorded: Recorded, client: dict[str, object], code: str
) -> None:
    """The attacks `link-down-first` and `delete-routes` of a client in a guest."""
    artifacts = recorded("quinn_quinn/handshake")
    for path in (artifacts.client_capture, artifacts.server_capture):
        write_pcap(path, [record for record in _frames(path) if record.frame[23] != 17])
    for path in artifacts.key_logs:
        path.unlink()
    truth = json.loads(artifacts.link_truth.read_text())
    for way in ("forward", "return"):
        truth[way] |= {"packets_in": 0, "packets_out": 0}
    artifacts.link_truth.write_text(json.dumps(truth))
    edit(artifacts, lambda evidence: evidence["client"].update(client))
    edit(artifacts, lambda evidence: evidence["files"][0].update(received=None, equal=False))
    result = judge(catalog, artifacts, "handshake")
    assert [(finding.code, finding.role) for finding in result.findings] == [(code, "client")]
