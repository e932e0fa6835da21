"""Reads and writes Ethernet captures: records with their UDP datagrams (draft-ietf-opsawg-pcap)."""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<IIII")
_ETHERNET = 14


@dataclass(eq=False)
class Record:
    """One captured frame. `head` ends with the UDP header. In a frame without UDP, `head` is the whole frame."""

    time_ns: int
    head: bytes
    payload: bytes | None = None
    tail: bytes = b""

    @property
    def _is_ipv4(self) -> bool:
        return self.head[_ETHERNET] >> 4 == 4

    @property
    def ports(self) -> tuple[int, int]:
        """Source and destination."""
        source, destination = struct.unpack_from(">HH", self.head, len(self.head) - 8)
        return source, destination

    @property
    def addresses(self) -> tuple[bytes, bytes]:
        """Source and destination."""
        at, size = (_ETHERNET + 12, 4) if self._is_ipv4 else (_ETHERNET + 8, 16)
        return self.head[at : at + size], self.head[at + size : at + 2 * size]

    @property
    def source(self) -> tuple[bytes, int]:
        """Address and port."""
        return self.addresses[0], self.ports[0]

    @property
    def destination(self) -> tuple[bytes, int]:
        """Address and port."""
        return self.addresses[1], self.ports[1]

    @property
    def ecn(self) -> int:
        """The two bits of Explicit Congestion Notification."""
        return self.head[_ETHERNET + 1] & 3 if self._is_ipv4 else self.head[_ETHERNET + 1] >> 4 & 3

    def mark(self, ecn: int) -> None:
        """Set the two bits of Explicit Congestion Notification."""
        head = bytearray(self.head)
        if self._is_ipv4:
            head[_ETHERNET + 1] = head[_ETHERNET + 1] & ~3 | ecn
        else:
            head[_ETHERNET + 1] = head[_ETHERNET + 1] & ~0x30 | ecn << 4
        self.head = bytes(head)
        self._finish()

    def readdress(
        self, *, source: tuple[bytes, int] | None = None, destination: tuple[bytes, int] | None = None
    ) -> None:
        """Give the datagram another source or destination, each an address and a port."""
        (source_address, source_port), (address, port) = source or self.source, destination or self.destination
        at = _ETHERNET + (12 if self._is_ipv4 else 8)
        head = bytearray(self.head)
        head[at : at + 2 * len(address)] = source_address + address
        struct.pack_into(">HH", head, len(head) - 8, source_port, port)
        self.head = bytes(head)
        self._finish()

    def carry(self, payload: bytes) -> None:
        """Replace the payload, and correct lengths and checksums."""
        if payload != self.payload:
            self.payload = payload
            self._finish()

    def _finish(self) -> None:
        assert self.payload is not None
        head = bytearray(self.head)
        udp = len(head) - 8
        size = 8 + len(self.payload)
        struct.pack_into(">H", head, udp + 4, size)
        if self._is_ipv4:
            struct.pack_into(">H", head, _ETHERNET + 2, udp - _ETHERNET + size)
            struct.pack_into(">H", head, _ETHERNET + 10, 0)
            struct.pack_into(">H", head, _ETHERNET + 10, _checksum(bytes(head[_ETHERNET:udp])))
        else:
            struct.pack_into(">H", head, _ETHERNET + 4, udp - _ETHERNET - 40 + size)
        struct.pack_into(">H", head, udp + 6, 0)
        source, destination = self.addresses
        pseudo = source + destination + struct.pack(">II", size, 17)
        struct.pack_into(">H", head, udp + 6, _checksum(pseudo + bytes(head[udp:]) + self.payload) or 0xFFFF)
        self.head = bytes(head)

    @property
    def frame(self) -> bytes:
        """The whole frame."""
        return self.head + (self.payload or b"") + self.tail


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def read(path: Path) -> tuple[bytes, list[Record]]:
    """The file header and the records of a pcap file, which may be compressed."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    magic = data[:4]
    if magic not in (b"\x4d\x3c\xb2\xa1", b"\xd4\xc3\xb2\xa1"):
        raise ValueError(f"{path} is no pcap file with little-endian headers; found {magic.hex()}")
    tick = 1 if magic[0] == 0x4D else 1000
    records = []
    position = 24
    while position + 16 <= len(data):
        seconds, fraction, size, _ = _HEADER.unpack_from(data, position)
        position += 16 + size
        records.append(_record(seconds * 1_000_000_000 + fraction * tick, data[position - size : position]))
    return data[:24], records


def _record(time_ns: int, frame: bytes) -> Record:
    udp = 0
    if frame[12:14] == b"\x08\x00" and frame[_ETHERNET + 9] == 17:
        udp = _ETHERNET + (frame[_ETHERNET] & 15) * 4
    elif frame[12:14] == b"\x86\xdd" and frame[_ETHERNET + 6] == 17:
        udp = _ETHERNET + 40
    if not udp:
        return Record(time_ns, frame)
    end = udp + int.from_bytes(frame[udp + 4 : udp + 6])
    return Record(time_ns, frame[: udp + 8], frame[udp + 8 : end], frame[end:])


def write(path: Path, header: bytes, records: list[Record]) -> None:
    """Write a pcap file with these records."""
    tick = 1 if header[0] == 0x4D else 1000
    parts = [header]
    for record in records:
        frame = record.frame
        seconds, rest = divmod(record.time_ns, 1_000_000_000)
        parts.append(_HEADER.pack(seconds, rest // tick, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(parts))


def place(records: list[Record], record: Record) -> None:
    """Insert a record by its time. The other records keep their order, because captures are not strictly in the order
    of time."""
    before = len(records) - next(
        (count for count, each in enumerate(reversed(records)) if each.time_ns <= record.time_ns), len(records)
    )
    records.insert(before, record)
