"""RFC 9287: greasing the QUIC bit."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, Document

DOCUMENT = Document(9287)
_every, _unseen = DOCUMENT.every, DOCUMENT.unseen

_every("3", "parameter-with-value", ENDPOINT, "grease_quic_bit has no value.")
_every(
    "3.1",
    "cleared-before-offer",
    CLIENT,
    "A client that has no token of an earlier connection clears the fixed bit of Initial packets only after "
    "the server's grease_quic_bit arrived.",
)
_unseen(
    "3",
    "cleared-bit-refused",
    ENDPOINT,
    "Packets with a cleared bit are accepted.",
    "packets don't show which packets were dropped",
)
