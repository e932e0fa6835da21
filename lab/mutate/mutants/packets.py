"""Mutants of packets, frames, streams and flow control (RFC 9000 §2 to §4, §12 to §14, §17, §19)."""

from lab.mutate.mutation import MTU, Mutation, Sent, Stream, keep_size, mutant
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.wire import F, Frame, Kind, P, frame, new_connection_id, padding, stream, unknown, varint


def arrived(m: Mutation, *kinds: Kind) -> list[Sent]:
    """Packets of these kinds that both captures have."""
    return m.packets(where=lambda datagram, packet: datagram.arrived and packet.opened and packet.kind in kinds)


@mutant("rfc9000-17.2-fixed-bit-long")
def _fixed_long(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, None, m.peer)
    _, packet = m.pick(arrived(m, Kind.HANDSHAKE))
    packet.first &= ~0x40
    packet.changed = True


@mutant("rfc9000-17.3.1-fixed-bit-short")
def _fixed_short(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, None, m.peer)
    _, packet = m.pick(arrived(m, Kind.ONE_RTT))
    packet.first &= ~0x40
    packet.changed = True


@mutant("rfc9287-3.1-cleared-before-offer", CLIENT)
def _cleared_first(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, b"", SERVER)
    _, packet = arrived(m, Kind.INITIAL)[0]
    m.need(not packet.token, "it has a token")
    packet.first &= ~0x40
    packet.changed = True


@mutant("rfc9000-12.4-empty-payload")
def _empty(m: Mutation) -> None:
    # A packet without frames needs a packet number of four bytes; otherwise it is too short for the sample of header
    # protection.
    datagram, packet = m.pick(m.hosts())
    _, new = m.send_after((datagram, packet), frame(F.PING))
    new.frames = []
    new.first |= 3


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


@mutant("rfc9000-12.2-mixed-destinations")
def _mixed(m: Mutation) -> None:
    coalesced = [each for each in arrived(m, Kind.HANDSHAKE) if len(each[0].packets) > 1 and each[1].dcid]
    datagram, packet = m.pick([each for each in coalesced if each[1] is not each[0].packets[0]])
    del datagram
    packet.dcid = packet.dcid[:-1] + bytes([packet.dcid[-1] ^ 1])
    packet.changed = True


@mutant("rfc9000-13.1-ack-of-unsent")
def _unsent(m: Mutation) -> None:
    acks = [each for each in m.frames(F.ACK) if each[1].kind is Kind.ONE_RTT and each[0].arrived]
    datagram, packet, old = m.pick(acks)
    numbers = [each.number for _, each in m.packets(Kind.ONE_RTT, sender=m.peer)]
    high = max(numbers) + m.rng.randrange(5, 50)
    m.replace((datagram, packet), old, old.but(ranges=((high, high), *old.ranges)))


@mutant("rfc9000-13.1-ack-of-unreceived", cases=("lossy", "ackloss", "handshakeloss", "blackhole"))
def _unreceived(m: Mutation) -> None:
    def lost(number: int) -> bool:
        sent = m.packets(Kind.ONE_RTT, sender=m.peer, where=lambda _, packet: packet.number == number)
        return bool(sent) and not any(datagram.arrived for datagram, _ in sent)

    acks = []
    for datagram, packet, old in m.frames(F.ACK):
        for (low, high), (_, below) in zip(old.ranges, old.ranges[1:], strict=False):
            del high
            gap = range(below + 1, low)
            if packet.kind is Kind.ONE_RTT and datagram.arrived and gap and all(map(lost, gap)):
                acks.append((datagram, packet, old, low))
    datagram, packet, old, low = m.pick(acks, "no ACK with a gap")
    at = next(index for index, each in enumerate(old.ranges) if each[0] == low)
    joined = (old.ranges[at + 1][0], old.ranges[at][1])
    m.replace((datagram, packet), old, old.but(ranges=(*old.ranges[:at], joined, *old.ranges[at + 2 :])))


@mutant("rfc9000-13.1-ack-of-unreceived")
def _not_yet_received(m: Mutation) -> None:
    arrivals = {
        packet.number: datagram.seen[m.role].time_ns
        for datagram, packet in m.packets(Kind.ONE_RTT, sender=m.peer)
        if datagram.arrived
    }
    acks = [
        (datagram, packet, old)
        for datagram, packet, old in m.frames(F.ACK)
        if packet.kind is Kind.ONE_RTT
        and datagram.arrived
        and arrivals.get(old.ranges[0][1] + 1, 0) > datagram.seen[m.role].time_ns
    ]
    datagram, packet, old = m.pick(acks, "no ACK before a further packet")
    (low, high), *others = old.ranges
    m.replace((datagram, packet), old, old.but(ranges=((low, high + 1), *others)))


@mutant("rfc9000-13.2.1-ack-of-acks", cases=("longrtt", "blackhole", "lossy", "ackloss"))
def _ack_of_acks(m: Mutation) -> None:
    """In a pause the peer sends a packet with only PADDING, and the role acknowledges it."""
    there = sorted(
        each.seen[m.role].time_ns for each, _ in m.packets(sender=m.peer) if m.role in each.seen and each.arrived
    )
    other = Mutation(m.recording, m.connection, m.peer, m.rng)
    pauses = []
    for datagram, packet in other.hosts():
        arrival = datagram.seen[m.role].time_ns
        following = min((each for each in there if each > arrival), default=0)
        own = [each for each in m.packets(Kind.ONE_RTT) if each[0].sent_ns < arrival + 55_000_000]
        acks = [each for each in own if any(one.is_ack and one.ranges[0][1] == packet.number for one in each[1].frames)]
        busy = any(0 < each.sent_ns - datagram.sent_ns < 60_000_000 for each, _ in other.packets())
        if following > arrival + 60_000_000 and acks and own[-1][0].arrived and not busy:
            pauses.append((datagram, packet, own[-1], acks[-1]))
    datagram, packet, last, acknowledging = m.pick(pauses, "no pause")
    quiet, new = other.send_after((datagram, packet), padding(20), after_s=0.055)
    old = next(each for each in acknowledging[1].frames if each.is_ack)
    m.need(old.ranges[0][1] < new.number, "it was acknowledged before")
    reply = frame(F.ACK, delay=0)
    ranges = ((new.number, new.number), *old.ranges) if old.ranges[0][1] + 1 < new.number else None
    reply = reply.but(ranges=ranges or ((old.ranges[0][0], new.number), *old.ranges[1:]))
    m.send_after(last, reply, after_s=(quiet.seen[m.role].time_ns - last[0].sent_ns) / 1e9 + 0.001)


@mutant("rfc9000-13.2.5-ack-delay-too-long")
def _ack_delay(m: Mutation) -> None:
    acks = [each for each in m.frames(F.ACK, F.ACK_ECN) if each[1].kind is Kind.ONE_RTT and each[0].arrived]
    datagram, packet, old = m.pick(acks)
    microseconds = m.rng.randrange(3_000_000, 9_000_000)
    m.replace((datagram, packet), old, old.but(delay=microseconds >> m.parameter(P.ACK_DELAY_EXPONENT, m.role, 3)))


def _counts(m: Mutation) -> list[tuple[Sent, Frame]]:
    outcome = [each for each in m.frames(F.ACK_ECN) if each[1].kind is Kind.ONE_RTT and each[0].arrived]
    m.need(len(outcome) > 1, "too few ACKs with counts")
    return [((datagram, packet), each) for datagram, packet, each in outcome]


def _count_high(rule: str, name: str) -> None:
    def change(m: Mutation) -> None:
        grown = m.rng.randrange(100, 900)
        counts = _counts(m)
        for sent, each in counts[m.rng.randrange(len(counts)) :]:
            m.replace(sent, each, each.with_value(name, each[name] + grown))

    mutant(rule, cases=("ecn",), name=name)(change)


_count_high("rfc9000-19.3.2-ect0-count-too-high", "ect0")
_count_high("rfc9000-19.3.2-ect1-count-too-high", "ect1")
_count_high("rfc9000-19.3.2-ce-count-too-high", "ce")


@mutant("rfc9000-13.4.1-ecn-counts-decrease", cases=("ecn",))
def _decrease(m: Mutation) -> None:
    counts = [each for each in _counts(m) if each[1]["ect0"] > 1]
    m.need(len(counts) > 1, "too few counts")
    sent, each = counts[-1]
    m.replace(sent, each, each.but(ect0=m.rng.randrange(counts[-2][1]["ect0"])))


@mutant("rfc9000-13.4.1-ect-not-counted", cases=("ecn",))
def _not_counted(m: Mutation) -> None:
    for sent, each in _counts(m):
        m.replace(sent, each, each.but(ect0=min(each["ect0"], 1)))


@mutant("rfc9000-13.4.1-ect-not-counted", cases=("ecn",), name="late")
def _counted_late(m: Mutation) -> None:
    """The counts stand still for some time, and catch up later."""
    counts = [each for each in _counts(m) if each[0][1].kind is Kind.ONE_RTT]
    m.need(len(counts) > 6, "too few counts")
    for sent, each in counts[2:-2]:
        m.replace(sent, each, each.but(ect0=min(each["ect0"], counts[1][1]["ect0"])))


@mutant("rfc9000-13.4.1-ce-not-counted", cases=("ecn",))
def _ce(m: Mutation) -> None:
    counts = _counts(m)
    acked = counts[0][1].ranges[-1][0]
    del acked
    sent = m.packets(Kind.ONE_RTT, sender=m.peer, where=lambda datagram, packet: datagram.arrived and packet.number > 3)
    datagram, packet = m.pick(
        [each for each in sent if any(low <= each[1].number <= high for _, ack in counts for low, high in ack.ranges)]
    )
    del packet
    m.need(datagram.seen[m.role].ecn == 2, "it was not marked")
    datagram.seen[m.role].mark(3)
    for where, each in counts:  # the packet no longer counts as ECT(0)
        if where[0].sent_ns > datagram.seen[m.role].time_ns:
            m.replace(where, each, each.but(ect0=each["ect0"] - 1))


def _shrink(m: Mutation, role: str) -> None:
    def padded(sent: Sent) -> int:
        return sum(len(each.raw) for packet in sent[0].packets for each in packet.frames if each.type == F.PADDING)

    candidates = [each for each in arrived(m, Kind.INITIAL) if padded(each) > 200 and each[1].eliciting]
    datagram, _ = m.pick(candidates, f"no padded Initial packet of the {role}")
    for packet in datagram.packets:
        packet.trailer = b""
        packet.pad(-padded((datagram, packet)) + m.rng.randrange(50))


@mutant("rfc9000-14.1-server-initial-small", SERVER)
def _server_small(m: Mutation) -> None:
    candidates = [each for each in arrived(m, Kind.INITIAL) if each[1].eliciting]
    datagram, packet = m.pick(candidates)
    others = [each for each in datagram.packets if each is not packet]
    datagram.packets = [packet]
    packet.frames = [each for each in packet.frames if each.type != F.PADDING]
    packet.trailer, packet.changed = b"", True
    if others:
        m.recording.insert(datagram, others, after_s=0.00001)


@mutant("rfc9000-18.2-datagram-above-peer-limit")
def _above_limit(m: Mutation) -> None:
    sent = m.packets(Kind.ONE_RTT, where=lambda datagram, packet: packet.opened and datagram.arrived)
    largest = max(datagram.size for datagram, _ in sent)
    m.need(largest > 1200, "no datagram above 1200 B")
    m.set_parameter(P.MAX_UDP_PAYLOAD, largest - 1 if largest > 1201 else 1200, m.peer)


@mutant("rfc9000-18.2-datagram-above-peer-limit", name="handshake")
def _handshake_above_limit(m: Mutation) -> None:
    sizes = [datagram.size for datagram, _ in m.packets()]
    limit = max([1200, *sizes])
    m.need(limit < MTU, "the datagrams are as large as possible")
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, packet: datagram.opened and packet.eliciting)
    datagram, packet = m.pick([each for each in sent if each[0].arrived], "no Handshake packet")
    packet.pad(limit + 1 - datagram.size)
    packet.changed = True
    m.need(datagram.size > limit, "it has no room")
    m.set_parameter(P.MAX_UDP_PAYLOAD, limit, m.peer)


@mutant("rfc9000-17.2.2-token-from-server", SERVER)
def _server_token(m: Mutation) -> None:
    datagram, packet = m.pick(arrived(m, Kind.INITIAL))
    size = datagram.size
    packet.token = m.rng.randbytes(16)
    packet.changed = True
    keep_size(datagram, size)


@mutant("rfc9000-17.2.3-early-after-1rtt", CLIENT, cases=("zerortt",))
def _early_late(m: Mutation) -> None:
    _, early = m.pick(arrived(m, Kind.ZERO_RTT), "no 0-RTT")
    acks = [each[:2] for each in m.frames(F.ACK, F.ACK_ECN) if each[1].kind is Kind.ONE_RTT]
    after = [each for each in acks if each[0].arrived and each[0].sent_ns < m.closed_ns]
    datagram, packet = m.pick(after[:-1], "no ACK of 1-RTT packets before the end")
    sent, new = m.send_after((datagram, packet), frame(F.PING))
    new.kind, new.keys, new.first = Kind.ZERO_RTT, early.keys, early.first & ~3 | 3
    new.version, new.dcid, new.scid = early.version, early.dcid, early.scid
    del sent


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
    packet.first &= ~3
    packet.changed = True


HIGH = (1 << 60) + 1


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


def _issue(m: Mutation, *, cid: bytes = b"", sequence: int | None = None, retire: int = 0) -> None:
    cids = m.connection.cids[m.role]
    m.need(cids and cids[0], "it chose an empty connection ID")
    issued = [each for _, _, each in m.frames(F.NEW_CONNECTION_ID)]
    following = max((each["sequence"] for each in issued), default=0) + 1
    number = following if sequence is None else sequence
    m.set_parameter(P.CID_LIMIT, 60, m.peer)  # so that one more connection ID is allowed
    token = m.rng.randbytes(16)
    m.send(new_connection_id(number, cid or m.rng.randbytes(8), retire=retire, token=token))


@mutant("rfc9000-10.3.2-reset-token-repeated")
def _token_repeated(m: Mutation) -> None:
    old = m.pick(m.frames(F.NEW_CONNECTION_ID))[2]
    m.set_parameter(P.CID_LIMIT, 60, m.peer)
    following = max(each["sequence"] for _, _, each in m.frames(F.NEW_CONNECTION_ID)) + 1
    m.send(new_connection_id(following, m.rng.randbytes(8), token=old.data[-16:]))


@mutant("rfc9000-5.1.1-too-many-ids", name="too_many")
def _too_many_ids(m: Mutation) -> None:
    cids = m.connection.cids[m.role]
    m.need(cids and cids[0], "it chose an empty connection ID")
    following = max((each["sequence"] for _, _, each in m.frames(F.NEW_CONNECTION_ID)), default=0) + 1
    sent = m.pick(m.hosts())
    limit = m.parameter(P.CID_LIMIT, m.peer, 2)
    m.need(limit < 20, "the limit is too high for one packet")
    m.send_after(
        sent,
        *(new_connection_id(following + at, m.rng.randbytes(8), token=m.rng.randbytes(16)) for at in range(limit + 1)),
    )


@mutant("rfc9000-19.16-retire-own-packet")
def _retire_own(m: Mutation) -> None:
    m.need(len(m.connection.cids[m.peer][0]) > 0, "the peer's connection ID is empty")
    datagram, packet = m.pick(m.hosts())
    issued = {each.data[:-16]: each["sequence"] for _, _, each in m.frames(F.NEW_CONNECTION_ID, sender=m.peer)}
    m.send_after((datagram, packet), frame(F.RETIRE_CONNECTION_ID, sequence=issued.get(packet.dcid, 0)))


@mutant("rfc9000-19.3.1-ack-range-negative")
def _negative(m: Mutation) -> None:
    # The frame must be alone in its packet, because frames after a broken frame can't be read.
    alone = [each for each in m.frames(F.ACK) if each[1].kind is Kind.ONE_RTT and len(each[1].frames) == 1]
    datagram, packet, old = m.pick(alone)
    high = old.ranges[0][1]
    raw = bytes([F.ACK]) + varint(high) + varint(old["delay"]) + varint(0) + varint(high + m.rng.randrange(1, 9))
    m.replace((datagram, packet), old, unknown(raw))


@mutant("rfc9221-3-too-large", name="length-field")
def _length_field(m: Mutation) -> None:
    """The data fits, but not with the type and the two bytes of the length."""
    m.set_parameter(P.MAX_DATAGRAM, 100, m.peer)
    m.send(frame(F.DATAGRAM_LENGTH, m.rng.randbytes(98)))


def _done(m: Mutation) -> Stream:
    """A stream of the role that has ended."""
    return m.pick([each for each in m.streams().values() if each.finished], "no stream has ended")


def _after_end(m: Mutation, ended: Stream) -> Sent:
    """A packet after which the stream's end is known to have been sent."""
    end = next(datagram.sent_ns for datagram, _, each in ended.sent if each.fin)
    return m.pick([each for each in m.hosts() if each[0].sent_ns >= end], "nothing is sent after the end")


@mutant("rfc9000-4.5-final-size-changed", name="by-reset")
def _final_reset(m: Mutation) -> None:
    ended = _done(m)
    m.need(ended.end > 1, "the stream is empty")
    size = ended.end + m.rng.randrange(1, 9)
    m.send_after(_after_end(m, ended), frame(F.RESET_STREAM, stream=ended.id, code=0, final=size))


def _reset_then(m: Mutation, make: Frame, ended: Stream) -> None:
    reset = frame(F.RESET_STREAM, stream=ended.id, code=0, final=ended.end)
    sent = m.send_after(_after_end(m, ended), reset)
    m.send_after(sent, make)


@mutant("rfc9000-4.1-stream-limit", cases=("transfer", "handshake", "keyupdate"))
def _stream_limit(m: Mutation) -> None:
    kind = P.MAX_STREAM_DATA_BIDI_REMOTE if m.role == CLIENT else P.MAX_STREAM_DATA_BIDI_LOCAL
    sent = [each for each in m.streams().values() if each.id % 4 == 0 and each.end > 20]
    chosen = m.pick(sent)
    m.need(all(other.end <= chosen.end for other in sent), "not the longest stream")
    others = [other.end for other in sent if other is not chosen]
    limit = m.rng.randrange(max([*others, chosen.end // 2]), chosen.end)
    m.set_parameter(kind, limit, m.peer)
    for datagram, packet, old in m.frames(F.MAX_STREAM_DATA, sender=m.peer):
        if old["stream"] == chosen.id:
            m.replace((datagram, packet), old, old.but(limit=min(old["limit"], limit)))


@mutant("rfc9000-4.1-connection-limit", cases=("transfer", "handshake", "keyupdate"))
def _connection_limit(m: Mutation) -> None:
    total = sum(each.end for each in m.streams().values())
    m.need(total > 20, "too little data")
    limit = m.rng.randrange(total // 2, total)
    m.set_parameter(P.MAX_DATA, limit, m.peer)
    for datagram, packet, old in m.frames(F.MAX_DATA, sender=m.peer):
        m.replace((datagram, packet), old, old.but(limit=min(old["limit"], limit)))


@mutant("rfc9000-4.6-too-many-streams", CLIENT)
def _too_many(m: Mutation) -> None:
    limit = m.parameter(P.MAX_STREAMS_BIDI, SERVER)
    granted = [each["limit"] for _, _, each in m.frames(F.MAX_STREAMS_BIDI, sender=SERVER)]
    number = 4 * max([limit, *granted]) + 4 * m.rng.randrange(3)
    m.send(stream(number, 0, b"GET /x\r\n", fin=True))


@mutant("rfc9000-4.6-too-many-streams", CLIENT, name="parameter", cases=("multiplexing", "transfer"))
def _fewer(m: Mutation) -> None:
    opened = [each for each in m.streams() if each % 4 == 0]
    m.need(len(opened) > 1, "one stream alone")
    m.set_parameter(P.MAX_STREAMS_BIDI, len(opened) - 1, SERVER)
    m.need(not m.frames(F.MAX_STREAMS_BIDI, sender=SERVER), "more are granted")


def _opens(name: str, kind: F, *, bit: int, **values: int) -> None:
    def change(m: Mutation) -> None:
        parameter, granting = (
            (P.MAX_STREAMS_UNI, F.MAX_STREAMS_UNI) if bit else (P.MAX_STREAMS_BIDI, F.MAX_STREAMS_BIDI)
        )
        granted = [each["limit"] for _, _, each in m.frames(granting, sender=m.peer)]
        first = 4 * max([m.parameter(parameter, m.peer), *granted])
        m.send(frame(kind, b"", stream=first + 4 * m.rng.randrange(3) + bit + (m.role == SERVER), **values))

    mutant("rfc9000-4.6-too-many-streams", name=name)(change)


_opens("by-reset", F.RESET_STREAM, bit=2, code=0, final=0)
_opens("by-blocked", F.STREAM_DATA_BLOCKED, bit=2, limit=0)
_opens("by-stop", F.STOP_SENDING, bit=0, code=0)
_opens("by-credit", F.MAX_STREAM_DATA, bit=0, limit=1000)


def _reset_beyond(m: Mutation, limit: int) -> None:
    m.set_parameter(P.MAX_STREAMS_UNI, 100, m.peer)
    number = 4 * 60 + 2 + (m.role == SERVER)
    m.send(frame(F.RESET_STREAM, stream=number, code=0, final=limit + m.rng.randrange(1, 9)))


@mutant("rfc9000-4.1-connection-limit", name="by-reset")
def _connection_limit_reset(m: Mutation) -> None:
    granted = [each["limit"] for _, _, each in m.frames(F.MAX_DATA, sender=m.peer)]
    limit = max([m.parameter(P.MAX_DATA, m.peer), *granted])
    m.set_parameter(P.MAX_STREAM_DATA_UNI, 1 << 40, m.peer)
    _reset_beyond(m, limit)


@mutant("rfc9000-2.2-data-changed", name="stream")
def _data_changed(m: Mutation) -> None:
    ended = _done(m)
    data = m.pick([each for _, _, each in ended.sent if each.offset < 1000 and each.data])
    changed = bytes([data.data[0] ^ 1]) + data.data[1:20]
    m.send_after(_after_end(m, ended), stream(ended.id, data.offset, changed))


@mutant("rfc9000-2.2-data-changed", name="crypto")
def _crypto_changed(m: Mutation) -> None:
    sent = [each for each in m.frames(F.CRYPTO) if each[1].kind is Kind.HANDSHAKE and len(each[2].data) > 9]
    datagram, packet, old = m.pick([each for each in sent if each[0].arrived])
    at = m.rng.randrange(len(old.data))
    changed = old.but(data=old.data[:at] + bytes([old.data[at] ^ 1]) + old.data[at + 1 :])
    m.send_after((datagram, packet), changed)


def _remember(m: Mutation, parameter: int, limit: int) -> None:
    """Give the earlier connections a lower limit."""
    earlier = [each for each in m.recording.connections if each is not m.connection]
    m.need(earlier and limit >= 0, "no earlier connection")
    for connection in earlier:
        Mutation(m.recording, connection, SERVER, m.rng).set_parameter(parameter, limit)
