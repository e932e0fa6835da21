"""Mutants of addresses and paths, handshake order and closing (RFC 9000 §5 to §10, RFC 9001 §4 and §5, RFC 9002)."""

from lab.mutate.mutation import LEAST_INITIAL, Mutation, Sent, copied, kept_size, mutant
from lab.mutate.recording import CLIENT, SERVER, Address, Datagram, place
from lab.mutate.wire import F, Kind, P, Packet, ack, frame, padding

MOVES = ("rebind-port", "rebind-addr", "connectionmigration")


@mutant("rfc9000-5.1.2-retired-id-used")
def _retired_used(m: Mutation) -> None:
    retired = m.frames(F.RETIRE_CONNECTION_ID)
    issued = {each["sequence"]: each.data[:-16] for _, _, each in m.frames(F.NEW_CONNECTION_ID, sender=m.peer)}
    cids = m.connection.cids[m.peer]
    issued.setdefault(0, next((each for each in cids if each not in issued.values()), cids[0]))
    datagram, _, old = m.pick([each for each in retired if each[2]["sequence"] in issued], "nothing was retired")
    later = [each for each in m.hosts() if each[0].sent_ns > datagram.sent_ns + 50_000_000]
    where, _ = m.pick(later, "no packet later")
    for packet in where.packets:
        packet.edit(dcid=issued[old["sequence"]])


def unpad(m: Mutation, datagram: Datagram, packet: Packet) -> None:
    """Make a datagram smaller than 1200 B. Its other frames must not be too large."""
    packet.edit(frames=[each for each in packet.frames if each.type != F.PADDING and not each.is_stream])
    m.need(datagram.size < LEAST_INITIAL, "it is full")


@mutant("rfc9000-8.2.1-challenge-not-padded")
def _challenge_small(m: Mutation) -> None:
    unsure = m.unsure_ns()  # a small datagram is right at these times, because few bytes had arrived
    full = [each for each in m.frames(F.PATH_CHALLENGE) if each[0].size >= LEAST_INITIAL]
    fit = [each for each in full if not any(start <= each[0].sent_ns <= stop for start, stop in unsure)]
    datagram, packet, _ = m.pick(fit, "no full challenge to a valid address")
    unpad(m, datagram, packet)


def without(m: Mutation, kind: int) -> None:
    """Replace all frames of this kind by PING."""
    old = m.frames(kind)
    m.need(old, "no such frame")
    for datagram, packet, each in old:
        size = datagram.size
        packet.swap(each, frame(F.PING))
        packet.pad(size - datagram.size)


@mutant("rfc9000-9.3-new-path-not-challenged", SERVER, cases=MOVES)
def _unchallenged(m: Mutation) -> None:
    moved = [each for each, _ in m.packets() if SERVER in each.seen]
    new = [each.sent_ns for each in moved if each.seen[SERVER].destination != moved[0].seen[SERVER].destination]
    m.need(sum(each > new[0] + 1_000_000_000 for each in new) > 5, "it ends too soon after the move")
    without(m, F.PATH_CHALLENGE)
    for _, packet, each in m.frames(F.PATH_RESPONSE, sender=CLIENT):
        packet.swap(each, frame(F.PING))


def from_another_port(datagram: Datagram) -> None:
    """Let the datagram come from another port of the client, at both vantage points."""
    for record in datagram.seen.values():
        address, port = record.source
        record.readdress(source=(address, port ^ 1))


def close_of_peer(m: Mutation) -> Datagram:
    """A datagram with which the peer closed the connection."""
    closes = m.frames(F.CLOSE, F.CLOSE_APPLICATION, sender=m.peer)
    closes = [each for each in closes if each[0].arrived and each[1].kind is Kind.ONE_RTT]
    return m.pick(closes, "the peer didn't close")[0]


@mutant("rfc9000-10.2.2-sent-while-draining", name="closes")
def _closes(m: Mutation) -> None:
    datagram = close_of_peer(m)
    m.need(not m.frames(F.CLOSE, F.CLOSE_APPLICATION), "it closed, too")
    sent = m.packets(Kind.ONE_RTT)[-1]
    wait = (datagram.seen[m.role].time_ns - sent[0].sent_ns) / 1e9
    for at in range(5):
        sent = m.send_after(sent, frame(F.CLOSE, code=0, frame=0), after_s=0.001 + (not at) * wait)


@mutant("rfc9000-7.2-id-not-issued")
def _not_issued(m: Mutation) -> None:
    _, packet = m.pick([each for each in m.hosts() if len(each[0].packets) == 1 and each[1].dcid])
    new = m.rng.randbytes(len(packet.dcid))
    m.need(new not in m.connection.cids[m.peer], "it was issued")
    packet.edit(dcid=new)


def send_late(m: Mutation, kind: Kind, at_ns: int, wait_s: float) -> None:
    """Send one more packet of this kind so long after a time."""
    last = m.packets(kind)[-1]
    m.send_after(last, frame(F.PING), after_s=max(0.0, (at_ns - last[0].sent_ns) / 1e9) + wait_s)


@mutant("rfc9001-5.7-client-1rtt-early", CLIENT)
def _client_early(m: Mutation) -> None:
    first = m.packets(Kind.ONE_RTT)[0]
    answer = m.packets(Kind.HANDSHAKE, sender=SERVER)[0][0]
    m.need(first[0].arrived and answer.arrived, "it was lost")
    twin = copied(first[1], frame(F.PING))
    wait = (answer.seen[CLIENT].time_ns - first[0].sent_ns) / 1e9 - 0.002
    m.renumber(CLIENT, "application", twin.number, first[0].seen[SERVER].time_ns)
    for record in m.recording.insert(first[0], [twin], after_s=wait).seen.values():
        record.mark(0)  # because the server's counts don't include it


@mutant("rfc9000-8.1-amplification", SERVER)
def _amplification(m: Mutation) -> None:
    sent = m.packets(Kind.INITIAL)[0]
    m.need(sent[0].arrived, "it was lost")
    m.need(not any(each.token for _, each in m.packets(Kind.INITIAL, sender=CLIENT)), "a token proves the address")
    for _ in range(5):
        sent = m.send_after(sent, frame(F.PING), after_s=0.00001, size=LEAST_INITIAL)


@mutant("rfc9002-6.2.1-backoff", CLIENT, cases=("longrtt",))
def _backoff(m: Mutation) -> None:
    """Send probes at equal distances, and more probes than the timer allows."""
    arrivals = [each.seen[CLIENT].time_ns for each in m.recording.datagrams if each.sender == SERVER and each.arrived]
    before = [each for each in m.packets(Kind.INITIAL) if each[0].sent_ns < min(arrivals)]
    m.need(before, "no Initial packet before an answer")
    probe = before[0][1].frames
    gap = (min(arrivals) - before[-1][0].sent_ns) / 1e9 / 4
    m.need(gap > 0.11 and before[-1][0].arrived, "too little time to probe")
    sent = before[-1]
    for _ in range(3):
        sent = m.send_after(sent, *probe, after_s=gap)


@mutant("rfc9002-6.2.2-backoff-kept", CLIENT, cases=("handshake",))
def _kept_backoff(m: Mutation) -> None:
    probe_finished(m, 2.0)


def probe_finished(m: Mutation, seconds: float, *, acked: bool = False) -> None:
    """The first ClientHello is lost, the second is sent 1 s later; the server's flight acknowledges the second or
    nothing; the Finished is lost and sent again after these seconds, without another packet of the server."""
    first, hello = m.packets(Kind.INITIAL)[0]
    finished, proof = m.packets(Kind.HANDSHAKE, where=lambda _, packet: any(each.data for each in packet.frames))[0]
    end = finished.sent_ns + 1_000_000
    for each in list(m.recording.datagrams):
        if each.sent_ns > end or (each.sender == SERVER and each.seen[CLIENT].time_ns > finished.sent_ns):
            m.recording.remove(each)
    numbers = [packet for _, packet in m.packets(Kind.INITIAL)]
    m.recording.lose(m.recording.insert(first, [copied(hello, *hello.frames)], after_s=-1.0))
    for packet in numbers:
        packet.edit(number=packet.number + 1)
    for _, packet, old in m.frames(F.ACK, F.ACK_ECN, sender=SERVER):
        packet.swap(old, old.but(ranges=((1, 1),)) if acked and packet.kind is Kind.INITIAL else padding(1))
    for each in m.recording.datagrams:
        if each.sender == CLIENT and each.sent_ns >= finished.sent_ns:
            m.recording.lose(each)
    m.recording.insert(finished, [copied(proof, *proof.frames, number=proof.number + 1)], after_s=seconds)


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
    packet.edit(dcid=m.pick(issued, "no connection ID is left"))
    from_another_port(datagram)


@mutant("rfc9000-9.5-id-to-two-addresses", SERVER, cases=MOVES)
def _id_to_two(m: Mutation) -> None:
    """The client migrates with a new connection ID of the server; the server still uses the client's old ID."""
    m.set_parameter(P.CID_LIMIT, 60)  # so that no ID has to be retired
    known = paths(m, SERVER)
    m.need(len({client for client, _ in known}) > 1, "the server sees one address")
    first, second = list(dict.fromkeys(client for client, _ in known))[:2]
    old = [each for each in m.packets(Kind.ONE_RTT) if ends(each[0], SERVER)[0] == first][-1][1].dcid
    m.need(old, "the client's connection ID is empty")
    for datagram, packet, retired in m.frames(F.RETIRE_CONNECTION_ID):
        m.replace((datagram, packet), retired, frame(F.PING))
    for datagram, packet in m.packets(Kind.ONE_RTT):
        if ends(datagram, SERVER)[0] == second:
            packet.edit(dcid=old)
    theirs = m.packets(Kind.ONE_RTT, sender=CLIENT, where=lambda datagram, _: SERVER in datagram.seen)
    used = {packet.dcid for _, packet in theirs}
    issued = [each.data[:-16] for _, _, each in m.frames(F.NEW_CONNECTION_ID)]
    new = m.pick([each for each in issued if each not in used], "no connection ID is left")
    for datagram, packet in theirs:
        if ends(datagram, SERVER)[0] == second:
            packet.edit(dcid=new)


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
    other = m.by(m.peer)
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
    late = datagram.seen[SERVER]
    m.recording.records[SERVER].remove(late)
    late.time_ns = until - 2_000
    place(m.recording.records[SERVER], late)
    answer = ack((read.number, read.number))
    m.send_after(own[-1], answer, padding(8), after_s=(until - 5_000 - own[-1][0].sent_ns) / 1e9)


def split_off(m: Mutation, datagram: Datagram) -> None:
    """Send the 1-RTT packets of a datagram in their own datagram, a moment later."""
    rest = [packet for packet in datagram.packets if packet.kind is Kind.ONE_RTT]
    if not rest:
        return
    with kept_size(datagram):
        datagram.packets = [packet for packet in datagram.packets if packet.kind is not Kind.ONE_RTT]
        for packet in datagram.packets:
            packet.changed = True
    m.recording.insert(datagram, rest, after_s=0.000003)
