"""Behaviour that the RFCs allow breaks no rule. Rows in tables of real recordings are changed until they show it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from runner.decode.columns import CLIENT, SERVER, Trace
from runner.decode.tables import TABLES, decode_capture
from runner.judge.job_traces import protocol_findings
from runner.paths import ROOT

RECORDINGS = ROOT / "runner" / "tests" / "recordings"
Row = dict[str, Any]
Tables = dict[str, list[Row]]


def broken(name: str, change: Callable[[Tables], None]) -> set[tuple[str, str]]:
    """Rule and role of the violations in a recording whose tables were changed at both vantage points."""
    folder = RECORDINGS / name / "1"
    keys = [path for path in (folder / "client" / "keys.log", folder / "server" / "keys.log") if path.is_file()]

    def changed(side: str) -> Trace:
        trace = decode_capture(folder / "sim" / f"{side}.pcap", keys, kernel_drops=0)
        rows: Tables = {name: getattr(trace, name).to_pylist() for name in TABLES}
        change(rows)
        return replace(
            trace, **{name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in TABLES.items()}
        )

    return {(finding.code, finding.role) for finding in protocol_findings(changed("left"), changed("right"))}


def add(tables: Tables, sender: int, frame: Row) -> None:
    """Add a frame to the last 1-RTT packet of `sender` that has other frames."""
    packets = types(tables)
    own = [each for each in tables["frames"] if each["sender"] == sender and packets[each["packet"]] == "1rtt"]
    tables["frames"].append({**own[-1], **frame})


def types(tables: Tables) -> list[str]:
    return [packet["type"] for packet in tables["packets"]]


def test_streams_begin_anew_after_rejected_early_data() -> None:
    def shorter(tables: Tables) -> None:
        packets = types(tables)
        early = [frame for frame in tables["stream_frames"] if packets[frame["packet"]] == "0rtt"]
        assert early
        for frame in early:
            frame["length"] -= 1

    assert not broken("bad/refuses-early-data", shorter)


def test_rejected_early_data_is_not_acknowledged() -> None:
    def acknowledged(tables: Tables) -> None:
        early = next(packet for packet in tables["packets"] if packet["type"] == "0rtt")
        frame = [
            each
            for each in tables["ack_frames"]
            if (each["sender"], each["space"], each["connection"]) == (SERVER, "application", early["connection"])
        ][-1]
        frame["ranges"] = [*frame["ranges"], dict.fromkeys(("first", "last"), early["packet_number"])]

    assert broken("bad/refuses-early-data", acknowledged) == {("rfc9001-4.6.2-rejected-early-data-read", "server")}


def test_early_data_may_follow_a_1rtt_packet_that_acknowledges_nothing() -> None:
    rule = ("rfc9000-17.2.3-early-after-1rtt", "client")

    def late(tables: Tables, *, read: bool) -> None:
        """The client's last packet becomes 0-RTT. `read`: the client acknowledges packets of the server before."""
        own = [row for row in tables["packets"] if row["sender"] == CLIENT and row["type"] == "1rtt"]
        last = [row for row in own if row["connection"] == own[-1]["connection"]][-1]
        last["type"] = "0rtt"
        tables["ack_frames"] = [
            row for row in tables["ack_frames"] if read or row["sender"] != CLIENT or row["space"] != "application"
        ]

    assert rule in broken("quic-go_quinn/zerortt", lambda tables: late(tables, read=True))
    assert rule not in broken("quic-go_quinn/zerortt", lambda tables: late(tables, read=False))


def test_a_server_has_a_connection_id_for_each_of_its_own_addresses() -> None:
    rule = ("rfc9000-9.5-id-from-two-addresses", "server")

    def moved(tables: Tables) -> None:
        """The server's last datagram comes from another port."""
        last = [row for row in tables["datagrams"] if row["sender"] == SERVER][-1]
        last["src_port"] ^= 1

    assert rule in broken("quic-go_quinn/http3", moved)


def test_a_client_at_the_preferred_address_may_move_although_migration_is_disabled() -> None:
    rule = ("rfc9000-9-migration-disabled", "client")

    def moved(tables: Tables, *, acts: bool) -> None:
        """The client's last datagram comes from another port. `acts`: the one before goes to another address."""
        own = [row for row in tables["datagrams"] if row["sender"] == CLIENT]
        own[-1]["src_port"] ^= 1
        own[-2]["dst_port"] ^= acts
        for row in tables["connections"]:
            parameters = json.loads(row["server_transport_parameters"])
            row["server_transport_parameters"] = json.dumps({**parameters, "disable_active_migration": True})

    assert rule in broken("quic-go_quinn/http3", lambda tables: moved(tables, acts=False))
    assert rule not in broken("quic-go_quinn/http3", lambda tables: moved(tables, acts=True))


def test_a_request_may_be_reset() -> None:
    def reset(tables: Tables) -> None:
        for frame in tables["stream_frames"]:
            if frame["sender"] == CLIENT and frame["stream_id"] % 4 == 0 and frame["fin"]:
                frame["fin"] = False
        for number in {frame["stream_id"] for frame in tables["stream_frames"] if frame["stream_id"] % 4 == 0}:
            size = max(
                frame["offset"] + frame["length"]
                for frame in tables["stream_frames"]
                if frame["stream_id"] == number and frame["sender"] == CLIENT
            )
            new = {"name": "reset_stream", "type": 4, "stream_id": number, "offset": size, "value": 0}
            add(tables, CLIENT, new)

    assert not broken("quic-go_quinn/http3", reset)


def test_a_challenge_that_was_not_read_needs_no_response() -> None:
    rule = ("rfc9000-8.2.2-challenge-unanswered", "client")

    def challenged(tables: Tables) -> None:
        packets = types(tables)
        early = next(
            each for each in tables["frames"] if each["sender"] == SERVER and packets[each["packet"]] == "1rtt"
        )
        new = {"name": "path_challenge", "type": 0x1A, "payload": b"12345678"}
        tables["frames"].append({**early, **new})

    def discarded(tables: Tables) -> None:
        challenged(tables)
        for frame in tables["ack_frames"]:
            if frame["sender"] == CLIENT and frame["space"] == "application":
                frame["ranges"] = []

    assert rule in broken("quic-go_quinn/longrtt", challenged)
    assert rule not in broken("quic-go_quinn/longrtt", discarded)


def test_an_acknowledged_1rtt_packet_confirms_the_handshake() -> None:
    rule = ("rfc9000-9-migration-before-confirmed", "client")

    def moved(tables: Tables, acknowledged: str) -> None:
        acks = [frame for frame in tables["ack_frames"] if frame["sender"] == SERVER]
        begin = min(frame["time_ns"] for frame in acks if frame["space"] == acknowledged)
        for datagram in tables["datagrams"]:
            if datagram["time_ns"] > begin:
                datagram["src_port" if datagram["sender"] == CLIENT else "dst_port"] ^= 1
        tables["frames"] = [frame for frame in tables["frames"] if frame["name"] != "handshake_done"]

    recording = "quinn_aioquic/keyupdate"
    assert rule in broken(recording, lambda tables: moved(tables, "initial"))
    assert rule not in broken(recording, lambda tables: moved(tables, "application"))


def test_frames_of_an_unknown_extension_may_be_agreed_on() -> None:
    rule = ("rfc9000-12.4-unknown-frame", "server")

    def unknown_frame(tables: Tables) -> None:
        add(tables, SERVER, {"name": "unknown", "type": 0x4242, "payload": b"\x42\x42"})

    def offered(tables: Tables, number: int) -> None:
        unknown_frame(tables)
        for row in tables["connections"]:
            parameters = json.loads(row["client_transport_parameters"])
            row["client_transport_parameters"] = json.dumps({**parameters, f"0x{number:x}": ""})

    assert rule in broken("quic-go_quinn/http3", unknown_frame)
    assert rule in broken("quic-go_quinn/http3", lambda tables: offered(tables, 31 * 1000 + 27))
    assert rule not in broken("quic-go_quinn/http3", lambda tables: offered(tables, 0x4242))


def test_one_of_two_challenges_in_a_datagram_validates_the_path() -> None:
    def challenged_twice(tables: Tables) -> None:
        own = [each for each in tables["frames"] if each["sender"] == SERVER and each["name"] == "path_challenge"]
        tables["frames"] += [{**frame, "payload": b"unheeded"} for frame in own]

    recording = "ngtcp2_ngtcp2/rebind-addr"
    assert ("rfc9000-8-unvalidated-path", "server") not in broken(recording, challenged_twice)


def test_an_initial_packet_may_follow_in_the_datagram_of_a_handshake_packet() -> None:
    def swapped(tables: Tables) -> None:
        kinds = types(tables)
        packets = tables["packets"]
        place = next(
            at
            for at, packet in enumerate(packets[:-1])
            if packet["sender"] == CLIENT
            and kinds[at : at + 2] == ["initial", "handshake"]
            and packets[at + 1]["datagram"] == packet["datagram"]
        )
        first, second = packets[place : place + 2]
        packets[place], packets[place + 1] = {**second, "packet": place}, {**first, "packet": place + 1}
        for name in ("frames", "ack_frames", "stream_frames"):
            for frame in tables[name]:
                if frame["packet"] in (place, place + 1):
                    frame["packet"] = 2 * place + 1 - frame["packet"]

    assert ("rfc9001-4.9.1-client-initial-late", "client") not in broken("aioquic_aioquic/handshake", swapped)


@pytest.mark.parametrize(
    ("frame", "rule"), [(b"\x02\x01\0\0\x02", "19.3.1-ack-range-negative"), (b"\x02\x01\0", "12.4-malformed-frame")]
)
def test_an_ack_frame_that_is_cut_off_has_no_negative_range(frame: bytes, rule: str) -> None:
    def malformed(tables: Tables) -> None:
        add(tables, SERVER, {"name": "unknown", "type": 2, "payload": frame})

    assert broken("quic-go_quinn/http3", malformed) == {(f"rfc9000-{rule}", "server")}
