"""The requests of HTTP/0.9 over QUIC, each with its answer, from the heads of streams."""

from runner.decode.schema import CLIENT, SERVER
from runner.model.protocol import HTTP09
from runner.trace.heads import StreamHead, are_kept, heads
from runner.trace.nouns import Place, Request
from runner.trace.scope import Scope
from runner.trace.vantage import Vantage

_METHOD = b"GET "


def requests(scope: Scope) -> tuple[Request, ...] | None:
    """The requests of a connection, ordered by stream ID. None when the connection isn't HTTP/0.9, or the tables are
    too old. Requests and answers are read from the capture at the client; without it, from the capture at the
    server."""
    if scope.row.value("alpn") != HTTP09 or not are_kept(scope):
        return None
    sender_side, receiver_side = scope.best(CLIENT), scope.recording.far(SERVER) or scope.best(SERVER)
    answers = {head.stream_id: head for head in heads(scope, receiver_side, SERVER)}
    return tuple(
        _request(scope, (sender_side, head), (receiver_side, answers.get(head.stream_id)))
        for head in heads(scope, sender_side, CLIENT)
        if head.stream_id % 4 == 0
    )


def _request(scope: Scope, request: tuple[Vantage, StreamHead], answer: tuple[Vantage, StreamHead | None]) -> Request:
    sender_side, head = request
    answered, body = answer
    line = head.data.split(b"\r\n")[0].removeprefix(_METHOD).strip()
    return Request(
        stream_id=head.stream_id,
        name=line.decode(errors="replace").rsplit("/", 1)[-1],
        place=_place(scope, sender_side, head, 0),
        answer=b"" if body is None else body.data,
        answer_end=None if body is None else _place(scope, answered, body, -1),
    )


def _place(scope: Scope, vantage: Vantage, head: StreamHead, frame: int) -> Place | None:
    """The place of a frame of a stream. `frame`: the index of the frame in the order of offsets."""
    return scope.place(vantage, int(vantage.stream_frames["packet"][head.rows[frame]]))
