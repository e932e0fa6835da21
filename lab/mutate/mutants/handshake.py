"""Mutants of transport parameters, TLS messages, versions, Retry, key updates, connection IDs and tokens
(RFC 9000 §5.1, §7, §17.2 and §18, RFC 9001, 9287, 9368 and 9369)."""

from collections.abc import Callable

from lab.mutate.mutants.packets import arrived
from lab.mutate.mutation import Mutation, Sent, copied, keep_size, mutant
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.wire import (
    ALPN,
    CERTIFICATE_REQUEST,
    CLIENT_HELLO,
    ENCRYPTED_EXTENSIONS,
    END_OF_EARLY_DATA,
    KEYS,
    LONG,
    SERVER_HELLO,
    V1,
    V2,
    F,
    Keys,
    Kind,
    Message,
    P,
    frame,
    initial_keys,
    with_session_id,
)


def other_id(m: Mutation, kind: int) -> bytes:
    """The connection ID in a transport parameter, changed."""
    old = m.parameters().get(kind)
    m.need(old, "that parameter isn't there, or is empty")
    assert old is not None
    return bytes([old[0] ^ m.rng.randrange(1, 256)]) + old[1:]


@mutant("rfc9000-7.4-parameter-twice")
def _twice(m: Mutation) -> None:
    known = (P.INITIAL_SCID, P.MAX_DATA, P.MAX_IDLE_TIMEOUT, P.MAX_STREAM_DATA_UNI)
    kind = m.pick([kind for kind in m.parameters() if kind in known])
    m.edit_parameters(lambda listed: [*listed, *((each, data) for each, data in listed if each == kind)])


@mutant("rfc9221-3-early-limit-reduced", SERVER, cases=("zerortt",))
def _early_datagrams(m: Mutation) -> None:
    m.need(m.packets(Kind.ZERO_RTT, sender=CLIENT), "no 0-RTT")
    first = m.recording.connections[0]
    m.need(first is not m.connection, "no earlier connection")
    Mutation(m.recording, first, SERVER, m.rng).set_parameter(P.MAX_DATAGRAM, 1200)
    m.set_parameter(P.MAX_DATAGRAM, m.rng.randrange(100, 1200))


def versions(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4) for number in numbers)


@mutant("rfc9001-8.1-alpn-not-offered", SERVER)
def _other_alpn(m: Mutation) -> None:
    def change(message: Message) -> None:
        old = message.get(ALPN)
        assert old is not None
        message.set(ALPN, old[:3] + old[3:][::-1])

    m.edit_message(ENCRYPTED_EXTENSIONS, change)


@mutant("rfc9001-8.4-session-id", CLIENT)
def _session_id(m: Mutation) -> None:
    session = m.rng.randbytes(32)
    m.edit_message(CLIENT_HELLO, lambda message: with_session_id(message, session))
    # The server echoes the session ID.
    m.edit_message(SERVER_HELLO, lambda message: with_session_id(message, session), SERVER)


def _offer(m: Mutation, change: Callable[[Message], None], *, resumes: bool = True) -> None:
    """Change a ClientHello with a pre-shared key, or without one."""

    def checked(message: Message) -> None:
        m.need((message.get(KEYS) is not None) == resumes, "another kind of ClientHello")
        change(message)

    m.edit_message(CLIENT_HELLO, checked)


def _without_binder(message: Message) -> None:
    offered = message.get(KEYS) or b""
    message.set(KEYS, offered[: 2 + int.from_bytes(offered[:2])] + bytes(2))


@mutant("rfc8446-4.2.11-identity-not-offered", SERVER, cases=("resumption",))
def _other_identity(m: Mutation) -> None:
    def change(message: Message) -> None:
        m.need(message.get(KEYS) is not None, "no pre-shared key")
        message.set(KEYS, b"\0\x09")

    m.edit_message(SERVER_HELLO, change)


def _append(m: Mutation, message: Message) -> None:
    """Add a message after the last message of the role in 1-RTT packets."""
    end = len(m.connection.crypto_stream(m.role, "application"))
    m.send(frame(F.CRYPTO, message.encode(), offset=end))


def _refused(m: Mutation, kind: int) -> None:
    """The last byte of the role's message is another one. A client is silent from then on; a server closes."""

    def change(message: Message) -> None:
        message.before = message.before[:-1] + bytes([message.before[-1] ^ 1])

    m.edit_message(kind, change)
    if m.role == SERVER:
        end = m.packets(Kind.HANDSHAKE, sender=CLIENT)[0][0].sent_ns
        for datagram in list(m.recording.datagrams):
            if datagram.sent_ns >= end:
                m.recording.remove(datagram)
        return
    proof = m.packets(Kind.HANDSHAKE)[-1][0].seen[SERVER].time_ns
    answer, packet = next(each for each in m.packets(Kind.ONE_RTT, sender=SERVER) if each[0].sent_ns > proof)
    packet.frames, packet.changed, answer.packets = [frame(F.CLOSE, code=0x133, frame=0)], True, [packet]
    for datagram in list(m.recording.datagrams):
        if datagram is not answer and datagram.sent_ns > answer.sent_ns:
            m.recording.remove(datagram)


@mutant("rfc9001-4.4-late-client-authentication", SERVER)
def _late_authentication(m: Mutation) -> None:
    context = m.rng.randbytes(4)
    signatures = bytes.fromhex("000d0004000204030000")[:8]
    body = bytes([4]) + context + len(signatures).to_bytes(2) + signatures
    _append(m, Message(CERTIFICATE_REQUEST, body))


@mutant("rfc9001-8.3-end-of-early-data", CLIENT, cases=("zerortt",))
def _end_of_early_data(m: Mutation) -> None:
    m.need(m.packets(Kind.ZERO_RTT), "no 0-RTT")
    end = len(m.connection.crypto_stream(CLIENT, "handshake"))
    message = Message(END_OF_EARLY_DATA, b"").encode()
    m.add_to(m.pick(m.packets(Kind.HANDSHAKE)), frame(F.CRYPTO, message, offset=end))


@mutant("rfc9001-4.1.3-message-at-wrong-level")
def _wrong_level(m: Mutation) -> None:
    end = len(m.connection.crypto_stream(m.role, "application"))
    m.send(frame(F.CRYPTO, bytes([20, 0, 0, 32]) + m.rng.randbytes(32), offset=end))  # Finished belongs to Handshake


@mutant("rfc9001-5.3-suite-forbidden", SERVER)
def _suite(m: Mutation) -> None:
    def change(message: Message) -> None:
        at = 35 + message.before[34]
        message.before = message.before[:at] + bytes.fromhex("1305") + message.before[at + 2 :]

    m.edit_message(SERVER_HELLO, change, SERVER)


def _retry(m: Mutation) -> Sent:
    outcome = [each for each in m.recording.packets(SERVER, Kind.RETRY) if each[0].connection is m.connection]
    return m.pick(outcome, "no Retry")


def _after_retry(m: Mutation) -> list[Sent]:
    _, retry = _retry(m)
    return m.packets(Kind.INITIAL, sender=CLIENT, where=lambda _, packet: packet.token == retry.token)


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
        keep_size(datagram, size)
    retry.token, retry.changed = b"", True


@mutant("rfc9000-17.2.5.1-retries-per-datagram", SERVER, cases=("retry",))
def _two_retries(m: Mutation) -> None:
    datagram, retry = _retry(m)
    twin = copied(retry)
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
    keep_size(datagram, size)


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


@mutant("rfc9000-6.1-negotiation-from-client", CLIENT, cases=("versionnegotiation",))
def _client_negotiates(m: Mutation) -> None:
    answer, packet = _negotiation(m)
    question = next(each for each in m.recording.datagrams if each.sender == CLIENT)
    m.need(answer.arrived and question.arrived, "it was lost")
    twin = copied(packet)
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


@mutant("rfc9001-6.1-update-before-confirmed")
def _update_early(m: Mutation) -> None:
    confirmed = m.confirmed_ns
    early = [each for each in m.packets(Kind.ONE_RTT) if each[0].sent_ns < confirmed and each[0].arrived]
    m.need(early, "no 1-RTT packet before confirmation")
    first = early[-1][0].sent_ns
    reply = early[-1][0].seen[m.peer].time_ns
    _update_all(m, (m.role, m.peer), {m.role: first, m.peer: reply})


@mutant("rfc9001-6.1-update-before-ack", cases=("keyupdate",))
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


@mutant("rfc9369-4.1-handshake-version", cases=("v2",))
def _handshake_version(m: Mutation) -> None:
    _, packet = m.pick(arrived(m, Kind.HANDSHAKE))
    packet.version = V1 if packet.version == V2 else V2
    packet.first = packet.first & ~0x30 | (0x30 if packet.version == V2 else 0x20)
    packet.changed = True


@mutant("rfc9369-4.1-early-data-version", CLIENT, cases=("zerortt",))
def _early_version(m: Mutation) -> None:
    _, packet = m.pick(arrived(m, Kind.ZERO_RTT), "no 0-RTT")
    packet.version = V1 if packet.version == V2 else V2
    packet.first = packet.first & ~0x30 | (0x20 if packet.version == V2 else 0x10)
    packet.changed = True


NEW_ADDRESS = bytes([193, 167, 100, 101, 1, 187]) + bytes(18)  # of a server: IPv4 address, port, no IPv6
LONG_LASTING = ("longrtt", "blackhole", "mtublackhole", "rebind-addr", "rebind-port")


def rename(m: Mutation, owner: str, old: bytes, new: bytes) -> None:
    """Give a connection ID of an endpoint another value in all headers, and in its transport parameter."""
    peer = CLIENT if owner == SERVER else SERVER
    for sender, name in ((owner, "scid"), (peer, "dcid")):
        for datagram, packet in m.packets(sender=sender):
            if getattr(packet, name) == old and (name == "dcid" or packet.kind in LONG):
                size = datagram.size
                setattr(packet, name, new)
                packet.changed = True
                keep_size(datagram, size)
    m.set_parameter(P.INITIAL_SCID, new, owner)


def without_ids(m: Mutation, owner: str) -> None:
    """Change the recording as if an endpoint had chosen an empty connection ID and so never issued another ID."""
    peer = CLIENT if owner == SERVER else SERVER
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "Retry needs a connection ID")
    ids = [value for value in m.connection.cids[owner] if value]
    m.need(ids, "its connection ID is empty already")
    for sender, kind in ((owner, F.NEW_CONNECTION_ID), (peer, F.RETIRE_CONNECTION_ID)):
        for datagram, packet, old in m.frames(kind, sender=sender):
            m.replace((datagram, packet), old, frame(F.PING))
    for value in ids:
        rename(m, owner, value, b"")


def at_its_source(m: Mutation, owner: str) -> bytes:
    """The source connection ID of an endpoint's first Initial packet."""
    sent = m.packets(Kind.INITIAL, sender=owner)
    m.need(sent and sent[0][1].scid, "its connection ID is empty")
    return sent[0][1].scid


@mutant("rfc9000-7.2-first-id-short", CLIENT)
def _first_short(m: Mutation) -> None:
    old = m.connection.original_dcid
    new = old[: m.rng.randrange(1, 8)]
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "the tag of Retry covers it")
    for sender in (CLIENT, SERVER):
        for datagram, packet in m.packets(sender=sender):
            size = datagram.size
            if sender == CLIENT and packet.dcid == old:
                packet.dcid, packet.changed = new, True
            if packet.kind is Kind.INITIAL and packet.keys is not None:
                packet.keys, packet.changed = initial_keys(new, packet.keys.version)[sender], True
            keep_size(datagram, size)
    m.set_parameter(P.ORIGINAL_DCID, new, SERVER)


@mutant("rfc9000-5.1.2-retire-prior-to-ignored", cases=LONG_LASTING)
def _prior_ignored(m: Mutation) -> None:
    issued = m.frames(F.NEW_CONNECTION_ID, sender=m.peer)
    last = m.packets(Kind.ONE_RTT)[-1]
    sequences = {each.data[:-16]: each["sequence"] for _, _, each in issued}
    used = sequences.get(last[1].dcid, 0)
    fit = [
        each
        for each in issued
        if each[2]["sequence"] > used
        and each[0].arrived
        and each[0].seen[m.role].time_ns + 1_200_000_000 < last[0].sent_ns
    ]
    datagram, packet, old = m.pick(fit, "it has no connection ID to change to, or ends too soon")
    m.replace((datagram, packet), old, old.but(retire=old["sequence"]))


# Retry and tokens


@mutant("rfc9000-17.2.5.1-retry-source-is-destination", SERVER, cases=("retry",))
def _same_source(m: Mutation) -> None:
    outcome = [each for each in m.recording.packets(SERVER, Kind.RETRY) if each[0].connection is m.connection]
    _, retry = m.pick(outcome, "no Retry")
    old, new = retry.scid, m.connection.original_dcid
    retry.scid, retry.changed = new, True
    for sender in (CLIENT, SERVER):
        for datagram, packet in m.packets(Kind.INITIAL, sender=sender):
            size = datagram.size
            if sender == CLIENT and packet.dcid == old:
                packet.dcid = new
            if sender == SERVER or packet.token:
                assert packet.keys is not None
                packet.keys, packet.changed = initial_keys(new, packet.keys.version)[sender], True
            keep_size(datagram, size)
    m.set_parameter(P.RETRY_SCID, new, SERVER)


def put_token(m: Mutation, token: bytes) -> None:
    """Put a token into all Initial packets of the client."""
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "they have the token of a Retry")
    for datagram, packet in m.packets(Kind.INITIAL, sender=CLIENT):
        size = datagram.size
        packet.token, packet.token_size, packet.changed = token, 1, True
        keep_size(datagram, size)


@mutant("rfc9000-8.1.3-token-left-out", CLIENT, name="given")
def _token_dropped(m: Mutation) -> None:
    put_token(m, m.rng.randbytes(32))
    initial = arrived(m, Kind.INITIAL)
    m.need(len(initial) > 1, "one Initial packet alone")
    datagram, packet = initial[-1]
    size = datagram.size
    packet.token, packet.token_size, packet.changed = b"", 1, True
    keep_size(datagram, size)


@mutant("rfc9369-5-token-of-other-version", CLIENT, cases=("resumption",))
def _token_of_other_version(m: Mutation) -> None:
    first = m.recording.connections[0]
    m.need(first is not m.connection, "no earlier connection")
    earlier = Mutation(m.recording, first, CLIENT, m.rng)
    _, _, issued = m.pick(earlier.frames(F.NEW_TOKEN, sender=SERVER), "no NEW_TOKEN")
    put_token(m, issued.data)
    speak_first(m, V2, m.packets(Kind.INITIAL, sender=CLIENT))
    versions = (V2, V2, V1)
    m.set_parameter(P.VERSION_INFORMATION, b"".join(each.to_bytes(4) for each in versions), CLIENT)


def speak_first(m: Mutation, version: int, sent: list[Sent]) -> None:
    """Seal Initial packets of the client in another version, as if the server had then changed the version."""
    for _, packet in m.pick([sent], "no Initial packet"):
        keys = packet.keys
        assert keys is not None
        dcid = next(dcid for dcid, known in m.connection.initial if known[CLIENT].secret == keys.secret)
        packet.keys, packet.version = initial_keys(dcid, version)[CLIENT], version
        packet.first = packet.first & ~0x30 | (0x10 if version == V2 else 0)
        packet.changed = True
