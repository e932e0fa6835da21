"""Mutants of single frames: a wrong type in a packet, a wrong role, forbidden values (RFC 9000 §12, §19)."""

from collections.abc import Callable

from lab.mutate.frames import F, Frame, ack, frame, new_connection_id, stream, unknown
from lab.mutate.mutation import Mutation
from lab.mutate.packets import Kind
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.registry import mutant
from lab.mutate.tls import P
from lab.mutate.wire import varint

Make = Callable[[Mutation], Frame]
HIGH = (1 << 60) + 1


def _send(rule: str, make: Make, *roles: str, name: str, cases: tuple[str, ...] = ()) -> None:
    """Mutants that send one more 1-RTT packet with one frame."""

    def change(m: Mutation) -> None:
        m.send(make(m))

    mutant(rule, *roles, cases=cases, name=name)(change)


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


_send(
    "rfc9000-19.4-reset-receive-only",
    lambda m: frame(F.RESET_STREAM, stream=peer_uni(m), code=0, final=0),
    name="reset",
)
_send("rfc9000-19.5-stop-sending-send-only", lambda m: frame(F.STOP_SENDING, stream=own_uni(m), code=0), name="stop")
_send(
    "rfc9000-19.5-stop-sending-not-created",
    lambda m: frame(F.STOP_SENDING, stream=peer_bidi(m), code=0),
    name="stop-own",
)
_send("rfc9000-19.6-crypto-offset-overflow", lambda _: frame(F.CRYPTO, b"ab", offset=(1 << 62) - 1), name="crypto")
_send("rfc9000-19.7-token-from-client", lambda m: frame(F.NEW_TOKEN, m.rng.randbytes(16)), CLIENT, name="token")
_send("rfc9000-19.7-token-empty", lambda _: frame(F.NEW_TOKEN), SERVER, name="token")
_send("rfc9000-19.8-stream-receive-only", lambda m: stream(peer_uni(m), 0, b"a"), name="stream")
_send("rfc9000-19.8-stream-not-created", lambda m: stream(peer_bidi(m), 0, b"a"), name="stream")
_send(
    "rfc9000-19.10-credit-send-only",
    lambda m: frame(F.MAX_STREAM_DATA, stream=own_uni(m), limit=1 << 20),
    name="credit",
)
_send(
    "rfc9000-19.10-credit-not-created",
    lambda m: frame(F.MAX_STREAM_DATA, stream=peer_bidi(m), limit=1 << 20),
    name="credit",
)
_send("rfc9000-19.11-max-streams-high", lambda _: frame(F.MAX_STREAMS_BIDI, limit=HIGH), name="bidirectional")
_send("rfc9000-19.11-max-streams-high", lambda _: frame(F.MAX_STREAMS_UNI, limit=HIGH), name="unidirectional")
_send(
    "rfc9000-19.13-blocked-receive-only",
    lambda m: frame(F.STREAM_DATA_BLOCKED, stream=peer_uni(m), limit=0),
    name="blocked",
)
_send("rfc9000-19.14-streams-blocked-high", lambda _: frame(F.STREAMS_BLOCKED_BIDI, limit=HIGH), name="bidirectional")
_send("rfc9000-19.14-streams-blocked-high", lambda _: frame(F.STREAMS_BLOCKED_UNI, limit=HIGH), name="unidirectional")
_send("rfc9000-19.20-handshake-done-from-client", lambda _: frame(F.HANDSHAKE_DONE), CLIENT, name="done")
_send("rfc9000-12.4-unknown-frame", lambda m: unknown(varint(m.rng.randrange(0x4000, 0x8000))), name="type")
_send("rfc9000-12.4-malformed-frame", lambda _: unknown(varint(F.MAX_DATA) + b"\xc0\0"), name="cut-off")
_send("rfc9000-12.4-long-frame-type", lambda _: unknown(varint(F.PING, 2)), name="ping")


@mutant("rfc9000-8.2.2-response-unasked", name="response-padded")
def _response(m: Mutation) -> None:
    m.send(frame(F.PATH_RESPONSE, m.rng.randbytes(8)), size=1200)


@mutant(
    "rfc9000-19.8-stream-offset-overflow",
    along={
        "rfc9000-4.1-stream-limit": "no limit is that high",
        "rfc9000-4.1-connection-limit": "no limit is that high",
        "rfc9000-4.5-data-beyond-final-size": "the stream had ended",
    },
)
def _offset_overflow(m: Mutation) -> None:
    number = m.pick(sorted(m.streams()))
    m.send(stream(number, (1 << 62) - 1, b"ab"))


def _issue(m: Mutation, *, cid: bytes = b"", sequence: int | None = None, retire: int = 0) -> None:
    cids = m.connection.cids[m.role]
    m.need(cids and cids[0], "it chose an empty connection ID")
    issued = [each for _, _, each in m.frames(F.NEW_CONNECTION_ID)]
    following = max((each["sequence"] for each in issued), default=0) + 1
    number = following if sequence is None else sequence
    m.set_parameter(P.CID_LIMIT, 60, m.peer)  # so that one more connection ID is allowed
    token = m.rng.randbytes(16)
    m.send(new_connection_id(number, cid or m.rng.randbytes(8), retire=retire, token=token))


@mutant("rfc9000-19.15-id-length")
def _id_length(m: Mutation) -> None:
    _issue(m, cid=m.rng.randbytes(21))


@mutant("rfc9000-19.15-retire-prior-to-high")
def _retire_high(m: Mutation) -> None:
    _issue(m, retire=m.rng.randrange(100, 200))


@mutant("rfc9000-5.1.1-sequence-skipped")
def _skipped(m: Mutation) -> None:
    _issue(m, sequence=m.rng.randrange(50, 90))


@mutant("rfc9000-19.15-sequence-reused")
def _sequence_reused(m: Mutation) -> None:
    issued = m.frames(F.NEW_CONNECTION_ID)
    _issue(m, sequence=m.pick(issued)[2]["sequence"] if issued else 0)


@mutant("rfc9000-19.15-id-reused")
def _id_reused(m: Mutation) -> None:
    issued = m.frames(F.NEW_CONNECTION_ID)
    _issue(m, cid=m.pick(issued)[2].data[:-16] if issued else m.connection.cids[m.role][0])


@mutant("rfc9000-10.3.2-reset-token-repeated")
def _token_repeated(m: Mutation) -> None:
    old = m.pick(m.frames(F.NEW_CONNECTION_ID))[2]
    m.set_parameter(P.CID_LIMIT, 60, m.peer)
    following = max(each["sequence"] for _, _, each in m.frames(F.NEW_CONNECTION_ID)) + 1
    m.send(new_connection_id(following, m.rng.randbytes(8), token=old.data[-16:]))


@mutant("rfc9000-5.1.1-too-many-ids")
def _too_many(m: Mutation) -> None:
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


@mutant("rfc9000-19.15-new-id-beside-empty", CLIENT)
def _beside_empty(m: Mutation) -> None:
    cids = m.connection.cids[m.role]
    m.need(cids and not cids[0], "its connection ID is not empty")
    m.send(new_connection_id(1, m.rng.randbytes(8), token=m.rng.randbytes(16)))


@mutant("rfc9000-19.16-retire-unissued", name="retire")
def _retire_unissued(m: Mutation) -> None:
    cids = m.connection.cids[m.peer]
    m.need(cids and cids[0], "the peer's connection ID is empty")
    m.send(frame(F.RETIRE_CONNECTION_ID, sequence=m.rng.randrange(900, 9000)))


@mutant("rfc9000-19.16-retire-empty", SERVER)
def _retire_empty(m: Mutation) -> None:
    cids = m.connection.cids[m.peer]
    m.need(cids and not cids[0], "the peer's connection ID is not empty")
    m.send(frame(F.RETIRE_CONNECTION_ID, sequence=0))


@mutant("rfc9000-19.16-retire-own-packet", along={"rfc9000-5.1.2-retired-id-used": "later packets bear it, too"})
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


def _forbidden(kind: Kind) -> Make:
    def make(m: Mutation) -> Frame:
        if kind is Kind.ZERO_RTT:
            choices = [
                frame(F.PATH_RESPONSE, m.rng.randbytes(8)),
                frame(F.RETIRE_CONNECTION_ID, sequence=0),
                ack((0, 0)),
            ]
            return m.rng.choice(choices)
        limit = m.parameter(P.MAX_DATA, m.role)
        streams = m.parameter(P.MAX_STREAMS_BIDI, m.role)
        choices = [frame(F.MAX_DATA, limit=limit), frame(F.MAX_STREAMS_BIDI, limit=streams)]
        return m.rng.choice([*choices, frame(F.DATA_BLOCKED, limit=m.parameter(P.MAX_DATA, m.peer))])

    return make


def _put(
    rule: str,
    kind: Kind,
    make: Make,
    *roles: str,
    name: str,
    cases: tuple[str, ...] = (),
    along: dict[str, str] | None = None,
) -> None:
    def change(m: Mutation) -> None:
        m.add(kind, make(m))

    mutant(rule, *roles, cases=cases, name=name, along=along)(change)


_put("rfc9000-12.5-frame-in-initial", Kind.INITIAL, _forbidden(Kind.INITIAL), name="limit")
_put("rfc9000-12.5-frame-in-handshake", Kind.HANDSHAKE, _forbidden(Kind.HANDSHAKE), name="limit")
_put(
    "rfc9000-12.5-frame-in-handshake",
    Kind.HANDSHAKE,
    lambda _: frame(F.HANDSHAKE_DONE),
    SERVER,
    name="done",
    along={"rfc9000-19.20-handshake-done-early": "the handshake goes on"},
)
_put("rfc9000-12.5-frame-in-handshake", Kind.HANDSHAKE, lambda _: stream(0, 0, b"GET /"), CLIENT, name="stream")
_put(
    "rfc9000-12.5-frame-in-early-data",
    Kind.ZERO_RTT,
    lambda _: frame(F.RETIRE_CONNECTION_ID, sequence=0),
    CLIENT,
    name="retire",
    cases=("zerortt",),
    along={"rfc9000-5.1.2-retired-id-used": "the client goes on with that connection ID"},
)
_put(
    "rfc9000-12.5-frame-in-early-data",
    Kind.ZERO_RTT,
    lambda _: frame(F.CRYPTO, b"abcd", offset=0),
    CLIENT,
    name="crypto",
    cases=("zerortt",),
)
_put(
    "rfc9000-10.2.3-application-close-early", Kind.HANDSHAKE, lambda _: frame(F.CLOSE_APPLICATION, code=0), name="close"
)
_put(
    "rfc9000-10.2.3-application-close-early", Kind.INITIAL, lambda _: frame(F.CLOSE_APPLICATION, code=0), name="initial"
)
_put(
    "rfc9000-10.2.3-reason-not-cleared",
    Kind.HANDSHAKE,
    lambda _: frame(F.CLOSE, b"why not", code=0x0C, frame=0),
    name="close",
)


@mutant("rfc9221-3-not-offered")
def _datagram(m: Mutation) -> None:
    m.set_parameter(P.MAX_DATAGRAM, None, m.peer)
    m.send(frame(F.DATAGRAM_LENGTH, m.rng.randbytes(20)))


@mutant("rfc9221-3-too-large")
def _large_datagram(m: Mutation) -> None:
    m.set_parameter(P.MAX_DATAGRAM, 100, m.peer)
    m.send(frame(F.DATAGRAM_LENGTH, m.rng.randbytes(m.rng.randrange(101, 400))))


@mutant("rfc9221-3-too-large", name="length-field")
def _length_field(m: Mutation) -> None:
    """The data fits, but not with the type and the two bytes of the length."""
    m.set_parameter(P.MAX_DATAGRAM, 100, m.peer)
    m.send(frame(F.DATAGRAM_LENGTH, m.rng.randbytes(98)))
