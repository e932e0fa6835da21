"""The connections of a capture while it is read: keys, packet numbers, connection IDs, handshake."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidTag

from runner.decode.capture import Flow
from runner.decode.columns import CLIENT, SERVER, Data
from runner.decode.crypto_messages import (
    CryptoStream,
    Kept,
    Message,
    TransportParameters,
    message_text,
    parse_client_hello,
    parse_encrypted_extensions,
    parse_server_hello,
    parse_transport_parameters,
    proofs,
)
from runner.decode.keys import (
    APPLICATION_SECRETS,
    EARLY_SECRET,
    HANDSHAKE_SECRETS,
    SAMPLE_LENGTH,
    SUITES,
    VERSION_1,
    VERSIONS,
    Protection,
    Session,
    Suite,
    candidates,
    initial_protection,
    reconstruct,
)
from runner.decode.wire import CRYPTO, Event, LongHeader, PacketType

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


class SenderState:
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


_COLUMNS = (
    *("connection", "client_ip", "client_port", "server_ip", "server_port", "first_time_ns", "version"),
    *("original_version", "client_random", "suite", "alpn", "sni", "offered_suites", "offered_alpn", "odcid", "retry"),
    *("resumed", "early_data_offered", "early_data_accepted", "client_hello_count", "certificate"),
    *("client_transport_parameters", "server_transport_parameters", "secrets", "retry_integrity_ok"),
)
"""The columns of a connection, in the order in which `bentpipe decode` prints them."""


@dataclass(slots=True, eq=False)
class Connection:
    """One QUIC connection. runner.decode.columns describes the fields that become columns."""

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
    listed_versions: Sequence[int] = ()
    """The versions of the last Version Negotiation packet."""
    followed_retry: bytes = b""
    """The source connection ID of the Retry that the client followed."""
    server_initials: dict[bytes, set[bytes]] = field(default_factory=dict)
    """Source connection ID → secrets of the server's Initial packets."""
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
    kept: list[Kept] = field(default_factory=list)
    """The messages of a handshake whose secrets are known, until `proven_messages`."""
    sides: tuple[SenderState, SenderState] = field(init=False)
    _initial_options: dict[tuple[int, int], list[Protection]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sides = (SenderState(self, CLIENT), SenderState(self, SERVER))

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

    def may_begin_again(self, version: int) -> bool:
        """Whether the client follows a Version Negotiation packet when it sends an Initial packet of this version. Then
        it begins another connection (RFC 9368 §2.4), which can have the same connection IDs."""
        return version in self.listed_versions and version != self.version

    def restart(self) -> None:
        """The client begins again with a new ClientHello, as after a Retry (RFC 9000 §17.2.5.2)."""
        self.sides[CLIENT].crypto(INITIAL_SPACE).restart()
        self.kept = [message for message in self.kept if message.sender != CLIENT]

    def fields(self) -> dict[str, Any]:
        """The columns of runner.decode.tables.CONNECTIONS without `messages` and `http3`, which take time."""
        client_parameters, server_parameters = (
            None if known is None else known.text for known in self.transport_parameters
        )
        known = {
            "connection": self.number,
            "client_ip": self.client[0],
            "client_port": self.client[1],
            "server_ip": self.server[0],
            "server_port": self.server[1],
            "suite": self.suite.name if self.suite else None,
            "retry": self.retry_integrity_ok is not None,
            "client_transport_parameters": client_parameters,
            "server_transport_parameters": server_parameters,
            "secrets": sorted(self.secrets),
        }
        return {name: known[name] if name in known else getattr(self, name) for name in _COLUMNS}

    def proven_messages(self) -> str:
        """The TLS messages as JSON, with whether the proofs of the handshake are right. Call it after the last
        packet."""
        options = [side.handshake for side in self.sides]
        known = next((keys[0].suite for keys in options if len(keys) == 1), None)
        if known is not None and self.kept:
            secrets = [keys[0].secret if len(keys) == 1 else None for keys in options]
            for place, text in proofs(self.kept, known.hash, secrets):
                self.messages[place] = text
        self.kept = []
        return f"[{', '.join(self.messages)}]"

    def use_session(self, session: Session, version: int) -> None:
        """Derive possible keys from the secrets of a key log. 1-RTT keys that decrypted a packet, and known 0-RTT keys,
        stay the same."""
        if not session:
            return
        self.secrets |= session.keys()
        for side in self.sides:
            if secrets := session.get(HANDSHAKE_SECRETS[side.sender]):
                side.handshake = candidates(secrets, version, self.suite)
            if (secrets := session.get(APPLICATION_SECRETS[side.sender])) and side.ring is None:
                side.rings = [KeyRing(each) for each in candidates(secrets, version, self.suite)]
        client = self.sides[CLIENT]
        if (secrets := session.get(EARLY_SECRET)) and not client.early:
            client.early = candidates(secrets, version, None)


# The connections of a capture. Headers, handshake messages and connection ID frames update their state.

_MOST_MESSAGES = 64  # TLS messages kept per connection; a forged connection may have thousands


RECENT = 32
"""Number of senders of a flow whose keys are tried for a packet with an unknown connection ID."""
_CREDIT, _CREDIT_OF_PACKET = 16_384, 4


@dataclass(slots=True, eq=False)
class FlowState:
    """One direction of a 4-tuple: the connections on it, and the packets that wait for keys."""

    flow: Flow
    sides: list[SenderState] = field(default_factory=list)
    """The last senders on this flow, the latest first. Packets of other senders are found by their connection IDs. So a
    flow with thousands of connections takes no more time than a flow with a few connections."""
    history: dict[SenderState, None] = field(default_factory=dict)
    """All senders on this flow."""
    pending: list["Packet"] = field(default_factory=list)
    pending_short: list["Packet"] = field(default_factory=list)
    """Waiting packets with long and with short headers, in file order. There are two lists, because a new connection
    helps only packets with long headers. With one list, a flood of connections would try all packets again and
    again."""
    orphan: LongHeader | None = None
    """Header of the first packet with an unknown version, as long as the flow has no connection."""
    orphan_datagram: int = 0
    unsplit: int = 0
    """Number of consecutive super-datagrams that could not be split. A super-datagram is several datagrams that were
    captured as one, because of generic segmentation offload."""
    segment_size: int = 0
    """Size in bytes of the datagrams in a super-datagram; 0 while unknown."""
    attempts: int = 32
    """Number of packets that may still be tried with the keys of connections on other flows."""


Failures = dict[tuple[Hashable, ...], Hashable]
"""Failed attempts to decrypt one packet. Key: the side and the keys that were tried. Value: the circumstances of the
attempt. In the same circumstances the attempt would fail again."""

_NO_FAILURES: Failures = {}  # most packets share this dictionary; it stays empty


@dataclass(slots=True, eq=False)
class Packet:
    """The place of a packet in the file and in the rows."""

    row: int
    datagram: int
    index: int
    start: int
    end: int
    missing: int
    """Number of bytes after `end` that are missing from the capture."""
    header: LongHeader | None = None
    failed: Failures = field(default_factory=lambda: _NO_FAILURES)
    """Failed attempts to decrypt the packet in the current pass over the waiting packets. They are recorded because a
    damaged packet waits until the end of the file; on a 4-tuple with many connections, each connection would otherwise
    cause further attempts."""
    failed_before: Failures = field(default_factory=lambda: _NO_FAILURES)
    """Failed attempts of the previous pass."""
    needs_cid: bool = False
    """Whether enough keys failed for an Initial packet. It stays closed until a connection has its connection ID, or
    until a first flight may continue a connection."""
    failed_at: int = -1
    """`Registry.changes` when all attempts for this packet with a short header failed. -1: it was not attempted, or not
    with all keys."""
    first_failed: int | None = None
    """The client's highest Initial packet number (-1 without a connection) at the last failed attempt with the Initial
    keys of the packet's own destination connection ID. The attempt is not repeated while this number stays the same.
    None: no such attempt."""

    def note(self, keys: tuple[Hashable, ...], circumstances: Hashable) -> bool:
        """Record an attempt to open the packet. Returns False when the same attempt failed in the pass before, so that
        it would fail again."""
        if self.failed is _NO_FAILURES:
            self.failed = {keys: circumstances}
        else:
            self.failed[keys] = circumstances
        return self.failed_before.get(keys, self) != circumstances

    def begin_pass(self) -> None:
        """Allow all attempts again: the highest packet numbers may have changed."""
        self.failed_before, self.failed = self.failed, _NO_FAILURES
        self.needs_cid = False


class Registry:
    """All connections, flows and connection IDs of one capture."""

    def __init__(self, flows: list[Flow], sessions: dict[bytes, Session], packets: int = 0) -> None:
        self.sessions = sessions
        self.connections: list[Connection] = []
        self.flows = [FlowState(flow) for flow in flows]
        self.cids: dict[bytes, SenderState] = {}
        """Connection ID → the side that sends packets with this destination connection ID."""
        self.cid_lengths: set[int] = set()
        self.credit = _CREDIT + _CREDIT_OF_PACKET * packets
        """Number of attempts that are left. The first attempts for each packet are not counted. This limit keeps the
        decoding time of hostile captures linear."""
        self.may_continue = False
        """Whether a first flight may continue a connection: after a Retry packet, or when a connection began without an
        Initial packet that could be read."""
        self.changes = 0
        """Number of changes of what is known. As long as it stays the same, attempts that failed would fail again."""
        self.reset_tokens: dict[bytes, SenderState] = {}
        """Stateless reset token → the side that issued it."""
        self.news = False
        """True when there is new knowledge with which waiting packets may be decrypted. The decoder sets it back to
        False."""
        self.short_news = False
        """True when such knowledge may also help with waiting packets that have short headers."""

    @property
    def can_read_short(self) -> bool:
        """Whether anything is known with which a packet with a short header could be read. Keys come only from key
        logs, so a capture without a key log needs no attempts."""
        return bool(self.sessions or self.reset_tokens)

    def reverse(self, state: FlowState) -> FlowState:
        """The opposite direction of a flow."""
        return self.flows[state.flow.reverse]

    def add_connection(
        self, state: FlowState, sender: int, time_ns: int, initial_dcid: bytes | None = None
    ) -> Connection:
        """A new connection, first seen in a packet of `sender` on this flow. `initial_dcid`: the connection ID whose
        Initial keys opened this packet; None: the packet is no readable Initial packet."""
        flow = state.flow
        ends = (flow.src, flow.src_port), (flow.dst, flow.dst_port)
        client, server = ends if sender == CLIENT else ends[::-1]
        connection = Connection(len(self.connections), client, server, time_ns)
        if initial_dcid is None:
            self.may_continue = True
        else:
            connection.initial_dcids.append(initial_dcid)
        self.connections.append(connection)
        self.link(state, connection.sides[sender])
        return connection

    def release(self) -> None:
        """Delete the references from connections to their sides, so that the memory is free at once. The registry can't
        be used afterwards. For a flood of connections, Python's search for unused cycles would take a quarter of the
        decoding time."""
        for connection in self.connections:
            del connection.sides

    def link(self, state: FlowState, side: SenderState) -> None:
        """Record that `side` sends on this flow, and its peer on the reverse flow."""
        self.changes += 1
        for flow, each in ((state, side), (self.reverse(state), side.connection.sides[1 - side.sender])):
            if each in flow.sides:
                flow.sides.remove(each)
            flow.sides.insert(0, each)
            del flow.sides[RECENT:]
            flow.history[each] = None
            self.short_news = self.short_news or each.has_short_keys
        self.news = True

    def issue(self, cid: bytes, issuer: SenderState) -> None:
        """Register a connection ID that `issuer` chose. The other side writes it into its packets as destination."""
        user = issuer.connection.sides[1 - issuer.sender]
        if cid:
            self.cids[cid] = user
            self.cid_lengths.add(len(cid))
        if user.cid_length < 0:
            user.cid_length = len(cid)
            self.news = True
            self.short_news = self.short_news or user.has_short_keys

    def accept_header(self, side: SenderState, header: LongHeader) -> None:
        """Update the connection from the header of a decrypted packet."""
        connection = side.connection
        connection.version = header.version
        if connection.original_version is None and side.sender == CLIENT:
            connection.original_version = header.version
        if side.sender == SERVER or header.type is PacketType.HANDSHAKE:
            if side.cid_length < 0:
                side.cid_length = len(header.dcid)
            if header.dcid:
                self.cids.setdefault(header.dcid, side)
        self.issue(header.scid, side)

    def learn(self, side: SenderState, space: int, events: list[Event], row: int) -> None:
        """Update the connection from the CRYPTO and NEW_CONNECTION_ID frames of one packet of `side`. `row`: the row of
        the packet."""
        connection = side.connection
        first_flight = False
        for kind, number, payload in events:
            if kind == CRYPTO:
                first_flight = first_flight or number == 0
                for message, body in side.crypto(space).feed(number, payload):
                    self._message(side, space, message, body)
                    if len(connection.messages) < _MOST_MESSAGES:
                        text = message_text(message, body, sender=side.sender, space=space, packet=row)
                        if connection.secrets and space != APPLICATION_SPACE:
                            place = len(connection.messages)
                            connection.kept.append(Kept(side.sender, space, message, body, place, row))
                        connection.messages.append(text)
            else:
                self.issue(payload[:-16], side)
                self.reset_tokens[payload[-16:]] = side
        if first_flight and space == INITIAL_SPACE and side.sender == CLIENT:
            connection.client_hello_count += 1

    def _message(self, side: SenderState, space: int, kind: int, body: bytes) -> None:
        if space == INITIAL_SPACE and kind == Message.CLIENT_HELLO and side.sender == CLIENT:
            self._client_hello(side.connection, body)
        elif space == INITIAL_SPACE and kind == Message.SERVER_HELLO and side.sender == SERVER:
            self._server_hello(side.connection, body)
        elif space == HANDSHAKE_SPACE and side.sender == SERVER:
            if kind == Message.ENCRYPTED_EXTENSIONS:
                self._encrypted_extensions(side.connection, body)
            elif kind in (Message.CERTIFICATE, Message.COMPRESSED_CERTIFICATE):
                side.connection.certificate = True

    def _client_hello(self, connection: Connection, body: bytes) -> None:
        hello = parse_client_hello(body)
        if hello is None:
            return
        connection.offered_suites = hello.suites
        connection.offered_alpn = hello.alpn
        connection.sni = hello.sni
        connection.early_data_offered = connection.early_data_offered or hello.early_data
        self._transport_parameters(connection, CLIENT, hello.transport_parameters)
        if connection.client_random != hello.random:
            connection.client_random = hello.random
            session = self.sessions.get(hello.random, {})
            connection.use_session(session, connection.version or VERSION_1)
            self.news = True
            self.short_news = self.short_news or bool(session)

    def _server_hello(self, connection: Connection, body: bytes) -> None:
        hello = parse_server_hello(body)
        if hello is None or hello.is_retry_request:
            return
        connection.suite = SUITES.get(hello.suites[0])
        connection.resumed = hello.pre_shared_key is not None

    def _encrypted_extensions(self, connection: Connection, body: bytes) -> None:
        hello = parse_encrypted_extensions(body)
        if hello is None:
            return
        connection.alpn = hello.alpn[0] if hello.alpn else None
        connection.early_data_accepted = hello.early_data
        self._transport_parameters(connection, SERVER, hello.transport_parameters)
        # Initial keys are derived from these IDs. When a capture lacks the first flight, only this message shows them.
        known = connection.transport_parameters[SERVER]
        parameters = {} if known is None else known.values
        for name in ("retry_source_connection_id", "original_destination_connection_id"):
            cid = parameters.get(name)
            dcids = connection.initial_dcids
            if isinstance(cid, str) and bytes.fromhex(cid) not in dcids and len(dcids) < MOST_DCIDS:
                connection.append_initial_dcid(bytes.fromhex(cid))
                self.news = True
        if connection.odcid is None and connection.initial_dcids:
            connection.odcid = connection.initial_dcids[-1]

    def _transport_parameters(self, connection: Connection, sender: int, data: bytes | None) -> None:
        if data is None:
            return
        connection.transport_parameters[sender] = known = parse_transport_parameters(data)
        parameters = known.values
        of_both = [each.values for each in connection.transport_parameters if each is not None]
        if len(of_both) == 2 and all("loss_bits" in each for each in of_both):
            for side in connection.sides:
                if of_both[side.sender]["loss_bits"] == 1:
                    rings = side.rings or ([] if side.ring is None else [side.ring])
                    side.ring, side.rings = None, [ring.with_loss_bits() for ring in rings]
                    self.news = self.short_news = True
        preferred, token = parameters.get("preferred_address"), parameters.get("stateless_reset_token")
        if isinstance(token, str):
            self.reset_tokens[bytes.fromhex(token)] = connection.sides[sender]
        if isinstance(preferred, dict):
            self.issue(bytes.fromhex(str(preferred["connection_id"])), connection.sides[sender])
            self.reset_tokens[bytes.fromhex(str(preferred["stateless_reset_token"]))] = connection.sides[sender]


SPACE_OF = {
    PacketType.INITIAL: INITIAL_SPACE,
    PacketType.ZERO_RTT: APPLICATION_SPACE,
    PacketType.HANDSHAKE: HANDSHAKE_SPACE,
}
