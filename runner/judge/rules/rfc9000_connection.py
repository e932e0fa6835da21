"""RFC 9000 sections 2 to 11: streams, flow control, connections, addresses, migration, closing."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9000)
_every, _case, _unchecked, _unseen = DOCUMENT.every, DOCUMENT.case, DOCUMENT.unchecked, DOCUMENT.unseen

_INSIDE = "it is a decision inside the endpoint, which leaves no trace in packets"

# 2 Streams, 3 Stream states
_every(
    "2.2",
    "data-changed",
    ENDPOINT,
    "CRYPTO data and stream data that is sent again is the same at the same offset. Checked at the beginning of "
    "streams: the first 1024 B, or 64 KiB of a unidirectional stream.",
)
_unseen("2.2", "data-in-order", ENDPOINT, "Stream data is delivered to the application in order.", _INSIDE)
_every("3.3", "stream-after-reset", ENDPOINT, "No STREAM frame follows the sender's own RESET_STREAM of that stream.")
_every(
    "3.3",
    "blocked-after-reset",
    ENDPOINT,
    "No STREAM_DATA_BLOCKED frame follows the sender's own RESET_STREAM of that stream.",
)
_unchecked(
    "3.3",
    "frame-in-terminal-state",
    ENDPOINT,
    "No STREAM, RESET_STREAM or STREAM_DATA_BLOCKED frame follows the acknowledgment of all data of its stream.",
    "the endpoint may not have read the acknowledgment yet",
)
_unchecked(
    "3.5",
    "stop-sending-ignored",
    ENDPOINT,
    "STOP_SENDING for a stream in the state Ready or Send is answered by RESET_STREAM.",
    "no test case makes an endpoint send STOP_SENDING",
)

# 4 Flow control
_every(
    "4.1",
    "stream-limit",
    ENDPOINT,
    "Stream data, or the final size of RESET_STREAM, stays within the peer's limit of the stream (MAX_STREAM_DATA).",
)
_every(
    "4.1",
    "connection-limit",
    ENDPOINT,
    "The data of all streams together, with the final sizes of reset streams, stays within the peer's limit "
    "(MAX_DATA).",
)
_unseen(
    "4.1",
    "blocked-needed",
    ENDPOINT,
    "MAX_STREAM_DATA and MAX_DATA are sent without waiting for STREAM_DATA_BLOCKED or DATA_BLOCKED.",
    _INSIDE,
)
_case("4.1", "credit-extended", CLIENT, "A receiver that continues to read extends its limit.", "transfer")
_every("4.5", "final-size-changed", ENDPOINT, "The final size of a stream, in FIN or RESET_STREAM, stays the same.")
_every("4.5", "data-beyond-final-size", ENDPOINT, "No stream data lies at or beyond the final size of its stream.")
_every(
    "4.6",
    "too-many-streams",
    ENDPOINT,
    "The number of streams that an endpoint opens, with whichever frame, stays within the peer's limit (MAX_STREAMS).",
)
_unseen("4.6", "blocked-needed", ENDPOINT, "MAX_STREAMS is sent without waiting for STREAMS_BLOCKED.", _INSIDE)

# 5 Connections
_every("5.1.1", "sequence-skipped", ENDPOINT, "Sequence numbers of issued connection IDs increase by 1, without a gap.")
_every(
    "5.1.1",
    "too-many-ids",
    ENDPOINT,
    "No more connection IDs are active than the peer's active_connection_id_limit, or 2 without that parameter.",
)
_every("5.1.2", "retired-id-used", ENDPOINT, "A connection ID is not used after its RETIRE_CONNECTION_ID was sent.")
_every(
    "5.1.2",
    "retire-prior-to-ignored",
    ENDPOINT,
    "A connection ID below Retire Prior To is retired: no packet has it later than 1 s after the frame arrived.",
)
_unseen("5.1.1", "active-id-refused", ENDPOINT, "Packets with any active connection ID are accepted.", _INSIDE)
_every(
    "5.2.2",
    "small-datagram-answered",
    SERVER,
    "A server drops packets of unknown versions in datagrams below 1200 B, and does not answer them.",
)
_unseen("5.2.1", "foreign-packet-accepted", CLIENT, "Packets that can't belong to the connection are dropped.", _INSIDE)

# 6 Version Negotiation
_every("6.1", "negotiation-from-client", CLIENT, "A Version Negotiation packet is not answered by another one.")
_case(
    "6.1",
    "unknown-version-unanswered",
    SERVER,
    "A server answers an unknown version with Version Negotiation.",
    "versionnegotiation",
)
_case("6.2", "unlisted-version", CLIENT, "A client continues only with a version of the list.", "versionnegotiation")
_unseen(
    "6.2",
    "late-negotiation-followed",
    CLIENT,
    "A client drops Version Negotiation after any other packet of the server.",
    _INSIDE,
)

# 7 Handshake
_every("7.2", "first-id-short", CLIENT, "The first destination connection ID of a client has at least 8 bytes.")
_every(
    "7.2",
    "id-not-the-servers",
    CLIENT,
    "After the server's first packet the client uses the server's source connection ID as destination: in Handshake "
    "packets, and in Initial packets from its first acknowledgment on.",
)
_every(
    "7.2",
    "id-not-issued",
    ENDPOINT,
    "Every packet of a server and every 1-RTT packet of a client goes to a connection ID that the peer had issued.",
)
_every(
    "7.2",
    "client-source-changed",
    CLIENT,
    "All Initial and 0-RTT packets of a client have the same source connection ID. Its Handshake packets have this ID "
    "or an ID that the client issued.",
)
_every(
    "7.2",
    "server-source-changed",
    SERVER,
    "The Handshake packets of a server have the source connection ID of its Initial packets.",
)
_unchecked(
    "7.2",
    "first-id-changed",
    CLIENT,
    "The destination connection ID stays the same until a packet of the server arrives.",
    "a first packet with another connection ID looks like the first packet of another connection",
)
_every("7.3", "initial-source-missing", ENDPOINT, "initial_source_connection_id is among the transport parameters.")
_every(
    "7.3",
    "initial-source-wrong",
    ENDPOINT,
    "initial_source_connection_id is the source connection ID of the endpoint's first Initial packet.",
)
_every("7.3", "original-destination-missing", SERVER, "original_destination_connection_id is among the parameters.")
_every(
    "7.3",
    "original-destination-wrong",
    SERVER,
    "original_destination_connection_id is the destination of the client's first Initial packet.",
)
_every("7.3", "retry-source-missing", SERVER, "After Retry retry_source_connection_id is among the parameters.")
_every("7.3", "retry-source-wrong", SERVER, "retry_source_connection_id is the source connection ID of the Retry.")
_every("7.3", "retry-source-without-retry", SERVER, "Without Retry there is no retry_source_connection_id.")
_every("7.4", "parameter-twice", ENDPOINT, "No transport parameter is sent twice.")
_every(
    "7.4.1",
    "early-limits-reduced",
    SERVER,
    "A server that accepts 0-RTT keeps every limit at least as high as it was in the remembered connection.",
)
_every(
    "7.4.1",
    "remembered-limits",
    CLIENT,
    "In 0-RTT packets, a client keeps the limits of streams and data that it remembers. Checked against the highest "
    "limits of all earlier connections, until the server's first Handshake or 1-RTT packet arrives.",
)
_unseen("7.5", "crypto-buffer", ENDPOINT, "At least 4096 B of CRYPTO data out of order can be buffered.", _INSIDE)

# 8 Address validation
_every(
    "8.1",
    "amplification",
    SERVER,
    "Before a server has validated the client's address, it sends at most three times the bytes that it received.",
)
_case(
    "8.1",
    "amplification-asked",
    SERVER,
    "A server keeps the limit even if its certificate chain is larger than the limit.",
    "amplificationlimit",
)
_every(
    "8.1.3",
    "token-left-out",
    CLIENT,
    "The token of the first Initial packet is in all later Initial packets, unless a Retry replaces it.",
)
_unseen("8.1.4", "token-forgeable", SERVER, "Tokens can't be guessed or forged.", "only an attacker could test this")
_every(
    "8.2.1",
    "challenge-not-padded",
    ENDPOINT,
    "A datagram with PATH_CHALLENGE has at least 1200 B, unless the anti-amplification limit forbids it.",
)
_every("8.2.1", "challenge-data-repeated", ENDPOINT, "PATH_CHALLENGE frames on different paths have different data.")
_every(
    "8.2.2",
    "response-not-padded",
    ENDPOINT,
    "A datagram with PATH_RESPONSE has at least 1200 B, unless the anti-amplification limit forbids it.",
)
_every(
    "8.2.2",
    "response-on-other-path",
    ENDPOINT,
    "PATH_RESPONSE is sent on the path on which its PATH_CHALLENGE arrived.",
)
_every("8.2.2", "response-repeated", ENDPOINT, "A PATH_CHALLENGE is answered by at most one PATH_RESPONSE.")
_every(
    "8.2.2",
    "challenge-unanswered",
    ENDPOINT,
    "Each PATH_CHALLENGE is answered by PATH_RESPONSE: within 0.1 s of its acknowledgment if the endpoint continues to "
    "send.",
)
_every("8.2.2", "response-unasked", ENDPOINT, "PATH_RESPONSE has the data of a PATH_CHALLENGE that arrived.")

# 9 Migration
_every("9", "migration-before-confirmed", CLIENT, "No migration begins before the handshake is confirmed.")
_every(
    "9",
    "migration-disabled",
    CLIENT,
    "If the peer sent disable_active_migration, no packet to the peer's address of the handshake comes from another "
    "local address.",
)
_every(
    "8",
    "unvalidated-path",
    SERVER,
    "On a path that is not yet validated, a server sends at most three times the bytes that it received there.",
)
_every(
    "9.3",
    "new-path-not-challenged",
    SERVER,
    "A server validates each new address of its peer: it sends PATH_CHALLENGE there within 1 s of its first datagram.",
)
_case(
    "9.3",
    "old-address-kept",
    SERVER,
    "After a migration, packets are sent to the new address.",
    "rebind-port",
    "rebind-addr",
)
_every("9.5", "id-from-two-addresses", CLIENT, "A connection ID is not used from two local addresses.")
_every(
    "9.5",
    "id-to-two-addresses",
    SERVER,
    "A server uses a new connection ID for a new address of the client, if the client uses a new one there, too.",
)
_case(
    "9.6.1",
    "preferred-address-unused",
    CLIENT,
    "A client that moves to a preferred address validates it.",
    "connectionmigration",
)

# 10 Termination, 11 Errors
_unchecked(
    "10.1",
    "sent-after-idle-timeout",
    ENDPOINT,
    "After the idle timeout an endpoint sends no more packets.",
    "the time depends on the endpoint's own estimate of the PTO",
)
_every(
    "10.2.2",
    "sent-while-draining",
    ENDPOINT,
    "An endpoint that received CONNECTION_CLOSE in a 1-RTT packet sends at most one packet with CONNECTION_CLOSE, and "
    "no other packet later than 0.5 s. An endpoint that closed the connection itself may answer with more of them.",
)
_every(
    "10.2.3",
    "application-close-early",
    ENDPOINT,
    "CONNECTION_CLOSE of the application (0x1d) is sent only in 0-RTT and 1-RTT packets.",
)
_every(
    "10.2.3",
    "reason-not-cleared",
    ENDPOINT,
    "CONNECTION_CLOSE with APPLICATION_ERROR in Initial and Handshake packets has an empty reason phrase.",
)
_unchecked(
    "10.3",
    "reset-too-large",
    ENDPOINT,
    "A stateless reset has less than three times the size of the packet that it answers.",
    "no test case makes an endpoint forget a connection",
)
_every("10.3.2", "reset-token-repeated", ENDPOINT, "Each connection ID has a stateless reset token of its own.")
_unseen(
    "10.3",
    "reset-unlike-1rtt",
    ENDPOINT,
    "A stateless reset looks like a 1-RTT packet.",
    "a stateless reset is designed to look like a 1-RTT packet",
)
_unseen(
    "11", "error-not-signalled", ENDPOINT, "An error that ends a connection is signalled by CONNECTION_CLOSE.", _INSIDE
)
