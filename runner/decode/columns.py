"""Columns of a capture: rows of integers while it is read, NumPy arrays of table columns, and what a trace consists of.

This module does without pyarrow, whose import takes longer than decoding a small capture.
"""

import errno
import hashlib
import mmap
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

# Columns of the tables as NumPy arrays of integers.
#
# Most captures have few rows; for such tables, Arrow's own functions take ten times as long. For every Python number,
# pyarrow also looks for pandas; this takes 0.2 ms when pandas is not installed.

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NULL = -1
"""Stands for null in arrays. No column of a trace has other negative values."""


def no_integers() -> Integers:
    """An array without rows."""
    return np.empty(0, dtype=np.int64)


def integers(column: "pa.ChunkedArray") -> Integers:
    """A column of numbers; null becomes NULL."""
    if column.null_count:
        column = column.cast("int64").fill_null(NULL)
    array: Integers = column.to_numpy().astype(np.int64, copy=False)
    return array


def words(column: "pa.ChunkedArray") -> tuple[Integers, list[str]]:
    """A column of strings as positions in a list of words, and this list. The position of null is NULL."""
    if not len(column):
        return np.empty(0, dtype=np.int64), []
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    indices = array.indices
    if indices.null_count:
        indices = indices.cast("int64").fill_null(NULL)
    return indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), array.dictionary.to_pylist()


def named(column: "pa.ChunkedArray", word: str) -> Bools:
    """Per row of a column of strings: whether the string is `word`."""
    indices, known = words(column)
    matches: Bools = np.isin(indices, [index for index, each in enumerate(known) if each == word])
    return matches


# Rows of integers. They are added one by one, and later read as columns.


class IntegerRows:
    """Rows of integers of 64 bits. `names`: the names of their columns.

    New rows are appended to the flat list `tail`, because this is fast. `settle` moves them to an array, which needs a
    fifth of the memory.
    """

    __slots__ = ("_blocks", "_places", "_starts", "names", "settled", "tail", "width")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._places = {name: place for place, name in enumerate(names)}
        self.width = len(names)
        self.settled = 0
        """Rows that are not in `tail`."""
        self.tail: list[int] = []
        self._blocks: list[Integers] = []
        self._starts: list[int] = []
        """Number of the first row of each block."""

    def __len__(self) -> int:
        return self.settled + len(self.tail) // self.width

    def settle(self) -> None:
        """Move the rows from `tail` to an array. Raises OverflowError when a number has more than 64 bits."""
        if self.tail:
            block = np.array(self.tail, dtype=np.int64).reshape(-1, self.width)
            self._starts.append(self.settled)
            self._blocks.append(block)
            self.settled += len(block)
            self.tail.clear()

    def __getitem__(self, place: tuple[int, str]) -> int:
        row, name = place
        if row >= self.settled:
            return self.tail[(row - self.settled) * self.width + self._places[name]]
        block = bisect_right(self._starts, row) - 1
        return int(self._blocks[block][row - self._starts[block], self._places[name]])

    def __setitem__(self, place: tuple[int, str], value: int) -> None:
        row, name = place
        if row >= self.settled:
            self.tail[(row - self.settled) * self.width + self._places[name]] = value
        else:
            block = bisect_right(self._starts, row) - 1
            self._blocks[block][row - self._starts[block], self._places[name]] = value

    def write(self, row: int, values: Sequence[int]) -> None:
        """Replace a whole row."""
        if row >= self.settled:
            at = (row - self.settled) * self.width
            self.tail[at : at + self.width] = values
        else:
            block = bisect_right(self._starts, row) - 1
            self._blocks[block][row - self._starts[block]] = values

    def column(self, name: str) -> Integers:
        """One column of all rows, as a new array."""
        self.settle()
        if not self._blocks:
            return no_integers()
        return np.concatenate([block[:, self._places[name]] for block in self._blocks])

    def set_column(self, name: str, rows: Integers, values: Integers) -> None:
        """Set the values of one column in many rows."""
        column = self.column(name)
        column[rows] = values
        for start, block in zip(self._starts, self._blocks, strict=True):
            block[:, self._places[name]] = column[start : start + len(block)]


# The tables of one capture, which the decoder writes and `runner.trace` reads (`runner.decode.tables`).

DECODER_VERSION = 16
READABLE_VERSIONS = tuple(range(1, DECODER_VERSION + 1))
"""Versions of tables that can be read. Columns that an older version lacks are null. Version 2 added `record` and
`supported_versions`. Version 3 added connections that used only unknown QUIC versions. Version 4 added flows of
preferred addresses. Version 5 added `token`, `data` and `early_data_accepted`. Version 6 added `first_byte`,
`key_version`, `reset_token`, `type_length`, `messages`, and Retire Prior To in `offset`. Version 7 added `secrets`, and
unread packets are attributed to connections by their connection IDs. Version 8 added `fragment_sources`.
Version 9 added `http3` and the length field of DATAGRAM. Version 10 added `ip_packets`. Version 11 added `not_udp`,
`headers` and `remarks`, and leaves out bytes behind long headers that are no packet. Version 12 added the proofs
of a handshake to `messages`. Version 14 leaves out a server's answers to Initial packets without the token of its
Retry, when the client follows the Retry. Version 15 added extensions and pre-shared keys to `messages`."""

BIDIRECTIONAL_HEAD, UNIDIRECTIONAL_HEAD = 1024, 1 << 16
"""Number of bytes at the beginning of a stream that the column `data` keeps. They are enough for the HTTP/3 frames
before the content, and for control streams (RFC 9114 §6.2, §7)."""

MOST_SOURCES = 16
"""Number of source addresses for which a capture's IP fragments are counted, those with the most fragments."""

FRAGMENTS = "IP fragments"
"""The reason in `CaptureMeta.skipped_udp` for packets that are counted in `CaptureMeta.fragments`."""

MTU = 1500
"""Largest IP packet in bytes on the emulated and the real links. Larger packets in a capture are super-datagrams of
segmentation offload."""

HTTP3 = "h3"
"""The application protocol (ALPN) of HTTP/3."""

CLIENT = 0
SERVER = 1
UNKNOWN = -1

PACKET_TYPES = ("initial", "0rtt", "handshake", "1rtt", "retry", "version_negotiation", "stateless_reset", "unknown")
SPACES = ("initial", "handshake", "application")


@dataclass(frozen=True, slots=True)
class CaptureMeta:
    """Facts of the capture file as a whole."""

    file_name: str
    sha256: str
    link_type: str
    """Link type as in libpcap, without LINKTYPE_, such as `ETHERNET`. Several link types are separated by commas."""
    packets: int
    """Number of records in the file."""
    non_quic: int
    """Number of records without a QUIC datagram: other protocols, fragments, and datagrams that were cut off before
    their first byte."""
    fragments: int
    """Number of IP fragments. They are counted but not reassembled, because QUIC forbids fragmentation (RFC 9000
    §14)."""
    snapped: int
    """Number of records that contain only the beginning of their packet."""
    truncated: bool
    """True when the file ends within a record."""
    kernel_drops: int | None
    """Number of packets that the kernel dropped during the capture; None when this number is unknown."""
    first_time_ns: int | None
    decoder_version: int
    backwards_ns: int = 0
    """The largest step back in time from one datagram of the file to a later one; 0 in older tables."""
    skipped_udp: dict[str, int] = field(default_factory=dict)
    """Reason why UDP packets were not read as QUIC → number of packets."""
    fragment_sources: dict[str, int] = field(default_factory=dict)
    """Source address → number of IP fragments, for at most `MOST_SOURCES` addresses; empty in older tables."""
    ip_packets: dict[str, int] = field(default_factory=dict)
    """`source destination` → number of unicast IP packets of any protocol, for the most frequent pairs of addresses.
    The other pairs together have the name "". Empty in older tables, and for captures without Ethernet."""
    not_udp: dict[str, int] = field(default_factory=dict)
    """What the records without UDP over IP carry → number of records, the most frequent first; empty in older
    tables."""
    headers: dict[str, int] = field(default_factory=dict)
    """Header between link layer and IP packet, such as `PPPoE` or `GRE` → number of records; empty in older tables."""
    remarks: list[str] = field(default_factory=list)
    """Sentences for the user about key logs and about what was not read; empty in older tables."""


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """A count that has its expected value in every complete trace. `holds` is None when the evidence is missing.

    Such a check is about the capture and the decoder. The judge has other checks for the rules of endpoints.
    """

    name: str
    holds: bool | None
    expected: int
    actual: int | None

    @classmethod
    def zero(cls, name: str, actual: int | None) -> "TraceCheck":
        """The check of a count that is expected to be 0."""
        return cls(name, None if actual is None else actual == 0, 0, actual)


@dataclass(frozen=True, slots=True)
class Trace:
    """One decoded capture: its tables (`runner.decode.tables`), the facts of the file and the checks."""

    datagrams: "pa.Table"
    packets: "pa.Table"
    stream_frames: "pa.Table"
    ack_frames: "pa.Table"
    frames: "pa.Table"
    connections: "pa.Table"
    meta: CaptureMeta
    checks: list[TraceCheck]


# Reads the bytes of a capture file, and numbers at many positions of the file at once.

Data = bytes | mmap.mmap
"""The bytes of a file. Slices of both types are bytes."""

_LARGE = 1 << 25  # bytes; larger files are mapped, smaller ones are read
_LARGEST_STREAM = 1 << 30  # bytes that are read from a pipe or a device, which has no size
_PIECE = 1 << 22  # bytes


def file_bytes(path: Path) -> Data:
    """The content of a file. Raises OSError."""
    with path.open("rb") as file:
        if not path.is_file():
            content = file.read(_LARGEST_STREAM + 1)
            if len(content) > _LARGEST_STREAM:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return content
        if path.stat().st_size < _LARGE:
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release(data: Data) -> None:
    """Release the memory of a mapped file, because the judge's memory limit counts it. Later reads load the pages
    again."""
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)


def sha256(data: Data) -> str:
    """SHA-256 of all bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with memoryview(data) as view:
        for at in range(0, len(view), _PIECE):
            digest.update(view[at : at + _PIECE])
            release(data)
    return digest.hexdigest()


class NumbersAt:
    """Reads unsigned big-endian numbers. Bytes beyond the end of the file count as 0."""

    def __init__(self, data: Data) -> None:
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        self._last = len(self._bytes) - 1

    def __call__(self, positions: Integers, size: int = 1) -> Integers:
        """The numbers of `size` bytes (at most 7) at these positions, which must not be negative."""
        numbers = np.zeros(len(positions), dtype=np.int64)
        if self._last < 0:
            return numbers
        inside = not len(positions) or int(positions.max()) + size - 1 <= self._last
        for offset in range(size):
            at = positions + offset
            numbers <<= 8
            if inside:
                numbers |= self._bytes[at]
            else:
                numbers |= np.where(at <= self._last, self._bytes[np.minimum(at, self._last)], 0)
        return numbers

    def rows(self, positions: Integers, size: int) -> npt.NDArray[np.uint8]:
        """The `size` bytes from each position on. They must lie within the file."""
        rows: npt.NDArray[np.uint8] = self._bytes[positions[:, None] + np.arange(size)]
        return rows
