"""The decoder on captures of strangers: other traffic, link layers, versions and key logs."""

import gzip
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import QuicConnection
from click.testing import CliRunner
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runner.cli.group import main
from runner.decode.columns import Trace
from runner.decode.connection import KeyRing
from runner.decode.decode import describe_capture
from runner.decode.keys import AES_128, LARGEST_KEY_LOG, VERSION_1, Protection, _key_infos
from runner.decode.tables import decode_capture
from runner.decode.wire import FRAME_NAMES, FrameRows, parse_frames
from runner.errors import CaptureError
from runner.tests.decode import rewrite
from runner.tests.decode.decoded import own, undecrypted
from runner.tests.decode.pairs import Pair, datagram
from runner.tests.decode.rewrite import Interface, Record, read, write_pcap, write_pcapng
from runner.tests.decode.test_oracle_tshark import OWN, key_logs

CAPTURE = own("quic-go_transfer")
JOINED = OWN / "quic-go_joined"


def _ported(record: Record, source: int, destination: int) -> Record:
    return replace(record, frame=record.frame[:34] + struct.pack(">HH", source, destination) + record.frame[38:])


def _on_port(record: Record, port: int) -> Record:
    """The same datagram of a server on another port than 443."""
    source, destination = struct.unpack(">HH", record.frame[34:38])
    return _ported(record, *(port if each == 443 else each for each in (source, destination)))


def test_text_in_udp_is_not_quic(tmp_path: Path) -> None:
    records = read(CAPTURE)
    last = records[-1].time_ns
    lines = [datagram(last + at, b"jobs.done:%d|c" % at, client_port=30000, from_client=True) for at in range(20)]
    calls = [
        datagram(last + at, b"OPTIONS sip:a@b SIP/2.0", client_port=5060, from_client=at % 2 == 0) for at in range(9)
    ]
    others = [_on_port(record, 8125) for record in lines] + [_on_port(record, 5060) for record in calls]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", [*records, *others]), key_logs(CAPTURE))
    assert trace.packets.num_rows == decode_capture(CAPTURE, key_logs(CAPTURE)).packets.num_rows
    assert trace.meta.skipped_udp == {"no QUIC connection on these addresses and ports": 29}


@pytest.mark.parametrize("first", [0, 12])
def test_quic_on_any_port_is_read_from_its_middle_too(tmp_path: Path, first: int) -> None:
    records = [_on_port(record, 4444) for record in read(CAPTURE)[first:]]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", records), key_logs(CAPTURE))
    assert (trace.datagrams.num_rows, undecrypted(trace)) == (len(records), [])


def _framed(header: str, *, after: int = 14) -> Callable[[Record], bytes]:
    """Frames with these bytes (hexadecimal) instead of the Ethernet header's EtherType, before the IP packet."""
    return lambda record: record.frame[: after - 2] + bytes.fromhex(header) + record.ip


def _in_ip(version: int, protocol: int, header: str = "") -> Callable[[Record], bytes]:
    """IP packets in another IP packet, with more bytes (hexadecimal) before them."""

    def dress(record: Record) -> bytes:
        inner = bytes.fromhex(header) + record.ip
        if version == 4:
            outer = struct.pack(">BBHHHBBH8x", 0x45, 0, 20 + len(inner), 0, 0, 64, protocol, 0)
            return record.frame[:12] + b"\x08\x00" + outer + inner
        return record.frame[:12] + b"\x86\xdd" + struct.pack(">IHBB32x", 6 << 28, len(inner), protocol, 64) + inner

    return dress


HEADERS = {
    "PPPoE": (1, _framed("8864 1100 0001 0500 0021"), {"PPPoE"}),
    "PPPoE in QinQ": (1, _framed("88a8 0001 8100 0002 8864 1100 0001 0500 0021"), {"VLAN", "PPPoE"}),
    "MPLS": (1, _framed("8847 00010040 00020140"), {"MPLS"}),
    "SNAP": (1, _framed("0100 aaaa03 000000 0800"), {"SNAP"}),
    "GRE": (1, _in_ip(4, 47, "2000 0800 00000007"), {"GRE"}),
    "Ethernet in GRE": (1, _in_ip(4, 47, "0000 6558 000000000000 000000000000 0800"), {"GRE", "Ethernet in a tunnel"}),
    "PPTP": (1, _in_ip(4, 47, "3081 880b 0000 0000 00000001 00000002 ff03 0021"), {"GRE", "PPP in a tunnel"}),
    "IP in IP": (1, _in_ip(4, 4), {"IP in IP"}),
    "IPv4 in IPv6": (1, _in_ip(6, 4), {"IP in IP"}),
    "IPv4 in IPv6 with options": (1, _in_ip(6, 60, "0400 0401040100 00"), {"IP in IP"}),
    "VLAN in cooked": (113, _framed("0000 0000 8100 0001 0800", after=12), {"VLAN"}),
    "PPP on a serial line": (50, lambda record: bytes.fromhex("0f000800") + record.ip, set()),
    "IP without Ethernet": (1, lambda record: record.ip, {"no Ethernet header"}),
    "PPPoE without Ethernet": (51, lambda record: bytes.fromhex("1100 0001 0500 0021") + record.ip, set()),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_before_ip_are_read_and_named(tmp_path: Path, name: str) -> None:
    link_type, dress, headers = HEADERS[name]
    dressed = [replace(record, frame=dress(record)) for record in read(CAPTURE)]
    path = write_pcap(tmp_path / "a.pcap", dressed, link_type=link_type)
    trace = decode_capture(path, key_logs(CAPTURE), foreign=True)
    assert trace.packets.equals(decode_capture(CAPTURE, key_logs(CAPTURE)).packets)
    assert trace.meta.headers.keys() == headers
    assert trace.meta.not_udp == {}


@pytest.mark.parametrize("name", ["PPPoE", "GRE", "IP in IP", "IPv4 in IPv6", "SNAP", "MPLS"])
def test_the_judge_reads_no_tunnel(tmp_path: Path, name: str) -> None:
    """An endpoint could put packets of its peer into a tunnel."""
    records = [replace(record, frame=HEADERS[name][1](record)) for record in read(CAPTURE)]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", records), key_logs(CAPTURE))
    assert trace.datagrams.num_rows == 0
    assert trace.meta.not_udp == {name.replace("v4 in IPv6", " in IP"): len(records)}


def test_endless_headers_are_bounded(tmp_path: Path) -> None:
    ethernet = bytes(12) + b"\x65\x58"
    tags, labels = b"\x81\x00" + b"\0\0\x81\x00" * 10_000, b"\x88\x47" + bytes(60_000)
    frames = [ethernet * 10_000, bytes(12) + tags, bytes(12) + labels]
    path = write_pcap(tmp_path / "a.pcap", [Record(0, frame) for frame in frames])
    assert decode_capture(path, foreign=True).meta.not_udp == {"more than 16 headers before IP": 3}


def test_what_is_no_udp_is_named(tmp_path: Path) -> None:
    record = read(CAPTURE)[0]
    tcp = replace(record, frame=record.frame[:23] + b"\x06" + record.frame[24:])
    arp = replace(record, frame=record.frame[:12] + b"\x08\x06" + bytes(28))
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", [tcp, tcp, arp]), foreign=True)
    assert trace.meta.not_udp == {"TCP": 2, "ARP": 1}
    radio = Interface(105, lambda each: each.frame)
    both = write_pcapng(tmp_path / "b.pcapng", [record] * 4, [Interface(1, lambda each: each.frame), radio])
    assert decode_capture(both).meta.not_udp == {"link type 105, IEEE 802.11 (Wi-Fi)": 2}


def _as_version(record: Record, version: int) -> Record:
    payload = record.payload
    return record.with_payload(payload[:1] + version.to_bytes(4) + payload[5:]) if payload[0] & 0x80 else record


@pytest.mark.parametrize("port", [443, 4444])
@pytest.mark.parametrize(
    ("version", "name"), [(0xFF00001D, "draft-29"), (0xFACEB002, "mvfst"), (0x51303530, "gQUIC Q050")]
)
def test_versions_that_are_not_read_have_a_name(tmp_path: Path, version: int, name: str, port: int) -> None:
    records = [_on_port(_as_version(record, version), port) for record in read(CAPTURE)]
    path = write_pcap(tmp_path / "a.pcap", records)
    for options in ([], [f"--keys={log}" for log in key_logs(CAPTURE)]):
        shown = CliRunner().invoke(main, ["decode", str(path), *options]).output
        assert name in shown
        assert f"(0x{version:08x}), which bentpipe does not read" in shown
        assert "0x00000001" not in shown


def test_a_named_version_needs_no_large_first_datagram(tmp_path: Path) -> None:
    flight = b"\xc3Q050\x08" + bytes(range(8)) + b"\0" + bytes(1100)
    records = [datagram(at, flight, client_port=50000, from_client=True) for at in range(2)]
    (row,) = decode_capture(write_pcap(tmp_path / "a.pcap", records)).connections.to_pylist()
    assert (row["original_version"], row["odcid"]) == (0x51303530, bytes(range(8)))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xff", id="a keep-alive of a NAT"),
        pytest.param(b"\x80\x60" + Random(1).randbytes(160), id="RTP"),
        pytest.param(b"\x80\xc8" + Random(2).randbytes(48), id="RTCP"),
    ],
)
def test_what_only_begins_like_a_long_header_is_no_packet(tmp_path: Path, payload: bytes) -> None:
    records = read(CAPTURE)
    mixed = [each for record in records for each in (record, record.with_payload(payload))]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", mixed), key_logs(CAPTURE))
    assert trace.packets.num_rows == decode_capture(CAPTURE, key_logs(CAPTURE)).packets.num_rows
    why = "without a connection ID of the QUIC connections on these addresses and ports"
    assert trace.meta.skipped_udp == {why: len(records)}


def test_gquic_without_long_headers_is_named(tmp_path: Path) -> None:
    flight = b"\x0d" + bytes(8) + b"Q043" + bytes(1300)
    records = [datagram(at, flight, client_port=50000, from_client=True) for at in range(2)]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", records))
    assert trace.meta.skipped_udp == {"gQUIC Q043, which came before QUIC": 2}


@pytest.mark.parametrize("size", [70, 96, 200])
def test_a_snapped_capture_shows_its_connection(tmp_path: Path, size: int) -> None:
    records = [replace(each, frame=each.frame[:size], wire_length=len(each.frame)) for each in read(CAPTURE)]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", records))
    whole = decode_capture(CAPTURE).connections.to_pylist()[0]
    (row,) = trace.connections.to_pylist()
    for name in ("version", "odcid", "client_ip", "client_port", "server_port"):
        assert row[name] == whole[name], name
    assert set(trace.packets["connection"].to_pylist()) == {0}


@pytest.mark.parametrize("first", [0x4A, 0x00, 0x9C, 0xFF])
def test_junk_behind_long_headers_is_no_packet(tmp_path: Path, first: int) -> None:
    junk = bytes((first,)) + Random(first).randbytes(60)
    records = read(own("aioquic_transfer"))
    changed = [each.with_payload(each.payload + junk) if at == 0 else each for at, each in enumerate(records)]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", changed), key_logs(own("aioquic_transfer")))
    assert undecrypted(trace) == []
    assert trace.packets.num_rows == decode_capture(own("aioquic_transfer")).packets.num_rows
    assert trace.meta.remarks == [
        "Bytes behind the last packet of 1 datagram are no packet, and receivers ignore them (RFC 9000 §12.2)."
    ]


def _with_key_log(tmp_path: Path, content: bytes) -> Trace:
    path = tmp_path / "keys.log"
    path.write_bytes(content)
    return decode_capture(CAPTURE, [path], foreign=True)


def test_key_logs_of_any_size_and_encoding_are_read(tmp_path: Path) -> None:
    secrets = b"".join(path.read_bytes() for path in key_logs(CAPTURE))
    filler = b"".join(b"CLIENT_TRAFFIC_SECRET_0 %064x %064x\n" % (at, at) for at in range(9000))
    assert len(filler) > LARGEST_KEY_LOG
    assert undecrypted(_with_key_log(tmp_path, filler + secrets)) == []
    assert undecrypted(_with_key_log(tmp_path, b"\xef\xbb\xbf" + secrets)) == []
    assert undecrypted(_with_key_log(tmp_path, secrets.replace(b"\n", b"\n" + bytes(40), 1))) == []
    assert undecrypted(_with_key_log(tmp_path, b"DEBUG rustls: " + secrets.replace(b"\n", b"\n10:59 "))) == []
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        trace = _with_key_log(tmp_path, secrets.decode().encode(encoding))
        assert undecrypted(trace) == []
        assert trace.meta.remarks == ["keys.log is UTF-16 text, as PowerShell writes it; it was read as such."]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "The key log keys.log is empty."),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "The key log keys.log has no usable line."),
        (b"CLIENT_RANDOM " + b"aa" * 32 + b" " + b"bb" * 48, "The key log keys.log has only secrets of TLS 1.2"),
        (
            b"CLIENT_TRAFFIC_SECRET_0 " + b"aa" * 32 + b" " + b"bb" * 32,
            "The key log keys.log has secrets of 1 session, but none of a connection in this capture.",
        ),
    ],
)
def test_a_key_log_that_does_not_help_gets_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    assert any(remark.startswith(sentence) for remark in _with_key_log(tmp_path, content).meta.remarks)


def test_missing_secrets_are_named(tmp_path: Path) -> None:
    lines = b"".join(path.read_bytes() for path in key_logs(CAPTURE)).splitlines(keepends=True)
    trace = _with_key_log(tmp_path, b"".join(line for line in lines if line.startswith(b"CLIENT_")))
    assert "SERVER_HANDSHAKE_TRAFFIC_SECRET, SERVER_TRAFFIC_SECRET_0." in trace.meta.remarks[0]


def test_loss_bits_are_not_protected() -> None:
    """draft-ferrieuxhamchaoui-quic-lossbits: the mask covers three bits of the first byte instead of five."""
    secret, number, cid = bytes(range(32)), 7, b"12345678"
    protection = Protection(AES_128, VERSION_1, secret)
    key, _, _ = AES_128.hash.hmacs(secret, _key_infos(VERSION_1, AES_128.key_length))
    header = bytes((0x58,)) + cid + bytes((number,))  # Q and L are set
    sealed = AESGCM(key[:16]).encrypt((protection.iv ^ number).to_bytes(12), b"\x01" + bytes(40), header)
    mask = protection.mask(sealed[3:19])
    packet = bytes((header[0] ^ mask[0] & 0x07,)) + cid + bytes((number ^ mask[1],)) + sealed
    ring = KeyRing(protection)
    assert (ring.open(packet, 0, 9, len(packet), number - 1) is None) == bool(mask[0] & 0x18)
    opened = ring.with_loss_bits().open(packet, 0, 9, len(packet), number - 1)
    assert opened is not None
    assert opened[:2] == (number, b"\x01" + bytes(40))


def test_immediate_ack_has_two_numbers() -> None:
    for encoded in (b"\x1f", b"\x40\xac"):
        rows = FrameRows()
        parse_frames(encoded + b"\x01", 0, 2, rows)
        rows.settle()
        assert [FRAME_NAMES[kind] for kind in rows.others.column("type").tolist()] == ["immediate_ack", "ping"]


@pytest.mark.parametrize("width", ["80", "40"])
def test_decode_cuts_no_text(width: str) -> None:
    shown = CliRunner(env={"COLUMNS": width}).invoke(main, ["decode", str(CAPTURE)]).output
    row = decode_capture(CAPTURE).connections.to_pylist()[0]
    assert "…" not in shown
    assert f"{row['client_ip']}:{row['client_port']} → {row['server_ip']}:{row['server_port']}" in shown
    assert row["odcid"].hex() in shown


def _shown(tmp_path: Path, content: list[Record] | bytes, *options: str) -> str:
    path = tmp_path / "a.pcap"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_pcap(path, content)
    return CliRunner().invoke(main, ["decode", str(path), *options]).output


def _from(*, client: bool) -> list[Record]:
    return [record for record in read(CAPTURE) if record.from_client() == client]


_UNKNOWN = b"\xc0" + 0x10010000.to_bytes(4) + b"\x01\0\0" + bytes(40)
_WITHOUT_KEYS = "Without a key log"


@pytest.mark.parametrize(
    ("records", "sentence", "never"),
    [
        (_from(client=True), "The capture has no packet of the server of 1 connection", "of the client"),
        (read(CAPTURE)[12:], "The capture has no handshake of these packets", _WITHOUT_KEYS),
        ([_as_version(each, 0x51303530) for each in read(CAPTURE)], "QUIC: gQUIC Q050", _WITHOUT_KEYS),
        ([_as_version(each, 0xFF00001D) for each in read(CAPTURE)], _WITHOUT_KEYS, "no handshake"),
        (
            [replace(read(CAPTURE)[0].with_payload(_UNKNOWN), wire_length=-1)],
            "1 packet of an unknown QUIC version: 0x10010000.",
            _WITHOUT_KEYS,
        ),
        ([replace(each, frame=each.frame[:96]) for each in read(CAPTURE)[:1]], "1 record cut off", "within a record"),
        ([each for each in read(CAPTURE)[:2] for _ in range(2)], "2 packets repeated in the capture", "step back"),
        (
            [read(CAPTURE)[0].with_payload(bytes(1600))],
            "(GSO, GRO), or the link has a larger MTU: record 1.",
            "repeated",
        ),
        (
            [replace(each, time_ns=each.time_ns - 10**10 * (at > 5)) for at, each in enumerate(read(CAPTURE))],
            "Times step back by up to 10.0 s",
            "repeated",
        ),
        (CAPTURE.read_bytes()[:-5], "The file ends within a record", "cut off"),
    ],
)
def test_sentences_about_incomplete_captures(
    tmp_path: Path, records: list[Record] | bytes, sentence: str, never: str
) -> None:
    shown = _shown(tmp_path, records)
    assert sentence in shown
    assert never not in shown


def test_datagrams_that_offload_joined_are_divided_where_nobody_can_have_forged_them() -> None:
    capture, key_log = JOINED / "server.pcapng", JOINED / "client.keys.log"
    document = describe_capture(capture, [key_log], details=False)
    assert (document["undecrypted_by_type"], document["stream_bytes"]) == ({"unknown": 1}, 23 + 1024)
    (said,) = document["remarks"]
    assert re.fullmatch(
        r"Several datagrams in one record, .* \(GSO, GRO\): record 12\. .* tx-udp-segmentation off .*", said
    )
    assert undecrypted(decode_capture(capture, [key_log])) == ["unknown", "1rtt"]


_SECTION, _DESCRIPTION = 28, 32  # bytes of the first two blocks of the pcapng files of `write_pcapng`
_NOT_DESCRIBED = "packets not read: no Interface Description Block before describes the interface"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda file: file[:_SECTION] + file[_SECTION + _DESCRIPTION :],
            rf"Nothing in .* can be read. 32 {_NOT_DESCRIBED}",
        ),
        (lambda file: file + file[:_SECTION] + file[_SECTION + _DESCRIPTION :], f"^32 {_NOT_DESCRIBED}"),
        (lambda file: file + file[:8] + bytes(4) + file[12:], "found the byte-order mark 00 00 00 00 in a section"),
        (lambda file: file[:-200] + bytes(200), "^The file is damaged at byte [0-9]+ of [0-9]+: found a block of 0 B"),
        (lambda file: file + CAPTURE.read_bytes(), "join files with mergecap, not with cat"),
        (lambda file: CAPTURE.read_bytes() + file, "found a record of 439041101 B, expected at most 262144"),
        (
            lambda file: gzip.compress(file)[:-8] + bytes(8),
            "^The gzip data is cut off or damaged. The rest was not read",
        ),
        (lambda file: gzip.compress(file)[:-9], "^The gzip data is cut off or damaged. The rest was not read"),
        (lambda file: file[:80] + b"\xff" + file[81:], "^1 packet not read: a packet is longer than its block"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str) -> None:
    """The records before the damage are read. A file without a readable record is an error."""
    path = write_pcapng(tmp_path / "a.pcapng", read(CAPTURE), [Interface(rewrite.ETHERNET, rewrite.ethernet)])
    path.write_bytes(damage(path.read_bytes()))
    try:
        (said,) = describe_capture(path, details=False)["remarks"]
    except CaptureError as error:
        said = str(error)
    assert re.search(sentence, said), said


def test_only_the_server_was_captured(tmp_path: Path) -> None:
    shown = _shown(tmp_path, _from(client=False), *(f"--keys={log}" for log in key_logs(CAPTURE)))
    assert "The capture has no packet of the client of 1 connection: one direction was not captured." in shown


def test_listed_versions_are_shown(tmp_path: Path) -> None:
    first = _as_version(read(CAPTURE)[0], 0x0A0A0A0A)
    header = first.payload
    dcid, scid = header[6 : 6 + header[5]], header[7 + header[5] : 7 + header[5] + header[6 + header[5]]]
    ids = bytes((len(scid),)) + scid + bytes((len(dcid),)) + dcid
    answer = next(iter(_from(client=False))).with_payload(b"\x80" + bytes(4) + ids + bytes.fromhex("00000001ff00001d"))
    shown = _shown(tmp_path, [first, answer])
    assert "Version Negotiation lists 1 (0x00000001), draft-29 (0xff00001d)" in shown
    assert "undecrypted    1 (unknown 1)" in shown


@pytest.mark.parametrize("number", [0x3E, 0x0F739BBC1B666D11])
def test_multipath_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    usual = QuicConnection._serialize_transport_parameters
    added = encode_uint_var(number) + b"\x01\x02"
    monkeypatch.setattr(QuicConnection, "_serialize_transport_parameters", lambda end: usual(end) + added)
    pair = Pair().connect()
    (tmp_path / "keys").write_bytes(pair.key_log)
    shown = _shown(tmp_path, pair.records, f"--keys={tmp_path / 'keys'}")
    assert "1 connection with multipath, which bentpipe does not read" in shown
