"""The facts about connections that two captures establish, before any verdict. Checks of test cases use only these
facts.

Times are seconds since the client's first Initial packet in the recording. None means that the evidence is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.trace.nouns import (
    Amplification,
    Challenge,
    ClientHello,
    Close,
    CreditExcess,
    EcnFacts,
    Ending,
    Http3Stream,
    Landmarks,
    Path,
    Place,
    Probe,
    Request,
    SentLength,
    StreamFacts,
    UnreadPackets,
    VersionNegotiation,
)


@dataclass(frozen=True, kw_only=True)
class ConnectionFacts:
    """One connection, from its first Initial to its end."""

    # Negotiation
    version: int | None
    original_version: int | None
    alpn: str | None
    offered_alpn: tuple[str, ...]
    suite: str | None
    """IANA name of the negotiated cipher suite."""
    offered_suites: tuple[int, ...]
    sni: str | None
    client_parameters: Mapping[str, object]
    """Transport parameters by their names in RFC 9000 §18.2. Empty when they were not seen."""
    server_parameters: Mapping[str, object]
    version_negotiations: tuple[VersionNegotiation, ...]

    # Handshake
    client_hello_count: int
    """Number of the client's Initial packets that contain the start of the ClientHello, counted at the client's vantage
    point, or without a capture there, at the server's."""
    client_hello: ClientHello | None
    handshake_completed: bool
    """True when the handshake was complete at both ends: the server sent HANDSHAKE_DONE or acknowledged a 1-RTT packet
    (RFC 9001 §4.1.2, §5.7)."""
    handshake_completed_by_client: bool
    """True when the client sent a 1-RTT packet. It has the keys for such packets only after its handshake (RFC 9001
    §4.1.1, §5.7)."""
    certificate_sent: bool
    resumed: bool | None
    retries: int
    retry_token_echoed: bool | None
    """True when the client's first Initial packet to the Retry's source connection ID contains the token of the Retry.
    Old tables contain no tokens; then a token of the same length counts."""
    packet_number_reset: bool | None
    """True when the client's Initial packet numbers started again after the Retry (forbidden by RFC 9000 §17.2.5.3)."""
    retry_integrity_ok: bool | None

    # 0-RTT
    early_data_offered: bool
    early_data_accepted: bool | None
    """True when the server acknowledged a 0-RTT packet. If no 0-RTT packet could be read: True when the server's
    EncryptedExtensions accept early data (RFC 8446 §4.2.10). None when the client sent no 0-RTT packet, or when the
    captures don't show the decision. False also when no ACK could be read."""
    early_data_bytes: int
    """Bytes of STREAM data that the client sent in 0-RTT packets; repeated bytes count once."""
    early_data_requests: int
    """Number of request streams whose first byte was in a 0-RTT packet. If 0-RTT packets can't be read, a stream also
    counts if the server answered it although no readable packet contains its first byte."""

    # Times
    first_initial: float | None
    first_server_1rtt: float | None
    """Time of the server's first 1-RTT packet at the client's vantage point."""
    handshake_confirmed: float | None
    """Time of the first HANDSHAKE_DONE at the client's vantage point."""
    closes: tuple[Close, ...]

    # Streams
    streams: tuple[StreamFacts, ...]
    max_concurrent_streams: int
    """The highest number of request streams that were open at the same time. A stream is open from its request to the
    last byte of its response."""
    initial_max_streams_bidi: int | None
    """The server's first limit for request streams."""
    max_streams_bidi: int | None
    """The server's last limit for request streams, after its MAX_STREAMS frames."""

    # Flow control of response data
    initial_max_data: int | None
    """The client's first limit for the whole connection in bytes."""
    initial_max_stream_data: int | None
    """The client's first limit for each request stream in bytes."""
    credit_excess: CreditExcess | None
    """Response data above the client's limits. None: the server kept the limits, or there is no capture at the
    server."""

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
    undecrypted_packets: int
    """Number of protected packets that could not be decrypted, at the vantage point where this number is higher."""
    server_lengths: Mapping[int, SentLength]
    """Length of an IP packet in bytes → the packets of this length that the server sent."""
    landmarks: Landmarks
    unread: tuple[UnreadPackets, ...] = ()
    """The packets of the connection that could not be decrypted. Empty: all packets could be decrypted."""
    early_data_unread: int = 0
    """Number of the client's 0-RTT packets that no key decrypted."""
    probe: Probe | None = None
    """The first probe that the client sent before any packet of the server arrived."""
    client_1rtt_bytes: int = 0
    """Bytes of all 1-RTT packets that the client sent, without first bytes and connection IDs."""
    server_handshake_bytes: int = 0
    """The highest end offset of the server's CRYPTO data in Handshake packets. Most of this data is the certificate
    chain."""
    limits_raised: bool | None = None
    """True when the client raised a limit for response data by MAX_DATA or MAX_STREAM_DATA. None: the client's first
    limits were not seen."""
    http3: tuple[Http3Stream, ...] | None = None
    """The HTTP/3 streams. None: the protocol of the connection isn't HTTP/3, or its tables are older than version 5."""
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
    bytes: int
    """Bytes of the QUIC packets with headers and tags, as a congestion window counts them (RFC 9002 §B.2)."""
    datagram_bytes: int
    """Median UDP payload in bytes of the full datagrams (at least 1200 B). The maximum is not used, because the largest
    datagram may be a probe of the path's MTU."""
    response_bytes: int
    """Bytes of response data that the flight carried for the first time."""
    duration: float
    """Seconds from the first response data to the last packet of the flight."""
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

    connections: tuple[ConnectionFacts, ...]
    """All connections, in the order of their first packets."""
    origin_unix_ns: int | None
    """Unix time in ns when the client's first Initial packet passed its vantage point. This is the origin of all
    times."""
    client_side: bool
    """True when there is a capture at the client."""
    server_side: bool
    ip_versions: frozenset[int]
    """IP versions of all datagrams with QUIC, including datagrams of unknown connections."""
    ipv4: Place | None = None
    """The first QUIC datagram over IPv4."""
    first_flight: FirstFlight | None = None
    """The first flight of the first connection with response data. None without a complete capture at the server."""
    protected_packets: int = 0
    """Number of Initial, 0-RTT, Handshake and 1-RTT packets in both captures."""
    unread_packets: int = 0
    """Number of these packets that no key decrypted."""
    unread: tuple[UnreadPackets, ...] = ()
    """The unread packets by connection, sender and type. Packets of unknown connections come last."""
