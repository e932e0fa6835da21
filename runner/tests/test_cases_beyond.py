"""Version negotiation, large ClientHellos, black holes, packet numbers: what checks say of good and of bad facts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.decode.columns import CLIENT, SERVER
from runner.decode.tables import decode_capture
from runner.judge.job_traces import protocol_findings
from runner.judge.judges import analyse
from runner.model.facts import PacketPlace, SentLength, TraceFacts
from runner.model.result import Artifacts, Outcome
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.store.runs import load_evidence
from runner.tests.trace.tables import Frame, Packet, moved, trace
from runner.trace.establish import facts
from testcases import checks, ecn, mtublackhole, postquantum, versionnegotiation
from testcases.base import CaseEvidence, Check

Recorded = Callable[[str], Artifacts]
HERE = Path(__file__).parent
PLACE = PacketPlace(vantage="server", record=7, time=0.25)


def _read(folder: Path, name: str = "client") -> TraceFacts:
    return facts(decode_capture(folder / f"{name}.pcap", sorted(folder.glob("*keys.log"))), None)


@pytest.fixture
def judge(catalog: Catalog, recorded: Recorded) -> Callable[..., set[str]]:
    """(facts, case, check, changes to the first connection) → codes, and that each points at a packet if it can."""
    evidence = load_evidence(recorded("quinn_quinn/handshake"))
    assert evidence is not None

    def codes(names_seen: TraceFacts, case: str, check: Check, **changes: Any) -> set[str]:
        first, *others = names_seen.connections
        changed = replace(names_seen, connections=(replace(first, **changes), *others))
        context = CaseEvidence(
            facts=changed, evidence=evidence, case=catalog.cases[case].record(), truth=None, protocol="hq-interop"
        )
        return {finding.code for finding in check(context)}

    return codes


def test_version_negotiation(judge: Callable[..., set[str]]) -> None:
    recorded_facts = _read(HERE / "decode" / "recordings" / "aioquic_versionnegotiation", "left")
    (answer,) = recorded_facts.connections[0].version_negotiations
    case, check = "versionnegotiation", versionnegotiation.is_negotiated
    assert judge(recorded_facts, case, check) == set()
    assert judge(recorded_facts, case, versionnegotiation.goes_on_as_listed) <= {"files-differ"}

    def but(**changes: Any) -> set[str]:
        return judge(recorded_facts, case, check, version_negotiations=(replace(answer, **changes),))

    assert but(listed=(0x1, 0x1A2A3A4A)) == {"offered-version-listed"}
    assert but(listed=(0x6B3343CF,)) == {"version-1-not-listed"}
    assert but(listed=None) == set()
    assert judge(recorded_facts, case, check, version_negotiations=()) == {"no-version-negotiation"}
    assert judge(recorded_facts, case, check, version_negotiations=(), original_version=1) == {"no-unknown-version"}
    listed = replace(answer, listed=(0x1,))
    unlisted = judge(
        recorded_facts, case, versionnegotiation.goes_on_as_listed, version=0x6B3343CF, version_negotiations=(listed,)
    )
    assert unlisted == {"version-not-listed"}
    gave_up = judge(recorded_facts, case, versionnegotiation.goes_on_as_listed, version=0, handshake_completed=False)
    assert gave_up == set()


def test_a_client_hello_of_two_packets(judge: Callable[..., set[str]]) -> None:
    recorded_facts = _read(HERE / "trace" / "recordings" / "quic-go_retry")
    hello = recorded_facts.connections[0].client_hello
    assert hello is not None
    assert (hello.datagrams, hello.bytes > 1300, hello.out_of_order, len(hello.places)) == (2, True, None, 2)
    assert judge(recorded_facts, "postquantum", postquantum.needs_two_datagrams) == set()
    small = replace(hello, datagrams=1, bytes=330)
    assert judge(recorded_facts, "postquantum", postquantum.needs_two_datagrams, client_hello=small) == {
        "client-hello-small"
    }
    assert judge(recorded_facts, "postquantum", checks.hellos_are_answered) == set()
    silent = replace(recorded_facts.connections[0].landmarks, server_hello=None)
    changes = {"landmarks": silent, "handshake_completed": False}
    assert judge(recorded_facts, "postquantum", checks.hellos_are_answered, **changes) == {"client-hello-unanswered"}


def test_a_lost_finished_does_not_undo_a_handshake_that_the_client_completed(judge: Callable[..., set[str]]) -> None:
    recorded_facts = _read(HERE / "trace" / "recordings" / "quic-go_retry")
    assert recorded_facts.connections[0].handshake_completed_by_client
    recorded_facts = replace(recorded_facts, connections=recorded_facts.connections[:1] * 50)
    lost = {"handshake_completed": False}
    assert judge(recorded_facts, "handshakeloss", checks.a_handshake_per_file, **lost) == set()
    lost["handshake_completed_by_client"] = False
    assert judge(recorded_facts, "handshakeloss", checks.a_handshake_per_file, **lost) == {"handshake-count"}


def test_the_order_of_a_client_hello_is_that_of_its_first_copies() -> None:
    def part(time: float, number: int, offset: int) -> Packet:
        header = b"\x01" + (1596).to_bytes(3) if offset == 0 else b""
        crypto = Frame("crypto", offset=offset, length=800, payload=header)
        return Packet(time, CLIENT, number, (crypto,), type="initial")

    # The third is a copy; the last belongs to a second ClientHello.
    packets = [part(0.0, 0, 0), part(0.0, 1, 800), part(0.3, 2, 0), Packet(0.5, SERVER, 0, type="initial")]
    packets.append(part(0.6, 3, 1600))

    def hello(delays: dict[tuple[int, int | None], float | None]) -> tuple[int, int, bool | None]:
        (item,) = facts(trace(packets), trace(moved(packets, delays, 0.1))).connections
        assert item.client_hello is not None
        assert item.client_hello.places == (
            PacketPlace(vantage="client", record=1, time=0.0),
            PacketPlace(vantage="client", record=2, time=0.0),
        )
        return item.client_hello.bytes, item.client_hello.datagrams, item.client_hello.out_of_order

    assert hello({}) == (1600, 2, False)
    assert hello({(CLIENT, 0): 0.2}) == (1600, 2, True)
    assert hello({(CLIENT, 0): None}) == (1600, 2, True)  # the first part was lost, so only the second part arrived


def test_a_black_hole(judge: Callable[..., set[str]]) -> None:
    recorded_facts = _read(HERE / "trace" / "recordings" / "quic-go_retry")
    lengths = {1280: SentLength(count=90, first=None, last=None), 1452: SentLength(count=40, first=None, last=PLACE)}
    assert judge(recorded_facts, "mtublackhole", mtublackhole.sends_longer_packets, server_lengths=lengths) == set()
    small = {1280: lengths[1280], 1452: replace(lengths[1452], count=3)}
    assert judge(recorded_facts, "mtublackhole", mtublackhole.sends_longer_packets, server_lengths=small) == {
        "packets-small"
    }
    # The files of the recording in the evidence arrived.
    assert judge(recorded_facts, "mtublackhole", mtublackhole.shrinks, server_lengths=lengths) == set()


def test_a_black_hole_that_the_server_never_notices(catalog: Catalog, recorded: Recorded) -> None:
    evidence = load_evidence(recorded("quinn_quinn/handshake"))
    assert evidence is not None
    lost = replace(evidence, files=tuple(replace(file, equal=False) for file in evidence.files))
    recorded_facts = _read(HERE / "trace" / "recordings" / "quic-go_retry")
    lengths = {1452: SentLength(count=40, first=None, last=PLACE)}
    first = replace(recorded_facts.connections[0], server_lengths=lengths)
    context = CaseEvidence(
        facts=replace(recorded_facts, connections=(first,)),
        evidence=lost,
        case=catalog.cases["mtublackhole"].record(),
        truth=None,
        protocol="hq-interop",
    )
    (finding,) = mtublackhole.shrinks(context)
    assert (finding.code, finding.packets, finding.times, finding.vantage) == (
        "black-hole-not-noticed",
        (7,),
        (0.25,),
        "server",
    )


def test_a_black_hole_is_told_although_another_connection_delivered_the_file(judge: Callable[..., set[str]]) -> None:
    recorded_facts = _read(HERE / "trace" / "recordings" / "quic-go_retry")
    stalled = replace(recorded_facts.connections[0].streams[0], server_fin=None)
    lengths = {1452: SentLength(count=40, first=None, last=PLACE)}
    for streams, codes in ((recorded_facts.connections[0].streams, set()), ((stalled,), {"black-hole-not-noticed"})):
        changes = {"server_lengths": lengths, "streams": streams}
        assert judge(recorded_facts, "mtublackhole", mtublackhole.shrinks, **changes) == codes


def _reused(*numbers: tuple[int, str], scids: tuple[bytes, ...] = ()) -> list[tuple[int, ...]]:
    """The packets of the finding about packets of the server; in long headers when they have source connection IDs."""
    kinds = [("initial", {"scid": item}) for item in scids] or [("1rtt", {})] * len(numbers)
    packets = [
        Packet(0.1 * at, SERVER, number, (Frame(name),), type=kind, fields=fields)
        for at, ((number, name), (kind, fields)) in enumerate(zip(numbers, kinds, strict=True))
    ]
    findings = protocol_findings(trace(packets), trace(packets))
    return [finding.packets for finding in findings if finding.code == "rfc9000-12.3-number-reused"]


def test_a_packet_number_is_used_once_but_for_a_close() -> None:
    assert _reused((0, "ping"), (1, "ping"), (2, "application_close"), (2, "application_close")) == []
    assert _reused((0, "ack"), (0, "ack"), scids=(b"1", b"2")) == []
    assert len(_reused((0, "ack"), (0, "ack"), scids=(b"1", b"1"))) == 1
    assert _reused((0, "ping"), (1, "ping"), (1, "padding")) == [(2, 3)]


def test_congestion_marks_are_reported_as_such(judge: Callable[..., set[str]], recorded: Recorded) -> None:
    folder = recorded("quinn_quic-go/ecn").folder
    keys = [path for path in (folder / "client" / "keys.log", folder / "server" / "keys.log") if path.is_file()]
    recorded_facts = facts(
        decode_capture(folder / "sim/left.pcap", keys), decode_capture(folder / "sim/right.pcap", keys)
    )
    own = recorded_facts.connections[0].client_ecn
    assert judge(recorded_facts, "ecn", ecn.marks_are_reported) == set()
    assert own.received is not None
    marked = replace(own, received=replace(own.received, ce=4))
    assert judge(recorded_facts, "ecn", ecn.marks_are_reported, client_ecn=marked) == {"ce-not-reported"}
    text = replace(marked, reported=replace(own.reported, ce=3))
    assert judge(recorded_facts, "ecn", ecn.marks_are_reported, client_ecn=text) == set()


@pytest.mark.parametrize(
    ("name", "recording", "code", "places"),
    [
        ("mtublackhole", "aioquic_aioquic/handshake", "packets-small", 1),
        ("postquantum", "quinn_aioquic/chacha20", "client-hello-small", 1),
        ("connectionmigration", "bad/no-migration", "no-migration", 2),
    ],
)
def test_what_a_pair_is_not_able_to_do_is_unsupported(
    catalog: Catalog, recorded: Recorded, name: str, recording: str, code: str, places: int
) -> None:
    case = catalog.cases[name]
    record = replace(case.record(), file_sizes=(1024,))
    result = analyse(Job(server="s", client="c", case=name, iteration=1), recorded(recording), case, record)
    assert (result.outcome, [finding.code for finding in result.findings]) == (Outcome.UNSUPPORTED, [code])
    assert len(result.findings[0].packets) == places
