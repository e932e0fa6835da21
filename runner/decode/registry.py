"""The connections of a capture. Headers, handshake messages and connection ID frames update their state."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from runner.decode.connection import APPLICATION_SPACE, HANDSHAKE_SPACE, INITIAL_SPACE, MOST_DCIDS, Connection, Side
from runner.decode.frames import CRYPTO, Event
from runner.decode.handshake import Message, parse_client_hello, parse_encrypted_extensions, parse_server_hello
from runner.decode.keylog import Session
from runner.decode.messages import message_text
from runner.decode.network import Flow
from runner.decode.packets import LongHeader, PacketType
from runner.decode.protection import SUITES, VERSION_1
from runner.decode.schema import CLIENT, SERVER
from runner.decode.transport_parameters import parse_transport_parameters

_MOST_MESSAGES = 64  # TLS messages kept per connection; a forged connection may have thousands


RECENT = 32
"""Number of senders of a flow whose keys are tried for a packet with an unknown connection ID."""
_CREDIT, _CREDIT_OF_PACKET = 16_384, 4


class FlowState:
    """One direction of a 4-tuple: the connections on it, and the packets that wait for keys."""

    __slots__ = (
        "attempts",
        "flow",
        "history",
        "orphan",
        "orphan_datagram",
        "pending",
        "pending_short",
        "segment_size",
        "sides",
        "unsplit",
    )

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.sides: list[Side] = []
        """The last senders on this flow, the latest first. Packets of other senders are found by their connection IDs.
        So a flow with thousands of connections takes no more time than a flow with a few connections."""
        self.history: dict[Side, None] = {}
        """All senders on this flow."""
        self.pending: list[Packet] = []
        self.pending_short: list[Packet] = []
        """Waiting packets with long and with short headers, in file order. There are two lists, because a new
        connection helps only packets with long headers. With one list, a flood of connections would try all packets
        again and again."""
        self.orphan: LongHeader | None = None
        """Header of the first packet with an unknown version, as long as the flow has no connection."""
        self.orphan_datagram = 0
        self.unsplit = 0
        """Number of consecutive super-datagrams that could not be split. A super-datagram is several datagrams that
        were captured as one, because of generic segmentation offload."""
        self.segment_size = 0
        """Size in bytes of the datagrams in a super-datagram; 0 while unknown."""
        self.attempts = 32
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
        self.cids: dict[bytes, Side] = {}
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
        self.reset_tokens: set[bytes] = set()
        """The stateless reset tokens of all connections."""
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

    def link(self, state: FlowState, side: Side) -> None:
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

    def issue(self, cid: bytes, issuer: Side) -> None:
        """Register a connection ID that `issuer` chose. The other side writes it into its packets as destination."""
        user = issuer.connection.sides[1 - issuer.sender]
        if cid:
            self.cids[cid] = user
            self.cid_lengths.add(len(cid))
        if user.cid_length < 0:
            user.cid_length = len(cid)
            self.news = True
            self.short_news = self.short_news or user.has_short_keys

    def accept_header(self, side: Side, header: LongHeader) -> None:
        """Update the connection from the header of a decrypted packet."""
        connection = side.connection
        connection.version = header.version
        if connection.original_version is None and side.sender == CLIENT:
            connection.original_version = header.version
        if side.cid_length < 0 and (side.sender == SERVER or header.type is PacketType.HANDSHAKE):
            side.cid_length = len(header.dcid)
            self.cids.setdefault(header.dcid, side)
        self.issue(header.scid, side)

    def learn(self, side: Side, space: int, events: list[Event], row: int) -> None:
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
                        connection.messages.append(text)
            else:
                self.issue(payload[:-16], side)
                self._add_reset_token(connection, payload[-16:])
        if first_flight and space == INITIAL_SPACE and side.sender == CLIENT:
            connection.client_hello_count += 1

    def _message(self, side: Side, space: int, kind: int, body: bytes) -> None:
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
        connection.resumed = hello.pre_shared_key

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
            self._add_reset_token(connection, bytes.fromhex(token))
        if isinstance(preferred, dict):
            self.issue(bytes.fromhex(str(preferred["connection_id"])), connection.sides[sender])
            self._add_reset_token(connection, bytes.fromhex(str(preferred["stateless_reset_token"])))

    def _add_reset_token(self, connection: Connection, token: bytes) -> None:
        connection.reset_tokens.add(token)
        self.reset_tokens.add(token)


SPACE_OF = {
    PacketType.INITIAL: INITIAL_SPACE,
    PacketType.ZERO_RTT: APPLICATION_SPACE,
    PacketType.HANDSHAKE: HANDSHAKE_SPACE,
}
