"""What the decoder makes of real traces, whole and with parts missing or moved."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from runner.decode import Trace, decode_capture, to_json
from runner.decode.capture import open_capture
from runner.decode.network import read_datagrams
from runner.decode.schema import CLIENT, SERVER
from runner.tests.decode.pairs import Pair, datagram, protected
from runner.tests.decode.rewrite import Record, read, write_pcap
from runner.tests.decode.test_oracle_tshark import OWN, SHARED, key_logs

STACKS = ("quic-go", "quinn", "aioquic")


def own(name: str) -> Path:
    return OWN / name / "left.pcap"


def shared(name: str) -> Path:
    return SHARED / name / "1" / "sim" / "left.pcap"


def decode(capture: Path) -> Trace:
    return decode_capture(capture, key_logs(capture))


def decode_records(folder: Path, records: Sequence[Record], logs: Sequence[Path]) -> Trace:
    return decode_capture(write_pcap(folder / "rewritten.pcap", records), logs)


def decode_pairs(folder: Path, pairs: Sequence[Pair], records: Sequence[Record] | None = None) -> Trace:
    log = folder / "keys.log"
    log.write_bytes(b"".join(pair.key_log for pair in pairs))
    every = [record for pair in pairs for record in pair.records] if records is None else records
    return decode_records(folder, sorted(every, key=lambda record: record.time_ns), [log])


def undecrypted(trace: Trace) -> list[str]:
    failed = trace.packets.filter(pc.invert(trace.packets["decrypted"]))
    return [str(kind) for kind in failed["type"].to_pylist()]


def contents(trace: Trace) -> list[tuple[Any, ...]]:
    """What was sent, without the row numbers, which depend on what else is in a capture."""
    names = ("time_ns", "sender", "stream_id", "offset", "length", "fin", "packet_number")
    return sorted(zip(*(trace.stream_frames[name].to_pylist() for name in names), strict=True))


def connection(trace: Trace) -> dict[str, Any]:
    (row,) = trace.connections.to_pylist()
    return dict(row)


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
    assert next(each for each in trace.invariants if each.name == "undecrypted_packets").holds is True


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
    assert next(each for each in trace.invariants if each.name == "undecrypted_packets").holds is True


def test_client_hello_in_two_packets_in_any_order(tmp_path: Path) -> None:
    records = read(own("quic-go_transfer"))
    whole = connection(decode(own("quic-go_transfer")))
    assert all(record.from_client(443) for record in records[:2])
    swapped = [replace(records[1], time_ns=records[0].time_ns), replace(records[0], time_ns=records[1].time_ns)]
    trace = decode_records(tmp_path, [*swapped, *records[2:]], key_logs(own("quic-go_transfer")))
    assert undecrypted(trace) == []
    assert connection(trace) == whole


# Missing beginnings


@pytest.mark.parametrize("name", ["quic-go_owngeneration", "quinn_keyupdate", "aioquic_keyupdate"])
@pytest.mark.parametrize("part", [0.15, 0.5, 0.9])
def test_capture_that_starts_late(tmp_path: Path, name: str, part: float) -> None:
    records = read(own(name))
    kept = records[int(len(records) * part) :]
    trace = decode_records(tmp_path, kept, key_logs(own(name)))
    assert undecrypted(trace) == []
    assert connection(trace)["client_random"] == connection(decode(own(name)))["client_random"]
    whole = [row for row in contents(decode(own(name))) if row[0] >= kept[0].time_ns]
    assert contents(trace) == whole


@pytest.mark.parametrize("stack", STACKS)
def test_capture_that_lost_the_first_flight(tmp_path: Path, stack: str) -> None:
    capture = own(f"{stack}_transfer")
    records = read(capture)
    from_server = next(number for number, record in enumerate(records) if not record.from_client(443))
    trace = decode_records(tmp_path, records[from_server:], key_logs(capture))
    assert undecrypted(trace) == []
    assert contents(trace) == contents(decode(capture))
    assert connection(trace)["odcid"] == connection(decode(capture))["odcid"]


def test_one_of_two_first_packets_is_lost(tmp_path: Path) -> None:
    capture = own("quic-go_transfer")
    trace = decode_records(tmp_path, read(capture)[1:], key_logs(capture))
    assert undecrypted(trace) == []
    assert connection(trace)["client_random"] == connection(decode(capture))["client_random"]


def test_missing_key_generations(tmp_path: Path) -> None:
    pair = Pair().connect()
    kept = list(pair.records)
    for update in range(1, 5):
        before = len(pair.records)
        pair.client.request_key_update()
        pair.request(5000)
        if update != 2:
            kept += pair.records[before:]
    trace = decode_pairs(tmp_path, [pair], kept)
    assert undecrypted(trace) == []
    assert set(trace.packets["key_generation"].to_pylist()) == {None, 0, 1, 3, 4}


# Many connections, moving connections


def test_fifty_connections_at_once(tmp_path: Path) -> None:
    pairs = [Pair(client_port=50000 + number).connect().request(1024) for number in range(50)]
    trace = decode_pairs(tmp_path, pairs)
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 50
    assert len(set(trace.connections["client_random"].to_pylist())) == 50
    assert sum(stream["bytes"] for stream in to_json(trace)["streams"] if stream["sender"] == SERVER) == 50 * 1024


def test_two_connections_with_one_four_tuple(tmp_path: Path) -> None:
    pairs = [Pair().connect().request(20000) for _ in range(2)]
    trace = decode_pairs(tmp_path, pairs)
    assert sum(a != b for a, b in pairwise(trace.packets["connection"].to_pylist())) > 10, "they do not overlap"
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 2
    for number in (0, 1):
        frames = trace.stream_frames.filter(pc.equal(trace.stream_frames["connection"], number))
        from_server = frames.filter(pc.equal(frames["sender"], SERVER))
        assert pc.max(pc.add(from_server["offset"], pc.cast(from_server["length"], "int64"))).as_py() == 20000


def test_two_connections_with_one_four_tuple_and_no_connection_ids(tmp_path: Path) -> None:
    """quic-go's clients choose zero-length ones: what comes to them says nothing but the 4-tuple, which they share."""
    first, second = own("quic-go_transfer"), own("quic-go_owngeneration")
    shift = read(first)[0].time_ns - read(second)[0].time_ns + 1
    moved = [replace(record, time_ns=record.time_ns + shift) for record in read(second)]
    merged = sorted([*read(first), *moved], key=lambda record: record.time_ns)
    records = [record.with_client(61000) for record in merged]
    trace = decode_records(tmp_path, records, [*key_logs(first), *key_logs(second)])
    assert sum(a != b for a, b in pairwise(trace.packets["connection"].to_pylist())) > 10, "they do not overlap"
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 2
    assert trace.stream_frames.num_rows == sum(decode(each).stream_frames.num_rows for each in (first, second))


@pytest.mark.parametrize("name", ["quic-go_transfer", "quinn_transfer", "aioquic_transfer"])
def test_nat_rebinding(tmp_path: Path, name: str) -> None:
    """quic-go's client has a zero-length connection ID: what comes to it says nothing but the 4-tuple."""
    records = read(own(name))
    half = len(records) // 2
    moved = [*records[:half], *(record.with_client(61000) for record in records[half:])]
    trace = decode_records(tmp_path, moved, key_logs(own(name)))
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 1
    assert contents(trace) == contents(decode(own(name)))
    assert 61000 in trace.datagrams["src_port"].to_pylist()
    assert set(trace.datagrams["connection"].to_pylist()) == {0}


# What captures do to packets


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
    above = next(each for each in trace.invariants if each.name == "datagrams_above_mtu")
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
    reset = datagram(last + 2, b"\x41" + bytes(30) + token, client_port=pair.client_port, from_client=False)
    trace = decode_pairs(tmp_path, [pair], [*pair.records, forged, reset])
    assert trace.packets["type"].to_pylist()[-2:] == ["1rtt", "stateless_reset"]
    assert undecrypted(trace) == ["1rtt"]


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
    assert next(each for each in trace.invariants if each.name == "unknown_frames").actual == 1


# Key logs


def test_key_logs_are_merged_and_garbage_is_skipped(tmp_path: Path) -> None:
    capture = own("quinn_transfer")
    lines = b"".join(path.read_bytes() for path in key_logs(capture)).splitlines(keepends=True)
    handshake, application = tmp_path / "a.log", tmp_path / "b.log"
    garbage = (
        b"# comment\n\nCLIENT_RANDOM 12\nCLIENT_TRAFFIC_SECRET_0 xx yy\n\xff\xfe\x00\nSERVER_TRAFFIC_SECRET_0 00 00\n"
    )
    handshake.write_bytes(garbage + b"".join(line for line in lines if b"HANDSHAKE" in line))
    application.write_bytes(b"".join(line for line in lines if b"HANDSHAKE" not in line) + b"SERVER_TRAFFIC_SEC")
    assert undecrypted(decode_capture(capture, [handshake, application])) == []
    assert set(undecrypted(decode_capture(capture, [handshake]))) == {"1rtt"}
    assert set(undecrypted(decode_capture(capture, [application]))) == {"handshake"}


def test_without_keys_everything_is_counted(tmp_path: Path) -> None:
    capture = own("quic-go_transfer")
    trace = decode_capture(capture)
    assert set(undecrypted(trace)) == {"handshake", "1rtt"}
    late = decode_records(tmp_path, read(capture)[10:], [])
    assert len(undecrypted(late)) == late.packets.num_rows == len(read(capture)) - 10
    assert set(late.datagrams["connection"].to_pylist()) == {-1}


def test_key_log_of_other_connections(tmp_path: Path) -> None:
    others = Pair().connect(), Pair().connect()
    log = tmp_path / "others.log"
    log.write_bytes(b"".join(pair.key_log for pair in others))
    trace = decode_capture(own("quinn_transfer"), [log])
    assert set(undecrypted(trace)) == {"handshake", "1rtt"}
    assert trace.connections.num_rows == 1


def test_json_counts() -> None:
    report = to_json(decode(own("quic-go_transfer")))
    for name in ("datagrams", "packets", "frames", "stream_frames", "stream_bytes", "undecrypted"):
        assert isinstance(report[name], int)
    assert report["stream_bytes"] == 20 * 1024 + 23
    assert report["truncated"] is False
    assert [stream["bytes"] for stream in report["streams"]] == [23, 20 * 1024]
    assert len(bytes.fromhex(report["connections"][0]["client_random"])) == 32


def test_a_preferred_address_is_quic_without_the_fixed_bit_too(tmp_path: Path) -> None:
    """RFC 9287: the bit may be 0 in any packet, and the other port is none of QUIC's."""
    capture = shared("misbehaving_aioquic/connectionmigration")
    whole = decode(capture)
    file, data = open_capture(capture)
    datagrams = read_datagrams(file)
    ports = [datagrams.flows[flow].dst_port for flow in datagrams.flow]
    start = next(at for at, port in zip(datagrams.start, ports, strict=True) if port == 4443 and data[at] < 0x80)
    path = tmp_path / "greased.pcap"
    path.write_bytes(data[:start] + bytes((data[start] & ~0x40,)) + data[start + 1 :])
    trace = decode_capture(path, key_logs(capture))
    assert trace.datagrams["dst_port"].to_pylist().count(4443) == ports.count(4443)
    assert trace.datagrams.num_rows == whole.datagrams.num_rows
    assert undecrypted(trace) == ["1rtt"]
