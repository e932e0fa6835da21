"""The limit that held the transfer back at each moment, from the first Initial packet to the last byte.

All times are times at the client: the time of an event at the server is the time at which a packet that is sent then
arrives over an empty link. Until the first response byte the limit is HANDSHAKE, except for the time that the server
took to answer. From the first response byte on, the time is divided into slices of about 1/16 RTT. Each slice has a
window of one RTT around it, because a sender's feedback loop takes one RTT (RFC 9002 §7). The limit of a slice is the
first of these limits whose condition is true:

1. OUTAGE: the path carried nothing. For an emulated link the outage was configured and the simulator counted losses.
2. LINK: in the window, at least 90 % of the bytes arrived that the forward link can deliver (its capacity without the
   losses of its loss model). On a real link also: each packet of the window had waited. The advertised data rate is
   never used as the capacity.
3. RECEIVE_WINDOW: MAX_DATA or MAX_STREAM_DATA allow less than two packets, in this slice or in 40 % of the window.
4. RECOVERY or HANDSHAKE: no response has unsent bytes. RECOVERY: the client misses bytes that were sent. HANDSHAKE: the
   server waits for a request.
5. PACING or APPLICATION: the server rests although its window has room: less than half as many bytes are in flight as
   recently, and the server learnt of no loss for two RTTs. At least three such rests, about one per RTT, are PACING;
   other rests, also longer rests between them, are APPLICATION. APPLICATION also: datagrams that aren't full show that
   the server's buffer ran empty again and again (`supply.py`).
6. CONGESTION_WINDOW: at least half as many bytes are in flight as recently, because the sender waits for ACKs or
   spreads its window over the RTT. Also for two RTTs after the server learnt of a loss or of CE.

All other time is UNKNOWN. When the server's capture lacks packets, CONGESTION_WINDOW is replaced by UNKNOWN. At the end
each slice gets the most frequent limit of the half window around it.
"""

from dataclasses import dataclass

import numpy as np

from runner.diagnose.slices import Slices
from runner.diagnose.view import View
from runner.model.diagnosis import Limit, Span
from runner.trace.intervals import Bools, Ints

_BLOCKED_SHARE = 0.4
_SPARE = 0.5
_RHYTHM = (0.6, 2.5)  # RTTs of the empty path from one rest to the next
_LEAST_RESTS = 3
_ORDER = tuple(Limit)


@dataclass(frozen=True)
class Course:
    """A transfer with its limits over time. Detectors read this."""

    view: View
    slices: Slices
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, view: View) -> "Course":
        slices = Slices(view)
        return cls(view=view, slices=slices, spans=partition(slices))

    @property
    def duration(self) -> float:
        """Seconds from the connection's first packet to the last new byte, above 0."""
        return max(self.view.last_byte - self.view.begin, 1e-9)

    def of_limit(self, limit: Limit) -> tuple[Span, ...]:
        """The spans in which this limit held the transfer back."""
        return tuple(span for span in self.spans if span.limit is limit)


def partition(slices: Slices) -> tuple[Span, ...]:
    """Spans without gap or overlap from the connection's first packet to the last new byte."""
    early = _beginning(slices.view)
    codes = _smooth(slices, _classify(slices))
    heads = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    ends = slices.edges[np.append(heads[1:], len(codes))]
    late = [
        Span(limit=_ORDER[code], start=float(start), end=float(end))
        for code, start, end in zip(codes[heads].tolist(), slices.edges[heads].tolist(), ends.tolist(), strict=True)
    ]
    return tuple(span for span in (*early, *late) if span.end > span.start)


def shares(spans: tuple[Span, ...]) -> dict[str, float]:
    """Limit → its share of the time; empty for a transfer without duration."""
    whole = sum(span.end - span.start for span in spans)
    by_limit: dict[str, float] = {}
    for span in spans:
        by_limit[span.limit.value] = by_limit.get(span.limit.value, 0.0) + (span.end - span.start) / whole
    return by_limit


def _beginning(view: View) -> list[Span]:
    """Spans up to the first response byte: handshake and request, the server's time to answer, and the retransmission
    of a lost first byte."""
    moments = np.array([view.room.busy[0].min(), view.seconds(view.sent.time_ns[view.own[:1]])[0]]) + view.shift
    requested, answered = np.clip(moments, view.begin, view.first_byte).tolist()
    return [
        Span(limit=Limit.HANDSHAKE, start=view.begin, end=requested),
        Span(limit=Limit.APPLICATION, start=requested, end=answered),
        Span(limit=Limit.RECOVERY, start=answered, end=view.first_byte),
    ]


def _classify(slices: Slices) -> Ints:
    """Per slice: the index of its limit in `_ORDER`."""
    idle = ~slices.pending
    room = (slices.in_flight < _SPARE * slices.peak) | (slices.in_flight <= 0)
    spare = slices.resting & room & ~slices.after_loss & ~idle & (slices.in_flight < slices.view.bdp)
    spare |= slices.resting & (slices.in_flight <= 0) & ~idle  # a window has at least one byte
    blocked = slices.blocked | (slices.around(slices.blocked, slices.per_window) >= _BLOCKED_SHARE)
    conditions = [
        slices.out,
        slices.full,
        blocked & ~idle,
        idle & _whole(slices),
        idle,
        slices.starved,
        spare & _rhythmic(slices, spare),
        spare,
        ((slices.in_flight >= _SPARE * slices.peak) | slices.after_loss) & slices.view.transfer.sent_completely,
    ]
    limits = [
        Limit.OUTAGE,
        Limit.LINK,
        Limit.RECEIVE_WINDOW,
        Limit.RECOVERY,
        Limit.HANDSHAKE,
        Limit.APPLICATION,
        Limit.PACING,
        Limit.APPLICATION,
        Limit.CONGESTION_WINDOW,
    ]
    return np.select(conditions, [_ORDER.index(limit) for limit in limits], default=_ORDER.index(Limit.UNKNOWN))


def _whole(slices: Slices) -> Bools:
    """Per slice: whether the server has no new byte left to send, so that all bytes that the client still misses have
    been sent."""
    _, end = slices.view.room.busy
    whole: Bools = slices.sending >= end.max()
    return whole


def _rhythmic(slices: Slices, spare: Bools) -> Bools:
    """Per slice: whether it is in a rest of a rhythm. At least three rests begin about once per RTT; a rest that is
    longer than the rhythm is none of them."""
    turns = np.flatnonzero(np.diff(np.concatenate(([False], spare, [False])).astype(np.int8)))
    first, last = turns[::2], turns[1::2]
    steps = np.diff(slices.middle[first]) / slices.window
    if len(first) < _LEAST_RESTS or np.mean((steps >= _RHYTHM[0]) & (steps <= _RHYTHM[1])) < 0.5:
        return np.zeros(len(spare), dtype=bool)
    short = last - first <= _RHYTHM[1] * slices.per_window
    count = np.zeros(len(spare) + 1, dtype=int)
    count[first[short]], count[last[short]] = 1, -1
    rhythmic: Bools = np.cumsum(count)[:-1] > 0
    return rhythmic


def _smooth(slices: Slices, codes: Ints) -> Ints:
    """The most frequent limit within half a window around each slice."""
    votes = np.stack([slices.around(codes == code, max(1, slices.per_window // 2)) for code in range(len(_ORDER))])
    smooth: Ints = votes.argmax(axis=0)
    return smooth
