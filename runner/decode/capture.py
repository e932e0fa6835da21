"""Capture files: pcap (µs and ns, both byte orders) and pcapng, plain or gzipped, as records with their link type.

Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. A file that ends within a record yields all whole ones.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import CaptureError

# No capture tool writes longer records (libpcap's MAXIMUM_SNAPLEN); a longer one means that the file is damaged there.
MAX_RECORD = 262_144
LARGEST_UNPACKED = 1 << 30  # bytes of a capture in a gzip file; the runner's own have no more

# A damaged time stamp or resolution can mean any time; the tables hold 64 bits.
_FARTHEST_NS = (1 << 63) - 1

PCAP_MAGIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _STATISTICS, _ENHANCED_PACKET, _SECRETS = 1, 2, 3, 5, 6, 10
TLS_KEY_LOG = 0x544C534B

Record = tuple[int, int, int, int, int]
"""time_ns, link type, first byte of the frame in the file, first byte after it, length on the wire"""


@dataclass(slots=True)
class CaptureFile:
    """One capture file in memory. The later fields are complete once `records` is exhausted."""

    data: bytes
    read: Callable[["CaptureFile"], Iterator[Record]]
    secrets: list[bytes] = field(default_factory=list)
    """Key logs embedded in a pcapng file."""
    truncated: bool = False
    kernel_drops: int | None = None

    def records(self) -> Iterator[Record]:
        """The whole records in file order."""
        return self.read(self)


@dataclass(slots=True)
class _Interface:
    link_type: int
    ticks_per_second: int = 1_000_000
    offset_s: int = 0
    snap_length: int = 0

    def time_ns(self, ticks: int) -> int:
        time_ns = ticks * 1_000_000_000 // self.ticks_per_second + self.offset_s * 1_000_000_000
        return max(-_FARTHEST_NS, min(time_ns, _FARTHEST_NS))


def open_capture(path: Path) -> tuple[CaptureFile, bytes]:
    """The capture at `path` and the bytes of the file as stored. CaptureError when it is none."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise CaptureError(
            f"{path} can't be read ({error.strerror}): give the path of a pcap or pcapng file."
        ) from error
    return capture_of(stored, path), stored


def capture_of(stored: bytes, path: Path) -> CaptureFile:
    """The capture in the bytes of the file at `path`. CaptureError when it is none."""
    if not stored:
        raise CaptureError(f"{path} is empty: the capture was never started, or stopped before it wrote its header.")
    data = _gunzip(stored) if stored[:2] == b"\x1f\x8b" else stored
    magic = data[:4]
    if magic in PCAP_MAGIC and len(data) >= 24:
        return CaptureFile(data, _pcap_records)
    if magic == _PCAPNG_MAGIC and len(data) >= 12 and data[8:12] in (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"):
        return CaptureFile(data, _pcapng_records)
    raise CaptureError(f"{path} is no capture: expected a pcap or pcapng file, found {data[:4].hex(' ') or 'nothing'}.")


def _gunzip(stored: bytes) -> bytes:
    """What can be unpacked of a gzip file, which may be cut off; LARGEST_UNPACKED bytes at most."""
    unpacked = bytearray()
    while stored and len(unpacked) < LARGEST_UNPACKED:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            unpacked += unpacker.decompress(stored, LARGEST_UNPACKED - len(unpacked))
        except zlib.error:
            break
        stored = unpacker.unused_data if unpacker.eof else b""
    return bytes(unpacked)


def _pcap_records(file: CaptureFile) -> Iterator[Record]:
    data = file.data
    order, tick_ns = PCAP_MAGIC[data[:4]]
    link_type = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF  # above: FCS length, draft-ietf-opsawg-pcap §4
    header = struct.Struct(order + "IIII").unpack_from
    position, size = 24, len(data)
    while position + 16 <= size:
        seconds, fraction, captured, length = header(data, position)
        start = position + 16
        position = start + captured
        if captured > MAX_RECORD or position > size:
            file.truncated = True
            return
        yield seconds * 1_000_000_000 + fraction * tick_ns, link_type, start, position, length
    file.truncated = position != size


def _pcapng_records(file: CaptureFile) -> Iterator[Record]:
    data, position, size = file.data, 0, len(file.data)
    section = _Section(data)
    while position + 12 <= size:
        if data[position : position + 4] == _PCAPNG_MAGIC:
            section = _Section(data, "<" if data[position + 8 : position + 12] == b"\x4d\x3c\x2b\x1a" else ">")
        kind, length = struct.unpack_from(section.order + "II", data, position)
        end = position + length
        if length < 12 or length % 4 or end > size:
            break
        body, stop = position + 8, end - 4
        if kind in (_ENHANCED_PACKET, _OLD_PACKET, _SIMPLE_PACKET):
            record = section.packet(kind, body, stop)
            if record is not None:
                yield record
        elif kind == _INTERFACE and stop - body >= 8:
            section.add_interface(body, stop)
        elif kind == _SECRETS and stop - body >= 8:
            secret_type, secret_length = struct.unpack_from(section.order + "II", data, body)
            if secret_type == TLS_KEY_LOG:
                file.secrets.append(data[body + 8 : min(body + 8 + secret_length, stop)])
        elif kind == _STATISTICS:
            for code, value in section.options(body + 12, stop):
                if code in (5, 7) and len(value) == 8:  # isb_ifdrop, isb_osdrop
                    file.kernel_drops = (file.kernel_drops or 0) + struct.unpack(section.order + "Q", value)[0]
        position = end
    file.truncated = position != size


@dataclass(slots=True)
class _Section:
    """One section of a pcapng file: its byte order and interfaces."""

    data: bytes
    order: str = "<"
    interfaces: list[_Interface] = field(default_factory=list)

    def packet(self, kind: int, body: int, stop: int) -> Record | None:
        """The record in one packet block; None when it is damaged or its interface was not described."""
        if kind == _SIMPLE_PACKET:
            if stop - body < 4 or not self.interfaces:
                return None
            length = struct.unpack_from(self.order + "I", self.data, body)[0]
            captured = min(length, self.interfaces[0].snap_length or length)
            number, ticks, start = 0, 0, body + 4
        elif stop - body < 20:
            return None
        else:
            first, high, low, captured, length = struct.unpack_from(self.order + "IIIII", self.data, body)
            # The obsolete Packet Block has 16 bits of interface and 16 of drop count.
            number = first if kind == _ENHANCED_PACKET else first >> 16 if self.order == ">" else first & 0xFFFF
            ticks, start = high << 32 | low, body + 20
        if number >= len(self.interfaces) or start + captured > stop:
            return None
        interface = self.interfaces[number]
        return interface.time_ns(ticks), interface.link_type, start, start + captured, length

    def add_interface(self, body: int, stop: int) -> None:
        """Read an Interface Description Block."""
        link_type, _, snap_length = struct.unpack_from(self.order + "HHI", self.data, body)
        interface = _Interface(link_type, snap_length=snap_length)
        for code, value in self.options(body + 8, stop):
            if code == 9 and value:  # if_tsresol: a negative power of 10, or of 2 when the top bit is set
                exponent = value[0] & 0x7F
                interface.ticks_per_second = 2**exponent if value[0] & 0x80 else 10**exponent
            elif code == 14 and len(value) == 8:  # if_tsoffset
                interface.offset_s = struct.unpack(self.order + "q", value)[0]
        self.interfaces.append(interface)

    def options(self, position: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Code and value of the options in data[position:stop]."""
        while position + 4 <= stop:
            code, length = struct.unpack_from(self.order + "HH", self.data, position)
            if code == 0:
                return
            yield code, self.data[position + 4 : min(position + 4 + length, stop)]
            position += 4 + (length + 3 & ~3)
