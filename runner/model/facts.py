"""The facts about connections that two captures establish, before any verdict. Checks of test cases use only these."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# The parts of `trace_facts`: small values about one stream, path, packet or step of a connection.
#
# Times are seconds since the client's first Initial packet in the recording. None means that the evidence is missing.


@dataclass(frozen=True, kw_only=True)
class PacketPlace:
    """A datagram of one capture, as the place of an event."""

    vantage: str  # `client` or `server`: the end of the link where the capture was made
    record: int  # number of the datagram in the capture file, from 1, as Wireshark counts
    time: float | None


@dataclass(frozen=True, kw_only=True)
class Landmarks:
    """The places of the steps of a connection, so that findings can point at them. Empty or None: not seen.

    A packet's place is in the capture at its sender's end, if this capture exists.
    """

    client_first: PacketPlace | None = None  # the client's first packet, readable or not
    client_last: PacketPlace | None = None
    """The last 1-RTT packet of the client. Findings about a step that the client left out point at this packet."""
    server_last: PacketPlace | None = None
    client_hellos: tuple[PacketPlace, ...] = ()
    """The client's Initial packets that contain the start of the ClientHello."""
    server_hello: PacketPlace | None = None  # the server's first Initial packet with CRYPTO data
    server_parameters: PacketPlace | None = None
    """The server's first Handshake packet, which contains the ALPN and the transport parameters."""
    retries: tuple[PacketPlace, ...] = ()
    early_data: PacketPlace | None = None  # the client's first 0-RTT packet
    requests: tuple[PacketPlace, ...] = ()
    """For each of the first five request streams, the packet with its first frame."""
    client_key_update: PacketPlace | None = None  # the client's first packet with updated keys (RFC 9001 §6)
    server_key_update: PacketPlace | None = None


@dataclass(frozen=True, kw_only=True)
class VersionNegotiation:
    """A Version Negotiation packet of the server and the packet that it answers (RFC 9000 §6, §17.2.1)."""

    offered: int | None  # QUIC version in the client's packet; None: the client had sent no packet before
    listed: tuple[int, ...] | None
    """The versions that the packet lists; None: the tables are too old to contain the list."""
    place: PacketPlace | None


@dataclass(frozen=True, kw_only=True)
class ClientHello:
    """The client's first ClientHello on the wire."""

    bytes: int  # bytes of CRYPTO data
    datagrams: int  # number of datagrams that carried the message; repeated data doesn't count
    out_of_order: bool | None
    """True when a later part arrived at the server before the first part, or the first part never arrived. None without
    captures at both ends."""
    arrived: bool | None  # True when the whole message reached the server's vantage point; None without a capture there
    places: tuple[PacketPlace, ...]  # the datagrams that carried the message, in the order of sending


@dataclass(frozen=True, kw_only=True)
class SentLength:
    """IP packets of one length that an endpoint sent."""

    count: int
    first: PacketPlace | None
    last: PacketPlace | None


@dataclass(frozen=True, kw_only=True)
class Close:
    """A CONNECTION_CLOSE (RFC 9000 §19.19). Several copies count as one."""

    sender: str  # `client` or `server`
    application: bool  # True for frame type 0x1d; `code` is then an error code of the application protocol
    code: int
    reason: str
    time: float | None
    place: PacketPlace | None = None
    arrival: float | None = None  # when it arrived at the peer; None: it did not, or no capture was made there


@dataclass(frozen=True, kw_only=True)
class ServerCertificate:
    """The certificates that the server sent (RFC 8446 §4.4.2)."""

    chain: tuple[str, ...]  # SHA-256 of each certificate, in hexadecimal. The server's own certificate comes first.
    names: tuple[str, ...] | None
    """DNS names and addresses of the server's own certificate; None when it can't be read. The same is true for the
    other fields."""
    self_signed: bool | None
    linked: bool | None  # whether each certificate is signed by the next
    begins: int | None  # Unix time at which the certificate becomes valid
    ends: int | None
    place: PacketPlace | None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one endpoint's part of a connection, in the capture at this endpoint."""

    last: PacketPlace | None  # the last packet that the endpoint sent
    unanswered: int  # number of the peer's ack-eliciting packets that arrived after this packet
    first_unanswered: PacketPlace | None
    timed_out: bool = False
    """True when both endpoints had been silent for the idle timeout before the peer sent again. The endpoint owes no
    answer then (RFC 9000 §10.1), and `unanswered` is 0."""
    unacknowledged: tuple[PacketPlace, ...]
    """The first datagrams of the endpoint with ack-eliciting packets that the peer did not acknowledge. A packet whose
    stream data the endpoint sent again, or that is lost and needs no repair, is left out."""
    backoff: float = 0.0
    """Seconds between the endpoint's last two probes when they are of the handshake, else 0. The next probe is due
    after twice this time (RFC 9002 §6.2.1)."""
    kept_back: PacketPlace | None = None
    """The endpoint's last packet with CRYPTO data in Initial or Handshake packets that never arrived at its peer, when
    at least two later probes of the endpoint contain none of these data (RFC 9000 §13.3). None, too, without a capture
    at the peer."""
    lost_state: PacketPlace | None = None
    """The endpoint's first stateless reset: it has lost the state of the connection (RFC 9000 §10.3). None, too, when
    the peer had been silent for the idle timeout, after which the endpoint may discard the state (§10.1)."""
    reset_arrival: float | None = None
    """When the first stateless reset arrived at the peer; None: it did not, or no capture was made there."""
    resets: Mapping[int, PacketPlace | None] = field(default_factory=dict)
    """Stream ID → the first RESET_STREAM of the endpoint."""
    stops: Mapping[int, PacketPlace | None] = field(default_factory=dict)
    """Stream ID → the first STOP_SENDING of the endpoint."""
    finished: frozenset[int] = frozenset()  # streams on which the endpoint sent FIN
    blocked: frozenset[int] = frozenset()
    """Request streams for whose response the client's credit is used up. Empty for a client."""


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """One stream. Repeated bytes count once. They are counted in the capture of their receiver; if this capture is
    missing, in the capture of their sender."""

    stream_id: int
    client_bytes: int
    server_bytes: int
    client_fin: int | None  # final size (RFC 9000 §4.5) of the client's data in bytes; None: no FIN was seen
    server_fin: int | None
    request: float | None  # time when the client's first frame on the stream passed the client's vantage point
    last_new_byte: float | None  # time when the last new byte from the server arrived at the client
    early_data: bool  # True when the client's first byte was in a 0-RTT packet


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of HTTP/0.9 over QUIC (docs/contract.md) and its answer, as far as the tables keep their bytes."""

    stream_id: int
    name: str  # the last part of the requested path
    place: PacketPlace | None  # the first packet of the request
    answer: bytes  # the first bytes of the answer
    answer_end: PacketPlace | None  # the packet with the last byte of the answer that arrived; None: no byte arrived


@dataclass(frozen=True, kw_only=True)
class EcnCounts:
    """Packets by ECN codepoint (RFC 3168 §5)."""

    not_ect: int = 0
    ect0: int = 0
    ect1: int = 0
    ce: int = 0

    @property
    def ect(self) -> int:
        return self.ect0 + self.ect1


@dataclass(frozen=True, kw_only=True)
class EcnFacts:
    """The use of ECN by one endpoint (RFC 9000 §13.4)."""

    sent: EcnCounts | None  # QUIC packets that the endpoint sent, counted at its own vantage point
    received: EcnCounts | None  # QUIC packets from the peer that arrived, counted at the endpoint's own vantage point
    reported: EcnCounts
    """The highest counts in the endpoint's ACK frames, summed over all packet number spaces. `not_ect` is always 0."""
    ack_frames: int
    ack_frames_with_counts: int
    first_sent: PacketPlace | None = None  # the endpoint's first packet
    highest_report: PacketPlace | None = None
    """The endpoint's ACK frame with the highest counts. If no ACK frame has counts, its last ACK frame."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """A pair of addresses of the connection, as seen at the server's vantage point. Without a capture there, as seen at
    the client's vantage point."""

    client: str
    server: str
    first_seen: float | None
    last_seen: float | None
    server_datagrams: int
    client_cids: frozenset[bytes] = frozenset()  # destination connection IDs of the client's 1-RTT packets on this path
    place: PacketPlace | None = None  # the first datagram on this path
    last_place: PacketPlace | None = None  # the last datagram on this path
    server_first: float | None = None  # time of the server's first datagram on this path; None: the server sent none
    client_moved: bool = True
    """True when the client migrated to this path: at least one of its packets on the path contains a frame that is not
    a probing frame (RFC 9000 §9.1)."""
    handshake_packet: bool = False
    """True when a Handshake packet of the client arrived on this path, which validates the client's address (RFC 9000
    §8.1)."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """A PATH_CHALLENGE and its answer (RFC 9000 §8.2). Copies with the same data count once."""

    sender: str  # `client` or `server`
    client: str
    """The client's address on the path of the challenge, as seen at the server's vantage point. Empty when the
    challenge was not seen there."""
    server: str
    time: float | None
    arrived: bool | None  # True when the challenge arrived at the other end of the link; None without a capture there
    arrival: float | None
    """Time of the first arrival at the other end; None when the challenge did not arrive, or without a capture
    there."""
    answered: bool  # True when the peer sent a PATH_RESPONSE with the data of this challenge
    place: PacketPlace | None = None


@dataclass(frozen=True, kw_only=True)
class Amplification:
    """The bytes of UDP payload that the server had received and sent before it validated the client's address (RFC 9000
    §8.1), at the time of the largest excess."""

    received: int
    sent: int
    excess: int  # sent bytes minus three times the received bytes; 0: the server kept the limit
    place: PacketPlace | None  # the server's datagram with the largest excess
    validated_by: str | None
    """Text that names the packet or the field that validated the address; None: the address was never validated."""
    headroom: int | None = None
    """The smallest number of bytes that the server could still have sent after one of its datagrams without breaking
    the limit. Negative when the server broke the limit. None: the server sent nothing."""


@dataclass(frozen=True, kw_only=True)
class UnreadPackets:
    """Protected packets that could not be decrypted, of one type and one sender on one connection."""

    connection: int | None  # position in `TraceFacts.connections`; None: the connection is unknown
    client_random: bytes | None
    """Client random of the connection, by which key logs identify it; None when no ClientHello could be read."""
    sender: str  # `client` or `server`; empty when the connection is unknown
    type: str  # `initial`, `0rtt`, `handshake` or `1rtt`
    secret: str
    """Label of the secret that decrypts these packets. Empty for Initial packets, whose keys are not secret (RFC 9001
    §5.2), and for an unknown sender."""
    secret_logged: bool | None
    """True when a key log contains this secret, although it did not decrypt the unread packets; None when the tables
    are too old to show this."""
    packets: int
    """Number of all packets of this connection, sender and type, counted at the vantage point where most of them could
    not be read."""
    unread: int  # number of the packets among these that no key decrypted
    near: bool  # True when this vantage point is at the sender's end, where the link has not yet changed any packet
    none_read: bool  # True when no packet of this connection, sender and type could be read in any capture
    may_be_authentic: bool  # False when the peer can't have read these packets either (runner.trace.handshake)
    places: tuple[PacketPlace, ...]  # the first datagrams with unread packets


@dataclass(frozen=True, kw_only=True)
class InitialProbe:
    """An ack-eliciting Initial packet that the client sent because no answer had arrived (RFC 9002 §6.2.4)."""

    waited: float  # seconds since the client's previous ack-eliciting packet
    place: PacketPlace | None


@dataclass(frozen=True, kw_only=True)
class ConnectionFacts:
    """One connection, from its first Initial to its end."""

    # Negotiation
    version: int | None
    original_version: int | None
    alpn: str | None
    """The negotiated protocol. When the server's Handshake packets can't be read, and the handshake completed: the only
    protocol that the client offered; None when it offered several."""
    offered_alpn: tuple[str, ...]
    suite: str | None  # IANA name of the negotiated cipher suite
    offered_suites: tuple[int, ...]
    sni: str | None
    client_parameters: Mapping[str, object]
    """Transport parameters by their names in RFC 9000 §18.2. Empty when they were not seen."""
    server_parameters: Mapping[str, object]
    version_negotiations: tuple[VersionNegotiation, ...]

    # Handshake
    client_hello_count: int
    """Number of the client's Initial packets that contain the start of a ClientHello, counted at the client's vantage
    point, or without a capture there, at the server's: the first, its repetitions, and the second ClientHello after a
    HelloRetryRequest."""
    client_hello: ClientHello | None
    handshake_completed: bool
    """True when the handshake was complete at both ends: the server sent HANDSHAKE_DONE or acknowledged a 1-RTT packet
    (RFC 9001 §4.1.2, §5.7)."""
    handshake_completed_by_client: bool
    """True when the client sent a 1-RTT packet. It has the keys for such packets only after its handshake (RFC 9001
    §4.1.1, §5.7)."""
    certificate_sent: bool
    certificate: ServerCertificate | None
    """None: the server sent no certificate, or its Handshake packets could not be read."""
    authenticated: frozenset[str]
    """The roles whose Finished, and whose CertificateVerify, if there is one, were right (RFC 8446 §4.4)."""
    resumed: bool | None
    retries: int
    retry_token_echoed: bool | None
    """True when the client's first Initial packet to the Retry's source connection ID contains the token of the Retry.
    Old tables contain no tokens; then a token of the same length counts."""
    packet_number_reset: bool | None
    """True when the client's Initial packet numbers started again after the Retry (forbidden by RFC 9000 §17.2.5.3)."""

    # 0-RTT
    early_data_offered: bool
    early_data_accepted: bool | None
    """True when the server acknowledged a 0-RTT packet. If no 0-RTT packet could be read: True when the server's
    EncryptedExtensions accept early data (RFC 8446 §4.2.10). None when the client sent no 0-RTT packet, or when the
    captures don't show the decision. False also when no ACK could be read."""
    early_data_requests: int
    """Number of request streams whose first byte was in a 0-RTT packet. If 0-RTT packets can't be read, a stream also
    counts if the server answered it although no readable packet contains its first byte."""

    # Times
    first_initial: float | None
    first_server_1rtt: float | None  # time of the server's first 1-RTT packet at the client's vantage point
    handshake_confirmed: float | None  # time of the first HANDSHAKE_DONE at the client's vantage point
    closes: tuple[Close, ...]

    # Streams
    streams: tuple[StreamFacts, ...]
    max_concurrent_streams: int
    """The highest number of request streams that were open at the same time. A stream is open from its request to the
    last byte of its response."""
    initial_max_streams_bidi: int | None  # the server's first limit for request streams
    max_streams_bidi: int | None  # the server's last limit for request streams, after its MAX_STREAMS frames

    # Flow control of response data
    initial_max_data: int | None  # the client's first limit for the whole connection in bytes
    initial_max_stream_data: int | None  # the client's first limit for each request stream in bytes

    # Packets
    client_key_updates: int
    key_updates_begun_by_client: int
    """Number of the client's key updates that it began itself. The other updates were responses to an update of the
    server (RFC 9001 §6.2)."""
    server_key_updates: int
    client_ecn: EcnFacts
    server_ecn: EcnFacts
    paths: tuple[Path, ...]
    challenges: tuple[Challenge, ...]
    amplification: Amplification | None
    ip_versions: frozenset[int]
    server_lengths: Mapping[int, SentLength]
    """Length of an IP packet in bytes → the packets of this length that the server sent."""
    landmarks: Landmarks
    unread: tuple[UnreadPackets, ...] = ()
    """The packets of the connection that could not be decrypted. Empty: all packets could be decrypted."""
    early_data_unread: int = 0  # number of the client's 0-RTT packets that no key decrypted
    probe: InitialProbe | None = None  # the first probe that the client sent before any packet of the server arrived
    client_1rtt_bytes: int = 0
    """Bytes of all 1-RTT packets that the client sent, without first bytes and connection IDs."""
    server_handshake_bytes: int = 0
    """The highest end offset of the server's CRYPTO data in Handshake packets. Most of this data is the certificate
    chain."""
    limits_raised: bool | None = None
    """True when the client raised a limit for response data by MAX_DATA or MAX_STREAM_DATA. None: the client's first
    limits were not seen."""
    requests: tuple[Request, ...] | None = None
    """The HTTP/0.9 requests. None: the protocol of the connection isn't HTTP/0.9, or its tables are older than version
    5."""

    endings: Mapping[str, Ending] = field(default_factory=dict)
    """By role, the end of its part of the connection. A role without a capture at its own end is left out."""

    def cannot_read(self, sender: str, *types: str) -> bool:
        """True when `sender` sent packets of one of these types, and no packet of this type could be read."""
        return any(group.none_read and group.sender == sender and group.type in types for group in self.unread)

    @property
    def request_streams(self) -> tuple[StreamFacts, ...]:
        """Bidirectional streams that the client opened."""
        return tuple(stream for stream in self.streams if stream.stream_id % 4 == 0)


@dataclass(frozen=True, kw_only=True)
class FirstFlight:
    """The ack-eliciting 1-RTT packets that the server sent after the first request arrived and before the first ACK for
    one of these packets arrived."""

    packets: int
    bytes: int  # bytes of the QUIC packets with headers and tags, as a congestion window counts them (RFC 9002 §B.2)
    datagram_bytes: int
    """Median UDP payload in bytes of the full datagrams (at least 1200 B). The maximum is not used, because the largest
    datagram may be a probe of the path's MTU."""
    response_bytes: int  # bytes of response data that the flight carried for the first time
    duration: float  # seconds from the first response data to the last packet of the flight
    acknowledged: float | None
    """Seconds from the first response data to the first ACK of any packet of the flight; None: there was no such
    ACK."""

    @property
    def full_packets(self) -> float:
        """The size of the flight in full datagrams. In this unit, small packets, such as HANDSHAKE_DONE, hardly
        count."""
        return self.bytes / self.datagram_bytes


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """All facts of a recording."""

    connections: tuple[ConnectionFacts, ...]  # in the order of their first packets
    origin_unix_ns: int | None
    """Unix time in ns when the client's first Initial packet passed its vantage point. This is the origin of all
    times."""
    ip_versions: frozenset[int]  # IP versions of all datagrams with QUIC, including datagrams of unknown connections
    ipv4: PacketPlace | None = None  # the first QUIC datagram over IPv4
    noticed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Code of a broken rule and role → when the peer could have read the packets that broke it; infinity: never."""
    unfounded: frozenset[PacketPlace] = frozenset()
    """Packets with CONNECTION_CLOSE whose error accuses the peer of something that it did not do."""
    first_flight: FirstFlight | None = None
    """The first flight of the first connection with response data. None without a complete capture at the server."""
    protected_packets: int = 0  # number of Initial, 0-RTT, Handshake and 1-RTT packets in both captures
    unread_packets: int = 0  # number of these packets that no key decrypted
    unread: tuple[UnreadPackets, ...] = ()
    """The unread packets by connection, sender and type. Packets of unknown connections come last."""
    no_secrets: bool = False
    """True when no key log opened any packet: only Initial packets, whose keys are public, could be read."""
