"""Why a transfer was slow: its limits over time, and events that should not happen."""

from dataclasses import dataclass
from enum import StrEnum


class Limit(StrEnum):
    """The factor that limited a transfer at one moment."""

    HANDSHAKE = "handshake"  # handshake and request: the server had no request yet
    RECEIVE_WINDOW = "receive window"  # the client's MAX_DATA or MAX_STREAM_DATA was used up
    CONGESTION_WINDOW = "congestion window"  # the server waited for ACKs, or paced itself below the link's data rate
    PACING = "pacing"  # the window had room, yet the server sent in bursts and rested once per RTT
    LINK = "link"  # the forward link was full: the good case
    APPLICATION = "application"  # nothing limited the server, and it sent nothing
    OUTAGE = "outage"  # the path carried nothing: a configured outage, confirmed by the simulator's counters
    RECOVERY = "recovery"  # all data had been sent once, and some had to be sent again
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The limit during one stretch of a transfer, in seconds since the client's first Initial, seen from the
    client."""

    limit: Limit
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """What a detector can find. Its module declares it, once. `meaning` is a sentence without numbers."""

    code: str
    meaning: str
    over_tcp: str = ""  # section of TCP's RFCs where the pattern holds for TCP, too; empty: it is about QUIC


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """An event, or an unexpected limit. `code` is stable; the sentence has the numbers."""

    code: str  # of a `Pattern` of the same detector
    sentence: str
    start: float  # seconds since the client's first Initial, as the axis of the plots
    end: float
    share: float | None = None  # fraction 0…1 of the time, the bytes or the packets that the sentence counts
    packets: tuple[int, ...] = ()  # QUIC packet numbers, the first few that prove it
    vantage: str = ""  # client or server: the sender of these packets
    section: str = ""  # sources, such as `RFC 9002 §7.7`, `thesis §5.6.5`
