"""Why a transfer was as slow as it was: what held it back, and what happened to it that should not."""

from dataclasses import dataclass
from enum import StrEnum


class Limit(StrEnum):
    """The factor that limited a transfer at one moment."""

    HANDSHAKE = "handshake"  # handshake and request: nothing was asked of the server yet
    RECEIVE_WINDOW = "receive window"  # the client's MAX_DATA or MAX_STREAM_DATA was used up
    CONGESTION_WINDOW = "congestion window"  # the server waited for ACKs, or paced itself below the link's data rate
    PACING = "pacing"  # the window had room, yet the server sent in bursts and rested once per RTT
    LINK = "link"  # the forward link was full: the good case
    APPLICATION = "application"  # nothing in its way, and the server sent nothing
    OUTAGE = "outage"  # the path carried nothing: what was set, and the simulator's count says that it hit
    RECOVERY = "recovery"  # everything had been sent once, some of it had to be sent again
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The limit during one stretch of a transfer, in seconds since the client's first Initial, seen from the
    client."""

    limit: Limit
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """An event, or an unexpected limit. `code` is stable; the sentence has the numbers."""

    code: str
    sentence: str
    start: float  # seconds since the client's first Initial, as the axis of the plots
    end: float
    share: float | None = None  # of what the sentence counts: of the time, the bytes or the packets, 0…1
    packets: tuple[int, ...] = ()  # QUIC packet numbers, the first few that prove it
    vantage: str = ""  # client or server: who sent them
    section: str = ""  # such as `RFC 9002 §7.7`, `thesis §5.6.5`
