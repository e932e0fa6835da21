"""QUIC packets: parses headers, opens payloads, and encodes both again (RFC 9000 §17)."""

from dataclasses import dataclass, field
from enum import Enum

from lab.mutate import frames
from lab.mutate.frames import F, Frame
from lab.mutate.protection import TAG, V2, Keys, retry_tag
from lab.mutate.wire import Reader, varint


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
_BITS = {Kind.INITIAL: 0, Kind.ZERO_RTT: 1, Kind.HANDSHAKE: 2, Kind.RETRY: 3}


def type_bits(kind: Kind, version: int) -> int:
    """The packet type of a long header (RFC 9000 §17.2, RFC 9369 §3.2)."""
    return (_BITS[kind] + (version == V2)) % 4


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
            tag = retry_tag(self.version, self.original, head)
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
        number_at = len(head)
        head += (self.number & (1 << 8 * size) - 1).to_bytes(size)
        sealed = keys.seal(self.number, head, payload)
        if self.bad_tag:
            sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
        whole = bytearray(head + sealed)
        mask = keys.mask(bytes(whole[number_at + 4 : number_at + 20]))
        whole[0] ^= mask[0] & (0x1F if self.kind is Kind.ONE_RTT else 0x0F)
        for at in range(size):
            whole[number_at + at] ^= mask[1 + at]
        return bytes(whole)

    def open(self, keys: Keys, largest: int) -> bool:
        """Try to open the packet with these keys. `largest`: the highest packet number of its sender and space so far,
        or -1."""
        protected = bytearray(self.raw)
        at = self.fields.start
        if self.fields.stop - at < 20:
            return False
        mask = keys.mask(self.raw[at + 4 : at + 20])
        first = protected[0] ^ mask[0] & (0x1F if self.kind is Kind.ONE_RTT else 0x0F)
        size = (first & 3) + 1
        protected[0] = first
        for index in range(size):
            protected[at + index] ^= mask[1 + index]
        number = full_number(int.from_bytes(protected[at : at + size]), 8 * size, largest)
        payload = keys.open(number, bytes(protected[: at + size]), self.raw[at + size : self.fields.stop])
        if payload is None:
            return False
        self.first, self.number, self.keys = first, number, keys
        self.frames = frames.parse(payload)
        return True

    def drop(self, *unwanted: Frame) -> None:
        """Remove these frames."""
        self.frames = [frame for frame in self.frames if not any(frame is each for each in unwanted)]
        if not self.frames:
            self.frames = [frames.frame(F.PING)]
        self.changed = True

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
            if last.is_stream and not last.type & frames.LENGTH:
                self.frames[-1] = last.but(type=last.type | frames.LENGTH)
                size = max(size - len(varint(len(last.data))), 0)
            self.frames.append(frames.padding(size))
            return
        for index, each in enumerate(self.frames):
            if each.type == F.PADDING:
                cut = min(-size, len(each.raw))
                self.frames[index] = frames.padding(len(each.raw) - cut)
                size += cut
        self.frames = [each for each in self.frames if each.type != F.PADDING or each.raw]


def full_number(truncated: int, bits: int, largest: int) -> int:
    """The full packet number that follows from its last bits (RFC 9000 appendix A.3)."""
    expected, window = largest + 1, 1 << bits
    candidate = expected & ~(window - 1) | truncated
    if candidate <= expected - window // 2 and candidate < (1 << 62) - window:
        return candidate + window
    return candidate - window if candidate > expected + window // 2 and candidate >= window else candidate


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
        except (IndexError, KeyError):
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
    kind = next(kind for kind in _BITS if type_bits(kind, version) == first >> 4 & 3)
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
