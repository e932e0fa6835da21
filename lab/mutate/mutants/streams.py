"""Mutants of streams and flow control (RFC 9000 §2 to §4)."""

from lab.mutate.frames import F, Frame, frame, stream
from lab.mutate.mutation import Mutation, Sent, Stream
from lab.mutate.packets import Kind
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.registry import mutant
from lab.mutate.tls import P

REPEATED = {"rfc9000-3.3-stream-after-reset": "the link lost data of the stream, which is sent again later"}


def _done(m: Mutation) -> Stream:
    """A stream of the role that has ended."""
    return m.pick([each for each in m.streams().values() if each.finished], "no stream has ended")


def _after_end(m: Mutation, ended: Stream) -> Sent:
    """A packet after which the stream's end is known to have been sent."""
    end = next(datagram.sent_ns for datagram, _, each in ended.sent if each.fin)
    return m.pick([each for each in m.hosts() if each[0].sent_ns >= end], "nothing is sent after the end")


@mutant("rfc9000-4.5-final-size-changed", along={"rfc9000-4.5-data-beyond-final-size": "a longer stream has more data"})
def _final_size(m: Mutation) -> None:
    ended = _done(m)
    m.send_after(_after_end(m, ended), stream(ended.id, ended.end + m.rng.randrange(1, 9), b"", fin=True))


@mutant("rfc9000-4.5-final-size-changed", name="by-reset", along=REPEATED)
def _final_reset(m: Mutation) -> None:
    ended = _done(m)
    m.need(ended.end > 1, "the stream is empty")
    size = ended.end + m.rng.randrange(1, 9)
    m.send_after(_after_end(m, ended), frame(F.RESET_STREAM, stream=ended.id, code=0, final=size))


@mutant("rfc9000-4.5-data-beyond-final-size")
def _beyond(m: Mutation) -> None:
    ended = _done(m)
    m.send_after(_after_end(m, ended), stream(ended.id, ended.end, m.rng.randbytes(5)))


def _reset_then(m: Mutation, make: Frame, ended: Stream) -> None:
    reset = frame(F.RESET_STREAM, stream=ended.id, code=0, final=ended.end)
    sent = m.send_after(_after_end(m, ended), reset)
    m.send_after(sent, make)


@mutant("rfc9000-3.3-stream-after-reset")
def _after_reset(m: Mutation) -> None:
    ended = _done(m)
    data = ended.sent[0][2]
    _reset_then(m, stream(ended.id, data.offset, data.data[:20]), ended)


@mutant("rfc9000-3.3-blocked-after-reset", along=REPEATED)
def _blocked_after_reset(m: Mutation) -> None:
    ended = _done(m)
    _reset_then(m, frame(F.STREAM_DATA_BLOCKED, stream=ended.id, limit=ended.end), ended)


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


@mutant("rfc9000-4.6-too-many-streams", SERVER, name="unidirectional")
def _too_many_uni(m: Mutation) -> None:
    limit = m.parameter(P.MAX_STREAMS_UNI, CLIENT)
    granted = [each["limit"] for _, _, each in m.frames(F.MAX_STREAMS_UNI, sender=CLIENT)]
    m.send(stream(4 * max([limit, *granted]) + 3, 0, b"\x21"))


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


@mutant(
    "rfc9000-4.1-stream-limit",
    name="by-reset",
    along={"rfc9000-4.1-connection-limit": "the limit of the connection may be as low"},
)
def _stream_limit_reset(m: Mutation) -> None:
    _reset_beyond(m, m.parameter(P.MAX_STREAM_DATA_UNI, m.peer))


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


LOWER = "the earlier connection used more itself"


@mutant(
    "rfc9000-7.4.1-remembered-limits",
    CLIENT,
    cases=("zerortt",),
    name="streams",
    along={"rfc9000-4.6-too-many-streams": LOWER},
)
def _remembered_streams(m: Mutation) -> None:
    early = {each["stream"] for _, packet, each in m.frames(F.STREAM) if packet.kind is Kind.ZERO_RTT}
    _remember(m, P.MAX_STREAMS_BIDI, len(early) - 1)


@mutant(
    "rfc9000-7.4.1-remembered-limits",
    CLIENT,
    cases=("zerortt",),
    name="data",
    along={"rfc9000-4.1-stream-limit": LOWER},
)
def _remembered_data(m: Mutation) -> None:
    early = [each.end for _, packet, each in m.frames(F.STREAM) if packet.kind is Kind.ZERO_RTT]
    _remember(m, P.MAX_STREAM_DATA_BIDI_REMOTE, max(early) - 1)


def _remember(m: Mutation, parameter: int, limit: int) -> None:
    """Give the earlier connections a lower limit."""
    earlier = [each for each in m.recording.connections if each is not m.connection]
    m.need(earlier and limit >= 0, "no earlier connection")
    for connection in earlier:
        Mutation(m.recording, connection, SERVER, m.rng).set_parameter(parameter, limit)
