"""Mutants of packets, datagrams and acknowledgments (RFC 9000 §12 to §17, RFC 9001 §5 and §6, RFC 9369)."""

from lab.mutate import edits
from lab.mutate.frames import F, Frame, frame, padding
from lab.mutate.mutation import Mutation, Sent
from lab.mutate.packets import LONG, Kind
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.registry import mutant
from lab.mutate.tls import P


def arrived(m: Mutation, *kinds: Kind) -> list[Sent]:
    """Packets of these kinds that both captures have."""
    return m.packets(where=lambda datagram, packet: datagram.arrived and packet.opened and packet.kind in kinds)


@mutant(
    "rfc9000-17.2-fixed-bit-long",
    along={"rfc9000-17.3.1-fixed-bit-short": "it cleared the bit of 1-RTT packets, too, which was offered"},
)
def _fixed_long(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, None, m.peer)
    _, packet = m.pick(arrived(m, Kind.HANDSHAKE))
    packet.first &= ~0x40
    packet.changed = True


@mutant(
    "rfc9000-17.3.1-fixed-bit-short",
    along={"rfc9000-17.2-fixed-bit-long": "it cleared the bit of Handshake packets, too, which was offered"},
)
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


@mutant("rfc9000-17.2-reserved-bits-long")
def _reserved_long(m: Mutation) -> None:
    _, packet = m.pick(arrived(m, *LONG))
    packet.first |= m.rng.choice((0x04, 0x08, 0x0C))
    packet.changed = True


@mutant("rfc9000-17.3.1-reserved-bits-short")
def _reserved_short(m: Mutation) -> None:
    _, packet = m.pick(arrived(m, Kind.ONE_RTT))
    packet.first |= m.rng.choice((0x08, 0x10, 0x18))
    packet.changed = True


@mutant("rfc9000-12.4-empty-payload")
def _empty(m: Mutation) -> None:
    # A packet without frames needs a packet number of four bytes; otherwise it is too short for the sample of header
    # protection.
    datagram, packet = m.pick(m.hosts())
    _, new = m.send_after((datagram, packet), frame(F.PING))
    new.frames = []
    new.first |= 3


@mutant("rfc9000-12.3-number-reused")
def _reused(m: Mutation) -> None:
    datagram, packet = m.pick([each for each in m.hosts() if each[1].number > 2])
    twin = edits.copied(packet, frame(F.PING), padding(5))
    m.recording.insert(datagram, [twin], after_s=0.00001)


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


@mutant(
    "rfc9000-12.2-mixed-destinations",
    along={"rfc9000-7.2-id-not-the-servers": "one of the two is not the server's"},
)
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


@mutant(
    "rfc9000-13.4.1-ecn-counts-decrease",
    cases=("ecn",),
    along={"rfc9000-13.4.1-ect-not-counted": "the last count is too low"},
)
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


@mutant(
    "rfc9000-14.1-client-initial-small",
    CLIENT,
    along={"rfc9000-8.1-amplification": "a server that goes near its limit may send less for a smaller datagram"},
)
def _client_small(m: Mutation) -> None:
    _shrink(m, CLIENT)


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
    m.need(limit < edits.MTU, "the datagrams are as large as possible")
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
    edits.keep_size(datagram, size)


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
