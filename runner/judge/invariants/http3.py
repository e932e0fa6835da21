"""HTTP/3 streams and frames (RFC 9114). The decoder keeps only the first bytes of each stream, so only these bytes are
checked."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from runner.decode.frames import varint
from runner.decode.schema import SERVER
from runner.judge.invariants.packets import shown
from runner.judge.side import Broken, Side
from runner.trace.heads import first_bytes
from runner.trace.intervals import Ints

_DATA, _HEADERS, _CANCEL_PUSH, _SETTINGS, _PUSH_PROMISE, _GOAWAY, _MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
_FRAMES = {
    _DATA: "DATA",
    _HEADERS: "HEADERS",
    _CANCEL_PUSH: "CANCEL_PUSH",
    _SETTINGS: "SETTINGS",
    _PUSH_PROMISE: "PUSH_PROMISE",
    _GOAWAY: "GOAWAY",
    _MAX_PUSH_ID: "MAX_PUSH_ID",
}
_HTTP2_FRAMES, _HTTP2_SETTINGS = (0x02, 0x06, 0x08, 0x09), (0x00, 0x02, 0x03, 0x04, 0x05)
_CONTROL, _PUSH = 0, 1
_UNIDIRECTIONAL_NEEDED = 3  # RFC 9114 §6.2


@dataclass(kw_only=True)
class _Stream:
    """One stream as an endpoint sent it."""

    number: int
    """Stream ID."""
    packet: int
    """Row of the first packet with data of the stream."""
    kind: int | None = None
    """Type of a unidirectional stream; None for a request stream."""
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    """Type and payload of each frame in the part of the stream that the tables keep."""
    cut_off: bool = False
    """True when the stream ended within a frame."""
    ended: bool = False
    """True when a FIN or RESET_STREAM was sent."""


def _streams(side: Side) -> list[_Stream]:
    columns = side.capture.streams
    rows = side.stream_frames()
    streams = []
    ids = columns["stream_id"][rows]
    resets = set(side.capture.frames["stream_id"][side.frames("reset_stream")].tolist())
    for number in np.unique(ids).tolist():
        mine = rows[ids == number]
        stream = _Stream(number=number, packet=int(columns["packet"][mine[0]]))
        fins = mine[columns["fin"][mine] == 1]
        stream.ended = len(fins) > 0 or number in resets
        final = int(columns["offset"][fins[0]] + columns["length"][fins[0]]) if len(fins) else None
        _parse(stream, _head(side, mine), final)
        streams.append(stream)
    return streams


def _head(side: Side, rows: Ints) -> bytes:
    """The stored data of a stream, from its beginning up to the first gap."""
    return first_bytes(side.capture.vantage, rows[np.argsort(side.capture.streams["offset"][rows], kind="stable")])


def _parse(stream: _Stream, head: bytes, final: int | None) -> None:
    position = 0
    try:
        if stream.number & 2:
            stream.kind, position = varint(head, 0)
            if stream.kind not in (_CONTROL,) or position > len(head):
                return
        while position < len(head):
            kind, position = varint(head, position)
            length, position = varint(head, position)
            if position > len(head):
                stream.cut_off = final == len(head)
                return
            stream.frames.append((kind, head[position : position + length]))
            position += length
            if final is not None and position > final:
                stream.cut_off = True
                return
    except IndexError:
        stream.cut_off = final is not None and final == len(head) and position != 0


def http3(side: Side) -> Iterator[Broken]:
    """An endpoint follows the rules of HTTP/3."""
    if side.scope.row.value("alpn") != "h3" or not side.own_read:
        return
    streams = _streams(side)
    control = [stream for stream in streams if stream.kind == _CONTROL and stream.number & 1 == side.sender]
    yield from _stream_types(side, streams, control)
    for stream in control[:1]:
        yield from _control(side, stream)
    for stream in streams:
        if stream.cut_off:
            yield _broken(stream, "7.1-frame-cut-off", f"stream {stream.number} ends within a frame")
        if not stream.number & 2:
            yield from _request(side, stream)


def _broken(stream: _Stream, rule: str, actual: str) -> Broken:
    return Broken(rule=f"rfc9114-{rule}", actual=actual, packets=(stream.packet,))


def _stream_types(side: Side, streams: list[_Stream], control: list[_Stream]) -> Iterator[Broken]:
    opened = [stream for stream in streams if stream.number & 1 == side.sender]
    if side.whole and not control and any(not stream.number & 2 for stream in streams):
        yield _broken(streams[0], "6.2.1-no-control-stream", "requests or responses, but no control stream")
    if len(control) > 1:
        yield _broken(control[1], "6.2.1-two-control-streams", f"{len(control)} control streams")
    if side.sender == SERVER:
        for stream in opened:
            if not stream.number & 2:
                yield _broken(stream, "6.1-server-bidirectional-stream", f"the server opens stream {stream.number}")
                break
    else:
        for stream in opened:
            if stream.kind == _PUSH:
                yield _broken(stream, "6.2.2-push-stream-from-client", f"the client opens push stream {stream.number}")
    granted = side.parameters.get("initial_max_streams_uni", 0)
    hello = side.message(1 if side.is_client else 8, side.sender)
    if side.parameters and isinstance(granted, int) and granted < _UNIDIRECTIONAL_NEEDED and hello:
        yield Broken(
            rule="rfc9114-6.2-too-few-streams-granted",
            actual=f"initial_max_streams_uni is {granted}",
            packets=(int(hello["packet"]),),
        )
    pushed = [stream for stream in opened if stream.kind == _PUSH]
    if side.sender == SERVER and pushed:
        yield from _pushes(side, pushed[0])
    stopped = side.frames("stop_sending")
    frames = side.capture.frames
    theirs = _control_of_peer(side)
    wrong = stopped[np.isin(frames["stream_id"][stopped], theirs)]
    if len(wrong):
        yield Broken(
            rule="rfc9114-6.2.1-control-stream-stopped",
            actual=f"STOP_SENDING for the control stream {theirs[0]}",
            packets=shown(frames["packet"][wrong]),
        )


def _control_of_peer(side: Side) -> list[int]:
    columns = side.capture.streams
    rows = side.stream_frames(got=True)
    first = rows[(columns["offset"][rows] == 0) & (columns["stream_id"][rows] & 3 == 2 | 1 - side.sender)]
    return [int(columns["stream_id"][row]) for row in first if (columns.cell("data", int(row)) or b"\xff")[:1] == b"\0"]


def _pushes(side: Side, stream: _Stream) -> Iterator[Broken]:
    allowed = False
    columns = side.capture.streams
    rows = side.stream_frames(got=True)
    for number in _control_of_peer(side):
        other = _Stream(number=number, packet=0)
        _parse(other, _head(side, rows[columns["stream_id"][rows] == number]), None)
        allowed = allowed or any(kind == _MAX_PUSH_ID for kind, _ in other.frames)
    if not allowed and side.sound:
        yield _broken(
            stream, "4.6-push-not-allowed", f"push stream {stream.number}, but the client sent no MAX_PUSH_ID"
        )


def _control(side: Side, stream: _Stream) -> Iterator[Broken]:
    kinds = [kind for kind, _ in stream.frames]
    if kinds and kinds[0] != _SETTINGS:
        yield _broken(stream, "6.2.1-first-frame-not-settings", f"the first frame has type 0x{kinds[0]:x}")
    if kinds.count(_SETTINGS) > 1:
        yield _broken(stream, "7.2.4-settings-twice", f"SETTINGS is sent {kinds.count(_SETTINGS)} times")
    if stream.ended:
        yield _broken(stream, "6.2.1-control-stream-closed", f"control stream {stream.number} is closed")
    for kind, rule in (
        (_DATA, "7.2.1-data-on-control"),
        (_HEADERS, "7.2.2-headers-on-control"),
        *(((_PUSH_PROMISE, "7.2.5-push-promise-on-control"),) if not side.is_client else ()),
    ):
        if kind in kinds:
            yield _broken(stream, rule, f"{_FRAMES[kind]} on stream {stream.number}")
    if side.is_client and _PUSH_PROMISE in kinds:
        yield _broken(stream, "7.2.5-push-promise-from-client", f"PUSH_PROMISE on stream {stream.number}")
    yield from _http2_frames(stream, kinds)
    for kind, payload in stream.frames:
        if kind == _SETTINGS:
            yield from _settings(stream, payload)
    goaways = _identifiers(stream, _GOAWAY)
    if any(later > earlier for earlier, later in pairwise(goaways)):
        yield _broken(stream, "5.2-goaway-increases", f"the identifiers are {goaways}")
    if not side.is_client and any(identifier & 3 for identifier in goaways):
        yield _broken(stream, "7.2.6-goaway-id-wrong", f"the identifiers are {goaways}")
    pushes = _identifiers(stream, _MAX_PUSH_ID)
    if pushes and not side.is_client:
        yield _broken(stream, "7.2.7-max-push-id-from-server", f"MAX_PUSH_ID {pushes[0]}")
    elif any(later < earlier for earlier, later in pairwise(pushes)):
        yield _broken(stream, "7.2.7-max-push-id-decreases", f"the values are {pushes}")


def _identifiers(stream: _Stream, kind: int) -> list[int]:
    return [varint(payload, 0)[0] for each, payload in stream.frames if each == kind and payload]


def _http2_frames(stream: _Stream, kinds: list[int]) -> Iterator[Broken]:
    wrong = [kind for kind in kinds if kind in _HTTP2_FRAMES]
    if wrong:
        yield _broken(stream, "7.2.8-http2-frame", f"a frame of type 0x{wrong[0]:x} on stream {stream.number}")


def _settings(stream: _Stream, payload: bytes) -> Iterator[Broken]:
    names, position = list[int](), 0
    try:
        while position < len(payload):
            name, position = varint(payload, position)
            _, position = varint(payload, position)
            names.append(name)
    except IndexError:
        return
    if len(set(names)) < len(names):
        yield _broken(stream, "7.2.4-setting-twice", f"the identifiers of the settings are {names}")
    wrong = [name for name in names if name in _HTTP2_SETTINGS]
    if wrong:
        yield _broken(stream, "7.2.4.1-http2-setting", f"the HTTP/2 setting 0x{wrong[0]:x}")


def _request(side: Side, stream: _Stream) -> Iterator[Broken]:
    kinds = [kind for kind, _ in stream.frames]
    content = [kind for kind in kinds if kind in (_DATA, _HEADERS)]
    if content and content[0] == _DATA:
        yield _broken(stream, "4.1-data-before-headers", f"stream {stream.number} begins with DATA")
    elif _DATA in content:
        after_data = content[content.index(_DATA) :]
        if _HEADERS in after_data and len(after_data[after_data.index(_HEADERS) :]) > 1:
            yield _broken(
                stream, "4.1-frame-after-trailers", f"HEADERS or DATA after the trailers of stream {stream.number}"
            )
    for kind, rule in (
        (_CANCEL_PUSH, "7.2.3-cancel-push-on-request"),
        (_SETTINGS, "7.2.4-settings-on-request"),
        (_GOAWAY, "7.2.6-goaway-on-request"),
        (_MAX_PUSH_ID, "7.2.7-max-push-id-on-request" if side.is_client else "7.2.7-max-push-id-from-server"),
    ):
        if kind in kinds:
            yield _broken(stream, rule, f"{_FRAMES[kind]} on stream {stream.number}")
    if side.is_client and _PUSH_PROMISE in kinds:
        yield _broken(stream, "7.2.5-push-promise-from-client", f"PUSH_PROMISE on stream {stream.number}")
    yield from _http2_frames(stream, kinds)
    if side.is_client and side.whole and not stream.ended and stream.number % 4 == 0 and _answered(side, stream):
        yield _broken(stream, "4.1-request-not-finished", f"stream {stream.number} has no FIN and no RESET_STREAM")


def _answered(side: Side, stream: _Stream) -> bool:
    """Whether the end of the response arrived and the client sent packets afterwards."""
    columns = side.capture.streams
    rows = side.stream_frames(got=True)
    fins = rows[(columns["stream_id"][rows] == stream.number) & (columns["fin"][rows] == 1)]
    return len(fins) > 0 and bool((side.sent > columns["packet"][fins[0]]).any())


DETECTORS = (http3,)
