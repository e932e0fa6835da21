"""The state of a connection while its packets are read: keys, packet numbers, connection IDs, handshake."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag

from runner.decode.file_bytes import Data
from runner.decode.handshake import CryptoStream
from runner.decode.keylog import APPLICATION, EARLY, HANDSHAKE, Session
from runner.decode.packets import LongHeader
from runner.decode.protection import (
    SAMPLE_LENGTH,
    VERSIONS,
    Protection,
    Suite,
    candidates,
    initial_protection,
    reconstruct,
)
from runner.decode.schema import CLIENT, SERVER
from runner.decode.transport_parameters import TransportParameters

INITIAL_SPACE, HANDSHAKE_SPACE, APPLICATION_SPACE = 0, 1, 2

MOST_DCIDS = 8
"""The largest number of connection IDs per connection from which Initial keys are derived. An honest connection has one
such ID, or two after a Retry."""

_GENERATIONS_AHEAD = 6
"""Largest number of consecutive key updates that may be missing from the capture."""

OneRtt = tuple[int, bytes, int, int, int]
"""packet number, payload, key phase, key generation, unprotected first byte"""


class KeyRing:
    """The 1-RTT keys of one sender: all generations so far (RFC 9001 §6)."""

    __slots__ = (
        *("_generations", "_mask", "_protected_bits", "_start", "_unmasked", "_unmasked_at"),
        *("current", "reserved_bits", "suite", "version"),
    )

    def __init__(self, protection: Protection) -> None:
        self._mask = protection.mask
        self.reserved_bits = 0x18
        """Bits of the first byte that are reserved (RFC 9000 §17.3.1); 0 when they are loss bits."""
        self._protected_bits = 0x1F
        self._generations = [protection]
        self._start = 0  # lowest packet number seen in the current generation
        self._unmasked_at = -1, -1
        self._unmasked = 0, 0, 0  # the last result of `unmask`
        self.current = 0
        self.suite = protection.suite
        self.version = protection.version

    def with_loss_bits(self) -> "KeyRing":
        """The same keys for a sender whose reserved bits are loss bits, which have no header protection
        (draft-ferrieuxhamchaoui-quic-lossbits, "Header Protection")."""
        ring = KeyRing(self._generations[0])
        ring.reserved_bits, ring._protected_bits = 0, 0x07
        return ring

    def unmask(self, data: Data, start: int, at: int) -> tuple[int, int, int]:
        """The first byte, the encoded packet number and the size of this number in bytes. The short header begins at
        `start`, its packet number at `at`."""
        if self._unmasked_at != (start, at):
            mask = self._mask(data[at + 4 : at + 20])
            first = data[start] ^ mask[0] & self._protected_bits
            size = (first & 3) + 1
            encoded = int.from_bytes(data[at : at + size]) ^ int.from_bytes(mask[1 : 1 + size])
            self._unmasked_at, self._unmasked = (start, at), (first, encoded, size)
        return self._unmasked

    def open(self, data: Data, start: int, at: int, end: int, largest: int) -> OneRtt | None:
        """The decrypted short header packet at data[start:end]; None when no near key generation fits."""
        if end - at < 4 + SAMPLE_LENGTH:
            return None
        first, encoded, size = self.unmask(data, start, at)
        number = reconstruct(encoded, size, largest)
        header = bytes((first,)) + data[start + 1 : at] + encoded.to_bytes(size)
        phase = first >> 2 & 1
        if self.current & 1 == phase:
            protection = self._generations[self.current]
            try:
                plain = protection.open((protection.iv ^ number).to_bytes(12), data[at + size : end], header)
                return number, plain, phase, self.current, first
            except InvalidTag:
                pass
        return self._open_other(header, data[at + size : end], number, first)

    def _open_other(self, header: bytes, sealed: bytes, number: int, first: int) -> OneRtt | None:
        """Try the other near generations that have the key phase of the packet."""
        phase, current = first >> 2 & 1, self.current
        nearest = 2 - ((current ^ phase) & 1)  # distance to the nearest other generation with this phase
        after = range(current + nearest, current + _GENERATIONS_AHEAD + 1, 2)
        before = range(current - nearest, max(current - _GENERATIONS_AHEAD, 0) - 1, -2)
        for generation in (*before, *after) if number < self._start else (*after, *before):
            plain = self.open_with(generation, header, sealed, number)
            if plain is not None:
                if generation > current:
                    self.current, self._start = generation, number
                return number, plain, phase, generation, first
        return None

    def open_with(self, generation: int, header: bytes, sealed: bytes, number: int) -> bytes | None:
        """The payload, decrypted with the keys of `generation` (from 0) and this packet number. None when the
        generation or the number is wrong."""
        while len(self._generations) <= generation:
            self._generations.append(self._generations[-1].next_generation())
        protection = self._generations[generation]
        try:
            return protection.open((protection.iv ^ number).to_bytes(12), sealed, header)
        except InvalidTag:
            return None

    def search(self, data: Data, start: int, at: int, end: int, windows: int) -> tuple[OneRtt | None, int]:
        """Decrypt the first packet of a sender in the capture, with many packet numbers and key generations.

        `windows`: the number of values to try for the bits above the encoded packet number. Returns the packet and the
        number of attempts.
        """
        if end - at < 4 + SAMPLE_LENGTH:
            return None, 0
        first, encoded, size = self.unmask(data, start, at)
        if first & self.reserved_bits:  # reserved bits that are not 0 mean wrong keys or a wrong position
            return None, 1
        header = bytes((first,)) + data[start + 1 : at] + encoded.to_bytes(size)
        phase, sealed, attempts = first >> 2 & 1, data[at + size : end], 1
        for above in range(min(windows, 1 << 8 * (4 - size))):
            number = above << 8 * size | encoded
            for generation in range(phase, _GENERATIONS_AHEAD, 2):
                attempts += 1
                plain = self.open_with(generation, header, sealed, number)
                if plain is not None:
                    self.current, self._start = generation, number
                    return (number, plain, phase, generation, first), attempts
        return None, attempts


class Side:
    """One sender of a connection."""

    __slots__ = ("_crypto", "cid_length", "connection", "early", "handshake", "largest", "ring", "rings", "sender")

    def __init__(self, connection: "Connection", sender: int) -> None:
        self.connection = connection
        self.sender = sender
        self.cid_length = -1
        """Length in bytes of the destination connection IDs in short headers of this sender; -1 while unknown."""
        self.early: list[Protection] = []
        """Candidates for the 0-RTT keys. As soon as some of these keys decrypted a packet, only these keys remain. The
        same is true for `handshake`."""
        self.handshake: list[Protection] = []
        self.rings: list[KeyRing] = []
        self.ring: KeyRing | None = None
        self.largest = [-1, -1, -1]
        """Highest packet number of each packet number space; -1: no packet yet."""
        self._crypto: list[CryptoStream | None] = [None, None, None]

    def crypto(self, space: int) -> CryptoStream:
        """The stream of CRYPTO data in a packet number space. It is created at the first use, because a connection of a
        flood uses only one of six streams."""
        stream = self._crypto[space]
        if stream is None:
            stream = self._crypto[space] = CryptoStream()
        return stream

    @property
    def has_short_keys(self) -> bool:
        """Whether there are keys for 1-RTT packets of this sender."""
        return self.ring is not None or bool(self.rings)

    def short_keys(self, cid_length: int) -> tuple[Hashable, ...]:
        """A value that identifies the keys that `open_short` tries. Equal values mean equal keys."""
        return self, cid_length, self.ring or tuple(self.rings)

    def circumstances(self, data: Data, start: int, end: int, cid_length: int) -> Hashable:
        """A value that identifies the state of this sender, as far as the result of `open_short` depends on the
        state."""
        largest, at = self.largest[APPLICATION_SPACE], start + 1 + cid_length
        if self.ring is None or cid_length < 0 or end - at < 4 + SAMPLE_LENGTH:
            return largest
        _, encoded, size = self.ring.unmask(data, start, at)
        return reconstruct(encoded, size, largest), self.ring.current

    def open_short(self, data: Data, start: int, end: int, cid_length: int) -> OneRtt | None:
        """The 1-RTT packet at data[start:end], decrypted with the keys of this side. None when the keys don't fit.

        `cid_length`: the length of the packet's destination connection ID. With -1 (unknown), the result is None.
        """
        if cid_length < 0:
            return None
        at = start + 1 + cid_length
        if self.ring is not None:
            return self.ring.open(data, start, at, end, self.largest[APPLICATION_SPACE])
        for ring in self.rings:
            opened = ring.open(data, start, at, end, self.largest[APPLICATION_SPACE])
            if opened is not None:
                self.ring = ring
                self.connection.suite = ring.suite  # the ServerHello may be missing
                return opened
        return None

    def open_long(
        self, options: list[Protection], space: int, data: Data, header: LongHeader
    ) -> tuple[int, bytes, int, Protection] | None:
        """The number, payload, first byte and keys of a packet with a long header; None when no keys in `options` fit.
        Keys that fit become the only keys in `options`."""
        for protection in options:
            opened = protection.open_long(data, header.start, header.number_at, header.end, self.largest[space])
            if opened is not None:
                options[:] = [protection]
                return *opened, protection
        return None


@dataclass(slots=True, eq=False)
class Connection:
    """One QUIC connection. runner.decode.schema describes the fields that become columns."""

    number: int
    client: tuple[str, int]
    server: tuple[str, int]
    first_time_ns: int
    version: int | None = None
    original_version: int | None = None
    odcid: bytes | None = None
    initial_dcids: list[bytes] = field(default_factory=list)
    """Destination connection IDs from which Initial keys were derived, newest first."""
    retry_scids: set[bytes] = field(default_factory=set)
    retry_integrity_ok: bool | None = None
    client_random: bytes | None = None
    secrets: frozenset[str] = frozenset()
    """Labels of the secrets for this client random in the key logs."""
    suite: Suite | None = None
    alpn: str | None = None
    sni: str | None = None
    offered_suites: list[int] | None = None
    offered_alpn: list[str] | None = None
    resumed: bool | None = None
    early_data_offered: bool = False
    early_data_accepted: bool | None = None
    client_hello_count: int = 0
    certificate: bool = False
    transport_parameters: list[TransportParameters | None] = field(default_factory=lambda: [None, None])
    messages: list[str] = field(default_factory=list)
    """The TLS messages of both endpoints as JSON."""
    reset_tokens: set[bytes] = field(default_factory=set)
    sides: tuple[Side, Side] = field(init=False)
    _initial_options: dict[tuple[int, int], list[Protection]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sides = (Side(self, CLIENT), Side(self, SERVER))

    def initial_options(self, version: int, sender: int) -> list[Protection]:
        """The Initial keys that packets of `sender` may have. The most likely keys come first.

        They include the keys of the other QUIC version. After compatible version negotiation, aioquic 1.7 still uses
        the keys of the original version in packets whose header has the new version. (RFC 9369 §4.1 demands the keys of
        the version in the header.)
        """
        options = self._initial_options.get((version, sender))
        if options is None:
            versions = sorted(VERSIONS, key=lambda each: each != version)
            options = [initial_protection(each, dcid, sender) for each in versions for dcid in self.initial_dcids]
            self._initial_options[version, sender] = options
        return list(options)

    def add_initial_dcid(self, dcid: bytes) -> None:
        """Add the destination connection ID of a first flight. The connection's first ID always stays in the list, as
        the last ID."""
        self._initial_options.clear()
        self.initial_dcids.insert(0, dcid)
        if len(self.initial_dcids) > MOST_DCIDS:
            del self.initial_dcids[-2]

    def append_initial_dcid(self, dcid: bytes) -> None:
        """Add a destination connection ID that a handshake message shows. Keys from the known IDs are more likely."""
        self._initial_options.clear()
        self.initial_dcids.append(dcid)

    def use_session(self, session: Session, version: int) -> None:
        """Derive possible keys from the secrets of a key log. 1-RTT keys that decrypted a packet, and known 0-RTT keys,
        stay the same."""
        if not session:
            return
        self.secrets |= session.keys()
        for side in self.sides:
            if secrets := session.get(HANDSHAKE[side.sender]):
                side.handshake = candidates(secrets, version, self.suite)
            if (secrets := session.get(APPLICATION[side.sender])) and side.ring is None:
                side.rings = [KeyRing(each) for each in candidates(secrets, version, self.suite)]
        client = self.sides[CLIENT]
        if (secrets := session.get(EARLY)) and not client.early:
            client.early = candidates(secrets, version, None)
