"""Mutants of addresses and paths: challenges, responses, migration, and packets to addresses that are not yet valid
(RFC 9000 §8, §9)."""

from lab.mutate import edits
from lab.mutate.capture import place
from lab.mutate.connection import Address
from lab.mutate.frames import F, ack, frame, padding
from lab.mutate.mutation import Mutation, Sent
from lab.mutate.packets import Kind
from lab.mutate.recording import CLIENT, SERVER, Datagram
from lab.mutate.registry import mutant
from lab.mutate.tls import P

MOVES = ("rebind-port", "rebind-addr", "connectionmigration")
Ends = tuple[Address, Address]


def ends(datagram: Datagram, vantage: str) -> Ends:
    """The addresses of client and server in a datagram, at a vantage point."""
    record = datagram.seen[vantage]
    return (record.source, record.destination) if datagram.sender == CLIENT else (record.destination, record.source)


def put_on(datagram: Datagram, vantage: str, path: Ends) -> None:
    """Give a datagram these addresses of client and server at a vantage point."""
    source, destination = path if datagram.sender == CLIENT else (path[1], path[0])
    datagram.seen[vantage].readdress(source=source, destination=destination)


def paths(m: Mutation, vantage: str) -> list[Ends]:
    """The paths of the connection at a vantage point, in the order of their use."""
    used = [
        ends(each, vantage)
        for each in m.recording.datagrams
        if each.connection is m.connection and vantage in each.seen
    ]
    return list(dict.fromkeys(used))


def moved(m: Mutation, sent: Sent) -> None:
    """Let the client send a datagram from another port, with a new connection ID."""
    datagram, packet = sent
    used = {each.dcid for _, each in m.packets(sender=CLIENT)}
    retired = {each["sequence"] for _, _, each in m.frames(F.RETIRE_CONNECTION_ID, sender=CLIENT)}
    issued = [
        each.data[:-16]
        for _, _, each in m.frames(F.NEW_CONNECTION_ID, sender=SERVER)
        if each.data[:-16] not in used and each["sequence"] not in retired
    ]
    packet.dcid, packet.changed = m.pick(issued, "no connection ID is left"), True
    for vantage in list(datagram.seen):
        (address, port), server = ends(datagram, vantage)
        put_on(datagram, vantage, ((address, port ^ 1), server))


@mutant("rfc9000-9-migration-disabled", CLIENT, name="another-port")
def _disabled_moves(m: Mutation) -> None:
    m.need(P.PREFERRED_ADDRESS not in m.parameters(SERVER), "a preferred address allows to move")
    alone = [each for each in m.hosts() if len(each[0].packets) == 1]
    m.set_parameter(P.DISABLE_MIGRATION, b"", SERVER)
    moved(m, m.pick(alone, "no packet alone"))


@mutant("rfc9000-9.5-id-from-two-addresses", CLIENT)
def _id_from_two(m: Mutation) -> None:
    m.need(P.DISABLE_MIGRATION not in m.parameters(SERVER), "no migration is allowed")
    datagram, packet = m.pick([each for each in m.hosts() if each[1].dcid], "no connection ID")
    del packet
    for vantage in list(datagram.seen):
        (address, port), server = ends(datagram, vantage)
        put_on(datagram, vantage, ((address, port ^ 1), server))


@mutant("rfc9000-9.5-id-to-two-addresses", SERVER, cases=MOVES)
def _id_to_two(m: Mutation) -> None:
    """The client migrates with a new connection ID of the server; the server still uses the client's old ID."""
    m.set_parameter(P.CID_LIMIT, 60)  # so that no ID has to be retired
    known = paths(m, SERVER)
    m.need(len({client for client, _ in known}) > 1, "the server sees one address")
    first, second = (client for client in list(dict.fromkeys(client for client, _ in known))[:2])
    old = [each for each in m.packets(Kind.ONE_RTT) if ends(each[0], SERVER)[0] == first][-1][1].dcid
    m.need(old, "the client's connection ID is empty")
    for datagram, packet, retired in m.frames(F.RETIRE_CONNECTION_ID):
        m.replace((datagram, packet), retired, frame(F.PING))
    for datagram, packet in m.packets(Kind.ONE_RTT):
        if ends(datagram, SERVER)[0] == second:
            packet.dcid, packet.changed = old, True
    theirs = m.packets(Kind.ONE_RTT, sender=CLIENT, where=lambda datagram, _: SERVER in datagram.seen)
    used = {packet.dcid for _, packet in theirs}
    issued = [each.data[:-16] for _, _, each in m.frames(F.NEW_CONNECTION_ID)]
    new = m.pick([each for each in issued if each not in used], "no connection ID is left")
    for datagram, packet in theirs:
        if ends(datagram, SERVER)[0] == second:
            packet.dcid, packet.changed = new, True


@mutant("rfc9000-8-unvalidated-path", SERVER, cases=MOVES)
def _unvalidated(m: Mutation) -> None:
    """Soon after its PATH_CHALLENGE the server sends more to the new address than it got from there."""
    clients = list(dict.fromkeys(client for client, _ in paths(m, SERVER)))
    m.need(len(clients) > 1, "the server sees one address")
    challenges = [each for each in m.frames(F.PATH_CHALLENGE) if ends(each[0], SERVER)[0] == clients[1]]
    m.need(challenges, "no PATH_CHALLENGE")
    datagram, packet, requested = challenges[0]
    sent: Sent = (datagram, packet)
    answers = [each for each in m.frames(F.PATH_RESPONSE, sender=CLIENT) if each[2].data == requested.data]
    m.need(answers and answers[0][0].arrived, "it was not answered")
    m.need(answers[0][0].seen[SERVER].time_ns - datagram.sent_ns > 2_000_000, "it was answered at once")
    received = sum(
        each.size
        for each in m.recording.datagrams
        if each.sender == CLIENT
        and SERVER in each.seen
        and ends(each, SERVER)[0] == clients[1]
        and each.seen[SERVER].time_ns < datagram.sent_ns + 1_000_000
    )
    m.need(datagram.size <= 3 * received, "the PATH_CHALLENGE itself was too much")
    for _ in range(received * 3 // 1200 + 1):
        sent = m.send_after(sent, frame(F.PING), size=1200, after_s=0.00001)


@mutant("rfc9000-8.2.1-challenge-data-repeated", cases=MOVES)
def _data_repeated(m: Mutation) -> None:
    """The same challenge is sent on a second path, too, and answered there."""
    challenges = m.frames(F.PATH_CHALLENGE)
    m.need(challenges, "no PATH_CHALLENGE")
    datagram, packet, requested = challenges[0]
    here = ends(datagram, m.role)
    others = [path for path in paths(m, m.role) if path != here]
    m.need(others, "one path alone")
    twin, _ = m.send_after((datagram, packet), requested, size=1200)
    for vantage in list(twin.seen):
        put_on(twin, vantage, next(path for path in paths(m, vantage) if path != ends(datagram, vantage)))
    for answer, answering, given in m.frames(F.PATH_RESPONSE, sender=m.peer):
        if given.data == requested.data:
            again, _ = m.send_after((answer, answering), given, size=1200)
            for vantage in list(again.seen):
                put_on(again, vantage, ends(twin, vantage))


@mutant("rfc9000-8.2.2-response-on-other-path", cases=MOVES)
def _response_elsewhere(m: Mutation) -> None:
    datagram, packet, given = m.pick(m.frames(F.PATH_RESPONSE), "no PATH_RESPONSE")
    size = datagram.size
    m.replace((datagram, packet), given, frame(F.PING), padding(8))
    packet.pad(size - datagram.size)
    moved_on, _ = m.send_after((datagram, packet), given, size=1200)
    for vantage in list(moved_on.seen):
        others = [path for path in paths(m, vantage) if path != ends(datagram, vantage)]
        put_on(moved_on, vantage, m.pick(others, "one path alone"))


@mutant("rfc9000-8.2.2-challenge-unanswered", name="asked-once-more")
def _asked_in_vain(m: Mutation) -> None:
    """The peer challenges the only path. The packet is acknowledged, but no PATH_RESPONSE follows."""
    other = Mutation(m.recording, m.connection, m.peer, m.rng)
    before = [each for each in other.hosts() if other.acked_later(*each)]
    last = m.packets(Kind.ONE_RTT)[-1][0].sent_ns
    early = [each for each in before if each[0].seen[m.role].time_ns + 500_000_000 < last]
    other.send_after(other.pick(early, "it ends too soon"), frame(F.PATH_CHALLENGE, m.rng.randbytes(8)), size=1200)


# The order in which a handshake ends


@mutant("rfc9001-5.7-server-1rtt-read-early", SERVER)
def _read_early(m: Mutation) -> None:
    """The client's Finished arrives late; before it does, the server acknowledges a 1-RTT packet."""
    finished = [
        each
        for each in m.packets(Kind.HANDSHAKE, sender=CLIENT)
        if each[0].arrived and any(one.type == F.CRYPTO for one in each[1].frames)
    ]
    m.need(len(finished) == 1 and len(m.frames(F.CRYPTO, sender=CLIENT)) < 4, "Finished is sent twice")
    datagram = finished[0][0]
    done = m.frames(F.HANDSHAKE_DONE)
    m.need(done, "no HANDSHAKE_DONE")
    until = done[0][0].sent_ns
    split_off(m, datagram)
    early = m.packets(
        Kind.ONE_RTT,
        sender=CLIENT,
        where=lambda each, packet: packet.eliciting and each.arrived and each.seen[SERVER].time_ns < until - 10_000,
    )
    _, read = m.pick(early[:1], "no 1-RTT packet of the client is as early")
    own = [each for each in m.packets(Kind.ONE_RTT) if each[0].sent_ns < until - 10_000]
    m.need(own, "no 1-RTT packet of the server is as early")
    m.need(not any(one.is_ack for _, packet in own for one in packet.frames), "it acknowledges something already")
    like, template = own[-1]
    late = datagram.seen[SERVER]
    m.recording.records[SERVER].remove(late)
    late.time_ns = until - 2_000
    place(m.recording.records[SERVER], late)
    answer = ack((read.number, read.number))
    edits.insert_packet(m.recording, like, template, answer, padding(8), after_s=(until - 5_000 - like.sent_ns) / 1e9)


def split_off(m: Mutation, datagram: Datagram) -> None:
    """Send the 1-RTT packets of a datagram in their own datagram, a moment later."""
    rest = [packet for packet in datagram.packets if packet.kind is Kind.ONE_RTT]
    if not rest:
        return
    size = datagram.size
    datagram.packets = [packet for packet in datagram.packets if packet.kind is not Kind.ONE_RTT]
    for packet in datagram.packets:
        packet.changed = True
    edits.keep_size(datagram, size)
    m.recording.insert(datagram, rest, after_s=0.000003)
