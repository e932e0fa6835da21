"""The facts about connections that two captures establish, before any verdict. Checks of test cases use only these
facts.

Times are seconds since the client's first Initial packet in the recording. None means that the evidence is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.trace.nouns import (
    Amplification,
    Challenge,
    ClientHello,
    Close,
    CreditExcess,
    EcnFacts,
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
    """At both ends: the server sent HANDSHAKE_DONE or acknowledged a 1-RTT packet (RFC 9001 §4.1.2, §5.7)."""
    handshake_completed_by_client: bool
    """The client sent a 1-RTT packet; it has the keys only after the handshake (RFC 9001 §4.1.1, §5.7)."""
    certificate_sent: bool
    resumed: bool | None
    retries: int
    retry_token_echoed: bool | None
    """The client's first Initial packet to the Retry's source connection ID has the Retry's token (in old tables: a
    token of the same length)."""
    packet_number_reset: bool | None
    """After Retry the client started its Initial packet numbers again (forbidden by RFC 9000 §17.2.5.3)."""
    retry_integrity_ok: bool | None

    # 0-RTT
    early_data_offered: bool
    early_data_accepted: bool | None
    """The server acknowledged a 0-RTT packet, or, where none can be read, its EncryptedExtensions accept early data
    (RFC 8446 §4.2.10). None when none was sent, or the captures don't show it. False also when no ACK could be read."""
    early_data_bytes: int
    """Distinct STREAM bytes that the client sent in 0-RTT packets."""
    early_data_requests: int
    """Request streams whose first byte was in a 0-RTT packet. Where such packets can't be read: streams that the server
    answered although no readable packet has their first byte."""

    # Times
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
    """The server's last limit for request streams, after its MAX_STREAMS frames."""

    # Flow control of response data
    initial_max_data: int | None
    """The client's first limit for the connection, bytes."""
    initial_max_stream_data: int | None
    """The client's first limit for each request stream, bytes."""
    credit_excess: CreditExcess | None
    """None: the server stayed within the client's limits, or there is no capture at the server."""

    # Packets
    client_key_updates: int
    key_updates_begun_by_client: int
    """The others followed an update of the server (RFC 9001 §6.2)."""
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
    """The packets of the connection that could not be read; empty: all were read."""
    early_data_unread: int = 0
    """0-RTT packets of the client that no key opened."""
    probe: Probe | None = None
    """The client's first probe before any packet of the server arrived."""
    client_1rtt_bytes: int = 0
    """Bytes of the client's 1-RTT packets after their headers, as they were sent."""
    server_handshake_bytes: int = 0
    """Highest end of the server's CRYPTO data in Handshake packets, which is mainly its certificates."""
    limits_raised: bool | None = None
    """The client raised a limit for response data by MAX_DATA or MAX_STREAM_DATA; None: its first limits weren't
    seen."""
    http3: tuple[Http3Stream, ...] | None = None
    """None: the connection isn't HTTP/3, or its tables are older than version 5."""
    requests: tuple[Request, ...] | None = None
    """None: the connection isn't HTTP/0.9, or its tables are older than version 5."""

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
    """Bytes of QUIC packets with headers and tags, as a congestion window counts them (RFC 9002 §B.2)."""
    datagram_bytes: int
    """UDP payload: median of the full datagrams (at least 1200 B). The largest datagram may be a probe of the path's
    MTU."""
    response_bytes: int
    """Bytes of new response data in the flight."""
    duration: float
    """Seconds from the first response data to the last packet."""
    acknowledged: float | None
    """Seconds from the first response data to the first ACK of any packet; None when none came."""

    @property
    def full_packets(self) -> float:
        """The size of the flight in full datagrams. In this unit, small packets, such as HANDSHAKE_DONE, hardly
        count."""
        return self.bytes / self.datagram_bytes


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """All facts of a recording."""

    connections: tuple[ConnectionFacts, ...]
    """In order of their first packet."""
    origin_unix_ns: int | None
    """When the client's first Initial packet passed its vantage point: the origin of all times."""
    client_side: bool
    """There is a capture at the client."""
    server_side: bool
    ip_versions: frozenset[int]
    """IP versions of all datagrams with QUIC, also of unknown connections."""
    ipv4: Place | None = None
    """The first QUIC datagram over IPv4."""
    first_flight: FirstFlight | None = None
    """The first flight of the first connection with response data; None without a whole capture at the server."""
    protected_packets: int = 0
    """Initial, 0-RTT, Handshake and 1-RTT packets in both captures."""
    unread_packets: int = 0
    """The packets among these that no key opened."""
    unread: tuple[UnreadPackets, ...] = ()
    """The same by connection, sender and type; packets of unknown connections last."""
