"""Streams and flow control (RFC 9000 §3, §4, §19.4 to §19.14), DATAGRAM frames (RFC 9221)."""

from collections.abc import Iterator

import numpy as np

from runner.judge.invariants.packets import shown
from runner.judge.side import EARLY, Broken, Side
from runner.trace.intervals import Ints
from runner.trace.vantage import find

_MOST = (1 << 62) - 1  # the largest offset, RFC 9000 §19.8
_MOST_STREAMS = 1 << 60
_COMMON = 1 << 44  # no real stream is longer; the limit keeps sums within 64 bits
_ABOUT_STREAMS = ("reset_stream", "stop_sending", "max_stream_data", "stream_data_blocked")


def wrong_streams(side: Side) -> Iterator[Broken]:
    """A frame about a stream fits the direction of the stream, and the stream exists."""
    capture = side.capture
    streams = side.stream_frames()
    ids, packets = capture.streams["stream_id"][streams], capture.streams["packet"][streams]
    theirs, one_way = ids & 1 != side.sender, ids & 2 != 0
    wrong = theirs & one_way
    if wrong.any():
        yield Broken(
            rule="rfc9000-19.8-stream-receive-only",
            actual=f"STREAM on receive-only stream {ids[wrong][0]}",
            packets=shown(packets[wrong]),
        )
    both_ways = theirs & ~one_way
    yield from _not_created(side, "STREAM", ids[both_ways], packets[both_ways], "rfc9000-19.8-stream-not-created")
    for name, about_own, rule in (
        ("reset_stream", False, "19.4-reset-receive-only"),
        ("stop_sending", True, "19.5-stop-sending-send-only"),
        ("max_stream_data", True, "19.10-credit-send-only"),
        ("stream_data_blocked", False, "19.13-blocked-receive-only"),
    ):
        rows = side.frames(name)
        ids, packets = capture.frames["stream_id"][rows], capture.frames["packet"][rows]
        mine, one_way = ids & 1 == side.sender, ids & 2 != 0
        wrong = one_way & (mine == about_own)
        if wrong.any():
            yield Broken(
                rule=f"rfc9000-{rule}",
                actual=f"{name.upper()} for {'send' if about_own else 'receive'}-only stream {ids[wrong][0]}",
                packets=shown(packets[wrong]),
            )
        created = {"stop_sending": "19.5-stop-sending-not-created", "max_stream_data": "19.10-credit-not-created"}
        if name in created:
            allowed = ~mine & ~wrong
            yield from _not_created(side, name.upper(), ids[allowed], packets[allowed], f"rfc9000-{created[name]}")


def _not_created(side: Side, name: str, ids: Ints, packets: Ints, rule: str) -> Iterator[Broken]:
    """Report frames `name` for streams that the peer had not created when these packets were sent. A new stream also
    creates all streams of the same type with lower numbers (RFC 9000 §3.2)."""
    if not len(ids) or not side.sound:
        return
    capture = side.capture
    opened = side.stream_frames(got=True)
    about = side.frames(*_ABOUT_STREAMS, got=True)
    existing = np.concatenate((capture.streams["stream_id"][opened], capture.frames["stream_id"][about]))
    when = np.concatenate((capture.streams["packet"][opened], capture.frames["packet"][about]))
    for kind in np.unique(ids & 3):
        mine = ids & 3 == kind
        rows, known = when[existing & 3 == kind], existing[existing & 3 == kind]
        order = np.argsort(rows, kind="stable")
        highest = np.maximum.accumulate(np.concatenate(([-1], known[order])))
        limit = highest[np.searchsorted(rows[order], packets[mine])]
        wrong = ids[mine] > limit
        if wrong.any():
            yield Broken(
                rule=rule,
                actual=f"{name} for stream {ids[mine][wrong][0]}, which the peer had not created",
                packets=shown(packets[mine][wrong]),
            )


def offsets(side: Side) -> Iterator[Broken]:
    """Stream data and CRYPTO data end below 2^62. Limits of the number of streams are at most 2^60."""
    capture = side.capture
    rows = side.stream_frames()
    ends = capture.streams["offset"][rows] + capture.streams["length"][rows]
    if (ends > _MOST).any():
        yield Broken(
            rule="rfc9000-19.8-stream-offset-overflow",
            actual=f"stream data ends at {ends.max()}",
            packets=shown(capture.streams["packet"][rows[ends > _MOST]]),
        )
    rows = side.frames("crypto")
    ends = capture.frames["offset"][rows] + capture.frames["length"][rows]
    if (ends > _MOST).any():
        yield Broken(
            rule="rfc9000-19.6-crypto-offset-overflow",
            actual=f"CRYPTO data ends at {ends.max()}",
            packets=shown(capture.frames["packet"][rows[ends > _MOST]]),
        )
    for names, rule in (
        (("max_streams_bidi", "max_streams_uni"), "19.11-max-streams-high"),
        (("streams_blocked_bidi", "streams_blocked_uni"), "19.14-streams-blocked-high"),
    ):
        rows = side.frames(*names)
        high = rows[capture.frames["value"][rows] > _MOST_STREAMS]
        if len(high):
            yield Broken(
                rule=f"rfc9000-{rule}",
                actual=f"{names[0].upper().removesuffix('_BIDI')} with {capture.frames['value'][high[0]]} streams",
                packets=shown(capture.frames["packet"][high]),
            )


class _Sent:
    """The STREAM frames of an endpoint, grouped by stream. The frames of a group are in the order of the capture."""

    def __init__(self, side: Side) -> None:
        streams = side.capture.streams
        rows = side.stream_frames()
        ends = streams["offset"][rows] + streams["length"][rows]
        rows = rows[ends < _COMMON]
        order = np.argsort(streams["stream_id"][rows], kind="stable")
        self.rows = rows[order]
        self.stream = streams["stream_id"][self.rows]
        self.packet = streams["packet"][self.rows]
        self.end = streams["offset"][self.rows] + streams["length"][self.rows]
        self.ids, self.starts = np.unique(self.stream, return_index=True)
        group = np.repeat(np.arange(len(self.ids)), np.diff(np.append(self.starts, len(self.rows))))
        self.highest = np.maximum.accumulate(group * _COMMON + self.end) - group * _COMMON if len(rows) else self.end
        """Per frame: the highest end offset in its stream so far, including this frame."""

    def of(self, stream: int) -> slice:
        """The frames of a stream."""
        at = int(np.searchsorted(self.ids, stream))
        ends = [*self.starts[1:].tolist(), len(self.rows)]
        return slice(int(self.starts[at]), int(ends[at]))


def _granted(side: Side, name: str, packets: Ints, first: int, stream: int | None = None) -> Ints:
    """For each packet, the highest limit that had arrived from the peer when the packet was sent. `first`: the limit
    before the first frame."""
    frames = side.capture.frames
    rows = side.frames(name, got=True)
    if stream is not None:
        rows = rows[frames["stream_id"][rows] == stream]
    limits = np.maximum.accumulate(np.concatenate(([first], frames["value"][rows])))
    granted: Ints = limits[np.searchsorted(frames["packet"][rows], packets)]
    return granted


def flow_control(side: Side) -> Iterator[Broken]:
    """Streams and the connection stay within the peer's credit. 0-RTT packets are not checked: they use the limits of
    an earlier connection."""
    total = side.peer_parameters.get("initial_max_data", 0)
    if not side.sound or not side.peer_parameters or not isinstance(total, int):
        return
    sent, types = _Sent(side), side.capture.type
    for stream in sent.ids.tolist():
        mine = sent.of(stream)
        first = _first_limit(side, stream)
        if sent.highest[mine][-1] <= first:
            continue
        granted = _granted(side, "max_stream_data", sent.packet[mine], first, stream)
        wrong = (sent.highest[mine] > granted) & (types[sent.packet[mine]] != EARLY)
        if wrong.any():
            excess = int((sent.highest[mine] - granted)[wrong].max())
            yield Broken(
                rule="rfc9000-4.1-stream-limit",
                actual=f"data of stream {stream} ends {excess} B above the limit of the stream",
                packets=shown(sent.packet[mine][wrong]),
            )
            break
    order = np.argsort(sent.packet, kind="stable")
    fresh = np.diff(sent.highest, prepend=0)
    fresh[sent.starts] = sent.highest[sent.starts]
    used = np.cumsum(fresh[order])
    granted = _granted(side, "max_data", sent.packet[order], total)
    wrong = (used > granted) & (types[sent.packet[order]] != EARLY)
    if wrong.any():
        yield Broken(
            rule="rfc9000-4.1-connection-limit",
            actual=f"the data of all streams together is {int((used - granted)[wrong].max())} B above the limit of the "
            "connection",
            packets=shown(sent.packet[order][wrong]),
        )


def _first_limit(side: Side, stream: int) -> int:
    opened_by_sender = stream & 1 == side.sender
    name = "uni" if stream & 2 else "bidi_remote" if opened_by_sender else "bidi_local"
    value = side.peer_parameters.get(f"initial_max_stream_data_{name}", 0)
    return value if isinstance(value, int) else 0


def stream_counts(side: Side) -> Iterator[Broken]:
    """An endpoint opens no more streams than the peer allows."""
    if not side.sound or not side.peer_parameters:
        return
    streams = side.capture.streams
    rows = side.stream_frames()
    rows = rows[side.capture.type[streams["packet"][rows]] != EARLY]
    for bit, name in ((0, "bidi"), (2, "uni")):
        mine = rows[streams["stream_id"][rows] & 3 == bit | side.sender]
        first = side.peer_parameters.get(f"initial_max_streams_{name}", 0)
        if not len(mine) or not isinstance(first, int):
            continue
        granted = _granted(side, f"max_streams_{name}", streams["packet"][mine], first)
        excessive = streams["stream_id"][mine] // 4 + 1 > granted
        wrong = mine[excessive]
        if len(wrong):
            yield Broken(
                rule="rfc9000-4.6-too-many-streams",
                actual=f"stream {streams['stream_id'][wrong[0]]} is opened, although the limit is "
                f"{granted[excessive][0]} streams of this type",
                packets=shown(streams["packet"][wrong]),
            )


def endings(side: Side) -> Iterator[Broken]:
    """A stream has one final size, no data beyond it, and no data after RESET_STREAM."""
    capture = side.capture
    frames, streams = capture.frames, capture.streams
    rows = side.stream_frames()
    fins = rows[streams["fin"][rows] == 1]
    resets = _resets(side)
    stream = np.concatenate((streams["stream_id"][fins], frames["stream_id"][resets]))
    size = np.concatenate((streams["offset"][fins] + streams["length"][fins], frames["offset"][resets]))
    packet = np.concatenate((streams["packet"][fins], frames["packet"][resets]))
    changed = set()
    order = np.lexsort((packet, stream))
    stream, size, packet = stream[order], size[order], packet[order]
    differs = np.flatnonzero((np.diff(stream) == 0) & (np.diff(size) != 0))
    if len(differs):
        at = int(differs[0])
        changed = set(stream[differs].tolist())
        yield Broken(
            rule="rfc9000-4.5-final-size-changed",
            actual=f"the final size of stream {stream[at]} changes from {size[at]} to {size[at + 1]} B",
            packets=shown(packet[at : at + 2]),
        )
    sent = _Sent(side)
    ending = find(stream, sent.stream)
    limit = np.append(size, _COMMON)[ending]  # NULL is -1: a stream that did not end has the limit _COMMON
    beyond = np.flatnonzero((sent.end > limit) & ~np.isin(sent.stream, list(changed)))
    if len(beyond):
        at = beyond[0]
        yield Broken(
            rule="rfc9000-4.5-data-beyond-final-size",
            actual=f"data of stream {sent.stream[at]} ends at {sent.end[at]}, its final size is {limit[at]}",
            packets=shown(sent.packet[beyond]),
        )
    blocked = side.frames("stream_data_blocked")
    yield from _after_reset(side, streams["stream_id"][rows], streams["packet"][rows], "stream")
    yield from _after_reset(side, frames["stream_id"][blocked], frames["packet"][blocked], "blocked")


def _resets(side: Side) -> Ints:
    """Rows of the endpoint's RESET_STREAM frames, without those in rejected 0-RTT packets."""
    rows = side.frames("reset_stream")
    return rows[side.is_valid(side.capture.frames["packet"][rows])]


def _after_reset(side: Side, stream: Ints, packet: Ints, rule: str) -> Iterator[Broken]:
    """Report the first stream with frames after its RESET_STREAM. `stream`, `packet`: the stream and the packet of each
    frame that the rule is about."""
    frames = side.capture.frames
    for reset in _resets(side)[:200].tolist() if len(stream) else ():
        number = int(frames["stream_id"][reset])
        late = packet[(stream == number) & (packet > frames["packet"][reset])]
        if len(late):
            name = "STREAM" if rule == "stream" else "STREAM_DATA_BLOCKED"
            yield Broken(
                rule=f"rfc9000-3.3-{rule}-after-reset",
                actual=f"{name} of stream {number} after its RESET_STREAM",
                packets=shown(late),
            )
            return


def datagram_frames(side: Side) -> Iterator[Broken]:
    """An endpoint sends DATAGRAM frames only when the peer accepts them, up to the size that the peer accepts (RFC 9221
    §3)."""
    rows = side.frames("datagram")
    if not len(rows) or not side.peer_parameters:
        return
    frames = side.capture.frames
    limit = side.peer_parameters.get("max_datagram_frame_size", 0)
    if not isinstance(limit, int) or limit == 0:
        yield Broken(
            rule="rfc9221-3-not-offered",
            actual=f"{len(rows)} DATAGRAM frames, although the peer sent no max_datagram_frame_size or 0",
            packets=shown(frames["packet"][rows]),
        )
        return
    large = rows[frames["length"][rows] + 1 > limit]
    if len(large):
        yield Broken(
            rule="rfc9221-3-too-large",
            actual=f"a frame with {int(frames['length'][large].max())} B of data, limit {limit} B",
            packets=shown(frames["packet"][large]),
        )


DETECTORS = (wrong_streams, offsets, flow_control, stream_counts, endings, datagram_frames)
