"""Reads capture files (pcap and pcapng, plain or gzipped): records, IP packets, UDP datagrams. Adds secrets to
pcapng files."""

import ipaddress
import re
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from runner.decode.columns import FRAGMENTS, Bools, Data, Integers, NumbersAt, file_bytes, no_integers, release
from runner.decode.keys import LARGEST_KEY_LOG, MOST_SECRETS
from runner.decode.link_layers import DESTINATION_OPTIONS, ETHERNET, ETHERNET_HEADER, TUNNELS, find_ip
from runner.errors import CaptureError
from runner.files import read_head
from runner.units import format_count

# Reads records from capture files: pcap (µs and ns, both byte orders) and pcapng, plain or gzipped.
#
# Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. When a file ends within a record, all records before it are
# read.

# No capture tool writes longer records (libpcap's MAXIMUM_SNAPLEN); a longer record means that the file is damaged.
MAX_RECORD = 262_144
_LARGEST_BLOCK = 1 << 24  # bytes of a pcapng block; Wireshark reads no larger ones, either
LARGEST_UNPACKED = 1 << 30  # bytes of an unpacked gzip file; the captures of the runner are not larger
_PIECE = 1 << 24  # bytes; after each piece, the memory of the file is released
_GZIP_PIECE = 1 << 12  # bytes; in a damaged gzip file, everything before the damaged piece is read
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
_BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_SECTION = 0x0A0D0D0A  # the same number in both byte orders
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _STATISTICS, _ENHANCED_PACKET, _SECRETS = 1, 2, 3, 5, 6, 10
_LAST_KIND = 10  # of the usual kinds of blocks
TLS_KEY_LOG = 0x544C534B

_COPY = "copy the file again as binary data, or capture again"
_AGAIN = _COPY.capitalize()

Record = tuple[int, int, int, int, int]
"""time_ns, link type, first byte of the frame in the file, first byte after it, length on the wire"""


class Records(NamedTuple):
    """All records in file order, as columns with the fields of `Record`."""

    time_ns: Integers
    link_type: Integers
    start: Integers
    end: Integers
    wire_length: Integers


@dataclass(slots=True)
class CaptureFile:
    """One capture file in memory. The fields after `read` are complete when `read` was called."""

    data: Data
    read: Callable[["CaptureFile"], Records]
    """Function that reads all complete records."""
    secrets: list[bytes] = field(default_factory=list)
    """Key logs embedded in a pcapng file."""
    end: str = ""
    """A sentence about why no record can be found from some byte on; empty: the last record ends with the file."""
    left_out: list[str] = field(default_factory=list)
    """Sentences about records before that byte that can't be read, or are damaged."""
    kernel_drops: int | None = None

    @property
    def truncated(self) -> bool:
        """True when the file ends within a record, or is damaged."""
        return bool(self.end)

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


_OTHER_FILES = (
    (b"\x28\xb5\x2f\xfd", "data compressed by zstd: decompress it"),
    (b"\x04\x22\x4d\x18", "data compressed by lz4: decompress it"),
    (b"\xfd7zXZ", "data compressed by xz: decompress it"),
    (b"BZh", "data compressed by bzip2: decompress it"),
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"snoop", "a snoop file: convert it (editcap -F pcapng)"),
    (b"\x34\xcd\xb2\xa1", "an old pcap variant: convert it (editcap -F pcapng)"),
    (b"{", "JSON, such as qlog"),
    (b"\x1e", "JSON, such as qlog"),
    (b"CLIENT_", "a key log: give it with --keys"),
    (b"SERVER_", "a key log: give it with --keys"),
    (b"#", "text, such as a key log: give it with --keys"),
    (b"<", "HTML or XML"),
    (b"\x1f\x8b", "gzip data in gzip data: decompress it"),
    (b"\n\r\n", "a pcapng file with changed line ends: copy it as binary data"),
    (b"\r\n\r\r", "a pcapng file with changed line ends: copy it as binary data"),
    (b"\n\n\n", "a pcapng file with changed line ends: copy it as binary data"),
)
"""First bytes of other files that are given as captures, and what they are."""


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
    data, whole = _gunzip(stored) if stored[:2] == b"\x1f\x8b" else (stored, True)
    end = "" if whole else f"The gzip data is cut off or damaged. The rest was not read: {_COPY}."
    magic, found = data[:4], ""
    if magic in PCAP_MAGIC:
        if len(data) >= 24:
            return CaptureFile(data, _pcap_records, end=end)
        found = f"{len(data)} of the 24 bytes of its header"
    elif magic == _PCAPNG_MAGIC:
        found = _damaged_section(data, 0)
        if not found:
            return CaptureFile(data, _pcapng_records, end=end)
    if found:
        raise CaptureError(f"{path} is a damaged capture: found {found}. Nothing can be read: {_COPY}.")
    found = next((what for first, what in _OTHER_FILES if data[: len(first)] == first), data[:4].hex(" "))
    found = found or f"gzip data {'without content' if whole else 'that is cut off or damaged'}"
    raise CaptureError(f"{path} is no capture: expected a pcap or pcapng file, found {found}.")


def _gunzip(stored: Data) -> tuple[bytes, bool]:
    """The unpacked content of a gzip file, at most LARGEST_UNPACKED bytes, and whether the file is whole."""
    unpacked, whole = bytearray(), False
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    at = 0
    while at < len(stored) and len(unpacked) < LARGEST_UNPACKED:
        piece = stored[at : at + _GZIP_PIECE]
        at += len(piece)
        try:
            unpacked += unpacker.decompress(piece, LARGEST_UNPACKED - len(unpacked))
        except zlib.error:
            break
        whole = unpacker.eof
        if whole:  # another member may follow
            at -= len(unpacker.unused_data)
            unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    return bytes(unpacked), whole


def _damaged_section(data: Data, position: int) -> str:
    """What is wrong with the Section Header Block of a pcapng file at this position; an empty text when it is whole."""
    mark = data[position + 8 : position + 12]
    if len(data) - position < 28:
        return f"{len(data) - position} of the 28 bytes of a section header"
    if mark not in _BYTE_ORDERS:
        return f"the byte-order mark {mark.hex(' ')} in a section header, expected 4d 3c 2b 1a or 1a 2b 3c 4d"
    length = int(struct.unpack_from(_BYTE_ORDERS[mark] + "I", data, position + 4)[0])
    if 28 <= length <= len(data) - position and length % 4 == 0:
        return ""
    return f"a section header of {length} B, expected a multiple of 4 from 28 to {len(data) - position}"


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
            break
        headers.append(position)
        position = after
        if position > piece:
            piece = position + _PIECE
            release(data)
    if position != size:
        too_long = position + 16 <= size and after - position > 16 + MAX_RECORD
        damage = f"a record of {after - position - 16} B, expected at most {MAX_RECORD}" if too_long else ""
        file.end = file.end or _end(position, size, damage)
    places = np.frombuffer(headers, dtype=np.int64)
    seconds, fraction, captured, length = _words(data, places, order, 4)
    start = places + 16
    link_types = np.full(len(places), link_type, dtype=np.int64)
    return Records(seconds * 1_000_000_000 + fraction * tick_ns, link_types, start, start + captured, length)


def _end(position: int, size: int, damage: str) -> str:
    """Why no record can be read from `position` on. `damage`: what was found there; empty: the file is cut."""
    if not damage:
        return "The file ends within a record, because it was cut or not closed. Only whole records were read."
    found = f"The file is damaged at byte {position} of {size}: found {damage}"
    return f"{found}. The rest was not read: {_COPY}; join files with mergecap, not with cat."


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
    head_at, damage, odd_tails = struct.Struct("<II").unpack_from, "", 0
    while position + 12 <= size:
        kind, length = head_at(data, position)
        if kind == _SECTION:
            damage = _damaged_section(data, position)
            if damage:
                break
            section = _Section(data, _BYTE_ORDERS[data[position + 8 : position + 12]])
            sections.append(section)
            head_at = struct.Struct(section.order + "II").unpack_from
            kind, length = head_at(data, position)
        end = position + length
        if length < 12 or length % 4 or end > size:
            if length < 12 or length % 4 or length > _LARGEST_BLOCK or kind > _LAST_KIND:
                damage = f"a block of {length} B, expected a multiple of 4 from 12 to {_LARGEST_BLOCK}"
            break
        body, stop = position + 8, end - 4
        odd_tails += data[stop:end] != data[position + 4 : body]
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
    if position != size:
        file.end = file.end or _end(position, size, damage)
    parts = [Records(*[no_integers()] * 5), *(section.records() for section in sections if section.packets)]
    file.left_out = _left_out(sections)
    if odd_tails:
        blocks = format_count(odd_tails, "block")
        file.left_out.append(f"{blocks} read with another length at the end than at the beginning: damaged. {_AGAIN}.")
    return Records(*map(np.concatenate, zip(*parts, strict=True)))


def _left_out(sections: Sequence["_Section"]) -> list[str]:
    """Sentences about packet blocks that can't be read."""
    reasons = {
        "no Interface Description Block before describes the interface, so the link layer is unknown. Join and cut "
        "pcapng files with mergecap and editcap": sum(section.undescribed for section in sections),
        f"a packet is longer than its block, so the file is damaged: {_COPY}": sum(
            section.damaged for section in sections
        ),
    }
    return [f"{format_count(count, 'packet')} not read: {why}." for why, count in reasons.items() if count]


@dataclass(slots=True)
class _Section:
    """One section of a pcapng file: its byte order, interfaces and packet blocks."""

    data: Data
    order: str = "<"
    interfaces: list[_Interface] = field(default_factory=list)
    packets: "array[int]" = field(default_factory=lambda: array("q"))
    """Four numbers for each packet block: kind, number of interfaces described before it, first byte of its body, first
    byte after its body."""
    undescribed: int = 0
    """Number of packets on interfaces that are not described before them. This and `damaged` are set by `records`."""
    damaged: int = 0
    """Number of packet blocks that are too short for their packet."""

    def records(self) -> Records:
        """The records in the packet blocks. Damaged blocks and blocks of undescribed interfaces are left out."""
        kind, described, body, stop = np.frombuffer(self.packets, dtype=np.int64).reshape(-1, 4).T
        simple, old = kind == _SIMPLE_PACKET, kind == _OLD_PACKET
        long_enough = stop - body >= np.where(simple, 4, 20)
        whole = long_enough & (described > 0)
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
        self.undescribed = int((long_enough & ~whole).sum()) + int((number >= described).sum())
        self.damaged = len(whole) - int(valid.sum()) - self.undescribed
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


# Finds UDP datagrams in captured frames: reads IPv4, IPv6 and UDP. `link_layers` finds the IP packets.

TCP, UDP = 6, 17
_PROTOCOLS = {
    0: "IPv6 Hop-by-Hop Options",
    1: "ICMP",
    2: "IGMP",
    6: "TCP",
    33: "DCCP",
    50: "ESP (IPsec)",
    51: "AH (IPsec)",
    58: "ICMPv6",
} | {
    88: "EIGRP",
    89: "OSPF",
    103: "PIM",
    112: "VRRP",
    115: "L2TP",
    132: "SCTP",
    136: "UDP-Lite",
    **TUNNELS,
}  # iana.org/assignments/protocol-numbers
_IPV6_FRAGMENT, _IPV6_AUTHENTICATION = 44, 51
_IPV6_EXTENSIONS = (0, 43, 60, 135, 139, 140, _IPV6_AUTHENTICATION)


@dataclass(slots=True)
class Flow:
    """One direction of a 4-tuple."""

    number: int
    reverse: int
    """Number of the flow in the opposite direction."""
    src: str
    dst: str
    src_port: int
    dst_port: int
    ip_version: int


@dataclass(slots=True)
class Datagrams:
    """UDP datagrams of a capture as parallel columns, one entry per datagram, in the order of time, or in file order
    when the clock was set back."""

    data: Data
    """The bytes of the file; `start` and `end` are positions in it."""
    flows: list[Flow] = field(default_factory=list)
    record: Integers = field(default_factory=no_integers)
    """Number of the record in the file, from 1."""
    time_ns: Integers = field(default_factory=no_integers)
    flow: Integers = field(default_factory=no_integers)
    start: Integers = field(default_factory=no_integers)
    end: Integers = field(default_factory=no_integers)
    payload_length: Integers = field(default_factory=no_integers)
    """Bytes of payload according to the UDP header. This is more than `end - start` when the capture contains only the
    beginning of the datagram."""
    ip_length: Integers = field(default_factory=no_integers)
    ecn: Integers = field(default_factory=no_integers)
    records: int = 0
    fragments: int = 0
    fragment_sources: Counter[str] = field(default_factory=Counter)
    """Source address → number of IP fragments of UDP packets."""
    snapped: int = 0
    link_types: set[int] = field(default_factory=set)
    first_time_ns: int | None = None
    backwards_ns: int = 0
    """The largest step back in time from one datagram of the file to a later one."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason why UDP packets are not among the datagrams → number of packets."""
    not_udp: Counter[str] = field(default_factory=Counter)
    """What other records carry → number of records."""
    headers: Counter[str] = field(default_factory=Counter)
    """Header between the link layer and the IP packet that was read, such as `PPPoE` → number of records."""

    def skip_fragment(self, source: bytes, count: int = 1) -> None:
        """Count IP fragments from an address. They are not read."""
        self.fragments += count
        self.fragment_sources[_address(source)] += count
        self.skip(FRAGMENTS, count)

    def skip(self, why: str, count: int = 1) -> None:
        """Count UDP packets that are not read, by reason."""
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count


_TICK_NS = 1000  # a smaller step back is no order: interfaces of one file may count in µs and in ns
LATE_RECORD_NS = 100_000_000
"""A record that is written so late was delayed by the recorder: cards with several queues and several CPUs cause it.
Records that are later show that the clock was set back."""


def read_datagrams(file: CaptureFile, *, tunnels: bool = False) -> Datagrams:
    """All UDP datagrams of a capture. Never raises: records without UDP over IP are only counted.

    `tunnels`: also read IP packets in GRE, in IP, and behind the headers of an access network (PPPoE, MPLS). The judge
    doesn't, because an endpoint can put packets of its peer into a tunnel.
    """
    return _Reader(file, tunnels=tunnels).read()


class _Reader:
    """Reads the headers of one capture. Usual headers are read for many records at once, unusual headers one by
    one."""

    def __init__(self, file: CaptureFile, *, tunnels: bool) -> None:
        self._tunnels = tunnels
        self._data = file.data
        self._records = file.read(file)
        self._numbers_at = NumbersAt(file.data)
        self._result = Datagrams(file.data)
        self._flow_of: dict[bytes, int] = {}

    def read(self) -> Datagrams:
        records, result = self._records, self._result
        result.records = len(records.start)
        result.first_time_ns = int(records.time_ns[0]) if result.records else None
        result.link_types = set(np.flatnonzero(np.bincount(records.link_type)).tolist())
        result.snapped = int((records.end - records.start < records.wire_length).sum())
        pieces = [np.empty((7, 0), dtype=np.int64)]
        for first in range(0, result.records, _ROWS):
            pieces.append(self._piece(np.arange(first, min(first + _ROWS, result.records))))
            release(self._data)
        columns = np.concatenate(pieces, axis=1)
        times = records.time_ns[columns[0]]
        result.backwards_ns = int((np.maximum.accumulate(times) - times).max(initial=0))
        if _TICK_NS <= result.backwards_ns <= LATE_RECORD_NS:
            columns = columns[:, np.argsort(times, kind="stable")]
        row, *_ = columns
        result.record, result.time_ns = row + 1, records.time_ns[row]
        _, result.flow, result.start, result.end, result.payload_length, result.ip_length, result.ecn = columns
        return result

    def _piece(self, rows: Integers) -> Integers:
        """The datagrams in these records, as seven columns: row of the record, flow, start, end, payload length, IP
        length, ECN codepoint."""
        ip = self._network_layer(rows)
        rows, ip = rows[ip >= 0], ip[ip >= 0]
        end = self._records.end[rows]
        whole = ip + 28 <= end
        self._result.not_udp["IP packets of fewer than 28 bytes, or cut off before"] += int((~whole).sum())
        rows, ip, end = rows[whole], ip[whole], end[whole]
        is_v4: Bools = self._numbers_at(ip) >> 4 == 4
        udp, ip_length = self._udp(ip, end, is_v4)
        cut = (udp >= 0) & (udp + 8 > end)
        self._result.skip("cut off within the UDP header", int(cut.sum()))
        kept = (udp >= 0) & ~cut
        rows, ip, end, udp, ip_length = (column[kept] for column in (rows, ip, end, udp, ip_length))
        is_v4 = is_v4[kept]
        flow = self._flows(ip, udp, is_v4)
        ecn = np.where(is_v4, self._numbers_at(ip + 1), self._numbers_at(ip + 1) >> 4) & 3
        # In very large packets of segmentation offload, the length fields are 0. Such packets are left out.
        length = self._numbers_at(udp + 4, 2) - 8
        self._result.skip("without payload", int((length == 0).sum()))
        self._result.skip("with a wrong UDP length", int((length < 0).sum()))
        start = udp + 8
        columns = np.stack((rows, flow, start, np.minimum(start + length, end), length, ip_length, ecn))
        return columns[:, length > 0]

    def _network_layer(self, rows: Integers) -> Integers:
        """Per record: position of the IP header; -1 when the frame carries no IP."""
        frame, end, link_type = (
            column[rows] for column in (self._records.start, self._records.end, self._records.link_type)
        )
        ip = frame + ETHERNET_HEADER
        usual = (link_type == ETHERNET) & (ip < end)
        ethertype, version = self._numbers_at(ip - 2, 2), self._numbers_at(ip) >> 4
        usual &= np.isin(ethertype, (0x0800, 0x86DD)) & ((version == 4) | (version == 6))
        if self._tunnels:  # read one by one, like all unusual records
            protocol = np.where(version == 4, self._numbers_at(ip + 9), self._numbers_at(ip + 6))
            usual &= ~np.isin(protocol, (*TUNNELS, DESTINATION_OPTIONS))
        for at in np.flatnonzero(~usual).tolist():
            found, headers = find_ip(
                self._data, int(frame[at]), int(end[at]), int(link_type[at]), tunnels=self._tunnels
            )
            if isinstance(found, str):
                self._result.not_udp[found] += 1
            else:
                self._result.headers.update(headers)
            ip[at] = -1 if isinstance(found, str) else found
        return ip

    def _udp(self, ip: Integers, end: Integers, is_v4: Bools) -> tuple[Integers, Integers]:
        """Per packet: position of the UDP header (-1: no whole UDP datagram), length of the IP packet in bytes."""
        numbers_at = self._numbers_at
        protocol = np.where(is_v4, numbers_at(ip + 9), numbers_at(ip + 6))
        # An IPv4 fragment has the flag More Fragments or an offset (RFC 791).
        fragment = is_v4 & (protocol == UDP) & (numbers_at(ip + 6, 2) & 0x3FFF != 0)
        if fragment.any():
            sources, counts = np.unique(numbers_at.rows(ip[fragment] + 12, 4), axis=0, return_counts=True)
            for source, count in zip(sources, counts.tolist(), strict=True):
                self._result.skip_fragment(source.tobytes(), count)
        udp = ip + np.where(is_v4, (numbers_at(ip) & 15) * 4, 40)
        ip_length = np.where(is_v4, numbers_at(ip + 2, 2), numbers_at(ip + 4, 2) + 40)
        udp[(protocol != UDP) | fragment] = -1
        extended = ~is_v4 & np.isin(protocol, (*_IPV6_EXTENSIONS, _IPV6_FRAGMENT))
        for at in np.flatnonzero(extended).tolist():
            udp[at], ip_length[at] = _ipv6(self._data, int(ip[at]), int(end[at]), self._result)
        for number, count in enumerate(np.bincount(protocol[(protocol != UDP) & (udp < 0)]).tolist()):
            if count:
                self._result.not_udp[_PROTOCOLS.get(number, f"IP protocol {number}")] += count
        return udp, ip_length

    def _flows(self, ip: Integers, udp: Integers, is_v4: Bools) -> Integers:
        """Per datagram: the number of its flow. Flows are numbered in the order of their first datagrams."""
        keys = np.empty(len(ip), dtype=object)
        for chosen, offset, size in ((is_v4, 12, 8), (~is_v4, 8, 32)):
            if chosen.any():
                addresses = self._numbers_at.rows(ip[chosen] + offset, size)
                ports = self._numbers_at.rows(udp[chosen], 4)
                key = np.ascontiguousarray(np.concatenate((addresses, ports), axis=1))
                keys[chosen] = key.view(f"V{size + 4}").ravel().tolist()
        names = keys.tolist()
        for name in dict.fromkeys(names):
            if name not in self._flow_of:
                self._add_flow(name)
        return np.fromiter(map(self._flow_of.__getitem__, names), dtype=np.int64, count=len(names))

    def _add_flow(self, key: bytes) -> None:
        """Add a flow and its opposite direction."""
        size, number = (len(key) - 4) // 2, len(self._result.flows)
        src, dst, ports = key[:size], key[size:-4], key[-4:]
        opposite = dst + src + ports[2:] + ports[:2]
        for flow, reverse, way in ((number, number + 1, key), (number + 1, number, opposite)):
            self._flow_of.setdefault(way, flow)
            self._result.flows.append(
                Flow(
                    number=flow,
                    reverse=reverse,
                    src=_address(way[:size]),
                    dst=_address(way[size:-4]),
                    src_port=int.from_bytes(way[-4:-2]),
                    dst_port=int.from_bytes(way[-2:]),
                    ip_version=4 if size == 4 else 6,
                )
            )


def _ipv6(data: Data, ip: int, end: int, result: Datagrams) -> tuple[int, int]:
    """Position of the UDP header (-1: no whole UDP datagram) and length of an IPv6 packet with extension headers (RFC
    8200 §4) in bytes."""
    length = int.from_bytes(data[ip + 4 : ip + 6]) + 40
    header, position = data[ip + 6], ip + 40
    while (header in _IPV6_EXTENSIONS or header == _IPV6_FRAGMENT) and position + 8 <= end:
        if header == _IPV6_FRAGMENT:
            # An atomic fragment (RFC 6946) has offset 0 and no flag More Fragments: it is a whole packet.
            if data[position + 2] or data[position + 3] & 0xF9:
                if data[position] == UDP:
                    result.skip_fragment(data[ip + 8 : ip + 24])
                return -1, 0
            size = 8
        elif header == _IPV6_AUTHENTICATION:
            size = (data[position + 1] + 2) * 4
        else:
            size = (data[position + 1] + 1) * 8
        header, position = data[position], position + size
    return (position, length) if header == UDP else (-1, 0)


@lru_cache(maxsize=64)
def _address(packed: bytes) -> str:
    """The text of an IP address. It is cached, because an address usually has many flows."""
    return str(ipaddress.ip_address(packed))


# The IP packets of an Ethernet capture as plain records, with the positions of their headers in the file.

_SYN, _ACK = 0x02, 0x10
_MOST_PAIRS = 64  # pairs of addresses whose packets are counted by name
# Ethertype → offset of the source address in the IP header, bytes of source and destination, bytes of the header
_ADDRESSES = {0x0800: (12, 8, 20), 0x86DD: (8, 32, 40)}


@dataclass(frozen=True, slots=True)
class IpPacket:
    """One IP packet. `number`: its number in Wireshark. `time_ns`: since 1970. `payload`: bytes of TCP or UDP payload.

    `ip_at`, `upper_at` and `payload_at` are the positions of the headers and the payload in the file. Ports are 0 in
    protocols without ports.
    """

    number: int
    time_ns: int
    source: bytes
    destination: bytes
    protocol: int
    source_port: int
    destination_port: int
    sequence: int
    flags: int
    length: int  # bytes of the IP packet
    payload: int  # bytes according to the headers; the capture may contain fewer bytes
    ip_at: int
    upper_at: int
    payload_at: int
    end: int  # position after the captured bytes
    ecn: int  # RFC 3168: 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        return self.time_ns / 1e9

    @property
    def is_ipv4(self) -> bool:
        """Whether the packet is IPv4."""
        return len(self.source) == 4

    @property
    def syn(self) -> bool:
        """Whether the packet is a TCP SYN or SYN-ACK."""
        return self.protocol == TCP and bool(self.flags & _SYN)

    @property
    def answers(self) -> bool:
        """Whether the packet is a TCP SYN-ACK."""
        return self.syn and bool(self.flags & _ACK)


def offsets(segments: Sequence[IpPacket]) -> list[int]:
    """The offset of each segment in one TCP stream, in bytes. The first segment gets offset 2 GiB.

    Sequence numbers wrap (RFC 9293 §3.4), and the first captured segment need not be the first of the stream, so
    offsets below 2 GiB occur. No stream has more than 2 GiB.
    """
    base = segments[0].sequence - (1 << 31)
    return [(segment.sequence - base) % (1 << 32) for segment in segments]


def read_packets(path: Path) -> tuple[Data, list[IpPacket]]:
    """The bytes of the file and its IP packets. Raises CaptureError when the file is no capture."""
    file, _ = open_capture(path)
    return file.data, list(packets_of(file))


def packets_by_addresses(file: CaptureFile) -> dict[str, int]:
    """`source destination` → number of IP packets that Ethernet carries to a single receiver. Rare pairs of addresses
    are counted together under "", because a hostile endpoint can use any number of addresses."""
    records, numbers_at = file.read(file), NumbersAt(file.data)
    counts: Counter[tuple[int, bytes]] = Counter()
    for first in range(0, len(records.start), _ROWS):
        rows = slice(first, first + _ROWS)
        start, end = records.start[rows], records.end[rows]
        ethertype, unicast = numbers_at(start + ETHERNET_HEADER - 2, 2), numbers_at(start) & 1 == 0
        unicast &= records.link_type[rows] == 1
        for kind, (offset, size, header) in _ADDRESSES.items():
            chosen = start[unicast & (ethertype == kind) & (end - start >= ETHERNET_HEADER + header)]
            pairs = numbers_at.rows(chosen + ETHERNET_HEADER + offset, size).view(f"V{size}").ravel().tolist()
            counts.update({(size, pair): number for pair, number in sorted(Counter(pairs).items())})
        release(file.data)
    named = dict(counts.most_common(_MOST_PAIRS))
    texts = {
        " ".join(str(ipaddress.ip_address(address)) for address in (pair[: size // 2], pair[size // 2 :])): number
        for (size, pair), number in named.items()
    }
    rest = counts.total() - sum(named.values())
    return texts | ({"": rest} if rest else {})


def packets_of(file: CaptureFile) -> Iterator[IpPacket]:
    """The IP packets of a capture, in the order of the file."""
    data = file.data
    for number, (time_ns, _, start, end, _) in enumerate(file.records(), start=1):
        ip = start + ETHERNET_HEADER
        if end - ip < 20:
            continue
        version = data[ip] >> 4
        if version == 4:
            size, protocol, length = (data[ip] & 15) * 4, data[ip + 9], int.from_bytes(data[ip + 2 : ip + 4])
            source, destination = data[ip + 12 : ip + 16], data[ip + 16 : ip + 20]
            ecn = data[ip + 1] & 3
        elif version == 6 and end - ip >= 40:
            size, protocol, length = 40, data[ip + 6], int.from_bytes(data[ip + 4 : ip + 6]) + 40
            source, destination = data[ip + 8 : ip + 24], data[ip + 24 : ip + 40]
            ecn = data[ip + 1] >> 4 & 3
        else:
            continue
        upper = ip + size
        ports, sequence, flags, header = (0, 0), 0, 0, 0
        if protocol in (TCP, UDP) and end - upper >= 8:
            ports = int.from_bytes(data[upper : upper + 2]), int.from_bytes(data[upper + 2 : upper + 4])
            header = 8
            if protocol == TCP and end - upper >= 20:
                sequence, flags = int.from_bytes(data[upper + 4 : upper + 8]), data[upper + 13]
                header = (data[upper + 12] >> 4) * 4
        payload = max(0, length - size - header)
        yield IpPacket(
            number, time_ns, source, destination, protocol, *ports, sequence, flags, length, payload, ip, upper,
            min(end, upper + header), min(end, ip + length), ecn,
        )  # fmt: skip


# Converts a pcap file to a pcapng file that contains the TLS secrets. Wireshark decrypts such a file without further
# settings.
#
# Format: draft-ietf-opsawg-pcapng; the secrets are in a Decryption Secrets Block. bentpipe writes this format itself,
# because python-pcapng has had no release since 2022, and users would have to install `editcap` for `--inject-secrets`.

_SECRET = re.compile(rb"[A-Z0-9_]{1,64} [0-9a-fA-F]{64} [0-9a-fA-F]{64,128}")  # draft-ietf-tls-keylogfile §2
_BUFFER = 1 << 20  # bytes of the buffers for reading and writing
_SECTION_HEADER = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
_PACKET = struct.Struct("<IIIIIII")
_TAIL = struct.Struct("<I")


def embed_secrets(capture: Path, key_logs: Iterable[Path]) -> Path:
    """Replace a pcap file by a pcapng file that begins with the secrets of the key logs. Returns the path of the new
    file.

    Packets keep their order, times and lengths. When there are no secrets, or when `capture` is missing, cut off or no
    pcap file, nothing changes and `capture` is returned; its readers report the damage. Packets are read and written
    one by one.
    """
    secrets = _secrets(key_logs)
    if not secrets or not capture.is_file():
        return capture
    target = capture.with_suffix(".pcapng")
    partial = target.with_suffix(".partial")
    with capture.open("rb", buffering=_BUFFER) as source, partial.open("wb", buffering=_BUFFER) as file:
        whole = _rewrite(source, file, secrets)
    if not whole:
        partial.unlink()
        return capture
    partial.rename(target)
    capture.unlink()
    return target


def _secrets(key_logs: Iterable[Path]) -> bytes:
    """The lines with secrets of all key logs. Each line occurs once, although client and server usually write the same
    lines.

    Only the beginning of each log is read, so that the log of one endpoint can't make both captures large.
    """
    logs = (read_head(path, size=LARGEST_KEY_LOG) for path in key_logs)
    return b"".join(dict.fromkeys(line + b"\n" for log in logs for line in _lines(log)))


def _lines(log: bytes) -> Iterator[bytes]:
    """The lines with secrets of one key log, at most MOST_SECRETS for each label and session. So the false secrets of
    one endpoint can't displace the secrets of its peer."""
    counts: dict[bytes, int] = {}
    for line in map(bytes.strip, log.splitlines()):
        if _SECRET.fullmatch(line):
            of = line.rpartition(b" ")[0]
            counts[of] = counts.get(of, 0) + 1
            if counts[of] <= MOST_SECRETS:
                yield line


def _rewrite(source: BinaryIO, file: BinaryIO, secrets: bytes) -> bool:
    """Write the secrets and the packets of `source` to `file`. False when the source is no complete pcap file."""
    header = source.read(24)
    if len(header) < 24 or header[:4] not in PCAP_MAGIC:
        return False
    order, tick_ns = PCAP_MAGIC[header[:4]]
    snap_length, link_type = struct.unpack_from(order + "II", header, 16)
    resolution = 9 if tick_ns == 1 else 6  # if_tsresol: negative power of 10
    file.write(_SECTION_HEADER)
    # An Interface Description Block with one option (code 9, one byte) and the end of options.
    file.write(struct.pack("<IIHHIHHBxxxII", 1, 32, link_type & 0xFFFF, 0, snap_length, 9, 1, resolution, 0, 32))
    padding = -len(secrets) % 4
    length = 20 + len(secrets) + padding
    file.write(struct.pack("<IIII", 10, length, TLS_KEY_LOG, len(secrets)) + secrets + bytes(padding))
    file.write(_TAIL.pack(length))
    for block in _blocks(source, order, 10**resolution):
        if not block:
            return False
        file.write(block)
    return True


def _blocks(source: BinaryIO, order: str, per_second: int) -> Iterator[bytes]:
    """An Enhanced Packet Block for each record of a pcap file. An empty block: the file is cut off or damaged here."""
    record = struct.Struct(order + "IIII")
    while header := source.read(16):
        if len(header) < 16:
            yield b""
            return
        seconds, fraction, captured, wire_length = record.unpack(header)
        data = source.read(captured) if captured <= MAX_RECORD else b""
        if len(data) < captured:
            yield b""
            return
        ticks = seconds * per_second + fraction
        padding = -captured % 4
        length = 32 + captured + padding
        start = _PACKET.pack(6, length, 0, ticks >> 32, ticks & 0xFFFFFFFF, captured, wire_length)
        yield start + data + bytes(padding) + _TAIL.pack(length)
