"""The limit that held the transfer back at each moment, from the first Initial packet to the last byte.

Times are those of the client: a moment of the server becomes the moment at which a packet sent then would arrive over
an empty link. Until the first response byte the limit is HANDSHAKE, except for the time that the server took to answer.
From the first response byte on, the time is cut into cells of about 1/16 RTT. Each cell has a window of one RTT around
it, because a sender's feedback loop takes one RTT (RFC 9002 §7). The first limit of this list that holds is the limit
of the cell:

1. OUTAGE: the path carried nothing. For an emulated link the outage was configured and the simulator counted losses.
2. LINK: arrivals fill 90 % of the window at the forward link's capacity, less the losses of the loss model behind it.
   On a real link LINK also holds where each packet of the window had waited. The advertised rate is never the capacity.
3. RECEIVE_WINDOW: MAX_DATA or MAX_STREAM_DATA allow less than two packets, here or in 40 % of the window.
4. RECOVERY or HANDSHAKE: no response has unsent bytes. RECOVERY: the client misses bytes that were sent. HANDSHAKE: the
   server waits for a request.
5. PACING or APPLICATION: the server rests although its window has room, that is, less than half as many bytes are in
   flight as recently, and the server learnt of no loss for two RTTs. At least three such rests, about one per RTT, are
   PACING; other rests are APPLICATION. APPLICATION also holds where datagrams that aren't full show that the server's
   buffer ran empty again and again (`supply.py`).
6. CONGESTION_WINDOW: at least half as many bytes are in flight as recently, because the sender waits for ACKs or
   spreads its window over the RTT. It also holds for two RTTs after the server learnt of a loss or of CE.

All other time is UNKNOWN. When the server's capture lacks packets, UNKNOWN takes the place of CONGESTION_WINDOW.
At the end each cell takes the most frequent limit of the half window around it.
"""

from dataclasses import dataclass

import numpy as np

from runner.diagnose.cells import Cells
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
    cells: Cells
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, view: View) -> "Course":
        cells = Cells(view)
        return cls(view=view, cells=cells, spans=partition(cells))

    @property
    def duration(self) -> float:
        """Seconds from the connection's first packet to the last new byte, above 0."""
        return max(self.view.last_byte - self.view.begin, 1e-9)

    def of_limit(self, limit: Limit) -> tuple[Span, ...]:
        """The spans in which this limit held the transfer back."""
        return tuple(span for span in self.spans if span.limit is limit)


def partition(cells: Cells) -> tuple[Span, ...]:
    """Spans without gap or overlap from the connection's first packet to the last new byte."""
    early = _beginning(cells.view)
    codes = _smooth(cells, _classify(cells))
    heads = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    ends = cells.edges[np.append(heads[1:], len(codes))]
    late = [
        Span(limit=_ORDER[code], start=float(start), end=float(end))
        for code, start, end in zip(codes[heads].tolist(), cells.edges[heads].tolist(), ends.tolist(), strict=True)
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
    asked, answered = np.clip(moments, view.begin, view.first_byte).tolist()
    return [
        Span(limit=Limit.HANDSHAKE, start=view.begin, end=asked),
        Span(limit=Limit.APPLICATION, start=asked, end=answered),
        Span(limit=Limit.RECOVERY, start=answered, end=view.first_byte),
    ]


def _classify(cells: Cells) -> Ints:
    """Per cell: the index of its limit in `_ORDER`."""
    idle = ~cells.pending
    room = (cells.in_flight < _SPARE * cells.peak) | (cells.in_flight <= 0)
    spare = cells.resting & room & ~cells.after_loss & ~idle & (cells.in_flight < cells.view.bdp)
    spare |= cells.resting & (cells.in_flight <= 0) & ~idle  # a window has at least one byte
    blocked = cells.blocked | (cells.around(cells.blocked, cells.per_window) >= _BLOCKED_SHARE)
    conditions = [
        cells.out,
        cells.full,
        blocked & ~idle,
        idle & _whole(cells),
        idle,
        cells.starved,
        spare & _rhythmic(cells, spare),
        spare,
        ((cells.in_flight >= _SPARE * cells.peak) | cells.after_loss) & cells.view.transfer.sent_completely,
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


def _whole(cells: Cells) -> Bools:
    """Per cell: whether the server has no new byte left to send, so that all bytes that the client still misses have
    been sent."""
    _, end = cells.view.room.busy
    whole: Bools = cells.sending >= end.max()
    return whole


def _rhythmic(cells: Cells, spare: Bools) -> bool:
    """Whether rests begin about once per RTT, at least three of them."""
    begins = cells.middle[np.flatnonzero(spare & ~np.append(False, spare[:-1]))]
    if len(begins) < _LEAST_RESTS:
        return False
    steps = np.diff(begins) / cells.window
    return bool(np.mean((steps >= _RHYTHM[0]) & (steps <= _RHYTHM[1])) >= 0.5)


def _smooth(cells: Cells, codes: Ints) -> Ints:
    """The most frequent limit within half a window around each cell."""
    votes = np.stack([cells.around(codes == code, max(1, cells.per_window // 2)) for code in range(len(_ORDER))])
    smooth: Ints = votes.argmax(axis=0)
    return smooth
