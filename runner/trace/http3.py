"""The frames of HTTP/3 at the beginning of each stream (RFC 9114 §6, §7), from the bytes that the tables keep."""

from runner.decode.frames import varint
from runner.decode.schema import CLIENT, SERVER
from runner.trace.heads import are_kept, heads
from runner.trace.nouns import Http3Stream
from runner.trace.scope import ROLES, Scope

CONTROL = 0x00  # type of a unidirectional stream, RFC 9114 §6.2.1
_ALPN = "h3"
_UNIDIRECTIONAL = 0x02  # bit of a stream ID, RFC 9000 §2.1
_BY_SERVER = 0x01


def streams(scope: Scope) -> tuple[Http3Stream, ...] | None:
    """The HTTP/3 streams of a connection, by sender and ID; None when the connection isn't HTTP/3, or the tables are
    too old. Streams without a complete type are left out."""
    if scope.row.value("alpn") != _ALPN or not are_kept(scope):
        return None
    return tuple(stream for sender in (CLIENT, SERVER) for stream in _sent(scope, sender))


def _sent(scope: Scope, sender: int) -> list[Http3Stream]:
    vantage = scope.best(sender)
    streams = []
    for stream in heads(scope, vantage, sender):
        stream_id, head = stream.stream_id, stream.data
        if stream_id & _UNIDIRECTIONAL and (sender == SERVER) != bool(stream_id & _BY_SERVER):
            continue  # the sender must not use this stream; another rule reports this
        if head:
            kind, frames_at = varint(head, 0) if stream_id & _UNIDIRECTIONAL else (None, 0)
            if frames_at > len(head):
                continue  # the type of the stream is cut off
            streams.append(
                Http3Stream(
                    sender=ROLES[sender],
                    stream_id=stream_id,
                    type=kind,
                    frames=_frame_types(head, frames_at) if kind in (None, CONTROL) else (),
                    place=scope.place(vantage, int(vantage.stream_frames["packet"][stream.rows[0]])),
                )
            )
    return streams


def _frame_types(head: bytes, position: int) -> tuple[int, ...]:
    """Types of the frames in `head` whose type and length are complete."""
    types = []
    while position < len(head):
        try:
            kind, position = varint(head, position)
            length, position = varint(head, position)
        except IndexError:
            break
        if position > len(head):
            break
        types.append(kind)
        position += length
    return tuple(types)
