"""The beginnings of streams, from the bytes that the tables keep."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runner.trace.intervals import Ints
from runner.trace.scope import Scope
from runner.trace.vantage import Vantage

_KEPT = 5  # first version of the decoder whose tables contain the heads of streams


@dataclass(frozen=True, kw_only=True)
class StreamHead:
    """The first bytes that one endpoint sent on a stream, at one vantage point."""

    stream_id: int
    data: bytes
    """The bytes up to the first gap, at most as many as the tables keep."""
    rows: Ints
    """The rows of the stream's STREAM frames, ordered by offset."""


def are_kept(scope: Scope) -> bool:
    """Whether the tables of all captures contain the heads of streams."""
    return all(vantage.trace.meta.decoder_version >= _KEPT for vantage in scope.recording.vantages)


def heads(scope: Scope, vantage: Vantage, sender: int) -> Iterator[StreamHead]:
    """The heads of the streams on which `sender` sent data, ordered by ID."""
    frames = vantage.stream_frames
    rows = np.flatnonzero(scope.mine(frames, sender))
    rows = rows[np.lexsort((frames["offset"][rows], frames["stream_id"][rows]))]
    if not len(rows):
        return
    ids, first = np.unique(frames["stream_id"][rows], return_index=True)
    for stream_id, of_stream in zip(ids.tolist(), np.split(rows, first[1:]), strict=True):
        yield StreamHead(stream_id=stream_id, data=first_bytes(vantage, of_stream), rows=of_stream)


def first_bytes(vantage: Vantage, rows: Ints) -> bytes:
    """The bytes from the beginning of a stream up to the first gap, at most as many as the tables keep. `rows`: the
    stream's frames, ordered by offset."""
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
