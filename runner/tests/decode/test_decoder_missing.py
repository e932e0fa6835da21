"""The decoder on captures and key logs with missing parts."""

from pathlib import Path

import pytest

from runner.decode.tables import decode_capture
from runner.tests.decode.decoded import (
    STACKS,
    connection,
    contents,
    decode,
    decode_pairs,
    decode_records,
    own,
    undecrypted,
)
from runner.tests.decode.pairs import Pair
from runner.tests.decode.rewrite import read
from runner.tests.decode.test_oracle_tshark import key_logs


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
