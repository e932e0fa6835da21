"""HTTP/3 streams and frames (RFC 9114), and QPACK (RFC 9204), on connections that negotiated `h3`."""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from runner.decode.columns import HTTP3, SERVER
from runner.decode.http3 import (
    CANCEL_PUSH,
    CONTROL,
    DATA,
    DECODER,
    ENCODER,
    GOAWAY,
    HEADERS,
    MAX_PUSH_ID,
    PUSH,
    PUSH_PROMISE,
    SETTINGS,
    DynamicTable,
    Line,
    QpackError,
    prefixed,
)
from runner.decode.wire import varint
from runner.judge.rules.packet_rules import shown
from runner.judge.rules.side import Broken, Side
from runner.units import format_count

_FRAMES = {
    DATA: "DATA",
    HEADERS: "HEADERS",
    CANCEL_PUSH: "CANCEL_PUSH",
    SETTINGS: "SETTINGS",
    PUSH_PROMISE: "PUSH_PROMISE",
    GOAWAY: "GOAWAY",
    MAX_PUSH_ID: "MAX_PUSH_ID",
}
_HTTP2_FRAMES, _HTTP2_SETTINGS = (0x02, 0x06, 0x08, 0x09), (0x00, 0x02, 0x03, 0x04, 0x05)
_UNIDIRECTIONAL_NEEDED = 3  # RFC 9114 §6.2
_MAX_TABLE_CAPACITY = 0x01  # RFC 9204 §5
_CONNECTION_FIELDS = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
_REQUEST_FIELDS = {b":method", b":scheme", b":authority", b":path", b":protocol"}
_WITHOUT_CONTENT = (b"304", b"204")  # statuses whose Content-Length is about another response (RFC 9110 §8.6)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    kind: int
    at: int
    """Offset of its first byte in the stream."""
    length: int
    """Bytes of the payload; for a run of DATA frames, of all of them."""
    payload: bytes | None
    """None for DATA, unknown types, and what the tables don't keep."""


@dataclass(kw_only=True)
class _Stream:
    """One stream as its sender sent it."""

    number: int
    """Stream ID."""
    kind: int | None
    """Type of a unidirectional stream; None for a request stream, and when the type is cut off."""
    push: int | None
    """Push ID of a push stream."""
    frames: list[_Frame]
    cut_off: bool
    """True when the stream ended within a frame."""
    whole: bool
    """True when everything up to FIN was read; for streams of QPACK: when `data` has everything that was sent."""
    data: bytes
    """Streams of QPACK only: the instructions."""
    ended: bool = False
    """True when a FIN or RESET_STREAM was sent."""

    @property
    def kinds(self) -> list[int]:
        """The types of its frames."""
        return [frame.kind for frame in self.frames]


class _Peers:
    """The HTTP/3 streams of both endpoints, in the capture at the end of one of them."""

    def __init__(self, side: Side, text: str) -> None:
        self.side = side
        self._streams: tuple[list[_Stream], list[_Stream]] = [], []
        for each in json.loads(text):
            frames = [
                _Frame(kind=kind, at=at, length=length, payload=None if payload is None else bytes.fromhex(payload))
                for kind, at, length, payload in each["frames"]
            ]
            stream = _Stream(
                number=each["stream"],
                kind=each.get("type"),
                push=each.get("push"),
                frames=frames,
                cut_off=each.get("cut_off", False),
                whole=each.get("whole", False) and each.get("data", "") is not None,
                data=bytes.fromhex(each.get("data") or ""),
            )
            self._streams[each["sender"]].append(stream)
        columns, rows = side.capture.stream_frames, side.stream_frames()
        ends = set(columns["stream_id"][rows[columns["fin"][rows] == 1]].tolist())
        ends |= set(side.capture.frames["stream_id"][side.frames("reset_stream")].tolist())
        for stream in self.sent:
            stream.ended = stream.number in ends

    @property
    def sent(self) -> list[_Stream]:
        """The streams of the endpoint that is judged."""
        return self._streams[self.side.sender]

    @property
    def got(self) -> list[_Stream]:
        """The streams of its peer."""
        return self._streams[1 - self.side.sender]

    def of_type(self, kind: int, *, got: bool = False) -> list[_Stream]:
        """The unidirectional streams of a type that the endpoint, or its peer, opened."""
        sender = 1 - self.side.sender if got else self.side.sender
        return [each for each in self._streams[sender] if each.kind == kind and each.number & 3 == 2 | sender]

    def packet(self, number: int, at: int = 0, *, got: bool = False) -> int:
        """The first packet with the byte at an offset of a stream; the stream's first packet if none has it."""
        columns, rows = self.side.capture.stream_frames, self.side.stream_frames(got=got)
        rows = rows[columns["stream_id"][rows] == number]
        offset = columns["offset"][rows]
        if not len(rows):
            return int(self.side.sent[0])
        holds = rows[(offset <= at) & (at < offset + columns["length"][rows])]
        return int(columns["packet"][(holds if len(holds) else rows)[0]])

    def broken(self, stream: _Stream, rule: str, actual: str, at: int = 0) -> Broken:
        """A finding about a place in a stream of the endpoint."""
        return Broken(rule, actual, (self.packet(stream.number, at),))

    def allowed_pushes(self, packet: int | None = None) -> int:
        """The highest push ID that the client had allowed when the server sent a packet, or ever; -1: none."""
        from_client = self.side.is_client
        highest = -1
        for stream in self.of_type(CONTROL, got=not from_client):
            for frame in stream.frames:
                value = _identifier(frame) if frame.kind == MAX_PUSH_ID else None
                arrived = packet is None or self.packet(stream.number, frame.at, got=not from_client) < packet
                highest = max(highest, value) if value is not None and arrived else highest
        return highest

    @cached_property
    def table(self) -> DynamicTable | None:
        """The dynamic table for the endpoint's field sections, once its encoder stream was read; None when the peer's
        SETTINGS or a part of the encoder stream isn't known. Its capacity is 0 until SETTINGS arrive, except for 0-RTT
        (RFC 9204 §3.2.3)."""
        first = [frame for stream in self.of_type(CONTROL, got=True) for frame in stream.frames[:1]]
        if not first and self.side.sound and not self.side.scope.row.either("early_data_offered"):
            return DynamicTable(most=0)
        if len(first) != 1 or first[0].kind != SETTINGS or first[0].payload is None:
            return None
        return DynamicTable(most=dict(_pairs(first[0].payload)).get(_MAX_TABLE_CAPACITY, 0))


def http3(side: Side) -> Iterator[Broken]:
    """An endpoint follows the rules of HTTP/3."""
    text = side.row.get("http3") if side.row else None
    if side.scope.row.value("alpn") != HTTP3 or not side.own_read or not text:
        return
    peers = _Peers(side, text)
    if not peers.sent:
        return
    yield from _stream_types(peers)
    for stream in peers.of_type(CONTROL)[:1]:
        yield from _control(peers, stream)
    yield from _pushes(peers)
    readable = yield from _encoder(peers)
    for stream in peers.sent:
        if stream.cut_off:
            actual = f"stream {stream.number} ends within a frame"
            yield peers.broken(
                stream, "rfc9114-7.1-frame-cut-off", actual, stream.frames[-1].at if stream.frames else 0
            )
        if not stream.number & 2 or stream.kind == PUSH:
            yield from _message(peers, stream)
            if readable:
                yield from _fields(peers, stream)


def _stream_types(peers: _Peers) -> Iterator[Broken]:
    side, streams = peers.side, peers.sent
    control = peers.of_type(CONTROL)
    if side.whole and not control and any(not stream.number & 2 for stream in streams):
        actual = "requests or responses, but no control stream"
        yield peers.broken(streams[0], "rfc9114-6.2.1-no-control-stream", actual)
    for kind, section, rule, name in (
        (CONTROL, "rfc9114-6.2.1", "rfc9114-6.2.1-control-stream", "control"),
        (ENCODER, "rfc9204-4.2", "rfc9204-4.2-stream", "encoder"),
        (DECODER, "rfc9204-4.2", "rfc9204-4.2-stream", "decoder"),
    ):
        opened = peers.of_type(kind)
        if len(opened) > 1:
            yield peers.broken(opened[1], f"{section}-two-{name}-streams", format_count(len(opened), f"{name} stream"))
        for stream in opened:
            if stream.ended:
                yield peers.broken(stream, f"{rule}-closed", f"{name} stream {stream.number} is closed")
        stopped, frames = side.frames("stop_sending"), side.capture.frames
        for stream in peers.of_type(kind, got=True):
            wrong = stopped[frames["stream_id"][stopped] == stream.number]
            if len(wrong):
                actual = f"STOP_SENDING for the {name} stream {stream.number}"
                yield Broken(f"{rule}-stopped", actual, shown(frames["packet"][wrong]))
    for stream in streams:
        if side.sender == SERVER and stream.number & 3 == 1:
            actual = f"the server opens stream {stream.number}"
            yield peers.broken(stream, "rfc9114-6.1-server-bidirectional-stream", actual)
            break
    granted = side.parameters.get("initial_max_streams_uni", 0)
    hello = side.message(1 if side.is_client else 8, side.sender)
    if side.parameters and isinstance(granted, int) and granted < _UNIDIRECTIONAL_NEEDED and hello:
        yield Broken(
            "rfc9114-6.2-too-few-streams-granted", f"initial_max_streams_uni is {granted}", (int(hello["packet"]),)
        )


def _pushes(peers: _Peers) -> Iterator[Broken]:
    """Pushes of the server, and what both endpoints say about pushes (RFC 9114 §4.6)."""
    side = peers.side
    streams = peers.of_type(PUSH)
    if side.is_client:
        for stream in streams[:1]:
            actual = f"the client opens push stream {stream.number}"
            yield peers.broken(stream, "rfc9114-6.2.2-push-stream-from-client", actual)
    used = [] if side.is_client else [(stream, 0, stream.push) for stream in streams]
    promises = [(stream, frame) for stream in peers.sent for frame in stream.frames if frame.kind == PUSH_PROMISE]
    if not side.is_client:
        used += [(stream, frame.at, _identifier(frame)) for stream, frame in promises]
        pushed = [stream.push for stream in streams if stream.push is not None]
        for stream in streams:
            if stream.push is not None and pushed.count(stream.push) > 1:
                actual = f"push ID {stream.push} in {format_count(pushed.count(stream.push), 'push stream')}"
                yield peers.broken(stream, "rfc9114-6.2.2-push-id-reused", actual)
                break
    if not side.sound:
        return
    for stream, at, identifier in used:
        allowed = peers.allowed_pushes(peers.packet(stream.number, at))
        if identifier is None or identifier <= allowed:
            continue
        rule = "4.6-push-not-allowed" if allowed < 0 else "7.2.5-push-id-above-limit"
        actual = f"push ID {identifier} on stream {stream.number}, " + (
            "but the client sent no MAX_PUSH_ID" if allowed < 0 else f"MAX_PUSH_ID is {allowed}"
        )
        yield peers.broken(stream, f"rfc9114-{rule}", actual, at)
        break
    for stream in peers.of_type(CONTROL):
        for frame in stream.frames:
            cancelled = _identifier(frame) if frame.kind == CANCEL_PUSH else None
            before = None if side.is_client else peers.packet(stream.number, frame.at)
            if cancelled is not None and cancelled > (allowed := peers.allowed_pushes(before)):
                actual = f"CANCEL_PUSH of push ID {cancelled}, MAX_PUSH_ID is {allowed if allowed >= 0 else 'not sent'}"
                yield peers.broken(stream, "rfc9114-7.2.3-cancel-push-above-limit", actual, frame.at)
                return


def _control(peers: _Peers, stream: _Stream) -> Iterator[Broken]:
    side, kinds = peers.side, stream.kinds

    def broken(rule: str, actual: str, at: int = 0) -> Broken:
        return peers.broken(stream, f"rfc9114-{rule}", actual, at)

    if kinds and kinds[0] != SETTINGS:
        yield broken("6.2.1-first-frame-not-settings", f"the first frame has type 0x{kinds[0]:x}")
    if kinds.count(SETTINGS) > 1:
        yield broken("7.2.4-settings-twice", f"SETTINGS is sent {format_count(kinds.count(SETTINGS), 'time')}")
    for kind, rule in (
        (DATA, "7.2.1-data-on-control"),
        (HEADERS, "7.2.2-headers-on-control"),
        (PUSH_PROMISE, f"7.2.5-push-promise-{'from-client' if side.is_client else 'on-control'}"),
    ):
        if kind in kinds:
            actual = f"{_FRAMES[kind]} on stream {stream.number}"
            yield broken(rule, actual, stream.frames[kinds.index(kind)].at)
    yield from _http2_frames(peers, stream)
    for frame in stream.frames:
        if not _is_complete(frame):
            actual = f"{_FRAMES[frame.kind]} with a payload of {frame.length} B on stream {stream.number}"
            yield broken("7.1-frame-length-wrong", actual, frame.at)
            break
    for frame in stream.frames:
        if frame.kind == SETTINGS and frame.payload is not None:
            yield from _settings(peers, stream, frame.payload)
    goaways = _identifiers(stream, GOAWAY)
    if any(later > earlier for earlier, later in pairwise(goaways)):
        yield broken("5.2-goaway-increases", f"the identifiers are {goaways}")
    if not side.is_client and any(identifier & 3 for identifier in goaways):
        yield broken("7.2.6-goaway-id-wrong", f"the identifiers are {goaways}")
    pushes = _identifiers(stream, MAX_PUSH_ID)
    if pushes and not side.is_client:
        yield broken("7.2.7-max-push-id-from-server", f"MAX_PUSH_ID {pushes[0]}")
    elif any(later < earlier for earlier, later in pairwise(pushes)):
        yield broken("7.2.7-max-push-id-decreases", f"the values are {pushes}")


def _is_complete(frame: _Frame) -> bool:
    """Whether the payload of a frame of the control stream ends with its last field (RFC 9114 §7.1)."""
    if frame.payload is None:
        return True
    if frame.kind == SETTINGS:
        return not frame.payload or bool(_pairs(frame.payload))
    if frame.kind in (CANCEL_PUSH, GOAWAY, MAX_PUSH_ID):
        return bool(frame.payload) and varint(frame.payload, 0)[1] == len(frame.payload)
    return True


def _identifier(frame: _Frame) -> int | None:
    """The integer at the beginning of a payload; None when it isn't known."""
    if not frame.payload:
        return None
    value, end = varint(frame.payload, 0)
    return value if end <= len(frame.payload) else None


def _identifiers(stream: _Stream, kind: int) -> list[int]:
    values = [_identifier(frame) for frame in stream.frames if frame.kind == kind]
    return [value for value in values if value is not None]


def _http2_frames(peers: _Peers, stream: _Stream) -> Iterator[Broken]:
    wrong = [frame for frame in stream.frames if frame.kind in _HTTP2_FRAMES]
    if wrong:
        actual = f"a frame of type 0x{wrong[0].kind:x} on stream {stream.number}"
        yield peers.broken(stream, "rfc9114-7.2.8-http2-frame", actual, wrong[0].at)


def _pairs(payload: bytes) -> list[tuple[int, int]]:
    """The settings of a SETTINGS frame; none when it is malformed."""
    pairs, position = list[tuple[int, int]](), 0
    try:
        while position < len(payload):
            name, position = varint(payload, position)
            value, position = varint(payload, position)
            pairs.append((name, value))
    except IndexError:
        return []
    return pairs if position == len(payload) else []


def _settings(peers: _Peers, stream: _Stream, payload: bytes) -> Iterator[Broken]:
    names = [name for name, _ in _pairs(payload)]
    if len(set(names)) < len(names):
        actual = f"the identifiers of the settings are {names}"
        yield peers.broken(stream, "rfc9114-7.2.4-setting-twice", actual)
    wrong = [name for name in names if name in _HTTP2_SETTINGS]
    if wrong:
        yield peers.broken(stream, "rfc9114-7.2.4.1-http2-setting", f"the HTTP/2 setting 0x{wrong[0]:x}")


def _message(peers: _Peers, stream: _Stream) -> Iterator[Broken]:
    """The frames of a request, a response or a push."""
    side, kinds = peers.side, stream.kinds
    content = [frame for frame in stream.frames if frame.kind in (DATA, HEADERS)]
    order = [frame.kind for frame in content]
    if order and order[0] == DATA:
        actual = f"stream {stream.number} begins with DATA"
        yield peers.broken(stream, "rfc9114-4.1-data-before-headers", actual, content[0].at)
    elif DATA in order and HEADERS in order[order.index(DATA) :]:
        trailers = order.index(HEADERS, order.index(DATA))
        if len(order) > trailers + 1:
            actual = f"HEADERS or DATA after the trailers of stream {stream.number}"
            yield peers.broken(stream, "rfc9114-4.1-frame-after-trailers", actual, content[trailers + 1].at)
    for kind, rule in (
        (CANCEL_PUSH, "7.2.3-cancel-push-on-request"),
        (SETTINGS, "7.2.4-settings-on-request"),
        (GOAWAY, "7.2.6-goaway-on-request"),
        (MAX_PUSH_ID, "7.2.7-max-push-id-on-request" if side.is_client else "7.2.7-max-push-id-from-server"),
        *(((PUSH_PROMISE, "7.2.5-push-promise-from-client"),) if side.is_client else ()),
        *(((PUSH_PROMISE, "7.2.5-push-promise-on-control"),) if stream.kind == PUSH else ()),
    ):
        if kind in kinds:
            actual = f"{_FRAMES[kind]} on stream {stream.number}"
            yield peers.broken(stream, f"rfc9114-{rule}", actual, stream.frames[kinds.index(kind)].at)
    yield from _http2_frames(peers, stream)
    if side.is_client and side.whole and not stream.ended and stream.number % 4 == 0 and _answered(side, stream):
        actual = f"stream {stream.number} has no FIN and no RESET_STREAM"
        yield peers.broken(stream, "rfc9114-4.1-request-not-finished", actual)


def _answered(side: Side, stream: _Stream) -> bool:
    """Whether the end of the response arrived and the client sent packets afterwards."""
    columns = side.capture.stream_frames
    rows = side.stream_frames(got=True)
    fins = rows[(columns["stream_id"][rows] == stream.number) & (columns["fin"][rows] == 1)]
    return len(fins) > 0 and bool((side.sent > columns["packet"][fins[0]]).any())


# QPACK and the fields that it compresses


def _encoder(peers: _Peers) -> Generator[Broken, None, bool]:
    """The endpoint's encoder stream and decoder stream. Returns whether its field sections can be read."""
    encoders, table = peers.of_type(ENCODER), peers.table
    if table is None or len(encoders) > 1 or any(not stream.whole for stream in encoders):
        return False
    for stream in encoders:
        for error in table.read(stream.data):
            yield peers.broken(stream, f"rfc9204-{error.rule}", error.actual)
            return False
    decoders, theirs = peers.of_type(DECODER), peers.of_type(ENCODER, got=True)
    if len(decoders) == 1 and len(theirs) <= 1 and decoders[0].whole and peers.side.sound:
        yield from _increments(peers, decoders[0], theirs[0].data if theirs else b"")
    return peers.side.sound


def _increments(peers: _Peers, stream: _Stream, instructions: bytes) -> Iterator[Broken]:
    """Insert Count Increments (RFC 9204 §4.4.3) are not 0, and don't count more entries than the peer inserted. Section
    Acknowledgments (§4.4.1) are about field sections that refer to the dynamic table."""
    inserted = DynamicTable(most=1 << 62)
    if any(True for _ in inserted.read(instructions)):
        return
    counted, open_sections = 0, _open_sections(peers)
    try:
        position = 0
        while position < len(stream.data):
            first = stream.data[position]
            value, position = prefixed(stream.data, position, 7 if first & 0x80 else 6)
            if first & 0x80:
                open_sections[value] = open_sections.get(value, 0) - 1
                if open_sections[value] < 0:
                    actual = f"an acknowledgment of a field section of stream {value}, which has no such section left"
                    yield peers.broken(stream, "rfc9204-4.4.1-acknowledgment-wrong", actual)
                    return
            if first & 0xC0:
                continue
            counted += value
            if not value or counted > len(inserted.entries):
                actual = f"an increment of {value}, {counted} in all; the peer inserted {len(inserted.entries)} entries"
                yield peers.broken(stream, "rfc9204-4.4.3-increment-wrong", actual)
                return
    except IndexError:
        return


def _open_sections(peers: _Peers) -> dict[int, int]:
    """Stream ID → field sections of the peer that need the dynamic table, or that the tables don't keep."""
    return {
        stream.number: sum(
            frame.payload is None or _required(frame)
            for frame in stream.frames
            if frame.kind in (HEADERS, PUSH_PROMISE)
        )
        for stream in peers.got
    }


def _required(frame: _Frame) -> bool:
    payload = frame.payload or b""
    start = varint(payload, 0)[1] if frame.kind == PUSH_PROMISE and payload else 0
    return payload[start : start + 1] not in (b"", b"\0")


def _fields(peers: _Peers, stream: _Stream) -> Iterator[Broken]:
    """The fields of a message: their names, and the length of its content (RFC 9114 §4.1.2, §4.2, §4.3)."""
    table = peers.table
    if table is None:
        return
    sections: list[tuple[_Frame, list[Line]]] = []
    for frame in stream.frames:
        if frame.kind not in (HEADERS, PUSH_PROMISE) or frame.payload is None:
            continue
        try:
            start = varint(frame.payload, 0)[1] if frame.kind == PUSH_PROMISE else 0
            sections.append((frame, table.section(frame.payload[start:])))
        except QpackError as error:
            yield peers.broken(stream, f"rfc9204-{error.rule}", error.actual, frame.at)
            return
        except IndexError:
            return
    data = [frame for frame in stream.frames if frame.kind == DATA]
    if data and (not sections or data[0].at < sections[0][0].at):
        return  # another rule reports this
    for frame, lines in sections:
        trailers = bool(data) and frame.at > data[0].at and frame.kind == HEADERS
        request = peers.side.is_client or frame.kind == PUSH_PROMISE
        for rule, actual in _names(lines, trailers=trailers, request=request):
            yield peers.broken(stream, f"rfc9114-{rule}", f"{actual} on stream {stream.number}", frame.at)
            return
    head = [
        (frame, lines) for frame, lines in sections if frame.kind == HEADERS and not (data and frame.at > data[0].at)
    ]
    if not head or not stream.whole or any(frame.payload is None for frame in stream.frames if frame.kind == HEADERS):
        return
    frame, lines = head[-1]
    fields = dict(lines)
    declared, content = fields.get(b"content-length"), sum(each.length for each in data)
    without = fields.get(b":status") in _WITHOUT_CONTENT or _is_head(peers, stream)
    if declared is not None and declared.isdigit() and int(declared[:19]) != content and not (without and not content):
        actual = f"Content-Length {int(declared[:19])}, but {content} B of DATA on stream {stream.number}"
        yield peers.broken(stream, "rfc9114-4.1.2-content-length-wrong", actual, frame.at)


def _is_head(peers: _Peers, stream: _Stream) -> bool:
    """Whether a response may answer a request with the method HEAD or CONNECT: its request isn't known to be another.
    A request itself never does."""
    if peers.side.is_client:
        return False
    requests = [each for each in peers.got if each.number == stream.number]
    first = next((frame.payload for each in requests for frame in each.frames if frame.kind == HEADERS), None)
    try:
        lines = DynamicTable(most=0).section(first or b"")
    except (QpackError, IndexError):
        return True
    return dict(lines).get(b":method") in (b"HEAD", b"CONNECT", None)


def _names(lines: list[Line], *, trailers: bool, request: bool) -> Iterator[tuple[str, str]]:
    """The rules that the names of fields break, as rule and text."""
    names = [name for name, _ in lines if name is not None]
    for name in names:
        text = name.decode(errors="replace")
        if name != name.lower():
            yield "4.2-upper-case-name", f"the field {text}"
        if name in _CONNECTION_FIELDS:
            yield "4.2-connection-field", f"the field {text}"
    if len(names) < len(lines):
        return
    pseudo = [name for name in names if name.startswith(b":")]
    allowed = set() if trailers else _REQUEST_FIELDS if request else {b":status"}
    wrong = [name for name in pseudo if name not in allowed]
    fields = dict(lines)
    if wrong:
        yield "4.3-pseudo-headers", f"the field {wrong[0].decode(errors='replace')} in {_section(trailers, request)}"
    elif names[: len(pseudo)] != pseudo:
        yield "4.3-pseudo-headers", "a pseudo-header field after another field"
    elif len(set(pseudo)) < len(pseudo):
        yield "4.3-pseudo-headers", "a pseudo-header field twice"
    elif not trailers and request and fields.get(b":method") == b"CONNECT" and b":protocol" not in fields:
        if {b":scheme", b":path"} & fields.keys() or b":authority" not in fields:
            yield "4.4-connect", f"CONNECT with {b', '.join(pseudo).decode()}"
    elif not trailers:
        missing = [
            name for name in ((b":method", b":scheme", b":path") if request else (b":status",)) if name not in fields
        ]
        if fields.get(b":scheme") in (b"http", b"https") and not {b":authority", b"host"} & fields.keys():
            missing.append(b":authority")
        if missing:
            yield "4.3-pseudo-headers", f"no {missing[0].decode()} in {_section(trailers, request)}"


def _section(trailers: bool, request: bool) -> str:
    return "trailers" if trailers else "a request" if request else "a response"


HTTP3_DETECTORS = (http3,)
