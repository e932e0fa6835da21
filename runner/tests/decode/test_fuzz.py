"""Whatever is in a file: no exception but CaptureError, and no endless work."""

import time
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.decode import decoder
from runner.decode.connection import KeyRing
from runner.decode.decode import describe, read_capture
from runner.decode.tables import TableBuilder, decode_capture
from runner.errors import CaptureError
from runner.tests.decode import rewrite
from runner.tests.decode.rewrite import Interface, read, write_pcapng
from runner.tests.decode.test_oracle_tshark import OWN, SHARED, key_logs

CAPTURES = (
    OWN / "quic-go_transfer" / "left.pcap",
    OWN / "aioquic_versionnegotiation" / "left.pcap",
    OWN / "quinn_keyupdate" / "left.pcap",
    SHARED / "quic-go_quinn" / "retry" / "1" / "sim" / "left.pcap",
    SHARED / "quic-go_quinn" / "zerortt" / "1" / "sim" / "left.pcap",
)
SECONDS = 5.0

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@lru_cache
def original(number: int, pcapng: bool, folder: Path) -> bytes:
    if not pcapng:
        return CAPTURES[number].read_bytes()
    secrets = b"".join(path.read_bytes() for path in key_logs(CAPTURES[number]))
    interfaces = [Interface(rewrite.ETHERNET, rewrite.ethernet), Interface(rewrite.RAW, rewrite.raw_ip)]
    path = write_pcapng(folder / "original.pcapng", read(CAPTURES[number]), interfaces, secrets=secrets, drops=0)
    return path.read_bytes()


def decode_in_time(path: Path, number: int) -> None:
    started = time.process_time()
    try:
        decoded = read_capture(path, key_logs(CAPTURES[number]))
        TableBuilder(decoded).build()
        describe(decoded, details=True)
    except CaptureError as error:
        assert str(path) in str(error)
    assert time.process_time() - started < SECONDS


@FUZZ
@given(
    number=st.integers(0, len(CAPTURES) - 1),
    pcapng=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=40),
    cut=st.none() | st.integers(0, 2**20),
)
def test_changed_bytes(
    tmp_path: Path, number: int, pcapng: bool, changes: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(original(number, pcapng, tmp_path))
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path / "changed"
    path.write_bytes(data if cut is None else data[: cut % len(data)])
    decode_in_time(path, number)


@FUZZ
@given(
    number=st.integers(0, len(CAPTURES) - 1),
    pieces=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 3000)), min_size=1, max_size=8),
    inserted=st.binary(max_size=64),
)
def test_removed_and_inserted_pieces(
    tmp_path: Path, number: int, pieces: list[tuple[int, int]], inserted: bytes
) -> None:
    data = original(number, False, tmp_path)
    for at, size in pieces:
        data = data[: at % len(data)] + inserted + data[at % len(data) + size :]
    path = tmp_path / "changed"
    path.write_bytes(data)
    decode_in_time(path, number)


@FUZZ
@given(
    number=st.integers(0, len(CAPTURES) - 1),
    order=st.randoms(use_true_random=False),
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 255)), max_size=20),
)
def test_shuffled_records_with_changed_headers(
    tmp_path: Path, number: int, order: object, changes: list[tuple[int, int, int]]
) -> None:
    records = read(CAPTURES[number])
    order.shuffle(records)  # type: ignore[attr-defined]
    for which, at, value in changes:
        record = records[which % len(records)]
        payload = bytearray(record.payload)
        payload[at % len(payload)] = value
        records[which % len(records)] = record.with_payload(bytes(payload))
    decode_in_time(rewrite.write_pcap(tmp_path / "shuffled.pcap", records), number)


@FUZZ
@given(magic=st.sampled_from(("d4c3b2a1", "4d3cb2a1", "0a0d0d0a1c0000004d3c2b1a")), data=st.binary(max_size=2000))
def test_any_bytes(tmp_path: Path, magic: str, data: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(bytes.fromhex(magic) + data)
    decode_in_time(path, 0)


def test_garbage_on_a_known_flow_is_bounded(tmp_path: Path) -> None:
    """10,000 packets that nothing opens, with an ID of a connection, on its flow and on others, with many sessions to
    try."""
    records = read(CAPTURES[2])
    packets = decode_capture(CAPTURES[2], key_logs(CAPTURES[2])).packets
    dcid = next(row["dcid"] for row in packets.select(["type", "dcid"]).to_pylist() if row["type"] == "1rtt")
    log = tmp_path / "many.log"
    lines = [
        f"{label} {number:064x} {number + 1:064x}\n"
        for number in range(100)
        for label in ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0", "CLIENT_HANDSHAKE_TRAFFIC_SECRET")
    ]
    log.write_text("".join(lines))
    garbage = [
        record.with_payload(b"\x47" + dcid + (number.to_bytes(4) * 20)).with_client(50000 + number % 40)
        for number, record in enumerate(records * 200)
    ]
    path = rewrite.write_pcap(tmp_path / "garbage.pcap", [*records, *garbage])
    started = time.process_time()
    trace = decode_capture(path, [log, *key_logs(CAPTURES[2])])
    assert time.process_time() - started < SECONDS
    assert trace.packets.num_rows > 8000
    undecrypted = next(each for each in trace.checks if each.name == "undecrypted_packets")
    assert undecrypted.actual == len(garbage)


def test_capture_error_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CaptureError):
        decode_capture(tmp_path / "folder")


def test_the_search_for_lost_keys_ends_with_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake is missing, and the key log is of somebody else's sessions."""
    packets = [record for record in read(CAPTURES[0]) if record.payload[0] < 0x80]
    interfaces = [Interface(rewrite.ETHERNET, rewrite.ethernet)]
    keys = b"".join(b"CLIENT_TRAFFIC_SECRET_0 %064x %064x\n" % (number, number) for number in range(1, 40))
    path = write_pcapng(tmp_path / "late.pcapng", packets, interfaces, secrets=keys, drops=0)
    spent: list[int] = []
    search = KeyRing.search

    def counted(ring: KeyRing, *arguments: int) -> object:
        result = search(ring, *arguments)  # type: ignore[arg-type]
        spent.append(result[1])
        return result

    monkeypatch.setattr(KeyRing, "search", counted)
    monkeypatch.setattr(decoder, "_ATTEMPTS", 500)
    trace = decode_capture(path)
    assert trace.packets["decrypted"].to_pylist() == [False] * trace.packets.num_rows
    assert 500 <= sum(spent) < 500 + max(spent)


def test_a_damaged_packet_is_not_sought_in_other_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection with damaged packets; another on its own 4-tuple, of which nothing but the handshake came."""
    whole = [
        record.with_payload(record.payload[:-1] + bytes((record.payload[-1] ^ 1,))) if number % 9 == 0 else record
        for number, record in enumerate(read(CAPTURES[0]), 1)
    ]
    begun = [record.with_client(61000) for record in read(CAPTURES[3]) if record.payload[0] >= 0x80]
    keys = b"".join(path.read_bytes() for each in (0, 3) for path in key_logs(CAPTURES[each]))
    interfaces = [Interface(rewrite.ETHERNET, rewrite.ethernet)]
    path = write_pcapng(tmp_path / "two.pcapng", [*begun, *whole], interfaces, secrets=keys, drops=0)
    sought: list[object] = []
    search = KeyRing.search

    def counted(ring: KeyRing, *arguments: int) -> object:
        sought.append(ring)
        return search(ring, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(KeyRing, "search", counted)
    trace = decode_capture(path)
    assert trace.connections.num_rows == 2
    assert trace.packets["decrypted"].to_pylist().count(False) >= 3
    assert sought == []


def test_a_damaged_packet_is_not_tried_again_with_each_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections one after the other on one 4-tuple, and damaged packets in the first."""
    first, *others = ([record.with_client(50000) for record in read(CAPTURES[number])] for number in (0, 3, 4))
    whole = [
        record.with_payload(record.payload[:-1] + bytes((record.payload[-1] ^ 1,))) if number % 9 == 0 else record
        for number, record in enumerate(first, 1)
    ]
    keys = b"".join(path.read_bytes() for each in (0, 3, 4) for path in key_logs(CAPTURES[each]))
    interfaces = [Interface(rewrite.ETHERNET, rewrite.ethernet)]
    path = write_pcapng(tmp_path / "one.pcapng", [*whole, *others[0], *others[1]], interfaces, secrets=keys, drops=0)
    tried: Counter[tuple[KeyRing, int]] = Counter()
    opens = KeyRing.open

    def counted(ring: KeyRing, data: bytes, start: int, *arguments: int) -> object:
        tried[ring, start] += 1
        return opens(ring, data, start, *arguments)

    monkeypatch.setattr(KeyRing, "open", counted)
    trace = decode_capture(path)
    assert trace.connections.num_rows >= 4
    assert trace.packets["decrypted"].to_pylist().count(False) >= 3
    assert max(tried.values()) <= 3, "when it came, when its connection was known, and at the end"
