"""Parses, makes and encodes frames of QUIC packets (RFC 9000 §19, RFC 9221 §4)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from lab.mutate.wire import Reader, varint


class F(IntEnum):
    """Frame types. STREAM is 0x08 with its three flags."""

    PADDING = 0x00
    PING = 0x01
    ACK = 0x02
    ACK_ECN = 0x03
    RESET_STREAM = 0x04
    STOP_SENDING = 0x05
    CRYPTO = 0x06
    NEW_TOKEN = 0x07
    STREAM = 0x08
    MAX_DATA = 0x10
    MAX_STREAM_DATA = 0x11
    MAX_STREAMS_BIDI = 0x12
    MAX_STREAMS_UNI = 0x13
    DATA_BLOCKED = 0x14
    STREAM_DATA_BLOCKED = 0x15
    STREAMS_BLOCKED_BIDI = 0x16
    STREAMS_BLOCKED_UNI = 0x17
    NEW_CONNECTION_ID = 0x18
    RETIRE_CONNECTION_ID = 0x19
    PATH_CHALLENGE = 0x1A
    PATH_RESPONSE = 0x1B
    CLOSE = 0x1C
    CLOSE_APPLICATION = 0x1D
    HANDSHAKE_DONE = 0x1E
    IMMEDIATE_ACK = 0x1F
    DATAGRAM = 0x30
    DATAGRAM_LENGTH = 0x31
    ACK_FREQUENCY = 0xAF


FIN, LENGTH, OFFSET = 1, 2, 4
"""Flags of STREAM frames (RFC 9000 §19.8)."""

# Frame type → names of its integers in the order on the wire, and the form of the bytes that follow: none, eight bytes,
# or a length and the bytes.
_LAYOUT: dict[int, tuple[tuple[str, ...], str]] = {
    F.PING: ((), ""),
    F.RESET_STREAM: (("stream", "code", "final"), ""),
    F.STOP_SENDING: (("stream", "code"), ""),
    F.CRYPTO: (("offset",), "block"),
    F.NEW_TOKEN: ((), "block"),
    F.MAX_DATA: (("limit",), ""),
    F.MAX_STREAM_DATA: (("stream", "limit"), ""),
    F.MAX_STREAMS_BIDI: (("limit",), ""),
    F.MAX_STREAMS_UNI: (("limit",), ""),
    F.DATA_BLOCKED: (("limit",), ""),
    F.STREAM_DATA_BLOCKED: (("stream", "limit"), ""),
    F.STREAMS_BLOCKED_BIDI: (("limit",), ""),
    F.STREAMS_BLOCKED_UNI: (("limit",), ""),
    F.RETIRE_CONNECTION_ID: (("sequence",), ""),
    F.PATH_CHALLENGE: ((), "eight"),
    F.PATH_RESPONSE: ((), "eight"),
    F.CLOSE: (("code", "frame"), "block"),
    F.CLOSE_APPLICATION: (("code",), "block"),
    F.HANDSHAKE_DONE: ((), ""),
    F.IMMEDIATE_ACK: ((), ""),
    F.DATAGRAM: ((), "rest"),
    F.DATAGRAM_LENGTH: ((), "block"),
    F.ACK_FREQUENCY: (("sequence", "threshold", "delay", "reordering"), ""),
}
_NOT_ELICITING = {F.PADDING, F.ACK, F.ACK_ECN, F.CLOSE, F.CLOSE_APPLICATION}


@dataclass(frozen=True)
class Frame:
    """One frame, or a run of PADDING. `raw` is its captured encoding; without `raw` the frame is encoded from its
    fields."""

    type: int
    values: dict[str, int] = field(default_factory=dict)
    data: bytes = b""
    ranges: tuple[tuple[int, int], ...] = ()
    """ACK frames only: lowest and highest packet number of each range, the highest range first."""
    raw: bytes = b""

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    @property
    def is_stream(self) -> bool:
        """Whether it is a STREAM frame."""
        return self.type & ~7 == F.STREAM

    @property
    def is_ack(self) -> bool:
        """Whether it is an ACK frame, with or without counts."""
        return self.type in (F.ACK, F.ACK_ECN)

    @property
    def eliciting(self) -> bool:
        """Whether the frame is ack-eliciting (RFC 9000 §1.2)."""
        return self.type not in _NOT_ELICITING

    @property
    def offset(self) -> int:
        """Offset of the first byte, in STREAM and CRYPTO frames."""
        return self.values.get("offset", 0)

    @property
    def end(self) -> int:
        """Offset after the last byte, in STREAM and CRYPTO frames."""
        return self.offset + len(self.data)

    @property
    def fin(self) -> bool:
        """Whether a STREAM frame ends its stream."""
        return self.is_stream and bool(self.type & FIN)

    def but(
        self,
        *,
        type: int | None = None,
        data: bytes | None = None,
        ranges: Sequence[tuple[int, int]] | None = None,
        **values: int,
    ) -> "Frame":
        """The same frame with other fields."""
        return replace(
            self,
            type=self.type if type is None else type,
            values=self.values | values,
            data=self.data if data is None else data,
            ranges=self.ranges if ranges is None else tuple(ranges),
            raw=b"",
        )

    def with_value(self, name: str, value: int) -> "Frame":
        """The same frame with another integer."""
        return replace(self, values=self.values | {name: value}, raw=b"")

    def encode(self) -> bytes:
        """The bytes of the frame."""
        if self.raw:
            return self.raw
        if self.is_ack:
            return self._encode_ack()
        if self.is_stream:
            return self._encode_stream()
        if self.type == F.NEW_CONNECTION_ID:
            head = bytes([F.NEW_CONNECTION_ID]) + varint(self["sequence"]) + varint(self["retire"])
            return head + bytes([len(self.data) - 16]) + self.data
        names, tail = _LAYOUT[self.type]
        head = varint(self.type) + b"".join(varint(self[name]) for name in names)
        return head + (varint(len(self.data)) if tail == "block" else b"") + self.data

    def _encode_stream(self) -> bytes:
        parts = [varint(self.type), varint(self["stream"])]
        if self.type & OFFSET:
            parts.append(varint(self["offset"]))
        if self.type & LENGTH:
            parts.append(varint(len(self.data)))
        return b"".join(parts) + self.data

    def _encode_ack(self) -> bytes:
        low, high = self.ranges[0]
        parts = [self.type, high, self["delay"], len(self.ranges) - 1, high - low]
        for next_low, next_high in self.ranges[1:]:
            parts += [low - next_high - 2, next_high - next_low]
            low = next_low
        if self.type == F.ACK_ECN:
            parts += [self["ect0"], self["ect1"], self["ce"]]
        return b"".join(map(varint, parts))


def frame(type: int, data: bytes = b"", **values: int) -> Frame:
    """A new frame."""
    return Frame(type, values, data)


def ack(*ranges: tuple[int, int], delay: int = 0) -> Frame:
    """A new ACK frame with these ranges, the highest range first."""
    return Frame(F.ACK, {"delay": delay}, ranges=ranges)


def stream(number: int, offset: int, data: bytes, *, fin: bool = False) -> Frame:
    """A new STREAM frame with offset and length."""
    return Frame(F.STREAM | OFFSET | LENGTH | (FIN if fin else 0), {"stream": number, "offset": offset}, data)


def new_connection_id(sequence: int, cid: bytes, *, retire: int = 0, token: bytes) -> Frame:
    """A new NEW_CONNECTION_ID frame. As in a parsed frame, its bytes are the connection ID and the token."""
    return Frame(F.NEW_CONNECTION_ID, {"sequence": sequence, "retire": retire}, cid + token)


def padding(size: int) -> Frame:
    """A run of PADDING frames."""
    return Frame(F.PADDING, raw=bytes(size))


def unknown(data: bytes) -> Frame:
    """Arbitrary bytes in the place of a frame."""
    return Frame(-1, raw=data)


def parse(payload: bytes) -> list[Frame]:
    """The frames of a packet. The first frame that can't be read is kept, with all bytes after it, as type -1."""
    return list(_parse(payload))


def _parse(payload: bytes) -> Iterator[Frame]:
    reader = Reader(payload)
    while reader.left:
        start = reader.position
        try:
            parsed = _frame(reader)
        except (IndexError, KeyError):
            yield unknown(payload[start:])
            return
        yield replace(parsed, raw=payload[start : reader.position])


def _frame(reader: Reader) -> Frame:
    kind = reader.varint()
    if kind == F.PADDING:
        while reader.left and reader.data[reader.position] == 0:
            reader.position += 1
        return Frame(kind)
    if kind in (F.ACK, F.ACK_ECN):
        return _ack(reader, kind)
    if kind & ~7 == F.STREAM:
        values = {"stream": reader.varint()}
        if kind & OFFSET:
            values["offset"] = reader.varint()
        return Frame(kind, values, reader.block() if kind & LENGTH else reader.take(reader.left))
    if kind == F.NEW_CONNECTION_ID:
        values = {"sequence": reader.varint(), "retire": reader.varint()}
        return Frame(kind, values, reader.take(reader.number(1) + 16))
    names, tail = _LAYOUT[kind]
    values = {name: reader.varint() for name in names}
    size = {"": 0, "eight": 8, "rest": reader.left}
    return Frame(kind, values, reader.block() if tail == "block" else reader.take(size[tail]))


def _ack(reader: Reader, kind: int) -> Frame:
    high, delay, count = reader.varint(), reader.varint(), reader.varint()
    low = high - reader.varint()
    ranges = [(low, high)]
    for _ in range(count):
        high = low - reader.varint() - 2
        low = high - reader.varint()
        ranges.append((low, high))
    values = {"delay": delay}
    if kind == F.ACK_ECN:
        values |= {name: reader.varint() for name in ("ect0", "ect1", "ce")}
    return Frame(kind, values, ranges=tuple(ranges))
