"""The decoder on features of QUIC, and on packets that captures changed."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from runner.decode.columns import CLIENT, SERVER
from runner.decode.decode import describe_capture
from runner.decode.tables import decode_capture
from runner.tests.decode.decoded import (
    STACKS,
    connection,
    contents,
    decode,
    decode_pairs,
    decode_records,
    own,
    shared,
    undecrypted,
)
from runner.tests.decode.pairs import Pair, datagram, protected
from runner.tests.decode.rewrite import Record, read
from runner.tests.decode.test_oracle_tshark import key_logs

# Features


@pytest.mark.parametrize("name", ["quinn_keyupdate", "aioquic_keyupdate", "quic-go_owngeneration"])
def test_key_update_of_both_sides(name: str) -> None:
    trace = decode(own(name))
    assert undecrypted(trace) == []
    for sender in (CLIENT, SERVER):
        rows = trace.packets.filter(pc.equal(trace.packets["sender"], sender))
        generations = [each for each in rows["key_generation"].to_pylist() if each is not None]
        phases = [each for each in rows["key_phase"].to_pylist() if each is not None]
        assert set(generations) == {0, 1}
        assert phases == generations


@pytest.mark.parametrize("stack", STACKS)
def test_handshake_is_described(stack: str) -> None:
    row = connection(decode(own(f"{stack}_transfer")))
    assert row["sni"] == "server4"
    assert row["alpn"] == "hq-interop"
    assert row["offered_alpn"] == ["hq-interop"]
    assert row["suite"] in ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384")
    assert {0x1301, 0x1302, 0x1303} <= set(row["offered_suites"])
    assert (row["client_ip"], row["server_ip"], row["server_port"]) == ("193.167.0.100", "193.167.100.100", 443)
    assert (row["resumed"], row["certificate"], row["retry"], row["retry_integrity_ok"]) == (False, True, False, None)
    assert row["client_hello_count"] == 1
    assert row["version"] == row["original_version"] == 1
    assert '"initial_max_data": ' in row["client_transport_parameters"]
    assert f'"original_destination_connection_id": "{row["odcid"].hex()}"' in row["server_transport_parameters"]


def test_retry() -> None:
    trace = decode(shared("quic-go_quinn/retry"))
    row = connection(trace)
    assert undecrypted(trace) == []
    assert (row["retry"], row["retry_integrity_ok"]) == (True, True)
    tokens = trace.packets.filter(pc.equal(trace.packets["sender"], CLIENT))["token_length"].to_pylist()
    assert tokens[0] == 0
    assert tokens[1] > 0


def test_retry_with_a_wrong_tag(tmp_path: Path) -> None:
    capture = shared("quic-go_quinn/retry")
    records = read(capture)
    at = next(number for number, record in enumerate(records) if record.payload[0] & 0xF0 == 0xF0)
    damaged = records[at].payload[:-1] + bytes((records[at].payload[-1] ^ 1,))
    records[at] = records[at].with_payload(damaged)
    row = connection(decode_records(tmp_path, records, key_logs(capture)))
    assert (row["retry"], row["retry_integrity_ok"]) == (True, False)


def test_resumption_and_early_data() -> None:
    trace = decode(shared("quic-go_quinn/zerortt"))
    first, second = trace.connections.to_pylist()
    assert (first["resumed"], first["certificate"], first["early_data_offered"]) == (False, True, False)
    assert (second["resumed"], second["certificate"], second["early_data_offered"]) == (True, False, True)
    early = trace.packets.filter(pc.equal(trace.packets["type"].cast("string"), "0rtt"))
    assert early.num_rows > 0
    assert pc.all(early["decrypted"]).as_py()
    in_early = pc.is_in(trace.stream_frames["packet"], early["packet"].combine_chunks())
    assert trace.stream_frames.filter(in_early).num_rows > 0


def test_early_data_without_its_secret_breaks_no_invariant(tmp_path: Path) -> None:
    capture = shared("quic-go_quinn/zerortt")
    log = tmp_path / "keys.log"
    lines = b"".join(path.read_bytes() for path in key_logs(capture)).splitlines(keepends=True)
    log.write_bytes(b"".join(line for line in lines if not line.startswith(b"CLIENT_EARLY")))
    trace = decode_capture(capture, [log])
    assert set(undecrypted(trace)) == {"0rtt"}
    sentence = "The key logs lack CLIENT_EARLY_TRAFFIC_SECRET of 1 connection, so 0-RTT packets can't be decrypted."
    assert trace.meta.remarks == [sentence]
    assert next(each for each in trace.checks if each.name == "undecrypted_packets").holds is True


def test_chacha20() -> None:
    trace = decode(shared("quinn_aioquic/chacha20"))
    row = connection(trace)
    assert undecrypted(trace) == []
    assert row["offered_suites"] == [0x1303]
    assert row["suite"] == "TLS_CHACHA20_POLY1305_SHA256"
    assert trace.packets["suite"].to_pylist()[-1] == "TLS_CHACHA20_POLY1305_SHA256"


def test_compatible_version_negotiation() -> None:
    trace = decode(own("aioquic_v2"))
    row = connection(trace)
    assert undecrypted(trace) == []
    assert (row["original_version"], row["version"]) == (1, 0x6B3343CF)


def test_version_negotiation_packet() -> None:
    trace = decode(own("aioquic_versionnegotiation"))
    row = connection(trace)
    assert (row["original_version"], row["version"]) == (0x1A2A3A4A, 1)
    assert trace.packets["type"].to_pylist()[:3] == ["unknown", "version_negotiation", "initial"]
    assert trace.packets["connection"].to_pylist()[:3] == [0, 0, 0]
    assert next(each for each in trace.checks if each.name == "undecrypted_packets").holds is True


def test_client_hello_in_two_packets_in_any_order(tmp_path: Path) -> None:
    records = read(own("quic-go_transfer"))
    whole = connection(decode(own("quic-go_transfer")))
    assert all(record.from_client(443) for record in records[:2])
    swapped = [replace(records[1], time_ns=records[0].time_ns), replace(records[0], time_ns=records[1].time_ns)]
    trace = decode_records(tmp_path, [*swapped, *records[2:]], key_logs(own("quic-go_transfer")))
    assert undecrypted(trace) == []
    assert connection(trace) == whole


def test_json_counts() -> None:
    capture = own("quic-go_transfer")
    report = describe_capture(capture, key_logs(capture), details=True)
    for name in ("datagrams", "packets", "frames", "stream_frames", "stream_bytes", "undecrypted"):
        assert isinstance(report[name], int)
    assert report["stream_bytes"] == 20 * 1024 + 23
    assert report["truncated"] is False
    assert [stream["bytes"] for stream in report["streams"]] == [23, 20 * 1024]
    assert len(bytes.fromhex(report["connections"][0]["client_random"])) == 32


# Changes of packets by captures


@pytest.mark.parametrize("stack", STACKS)
def test_super_datagrams(tmp_path: Path, stack: str) -> None:
    records = read(own(f"{stack}_transfer"))
    joined: list[Record] = []
    for record in records:
        last = joined[-1] if joined else None
        if (
            last is not None
            and len(last.payload) % len(record.payload) == 0
            and len(record.payload) > 1000
            and not (last.payload[0] | record.payload[0]) & 0x80
            and last.from_client(443) == record.from_client(443)
        ):
            joined[-1] = last.with_payload(last.payload + record.payload)
        else:
            joined.append(record)
    assert len(joined) < len(records) - 2
    trace = decode_records(tmp_path, joined, key_logs(own(f"{stack}_transfer")))
    whole = decode(own(f"{stack}_transfer"))
    assert undecrypted(trace) == []
    assert [row[1:] for row in contents(trace)] == [row[1:] for row in contents(whole)]
    above = next(each for each in trace.checks if each.name == "datagrams_above_mtu")
    assert above.holds is False


def test_snapped_packets_are_not_decrypted(tmp_path: Path) -> None:
    records = read(own("quinn_transfer"))
    short = [replace(record, frame=record.frame[:200], wire_length=len(record.frame)) for record in records]
    trace = decode_records(tmp_path, short, key_logs(own("quinn_transfer")))
    cut = sum(len(record.frame) > 200 for record in records)
    assert trace.meta.snapped == cut
    assert len(undecrypted(trace)) >= cut
    assert trace.datagrams["payload_length"].to_pylist() == [len(record.payload) for record in records]
    lengths = decode(own("quinn_transfer")).packets
    assert sum(trace.packets["length"].to_pylist()) == sum(lengths["length"].to_pylist())


def test_damaged_packets_are_counted_and_harm_nothing_else(tmp_path: Path) -> None:
    capture = own("quic-go_owngeneration")
    records, damaged = read(capture), random.Random(1).sample(range(8, 180), 20)
    for number in damaged:
        payload = bytearray(records[number].payload)
        payload[len(payload) // 2] ^= 0x10
        records[number] = records[number].with_payload(bytes(payload))
    trace = decode_records(tmp_path, records, key_logs(capture))
    assert len(undecrypted(trace)) == len(damaged)
    assert trace.packets["connection"].to_pylist() == [0] * trace.packets.num_rows
    gone = {records[number].time_ns for number in damaged}
    assert contents(trace) == [row for row in contents(decode(capture)) if row[0] not in gone]


def test_stateless_reset(tmp_path: Path) -> None:
    pair = Pair().connect()
    assert pair.server is not None
    token = pair.server._host_cids[0].stateless_reset_token
    last = pair.records[-1].time_ns
    forged = datagram(last + 1, b"\x41" + bytes(40), client_port=pair.client_port, from_client=False)
    copied, reset = (
        datagram(last + 2, b"\x41" + bytes(30) + token, client_port=pair.client_port, from_client=client)
        for client in (True, False)
    )
    trace = decode_pairs(tmp_path, [pair], [*pair.records, forged, copied, reset])
    assert trace.packets["type"].to_pylist()[-3:] == ["1rtt", "1rtt", "stateless_reset"]
    assert undecrypted(trace) == []  # the other packet carries no ID of the connection: anybody may have sent it


def test_extension_frames(tmp_path: Path) -> None:
    pair = Pair().connect()
    frames = bytes.fromhex("31 03 616263") + bytes.fromhex("40af 01 02 4400 03") + bytes.fromhex("1f") + b"\x30rest"
    pair.records.append(protected(pair, from_client=True, payload=frames))
    trace = decode_pairs(tmp_path, [pair])
    assert undecrypted(trace) == []
    assert trace.frames["name"].to_pylist()[-4:] == ["datagram", "ack_frequency", "immediate_ack", "datagram"]
    assert trace.frames["length"].to_pylist()[-4:] == [3, None, None, 4]


def test_unknown_frame_type_ends_the_packet_and_breaks_an_invariant(tmp_path: Path) -> None:
    pair = Pair().connect()
    pair.records.append(protected(pair, from_client=True, payload=bytes.fromhex("01 7f01 0203 0405")))
    pair.records.append(protected(pair, from_client=True, payload=bytes.fromhex("01 01 01 01")))
    trace = decode_pairs(tmp_path, [pair])
    rows = trace.frames.to_pylist()[-6:]
    assert [row["name"] for row in rows] == ["ping", "unknown", "ping", "ping", "ping", "ping"]
    assert (rows[1]["type"], rows[1]["payload"]) == (0x3F01, bytes.fromhex("7f01 0203 0405"))
    assert next(each for each in trace.checks if each.name == "unknown_frames").actual == 1
