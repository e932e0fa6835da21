"""Behaviour that the RFCs allow breaks no rule. Rows in tables of real recordings are changed until they show it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from runner.config.catalog import ROOT
from runner.decode import Trace, decode_capture
from runner.decode.schema import CLIENT, SERVER, TABLES
from runner.judge.invariants import protocol_findings

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
