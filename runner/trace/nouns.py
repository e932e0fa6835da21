"""The parts of `trace_facts`: small values about one stream, path, packet or step of a connection.

Times are seconds since the client's first Initial packet in the recording. None means that the evidence is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Place:
    """A datagram of one capture, as the place of an event."""

    vantage: str
    """client or server: the end of the link."""
    record: int
    """Number in the capture file from 1, as Wireshark counts."""
    time: float | None


@dataclass(frozen=True, kw_only=True)
class Landmarks:
    """The places of the steps of a connection, so that findings can point at them. Empty or None: not seen.

    A packet's place is in the capture at its sender's end, if this capture exists.
    """

    client_first: Place | None = None
    """The client's first packet, readable or not."""
    client_last: Place | None = None
    """The last 1-RTT packet of the client; shown for steps that the client never took."""
    server_last: Place | None = None
    client_hellos: tuple[Place, ...] = ()
    """Initial packets with the start of the ClientHello."""
    server_hello: Place | None = None
    """The server's first Initial packet with handshake data."""
    server_parameters: Place | None = None
    """The server's first Handshake packet: ALPN, transport parameters."""
    retries: tuple[Place, ...] = ()
    after_retry: Place | None = None
    """The client's first Initial packet that answers a Retry, else its first Initial packet after the Retry."""
    early_data: Place | None = None
    """The first 0-RTT packet."""
    requests: tuple[Place, ...] = ()
    """The first frame of each of the first five request streams."""
    client_key_update: Place | None = None
    """The first packet with updated keys (RFC 9001 §6)."""
    server_key_update: Place | None = None
    frameless: tuple[Place, ...] = ()
    """The first packets without a frame (forbidden by RFC 9000 §12.4), those of the client if it sent any."""
    reused_numbers: tuple[Place, ...] = ()
    """Packets whose number their sender had used before (forbidden by RFC 9000 §12.3), with their first use."""


@dataclass(frozen=True, kw_only=True)
class VersionNegotiation:
    """A Version Negotiation packet of the server and the packet that it answers (RFC 9000 §6, §17.2.1)."""

    offered: int | None
    """Version of the client's packet; None: no packet of the client came before."""
    listed: tuple[int, ...] | None
    """None: the tables are too old to have the list."""
    ids_echoed: bool
    """The packet has the connection IDs of the client's packet, swapped."""
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class ClientHello:
    """The client's first ClientHello on the wire."""

    bytes: int
    """Bytes of CRYPTO data."""
    datagrams: int
    """Number of its datagrams, without copies."""
    out_of_order: bool | None
    """A later part arrived before the first part, or without it; None without captures at both ends."""
    arrived: bool | None
    """The whole message reached the server's vantage point; None without a capture there."""
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
    """A CONNECTION_CLOSE (RFC 9000 §19.19). Several copies count as one."""

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
    """One stream. Repeated bytes count once. They are counted in the capture of their receiver; if this capture is
    missing, in the capture of their sender."""

    stream_id: int
    client_bytes: int
    server_bytes: int
    client_fin: int | None
    """Final size (RFC 9000 §4.5) of the client's data; None: no FIN was seen."""
    server_fin: int | None
    request: float | None
    """When the client's first frame on the stream passed the client's vantage point."""
    first_new_byte: float | None
    """When the first byte from the server arrived at the client."""
    last_new_byte: float | None
    early_data: bool
    """The client's first byte was in a 0-RTT packet."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of HTTP/0.9 over QUIC (docs/contract.md) and its answer, as far as the tables keep their bytes."""

    stream_id: int
    name: str
    """The last part of the path."""
    place: Place | None
    """Its first packet."""
    answer: bytes
    """The beginning of the answer."""
    answer_end: Place | None
    """The packet with the end of the answer, or of the part of it that arrived; None: nothing arrived."""


@dataclass(frozen=True, kw_only=True)
class EcnCounts:
    """Packets by ECN codepoint (RFC 3168 §5)."""

    not_ect: int = 0
    ect0: int = 0
    ect1: int = 0
    ce: int = 0

    @property
    def ect(self) -> int:
        """Packets with the codepoint ECT(0) or ECT(1)."""
        return self.ect0 + self.ect1


@dataclass(frozen=True, kw_only=True)
class EcnFacts:
    """The use of ECN by one endpoint (RFC 9000 §13.4)."""

    sent: EcnCounts | None
    """QUIC packets that the endpoint sent, at its own vantage point."""
    received: EcnCounts | None
    """QUIC packets to the endpoint that arrived at its own vantage point."""
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
    """A pair of addresses of the connection, as seen at the server's vantage point. Without a capture there, as seen at
    the client's vantage point."""

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
    """Its last datagram."""
    server_first: float | None = None
    """When the server's first datagram on it was seen; None: the server sent none."""
    client_moved: bool = True
    """The client migrated to this path: one of its packets on it has a frame that is no probing frame (RFC 9000
    §9.1)."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """A PATH_CHALLENGE and its answer (RFC 9000 §8.2). Copies with the same data count once."""

    sender: str
    """client or server."""
    client: str
    """The path of the challenge, as seen at the server's vantage point; empty when it never arrived there."""
    server: str
    time: float | None
    arrived: bool | None
    """It arrived at the other end; None without a capture there."""
    arrival: float | None
    """When it first arrived; None when it did not arrive, or without a capture there."""
    answered: bool
    """The other end sent a PATH_RESPONSE with its data."""
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Amplification:
    """The bytes of UDP payload that the server had received and sent before it validated the client's address (RFC 9000
    §8.1), at the time of the largest excess."""

    received: int
    sent: int
    excess: int
    """Sent bytes above three times the received bytes; 0: the server kept the limit."""
    place: Place | None
    """The server's datagram with the largest excess."""
    validated_by: str | None
    """The packet that validated the address, in words; None: it was never validated."""
    headroom: int | None = None
    """Bytes between the limit and the server's closest approach to it; negative above the limit. None: the server sent
    nothing."""


@dataclass(frozen=True, kw_only=True)
class CreditExcess:
    """Response data above the credit that the client had granted (RFC 9000 §4.1), at the time of the largest
    excess."""

    stream_id: int | None
    """None: the excess is above the limit of the connection, over all streams."""
    granted: int
    """Bytes."""
    sent: int
    place: Place | None
    """The packet with the largest excess."""

    @property
    def bytes(self) -> int:
        """The excess in bytes."""
        return self.sent - self.granted


@dataclass(frozen=True, kw_only=True)
class UnreadPackets:
    """Protected packets that could not be decrypted, of one type and one sender on one connection."""

    connection: int | None
    """Position in `TraceFacts.connections`; None: the connection is unknown."""
    client_random: bytes | None
    """The name of the connection in key logs; None when no ClientHello could be read."""
    sender: str
    """client or server; empty when the connection is not known."""
    type: str
    """initial, 0rtt, handshake or 1rtt."""
    secret: str
    """Label of the secret that opens them; empty for Initial packets, whose keys are not secret (RFC 9001 §5.2)."""
    secret_logged: bool | None
    """A key log has that secret, but it opened none of the packets; None when the tables are too old."""
    packets: int
    """All packets of this connection, sender and type, at the vantage point where most of them could not be read."""
    unread: int
    """The packets among these that no key opened."""
    near: bool
    """That vantage point is the sender's own, where the link has not yet changed any packet."""
    none_read: bool
    """No packet of this connection, sender and type was read in any capture."""
    places: tuple[Place, ...]
    """The first of those packets."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An ack-eliciting Initial packet that the client sent because no answer had arrived (RFC 9002 §6.2.4)."""

    waited: float
    """Seconds since the client's previous ack-eliciting packet."""
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class Http3Stream:
    """The data that one endpoint sent on an HTTP/3 stream (RFC 9114 §6), as far as the tables keep its bytes."""

    sender: str
    """client or server."""
    stream_id: int
    type: int | None
    """Type of a unidirectional stream (§6.2); None: a request stream."""
    frames: tuple[int, ...]
    """Types of its frames, in order; empty for unidirectional streams other than control streams."""
    place: Place | None
    """Its first packet."""
