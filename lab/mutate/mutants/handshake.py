"""Mutants of transport parameters, TLS messages, versions, Retry, key updates, connection IDs and tokens
(RFC 9000 §5.1, §7, §17.2 and §18, RFC 9001, 9287, 9368 and 9369)."""

from collections.abc import Callable

from lab.mutate.mutants.packets import arrived
from lab.mutate.mutation import Mutation, Sent, copied, flipped, kept_size, mutant
from lab.mutate.recording import CLIENT, ROLES, SERVER
from lab.mutate.wire import CLIENT_HELLO, KEYS, LONG, V1, V2, F, Kind, Message, P, Packet, frame, initial_keys


def other_id(m: Mutation, kind: int) -> bytes:
    """The connection ID in a transport parameter, changed."""
    old = m.parameters().get(kind)
    m.need(old, "that parameter isn't there, or is empty")
    assert old is not None
    return bytes([old[0] ^ m.rng.randrange(1, 256)]) + old[1:]


def earlier(m: Mutation, role: str) -> Mutation:
    """The first connection of the recording, for a role. The mutant breaks its rule in a later connection."""
    first = m.recording.connections[0]
    m.need(first is not m.connection, "no earlier connection")
    return Mutation(m.recording, first, role, m.rng)


def versions(*numbers: int) -> bytes:
    """The value of the parameter version_information."""
    return b"".join(number.to_bytes(4) for number in numbers)


def change_hello(
    m: Mutation, change: Callable[[Message], None], *, kind: int = CLIENT_HELLO, resumes: bool = True
) -> None:
    """Change a hello with a pre-shared key, or without one."""

    def checked(message: Message) -> None:
        m.need((message.get(KEYS) is not None) == resumes, "another kind of hello")
        change(message)

    m.edit_message(kind, checked)


def without_binder(message: Message) -> None:
    """Remove the binders of the pre-shared keys."""
    offered = message.get(KEYS) or b""
    message.set(KEYS, offered[: 2 + int.from_bytes(offered[:2])] + bytes(2))


def append(m: Mutation, message: Message) -> None:
    """Add a message after the last message of the role in 1-RTT packets."""
    end = len(m.connection.crypto_stream(m.role, "application"))
    m.send(frame(F.CRYPTO, message.encode(), offset=end))


def refused(m: Mutation, kind: int) -> None:
    """The last byte of the role's message is another one. A client is silent from then on; a server closes."""
    m.edit_message(kind, lambda message: setattr(message, "before", flipped(message.before)))
    if m.role == SERVER:
        end = m.packets(Kind.HANDSHAKE, sender=CLIENT)[0][0].sent_ns
        for datagram in list(m.recording.datagrams):
            if datagram.sent_ns >= end:
                m.recording.remove(datagram)
        return
    proof = m.packets(Kind.HANDSHAKE)[-1][0].seen[SERVER].time_ns
    answer, packet = next(each for each in m.packets(Kind.ONE_RTT, sender=SERVER) if each[0].sent_ns > proof)
    packet.edit(frames=[frame(F.CLOSE, code=0x133, frame=0)])
    answer.packets = [packet]
    for datagram in list(m.recording.datagrams):
        if datagram is not answer and datagram.sent_ns > answer.sent_ns:
            m.recording.remove(datagram)


def retry(m: Mutation) -> Sent:
    """The Retry of this connection."""
    outcome = [each for each in m.recording.packets(SERVER, Kind.RETRY) if each[0].connection is m.connection]
    return m.pick(outcome, "no Retry")


def after_retry(m: Mutation) -> list[Sent]:
    """The client's Initial packets with the token of the Retry."""
    token = retry(m)[1].token
    return m.packets(Kind.INITIAL, sender=CLIENT, where=lambda _, packet: packet.token == token)


@mutant("rfc9000-17.2.5.3-number-reset", CLIENT, cases=("retry",))
def _number_reset(m: Mutation) -> None:
    later = after_retry(m)
    lowest = min(packet.number for _, packet in later)
    m.need(lowest > 0, "it was reset already")
    for _, packet in later:
        packet.edit(number=packet.number - lowest)
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


def negotiation(m: Mutation) -> Sent:
    """The Version Negotiation of the server."""
    return m.pick(list(m.recording.packets(SERVER, Kind.VERSION_NEGOTIATION)), "no Version Negotiation")


@mutant("rfc9000-6.1-negotiation-from-client", CLIENT, cases=("versionnegotiation",))
def _client_negotiates(m: Mutation) -> None:
    answer, packet = negotiation(m)
    question = next(each for each in m.recording.datagrams if each.sender == CLIENT)
    m.need(answer.arrived and question.arrived, "it was lost")
    twin = copied(packet, dcid=packet.scid, scid=packet.dcid)
    m.recording.insert(question, [twin], after_s=(answer.seen[CLIENT].time_ns - question.sent_ns) / 1e9 + 0.0002)


@mutant("rfc9000-5.2.2-small-datagram-answered", SERVER, cases=("versionnegotiation",))
def _small_answered(m: Mutation) -> None:
    answer, _ = negotiation(m)
    requested = [each for each in m.recording.datagrams if each.sender == CLIENT and each.sent_ns < answer.sent_ns]
    question = requested[-1]
    m.need(question.packets[0].kind is Kind.OPAQUE, "a known version")
    question.packets[0].edit(raw=question.packets[0].raw[: m.rng.randrange(600, 1199)])


def of_generation(m: Mutation, generation: int, role: str = "") -> list[Sent]:
    """The 1-RTT packets after so many key updates that the role, or another role, sent."""
    return m.packets(
        Kind.ONE_RTT, sender=role, where=lambda _, packet: bool(packet.keys and packet.keys.generation == generation)
    )


@mutant("rfc9001-6.4-old-keys-on-higher-number", cases=("keyupdate",))
def _old_keys(m: Mutation) -> None:
    newer = [each for each in arrived(m, Kind.ONE_RTT) if each[1].keys and each[1].keys.generation > 0]
    older = [packet for datagram, packet in of_generation(m, 0) if datagram.arrived]
    m.need(newer and older, "no key update")
    _, packet = m.pick(newer[1:], "too few packets after the update")
    packet.edit(keys=older[-1].keys, first=packet.first ^ 4)


def update_keys(m: Mutation, own_ns: int, peers_ns: int) -> None:
    """Use the next keys: the role in its packets from one time on, its peer from another time on."""
    for role, start_ns in ((m.role, own_ns), (m.peer, peers_ns)):
        for datagram, packet in m.packets(Kind.ONE_RTT, sender=role):
            if datagram.sent_ns >= start_ns and packet.keys is not None:
                packet.edit(keys=packet.keys.next(), first=packet.first ^ 4)


@mutant("rfc9001-6.2-ack-with-old-keys", cases=("keyupdate",))
def _ack_old(m: Mutation) -> None:
    sent = of_generation(m, 1)
    theirs = [packet.number for _, packet in of_generation(m, 1, m.peer)]
    m.need(theirs, "no key update")
    acks = [
        packet.number
        for _, packet in sent
        for each in packet.frames
        if each.is_ack and each.ranges[0][1] >= min(theirs)
    ]
    m.need(acks, "no packet with new keys is acknowledged")
    for _, packet in sent:
        if packet.number <= min(acks):
            packet.edit(keys=of_generation(m, 0)[0][1].keys, first=packet.first ^ 4)


def initial_dcid(m: Mutation, packet: Packet, sender: str) -> bytes:
    """The connection ID from which the keys of an Initial packet follow."""
    return next(
        dcid for dcid, keys in m.connection.initial if packet.keys and keys[sender].secret == packet.keys.secret
    )


NEW_ADDRESS = bytes([193, 167, 100, 101, 1, 187]) + bytes(18)  # of a server: IPv4 address, port, no IPv6
LONG_LASTING = ("longrtt", "blackhole", "mtublackhole", "rebind-addr", "rebind-port")


def rename(m: Mutation, owner: str, old: bytes, new: bytes) -> None:
    """Give a connection ID of an endpoint another value in all headers, and in its transport parameter."""
    peer = CLIENT if owner == SERVER else SERVER
    for sender, name in ((owner, "scid"), (peer, "dcid")):
        for datagram, packet in m.packets(sender=sender):
            if getattr(packet, name) == old and (name == "dcid" or packet.kind in LONG):
                with kept_size(datagram):
                    packet.edit(**{name: new})
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


def change_destination(sender: str, sent: list[Sent], old: bytes, new: bytes) -> None:
    """Change the connection ID to which the client sends first, and the keys of Initial packets, which follow from
    it."""
    for datagram, packet in sent:
        with kept_size(datagram):
            if sender == CLIENT and packet.dcid == old:
                packet.edit(dcid=new)
            if packet.kind is Kind.INITIAL and packet.keys is not None:
                packet.edit(keys=initial_keys(new, packet.keys.version)[sender])


@mutant("rfc9000-7.2-first-id-short", CLIENT)
def _first_short(m: Mutation) -> None:
    old = m.connection.original_dcid
    new = old[: m.rng.randrange(1, 8)]
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "the tag of Retry covers it")
    for sender in ROLES:
        change_destination(sender, m.packets(sender=sender), old, new)
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
    _, packet = retry(m)
    old, new = packet.scid, m.connection.original_dcid
    packet.edit(scid=new)
    for sender in ROLES:
        sent = m.packets(Kind.INITIAL, sender=sender)
        change_destination(sender, [each for each in sent if sender == SERVER or each[1].token], old, new)
    m.set_parameter(P.RETRY_SCID, new, SERVER)


def set_token(sent: list[Sent], token: bytes) -> None:
    """Change the token of Initial packets."""
    for datagram, packet in sent:
        with kept_size(datagram):
            packet.edit(token=token, token_size=1)


def put_token(m: Mutation, token: bytes) -> None:
    """Put a token into all Initial packets of the client."""
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "they have the token of a Retry")
    set_token(m.packets(Kind.INITIAL, sender=CLIENT), token)


@mutant("rfc9369-5-token-of-other-version", CLIENT, cases=("resumption",))
def _token_of_other_version(m: Mutation) -> None:
    _, _, issued = m.pick(earlier(m, CLIENT).frames(F.NEW_TOKEN, sender=SERVER), "no NEW_TOKEN")
    put_token(m, issued.data)
    speak_first(m, V2, m.packets(Kind.INITIAL, sender=CLIENT))
    m.set_parameter(P.VERSION_INFORMATION, versions(V2, V2, V1), CLIENT)


def speak_first(m: Mutation, version: int, sent: list[Sent]) -> None:
    """Seal Initial packets of the client in another version, as if the server had then changed the version."""
    m.need(sent, "no Initial packet")
    for _, packet in sent:
        packet.edit(keys=initial_keys(initial_dcid(m, packet, CLIENT), version)[CLIENT])
        packet.set_version(version)
