"""RFC 9000 sections 12 to 18: packets, acknowledgments, ECN, datagrams, headers, transport parameters."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9000)
_every, _case, _unchecked, _unseen = DOCUMENT.every, DOCUMENT.case, DOCUMENT.unchecked, DOCUMENT.unseen

_INSIDE = "it is a decision inside the endpoint, which leaves no trace in packets"

# 12 Packets and frames
_every(
    "12.2", "mixed-destinations", ENDPOINT, "All QUIC packets of a datagram have the same destination connection ID."
)
_every("12.3", "number-reused", ENDPOINT, "A packet number is used once in its packet number space.")
_every("12.3", "number-not-increasing", ENDPOINT, "Each packet has a higher number than the packet sent before it.")
_unseen(
    "12.3", "numbers-exhausted", ENDPOINT, "A connection ends before packet number 2^62.", "no transfer is that long"
)
_every("12.4", "empty-payload", ENDPOINT, "A packet has at least one frame.")
_every("12.4", "unknown-frame", ENDPOINT, "Every frame has a type that RFC 9000 or an agreed extension defines.")
_every("12.4", "malformed-frame", ENDPOINT, "A frame ends within its packet, and its fields agree with each other.")
_every("12.4", "long-frame-type", ENDPOINT, "The type of a frame is encoded in as few bytes as possible.")
_every(
    "12.5",
    "frame-in-early-data",
    CLIENT,
    "0-RTT packets have no ACK, CRYPTO, HANDSHAKE_DONE, NEW_TOKEN, PATH_RESPONSE or RETIRE_CONNECTION_ID.",
)
_every(
    "12.5", "frame-in-initial", ENDPOINT, "Initial packets have only PADDING, PING, ACK, CRYPTO and CONNECTION_CLOSE."
)
_every(
    "12.5",
    "frame-in-handshake",
    ENDPOINT,
    "Handshake packets have only PADDING, PING, ACK, CRYPTO and CONNECTION_CLOSE.",
)

# 13 Acknowledgments, retransmission, ECN
_every("13.1", "ack-of-unsent", ENDPOINT, "An endpoint acknowledges only packet numbers that the peer has sent.")
_every("13.1", "ack-of-unreceived", ENDPOINT, "No packet is acknowledged before it has arrived.")
_every(
    "13.2.1",
    "ack-of-acks",
    ENDPOINT,
    "An endpoint sends no packet of only ACK and PADDING in response to packets that are not ack-eliciting.",
)
_unseen(
    "13.2.1",
    "ack-late",
    ENDPOINT,
    "Ack-eliciting packets are acknowledged within max_ack_delay.",
    "the time between the capture and the endpoint's reading of its socket is unknown",
)
_every(
    "13.2.5",
    "ack-delay-too-long",
    ENDPOINT,
    "ACK Delay is at most the time between the packet's arrival and the sending of its acknowledgment.",
)
_case("13.4.1", "no-ecn-counts", ENDPOINT, "ECN marks that arrive are reported in ACK frames.", "ecn")
_every(
    "13.4.1",
    "ect-not-counted",
    ENDPOINT,
    "The ECT counts of each ACK frame include every packet with ECT that it or an earlier frame with counts "
    "acknowledges.",
)
_every(
    "13.4.1",
    "ce-not-counted",
    ENDPOINT,
    "The ECN-CE count of each ACK frame includes every packet with CE that it or an earlier frame with counts "
    "acknowledges.",
)
_every("13.4.2", "ecn-counts-decrease", ENDPOINT, "ECN counts never decrease from an ACK frame to a later one.")
_every(
    "19.3.2",
    "ect0-count-too-high",
    ENDPOINT,
    "The ECT(0) count is at most the number of packets that arrived with ECT(0).",
)
_every(
    "19.3.2",
    "ect1-count-too-high",
    ENDPOINT,
    "The ECT(1) count is at most the number of packets that arrived with ECT(1).",
)
_every(
    "19.3.2", "ce-count-too-high", ENDPOINT, "The ECN-CE count is at most the number of packets that arrived with CE."
)
_case("13.4.2", "no-ect", ENDPOINT, "An endpoint that uses ECN marks its packets with ECT(0) or ECT(1).", "ecn")
_unseen(
    "13.4.2",
    "ecn-kept-on",
    ENDPOINT,
    "An endpoint stops marking packets when the validation of ECN fails.",
    "no test case makes the validation fail",
)

# 14 Datagram size
_unchecked(
    "14",
    "fragmented",
    ENDPOINT,
    "Datagrams are not fragmented.",
    "shown as an invariant of its own, `fragmented_packets`",
)
_every("14.1", "client-initial-small", CLIENT, "Datagrams with Initial packets of the client have at least 1200 B.")
_every(
    "14.1",
    "server-initial-small",
    SERVER,
    "Datagrams with ack-eliciting Initial packets of the server have at least 1200 B.",
)
_unchecked(
    "14.1",
    "small-initial-accepted",
    SERVER,
    "A server drops Initial packets in datagrams below 1200 B.",
    "only a client that sends such datagrams could show this",
)
DOCUMENT.note(
    "18.2",
    "datagram-above-peer-limit",
    ENDPOINT,
    "Datagrams stay within the peer's max_udp_payload_size once the endpoint knows it: all of a server; those of a "
    "client from its first Handshake packet with CRYPTO data on.",
)

# 17 Packet formats
_every(
    "17.1",
    "number-truncated",
    ENDPOINT,
    "A packet number has enough bytes for more than twice the distance to the largest acknowledged packet number.",
)
_every("17.2", "fixed-bit-long", ENDPOINT, "The fixed bit of long headers is 1, unless the peer sent grease_quic_bit.")
_every("17.2", "reserved-bits-long", ENDPOINT, "The reserved bits of long headers are 0.")
_every("17.2", "id-too-long", ENDPOINT, "Connection IDs in long headers have at most 20 bytes.")
_every("17.2.1", "negotiation-destination", SERVER, "Version Negotiation is sent to the client's source connection ID.")
_every("17.2.1", "negotiation-source", SERVER, "Version Negotiation comes from the client's destination connection ID.")
_every("17.2.2", "token-from-server", SERVER, "Initial packets of a server have no token.")
_every("17.2.3", "early-after-1rtt", CLIENT, "No 0-RTT packet follows the client's first 1-RTT packet.")
_every(
    "17.2.5.1",
    "retry-source-is-destination",
    SERVER,
    "The source connection ID of a Retry differs from the destination connection ID of the packet that it answers.",
)
_every("17.2.5.1", "retry-destination", SERVER, "Retry is sent to the client's source connection ID.")
_every("17.2.5.1", "retries-per-datagram", SERVER, "A datagram of the client is answered by at most one Retry.")
_every("17.2.5.2", "retry-token-empty", SERVER, "Retry has a token.")
_every(
    "17.2.5.3",
    "token-not-echoed",
    CLIENT,
    "All Initial packets from the first answer to the Retry on have its token, byte for byte.",
)
_every("17.2.5.3", "number-reset", CLIENT, "Packet numbers continue after Retry.")
_every("17.2.5.3", "hello-changed", CLIENT, "The ClientHello after a Retry is the same as before the Retry.")
_unchecked(
    "17.2.5.2", "second-retry-taken", CLIENT, "A client accepts only one Retry.", "no server sends a second Retry"
)
_every(
    "17.3.1", "fixed-bit-short", ENDPOINT, "The fixed bit of short headers is 1, unless the peer sent grease_quic_bit."
)
_every("17.3.1", "reserved-bits-short", ENDPOINT, "The reserved bits of short headers are 0.")
_unseen(
    "17.4",
    "spin-always",
    ENDPOINT,
    "The spin bit is disabled on at least one network path, or for one connection ID, in 16.",
    "only many connections could show this",
)

# 18 Transport parameters
_every("18", "malformed-parameter", ENDPOINT, "Transport parameters have the length and the form of their type.")
_every(
    "18.2",
    "server-parameter-from-client",
    CLIENT,
    "A client sends none of the server's parameters: "
    "original_destination_connection_id, preferred_address, retry_source_connection_id, stateless_reset_token.",
)
_every("18.2", "udp-payload-limit-low", ENDPOINT, "max_udp_payload_size is at least 1200.")
_every("18.2", "ack-delay-exponent-high", ENDPOINT, "ack_delay_exponent is at most 20.")
_every("18.2", "max-ack-delay-high", ENDPOINT, "max_ack_delay is below 2^14 ms.")
_every("18.2", "active-id-limit-low", ENDPOINT, "active_connection_id_limit is at least 2.")
_every("18.2", "stream-limit-high", ENDPOINT, "initial_max_streams_bidi and initial_max_streams_uni are at most 2^60.")
_every("18.2", "reset-token-length", SERVER, "stateless_reset_token has 16 bytes.")
_every("18.2", "flag-with-value", ENDPOINT, "disable_active_migration has no value.")
_every("18.2", "preferred-address-empty-id", SERVER, "preferred_address has a connection ID of 1 to 20 bytes.")
_every(
    "18.2", "preferred-address-without-ids", SERVER, "A server with an empty connection ID offers no preferred address."
)
