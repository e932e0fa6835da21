"""QUIC and TLS on the wire: integers, frames, handshake messages and packets (RFC 8446, 9000, 9001, 9221, 9369).

aioquic protects the packets; nothing is shared with the decoder of bentpipe.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

from aioquic._crypto import AEAD, CryptoError, HeaderProtection
from aioquic.quic.crypto import CryptoContext, CryptoPair, next_key_phase
from aioquic.quic.packet import decode_packet_number, get_retry_integrity_tag
from aioquic.tls import CipherSuite


def varint(value: int, size: int = 0) -> bytes:
    """The encoding of `value` in `size` bytes (1, 2, 4, 8), or in as few bytes as possible."""
    if not size:
        size = 1 if value < 1 << 6 else 2 if value < 1 << 14 else 4 if value < 1 << 30 else 8
    prefix = {1: 0, 2: 1, 4: 2, 8: 3}[size]
    return (value | prefix << (8 * size - 2)).to_bytes(size)


class Reader:
    """Reads bytes from the front. Raises IndexError when there are too few bytes."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        """The number of bytes that were not read yet."""
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.left:
            raise IndexError(f"{size} bytes are wanted, {self.left} are left")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, size: int) -> int:
        """The next `size` bytes as an integer."""
        return int.from_bytes(self.take(size))

    def varint(self) -> int:
        """The next integer of variable length."""
        first = self.number(1)
        size = 1 << (first >> 6)
        return (first & 0x3F) << 8 * (size - 1) | self.number(size - 1)

    def block(self, size: int = 0) -> bytes:
        """The next bytes, whose length comes before them. The length has `size` bytes, or is an integer of variable
        length."""
        return self.take(self.number(size) if size else self.varint())


class F(IntEnum):
    """Frame types, each with the names of its integers in the order on the wire, and the form of the bytes that follow.

    STREAM is 0x08 with its three flags. ACK and STREAM frames have forms of their own.
    """

    PADDING = 0x00
    PING = 0x01
    ACK = 0x02
    ACK_ECN = 0x03
    RESET_STREAM = 0x04, "stream code final"
    STOP_SENDING = 0x05, "stream code"
    CRYPTO = 0x06, "offset", "block"
    NEW_TOKEN = 0x07, "", "block"
    STREAM = 0x08
    MAX_DATA = 0x10, "limit"
    MAX_STREAM_DATA = 0x11, "stream limit"
    MAX_STREAMS_BIDI = 0x12, "limit"
    MAX_STREAMS_UNI = 0x13, "limit"
    DATA_BLOCKED = 0x14, "limit"
    STREAM_DATA_BLOCKED = 0x15, "stream limit"
    STREAMS_BLOCKED_BIDI = 0x16, "limit"
    STREAMS_BLOCKED_UNI = 0x17, "limit"
    NEW_CONNECTION_ID = 0x18, "sequence retire", "id and token"
    RETIRE_CONNECTION_ID = 0x19, "sequence"
    PATH_CHALLENGE = 0x1A, "", "eight bytes"
    PATH_RESPONSE = 0x1B, "", "eight bytes"
    CLOSE = 0x1C, "code frame", "block"
    CLOSE_APPLICATION = 0x1D, "code", "block"
    HANDSHAKE_DONE = 0x1E
    IMMEDIATE_ACK = 0x1F
    DATAGRAM = 0x30, "", "rest of the packet"
    DATAGRAM_LENGTH = 0x31, "", "block"
    ACK_FREQUENCY = 0xAF, "sequence threshold delay reordering"

    integers: tuple[str, ...]
    form: str

    def __new__(cls, value: int, integers: str = "", form: str = "") -> "F":
        member = int.__new__(cls, value)
        member._value_ = value
        member.integers, member.form = tuple(integers.split()), form
        return member


FIN, LENGTH, OFFSET = 1, 2, 4
"""Flags of STREAM frames (RFC 9000 §19.8)."""
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

    def but(self, **changes: Any) -> "Frame":
        """The same frame with other integers, or with another `type`, `data` or `ranges`."""
        fields = {name: changes.pop(name) for name in ("type", "data", "ranges") if name in changes}
        return replace(self, values=self.values | changes, raw=b"", **fields)

    def encode(self) -> bytes:
        """The bytes of the frame."""
        if self.raw:
            return self.raw
        if self.is_ack:
            return self._encode_ack()
        if self.is_stream:
            return self._encode_stream()
        kind = F(self.type)
        head = varint(kind) + b"".join(varint(self[name]) for name in kind.integers)
        if kind.form == "block":
            head += varint(len(self.data))
        elif kind.form == "id and token":
            head += bytes([len(self.data) - 16])
        return head + self.data

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
    frames: list[Frame] = []
    reader = Reader(payload)
    while reader.left:
        start = reader.position
        try:
            frame = _frame(reader)
        except (IndexError, ValueError):
            return [*frames, unknown(payload[start:])]
        frames.append(replace(frame, raw=payload[start : reader.position]))
    return frames


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
    form = F(kind).form
    values = {name: reader.varint() for name in F(kind).integers}
    if form == "block":
        return Frame(kind, values, reader.block())
    if form == "id and token":
        return Frame(kind, values, reader.take(reader.number(1) + 16))
    return Frame(kind, values, reader.take({"eight bytes": 8, "rest of the packet": reader.left}.get(form, 0)))


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


CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, ENCRYPTED_EXTENSIONS = 1, 2, 4, 8
END_OF_EARLY_DATA, CERTIFICATE_REQUEST, CERTIFICATE_VERIFY, FINISHED, KEY_UPDATE = 5, 13, 15, 20, 24
ALPN, KEYS, EARLY_DATA, SUPPORTED_VERSIONS, KEY_MODES, TRANSPORT_PARAMETERS = 16, 41, 42, 43, 45, 57

Pairs = list[tuple[int, bytes]]
Parameters = Pairs


class P:
    """Transport parameters (RFC 9000 §18.2, RFC 9221, RFC 9287, RFC 9368, draft-ietf-quic-ack-frequency, each §3)."""

    ORIGINAL_DCID = 0x00
    MAX_IDLE_TIMEOUT = 0x01
    RESET_TOKEN = 0x02
    MAX_UDP_PAYLOAD = 0x03
    MAX_DATA = 0x04
    MAX_STREAM_DATA_BIDI_LOCAL = 0x05
    MAX_STREAM_DATA_BIDI_REMOTE = 0x06
    MAX_STREAM_DATA_UNI = 0x07
    MAX_STREAMS_BIDI = 0x08
    MAX_STREAMS_UNI = 0x09
    ACK_DELAY_EXPONENT = 0x0A
    MAX_ACK_DELAY = 0x0B
    DISABLE_MIGRATION = 0x0C
    PREFERRED_ADDRESS = 0x0D
    CID_LIMIT = 0x0E
    INITIAL_SCID = 0x0F
    RETRY_SCID = 0x10
    VERSION_INFORMATION = 0x11
    MAX_DATAGRAM = 0x20
    GREASE_QUIC_BIT = 0x2AB2
    MIN_ACK_DELAY = 0xFF04DE1B


@dataclass
class Message:
    """One handshake message. In hellos and EncryptedExtensions, `before` and `extensions` together are the body."""

    type: int
    before: bytes
    extensions: Pairs = field(default_factory=list)

    def encode(self) -> bytes:
        """The bytes of the message."""
        body = self.before
        if self.type in _HEADS:
            each = b"".join(kind.to_bytes(2) + len(data).to_bytes(2) + data for kind, data in self.extensions)
            body += len(each).to_bytes(2) + each
        return bytes([self.type]) + len(body).to_bytes(3) + body

    def get(self, kind: int) -> bytes | None:
        """The data of an extension."""
        return next((data for each, data in self.extensions if each == kind), None)

    def set(self, kind: int, data: bytes | None) -> None:
        """Change, add or remove an extension."""
        # Not at the end: in a ClientHello the pre-shared key must be last.
        self.extensions = _with_entry(self.extensions, kind, data, front=True)


def _with_entry(listed: Pairs, kind: int, data: bytes | None, *, front: bool = False) -> Pairs:
    """The list with one entry changed, added or removed."""
    if data is None:
        return [each for each in listed if each[0] != kind]
    if kind in dict(listed):
        return [(each, data if each == kind else old) for each, old in listed]
    return [(kind, data), *listed] if front else [*listed, (kind, data)]


# The part of a message before its extensions: bytes, then blocks whose lengths have so many bytes, then bytes.
_HEADS = {
    CLIENT_HELLO: (34, (1, 2, 1), 0),
    SERVER_HELLO: (34, (1,), 3),
    NEW_SESSION_TICKET: (8, (1, 2), 0),
    ENCRYPTED_EXTENSIONS: (0, (), 0),
}


def messages(stream: bytes) -> tuple[list[Message], bytes]:
    """The complete messages of a CRYPTO stream, and the remaining bytes."""
    collected: list[Message] = []
    reader = Reader(stream)
    while reader.left >= 4:
        start = reader.position
        kind, size = reader.number(1), reader.number(3)
        if size > reader.left:
            return collected, stream[start:]
        body = Reader(reader.take(size))
        if kind not in _HEADS:
            collected.append(Message(kind, body.data))
            continue
        before, blocks, after = _HEADS[kind]
        body.take(before)
        for length in blocks:
            body.block(length)
        body.take(after)
        message = Message(kind, body.data[: body.position])
        listed = Reader(body.block(2))
        while listed.left:
            message.extensions.append((listed.number(2), listed.block(2)))
        collected.append(message)
    return collected, stream[reader.position :]


def parameters(data: bytes) -> Parameters:
    """The transport parameters in an extension's data, in order."""
    reader = Reader(data)
    collected: Parameters = []
    while reader.left:
        collected.append((reader.varint(), reader.block()))
    return collected


def encode_parameters(listed: Parameters) -> bytes:
    """The extension's data with these transport parameters."""
    return b"".join(varint(kind) + varint(len(data)) + data for kind, data in listed)


def with_parameter(listed: Parameters, kind: int, data: bytes | int | None) -> Parameters:
    """The parameters with one parameter changed, added or removed. An integer is encoded."""
    value = varint(data) if isinstance(data, int) else data
    return _with_entry(listed, kind, value)


def with_session_id(hello: Message, session: bytes) -> None:
    """Set legacy_session_id of a hello."""
    old = hello.before[34]
    hello.before = hello.before[:34] + bytes([len(session)]) + session + hello.before[35 + old :]


V1, V2 = 1, 0x6B3343CF
OTHER_VERSION = {V1: V2, V2: V1}
AES_128 = 0x1301
SUITES = (AES_128, 0x1302, 0x1303)
TAG = 16


@dataclass(frozen=True)
class Keys:
    """The keys of one secret. `masks`: the secret for header protection, which a key update doesn't change."""

    secret: bytes
    suite: int
    version: int
    masks: bytes = b""
    generation: int = 0

    def _context(self, secret: bytes) -> CryptoContext:
        context = CryptoContext()
        context.setup(cipher_suite=CipherSuite(self.suite), secret=secret, version=self.version)
        return context

    @cached_property
    def aead(self) -> AEAD:
        """Seals and opens payloads (RFC 9001 §5.3)."""
        aead = self._context(self.secret).aead
        assert aead is not None
        return aead

    @cached_property
    def protection(self) -> HeaderProtection:
        """Protects headers (RFC 9001 §5.4)."""
        protection = self._context(self.masks or self.secret).hp
        assert protection is not None
        return protection

    def next(self) -> "Keys":
        """The keys after an update (RFC 9001 §6.1)."""
        secret = next_key_phase(self._context(self.secret)).secret or b""
        return Keys(secret, self.suite, self.version, self.masks or self.secret, self.generation + 1)


def initial_keys(dcid: bytes, version: int) -> dict[str, Keys]:
    """Sender → keys of its Initial packets (RFC 9001 §5.2)."""
    pair = CryptoPair()
    pair.setup_initial(cid=dcid, is_client=True, version=version)
    return {
        role: Keys(context.secret or b"", AES_128, version)
        for role, context in (("client", pair.send), ("server", pair.recv))
    }


class Kind(Enum):
    """The kind of a packet. OPAQUE: bytes that no key opens, which are kept unchanged."""

    INITIAL = "initial"
    ZERO_RTT = "0-RTT"
    HANDSHAKE = "handshake"
    RETRY = "retry"
    VERSION_NEGOTIATION = "version negotiation"
    ONE_RTT = "1-RTT"
    OPAQUE = "opaque"


LONG = (Kind.INITIAL, Kind.ZERO_RTT, Kind.HANDSHAKE)
SPACES = {
    Kind.INITIAL: "initial",
    Kind.HANDSHAKE: "handshake",
    Kind.ZERO_RTT: "application",
    Kind.ONE_RTT: "application",
}
_TYPES = (Kind.INITIAL, Kind.ZERO_RTT, Kind.HANDSHAKE, Kind.RETRY)
"""By the type in a long header of version 1 (RFC 9000 §17.2). The types of version 2 are higher by one, modulo 4
(RFC 9369 §3.2)."""


@dataclass
class Packet:
    """One packet. `raw`: the captured, protected bytes. They are written again unless the packet was `changed`."""

    kind: Kind
    raw: bytes
    first: int = 0
    """The first byte, without header protection."""
    version: int = 0
    dcid: bytes = b""
    scid: bytes = b""
    token: bytes = b""
    number: int = -1
    frames: list[Frame] = field(default_factory=list)
    keys: Keys | None = None
    versions: tuple[int, ...] = ()
    """The versions of a Version Negotiation packet."""
    original: bytes = b""
    """Only in Retry packets: the connection ID that the tag covers."""
    changed: bool = False
    trailer: bytes = b""
    """Bytes after the packet that belong to no packet."""
    token_size: int = 0
    length_size: int = 2
    fields: slice = field(default_factory=lambda: slice(0, 0))
    """While the packet is unopened: the place of packet number and sealed payload in `raw`."""
    bad_tag: bool = False
    """Whether the packet is sealed with a wrong tag."""

    @property
    def opened(self) -> bool:
        """Whether the frames of the packet are known."""
        return self.keys is not None

    @property
    def space(self) -> str:
        """Its packet number space."""
        return SPACES[self.kind]

    @property
    def eliciting(self) -> bool:
        """Whether the packet is ack-eliciting."""
        return any(frame.eliciting for frame in self.frames)

    @property
    def number_size(self) -> int:
        """Bytes of the packet number on the wire."""
        return (self.first & 3) + 1

    @property
    def payload(self) -> bytes:
        """All frames, with the padding that header protection needs (RFC 9001 §5.4.2)."""
        encoded = b"".join(frame.encode() for frame in self.frames)
        return encoded + bytes(max(0, 4 - self.number_size - len(encoded)) if encoded else 0)

    def encode(self) -> bytes:
        """The protected bytes of the packet, and the trailer."""
        return self._protected() + self.trailer

    def _protected(self) -> bytes:
        if not self.changed:
            return self.raw
        if self.kind is Kind.RETRY:
            head = bytes([self.first]) + self._long_ids() + self.token
            tag = get_retry_integrity_tag(head, self.original, self.version)
            return head + (bytes([tag[0] ^ 1]) + tag[1:] if self.bad_tag else tag)
        if self.kind is Kind.VERSION_NEGOTIATION:
            return bytes([self.first]) + self._long_ids() + b"".join(each.to_bytes(4) for each in self.versions)
        if self.keys is None:
            return self.raw
        return self._sealed(self.keys)

    def _long_ids(self) -> bytes:
        ids = bytes([len(self.dcid)]) + self.dcid + bytes([len(self.scid)]) + self.scid
        return self.version.to_bytes(4) + ids

    def _sealed(self, keys: Keys) -> bytes:
        payload, size = self.payload, self.number_size
        if self.kind is Kind.ONE_RTT:
            head = bytes([self.first]) + self.dcid
        else:
            head = bytes([self.first]) + self._long_ids()
            if self.kind is Kind.INITIAL:
                head += varint(len(self.token), max(self.token_size, len(varint(len(self.token))))) + self.token
            length = size + len(payload) + TAG
            head += varint(length, max(self.length_size, len(varint(length))))
        head += (self.number & (1 << 8 * size) - 1).to_bytes(size)
        sealed = keys.aead.encrypt(payload, head, self.number)
        if self.bad_tag:
            sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
        return keys.protection.apply(head, sealed)

    def open(self, keys: Keys, largest: int) -> bool:
        """Try to open the packet with these keys. `largest`: the highest packet number of its sender and space so far,
        or -1."""
        if self.fields.stop - self.fields.start < 20:
            return False
        head, truncated = keys.protection.remove(self.raw, self.fields.start)
        number = decode_packet_number(truncated, 8 * ((head[0] & 3) + 1), largest + 1)
        try:
            payload = keys.aead.decrypt(self.raw[len(head) : self.fields.stop], head, number)
        except CryptoError:
            return False
        self.first, self.number, self.keys = head[0], number, keys
        self.frames = parse(payload)
        return True

    def edit(self, **fields: Any) -> None:
        """Change fields, so that the packet is encoded and sealed again."""
        for name, value in fields.items():
            setattr(self, name, value)
        self.changed = True

    def set_version(self, version: int) -> None:
        """Change the version, and the bits of the type, which depend on it. The keys stay."""
        bits = (_TYPES.index(self.kind) + (version == V2)) % 4
        self.edit(version=version, first=self.first & ~0x30 | bits << 4)

    def swap(self, old: Frame, *new: Frame) -> None:
        """Replace a frame by other frames."""
        at = next(index for index, each in enumerate(self.frames) if each is old)
        self.frames[at : at + 1] = new
        self.changed = True

    def add(self, *new: Frame) -> None:
        """Insert frames at the front, because a frame without a length and PADDING must come last."""
        self.frames[0:0] = new
        self.changed = True

    def pad(self, size: int) -> None:
        """Make the packet longer by `size` bytes of PADDING. With a negative `size`, remove that much PADDING if the
        packet has it."""
        self.changed = True
        if size > 0:
            last = self.frames[-1]
            if last.is_stream and not last.type & LENGTH:
                self.frames[-1] = last.but(type=last.type | LENGTH)
                size = max(size - len(varint(len(last.data))), 0)
            self.frames.append(padding(size))
            return
        for index, each in enumerate(self.frames):
            if each.type == F.PADDING:
                cut = min(-size, len(each.raw))
                self.frames[index] = padding(len(each.raw) - cut)
                size += cut
        self.frames = [each for each in self.frames if each.type != F.PADDING or each.raw]


def split(data: bytes) -> list[Packet]:
    """The packets of a datagram, unopened."""
    packets: list[Packet] = []
    position = 0
    while position < len(data):
        if packets and not any(data[position:]):  # some stacks fill datagrams after the last packet
            packets[-1].trailer = data[position:]
            break
        try:
            packet, position = _header(data, position)
        except IndexError:
            packets.append(Packet(Kind.OPAQUE, data[position:]))
            break
        packets.append(packet)
    return packets


def _header(data: bytes, start: int) -> tuple[Packet, int]:
    first = data[start]
    if not first & 0x80:
        return Packet(Kind.ONE_RTT, data[start:], first, fields=slice(0, len(data) - start)), len(data)
    reader = Reader(data, start + 1)
    version, dcid, scid = reader.number(4), reader.block(1), reader.block(1)
    if version == 0:
        listed = tuple(reader.number(4) for _ in range(reader.left // 4))
        kind = Kind.VERSION_NEGOTIATION
        return Packet(kind, data[start:], first, version, dcid, scid, versions=listed), len(data)
    if version not in (1, V2):
        return Packet(Kind.OPAQUE, data[start:]), len(data)
    kind = _TYPES[((first >> 4 & 3) - (version == V2)) % 4]
    packet = Packet(kind, b"", first, version, dcid, scid)
    if kind is Kind.RETRY:
        packet.raw = data[start:]
        packet.token = reader.take(reader.left - TAG)
        return packet, len(data)
    if kind is Kind.INITIAL:
        before = reader.position
        size = reader.varint()
        packet.token_size = reader.position - before
        packet.token = reader.take(size)
    before = reader.position
    length = reader.varint()
    packet.length_size = reader.position - before
    at = reader.position - start
    reader.take(length)
    packet.raw = data[start : reader.position]
    packet.fields = slice(at, len(packet.raw))
    return packet, reader.position
