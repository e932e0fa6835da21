"""What two captures establish about connections, before any verdict. Test cases see this and nothing below it.

Times are seconds since the client's first Initial of the whole recording. None means that the evidence is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something was seen: a datagram of one capture."""

    vantage: str
    """client or server: the side of the link."""
    record: int
    """Number in the capture file from 1, as Wireshark counts."""
    time: float | None


@dataclass(frozen=True, kw_only=True)
class Landmarks:
    """Where the steps of a connection were seen, for findings that point at them. Empty or None: nowhere.

    What an endpoint sent is shown at its own vantage point when there is a capture.
    """

    client_first: Place | None = None
    """The client's first packet, readable or not."""
    client_last: Place | None = None
    """The last 1-RTT packet of the client: what it had not done by then, it never did."""
    server_last: Place | None = None
    client_hellos: tuple[Place, ...] = ()
    """Initial packets with the start of the ClientHello."""
    server_hello: Place | None = None
    """The server's first Initial packet with handshake data."""
    server_parameters: Place | None = None
    """Its first Handshake packet: ALPN, transport parameters."""
    retries: tuple[Place, ...] = ()
    after_retry: Place | None = None
    """The client's first Initial packet that answers a Retry, else its first one after it."""
    early_data: Place | None = None
    """The first 0-RTT packet."""
    requests: tuple[Place, ...] = ()
    """The first frame of each request stream, the first five."""
    client_key_update: Place | None = None
    """The first packet with updated keys (RFC 9001 §6)."""
    server_key_update: Place | None = None
    frameless: tuple[Place, ...] = ()
    """The first packets without a frame (forbidden by RFC 9000 §12.4), of the client if it sent any."""
    reused_numbers: tuple[Place, ...] = ()
    """Packets whose number their sender had used before (forbidden by RFC 9000 §12.3), with their first use."""


@dataclass(frozen=True, kw_only=True)
class VersionNegotiation:
    """A Version Negotiation packet of the server and what it answers (RFC 9000 §6, §17.2.1)."""

    offered: int | None
    """Version of the client's packet; None: there was none before it."""
    listed: tuple[int, ...] | None
    """None: the tables are too old to say."""
    ids_echoed: bool
    """Its connection IDs are those of the client's packet, swapped."""
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class ClientHello:
    """The client's first ClientHello on the wire."""

    bytes: int
    """Of CRYPTO data."""
    datagrams: int
    """That it took, copies not counted."""
    out_of_order: bool | None
    """A later part arrived before the first one, or alone; None without captures on both sides."""
    arrived: bool | None
    """All of it reached the server's vantage point; None without a capture there."""
    places: tuple[Place, ...]
    """Its datagrams as they were sent."""


@dataclass(frozen=True, kw_only=True)
class SentLength:
    """IP packets of one length that an endpoint sent."""

    count: int
    first: Place | None
    last: Place | None


@dataclass(frozen=True, kw_only=True)
class Close:
    """A CONNECTION_CLOSE (RFC 9000 §19.19); copies of it count once."""

    sender: str
    """client or server."""
    application: bool
    """Type 0x1d: `code` is the application's."""
    code: int
    reason: str
    time: float | None
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """One stream. Bytes are unique ones, counted where they arrive when there is a capture, else where they leave."""

    stream_id: int
    client_bytes: int
    server_bytes: int
    client_fin: int | None
    """Final size (RFC 9000 §4.5) of what the client sent; None: no FIN was seen."""
    server_fin: int | None
    request: float | None
    """When the client's first frame on the stream passed the client's vantage point."""
    first_new_byte: float | None
    """When the first byte from the server arrived at the client."""
    last_new_byte: float | None
    early_data: bool
    """The client's first byte went in a 0-RTT packet."""


@dataclass(frozen=True, kw_only=True)
class EcnCounts:
    """Packets by ECN codepoint (RFC 3168 §5)."""

    not_ect: int = 0
    ect0: int = 0
    ect1: int = 0
    ce: int = 0

    @property
    def ect(self) -> int:
        """Packets of an ECN-capable transport as they were sent: ECT(0) and ECT(1)."""
        return self.ect0 + self.ect1


@dataclass(frozen=True, kw_only=True)
class EcnFacts:
    """What one endpoint did about ECN (RFC 9000 §13.4)."""

    sent: EcnCounts | None
    """QUIC packets that it sent, at its own vantage point."""
    received: EcnCounts | None
    """QUIC packets for it that arrived at its own vantage point."""
    reported: EcnCounts
    """The highest counts of its ACK frames, all packet number spaces together; `not_ect` is always 0."""
    ack_frames: int
    ack_frames_with_counts: int
    first_sent: Place | None = None
    """Its first packet."""
    highest_report: Place | None = None
    """The ACK frame with the highest counts; without any, its last ACK frame."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """A pair of addresses of the connection, as seen at the server's vantage point (else at the client's)."""

    client: str
    server: str
    first_seen: float | None
    last_seen: float | None
    client_datagrams: int
    server_datagrams: int
    client_cids: Mapping[bytes, Place | None] = field(default_factory=dict)
    """Destination connection IDs of the client's 1-RTT packets on it, with the first datagram of each."""
    server_cids: Mapping[bytes, Place | None] = field(default_factory=dict)
    place: Place | None = None
    """Its first datagram."""
    last_place: Place | None = None
    """Its last one."""
    server_first: float | None = None
    """When the server's first datagram on it was seen; None: it sent none."""
    client_moved: bool = True
    """A packet of the client on it has a frame that doesn't only probe (RFC 9000 §9.1): the client migrated to it."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """A PATH_CHALLENGE and what became of it (RFC 9000 §8.2). Copies with the same data count once."""

    sender: str
    """client or server."""
    client: str
    """The path on which it went, as seen at the server's vantage point; empty when it never got there."""
    server: str
    time: float | None
    arrived: bool | None
    """At the other end; None without a capture there."""
    arrival: float | None
    """When it first did; None when it did not, or nobody saw."""
    answered: bool
    """The other end sent a PATH_RESPONSE with its data."""
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Amplification:
    """UDP payload of both sides before the server knew the client's address (RFC 9000 §8.1), where it was worst."""

    received: int
    sent: int
    excess: int
    """Bytes sent beyond three times those received; 0: the server kept to the limit."""
    place: Place | None
    """The server's datagram that went furthest beyond it."""
    validated_by: str | None
    """What proved the address; None: nothing did."""
    headroom: int | None = None
    """Bytes left to the limit when the server came closest to it; below 0 beyond it. None: it sent nothing."""


@dataclass(frozen=True, kw_only=True)
class CreditExcess:
    """Response data beyond what the client had granted (RFC 9000 §4.1), where it was most."""

    stream_id: int | None
    """None: beyond the limit of the connection, over all streams."""
    granted: int
    """Bytes."""
    sent: int
    place: Place | None
    """The packet with the byte that is furthest beyond."""

    @property
    def bytes(self) -> int:
        """How many too many."""
        return self.sent - self.granted


@dataclass(frozen=True, kw_only=True)
class UnreadPackets:
    """Protected packets of one sender and one type that no key opened, on one connection."""

    connection: int | None
    """Position in `TraceFacts.connections`; None: the packets belong to no connection that is known."""
    client_random: bytes | None
    """By which key logs name the connection; None when no ClientHello could be read."""
    sender: str
    """client or server; empty when the connection is not known."""
    type: str
    """initial, 0rtt, handshake or 1rtt."""
    secret: str
    """Label of the secret that opens them; empty for Initial packets, whose keys are not secret (RFC 9001 §5.2)."""
    secret_logged: bool | None
    """A key log has that secret, which opened none of them; None when the tables are too old to say."""
    packets: int
    """All packets of this connection, sender and type, at the vantage point where most of them could not be read."""
    unread: int
    """Those of them that no key opened."""
    near: bool
    """That vantage point is the sender's own, where the link has not changed any packet yet."""
    none_read: bool
    """No packet of this connection, sender and type was read in any capture."""
    places: tuple[Place, ...]
    """The first of those packets."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An ack-eliciting Initial packet that the client sent because nothing had answered (RFC 9002 §6.2.4)."""

    waited: float
    """Seconds since its ack-eliciting packet before."""
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class Http3Stream:
    """What one side sent on one stream of HTTP/3 (RFC 9114 §6), as far as the kept bytes show."""

    sender: str
    """client or server."""
    stream_id: int
    type: int | None
    """Of a unidirectional stream (§6.2); None: a request stream."""
    frames: tuple[int, ...]
    """Types of its frames, in order; of unidirectional streams those of control streams alone."""
    place: Place | None
    """Its first packet."""


@dataclass(frozen=True, kw_only=True)
class ConnectionFacts:
    """One connection, from its first Initial to its end."""

    # Negotiation
    version: int | None
    original_version: int | None
    alpn: str | None
    offered_alpn: tuple[str, ...]
    suite: str | None
    """Negotiated cipher suite, IANA name."""
    offered_suites: tuple[int, ...]
    sni: str | None
    client_parameters: Mapping[str, object]
    """Transport parameters by their names in RFC 9000 §18.2; empty when not seen."""
    server_parameters: Mapping[str, object]
    version_negotiations: tuple[VersionNegotiation, ...]

    # Handshake
    client_hello_count: int
    """Initial packets with the start of the ClientHello, at the client's vantage point when there is one."""
    client_hello: ClientHello | None
    handshake_completed: bool
    """At both ends: the server said HANDSHAKE_DONE or acknowledged a 1-RTT packet (RFC 9001 §4.1.2, §5.7)."""
    handshake_completed_by_client: bool
    """It sent a 1-RTT packet, for which it has keys only then (RFC 9001 §4.1.1, §5.7)."""
    certificate_sent: bool
    resumed: bool | None
    retries: int
    retry_token_echoed: bool | None
    """The client's first Initial to the Retry's source CID has the Retry's token (old tables: one of its length)."""
    packet_number_reset: bool | None
    """After Retry the client started its Initial packet numbers anew (forbidden by RFC 9000 §17.2.5.3)."""
    retry_integrity_ok: bool | None

    # 0-RTT
    early_data_offered: bool
    early_data_accepted: bool | None
    """The server acknowledged a 0-RTT packet, or, where none can be read, its EncryptedExtensions say so (RFC 8446
    §4.2.10); None when none was sent, or nobody can tell; False also when no ACK could be read."""
    early_data_bytes: int
    """Unique STREAM bytes that the client sent in 0-RTT packets."""
    early_data_requests: int
    """Request streams whose first byte went in a 0-RTT packet; where such packets can't be read, those that the server
    answered although no packet that can be read has their first byte."""

    # Instants
    first_initial: float | None
    first_server_1rtt: float | None
    """At the client's vantage point."""
    handshake_confirmed: float | None
    """First HANDSHAKE_DONE at the client's vantage point."""
    closes: tuple[Close, ...]

    # Streams
    streams: tuple[StreamFacts, ...]
    max_concurrent_streams: int
    """Request streams open at the same time: from the request to the last byte of the response."""
    initial_max_streams_bidi: int | None
    """The server's first limit for request streams."""
    max_streams_bidi: int | None
    """The server's last limit for request streams: the first one and what MAX_STREAMS frames raised it to."""

    # Flow control of response data
    initial_max_data: int | None
    """The client's first limit for the connection, bytes."""
    initial_max_stream_data: int | None
    """The client's first limit for each request stream, bytes."""
    credit_excess: CreditExcess | None
    """None: the server stayed within the client's limits, or there is no capture at the server."""

    # Packets
    client_key_updates: int
    server_key_updates: int
    client_ecn: EcnFacts
    server_ecn: EcnFacts
    paths: tuple[Path, ...]
    challenges: tuple[Challenge, ...]
    amplification: Amplification | None
    ip_versions: frozenset[int]
    undecrypted_packets: int
    """Protected packets that could not be read, at the vantage point that has more of them."""
    server_lengths: Mapping[int, SentLength]
    """By length of the IP packet in bytes, as the server sent them."""
    landmarks: Landmarks
    unread: tuple[UnreadPackets, ...] = ()
    """What could not be read of it; empty: everything was."""
    early_data_unread: int = 0
    """0-RTT packets of the client that no key opened."""
    probe: Probe | None = None
    """The client's first probe before any packet of the server arrived."""
    client_1rtt_bytes: int = 0
    """Of its 1-RTT packets behind their headers, as they were sent."""
    server_handshake_bytes: int = 0
    """Highest end of the server's CRYPTO data in Handshake packets: its certificates, above all."""
    limits_raised: bool | None = None
    """The client raised a limit for response data by MAX_DATA or MAX_STREAM_DATA; None: its first ones weren't seen."""
    http3: tuple[Http3Stream, ...] | None = None
    """None: the connection isn't HTTP/3's, or its tables are older than version 5."""

    def cannot_read(self, sender: str, *types: str) -> bool:
        """Whether no packet of `sender` of one of these types could be read, although there are some."""
        return any(one.none_read and one.sender == sender and one.type in types for one in self.unread)

    @property
    def request_streams(self) -> tuple[StreamFacts, ...]:
        """Bidirectional streams that the client opened."""
        return tuple(stream for stream in self.streams if stream.stream_id % 4 == 0)


@dataclass(frozen=True, kw_only=True)
class FirstFlight:
    """What the server sent in ack-eliciting 1-RTT packets from the first request to the first ACK of any of them."""

    packets: int
    bytes: int
    """Of QUIC packets with headers and tags, which is what a congestion window counts (RFC 9002 §B.2)."""
    datagram_bytes: int
    """UDP payload, median of the full datagrams (at least 1200 B): the largest may be a probe of the path's MTU."""
    response_bytes: int
    """New response data in it."""
    duration: float
    """Seconds from the first response data to the last packet."""
    acknowledged: float | None
    """Seconds from the first response data to the first ACK of any packet; None when none came."""

    @property
    def full_packets(self) -> float:
        """Its bytes in packets that fill such a datagram: small ones, as of HANDSHAKE_DONE, hardly count."""
        return self.bytes / self.datagram_bytes


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """Everything that is established about a recording."""

    connections: tuple[ConnectionFacts, ...]
    """In order of their first packet."""
    origin_unix_ns: int | None
    """The client's first Initial at the client's vantage point, where times are 0."""
    client_side: bool
    """There is a capture at the client."""
    server_side: bool
    ip_versions: frozenset[int]
    """Of all datagrams that carry QUIC, of known connections or not."""
    ipv4: Place | None = None
    """The first QUIC datagram over IPv4."""
    first_flight: FirstFlight | None = None
    """Of the first connection with response data; None without a whole capture at the server."""
    protected_packets: int = 0
    """Initial, 0-RTT, Handshake and 1-RTT packets in both captures."""
    unread_packets: int = 0
    """Those of them that no key opened."""
    unread: tuple[UnreadPackets, ...] = ()
    """The same by connection, sender and type; those of no known connection last."""
