"""RFC 9001: TLS in QUIC, packet protection, key updates."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9001)
_every, _case, _unchecked, _unseen = DOCUMENT.every, DOCUMENT.case, DOCUMENT.unchecked, DOCUMENT.unseen

_INSIDE = "it is a decision inside the endpoint, which leaves no trace in packets"

_case("4.1.1", "handshake-incomplete", ENDPOINT, "The handshake completes at both ends.", "handshake", "longrtt")
_every(
    "4.1.2",
    "handshake-done-missing",
    SERVER,
    "A server whose handshake is complete sends HANDSHAKE_DONE: within 1 s if it continues to send.",
)
_every("4.1.3", "message-at-wrong-level", ENDPOINT, "Each TLS message is in packets of its own encryption level.")
_every("4.2", "old-tls-offered", CLIENT, "A ClientHello offers no TLS older than 1.3.")
_every("4.4", "late-client-authentication", SERVER, "No CertificateRequest is sent after the handshake.")
_every(
    "4.6.1",
    "early-data-size",
    SERVER,
    "If a NewSessionTicket has max_early_data_size, the value is 0xffffffff.",
)
_unseen(
    "4.6.2", "rejected-early-data-read", SERVER, "A server does not process 0-RTT packets that it rejected.", _INSIDE
)
_unseen(
    "4.8",
    "alert-level",
    ENDPOINT,
    "An endpoint sends a TLS alert as CONNECTION_CLOSE.",
    "only a peer that makes each error could show this",
)
_every(
    "4.9.1",
    "client-initial-late",
    CLIENT,
    "No Initial packet follows the client's first Handshake packet.",
)
_every(
    "4.9.1",
    "server-initial-late",
    SERVER,
    "A server sends no Initial packet later than 0.5 s after a Handshake packet of the client arrived.",
)
_every("4.9.2", "server-handshake-late", SERVER, "No Handshake packet follows the server's HANDSHAKE_DONE.")
_every(
    "4.9.2",
    "client-handshake-late",
    CLIENT,
    "A client sends no Handshake packet later than 0.5 s after HANDSHAKE_DONE arrived.",
)
_unseen(
    "5.3",
    "nonce-reused",
    ENDPOINT,
    "No nonce is used twice with the same key.",
    "the rules of RFC 9000 §12.3 show violations",
)
_every("5.3", "suite-forbidden", SERVER, "TLS_AES_128_CCM_8_SHA256 is not negotiated.")
_every(
    "5.7",
    "client-1rtt-early",
    CLIENT,
    "No 1-RTT packet is sent before the server's Finished arrived.",
)
_every(
    "5.7",
    "server-1rtt-read-early",
    SERVER,
    "A server acknowledges no 1-RTT packet before the client's Finished arrived.",
)
_every(
    "5.8",
    "retry-tag-wrong",
    SERVER,
    "The Retry Integrity Tag is computed with the destination connection ID of the client's first Initial packet.",
)
_every("6", "tls-key-update", ENDPOINT, "No TLS KeyUpdate message is sent.")
_case("6.1", "no-key-update", CLIENT, "Endpoints update their keys when the case requires it.", "keyupdate")
_every("6.1", "update-before-confirmed", ENDPOINT, "No key update begins before the handshake is confirmed.")
_every(
    "6.1",
    "update-before-ack",
    ENDPOINT,
    "No second key update begins before a packet of the current key phase was acknowledged.",
)
_case(
    "6.2",
    "update-not-followed",
    ENDPOINT,
    "An endpoint answers a key update of the peer with a key update of its own.",
    "keyupdate",
)
_every("6.2", "ack-with-old-keys", ENDPOINT, "Packets with new keys are acknowledged with new keys.")
_every("6.4", "old-keys-on-higher-number", ENDPOINT, "A higher packet number never has older keys.")
_unseen("6.5", "old-keys-dropped", ENDPOINT, "Old keys are kept for packets out of order.", _INSIDE)
_unchecked("6.6", "confidentiality-limit", ENDPOINT, "Keys protect at most 2^23 packets.", "no transfer is that long")
_every("8.1", "no-alpn-offered", CLIENT, "A ClientHello offers an application protocol (ALPN).")
_every("8.1", "no-alpn-selected", SERVER, "A server that continues the handshake selects an application protocol.")
_every("8.1", "alpn-not-offered", SERVER, "The selected application protocol is one of those offered.")
_every(
    "8.2",
    "parameters-missing",
    ENDPOINT,
    "ClientHello and EncryptedExtensions have the extension quic_transport_parameters.",
)
_every("8.3", "end-of-early-data", CLIENT, "No EndOfEarlyData message is sent.")
_every("8.4", "session-id", CLIENT, "legacy_session_id of a ClientHello is empty.")
_unseen(
    "9.2", "replay", SERVER, "Replayed 0-RTT data does no harm.", "packets don't show the actions of the application"
)
