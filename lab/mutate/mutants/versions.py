"""Mutants of Retry, Version Negotiation, key updates and version 2 (RFC 9000 §17.2, RFC 9001 §5, §6, RFC 9369)."""

from lab.mutate import edits
from lab.mutate.frames import F, frame
from lab.mutate.mutants.packets import arrived
from lab.mutate.mutation import Mutation, Sent
from lab.mutate.packets import Kind
from lab.mutate.protection import V1, V2, Keys, initial_keys
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.registry import mutant


def _retry(m: Mutation) -> Sent:
    outcome = [each for each in m.recording.packets(SERVER, Kind.RETRY) if each[0].connection is m.connection]
    return m.pick(outcome, "no Retry")


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


@mutant("rfc9000-17.2.5.3-token-not-echoed", CLIENT, cases=("retry",), name="later")
def _no_token_later(m: Mutation) -> None:
    """The client's last Initial packet, after the server's answer, has no token."""
    later = _after_retry(m)
    m.need(len(later) > 1, "one Initial packet alone")
    datagram, packet = later[-1]
    size = datagram.size
    packet.token, packet.changed = b"", True
    edits.keep_size(datagram, size)


@mutant("rfc9000-17.2.5.3-number-reset", CLIENT, cases=("retry",))
def _number_reset(m: Mutation) -> None:
    later = _after_retry(m)
    lowest = min(packet.number for _, packet in later)
    m.need(lowest > 0, "it was reset already")
    for _, packet in later:
        packet.number -= lowest
        packet.changed = True
    for _, packet, old in m.frames(F.ACK, F.ACK_ECN, sender=SERVER):
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


@mutant("rfc9000-6.1-negotiation-from-client", CLIENT, cases=("versionnegotiation",))
def _client_negotiates(m: Mutation) -> None:
    answer, packet = _negotiation(m)
    question = next(each for each in m.recording.datagrams if each.sender == CLIENT)
    m.need(answer.arrived and question.arrived, "it was lost")
    twin = edits.copied(packet)
    twin.dcid, twin.scid = packet.scid, packet.dcid
    m.recording.insert(question, [twin], after_s=(answer.seen[CLIENT].time_ns - question.sent_ns) / 1e9 + 0.0002)


@mutant("rfc9000-5.2.2-small-datagram-answered", SERVER, cases=("versionnegotiation",))
def _small_answered(m: Mutation) -> None:
    answer, packet = _negotiation(m)
    requested = [each for each in m.recording.datagrams if each.sender == CLIENT and each.sent_ns < answer.sent_ns]
    question = requested[-1]
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
    """A second key update follows at once, before a packet with the first new keys can be acknowledged."""
    sent = m.packets(Kind.ONE_RTT, where=lambda _, packet: packet.keys is not None and packet.keys.generation == 1)
    m.need(len(sent) > 2 and sent[0][0].arrived, "no key update")
    second, _ = m.send_after(sent[0], frame(F.PING), after_s=0.00002)
    reply = second.seen.get(m.peer, second.seen[m.role]).time_ns
    _update_all(m, (m.role, m.peer), {m.role: second.sent_ns, m.peer: reply})


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
    _, packet = m.pick(arrived(m, Kind.INITIAL))
    assert packet.keys is not None
    dcid = next(dcid for dcid, keys in m.connection.initial if keys[m.role].secret == packet.keys.secret)
    packet.keys = initial_keys(dcid, V1 if packet.version == V2 else V2)[m.role]
    packet.changed = True


@mutant("rfc9369-3.3.2-key-labels", cases=("v2",))
def _labels(m: Mutation) -> None:
    sent = arrived(m, Kind.HANDSHAKE)
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
    _, packet = m.pick(arrived(m, Kind.HANDSHAKE))
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
    _, packet = m.pick(arrived(m, Kind.ZERO_RTT), "no 0-RTT")
    packet.version = V1 if packet.version == V2 else V2
    packet.first = packet.first & ~0x30 | (0x20 if packet.version == V2 else 0x10)
    packet.changed = True
