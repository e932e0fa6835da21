"""RFC 9204: QPACK. The rules are checked on connections that negotiated `h3`, in field sections of up to 64 KiB."""

from runner.judge.rules.nouns import ENDPOINT, Document

DOCUMENT = Document(9204)
_every, _unchecked = DOCUMENT.every, DOCUMENT.unchecked

_unchecked(
    "2.1.2",
    "too-many-blocked",
    ENDPOINT,
    "No more streams can be blocked than the peer's SETTINGS_QPACK_BLOCKED_STREAMS.",
    "packets don't show when the peer reads its streams",
)
_every(
    "2.2.3",
    "invalid-reference",
    ENDPOINT,
    "Field sections and instructions refer to entries of the dynamic table that were inserted, below the Required "
    "Insert Count. Checked until twice as many entries were inserted as fit; evicted entries, in instructions only.",
)
_every("3.1", "static-index-high", ENDPOINT, "An index of the static table is at most 98.")
_every("3.2.2", "entry-too-large", ENDPOINT, "An entry is not larger than the capacity of the dynamic table.")
_every("4.2", "two-encoder-streams", ENDPOINT, "No endpoint opens a second encoder stream.")
_every("4.2", "two-decoder-streams", ENDPOINT, "No endpoint opens a second decoder stream.")
_every("4.2", "stream-closed", ENDPOINT, "The sender doesn't close its encoder stream or decoder stream.")
_every("4.2", "stream-stopped", ENDPOINT, "The receiver sends no STOP_SENDING for an encoder stream or decoder stream.")
_every(
    "4.3.1",
    "capacity-high",
    ENDPOINT,
    "The capacity of the dynamic table is at most the peer's SETTINGS_QPACK_MAX_TABLE_CAPACITY.",
)
_every(
    "4.4.1",
    "acknowledgment-wrong",
    ENDPOINT,
    "Each Section Acknowledgment is about a field section that refers to the dynamic table.",
)
_every(
    "4.4.3",
    "increment-wrong",
    ENDPOINT,
    "Insert Count Increments are not 0, and together count no more entries than the peer inserted. Entries that "
    "Section Acknowledgments count as well are not subtracted.",
)
