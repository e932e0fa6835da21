"""The frames of HTTP/3 at the beginning of each stream (RFC 9114 §6, §7), from the bytes that the tables keep."""

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Ints
from runner.trace.nouns import Http3Stream
from runner.trace.scope import ROLES, Scope
from runner.trace.vantage import Vantage

CONTROL = 0x00  # type of a unidirectional stream, RFC 9114 §6.2.1
_ALPN = "h3"
_HEADS_KEPT = 5  # version of the decoder since which tables keep the heads of streams
_UNIDIRECTIONAL = 0x02  # bit of a stream ID, RFC 9000 §2.1
_BY_SERVER = 0x01
_MASKS = {2: (1 << 14) - 1, 4: (1 << 30) - 1, 8: (1 << 62) - 1}


def streams(scope: Scope) -> tuple[Http3Stream, ...] | None:
    """What both sides sent on the streams of a connection, by sender and ID; None when it isn't HTTP/3's, or the
    tables are too old. Streams whose first byte nobody could read are left out."""
    if scope.row.value("alpn") != _ALPN:
        return None
    if any(vantage.trace.meta.decoder_version < _HEADS_KEPT for vantage in scope.recording.vantages):
        return None
    return tuple(stream for sender in (CLIENT, SERVER) for stream in _sent(scope, sender))


def _sent(scope: Scope, sender: int) -> list[Http3Stream]:
    vantage = scope.best(sender)
    frames = vantage.stream_frames
    rows = np.flatnonzero(scope.mine(frames, sender))
    rows = rows[np.lexsort((frames["offset"][rows], frames["stream_id"][rows]))]
    if not len(rows):
        return []
    ids, first = np.unique(frames["stream_id"][rows], return_index=True)
    found = []
    for stream_id, of_stream in zip(ids.tolist(), np.split(rows, first[1:]), strict=True):
        head = _head(vantage, of_stream)
        if stream_id & _UNIDIRECTIONAL and (sender == SERVER) != bool(stream_id & _BY_SERVER):
            continue  # not its to send on: rules of every connection have that
        if head:
            kind, frames_at = _varint(head, 0) if stream_id & _UNIDIRECTIONAL else (None, 0)
            found.append(
                Http3Stream(
                    sender=ROLES[sender],
                    stream_id=stream_id,
                    type=kind,
                    frames=_frame_types(head, frames_at) if kind in (None, CONTROL) else (),
                    place=scope.place(vantage, int(frames["packet"][of_stream[0]])),
                )
            )
    return found


def _head(vantage: Vantage, rows: Ints) -> bytes:
    """The bytes from the beginning of a stream, without a gap; `rows` of its frames by offset."""
    head = b""
    for row in rows:
        offset = int(vantage.stream_frames["offset"][row])
        if offset > len(head):
            break
        data = vantage.stream_frames.cell("data", int(row))
        if data is None:
            break
        head += data[len(head) - offset :]
    return head


def _frame_types(head: bytes, position: int) -> tuple[int, ...]:
    """Types of the frames whose type and length are in `head`."""
    types = []
    while position < len(head):
        kind, position = _varint(head, position)
        length, position = _varint(head, position)
        if kind is None or length is None:
            break
        types.append(kind)
        position += length
    return tuple(types)


def _varint(data: bytes, position: int) -> tuple[int | None, int]:
    """The integer at `position` and the position after it (RFC 9000 §16); None when it is cut off."""
    if position >= len(data):
        return None, position
    size = 1 << (data[position] >> 6)
    if position + size > len(data):
        return None, len(data)
    value = int.from_bytes(data[position : position + size])
    return (value & _MASKS[size] if size > 1 else value), position + size
