"""How each endpoint's part of a connection ended: its last packet, packets without an answer, data without credit."""

import numpy as np

from runner.decode.schema import SERVER
from runner.trace.credit import used_up
from runner.trace.intervals import Bools
from runner.trace.nouns import Ending, Place
from runner.trace.rtt import ack_eliciting
from runner.trace.scope import ROLES, Scope, values
from runner.trace.vantage import APPLICATION, NULL, Vantage

_SHOWN = 5


def endings(scope: Scope) -> dict[str, Ending]:
    """By role, the end of its part of a connection. A role without a capture at its own end is left out."""
    ends = {}
    for sender, role in ROLES.items():
        vantage = scope.recording.near(sender)
        if vantage is not None:
            ends[role] = _ending(scope, vantage, sender)
    return ends


def _ending(scope: Scope, vantage: Vantage, sender: int) -> Ending:
    packets, times, place = vantage.packets, vantage.packet_time, scope.place
    sent = np.flatnonzero(scope.mine(packets, sender))
    last = int(sent[times[sent].argmax()]) if len(sent) else None
    eliciting = ack_eliciting(vantage)
    arrived = np.flatnonzero(scope.mine(packets, 1 - sender) & eliciting)
    unanswered = arrived if last is None else arrived[times[arrived] > times[last]]
    waiting = sent[eliciting[sent] & ~_acknowledged(scope, vantage, sender)[sent]]
    if (vantage.ack_space[np.flatnonzero(scope.mine(vantage.ack_frames, 1 - sender))] == APPLICATION).any():
        # The peer may have discarded its Handshake keys before it acknowledged every packet (RFC 9001 §4.9.2).
        waiting = waiting[vantage.packet_space[waiting] == APPLICATION]
    return Ending(
        last=None if last is None else place(vantage, last),
        unanswered=len(unanswered),
        first_unanswered=place(vantage, int(unanswered[0])) if len(unanswered) else None,
        unacknowledged=scope.places(vantage, waiting[:_SHOWN].tolist()),
        resets=_by_stream(scope, vantage, sender, "reset_stream"),
        stops=_by_stream(scope, vantage, sender, "stop_sending"),
        finished=values(vantage.stream_frames["stream_id"][_fins(scope, vantage, sender)]),
        blocked=used_up(scope) if sender == SERVER else frozenset(),
    )


def _fins(scope: Scope, vantage: Vantage, sender: int) -> Bools:
    frames = vantage.stream_frames
    ends: Bools = scope.mine(frames, sender) & (frames["fin"] == 1)
    return ends


def _acknowledged(scope: Scope, vantage: Vantage, sender: int) -> Bools:
    """Per packet: whether an ACK that arrived at `sender` acknowledges it."""
    packets, acks = vantage.packets, vantage.ack_frames
    done = np.zeros(len(packets), dtype=bool)
    rows = np.flatnonzero(scope.mine(acks, 1 - sender))
    for space in np.unique(vantage.ack_space[rows]):
        mine = np.flatnonzero(scope.mine(packets, sender) & (vantage.packet_space == space))
        mine = mine[packets["packet_number"][mine] != NULL]
        mine = mine[np.argsort(packets["packet_number"][mine], kind="stable")]
        numbers = packets["packet_number"][mine]
        change = np.zeros(len(mine) + 1, dtype=np.int64)
        for row in rows[vantage.ack_space[rows] == space].tolist():
            for acknowledged in acks.cell("ranges", row) or ():
                change[np.searchsorted(numbers, acknowledged["first"])] += 1
                change[np.searchsorted(numbers, acknowledged["last"], side="right")] -= 1
        done[mine] = np.cumsum(change[:-1]) > 0
    return done


def _by_stream(scope: Scope, vantage: Vantage, sender: int, name: str) -> dict[int, Place | None]:
    """Stream ID → the first packet of `sender` with a frame of this name for the stream."""
    first: dict[int, Place | None] = {}
    for row in scope.frames(vantage, sender, name).tolist():
        stream = int(vantage.frames["stream_id"][row])
        first.setdefault(stream, scope.place(vantage, int(vantage.frames["packet"][row])))
    return first
