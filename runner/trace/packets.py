"""Facts that don't need the content of packets: key updates, ECN, IP versions, lengths."""

import numpy as np

from runner.trace.intervals import Ints
from runner.trace.nouns import EcnCounts, EcnFacts, Place, SentLength
from runner.trace.scope import Scope, values
from runner.trace.unread import TYPES, may_be_authentic
from runner.trace.vantage import APPLICATION, HANDSHAKE, INITIAL, Recording, Vantage

NOT_ECT, ECT1, ECT0, CE = range(4)  # codepoints of the IP header (RFC 3168 §5)


def key_updates(scope: Scope, sender: int) -> int:
    """How many times the 1-RTT keys of `sender` changed (RFC 9001 §6)."""
    generations = [
        int(vantage.packets["key_generation"][rows].max())
        for vantage in scope.recording.vantages
        if len(rows := scope.packets(vantage, sender, "1rtt"))
    ]
    return max([0, *generations])


def begun_key_updates(scope: Scope, sender: int) -> int:
    """How many of these updates `sender` began itself. Such an update is seen when `sender` used the new keys before a
    packet with these keys had arrived."""
    vantage = scope.best(sender)
    sent, received = (scope.packets(vantage, role, "1rtt") for role in (sender, 1 - sender))
    generation, time = vantage.packets["key_generation"], vantage.packet_time
    begun = 0
    for number in range(1, int(generation[sent].max(initial=0)) + 1):
        first = time[sent][generation[sent] >= number].min()
        begun += not (time[received][generation[received] >= number] < first).any()
    return begun


def ecn(scope: Scope, sender: int) -> EcnFacts:
    """ECN marks on the packets that `sender` sent and received, and the counts in its ACK frames."""
    near = scope.recording.near(sender)
    best = scope.best(sender)
    acks = best.ack_frames
    mine = scope.mine(acks, sender)
    counted = mine & (acks["ect0"] >= 0)
    highest = np.zeros(3, dtype=np.int64)
    for space in (INITIAL, HANDSHAKE, APPLICATION):
        rows = counted & (best.ack_space == space)
        if rows.any():
            highest += [acks[name][rows].max() for name in ("ect0", "ect1", "ce")]
    mine_sent = np.flatnonzero(scope.mine(best.packets, sender))
    return EcnFacts(
        sent=_marks(scope, near, sender) if near else None,
        received=_marks(scope, near, 1 - sender) if near else None,
        reported=EcnCounts(ect0=int(highest[0]), ect1=int(highest[1]), ce=int(highest[2])),
        ack_frames=int(mine.sum()),
        ack_frames_with_counts=int(counted.sum()),
        first_sent=scope.place(best, int(mine_sent[0])) if len(mine_sent) else None,
        highest_report=_highest_report(scope, best, np.flatnonzero(counted if counted.any() else mine)),
    )


def _highest_report(scope: Scope, vantage: Vantage, rows: Ints) -> Place | None:
    """The place of the ACK frame with the highest counts among these rows. When no frame has counts, the place of the
    last frame."""
    if not len(rows):
        return None
    acks = vantage.ack_frames
    counts = acks["ect0"][rows].astype(float) + acks["ect1"][rows] + acks["ce"][rows]
    return scope.place(vantage, int(acks["packet"][rows[np.flatnonzero(counts == counts.max())[-1]]]))


def _marks(scope: Scope, vantage: Vantage, sender: int) -> EcnCounts:
    mine = scope.mine(vantage.packets, sender)
    read = vantage.packets["decrypted"] == 1
    for kind in TYPES:  # nobody counts the marks of packets that nobody can read
        of_kind = mine & ~read & vantage.packets.named("type", kind)
        if of_kind.any() and may_be_authentic(scope.recording, scope.number, sender, kind):
            read = read | of_kind
    marks = vantage.packet_ecn[mine & read]
    counts = np.bincount(marks[(marks >= 0) & (marks <= CE)], minlength=4)
    return EcnCounts(not_ect=int(counts[NOT_ECT]), ect0=int(counts[ECT0]), ect1=int(counts[ECT1]), ce=int(counts[CE]))


def ip_versions(scope: Scope) -> frozenset[int]:
    """The IP versions that carried the connection, at either vantage point."""
    versions = frozenset[int]()
    for vantage in scope.recording.vantages:
        versions |= values(vantage.datagrams["ip_version"][scope.mine(vantage.datagrams)])
    return versions


def first_ipv4(recording: Recording) -> Place | None:
    """The first QUIC datagram over IPv4, at either vantage point."""
    for vantage in recording.vantages:
        rows = np.flatnonzero(vantage.datagrams["ip_version"] == 4)
        if len(rows):
            return recording.place(vantage, int(rows[0]))
    return None


def lengths(scope: Scope, sender: int) -> dict[int, SentLength]:
    """The IP packets of `sender` by their length."""
    vantage = scope.best(sender)
    rows = np.flatnonzero(scope.mine(vantage.datagrams, sender))
    by_length = {}
    for length in np.unique(vantage.datagrams["ip_length"][rows]):
        same = rows[vantage.datagrams["ip_length"][rows] == length]
        first, last = (scope.recording.place(vantage, int(same[at])) for at in (0, -1))
        by_length[int(length)] = SentLength(count=len(same), first=first, last=last)
    return by_length


def undecrypted(scope: Scope) -> int:
    """The number of protected packets that could not be read, at the vantage point where this number is higher."""
    return max(
        int((scope.mine(vantage.packets) & (vantage.packets["decrypted"] == 0)).sum())
        for vantage in scope.recording.vantages
    )
