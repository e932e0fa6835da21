"""QUIC packet headers, frames, and the rows of a capture while it is read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from runner.decode.columns import BIDIRECTIONAL_HEAD, UNIDIRECTIONAL_HEAD, Data, IntegerRows, Integers
from runner.decode.keys import TAG_LENGTH, VERSION_1, VERSION_2

# QUIC frames: RFC 9000 §19, DATAGRAM (RFC 9221 §4), ACK_FREQUENCY and IMMEDIATE_ACK (draft-ietf-quic-ack-frequency),
# TIME_STAMP (draft-huitema-quic-ts). Between two picoquic endpoints, every packet with an ACK has a TIME_STAMP.
#
# These functions are the innermost loop of the decoder. They write rows as flat integers; `tables` converts the rows to
# columns.

CRYPTO = 0x06
NEW_CONNECTION_ID = 0x18
_UNIDIRECTIONAL = 0x02  # bit of a stream ID, RFC 9000 §2.1
NONE = -1
"""Stands for null in the flat rows. It can't be confused with a value, because every field of a frame is an unsigned
number."""

_MASKS = {2: (1 << 14) - 1, 4: (1 << 30) - 1, 8: (1 << 62) - 1}

Event = tuple[int, int, bytes]
"""Data of a frame from which the connection learns. For CRYPTO: frame type, offset, data. For NEW_CONNECTION_ID: frame
type, sequence number, connection ID followed by the stateless reset token."""


MOST_BODIES = 1 << 26
"""Most bytes of HTTP/3 streams that are kept while a capture is read."""

_HEAD = ("packet", "frame", "type")
_STREAM = (*_HEAD, "stream_id", "offset", "length")
_ACK = (*_HEAD, "space", "largest", "raw_delay", "ranges_so_far", "ect0", "ect1", "ce")


@dataclass(slots=True)
class FrameRows:
    """The frames of all packets so far. The functions that read frames write values in the order of these columns."""

    packet: int = NONE
    space: int = NONE
    """Row and packet number space of the packet that is being read."""
    streams: IntegerRows = field(default_factory=lambda: IntegerRows(_STREAM))
    heads: dict[int, bytes] = field(default_factory=dict)
    """Row of `streams` → the part of its data that belongs to the head of the stream."""
    http3: bool = False
    """Whether the packet that is being read belongs to a connection that negotiated HTTP/3."""
    bodies: dict[int, bytes] = field(default_factory=dict)
    """Row of `streams` → all its data, for HTTP/3 and where `heads` lacks a part."""
    room: int = MOST_BODIES
    """Bytes that `bodies` may still keep."""
    acks: IntegerRows = field(default_factory=lambda: IntegerRows(_ACK))
    """`raw_delay` is not scaled. `ranges_so_far`: number of ranges in `ranges` up to and including this frame."""
    ranges: IntegerRows = field(default_factory=lambda: IntegerRows(("first", "last")))
    others: IntegerRows = field(default_factory=lambda: IntegerRows((*_STREAM, "value")))
    """All other frames. A frame of an unknown type has the type -1 - type."""
    reset_tokens: dict[int, bytes] = field(default_factory=dict)
    """Row of `others` → stateless reset token of NEW_CONNECTION_ID."""
    type_lengths: dict[int, int] = field(default_factory=dict)
    """Row of `others` → bytes of its type, where it has more bytes than needed (RFC 9000 §12.4)."""
    payloads: list[bytes | None] = field(default_factory=list)
    """One per row of `others`."""

    def data(self, row: int) -> bytes:
        """The data of a STREAM frame, as far as it is kept."""
        return self.bodies.get(row) or self.heads.get(row, b"")

    def all_of(self, name: str) -> Integers:
        """A column of `others`, for the frames of `others`, `streams` and `acks`, in this order. NONE: the frame has no
        such column."""
        return np.concatenate(
            [
                rows.column(name) if name in rows.names else np.full(len(rows), NONE, dtype=np.int64)
                for rows in (self.others, self.streams, self.acks)
            ]
        )

    def settle(self) -> None:
        """Move the rows so far to arrays, which need less memory."""
        for rows in (self.streams, self.acks, self.ranges, self.others):
            rows.settle()


def frame_names(types: Integers) -> Integers:
    """The name of each frame, as its place in NAMES_OF_FRAMES."""
    known = (types >= 0) & (types < len(_NAME_OF_TYPE))
    return np.where(known, _NAME_OF_TYPE[np.clip(types, 0, len(_NAME_OF_TYPE) - 1)], _UNKNOWN_NAME)


def varint(data: Data, position: int) -> tuple[int, int]:
    """The variable-length integer at `position` and the position after it (RFC 9000 §16).

    Raises IndexError when `position` is after the end of `data`. When the integer is cut off, the returned position is
    after the end of `data`.
    """
    first = data[position]
    if first < 0x40:
        return first, position + 1
    size = 1 << (first >> 6)
    return int.from_bytes(data[position : position + size]) & _MASKS[size], position + size


def parse_frames(plain: bytes, packet: int, space: int, rows: FrameRows) -> list[Event]:
    """Append the frames of a packet's payload to `rows`. Returns the frames that change the state of the connection.

    A frame of an unknown type, or with contradicting lengths, becomes one row of type `unknown` with the rest of the
    payload. Frames have no common length field, so later frames of the packet can't be read (RFC 9000 §12.4).
    """
    rows.packet, rows.space = packet, space
    events: list[Event] = []
    end = len(plain)
    position = frame = 0
    while position < end:
        kind = plain[position]
        try:
            if 0x08 <= kind < 0x10:
                after = _stream(plain, position, frame, rows)
            elif kind in (0x02, 0x03):
                after = _ack(plain, position, frame, rows)
            else:
                after = _other(plain, position, frame, rows, events)
        except IndexError:
            after = 0
        if not after:
            _unknown(plain, position, frame, rows)
            break
        position = after
        frame += 1
    return events


def _unknown(plain: bytes, position: int, frame: int, rows: FrameRows) -> None:
    try:
        kind, _ = varint(plain, position)
    except IndexError:
        kind = plain[position]
    length = len(plain) - position
    rows.others.tail += (rows.packet, frame, -1 - kind, NONE, NONE, length, NONE)
    rows.payloads.append(plain[position:])


def _stream(plain: bytes, position: int, frame: int, rows: FrameRows) -> int:
    """Read a STREAM frame (RFC 9000 §19.8). Returns the position after the frame; 0 when the frame is malformed."""
    kind = plain[position]
    stream_id, position = varint(plain, position + 1)
    offset = 0
    if kind & 0x04:
        offset, position = varint(plain, position)
    end = len(plain)
    if kind & 0x02:
        length, position = varint(plain, position)
    else:
        length = end - position
    if length < 0 or position + length > end:
        return 0
    head = (UNIDIRECTIONAL_HEAD if stream_id & _UNIDIRECTIONAL else BIDIRECTIONAL_HEAD) - offset
    if head > 0:
        rows.heads[len(rows.streams)] = plain[position : position + min(length, head)]
    if rows.http3 and length > head and rows.room > 0:
        rows.bodies[len(rows.streams)] = plain[position : position + length]
        rows.room -= length
    rows.streams.tail += (rows.packet, frame, kind, stream_id, offset, length)
    return position + length


def _ack(plain: bytes, position: int, frame: int, rows: FrameRows) -> int:
    """Read an ACK frame (RFC 9000 §19.3). Returns the position after the frame; 0 when the frame is malformed."""
    kind = plain[position]
    largest, position = varint(plain, position + 1)
    delay, position = varint(plain, position)
    count, position = varint(plain, position)
    first_length, position = varint(plain, position)
    smallest = largest - first_length
    ranges = [smallest, largest]
    if count > len(plain) - position:
        return 0
    for _ in range(count):
        # Almost all gaps and lengths have one byte, and a trace with loss has hundreds of thousands of gaps.
        gap = plain[position]
        if gap < 0x40:
            position += 1
        else:
            gap, position = varint(plain, position)
        length = plain[position]
        if length < 0x40:
            position += 1
        else:
            length, position = varint(plain, position)
        last = smallest - gap - 2
        smallest = last - length
        ranges.append(smallest)
        ranges.append(last)
    ect0 = ect1 = ce = NONE
    if kind == 0x03:
        ect0, position = varint(plain, position)
        ect1, position = varint(plain, position)
        ce, position = varint(plain, position)
    if smallest < 0 or position > len(plain):
        return 0
    rows.ranges.tail += ranges
    rows.acks.tail += (rows.packet, frame, kind, rows.space, largest, delay, len(rows.ranges), ect0, ect1, ce)
    return position


def _other(plain: bytes, position: int, frame: int, rows: FrameRows, events: list[Event]) -> int:
    kind, after = varint(plain, position)
    if kind == 0:
        if plain[position]:
            return 0  # type 0 is encoded in several bytes (RFC 9000 §12.4 forbids this), so no run of zeros begins
        # A run of PADDING is one row, up to the first byte that is not 0.
        length = len(plain) - position - len(plain[position:].lstrip(b"\0"))
        rows.others.tail += (rows.packet, frame, 0, NONE, NONE, length, NONE)
        rows.payloads.append(None)
        return position + length
    size = after - position
    reader = _READERS.get(kind)
    if reader is None:
        return 0
    stream_id, offset, length, value, payload, after = reader(plain, after)
    if after > len(plain) or (length >= 0 and payload is not None and len(payload) != length):
        return 0
    if size > 1 and kind < 1 << (6 if size == 2 else 14 if size == 4 else 30):
        rows.type_lengths[len(rows.payloads)] = size
    rows.others.tail += (rows.packet, frame, kind, stream_id, offset, length, value)
    rows.payloads.append(payload)
    if kind == CRYPTO and payload is not None:
        events.append((CRYPTO, offset, payload))
    elif kind == NEW_CONNECTION_ID and payload is not None:
        rows.reset_tokens[len(rows.payloads) - 1] = plain[after - 16 : after]
        events.append((NEW_CONNECTION_ID, value, payload + plain[after - 16 : after]))
    return after


Fields = tuple[int, int, int, int, bytes | None, int]
"""stream ID, offset, length, value, payload, position after the frame"""


def _empty(_: bytes, position: int) -> Fields:
    return NONE, NONE, NONE, NONE, None, position


def _one_value(plain: bytes, position: int) -> Fields:
    value, position = varint(plain, position)
    return NONE, NONE, NONE, value, None, position


def _stream_and_value(plain: bytes, position: int) -> Fields:
    stream_id, position = varint(plain, position)
    value, position = varint(plain, position)
    return stream_id, NONE, NONE, value, None, position


def _reset_stream(plain: bytes, position: int) -> Fields:
    stream_id, position = varint(plain, position)
    error, position = varint(plain, position)
    final_size, position = varint(plain, position)
    return stream_id, final_size, NONE, error, None, position


def _crypto(plain: bytes, position: int) -> Fields:
    offset, position = varint(plain, position)
    length, position = varint(plain, position)
    return NONE, offset, length, NONE, plain[position : position + length], position + length


def _new_token(plain: bytes, position: int) -> Fields:
    length, position = varint(plain, position)
    return NONE, NONE, length, NONE, plain[position : position + length], position + length


def _new_connection_id(plain: bytes, position: int) -> Fields:
    sequence, position = varint(plain, position)
    retire_prior_to, position = varint(plain, position)
    length = plain[position]
    position += 1
    return NONE, retire_prior_to, length, sequence, plain[position : position + length], position + length + 16


def _path_data(plain: bytes, position: int) -> Fields:
    return NONE, NONE, 8, NONE, plain[position : position + 8], position + 8


def _connection_close(plain: bytes, position: int) -> Fields:
    error, position = varint(plain, position)
    _, position = varint(plain, position)
    length, position = varint(plain, position)
    return NONE, NONE, length, error, plain[position : position + length], position + length


def _application_close(plain: bytes, position: int) -> Fields:
    error, position = varint(plain, position)
    length, position = varint(plain, position)
    return NONE, NONE, length, error, plain[position : position + length], position + length


def _datagram_to_the_end(plain: bytes, position: int) -> Fields:
    return NONE, NONE, len(plain) - position, NONE, None, len(plain)


def _datagram(plain: bytes, start: int) -> Fields:
    """Read DATAGRAM with a length field. The value is the number of bytes of this field."""
    length, position = varint(plain, start)
    return NONE, NONE, length, position - start, None, position + length


def _ack_frequency(plain: bytes, start: int) -> Fields:
    """Read ACK_FREQUENCY. The value is the sequence number; the payload is the bytes of all four fields."""
    sequence, position = varint(plain, start)
    for _ in range(3):  # Ack-Eliciting Threshold, Requested Max Ack Delay, Reordering Threshold
        _, position = varint(plain, position)
    return NONE, NONE, NONE, sequence, plain[start:position], position


Reader = Callable[[bytes, int], Fields]

_FRAMES: dict[int, tuple[str, Reader | None]] = {
    0x00: ("padding", None),
    0x01: ("ping", _empty),
    0x02: ("ack", None),
    0x03: ("ack", None),
    0x04: ("reset_stream", _reset_stream),
    0x05: ("stop_sending", _stream_and_value),
    0x06: ("crypto", _crypto),
    0x07: ("new_token", _new_token),
    **dict.fromkeys(range(0x08, 0x10), ("stream", None)),
    0x10: ("max_data", _one_value),
    0x11: ("max_stream_data", _stream_and_value),
    0x12: ("max_streams_bidi", _one_value),
    0x13: ("max_streams_uni", _one_value),
    0x14: ("data_blocked", _one_value),
    0x15: ("stream_data_blocked", _stream_and_value),
    0x16: ("streams_blocked_bidi", _one_value),
    0x17: ("streams_blocked_uni", _one_value),
    0x18: ("new_connection_id", _new_connection_id),
    0x19: ("retire_connection_id", _one_value),
    0x1A: ("path_challenge", _path_data),
    0x1B: ("path_response", _path_data),
    0x1C: ("connection_close", _connection_close),
    0x1D: ("application_close", _application_close),
    0x1E: ("handshake_done", _empty),
    0x1F: ("immediate_ack", _empty),
    0x30: ("datagram", _datagram_to_the_end),
    0x31: ("datagram", _datagram),
    0xAC: ("immediate_ack", _empty),  # its number in earlier drafts
    0xAF: ("ack_frequency", _ack_frequency),
    0x2F5: ("time_stamp", _one_value),
}
"""Frame type → name, and the function that reads it; None: a function above does."""

_READERS = {kind: reader for kind, (_, reader) in _FRAMES.items() if reader is not None}
FRAME_NAMES = {kind: name for kind, (name, _) in _FRAMES.items()}
NAMES_OF_FRAMES = (*dict.fromkeys(FRAME_NAMES.values()), "unknown")
_UNKNOWN_NAME = len(NAMES_OF_FRAMES) - 1
_NAME_OF_TYPE = np.full(max(FRAME_NAMES) + 1, _UNKNOWN_NAME, dtype=np.int64)
for _type, _name in FRAME_NAMES.items():
    _NAME_OF_TYPE[_type] = NAMES_OF_FRAMES.index(_name)


# QUIC packet headers: the parts that are readable without keys (RFC 8999, RFC 9000 §17, RFC 9369 §3.2).


class PacketType(IntEnum):
    """Positions in runner.decode.columns.PACKET_TYPES."""

    INITIAL = 0
    ZERO_RTT = 1
    HANDSHAKE = 2
    ONE_RTT = 3
    RETRY = 4
    VERSION_NEGOTIATION = 5
    STATELESS_RESET = 6
    UNKNOWN = 7


_V1_TYPES = (PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE, PacketType.RETRY)
_V2_TYPES = (PacketType.RETRY, PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE)
_TYPES = {VERSION_1: _V1_TYPES, VERSION_2: _V2_TYPES}

KNOWN_VERSIONS = (
    (0xFF000004, 0xFF0000FF, "draft-{:02}"),
    (0xFF010000, 0xFF02FFFF, "a draft of QUIC version 2"),
    (0x709A50C4, 0x709A50C4, "a draft of QUIC version 2"),
    (0x51303030, 0x51303939, "gQUIC {}"),
    (0x54303430, 0x54303939, "gQUIC {} (with TLS)"),
    (0xFACEB000, 0xFACEB0FF, "mvfst (Facebook)"),
    (0x50435130, 0x50435139, "a test version of picoquic ({})"),
    (0xABCD0000, 0xABCD000F, "a test version of MsQuic"),
    (0x91C17000, 0x91C170FF, "a test version of quicly"),
    (0x51474F00, 0x51474FFF, "a test version of quic-go"),
    (0x45474700, 0x454747FF, "a test version of Quant"),
    (0xF123F0C0, 0xF123F0CF, "a test version of MozQuic"),
    (0x50524F58, 0x50524F58, "Proxied QUIC"),
    (0xF0F0F0F0, 0xF0F0F0FF, "an experiment of ETH Zürich"),
    (0xF0F0F1F0, 0xF0F0F1FF, "an experiment of Telecom Italia"),
)
"""Ranges of versions that bentpipe names and does not read: first, last, name (QUIC-WG wiki: QUIC-Versions). `{}`: the
four characters of the version; in drafts, its last byte."""


def has_name(version: int) -> bool:
    """Whether the version is one of `KNOWN_VERSIONS`."""
    return any(first <= version <= last for first, last, _ in KNOWN_VERSIONS)


def version_name(version: int) -> str:
    """The name of a QUIC version with its number."""
    name = {VERSION_1: "1", VERSION_2: "2"}.get(version, "")
    for first, last, known in KNOWN_VERSIONS:
        if first <= version <= last:
            name = known.format(version & 0xFF if version >= 0xFF000000 else version.to_bytes(4).decode("latin-1"))
    if version & 0x0F0F0F0F == 0x0A0A0A0A:
        name = "reserved to force Version Negotiation"  # RFC 9000 §15
    return f"{name} (0x{version:08x})" if name else f"0x{version:08x}"


def _has_short_lengths(version: int) -> bool:
    """Whether the lengths of both connection IDs share one byte, as before draft-22 and in gQUIC before Q050."""
    return 0xFF000000 < version <= 0xFF000015 or 0x51303433 <= version <= 0x51303439 or version >> 4 == 0x5430343


@dataclass(slots=True)
class LongHeader:
    """A long header at data[start:end] of the capture file. `dcid` and `scid` are empty when they are cut off."""

    type: PacketType
    version: int
    start: int
    end: int
    """Position after the last byte of this packet according to its Length field. In types without this field, the end
    of the datagram."""
    dcid: bytes = b""
    scid: bytes = b""
    token: bytes | None = None
    number_at: int = 0
    """Position of the packet number; 0 in types without a packet number."""
    supported_versions: list[int] | None = None
    """The versions that a Version Negotiation packet lists (RFC 9000 §17.2.1); None in other types."""
    complete: bool = True
    """False when the capture contains only the beginning of the packet, or when the header contradicts itself."""


def parse_long_header(data: Data, start: int, end: int) -> LongHeader:
    """The long header at `start` of a datagram that ends at `end`. Never raises."""
    header = LongHeader(PacketType.UNKNOWN, int.from_bytes(data[start + 1 : start + 5]), start, end)
    try:
        length, position = data[start + 5], start + 6
        short_lengths = _has_short_lengths(header.version)
        lengths = [each + 3 if each else 0 for each in divmod(length, 16)] if short_lengths else [length]
        if position + lengths[0] > end:
            raise IndexError
        header.dcid, position = data[position : position + lengths[0]], position + lengths[0]
        length, position = (lengths[1], position) if short_lengths else (data[position], position + 1)
        if position + length > end:
            raise IndexError
        header.scid, position = data[position : position + length], position + length
        types = _TYPES.get(header.version)
        if types is not None:
            header.type = types[data[start] >> 4 & 3]
            _rest(data, position, end, header)
        elif header.version == 0:
            header.type = PacketType.VERSION_NEGOTIATION
            header.supported_versions = [int.from_bytes(data[at : at + 4]) for at in range(position, end - 3, 4)]
    except IndexError:
        header.complete = False
    return header


def _rest(data: Data, position: int, end: int, header: LongHeader) -> None:
    if header.type is PacketType.RETRY:
        if end - position < TAG_LENGTH:
            raise IndexError
        header.token = data[position : end - TAG_LENGTH]
        return
    if header.type is PacketType.INITIAL:
        size, position = varint(data, position)
        header.token = data[position : min(position + size, end)] if size else b""
        position += size
    length, position = varint(data, position)
    header.number_at = position
    if position + length > end:
        header.complete = False
    else:
        header.end = position + length


# The rows of a capture while it is read. `tables` converts them to columns.


class PacketRow(NamedTuple):
    """One packet. `runner.decode.tables.PACKETS` describes the fields. NONE: the value is unknown, or the packet has no
    such field."""

    datagram: int
    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody needs here
    connection: int = NONE
    sender: int = NONE
    type: int = NONE
    """PacketType"""
    version: int = NONE
    dcid: int = NONE
    """Place in `Rows.cids`, like `scid`."""
    scid: int = NONE
    packet_number: int = NONE
    key_phase: int = NONE
    key_generation: int = NONE
    length: int = NONE
    decrypted: int = 0
    """0 or 1"""
    token_length: int = NONE
    suite: int = NONE
    """Place in runner.decode.keys.SUITES."""
    first_byte: int = NONE
    key_version: int = NONE


class Rows:
    """Packets and frames of a capture. Unknown fields have the value NONE."""

    __slots__ = ("_cid_numbers", "cids", "frames", "packets", "supported_versions", "tokens")

    def __init__(self) -> None:
        self.packets = IntegerRows(PacketRow._fields)
        self.frames = FrameRows()
        self.cids: list[bytes] = []
        """Distinct connection IDs; the packets hold positions in this list."""
        self.supported_versions: dict[int, list[int]] = {}
        """Row of a Version Negotiation packet → the versions that it lists."""
        self.tokens: dict[int, bytes] = {}
        """Row of an Initial or Retry packet → its token, where it has one."""
        self._cid_numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.packets)

    def settle(self) -> None:
        """Move the rows so far to arrays, which need less memory."""
        self.packets.settle()
        self.frames.settle()

    def cid(self, cid: bytes) -> int:
        """The position of a connection ID in `cids`. A new ID is appended."""
        number = self._cid_numbers.get(cid)
        if number is None:
            number = self._cid_numbers[cid] = len(self.cids)
            self.cids.append(cid)
        return number

    def add(self, packet: PacketRow) -> int:
        """Add a packet, and return its row number."""
        row = len(self.packets)
        self.packets.tail += packet
        return row

    def fill(self, row: int, connection: int, sender: int, kind: PacketType) -> None:
        """Fill in connection, sender and type of a packet without packet protection."""
        for name, value in (("connection", connection), ("sender", sender), ("decrypted", 1), ("type", kind)):
            self.packets[row, name] = value
