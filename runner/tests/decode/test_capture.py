"""Every file format and link layer gives the same tables."""

import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.decode import capture
from runner.decode.columns import Trace
from runner.decode.tables import decode_capture
from runner.errors import CaptureError
from runner.tests.decode import rewrite
from runner.tests.decode.rewrite import Interface, Record, read, write_pcap, write_pcapng
from runner.tests.decode.test_oracle_tshark import OWN, key_logs

CAPTURE = OWN / "quic-go_transfer" / "left.pcap"


@pytest.fixture(scope="module")
def whole() -> Trace:
    return decode_capture(CAPTURE, key_logs(CAPTURE))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read(CAPTURE)


def assert_same(trace: Trace, whole: Trace, *, tick_ns: int = 1, addresses: bool = True) -> None:
    assert trace.packets.equals(whole.packets)
    assert trace.stream_frames.drop(["time_ns"]).equals(whole.stream_frames.drop(["time_ns"]))
    assert trace.ack_frames.drop(["time_ns"]).equals(whole.ack_frames.drop(["time_ns"]))
    assert trace.frames.drop(["time_ns"]).equals(whole.frames.drop(["time_ns"]))
    times = [time // tick_ns * tick_ns for time in whole.datagrams["time_ns"].to_pylist()]
    assert trace.datagrams["time_ns"].to_pylist() == times
    names = ["payload_length", "ecn", "src_port", "dst_port", *(["src", "dst", "ip_length"] if addresses else [])]
    assert trace.datagrams.select(names).equals(whole.datagrams.select(names))
    assert trace.meta.non_quic == 0
    assert trace.meta.truncated is False


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_pcap(tmp_path: Path, whole: Trace, records: list[Record], order: str, nanoseconds: bool) -> None:
    path = write_pcap(tmp_path / "a.pcap", records, order=order, nanoseconds=nanoseconds)
    assert_same(decode_capture(path, key_logs(CAPTURE)), whole, tick_ns=1 if nanoseconds else 1000)


LINK_LAYERS: dict[str, tuple[int, Callable[[Record], bytes]]] = {
    "ethernet with VLAN tags": (rewrite.ETHERNET, rewrite.vlan),
    "raw IP": (rewrite.RAW, rewrite.raw_ip),
    "Linux cooked": (rewrite.SLL, rewrite.cooked),
    "Linux cooked v2": (rewrite.SLL2, rewrite.cooked_v2),
    "PPP": (rewrite.PPP, rewrite.ppp),
    "PPP without address and control": (rewrite.PPP, lambda record: bytes.fromhex("0021") + record.ip),
    "PPP with a compressed protocol": (rewrite.PPP, lambda record: bytes.fromhex("21") + record.ip),
    "null": (0, rewrite.loopback),
    "loopback": (rewrite.LOOP, lambda record: bytes.fromhex("00000002") + record.ip),
}


@pytest.mark.parametrize("name", LINK_LAYERS)
def test_link_layer(tmp_path: Path, whole: Trace, records: list[Record], name: str) -> None:
    link_type, dress = LINK_LAYERS[name]
    dressed = [replace(record, frame=dress(record)) for record in records]
    path = write_pcap(tmp_path / "a.pcap", dressed, link_type=link_type)
    assert_same(decode_capture(path, key_logs(CAPTURE)), whole)


def test_ipv6_with_extension_headers(tmp_path: Path, whole: Trace, records: list[Record]) -> None:
    path = write_pcap(tmp_path / "a.pcap", [replace(record, frame=rewrite.ipv6(record)) for record in records])
    trace = decode_capture(path, key_logs(CAPTURE))
    assert_same(trace, whole, addresses=False)
    assert trace.datagrams["ip_length"].to_pylist() == [36 + each for each in whole.datagrams["ip_length"].to_pylist()]
    assert set(trace.datagrams["src"].to_pylist()) == {"fd00::c1a7:64", "fd00::c1a7:6464"}
    assert set(trace.datagrams["ip_version"].to_pylist()) == {6}


def test_ipv4_options(tmp_path: Path, whole: Trace, records: list[Record]) -> None:
    def with_options(frame: bytes) -> bytes:
        ip = bytearray(frame[14:34])
        ip[0] = 0x46
        struct.pack_into(">H", ip, 2, int.from_bytes(ip[2:4]) + 4)
        return frame[:14] + bytes(ip) + bytes(4) + frame[34:]

    path = write_pcap(tmp_path / "a.pcap", [replace(each, frame=with_options(each.frame)) for each in records])
    assert_same(decode_capture(path, key_logs(CAPTURE)), whole, addresses=False)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_secrets_and_several_interfaces(
    tmp_path: Path, whole: Trace, records: list[Record], order: str
) -> None:
    interfaces = [
        Interface(rewrite.ETHERNET, rewrite.ethernet, resolution=9),
        Interface(rewrite.RAW, rewrite.raw_ip, resolution=0x80 | 32),
        Interface(rewrite.SLL2, rewrite.cooked_v2, resolution=9),
    ]
    secrets = b"".join(path.read_bytes() for path in key_logs(CAPTURE))
    path = write_pcapng(tmp_path / "a.pcapng", records, interfaces, order=order, secrets=secrets, drops=3)
    trace = decode_capture(path)
    assert_same(trace, whole)
    assert trace.meta.kernel_drops == 3
    assert trace.meta.link_type == "ETHERNET,RAW,LINUX_SLL2"
    drops = next(each for each in trace.checks if each.name == "kernel_drops")
    assert (drops.holds, drops.actual) == (False, 3)


def test_pcapng_with_microseconds(tmp_path: Path, whole: Trace, records: list[Record]) -> None:
    rounded = [replace(record, time_ns=record.time_ns // 1000 * 1000) for record in records]
    path = write_pcapng(tmp_path / "a.pcapng", rounded, [Interface(rewrite.ETHERNET, rewrite.ethernet, resolution=6)])
    assert_same(decode_capture(path, key_logs(CAPTURE)), whole, tick_ns=1000)


def test_time_stamps_beyond_64_bits_are_the_farthest_time(tmp_path: Path, records: list[Record]) -> None:
    interface = Interface(rewrite.ETHERNET, rewrite.ethernet, resolution=0)  # the unit of time stamps is a second
    late = [replace(record, time_ns=1 << 93) for record in records]
    trace = decode_capture(write_pcapng(tmp_path / "a.pcapng", late, [interface]), key_logs(CAPTURE))
    assert set(trace.datagrams["time_ns"].to_pylist()) == {2**63 - 1}


def test_gzip(tmp_path: Path, whole: Trace) -> None:
    packed = tmp_path / "a.pcap.gz"
    packed.write_bytes(gzip.compress(CAPTURE.read_bytes()))
    assert_same_rows(decode_capture(packed, key_logs(CAPTURE)), whole, whole.packets.num_rows)
    cut = tmp_path / "cut.pcap.gz"
    cut.write_bytes(packed.read_bytes()[:20_000])
    trace = decode_capture(cut, key_logs(CAPTURE))
    assert trace.meta.truncated is True
    assert_same_rows(trace, whole, trace.packets.num_rows)


def assert_same_rows(trace: Trace, whole: Trace, rows: int) -> None:
    assert 10 < trace.packets.num_rows == rows
    assert trace.packets.equals(whole.packets.slice(0, rows))


@pytest.mark.parametrize("pcapng", [False, True])
def test_truncated_file_is_read_to_its_last_whole_record(
    tmp_path: Path, whole: Trace, records: list[Record], pcapng: bool
) -> None:
    path = tmp_path / "a.pcap"
    if pcapng:
        write_pcapng(path, records, [Interface(rewrite.ETHERNET, rewrite.ethernet)])
    else:
        write_pcap(path, records)
    data, lengths = path.read_bytes(), set()
    for size in range(40, len(data), 211):
        path.write_bytes(data[:size])
        trace = decode_capture(path, key_logs(CAPTURE))
        times = trace.datagrams["time_ns"].to_pylist()
        assert times == whole.datagrams["time_ns"].to_pylist()[: len(times)]
        assert trace.meta.truncated is True
        assert next(each for each in trace.checks if each.name == "truncated_capture").holds is False
        lengths.add(len(times))
    assert len(lengths) > len(records) // 2


def test_fragments_are_counted_and_not_reassembled(tmp_path: Path, records: list[Record]) -> None:
    def fragment(record: Record, flags: int) -> Record:
        frame = bytearray(record.frame)
        struct.pack_into(">H", frame, 20, flags)
        return replace(record, frame=bytes(frame))

    changed = [fragment(records[0], 0x2000), fragment(records[1], 0x0010), *records[2:]]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", changed), key_logs(CAPTURE))
    assert trace.meta.fragments == 2
    assert trace.meta.non_quic == 2
    assert trace.datagrams.num_rows == len(records) - 2


def test_other_traffic_is_not_quic(tmp_path: Path, records: list[Record]) -> None:
    def to_port(record: Record, port: int) -> Record:
        frame = bytearray(record.frame)
        struct.pack_into(">HH", frame, 34, port, port)
        return replace(record, frame=bytes(frame))

    names = to_port(records[5].with_payload(b"\x42" * 40), 5353)
    not_long_enough = replace(records[6], frame=records[6].frame[:20])
    tcp = bytearray(records[7].frame)
    tcp[23] = 6
    arp = replace(records[8], frame=records[8].frame[:12] + b"\x08\x06" + bytes(28))
    low_entropy = to_port(records[9].with_payload(b"\x02" * 40), 9999)
    others = [names, not_long_enough, replace(records[7], frame=bytes(tcp)), arp, low_entropy]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", [*records[:4], *others]), key_logs(CAPTURE))
    assert (trace.meta.packets, trace.meta.non_quic, trace.datagrams.num_rows) == (9, 5, 4)


def test_empty_capture(tmp_path: Path) -> None:
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", []))
    assert trace.meta.packets == trace.datagrams.num_rows == trace.frames.num_rows == 0
    assert trace.meta.first_time_ns is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"hello, this is no capture at all", "is no capture: expected a pcap or pcapng file, found 68 65 6c 6c"),
        (b"\xd4\xc3\xb2\xa1", "is a damaged capture: found 4 of the 24 bytes of its header"),
        (b"\n\r\r\n", "found 4 of the 28 bytes of a section header"),
        (struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 7, 1, 0, -1, 28), "found the byte-order mark 07 00 00 00"),
        (struct.pack(">IIIHHqI", 0x0A0D0D0A, 30, 0x1A2B3C4D, 1, 0, -1, 30), "found a section header of 30 B, expected"),
        (b"\r\n\r\r\r\n", "found a pcapng file with changed line ends"),
        (gzip.compress(b"", mtime=0), "found gzip data without content"),
        (gzip.compress(gzip.compress(b"", mtime=0), mtime=0), "found gzip data in gzip data"),
        (b"\x28\xb5\x2f\xfd" + bytes(90), "found data compressed by zstd: decompress it"),
        (b"CLIENT_TRAFFIC_SECRET_0 00 00", "found a key log: give it with --keys"),
        (b'{"qlog_version": "0.3"}', "found JSON, such as qlog"),
        (b"\x1f\x8b\x08\x00garbage", "found gzip data that is cut off or damaged"),
        (
            struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 147) + bytes(15) + b"\x01" + bytes(15),
            "link type 147",
        ),
    ],
)
def test_files_that_are_no_capture(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(content)
    if "link type" in sentence:
        write_pcap(path, [Record(0, b"frame")], link_type=147)
    with pytest.raises(CaptureError, match=sentence):
        decode_capture(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="can't be read"):
        decode_capture(tmp_path / "missing.pcap")
    with pytest.raises(CaptureError, match="can't be read"):
        decode_capture(CAPTURE, [tmp_path / "missing.log"])


def test_a_gzip_bomb_is_unpacked_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "LARGEST_UNPACKED", 1 << 20)
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    path = tmp_path / "bomb.pcap.gz"
    path.write_bytes(gzip.compress(head + bytes(64 << 20)))
    file, _ = capture.open_capture(path)
    assert len(file.data) == 1 << 20
