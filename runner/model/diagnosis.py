"""The reasons why a transfer was slow: its limits over time, and unwanted events."""

from dataclasses import dataclass
from enum import StrEnum


class Limit(StrEnum):
    """The factor that limited a transfer at one moment."""

    HANDSHAKE = "handshake"  # handshake and request: the server had no request yet
    RECEIVE_WINDOW = "receive window"  # the client's MAX_DATA or MAX_STREAM_DATA was used up
    CONGESTION_WINDOW = "congestion window"  # the server waited for ACKs, or paced itself below the link's data rate
    PACING = "pacing"  # the window was not full, but the server sent a burst and then paused, once per RTT
    LINK = "link"  # the forward link was full, which is the best case
    APPLICATION = "application"  # nothing limited the server, and it sent nothing
    OUTAGE = "outage"  # the path carried nothing: a configured outage, confirmed by the simulator's counters
    RECOVERY = "recovery"  # all data had been sent once, and some had to be sent again
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The limit during one part of a transfer. Times are seconds since the client's first Initial, as seen at the
    client."""

    limit: Limit
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern that a detector can find. It is declared once, in the detector's module. `meaning`: a sentence without
    numbers."""

    code: str
    meaning: str
    over_tcp: str = ""  # section of an RFC about TCP when the pattern also exists over TCP; empty: only over QUIC


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """An unwanted event or limit in a transfer. `code` never changes its meaning; the numbers are in the sentence."""

    code: str  # code of a `Pattern` of the same detector
    sentence: str
    start: float  # seconds since the client's first Initial, as on the axis of the plots
    end: float
    share: float | None = None  # fraction 0…1 of the time, the bytes or the packets that the sentence counts
    packets: tuple[int, ...] = ()  # QUIC packet numbers of the first packets that prove it
    vantage: str = ""  # client or server: the sender of these packets
    section: str = ""  # sources, such as `RFC 9002 §7.7`, `thesis §5.6.5`
