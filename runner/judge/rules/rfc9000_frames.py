"""RFC 9000 sections 19 and 20: frames, error codes."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9000)
_every, _unchecked, _unseen = DOCUMENT.every, DOCUMENT.unchecked, DOCUMENT.unseen

_every("19.3.1", "ack-range-negative", ENDPOINT, "No ACK range goes below packet number 0.")
_every(
    "19.4",
    "reset-receive-only",
    ENDPOINT,
    "RESET_STREAM is not sent for a receive-only stream (a unidirectional stream of the peer).",
)
_every(
    "19.5",
    "stop-sending-send-only",
    ENDPOINT,
    "STOP_SENDING is not sent for a send-only stream (a unidirectional stream of the sender).",
)
_every(
    "19.5",
    "stop-sending-not-created",
    ENDPOINT,
    "STOP_SENDING is not sent for a stream of the peer that the peer has not created.",
)
_every("19.6", "crypto-offset-overflow", ENDPOINT, "CRYPTO data ends below 2^62.")
_every("19.7", "token-from-client", CLIENT, "A client sends no NEW_TOKEN.")
_every("19.7", "token-empty", SERVER, "The token of NEW_TOKEN is not empty.")
_every(
    "19.8",
    "stream-receive-only",
    ENDPOINT,
    "STREAM is not sent on a receive-only stream (a unidirectional stream of the peer).",
)
_every(
    "19.8",
    "stream-not-created",
    ENDPOINT,
    "STREAM is not sent on a bidirectional stream of the peer that the peer has not created.",
)
_every("19.8", "stream-offset-overflow", ENDPOINT, "Stream data ends below 2^62.")
_every(
    "19.10",
    "credit-send-only",
    ENDPOINT,
    "MAX_STREAM_DATA is not sent for a send-only stream (a unidirectional stream of the sender).",
)
_every(
    "19.10",
    "credit-not-created",
    ENDPOINT,
    "MAX_STREAM_DATA is not sent for a stream of the peer that the peer has not created.",
)
_every("19.11", "max-streams-high", ENDPOINT, "MAX_STREAMS grants at most 2^60 streams.")
_every(
    "19.13",
    "blocked-receive-only",
    ENDPOINT,
    "STREAM_DATA_BLOCKED is not sent for a receive-only stream (a unidirectional stream of the peer).",
)
_every("19.14", "streams-blocked-high", ENDPOINT, "STREAMS_BLOCKED names at most 2^60 streams.")
_every("19.15", "id-length", ENDPOINT, "NEW_CONNECTION_ID has a connection ID of 1 to 20 bytes.")
_every("19.15", "retire-prior-to-high", ENDPOINT, "Retire Prior To is at most the sequence number of its frame.")
_every("19.15", "sequence-reused", ENDPOINT, "A sequence number belongs to one connection ID and one reset token.")
_every("19.15", "id-reused", ENDPOINT, "A connection ID has one sequence number.")
_every(
    "19.15",
    "new-id-beside-empty",
    ENDPOINT,
    "An endpoint that chose an empty connection ID sends no NEW_CONNECTION_ID.",
)
_every("19.16", "retire-unissued", ENDPOINT, "RETIRE_CONNECTION_ID names a sequence number that was issued.")
_every(
    "19.16",
    "retire-own-packet",
    ENDPOINT,
    "RETIRE_CONNECTION_ID does not retire the destination connection ID of its own packet.",
)
_every("19.16", "retire-empty", ENDPOINT, "No RETIRE_CONNECTION_ID is sent to a peer whose connection ID is empty.")
_every("19.20", "handshake-done-from-client", CLIENT, "A client sends no HANDSHAKE_DONE.")
_every("19.20", "handshake-done-early", SERVER, "HANDSHAKE_DONE is not sent before the client's Finished arrived.")
_unseen(
    "20.1",
    "wrong-error-code",
    ENDPOINT,
    "An error is signalled with the code that the RFC defines for it.",
    "only a peer that makes each error could show this",
)
