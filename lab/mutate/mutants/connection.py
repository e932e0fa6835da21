"""Connection IDs, paths, handshake order and closing (RFC 9000 §5 to §10, RFC 9001 §4 and §5, RFC 9002)."""

from lab.mutate import edits
from lab.mutate.frames import F, frame
from lab.mutate.mutation import Mutation, Sent
from lab.mutate.packets import Kind
from lab.mutate.recording import CLIENT, SERVER, Datagram
from lab.mutate.registry import mutant

LATE = {"rfc9000-5.1.2-retired-id-used": "the first connection ID may be retired by then"}
MOVES = ("rebind-port", "rebind-addr", "connectionmigration")


@mutant("rfc9000-7.2-server-source-changed", SERVER)
def _server_source(m: Mutation) -> None:
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, packet: datagram.arrived and bool(packet.scid))
    _, packet = m.pick(sent)
    packet.scid, packet.changed = packet.scid[:-1] + bytes([packet.scid[-1] ^ 1]), True


@mutant("rfc9000-7.2-client-source-changed", CLIENT)
def _client_source(m: Mutation) -> None:
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, _: datagram.arrived)
    _, packet = m.pick(sent)
    old = packet.scid
    packet.scid, packet.changed = (old[:-1] + bytes([old[-1] ^ 1])) if old else m.rng.randbytes(4), True


@mutant("rfc9000-7.2-id-not-the-servers", CLIENT)
def _not_the_servers(m: Mutation) -> None:
    theirs = m.connection.cids[SERVER]
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, packet: datagram.arrived and packet.dcid in theirs)
    datagram, _ = m.pick(sent)
    for packet in datagram.packets:
        if packet.kind is not Kind.ONE_RTT:
            packet.dcid, packet.changed = m.connection.original_dcid, True
    m.need(all(packet.kind is not Kind.ONE_RTT for packet in datagram.packets), "1-RTT packets are in it as well")


@mutant("rfc9000-5.1.2-retired-id-used")
def _retired_used(m: Mutation) -> None:
    retired = m.frames(F.RETIRE_CONNECTION_ID)
    issued = {each["sequence"]: each.data[:-16] for _, _, each in m.frames(F.NEW_CONNECTION_ID, sender=m.peer)}
    cids = m.connection.cids[m.peer]
    issued.setdefault(0, next((each for each in cids if each not in issued.values()), cids[0]))
    datagram, _, old = m.pick([each for each in retired if each[2]["sequence"] in issued], "nothing was retired")
    later = [each for each in m.hosts() if each[0].sent_ns > datagram.sent_ns + 50_000_000]
    where, packet = m.pick(later, "no packet later")
    for each in where.packets:
        each.dcid, each.changed = issued[old["sequence"]], True
    del packet


@mutant("rfc9000-8.2.2-response-repeated")
def _response_repeated(m: Mutation) -> None:
    datagram, packet, old = m.pick(m.frames(F.PATH_RESPONSE), "no PATH_RESPONSE")
    edits.insert_packet(m.recording, datagram, packet, old, size=1200)


@mutant("rfc9000-8.2.2-response-not-padded", along={"rfc9000-8.2.1-challenge-not-padded": "both are in one packet"})
def _response_small(m: Mutation) -> None:
    datagram, packet, _ = m.pick([each for each in m.frames(F.PATH_RESPONSE) if each[0].size >= 1200])
    packet.frames = [each for each in packet.frames if each.type != F.PADDING and not each.is_stream]
    packet.changed = True
    m.need(datagram.size < 1200, "it is full")


@mutant("rfc9000-8.2.1-challenge-not-padded", along={"rfc9000-8.2.2-response-not-padded": "both are in one packet"})
def _challenge_small(m: Mutation) -> None:
    unsure = m.unsure_ns()  # a small datagram is right at these times, because few bytes had arrived
    full = [each for each in m.frames(F.PATH_CHALLENGE) if each[0].size >= 1200]
    fit = [each for each in full if not any(start <= each[0].sent_ns <= stop for start, stop in unsure)]
    datagram, packet, _ = m.pick(fit, "no full challenge to a valid address")
    packet.frames = [each for each in packet.frames if each.type != F.PADDING and not each.is_stream]
    packet.changed = True
    m.need(datagram.size < 1200, "it is full")


def _without(m: Mutation, kind: int) -> None:
    old = m.frames(kind)
    m.need(old, "no such frame")
    for datagram, packet, each in old:
        size = datagram.size
        packet.swap(each, frame(F.PING))
        packet.pad(size - datagram.size)


@mutant(
    "rfc9000-8.2.2-challenge-unanswered",
    cases=MOVES,
    along={"rfc9000-8-unvalidated-path": "without the response the path is never validated"},
)
def _unanswered(m: Mutation) -> None:
    _without(m, F.PATH_RESPONSE)


@mutant(
    "rfc9000-9.3-new-path-not-challenged",
    SERVER,
    cases=MOVES,
    along={
        "rfc9000-8-unvalidated-path": "the path is never validated",
    },
)
def _unchallenged(m: Mutation) -> None:
    moved = [each for each, _ in m.packets() if SERVER in each.seen]
    new = [each.sent_ns for each in moved if each.seen[SERVER].destination != moved[0].seen[SERVER].destination]
    m.need(sum(each > new[0] + 1_000_000_000 for each in new) > 5, "it ends too soon after the move")
    _without(m, F.PATH_CHALLENGE)
    for _, packet, each in m.frames(F.PATH_RESPONSE, sender=CLIENT):
        packet.swap(each, frame(F.PING))


def _moved(datagram: Datagram) -> None:
    """Let the datagram come from another port of the client, at both vantage points."""
    for record in datagram.seen.values():
        address, port = record.source
        record.readdress(source=(address, port ^ 1))


@mutant(
    "rfc9000-9-migration-before-confirmed",
    CLIENT,
    along={
        "rfc9000-9.5-id-from-two-addresses": "the server has one connection ID by then",
    },
)
def _moves_early(m: Mutation) -> None:
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, _: datagram.arrived)
    datagram, _ = m.pick(sent)
    _moved(datagram)


@mutant("rfc9000-10.2.2-sent-while-draining")
def _draining(m: Mutation) -> None:
    closes = m.frames(F.CLOSE, F.CLOSE_APPLICATION, sender=m.peer)
    closes = [each for each in closes if each[0].arrived and each[1].kind is Kind.ONE_RTT]
    datagram, _, _ = m.pick(closes, "the peer didn't close")
    own = m.packets(Kind.ONE_RTT, where=lambda datagram, _: datagram.arrived)
    last, packet = own[-1]
    wait = (datagram.seen[m.role].time_ns - last.sent_ns) / 1e9 + 0.6
    edits.insert_packet(m.recording, last, packet, frame(F.PING), after_s=wait)


@mutant("rfc9000-10.2.2-sent-while-draining", name="closes")
def _closes(m: Mutation) -> None:
    closes = m.frames(F.CLOSE, F.CLOSE_APPLICATION, sender=m.peer)
    closes = [each for each in closes if each[0].arrived and each[1].kind is Kind.ONE_RTT]
    datagram, _, _ = m.pick(closes, "the peer didn't close")
    m.need(not m.frames(F.CLOSE, F.CLOSE_APPLICATION), "it closed, too")
    wait = (datagram.seen[m.role].time_ns - (sent := m.packets(Kind.ONE_RTT)[-1])[0].sent_ns) / 1e9
    for at in range(5):
        sent = edits.insert_packet(m.recording, *sent, frame(F.CLOSE, code=0, frame=0), after_s=0.001 + (not at) * wait)


@mutant("rfc9000-7.2-id-not-issued")
def _not_issued(m: Mutation) -> None:
    theirs = m.connection.cids[m.peer]
    datagram, packet = m.pick([each for each in m.hosts() if len(each[0].packets) == 1 and each[1].dcid])
    del datagram
    new = m.rng.randbytes(len(packet.dcid))
    m.need(new not in theirs, "it was issued")
    packet.dcid, packet.changed = new, True


@mutant("rfc9000-7.2-id-not-issued", SERVER, name="handshake")
def _handshake_not_issued(m: Mutation) -> None:
    sent = m.packets(Kind.HANDSHAKE, where=lambda datagram, packet: datagram.arrived and len(packet.dcid) > 0)
    datagram, packet = m.pick(sent)
    new = m.rng.randbytes(len(packet.dcid))
    for each in datagram.packets:
        each.dcid, each.changed = new, True


@mutant("rfc9000-7.2-id-not-the-servers", CLIENT, name="initial")
def _initial_not_the_servers(m: Mutation) -> None:
    acks = [each for each in m.frames(F.ACK, F.ACK_ECN) if each[1].kind is Kind.INITIAL and each[0].arrived]
    datagram, _, _ = m.pick(acks)
    m.need(all(packet.kind is Kind.INITIAL for packet in datagram.packets), "other packets are in it as well")
    for packet in datagram.packets:
        packet.dcid, packet.changed = m.connection.original_dcid, True


@mutant("rfc9001-4.1.2-handshake-done-missing", SERVER, cases=("mtublackhole", "longrtt"))
def _no_done(m: Mutation) -> None:
    for _, packet, each in m.frames(F.HANDSHAKE_DONE):
        packet.swap(each, frame(F.PING))


def _again(m: Mutation, kind: Kind, after_s: float) -> None:
    sent = m.packets(kind)
    datagram, packet = sent[-1]
    edits.insert_packet(m.recording, datagram, packet, frame(F.PING), after_s=after_s)


@mutant("rfc9001-4.9.1-client-initial-late", CLIENT, along=LATE)
def _client_initial(m: Mutation) -> None:
    first = m.packets(Kind.HANDSHAKE)[0][0]
    last = m.packets(Kind.INITIAL)[-1][0]
    m.need(first.arrived, "the first Handshake packet was lost")
    _again(m, Kind.INITIAL, max(0.0, (first.sent_ns - last.sent_ns) / 1e9) + 0.001)


@mutant("rfc9001-4.9.1-server-initial-late", SERVER, along=LATE)
def _server_initial(m: Mutation) -> None:
    theirs = next(each[0] for each in m.packets(Kind.HANDSHAKE, sender=CLIENT) if each[0].arrived)
    last = m.packets(Kind.INITIAL)[-1][0]
    m.need(m.closed_ns > theirs.seen[SERVER].time_ns + 800_000_000, "it is closed by then")
    _again(m, Kind.INITIAL, (theirs.seen[SERVER].time_ns - last.sent_ns) / 1e9 + 0.6 + m.rng.random() / 5)


@mutant("rfc9001-4.9.2-server-handshake-late", SERVER, along=LATE)
def _server_handshake(m: Mutation) -> None:
    done = m.frames(F.HANDSHAKE_DONE)
    m.need(done, "no HANDSHAKE_DONE")
    last = m.packets(Kind.HANDSHAKE)[-1][0]
    _again(m, Kind.HANDSHAKE, (done[-1][0].sent_ns - last.sent_ns) / 1e9 + 0.002)


@mutant("rfc9001-4.9.2-client-handshake-late", CLIENT, along=LATE)
def _client_handshake(m: Mutation) -> None:
    last = m.packets(Kind.HANDSHAKE)[-1][0]
    m.need(m.closed_ns > m.confirmed_ns + 800_000_000, "it is closed by then")
    _again(m, Kind.HANDSHAKE, (m.confirmed_ns - last.sent_ns) / 1e9 + 0.6 + m.rng.random() / 5)


@mutant("rfc9000-19.20-handshake-done-early", SERVER)
def _done_early(m: Mutation) -> None:
    finished = next((each[0] for each in m.packets(Kind.HANDSHAKE, sender=CLIENT) if each[0].arrived), None)
    m.need(finished is not None, "no Handshake packet")
    assert finished is not None
    early = [each for each in m.packets(Kind.ONE_RTT) if each[0].sent_ns < finished.sent_ns and each[0].arrived]
    m.add_to(m.pick(early, "no 1-RTT packet as early"), frame(F.HANDSHAKE_DONE))


@mutant("rfc9001-5.7-client-1rtt-early", CLIENT)
def _client_early(m: Mutation) -> None:
    first = m.packets(Kind.ONE_RTT)[0]
    answer = m.packets(Kind.HANDSHAKE, sender=SERVER)[0][0]
    m.need(first[0].arrived and answer.arrived, "it was lost")
    twin = edits.copied(first[1], frame(F.PING))
    wait = (answer.seen[CLIENT].time_ns - first[0].sent_ns) / 1e9 - 0.002
    edits.renumber(m.recording, m.connection, CLIENT, "application", twin.number, first[0].seen[SERVER].time_ns)
    for record in m.recording.insert(first[0], [twin], after_s=wait).seen.values():
        record.mark(0)  # because the server's counts don't include it


@mutant("rfc9000-8.1-amplification", SERVER)
def _amplification(m: Mutation) -> None:
    datagram, packet = m.packets(Kind.INITIAL)[0]
    m.need(datagram.arrived, "it was lost")
    m.need(not any(each.token for _, each in m.packets(Kind.INITIAL, sender=CLIENT)), "a token proves the address")
    sent: Sent = (datagram, packet)
    for _ in range(5):
        sent = edits.insert_packet(m.recording, *sent, frame(F.PING), after_s=0.00001, size=1200)


@mutant("rfc9002-6.2.1-backoff", CLIENT, cases=("longrtt",))
def _backoff(m: Mutation) -> None:
    """Send probes at equal distances, and more probes than the timer allows."""
    arrivals = [each.seen[CLIENT].time_ns for each in m.recording.datagrams if each.sender == SERVER and each.arrived]
    before = [each for each in m.packets(Kind.INITIAL) if each[0].sent_ns < min(arrivals)]
    m.need(before, "no Initial packet before an answer")
    first, packet = before[0]
    gap = (min(arrivals) - before[-1][0].sent_ns) / 1e9 / 4
    m.need(gap > 0.11 and before[-1][0].arrived, "too little time to probe")
    sent: Sent = before[-1]
    for _ in range(3):
        sent = edits.insert_packet(m.recording, *sent, *packet.frames, after_s=gap)
    del first
