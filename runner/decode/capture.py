"""Reads records from capture files: pcap (µs and ns, both byte orders) and pcapng, plain or gzipped.

Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. When a file ends within a record, all records before it are
read.
"""

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runner.decode.columns import Integers
from runner.decode.file_bytes import Data, NumbersAt, file_bytes, release
from runner.errors import CaptureError

# No capture tool writes longer records (libpcap's MAXIMUM_SNAPLEN); a longer record means that the file is damaged.
MAX_RECORD = 262_144
LARGEST_UNPACKED = 1 << 30  # bytes of an unpacked gzip file; the captures of the runner are not larger
_PIECE = 1 << 24  # bytes; after each piece, the memory of the file is released
_ROWS = 1 << 13  # records whose headers are read at once

# A damaged time stamp or resolution can give any time, but times in tables have 64 bits.
_FARTHEST_NS = (1 << 63) - 1
_FAR_S = 1 << 31
_LOW_BITS = (1 << 31) - 1

PCAP_MAGIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
_SECTION = 0x0A0D0D0A  # the same number in both byte orders
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _STATISTICS, _ENHANCED_PACKET, _SECRETS = 1, 2, 3, 5, 6, 10
TLS_KEY_LOG = 0x544C534B

Record = tuple[int, int, int, int, int]
"""time_ns, link type, first byte of the frame in the file, first byte after it, length on the wire"""


class Records(NamedTuple):
    """All records in file order, as columns with the fields of `Record`."""

    time_ns: Integers
    link_type: Integers
    start: Integers
    end: Integers
    wire_length: Integers

    @classmethod
    def of(cls, records: list[Record]) -> "Records":
        """The columns of a list of records."""
        return cls(*np.array(records, dtype=np.int64).reshape(-1, len(cls._fields)).T)


@dataclass(slots=True)
class CaptureFile:
    """One capture file in memory. The fields after `read` are complete when `read` was called."""

    data: Data
    read: Callable[["CaptureFile"], Records]
    """Function that reads all complete records."""
    secrets: list[bytes] = field(default_factory=list)
    """Key logs embedded in a pcapng file."""
    truncated: bool = False
    kernel_drops: int | None = None

    def records(self) -> Iterator[Record]:
        """The whole records in file order."""
        return zip(*(column.tolist() for column in self.read(self)), strict=True)


@dataclass(slots=True)
class _Interface:
    link_type: int
    ticks_per_second: int = 1_000_000
    offset_s: int = 0
    snap_length: int = 0

    @property
    def ns_per_tick(self) -> int:
        """Nanoseconds per tick; 0 when this number is not whole."""
        return 0 if 1_000_000_000 % self.ticks_per_second else 1_000_000_000 // self.ticks_per_second

    def time_ns(self, ticks: int) -> int:
        time_ns = ticks * 1_000_000_000 // self.ticks_per_second + self.offset_s * 1_000_000_000
        return max(-_FARTHEST_NS, min(time_ns, _FARTHEST_NS))


def open_capture(path: Path) -> tuple[CaptureFile, Data]:
    """The capture at `path`, and the stored bytes of the file. Raises CaptureError when the file can't be read or is no
    capture."""
    try:
        stored = file_bytes(path)
    except OSError as error:
        raise CaptureError(
            f"{path} can't be read ({error.strerror}): give the path of a pcap or pcapng file."
        ) from error
    return capture_of(stored, path), stored


def capture_of(stored: Data, path: Path) -> CaptureFile:
    """The capture in `stored`, the bytes of the file at `path`. Raises CaptureError when they are no capture."""
    if not stored:
        raise CaptureError(f"{path} is empty: the capture was never started, or stopped before it wrote its header.")
    data = _gunzip(stored) if stored[:2] == b"\x1f\x8b" else stored
    magic = data[:4]
    if magic in PCAP_MAGIC and len(data) >= 24:
        return CaptureFile(data, _pcap_records)
    if magic == _PCAPNG_MAGIC and len(data) >= 12 and data[8:12] in (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"):
        return CaptureFile(data, _pcapng_records)
    raise CaptureError(f"{path} is no capture: expected a pcap or pcapng file, found {data[:4].hex(' ') or 'nothing'}.")


def _gunzip(stored: Data) -> bytes:
    """The unpacked content of a gzip file, at most LARGEST_UNPACKED bytes. The file may be cut off or damaged."""
    unpacked = bytearray()
    while stored and len(unpacked) < LARGEST_UNPACKED:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            unpacked += unpacker.decompress(stored, LARGEST_UNPACKED - len(unpacked))
        except zlib.error:
            break
        stored = unpacker.unused_data if unpacker.eof else b""
    return bytes(unpacked)


def _pcap_records(file: CaptureFile) -> Records:
    data = file.data
    order, tick_ns = PCAP_MAGIC[data[:4]]
    link_type = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF  # upper bits: FCS length, pcap draft §4
    captured_at = struct.Struct(order + "I").unpack_from
    headers = array("q")
    position, size, piece = 24, len(data), _PIECE
    while position + 16 <= size:
        after = position + 16 + captured_at(data, position + 8)[0]
        if after > size or after - position > 16 + MAX_RECORD:
            file.truncated = True
            break
        headers.append(position)
        position = after
        if position > piece:
            piece = position + _PIECE
            release(data)
    else:
        file.truncated = position != size
    places = np.frombuffer(headers, dtype=np.int64)
    seconds, fraction, captured, length = _words(data, places, order, 4)
    start = places + 16
    link_types = np.full(len(places), link_type, dtype=np.int64)
    return Records(seconds * 1_000_000_000 + fraction * tick_ns, link_types, start, start + captured, length)


def _words(data: Data, places: Integers, order: str, count: int) -> list[Integers]:
    """`count` columns of unsigned 32-bit numbers: the words that begin at each place. They must lie within the file."""
    numbers_at, pieces = NumbersAt(data), []
    for at in range(0, len(places), _ROWS):
        rows = numbers_at.rows(places[at : at + _ROWS], 4 * count)
        pieces.append(rows.view(f"{order}u4").astype(np.int64))
        release(data)
    words = np.concatenate(pieces) if pieces else np.empty((0, count), dtype=np.int64)
    return list(words.T)


def _pcapng_records(file: CaptureFile) -> Records:
    data, position, size, piece = file.data, 0, len(file.data), _PIECE
    section = _Section(data)
    sections = [section]
    head_at = struct.Struct("<II").unpack_from
    while position + 12 <= size:
        kind, length = head_at(data, position)
        if kind == _SECTION:
            section = _Section(data, "<" if data[position + 8 : position + 12] == b"\x4d\x3c\x2b\x1a" else ">")
            sections.append(section)
            head_at = struct.Struct(section.order + "II").unpack_from
            kind, length = head_at(data, position)
        end = position + length
        if length < 12 or length % 4 or end > size:
            break
        body, stop = position + 8, end - 4
        if kind in (_ENHANCED_PACKET, _OLD_PACKET, _SIMPLE_PACKET):
            section.packets.extend((kind, len(section.interfaces), body, stop))
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
        if position > piece:
            piece = position + _PIECE
            release(data)
    file.truncated = position != size
    parts = [section.records() for section in sections if section.packets]
    return Records(*map(np.concatenate, zip(*parts, strict=True))) if parts else Records.of([])


@dataclass(slots=True)
class _Section:
    """One section of a pcapng file: its byte order, interfaces and packet blocks."""

    data: Data
    order: str = "<"
    interfaces: list[_Interface] = field(default_factory=list)
    packets: "array[int]" = field(default_factory=lambda: array("q"))
    """Four numbers for each packet block: kind, number of interfaces described before it, first byte of its body, first
    byte after its body."""

    def records(self) -> Records:
        """The records in the packet blocks. Damaged blocks and blocks of undescribed interfaces are left out."""
        kind, described, body, stop = np.frombuffer(self.packets, dtype=np.int64).reshape(-1, 4).T
        simple, old = kind == _SIMPLE_PACKET, kind == _OLD_PACKET
        whole = (stop - body >= np.where(simple, 4, 20)) & (described > 0)
        simple, old, described, body, stop = (column[whole] for column in (simple, old, described, body, stop))
        # A Simple Packet Block may have only one word between its head and its tail. So the five words of such a block
        # begin before its body, and its packet length is the fourth word.
        first, high, low, captured, length = _words(self.data, np.where(simple, body - 12, body), self.order, 5)
        simple_length = captured
        # The obsolete Packet Block has 16 bits of interface and 16 of drop count.
        number = np.where(old, first >> 16 if self.order == ">" else first & 0xFFFF, np.where(simple, 0, first))
        snap = self.interfaces[0].snap_length if self.interfaces else 0
        captured = np.where(simple, np.minimum(simple_length, snap or simple_length), captured)
        start = body + np.where(simple, 4, 20)
        valid = (number < described) & (start + captured <= stop)
        high, low = (np.where(simple, 0, column)[valid] for column in (high, low))
        number, start, end = number[valid], start[valid], (start + captured)[valid]
        link_types = np.array([interface.link_type for interface in self.interfaces], dtype=np.int64)
        wire_length = np.where(simple, simple_length, length)[valid]
        return Records(self._times(number, high, low), link_types[number], start, end, wire_length)

    def _times(self, number: Integers, high: Integers, low: Integers) -> Integers:
        """The times in ns of packets on the interfaces `number`. Where 64 bits could overflow, Python integers are
        used."""
        factors = [each.ns_per_tick for each in self.interfaces]
        offsets = [each.offset_s if abs(each.offset_s) < _FAR_S else 0 for each in self.interfaces]
        factor = np.array(factors, dtype=np.int64)[number]
        offset = np.array(offsets, dtype=np.int64)[number]
        far = np.array([abs(each.offset_s) >= _FAR_S for each in self.interfaces], dtype=bool)[number]
        limit = (_FARTHEST_NS >> 1) // np.maximum(factor, 1)
        odd = far | (factor == 0) | (high >> 31 != 0) | ((high & _LOW_BITS) << 32 | low > limit)
        ticks = np.where(odd, 0, (high & _LOW_BITS) << 32 | low)
        times: Integers = ticks * factor + offset * 1_000_000_000
        for at in np.flatnonzero(odd).tolist():
            times[at] = self.interfaces[int(number[at])].time_ns(int(high[at]) << 32 | int(low[at]))
        return times

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
