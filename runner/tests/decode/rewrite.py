"""Rewrites real recordings: with other file formats, link layers and addresses, or with packets left out or changed."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.decode.capture import open_capture

ETHERNET, PPP, RAW, LOOP, SLL, SLL2 = 1, 9, 101, 108, 113, 276
_ETHERNET_HEADER = 14


@dataclass(frozen=True)
class Record:
    """One captured frame. `wire_length` is larger than the length of `frame` when the capture cut the frame."""

    time_ns: int
    frame: bytes
    wire_length: int = -1

    @property
    def ip(self) -> bytes:
        return self.frame[_ETHERNET_HEADER:]

    @property
    def payload(self) -> bytes:
        """The payload of the UDP datagram in an Ethernet frame with an IPv4 header without options."""
        return self.frame[_ETHERNET_HEADER + 28 :]

    def with_payload(self, payload: bytes) -> "Record":
        head = bytearray(self.frame[: _ETHERNET_HEADER + 28])
        struct.pack_into(">H", head, _ETHERNET_HEADER + 2, 28 + len(payload))
        struct.pack_into(">H", head, _ETHERNET_HEADER + 24, 8 + len(payload))
        return replace(self, frame=bytes(head) + payload)

    def with_client(self, client_port: int, server_port: int = 443) -> "Record":
        """The same datagram from, or to, another client port, as after a NAT rebinding."""
        frame = bytearray(self.frame)
        at = _ETHERNET_HEADER + (22 if self.from_client(server_port) is False else 20)
        struct.pack_into(">H", frame, at, client_port)
        return replace(self, frame=bytes(frame))

    def from_client(self, server_port: int = 443) -> bool:
        return int.from_bytes(self.frame[_ETHERNET_HEADER + 22 : _ETHERNET_HEADER + 24]) == server_port


def read(path: Path) -> list[Record]:
    """The UDP datagrams of an Ethernet capture."""
    file, _ = open_capture(path)
    records = [Record(time, file.data[start:end], wire) for time, _, start, end, wire in file.records()]
    return [record for record in records if record.frame[_ETHERNET_HEADER + 9] == 17]


def write_pcap(
    path: Path, records: Sequence[Record], *, link_type: int = ETHERNET, order: str = "<", nanoseconds: bool = True
) -> Path:
    """A pcap file."""
    tick = 1 if nanoseconds else 1000
    parts = [struct.pack(order + "IHHiIII", 0xA1B23C4D if nanoseconds else 0xA1B2C3D4, 2, 4, 0, 0, 262144, link_type)]
    for record in records:
        seconds, rest = divmod(record.time_ns, 1_000_000_000)
        wire = max(record.wire_length, len(record.frame))
        parts.append(struct.pack(order + "IIII", seconds, rest // tick, len(record.frame), wire) + record.frame)
    path.write_bytes(b"".join(parts))
    return path


@dataclass(frozen=True)
class Interface:
    """An interface of a pcapng file: its link type, the form of its frames, and its clock."""

    link_type: int
    dress: Callable[[Record], bytes]
    resolution: int = 9
    """if_tsresol: the negative exponent of 10; with 0x80 added, of 2."""

    def ticks(self, time_ns: int) -> int:
        per_second: int = 2 ** (self.resolution & 0x7F) if self.resolution & 0x80 else 10**self.resolution
        return -(-time_ns * per_second // 1_000_000_000)


def write_pcapng(
    path: Path,
    records: Sequence[Record],
    interfaces: Sequence[Interface],
    *,
    order: str = "<",
    secrets: bytes = b"",
    drops: int | None = None,
) -> Path:
    """A pcapng file in which the records take turns on the interfaces."""
    blocks = [_block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))]
    for interface in interfaces:
        body = struct.pack(order + "HHI", interface.link_type, 0, 262144)
        body += struct.pack(order + "HHB3x", 9, 1, interface.resolution) + struct.pack(order + "HH", 0, 0)
        blocks.append(_block(order, 1, body))
    if secrets:
        blocks.append(_block(order, 10, struct.pack(order + "II", 0x544C534B, len(secrets)) + secrets))
    for number, record in enumerate(records):
        interface = interfaces[number % len(interfaces)]
        ticks, frame = interface.ticks(record.time_ns), interface.dress(record)
        head = (number % len(interfaces), ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
        blocks.append(_block(order, 6, struct.pack(order + "IIIII", *head) + frame))
    if drops is not None:
        body = struct.pack(order + "III", 0, 0, 0) + struct.pack(order + "HHQ", 7, 8, drops)
        blocks.append(_block(order, 5, body + struct.pack(order + "HH", 0, 0)))
    path.write_bytes(b"".join(blocks))
    return path


def _block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def ethernet(record: Record) -> bytes:
    return record.frame


def raw_ip(record: Record) -> bytes:
    return record.ip


def vlan(record: Record) -> bytes:
    """The frame with two VLAN tags (IEEE 802.1ad)."""
    return record.frame[:12] + bytes.fromhex("88a8000a81000014") + record.frame[12:]


def cooked(record: Record) -> bytes:
    """Linux cooked capture (LINKTYPE_LINUX_SLL)."""
    return bytes.fromhex("0000 0001 0006 0242ac110002 0000 0800") + record.ip


def cooked_v2(record: Record) -> bytes:
    """LINKTYPE_LINUX_SLL2."""
    return bytes.fromhex("0800 0000 00000002 0001 00 06 0242ac1100020000") + record.ip


def ppp(record: Record) -> bytes:
    return bytes.fromhex("ff030021") + record.ip


def loopback(record: Record) -> bytes:
    """LINKTYPE_NULL of a little-endian host, AF_INET."""
    return bytes.fromhex("02000000") + record.ip


def ipv6(record: Record) -> bytes:
    """The same UDP datagram in IPv6 with a hop-by-hop and a destination options header (8 bytes each)."""
    udp = record.frame[_ETHERNET_HEADER + 20 :]
    extensions = bytes.fromhex("3c00 010400000000") + bytes.fromhex("1100 010400000000")
    traffic_class = record.frame[_ETHERNET_HEADER + 1]
    head = struct.pack(">IHBB", 6 << 28 | traffic_class << 20, len(extensions) + len(udp), 0, 64)
    addresses = b"".join(
        bytes.fromhex("fd00") + bytes(10) + record.frame[_ETHERNET_HEADER + at : _ETHERNET_HEADER + at + 4]
        for at in (12, 16)
    )
    return record.frame[:12] + b"\x86\xdd" + head + addresses + extensions + udp
