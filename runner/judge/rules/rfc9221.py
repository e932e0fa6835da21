"""RFC 9221: unreliable datagrams."""

from runner.judge.rules.nouns import ENDPOINT, SERVER, Document

DOCUMENT = Document(9221)
_every, _unseen = DOCUMENT.every, DOCUMENT.unseen

_every(
    "3",
    "not-offered",
    ENDPOINT,
    "DATAGRAM is sent only to a peer that sent max_datagram_frame_size with a value above 0; in 0-RTT packets, in an "
    "earlier connection.",
)
_every(
    "3",
    "too-large",
    ENDPOINT,
    "DATAGRAM frames, with type and length field, stay within the peer's max_datagram_frame_size.",
)
_every("3", "early-limit-reduced", SERVER, "A server that accepts 0-RTT doesn't reduce max_datagram_frame_size.")
_unseen(
    "5",
    "not-delivered",
    ENDPOINT,
    "The data of DATAGRAM frames is delivered to the application at once.",
    "packets don't show this",
)
