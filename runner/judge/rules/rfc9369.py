"""RFC 9369: QUIC version 2."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9369)
_every, _unchecked, _unseen = DOCUMENT.every, DOCUMENT.unchecked, DOCUMENT.unseen

_every("3.3.1", "initial-keys", ENDPOINT, "Initial packets are protected with the keys of the version in their header.")
_every("3.3.2", "key-labels", ENDPOINT, "0-RTT, Handshake and 1-RTT keys are those of the connection's version.")
_every("4", "no-version-information", ENDPOINT, "An endpoint that speaks version 2 sends version_information.")
_every("4.1", "retry-version", SERVER, "Retry has the client's original version.")
_every(
    "4.1",
    "version-after-retry",
    CLIENT,
    "The client's Initial packets after Retry begin with the version of the Retry.",
)
_every("4.1", "handshake-version", ENDPOINT, "Handshake packets have the negotiated version.")
_every("4.1", "early-data-version", CLIENT, "0-RTT packets have the original version.")
_every("5", "token-of-other-version", CLIENT, "A token is used with the version in which it was issued.")
_unchecked(
    "5",
    "ticket-of-other-version",
    CLIENT,
    "A session ticket is used with the version in which it was issued.",
    "tickets are encrypted, and their identities are not kept",
)
_unseen(
    "3.2", "packet-types", ENDPOINT, "Long headers have the type bits of version 2.", "such a packet can't be decrypted"
)
