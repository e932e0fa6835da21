"""Mutants of packets, frames, streams and flow control (RFC 9000 §2 to §4, §12 to §14, §17, §19)."""

from lab.mutate.mutation import LEAST_INITIAL, MTU, Mutation, Sent, Stream, copied, fill, mutant
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.wire import F, Frame, Kind, P, ack, frame, new_connection_id, padding

HIGH = (1 << 60) + 1


def arrived(m: Mutation, *kinds: Kind) -> list[Sent]:
    """Packets of these kinds that both captures have."""
    return m.packets(where=lambda datagram, packet: datagram.arrived and packet.opened and packet.kind in kinds)


def acks(m: Mutation, *types: F) -> list[tuple[Sent, Frame]]:
    """ACK frames of these types, in 1-RTT packets that both captures have."""
    sent = [each for each in m.frames(*types) if each[1].kind is Kind.ONE_RTT and each[0].arrived]
    return [((datagram, packet), each) for datagram, packet, each in sent]


def counts(m: Mutation) -> list[tuple[Sent, Frame]]:
    """ACK frames with ECN counts."""
    outcome = acks(m, F.ACK_ECN)
    m.need(len(outcome) > 1, "too few ACKs with counts")
    return outcome


def granted(m: Mutation, parameter: int, kind: F) -> int:
    """The highest limit that the peer set by its transport parameter and by frames of this kind."""
    return max([m.parameter(parameter, m.peer), *(each["limit"] for _, _, each in m.frames(kind, sender=m.peer))])


def lower(m: Mutation, parameter: int, kind: F, limit: int, stream: int | None = None) -> None:
    """Let the peer grant no more than this limit, for one stream or for the connection."""
    m.set_parameter(parameter, limit, m.peer)
    for datagram, packet, old in m.frames(kind, sender=m.peer):
        if old.values.get("stream") == stream:
            m.replace((datagram, packet), old, old.but(limit=min(old["limit"], limit)))


@mutant("rfc9000-12.3-number-not-increasing")
def _not_increasing(m: Mutation) -> None:
    hosts = [each for each in m.hosts() if each[0].packets == [each[1]]]
    m.need(len(hosts) > 3, "too few packets")
    at = m.rng.randrange(len(hosts) - 1)
    (_, first), (_, second) = hosts[at], hosts[at + 1]
    m.need(second.number == first.number + 1 and first.first & 4 == second.first & 4, "not in a row")
    counted = any(each.type == F.ACK_ECN for each in (*first.frames, *second.frames))
    m.need(not counted, "ECN counts would decrease with the numbers")
    first.number, second.number = second.number, first.number
    first.changed = second.changed = True


@mutant("rfc9000-13.1-ack-of-unreceived", cases=("lossy", "ackloss", "handshakeloss", "blackhole"))
def _unreceived(m: Mutation) -> None:
    def lost(number: int) -> bool:
        sent = m.packets(Kind.ONE_RTT, sender=m.peer, where=lambda _, packet: packet.number == number)
        return bool(sent) and not any(datagram.arrived for datagram, _ in sent)

    gaps = []
    for sent, old in acks(m, F.ACK):
        for at, ((low, _), (_, below)) in enumerate(zip(old.ranges, old.ranges[1:], strict=False)):
            if low > below + 1 and all(map(lost, range(below + 1, low))):
                gaps.append((sent, old, at))
    sent, old, at = m.pick(gaps, "no ACK with a gap")
    joined = (old.ranges[at + 1][0], old.ranges[at][1])
    m.replace(sent, old, old.but(ranges=(*old.ranges[:at], joined, *old.ranges[at + 2 :])))


@mutant("rfc9000-13.1-ack-of-unreceived")
def _not_yet_received(m: Mutation) -> None:
    arrivals = {
        packet.number: datagram.seen[m.role].time_ns
        for datagram, packet in m.packets(Kind.ONE_RTT, sender=m.peer)
        if datagram.arrived
    }
    early = [
        (sent, old)
        for sent, old in acks(m, F.ACK)
        if arrivals.get(old.ranges[0][1] + 1, 0) > sent[0].seen[m.role].time_ns
    ]
    sent, old = m.pick(early, "no ACK before a further packet")
    (low, high), *others = old.ranges
    m.replace(sent, old, old.but(ranges=((low, high + 1), *others)))


@mutant("rfc9000-13.2.1-ack-of-acks", cases=("longrtt", "blackhole", "lossy", "ackloss"))
def _ack_of_acks(m: Mutation) -> None:
    """In a pause the peer sends a packet with only PADDING, and the role acknowledges it."""
    there = sorted(
        each.seen[m.role].time_ns for each, _ in m.packets(sender=m.peer) if m.role in each.seen and each.arrived
    )
    other = m.by(m.peer)
    pauses = []
    for datagram, packet in other.hosts():
        arrival = datagram.seen[m.role].time_ns
        following = min((each for each in there if each > arrival), default=0)
        own = [each for each in m.packets(Kind.ONE_RTT) if each[0].sent_ns < arrival + 55_000_000]
        replies = [
            each for each in own if any(one.is_ack and one.ranges[0][1] == packet.number for one in each[1].frames)
        ]
        busy = any(0 < each.sent_ns - datagram.sent_ns < 60_000_000 for each, _ in other.packets())
        if following > arrival + 60_000_000 and replies and own[-1][0].arrived and not busy:
            pauses.append(((datagram, packet), own[-1], replies[-1]))
    sent, last, acknowledging = m.pick(pauses, "no pause")
    quiet, new = other.send_after(sent, padding(20), after_s=0.055)
    old = next(each for each in acknowledging[1].frames if each.is_ack)
    m.need(old.ranges[0][1] < new.number, "it was acknowledged before")
    ranges = ((new.number, new.number), *old.ranges)
    if old.ranges[0][1] + 1 == new.number:
        ranges = ((old.ranges[0][0], new.number), *old.ranges[1:])
    m.send_after(last, ack(*ranges), after_s=(quiet.seen[m.role].time_ns - last[0].sent_ns) / 1e9 + 0.001)


@mutant("rfc9000-13.2.1-handshake-unacknowledged", cases=("handshake",))
def _no_answer(m: Mutation) -> None:
    """A pause of 1 s comes after the role's first Initial packet has arrived. Two PINGs of the peer reach the role
    then. The role's next Initial packet, at the end of the pause, does not acknowledge them."""
    begin = m.packets(Kind.INITIAL)[0][0].seen[m.peer].time_ns
    first, mine = [each for each in m.packets(Kind.INITIAL) if each[0].sent_ns < begin][-1]
    others = m.packets(Kind.INITIAL, sender=m.peer)
    like, theirs = ([each for each in others if each[0].sent_ns < begin] or others[:1])[-1]
    for datagram in [each for each in m.recording.datagrams if each.sent_ns >= begin]:
        m.recording.move(datagram, 1.0)
    number = theirs.number if m.role == CLIENT else theirs.number + 1
    for packet_number in (number, number + 1):
        m.renumber(m.peer, theirs.space, packet_number, 1 << 62)
    pings = [copied(theirs, frame(F.PING), number=number + more) for more in range(2)]
    after = (begin - like.sent_ns) / 1e9 + 0.001
    sent = m.recording.insert(like, pings, after_s=after)
    fill(pings[1], len(pings[1].encode()) + LEAST_INITIAL - sent.size)
    if m.role == SERVER:
        late = copied(mine, frame(F.PING), number=mine.number + 1)
        m.renumber(m.role, mine.space, late.number, 1 << 62)
        fill(late, LEAST_INITIAL)
        m.recording.insert(first, [late], after_s=0.8)


def count_high(m: Mutation, name: str) -> None:
    """From some ACK on, the ECN count of this name is too high."""
    grown = m.rng.randrange(100, 900)
    every = counts(m)
    for sent, each in every[m.rng.randrange(len(every)) :]:
        m.replace(sent, each, each.but(**{name: each[name] + grown}))


@mutant("rfc9000-13.4.1-ce-not-counted", cases=("ecn",))
def _ce(m: Mutation) -> None:
    every = counts(m)
    sent = m.packets(Kind.ONE_RTT, sender=m.peer, where=lambda datagram, packet: datagram.arrived and packet.number > 3)
    datagram, _ = m.pick(
        [each for each in sent if any(low <= each[1].number <= high for _, old in every for low, high in old.ranges)]
    )
    m.need(datagram.seen[m.role].ecn == 2, "it was not marked")
    datagram.seen[m.role].mark(3)
    for where, each in every:  # the packet no longer counts as ECT(0)
        if where[0].sent_ns > datagram.seen[m.role].time_ns:
            m.replace(where, each, each.but(ect0=each["ect0"] - 1))


@mutant("rfc9000-14.1-client-initial-small", CLIENT)
def _client_small(m: Mutation) -> None:
    def padded(sent: Sent) -> int:
        return sum(len(each.raw) for packet in sent[0].packets for each in packet.frames if each.type == F.PADDING)

    candidates = [each for each in arrived(m, Kind.INITIAL) if padded(each) > 200 and each[1].eliciting]
    datagram, _ = m.pick(candidates, "no padded Initial packet of the client")
    for packet in datagram.packets:
        packet.trailer = b""
        packet.pad(-padded((datagram, packet)) + m.rng.randrange(50))


@mutant("rfc9000-14.1-server-initial-small", SERVER)
def _server_small(m: Mutation) -> None:
    datagram, packet = m.pick([each for each in arrived(m, Kind.INITIAL) if each[1].eliciting])
    others = [each for each in datagram.packets if each is not packet]
    datagram.packets = [packet]
    packet.edit(frames=[each for each in packet.frames if each.type != F.PADDING], trailer=b"")
    if others:
        m.recording.insert(datagram, others, after_s=0.00001)


@mutant("rfc9000-18.2-datagram-above-peer-limit", name="handshake")
def _handshake_above_limit(m: Mutation) -> None:
    limit = max([1200, *(datagram.size for datagram, _ in m.packets())])
    m.need(limit < MTU, "the datagrams are as large as possible")
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, packet: datagram.opened and packet.eliciting)
    datagram, packet = m.pick([each for each in sent if each[0].arrived], "no Handshake packet")
    packet.pad(limit + 1 - datagram.size)
    m.need(datagram.size > limit, "it has no room")
    m.set_parameter(P.MAX_UDP_PAYLOAD, limit, m.peer)


@mutant("rfc9000-17.2.3-early-after-1rtt", CLIENT, cases=("zerortt",))
def _early_late(m: Mutation) -> None:
    _, early = m.pick(arrived(m, Kind.ZERO_RTT), "no 0-RTT")
    after = [sent for sent, _ in acks(m, F.ACK, F.ACK_ECN) if sent[0].sent_ns < m.closed_ns]
    _, new = m.send_after(m.pick(after[:-1], "no ACK of 1-RTT packets before the end"), frame(F.PING))
    new.edit(kind=Kind.ZERO_RTT, keys=early.keys, first=early.first | 3)
    new.edit(version=early.version, dcid=early.dcid, scid=early.scid)


@mutant("rfc9000-17.1-number-truncated", cases=("multiplexing", "mtublackhole", "lossy", "transfer"))
def _truncated(m: Mutation) -> None:
    """No ACK arrives, but packet numbers are still encoded in one byte."""
    least = 128  # half of the range of one byte
    long = [each for each in arrived(m, Kind.ONE_RTT) if each[1].number >= least]
    m.need(long, "too few packets")
    for datagram, packet, old in m.frames(F.ACK, F.ACK_ECN, sender=m.peer):
        if packet.kind is Kind.ONE_RTT:
            m.replace((datagram, packet), old, padding(len(old.encode())))
    _, packet = m.pick(long)
    packet.edit(first=packet.first & ~3)


def any_limit(m: Mutation) -> Frame:
    """A frame about limits that changes no limit."""
    limit = m.parameter(P.MAX_DATA, m.role)
    streams = m.parameter(P.MAX_STREAMS_BIDI, m.role)
    choices = [frame(F.MAX_DATA, limit=limit), frame(F.MAX_STREAMS_BIDI, limit=streams)]
    return m.rng.choice([*choices, frame(F.DATA_BLOCKED, limit=m.parameter(P.MAX_DATA, m.peer))])


def own_uni(m: Mutation) -> int:
    """A unidirectional stream of the role."""
    return 2 if m.role == CLIENT else 3


def peer_uni(m: Mutation) -> int:
    """A unidirectional stream of the peer."""
    return 3 if m.role == CLIENT else 2


def peer_bidi(m: Mutation) -> int:
    """A bidirectional stream that the peer has not opened."""
    if m.role == CLIENT:
        return 1
    return max(m.streams(CLIENT), default=0) // 4 * 4 + 4


def next_sequence(m: Mutation) -> int:
    """The sequence number of the next connection ID that the role issues."""
    cids = m.connection.cids[m.role]
    m.need(cids and cids[0], "it chose an empty connection ID")
    return max((each["sequence"] for _, _, each in m.frames(F.NEW_CONNECTION_ID)), default=0) + 1


def issue(m: Mutation, *, cid: bytes = b"", sequence: int | None = None, retire: int = 0, token: bytes = b"") -> None:
    """Issue one more connection ID."""
    following = next_sequence(m)
    m.set_parameter(P.CID_LIMIT, 60, m.peer)  # so that one more connection ID is allowed
    token = token or m.rng.randbytes(16)
    number = following if sequence is None else sequence
    m.send(new_connection_id(number, cid or m.rng.randbytes(8), retire=retire, token=token))


@mutant("rfc9000-5.1.1-too-many-ids", name="too_many")
def _too_many_ids(m: Mutation) -> None:
    following = next_sequence(m)
    sent = m.pick(m.hosts())
    limit = m.parameter(P.CID_LIMIT, m.peer, 2)
    m.need(limit < 20, "the limit is too high for one packet")
    m.send_after(
        sent,
        *(new_connection_id(following + at, m.rng.randbytes(8), token=m.rng.randbytes(16)) for at in range(limit + 1)),
    )


def ended_stream(m: Mutation) -> Stream:
    """A stream of the role that has ended."""
    return m.pick([each for each in m.streams().values() if each.finished], "no stream has ended")


def after_end(m: Mutation, ended: Stream) -> Sent:
    """A packet after which the stream's end is known to have been sent."""
    end = next(datagram.sent_ns for datagram, _, each in ended.sent if each.fin)
    return m.pick([each for each in m.hosts() if each[0].sent_ns >= end], "nothing is sent after the end")


@mutant("rfc9000-4.5-final-size-changed", name="by-reset")
def _final_reset(m: Mutation) -> None:
    ended = ended_stream(m)
    m.need(ended.end > 1, "the stream is empty")
    size = ended.end + m.rng.randrange(1, 9)
    m.send_after(after_end(m, ended), frame(F.RESET_STREAM, stream=ended.id, code=0, final=size))


def reset_then(m: Mutation, make: Frame, ended: Stream) -> None:
    """Reset a stream after its end, and then send a frame."""
    reset = frame(F.RESET_STREAM, stream=ended.id, code=0, final=ended.end)
    m.send_after(m.send_after(after_end(m, ended), reset), make)


@mutant("rfc9000-4.1-stream-limit", cases=("transfer", "handshake", "keyupdate"))
def _stream_limit(m: Mutation) -> None:
    sent = [each for each in m.streams().values() if each.id % 4 == 0 and each.end > 20]
    chosen = m.pick(sent)
    m.need(all(other.end <= chosen.end for other in sent), "not the longest stream")
    others = [other.end for other in sent if other is not chosen]
    limit = m.rng.randrange(max([*others, chosen.end // 2]), chosen.end)
    parameter = P.MAX_STREAM_DATA_BIDI_REMOTE if m.role == CLIENT else P.MAX_STREAM_DATA_BIDI_LOCAL
    lower(m, parameter, F.MAX_STREAM_DATA, limit, chosen.id)


def uses_too_high(m: Mutation, kind: F, *, bit: int, **values: int) -> None:
    """Send a frame of this kind for a stream above the peer's limit. `bit`: 2 for unidirectional streams, else 0."""
    limits = (P.MAX_STREAMS_UNI, F.MAX_STREAMS_UNI) if bit else (P.MAX_STREAMS_BIDI, F.MAX_STREAMS_BIDI)
    first = 4 * granted(m, *limits)
    m.send(frame(kind, b"", stream=first + 4 * m.rng.randrange(3) + bit + (m.role == SERVER), **values))


def reset_beyond(m: Mutation, limit: int) -> None:
    """Reset a stream with a final size above this limit."""
    m.set_parameter(P.MAX_STREAMS_UNI, 100, m.peer)
    number = 4 * 60 + 2 + (m.role == SERVER)
    m.send(frame(F.RESET_STREAM, stream=number, code=0, final=limit + m.rng.randrange(1, 9)))


def remember(m: Mutation, parameter: int, limit: int) -> None:
    """Give the earlier connections a lower limit."""
    earlier = [each for each in m.recording.connections if each is not m.connection]
    m.need(earlier and limit >= 0, "no earlier connection")
    for connection in earlier:
        Mutation(m.recording, connection, SERVER, m.rng).set_parameter(parameter, limit)
