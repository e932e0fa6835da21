"""HTTP/3 on the wire: the frames of whole streams (RFC 9114 §6, §7), and field sections (QPACK, RFC 9204)."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.decode.columns import HTTP3
from runner.decode.connection import Connection
from runner.decode.wire import PacketType, Rows, varint

DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
CONTROL, PUSH, ENCODER, DECODER = range(4)
"""Types of unidirectional streams (RFC 9114 §6.2, RFC 9204 §4.2)."""
_KEPT = (HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID)
_MOST_FRAMES = 1 << 16  # of a connection; a run of DATA frames counts as one
_MOST_BYTES = 1 << 20  # of payloads of a connection
_LARGEST = 1 << 16  # bytes of one payload, and of a stream of QPACK

Pieces = Iterable[tuple[int, bytes]]
"""The data of STREAM frames with its offsets, ordered by offset."""


class StreamReader:
    """Finds the frames of the HTTP/3 streams of one connection. What exceeds the limits above is left out."""

    def __init__(self) -> None:
        self._streams: list[dict[str, Any]] = []
        self._frames, self._bytes = _MOST_FRAMES, _MOST_BYTES

    def add(self, sender: int, stream_id: int, pieces: Pieces, final: int | None) -> None:
        """Read a stream up to its first gap. `final`: its final size; None without a FIN."""
        data = _joined(pieces)
        stream: dict[str, Any] = {"sender": sender, "stream": stream_id, "frames": []}
        self._streams.append(stream)
        position, kind = 0, None
        try:
            if stream_id & 2:
                kind, position = varint(data, 0)
                stream["type"] = kind
                if kind == PUSH:
                    stream["push"], position = varint(data, position)
            if position > len(data):
                return
            if kind in (ENCODER, DECODER):
                stream["data"] = self._kept(data[position : position + _LARGEST])
                stream["whole"] = len(data) - position <= _LARGEST
            elif kind in (None, CONTROL, PUSH):
                position = self._read(stream, data, position)
                ends = final is not None and position >= 0
                stream["cut_off"] = ends and (position > (final or 0) or position < len(data) == final)
                stream["whole"] = position == final
        except IndexError:
            stream["cut_off"] = final is not None and 0 < len(data) == final

    def _read(self, stream: dict[str, Any], data: bytes, position: int) -> int:
        """Append the frames. Returns the position after the last frame whose type and length are complete; -1: there
        are too many frames."""
        frames = stream["frames"]
        while position < len(data):
            start = position
            try:
                kind, position = varint(data, position)
                length, position = varint(data, position)
            except IndexError:
                return start
            if position > len(data):
                return start
            if kind == DATA and frames and frames[-1][0] == DATA:
                frames[-1][2] += length
            elif self._frames <= 0:
                return -1
            else:
                self._frames -= 1
                end = position + length
                keep = kind in _KEPT and length <= _LARGEST and end <= len(data)
                frames.append([kind, start, length, self._kept(data[position:end]) if keep else None])
            position += length
        return position

    def _kept(self, data: bytes) -> str | None:
        self._bytes -= len(data)
        return data.hex() if self._bytes >= 0 else None

    def text(self) -> str:
        """The streams as JSON: a list of objects with `sender`, `stream` and `frames`. Unidirectional streams have
        `type`, push streams `push` (the push ID), streams of QPACK `data` in hexadecimal digits. A frame is its type,
        the offset of its type in the stream, the length of its payload, and its payload or null. A run of DATA frames
        is one frame. `cut_off`: the stream ends within a frame. `whole`: everything up to FIN was read."""
        return json.dumps(self._streams, separators=(",", ":"))


def _joined(pieces: Pieces) -> bytes:
    """The bytes from the beginning of a stream to its first gap."""
    parts, end = list[bytes](), 0
    for offset, data in pieces:
        if offset > end:
            break
        if offset + len(data) > end:
            parts.append(data[end - offset :])
            end = offset + len(data)
    return b"".join(parts)


def http3_streams(rows: Rows, connection: Connection) -> str | None:
    """The streams of an HTTP/3 connection as JSON; None for other protocols. 0-RTT packets that the server rejected
    don't count."""
    if connection.alpn != HTTP3:
        return None
    frames, packets, reader = rows.frames, rows.packets, StreamReader()
    packet, kind, stream_id, offset, length = (
        frames.streams.column(name) for name in ("packet", "type", "stream_id", "offset", "length")
    )
    owner, sender, packet_type = (packets.column(name)[packet] for name in ("connection", "sender", "type"))
    rejected = (packet_type == PacketType.ZERO_RTT) & (connection.early_data_accepted is False)
    mine = np.flatnonzero((owner == connection.number) & ~rejected)
    mine = mine[np.lexsort((offset[mine], stream_id[mine], sender[mine]))]
    borders = np.flatnonzero(np.diff(stream_id[mine]) | np.diff(sender[mine])) + 1
    for chosen in np.split(mine, borders) if len(mine) else ():
        first, fins = chosen[0], chosen[kind[chosen] & 1 == 1]
        final = int(offset[fins[0]] + length[fins[0]]) if len(fins) else None
        pieces = ((int(offset[row]), frames.data(int(row))) for row in chosen)
        reader.add(int(sender[first]), int(stream_id[first]), pieces, final)
    return reader.text()


# QPACK

_STATIC = """:authority :path age content-disposition content-length cookie date etag if-modified-since if-none-match
last-modified link location referer set-cookie :method*7 :scheme*2 :status*5 accept*2 accept-encoding accept-ranges
access-control-allow-headers*2 access-control-allow-origin cache-control*6 content-encoding*2 content-type*11 range
strict-transport-security*3 vary*2 x-content-type-options x-xss-protection :status*9 accept-language
access-control-allow-credentials*2 access-control-allow-headers access-control-allow-methods*3
access-control-expose-headers access-control-request-headers access-control-request-method*2 alt-svc authorization
content-security-policy early-data expect-ct forwarded if-range origin purpose server timing-allow-origin
upgrade-insecure-requests user-agent x-forwarded-for x-frame-options*2"""
STATIC_NAMES = [
    name.encode()
    for name, _, count in (word.partition("*") for word in _STATIC.split())
    for _ in range(int(count or 1))
]
"""The names of the static table (RFC 9204 appendix A)."""
_STATIC_VALUES = {
    4: b"0",
    **dict(enumerate(b"CONNECT DELETE GET HEAD OPTIONS POST PUT http https 103 200 304 404 503".split(), 15)),
    **dict(enumerate(b"100 204 206 302 400 403 421 425 500".split(), 63)),
}
"""Values of the static table on which rules depend; a value that stands in no rule is empty here."""

_CODE_LENGTHS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\0$@[]~",
    14: b"^}",
    15: b"<`{",
    19: bytes((92, 195, 208)),
    20: bytes((128, 130, 131, 162, 184, 194, 224, 226)),
    21: bytes((153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230)),
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: bytes((9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237)),
    25: bytes((199, 207, 234, 235)),
    26: bytes((192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255)),
    27: bytes((203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253, 254)),
    28: bytes((*range(2, 9), 11, 12, *range(14, 22), *range(23, 32), 127, 220, 249)),
    30: bytes((10, 13, 22)),
}
"""Length in bits of a Huffman code → bytes with such codes. The code is canonical (RFC 7541 appendix B)."""


def _codes() -> dict[tuple[int, int], int]:
    """(length, code) → byte."""
    codes, code, length = {}, 0, 0
    for longer, symbols in _CODE_LENGTHS.items():
        code, length = code << (longer - length), longer
        for symbol in symbols:
            codes[longer, code] = symbol
            code += 1
    return codes


_CODES = _codes()

Line = tuple[bytes | None, bytes | None]
"""Name and value of a field; None where the dynamic table isn't known."""


class QpackError(Exception):
    """A rule of RFC 9204 that an encoder broke: the second argument says how."""

    def __init__(self, rule: str, actual: str) -> None:
        super().__init__(rule, actual)
        self.rule, self.actual = rule, actual


def prefixed(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """An integer with a prefix of `bits` bits (RFC 7541 §5.1). Raises IndexError at the end of the data."""
    value = data[position] & ((1 << bits) - 1)
    position += 1
    if value == (1 << bits) - 1:
        shift = 0
        while True:
            octet = data[position]
            position += 1
            value += (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80 or shift > 62:
                break
    return value, position


def _string(data: bytes, position: int, bits: int) -> tuple[bytes, int]:
    """A string whose length has a prefix of `bits` bits after the Huffman bit (RFC 9204 §4.1.2)."""
    huffman = data[position] >> bits & 1
    length, position = prefixed(data, position, bits)
    if position + length > len(data):
        raise IndexError
    raw = data[position : position + length]
    return (_huffman(raw) if huffman else raw), position + length


def _huffman(data: bytes) -> bytes:
    text, code, length = bytearray(), 0, 0
    for octet in data:
        for bit in range(7, -1, -1):
            code, length = code << 1 | octet >> bit & 1, length + 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                text.append(symbol)
                code = length = 0
    return bytes(text)


def _static(index: int) -> Line:
    if index >= len(STATIC_NAMES):
        raise QpackError("3.1-static-index-high", f"index {index} of the static table, which ends at 98")
    return STATIC_NAMES[index], _STATIC_VALUES.get(index, b"")


@dataclass
class DynamicTable:
    """The dynamic table that an encoder stream builds (RFC 9204 §3.2)."""

    most: int
    """SETTINGS_QPACK_MAX_TABLE_CAPACITY of the peer, in bytes."""
    entries: list[Line] = field(default_factory=list)
    """All entries that were ever inserted, by absolute index."""
    first: int = 0
    """Absolute index of the first entry that isn't evicted."""
    capacity: int = 0
    size: int = 0

    def read(self, data: bytes) -> Iterator[QpackError]:
        """Follow the instructions of an encoder stream (§4.3), up to the first that breaks a rule or is cut off."""
        position = 0
        try:
            while position < len(data):
                position = self._instruction(data, position)
        except QpackError as error:
            yield error
        except IndexError:
            return

    def _instruction(self, data: bytes, position: int) -> int:
        first = data[position]
        if first & 0x80:
            index, position = prefixed(data, position, 6)
            name = (_static(index) if first & 0x40 else self._relative(index))[0]
            value, position = _string(data, position, 7)
            self._insert((name, value))
        elif first & 0x40:
            name, position = _string(data, position, 5)
            value, position = _string(data, position, 7)
            self._insert((name, value))
        elif first & 0x20:
            capacity, position = prefixed(data, position, 5)
            if capacity > self.most:
                raise QpackError("4.3.1-capacity-high", f"a capacity of {capacity} B, the limit is {self.most} B")
            self.capacity = capacity
            self._evict(0)
        else:
            index, position = prefixed(data, position, 5)
            self._insert(self._relative(index))
        return position

    def _relative(self, index: int) -> Line:
        absolute = len(self.entries) - 1 - index
        if absolute < self.first:
            raise QpackError(
                "2.2.3-invalid-reference", f"an instruction refers to entry {absolute}; the first entry is {self.first}"
            )
        return self.entries[absolute]

    def _insert(self, line: Line) -> None:
        size = _size(line)
        if size > self.capacity:
            raise QpackError("3.2.2-entry-too-large", f"an entry of {size} B, the capacity is {self.capacity} B")
        self._evict(size)
        self.entries.append(line)
        self.size += size

    def _evict(self, room: int) -> None:
        while self.size > self.capacity - room:
            self.size -= _size(self.entries[self.first])
            self.first += 1

    def section(self, data: bytes) -> list[Line]:
        """The lines of a field section (§4.5). Raises QpackError when it breaks a rule, IndexError when it is cut off.

        The Required Insert Count is ambiguous when more entries were inserted than fit (§4.5.1.1): then references to
        the dynamic table become None.
        """
        encoded, position = prefixed(data, 0, 8)
        negative = data[position] & 0x80
        delta, position = prefixed(data, position, 7)
        full = 2 * (self.most // 32)
        required: int | None = max(encoded - 1, 0)
        if encoded > full or (required or 0) > len(self.entries) < full:
            raise QpackError(
                "2.2.3-invalid-reference",
                f"Required Insert Count {required}; {len(self.entries)} entries were inserted, and at most {full // 2} "
                "fit",
            )
        if len(self.entries) >= full and encoded:
            required = None
        base = None if required is None else required - delta - 1 if negative else required + delta
        lines: list[Line] = []
        while position < len(data):
            line, position = self._line(data, position, base, required)
            lines.append(line)
        return lines

    def _line(self, data: bytes, position: int, base: int | None, required: int | None) -> tuple[Line, int]:
        def dynamic(index: int) -> Line:
            if base is None or required is None:
                return None, None
            absolute = base - 1 - index
            if not 0 <= absolute < required:
                raise QpackError(
                    "2.2.3-invalid-reference", f"a reference to entry {absolute}, Required Insert Count {required}"
                )
            return self.entries[absolute]

        first = data[position]
        if first & 0x80:
            index, position = prefixed(data, position, 6)
            return (_static(index) if first & 0x40 else dynamic(index)), position
        if first & 0x40:
            index, position = prefixed(data, position, 4)
            name = (_static(index) if first & 0x10 else dynamic(index))[0]
        elif first & 0x20:
            name, position = _string(data, position, 3)
        elif first & 0x10:  # post-base indices count upwards from the base
            index, position = prefixed(data, position, 4)
            return dynamic(-1 - index), position
        else:
            index, position = prefixed(data, position, 3)
            name = dynamic(-1 - index)[0]
        value, position = _string(data, position, 7)
        return (name, value), position


def _size(line: Line) -> int:
    return len(line[0] or b"") + len(line[1] or b"") + 32  # RFC 9204 §3.2.1
