"""QUIC packets that are easily overlooked are decoded, or reported."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.cli.group import main
from runner.decode.keys import Protection
from runner.decode.tables import decode_capture
from runner.tests.decode.decoded import contents, decode, decode_pairs, own
from runner.tests.decode.pairs import START_NS, Pair, datagram
from runner.tests.decode.rewrite import Record, read, write_pcap
from runner.tests.decode.test_oracle_tshark import key_logs

UNKNOWN_VERSION = 0x1A2A3A4A


def _ported(record: Record, port: int) -> Record:
    at = 14 + (22 if record.from_client() else 20)
    return replace(record, frame=record.frame[:at] + port.to_bytes(2) + record.frame[at + 2 :])


def _without_fixed_bit(record: Record) -> Record:
    """Short headers with the greased bit (RFC 9287). AEAD doesn't protect the bit in this test."""
    first = record.payload[0]
    return record if first & 0x80 else record.with_payload(bytes((first & 0xBF,)) + record.payload[1:])


def test_a_cleared_fixed_bit_hides_nothing_on_any_port(tmp_path: Path) -> None:
    records = [_ported(_without_fixed_bit(record), 5555) for record in read(own("quinn_transfer"))]
    trace = decode_capture(write_pcap(tmp_path / "greased.pcap", records), key_logs(own("quinn_transfer")))
    assert trace.datagrams.num_rows == len(records)
    assert trace.connections.num_rows == 1


def _in_ipv6(record: Record, fragment: bytes) -> Record:
    """The UDP datagram in IPv6 behind a fragment header (RFC 8200 §4.5)."""
    udp = record.frame[34:]
    ends = (bytes(15) + b"\x01", bytes(15) + b"\x02")
    src, dst = ends if record.from_client() else ends[::-1]
    head = struct.pack(">IHBB", 6 << 28, len(fragment) + len(udp), 44, 64)
    return replace(record, frame=bytes(12) + b"\x86\xdd" + head + src + dst + fragment + udp)


def test_atomic_fragments_are_whole_packets(tmp_path: Path) -> None:
    capture = own("quic-go_transfer")
    atomic = [_in_ipv6(record, bytes((17, 0, 0, 0, 1, 2, 3, 4))) for record in read(capture)]
    trace = decode_capture(write_pcap(tmp_path / "atomic.pcap", atomic), key_logs(capture))
    assert contents(trace) == contents(decode(capture))
    assert trace.meta.fragments == 0


@pytest.mark.parametrize("offset_and_more", [b"\0\x01", b"\x01\0", b"\0\x08"])
def test_other_fragments_are_told(tmp_path: Path, offset_and_more: bytes) -> None:
    record = _in_ipv6(read(own("quic-go_transfer"))[0], b"\x11\0" + offset_and_more + bytes(4))
    capture = write_pcap(tmp_path / "fragment.pcap", [record])
    trace = decode_capture(capture)
    assert (trace.meta.fragments, trace.meta.skipped_udp) == (1, {"IP fragments": 1})
    shown = CliRunner().invoke(main, ["decode", str(capture)])
    assert shown.exit_code == 0
    assert "1 UDP packet not read: IP fragments." in shown.output


def test_decode_says_what_it_skipped(tmp_path: Path) -> None:
    records = [datagram(START_NS + number, bytes(40), client_port=5000, from_client=True) for number in range(3)]
    capture = write_pcap(tmp_path / "other.pcap", [_ported(record, 7777) for record in records])
    shown = CliRunner().invoke(main, ["decode", str(capture)])
    assert "3 UDP packets not read: no QUIC connection on these addresses and ports." in shown.output
    empty = write_pcap(tmp_path / "empty.pcap", [])
    assert "empty.pcap has no packets: no packet came" in CliRunner().invoke(main, ["decode", str(empty)]).output


def _negotiated(time_ns: int, dcid: bytes) -> list[Record]:
    """A first flight of an unknown version, and the server's Version Negotiation packet."""
    scid = b"client12"
    version = UNKNOWN_VERSION.to_bytes(4)
    first = b"\xc0" + version + bytes((8,)) + dcid + bytes((8,)) + scid + bytes(1200)
    answer = b"\x80" + bytes(4) + bytes((8,)) + scid + bytes((8,)) + dcid + (1).to_bytes(4)
    return [
        datagram(time_ns, first, client_port=50000, from_client=True),
        datagram(time_ns + 1000, answer, client_port=50000, from_client=False),
    ]


def test_a_second_connection_after_version_negotiation(tmp_path: Path) -> None:
    """Both on one 4-tuple, both negotiated: each has its own first version and connection ID."""
    pairs = [Pair().connect().request(2000) for _ in range(2)]
    records = []
    for number, pair in enumerate(pairs):
        begin = number * 10_000_000_000
        records += _negotiated(START_NS + begin - 1_000_000, b"firstcid" if number == 0 else b"othercid")
        records += [replace(record, time_ns=record.time_ns + begin) for record in pair.records]
    trace = decode_pairs(tmp_path, pairs, records)
    rows = trace.connections.to_pylist()
    assert [(row["original_version"], row["odcid"], row["version"]) for row in rows] == [
        (UNKNOWN_VERSION, b"firstcid", 1),
        (UNKNOWN_VERSION, b"othercid", 1),
    ]
    kinds = zip(trace.packets["type"].to_pylist(), trace.packets["connection"].to_pylist(), strict=True)
    assert [connection for kind, connection in kinds if kind == "version_negotiation"] == [0, 1]


def _first_flights(count: int) -> list[Record]:
    """The first flight of as many clients, all from one port."""
    records = []
    for number in range(count):
        pair = Pair()
        pair.client.connect(("193.167.100.100", 443), now=0.0)
        for data, _ in pair.client.datagrams_to_send(now=0.0):
            records.append(datagram(START_NS + number, data, client_port=50000, from_client=True))
    return records


def test_a_connection_costs_the_same_among_many_on_its_4_tuple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts attempts to open a packet, because a busy host changes times."""
    attempts = 0
    opening = Protection.open_long

    def counted(protection: Protection, *arguments: object) -> object:
        nonlocal attempts
        attempts += 1
        return opening(protection, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Protection, "open_long", counted)
    records = _first_flights(120)
    trace = decode_capture(write_pcap(tmp_path / "many.pcap", records))
    assert trace.connections.num_rows == 120
    assert attempts <= 2 * len(records)


def test_a_plain_connection_after_one_with_version_negotiation(tmp_path: Path) -> None:
    pairs = [Pair().connect().request(2000) for _ in range(2)]
    late = [replace(record, time_ns=record.time_ns + 10_000_000_000) for record in pairs[1].records]
    records = [*_negotiated(START_NS - 1_000_000, b"firstcid"), *pairs[0].records, *late]
    rows = decode_pairs(tmp_path, pairs, records).connections.to_pylist()
    assert [row["original_version"] for row in rows] == [UNKNOWN_VERSION, 1]
    assert rows[1]["odcid"] != b"firstcid"
