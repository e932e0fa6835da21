"""Packets, datagrams and acknowledgments (RFC 9000 §12 to §17, RFC 9001 §5 and §6, RFC 9369)."""

from runner.tests.mutate import edits
from runner.tests.mutate.frames import F, Frame, frame, padding
from runner.tests.mutate.mutation import Mutation, Sent
from runner.tests.mutate.packets import LONG, Kind
from runner.tests.mutate.protection import V1, V2, Keys, initial_keys
from runner.tests.mutate.recording import CLIENT, SERVER
from runner.tests.mutate.registry import mutant
from runner.tests.mutate.tls import P


def _arrived(m: Mutation, *kinds: Kind) -> list[Sent]:
    return m.packets(where=lambda datagram, packet: datagram.arrived and packet.opened and packet.kind in kinds)


@mutant("rfc9000-17.2-fixed-bit-long")
def _fixed_long(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, None, m.peer)
    _, packet = m.pick(_arrived(m, Kind.HANDSHAKE))
    packet.first &= ~0x40
    packet.changed = True


@mutant("rfc9000-17.3.1-fixed-bit-short")
def _fixed_short(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, None, m.peer)
    _, packet = m.pick(_arrived(m, Kind.ONE_RTT))
    packet.first &= ~0x40
    packet.changed = True


@mutant("rfc9287-3.1-cleared-before-offer", CLIENT)
def _cleared_first(m: Mutation) -> None:
    m.set_parameter(P.GREASE_QUIC_BIT, b"", SERVER)
    _, packet = _arrived(m, Kind.INITIAL)[0]
    m.need(not packet.token, "it has a token")
    packet.first &= ~0x40
    packet.changed = True


@mutant("rfc9000-17.2-reserved-bits-long")
def _reserved_long(m: Mutation) -> None:
    _, packet = m.pick(_arrived(m, *LONG))
    packet.first |= m.rng.choice((0x04, 0x08, 0x0C))
    packet.changed = True


@mutant("rfc9000-17.3.1-reserved-bits-short")
def _reserved_short(m: Mutation) -> None:
    _, packet = m.pick(_arrived(m, Kind.ONE_RTT))
    packet.first |= m.rng.choice((0x08, 0x10, 0x18))
    packet.changed = True


@mutant("rfc9000-12.4-empty-payload")
def _empty(m: Mutation) -> None:
    # Without a frame there is too little to sample: such a packet has a number of four bytes.
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
    first.number, second.number = second.number, first.number
    first.changed = second.changed = True


@mutant(
    "rfc9000-12.2-mixed-destinations",
    along={"rfc9000-7.2-id-not-the-servers": "one of the two is not the server's"},
)
def _mixed(m: Mutation) -> None:
    coalesced = [each for each in _arrived(m, Kind.HANDSHAKE) if len(each[0].packets) > 1 and each[1].dcid]
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


@mutant("rfc9000-13.2.1-ack-of-acks")
def _ack_of_acks(m: Mutation) -> None:
    def only_acks(frames: list[Frame]) -> bool:
        return all(each.is_ack for each in frames)

    theirs = m.packets(
        Kind.ONE_RTT, sender=m.peer, where=lambda datagram, packet: datagram.arrived and only_acks(packet.frames)
    )
    candidates = []
    for datagram, packet in m.hosts():
        acks = [each for each in packet.frames if each.is_ack]
        newer = [each for each in theirs if each[0].seen[m.role].time_ns > datagram.sent_ns]
        if acks and newer and newer[0][1].number == acks[0].ranges[0][1] + 1:
            candidates.append((datagram, packet, acks[0], newer[0]))
    datagram, packet, old, (theirs_datagram, _) = m.pick(candidates, "no packet of ACKs alone")
    high = old.ranges[0][1] + 1
    new = old.but(ranges=((old.ranges[0][0], high), *old.ranges[1:]), delay=0)
    wait = (theirs_datagram.seen[m.role].time_ns - datagram.sent_ns) / 1e9 + 0.0001
    until = datagram.sent_ns + wait * 1e9
    m.need(
        not any(datagram.sent_ns < each.sent_ns <= until for each, _ in m.packets()),
        "it sends something else before that",
    )
    m.send_after((datagram, packet), new, after_s=wait)


@mutant("rfc9000-13.2.5-ack-delay-too-long")
def _ack_delay(m: Mutation) -> None:
    acks = [each for each in m.frames(F.ACK, F.ACK_ECN) if each[1].kind is Kind.ONE_RTT and each[0].arrived]
    datagram, packet, old = m.pick(acks)
    microseconds = m.rng.randrange(3_000_000, 9_000_000)
    m.replace((datagram, packet), old, old.but(delay=microseconds >> m.parameter(P.ACK_DELAY_EXPONENT, m.role, 3)))


def _counts(m: Mutation) -> list[tuple[Sent, Frame]]:
    found = [each for each in m.frames(F.ACK_ECN) if each[1].kind is Kind.ONE_RTT and each[0].arrived]
    m.need(len(found) > 1, "too few ACKs with counts")
    return [((datagram, packet), each) for datagram, packet, each in found]


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
    "rfc9000-13.4.2-ecn-counts-decrease",
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
    for where, each in counts:  # its ECT(0) is not there any more
        if where[0].sent_ns > datagram.seen[m.role].time_ns:
            m.replace(where, each, each.but(ect0=each["ect0"] - 1))


def _shrink(m: Mutation, role: str) -> None:
    def padded(sent: Sent) -> int:
        return sum(len(each.raw) for packet in sent[0].packets for each in packet.frames if each.type == F.PADDING)

    candidates = [each for each in _arrived(m, Kind.INITIAL) if padded(each) > 200 and each[1].eliciting]
    datagram, _ = m.pick(candidates, f"no padded Initial packet of the {role}")
    for packet in datagram.packets:
        packet.trailer = b""
        packet.pad(-padded((datagram, packet)) + m.rng.randrange(50))


@mutant("rfc9000-14.1-client-initial-small", CLIENT)
def _client_small(m: Mutation) -> None:
    _shrink(m, CLIENT)


@mutant("rfc9000-14.1-server-initial-small", SERVER)
def _server_small(m: Mutation) -> None:
    candidates = [each for each in _arrived(m, Kind.INITIAL) if each[1].eliciting]
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


@mutant("rfc9000-17.2.2-token-from-server", SERVER)
def _server_token(m: Mutation) -> None:
    datagram, packet = m.pick(_arrived(m, Kind.INITIAL))
    size = datagram.size
    packet.token = m.rng.randbytes(16)
    packet.changed = True
    edits.keep_size(datagram, size)


@mutant("rfc9000-17.2.3-early-after-1rtt", CLIENT, cases=("zerortt",))
def _early_late(m: Mutation) -> None:
    first = m.pick(_arrived(m, Kind.ZERO_RTT), "no 0-RTT")
    early = first[1]
    datagram, packet = m.pick(m.hosts(confirmed=False))
    sent, new = m.send_after((datagram, packet), frame(F.PING))
    new.kind, new.keys, new.first = Kind.ZERO_RTT, early.keys, early.first & ~3 | 3
    new.version, new.dcid, new.scid = early.version, early.dcid, early.scid
    del sent


def _retry(m: Mutation) -> Sent:
    found = [each for each in m.recording.packets(SERVER, Kind.RETRY) if each[0].connection is m.connection]
    return m.pick(found, "no Retry")


def _after_retry(m: Mutation) -> list[Sent]:
    _, retry = _retry(m)
    return m.packets(Kind.INITIAL, sender=CLIENT, where=lambda _, packet: packet.token == retry.token)


@mutant("rfc9001-5.8-retry-tag-wrong", SERVER, cases=("retry",))
def _tag(m: Mutation) -> None:
    _, retry = _retry(m)
    retry.bad_tag = retry.changed = True


@mutant("rfc9000-17.2.5.1-retry-destination", SERVER, cases=("retry",))
def _retry_destination(m: Mutation) -> None:
    _, retry = _retry(m)
    m.need(retry.dcid, "the client's connection ID is empty")
    retry.dcid = retry.dcid[:-1] + bytes([retry.dcid[-1] ^ 1])
    retry.changed = True


@mutant("rfc9000-17.2.5.2-retry-token-empty", SERVER, cases=("retry",))
def _retry_empty(m: Mutation) -> None:
    _, retry = _retry(m)
    for datagram, packet in _after_retry(m):
        size = datagram.size
        packet.token, packet.token_size, packet.changed = b"", 1, True
        edits.keep_size(datagram, size)
    retry.token, retry.changed = b"", True


@mutant("rfc9000-17.2.5.1-retries-per-datagram", SERVER, cases=("retry",))
def _two_retries(m: Mutation) -> None:
    datagram, retry = _retry(m)
    twin = edits.copied(retry)
    twin.token = m.rng.randbytes(len(retry.token))
    twin.scid = m.rng.randbytes(len(retry.scid))
    m.recording.insert(datagram, [twin], after_s=0.00002)


@mutant("rfc9000-17.2.5.3-token-not-echoed", CLIENT, cases=("retry",))
def _other_token(m: Mutation) -> None:
    later = _after_retry(m)
    token = m.rng.randbytes(len(later[0][1].token))
    for _, packet in later:
        packet.token, packet.changed = token, True


@mutant("rfc9000-8.1.3-token-left-out", CLIENT, cases=("resumption", "zerortt"))
def _token_left_out(m: Mutation) -> None:
    initial = [each for each in _arrived(m, Kind.INITIAL) if each[1].token]
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "the token is of a Retry")
    m.need(len(initial) > 1, "no token in two packets")
    datagram, packet = initial[-1]
    size = datagram.size
    packet.token, packet.token_size, packet.changed = b"", 1, True
    edits.keep_size(datagram, size)


@mutant("rfc9000-17.2.5.3-number-reset", CLIENT, cases=("retry",))
def _number_reset(m: Mutation) -> None:
    later = _after_retry(m)
    lowest = min(packet.number for _, packet in later)
    m.need(lowest > 0, "it was reset already")
    for _, packet in later:
        packet.number -= lowest
        packet.changed = True
    for _, packet, old in m.frames(F.ACK, sender=SERVER):
        if packet.kind is Kind.INITIAL:
            packet.swap(old, old.but(ranges=[(low - lowest, high - lowest) for low, high in old.ranges]))


@mutant("rfc9000-17.2.5.3-hello-changed", CLIENT, cases=("retry",))
def _hello_changed(m: Mutation) -> None:
    before = [each for each in m.packets(Kind.INITIAL) if not each[1].token]
    _, packet = m.pick(before, "no packet before Retry")
    crypto = m.pick(
        [each for each in packet.frames if each.type == F.CRYPTO and each.offset == 0 and len(each.data) > 60]
    )
    at = 6 + 32 + 1 + crypto.data[38] + 2  # the first cipher suite, or a GREASE value
    m.need(at + 2 <= len(crypto.data), "the hello begins elsewhere")
    packet.swap(crypto, crypto.but(data=crypto.data[:at] + b"\x5a\x5a" + crypto.data[at + 2 :]))


def _negotiation(m: Mutation) -> Sent:
    return m.pick(list(m.recording.packets(SERVER, Kind.VERSION_NEGOTIATION)), "no Version Negotiation")


@mutant("rfc9000-17.2.1-negotiation-destination", SERVER, cases=("versionnegotiation",))
def _negotiation_destination(m: Mutation) -> None:
    _, packet = _negotiation(m)
    m.need(packet.dcid, "the client's connection ID is empty")
    packet.dcid, packet.changed = m.rng.randbytes(len(packet.dcid)), True


@mutant("rfc9000-17.2.1-negotiation-source", SERVER, cases=("versionnegotiation",))
def _negotiation_source(m: Mutation) -> None:
    _, packet = _negotiation(m)
    packet.scid, packet.changed = m.rng.randbytes(len(packet.scid)), True


@mutant("rfc9000-5.2.2-small-datagram-answered", SERVER, cases=("versionnegotiation",))
def _small_answered(m: Mutation) -> None:
    answer, packet = _negotiation(m)
    asked = [each for each in m.recording.datagrams if each.sender == CLIENT and each.sent_ns < answer.sent_ns]
    question = asked[-1]
    m.need(question.packets[0].kind is Kind.OPAQUE, "a known version")
    question.packets[0].raw = question.packets[0].raw[: m.rng.randrange(600, 1199)]
    question.packets[0].changed = True
    del packet


# Keys


@mutant("rfc9001-6.4-old-keys-on-higher-number", cases=("keyupdate",))
def _old_keys(m: Mutation) -> None:
    sent = m.packets(Kind.ONE_RTT, where=lambda datagram, packet: datagram.arrived and packet.keys is not None)
    newer = [each for each in sent if each[1].keys and each[1].keys.generation > 0]
    older = [each for each in sent if each[1].keys and each[1].keys.generation == 0]
    m.need(newer and older, "no key update")
    _, packet = m.pick(newer[1:], "too few packets after the update")
    packet.keys, packet.first, packet.changed = older[-1][1].keys, packet.first ^ 4, True


def _update_all(m: Mutation, roles: tuple[str, ...], start_ns: dict[str, int]) -> None:
    for role in roles:
        for datagram, packet in m.packets(Kind.ONE_RTT, sender=role):
            if datagram.sent_ns >= start_ns[role] and packet.keys is not None:
                packet.keys, packet.first, packet.changed = packet.keys.next(), packet.first ^ 4, True


@mutant(
    "rfc9001-6.1-update-before-confirmed",
    along={
        "rfc9001-6.1-update-before-ack": "before confirmation little is acknowledged",
        "rfc9001-6.2-ack-with-old-keys": "the peer didn't follow",
    },
)
def _update_early(m: Mutation) -> None:
    confirmed = m.confirmed_ns
    early = [each for each in m.packets(Kind.ONE_RTT) if each[0].sent_ns < confirmed and each[0].arrived]
    m.need(early, "no 1-RTT packet before confirmation")
    first = early[-1][0].sent_ns
    reply = early[-1][0].seen[m.peer].time_ns
    _update_all(m, (m.role, m.peer), {m.role: first, m.peer: reply})


@mutant(
    "rfc9001-6.1-update-before-ack",
    cases=("keyupdate",),
    along={"rfc9001-6.2-ack-with-old-keys": "the peer didn't follow twice"},
)
def _update_twice(m: Mutation) -> None:
    sent = m.packets(Kind.ONE_RTT, where=lambda _, packet: packet.keys is not None and packet.keys.generation == 1)
    m.need(len(sent) > 2 and sent[0][0].arrived, "no key update")
    second = sent[1][0]
    _update_all(
        m, (m.role, m.peer), {m.role: second.sent_ns, m.peer: second.seen.get(m.peer, second.seen[m.role]).time_ns}
    )


@mutant("rfc9001-6.2-ack-with-old-keys", cases=("keyupdate",))
def _ack_old(m: Mutation) -> None:
    sent = m.packets(Kind.ONE_RTT, where=lambda _, packet: packet.keys is not None and packet.keys.generation == 1)
    theirs = [
        packet.number
        for _, packet in m.packets(Kind.ONE_RTT, sender=m.peer)
        if packet.keys is not None and packet.keys.generation == 1
    ]
    m.need(theirs, "no key update")
    acks = [
        packet.number
        for _, packet in sent
        for each in packet.frames
        if each.is_ack and each.ranges[0][1] >= min(theirs)
    ]
    m.need(acks, "no packet with new keys is acknowledged")
    first = min(acks)
    for _, packet in sent:
        if packet.number <= first and packet.keys is not None:
            old = next(
                each[1].keys for each in m.packets(Kind.ONE_RTT) if each[1].keys and each[1].keys.generation == 0
            )
            packet.keys, packet.first, packet.changed = old, packet.first ^ 4, True


@mutant("rfc9369-3.3.1-initial-keys", cases=("handshake",))
def _initial_keys(m: Mutation) -> None:
    _, packet = m.pick(_arrived(m, Kind.INITIAL))
    assert packet.keys is not None
    dcid = next(dcid for dcid, keys in m.connection.initial if keys[m.role].secret == packet.keys.secret)
    packet.keys = initial_keys(dcid, V1 if packet.version == V2 else V2)[m.role]
    packet.changed = True


@mutant("rfc9369-3.3.2-key-labels", cases=("v2",))
def _labels(m: Mutation) -> None:
    sent = _arrived(m, Kind.HANDSHAKE)
    _, packet = m.pick(sent)
    keys = packet.keys
    assert keys is not None
    packet.keys = Keys(keys.secret, keys.suite, V1 if keys.version == V2 else V2)
    packet.changed = True


@mutant(
    "rfc9369-4.1-retry-version",
    SERVER,
    cases=("retry",),
    along={"rfc9369-4.1-version-after-retry": "the client goes on in its own version"},
)
def _retry_version(m: Mutation) -> None:
    _, retry = _retry(m)
    retry.version, retry.changed = V2 if retry.version == V1 else V1, True
    retry.first = retry.first & ~0x30 | (0 if retry.version == V2 else 0x30)


@mutant(
    "rfc9369-4.1-handshake-version",
    cases=("v2",),
    along={
        "rfc9369-3.3.2-key-labels": "the keys are those of the negotiated version",
        "rfc9368-4-server-chosen-wrong": "the versions of packets and parameter differ",
    },
)
def _handshake_version(m: Mutation) -> None:
    _, packet = m.pick(_arrived(m, Kind.HANDSHAKE))
    packet.version = V1 if packet.version == V2 else V2
    packet.first = packet.first & ~0x30 | (0x30 if packet.version == V2 else 0x20)
    packet.changed = True


@mutant(
    "rfc9369-4.1-early-data-version",
    CLIENT,
    cases=("zerortt",),
    along={
        "rfc9369-3.3.2-key-labels": "the keys are those of the original version",
        "rfc9369-4-no-version-information": "quinn never sends it",
    },
)
def _early_version(m: Mutation) -> None:
    _, packet = m.pick(_arrived(m, Kind.ZERO_RTT), "no 0-RTT")
    packet.version = V1 if packet.version == V2 else V2
    packet.first = packet.first & ~0x30 | (0x20 if packet.version == V2 else 0x10)
    packet.changed = True
