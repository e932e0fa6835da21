"""Streams and flow control (RFC 9000 §3, §4, §19.4 to §19.14), DATAGRAM frames (RFC 9221)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from runner.decode.columns import NULL
from runner.judge.rules.packet_rules import shown
from runner.judge.rules.side import EARLY, INITIAL, RETRY, Broken, Side
from runner.trace.recording import Columns, Ints, find
from runner.units import format_count

_MOST = (1 << 62) - 1  # the largest offset, RFC 9000 §19.8
_MOST_STREAMS = 1 << 60
_COMMON = 1 << 44  # no real stream is longer; the limit keeps sums within 64 bits
_BY_RECEIVER = ("stop_sending", "max_stream_data")
_ABOUT_STREAMS = ("reset_stream", "stream_data_blocked", *_BY_RECEIVER)
_COMPARED = 1 << 17  # offsets of data that are compared; heads of streams and TLS messages are shorter


def wrong_streams(side: Side) -> Iterator[Broken]:
    """A frame about a stream fits the direction of the stream, and the stream exists."""
    capture = side.capture
    streams = side.stream_frames()
    ids, packets = capture.stream_frames["stream_id"][streams], capture.stream_frames["packet"][streams]
    theirs, one_way = ids & 1 != side.sender, ids & 2 != 0
    wrong = theirs & one_way
    if wrong.any():
        yield Broken(
            "rfc9000-19.8-stream-receive-only", f"STREAM on receive-only stream {ids[wrong][0]}", shown(packets[wrong])
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
            actual = f"{name.upper()} for {'send' if about_own else 'receive'}-only stream {ids[wrong][0]}"
            yield Broken(f"rfc9000-{rule}", actual, shown(packets[wrong]))
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
    existing = np.concatenate((capture.stream_frames["stream_id"][opened], capture.frames["stream_id"][about]))
    when = np.concatenate((capture.stream_frames["packet"][opened], capture.frames["packet"][about]))
    for kind in np.unique(ids & 3):
        mine = ids & 3 == kind
        rows, known = when[existing & 3 == kind], existing[existing & 3 == kind]
        order = np.argsort(rows, kind="stable")
        highest = np.maximum.accumulate(np.concatenate(([-1], known[order])))
        limit = highest[np.searchsorted(rows[order], packets[mine])]
        wrong = ids[mine] > limit
        if wrong.any():
            actual = f"{name} for stream {ids[mine][wrong][0]}, which the peer had not created"
            yield Broken(rule, actual, shown(packets[mine][wrong]))


def offsets(side: Side) -> Iterator[Broken]:
    """Stream data and CRYPTO data end below 2^62. Limits of the number of streams are at most 2^60."""
    capture = side.capture
    rows = side.stream_frames()
    ends = capture.stream_frames["offset"][rows] + capture.stream_frames["length"][rows]
    if (ends > _MOST).any():
        yield Broken(
            "rfc9000-19.8-stream-offset-overflow",
            f"stream data ends at {ends.max()}",
            shown(capture.stream_frames["packet"][rows[ends > _MOST]]),
        )
    rows = side.frames("crypto")
    ends = capture.frames["offset"][rows] + capture.frames["length"][rows]
    if (ends > _MOST).any():
        actual = f"CRYPTO data ends at {ends.max()}"
        yield Broken("rfc9000-19.6-crypto-offset-overflow", actual, shown(capture.frames["packet"][rows[ends > _MOST]]))
    for names, rule in (
        (("max_streams_bidi", "max_streams_uni"), "19.11-max-streams-high"),
        (("streams_blocked_bidi", "streams_blocked_uni"), "19.14-streams-blocked-high"),
    ):
        rows = side.frames(*names)
        high = rows[capture.frames["value"][rows] > _MOST_STREAMS]
        if len(high):
            actual = f"{names[0].upper().removesuffix('_BIDI')} with the value {capture.frames['value'][high[0]]}"
            yield Broken(f"rfc9000-{rule}", actual, shown(capture.frames["packet"][high]))


class _Sent:
    """The STREAM and RESET_STREAM frames of an endpoint, grouped by stream. Both use credit up to their end or final
    size (RFC 9000 §4.5). The frames of a group are in the order of the capture."""

    def __init__(self, side: Side, rows: Ints, resets: Ints) -> None:
        streams, frames = side.capture.stream_frames, side.capture.frames
        stream = np.concatenate((streams["stream_id"][rows], frames["stream_id"][resets]))
        packet = np.concatenate((streams["packet"][rows], frames["packet"][resets]))
        end = np.concatenate((streams["offset"][rows] + streams["length"][rows], frames["offset"][resets]))
        order = np.lexsort((packet, stream))
        self.stream, self.packet = stream[order], packet[order]
        self.end = np.minimum(end, _COMMON - 1)[order]
        self.ids, self.starts = np.unique(self.stream, return_index=True)
        group = np.repeat(np.arange(len(self.ids)), np.diff(np.append(self.starts, len(order))))
        self.highest = np.maximum.accumulate(group * _COMMON + self.end) - group * _COMMON if len(order) else self.end
        """Per frame: the highest end offset in its stream so far, including this frame."""

    def of(self, stream: int) -> slice:
        """The frames of a stream."""
        at = int(np.searchsorted(self.ids, stream))
        ends = [*self.starts[1:].tolist(), len(self.stream)]
        return slice(int(self.starts[at]), int(ends[at]))

    def used(self) -> tuple[Ints, Ints]:
        """The packets of the frames in the order of the capture, and after each the credit of the connection that all
        streams have used together."""
        order = np.argsort(self.packet, kind="stable")
        fresh = np.diff(self.highest, prepend=0)
        fresh[self.starts] = self.highest[self.starts]
        return self.packet[order], np.cumsum(fresh[order])


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
    """Streams and the connection stay within the peer's credit. 0-RTT packets use the limits of an earlier connection
    (`remembered_limits`)."""
    total = side.peer_parameters.get("initial_max_data", 0)
    if not side.sound or not side.peer_parameters or not isinstance(total, int):
        return
    sent, types = _Sent(side, side.stream_frames(), _resets(side)), side.capture.type
    for stream in sent.ids.tolist():
        mine = sent.of(stream)
        first = _first_limit(side, side.peer_parameters, stream)
        if sent.highest[mine][-1] <= first:
            continue
        granted = _granted(side, "max_stream_data", sent.packet[mine], first, stream)
        wrong = (sent.highest[mine] > granted) & (types[sent.packet[mine]] != EARLY)
        if wrong.any():
            excess = int((sent.highest[mine] - granted)[wrong].max())
            actual = f"data of stream {stream} ends {excess} B above the limit of the stream"
            yield Broken("rfc9000-4.1-stream-limit", actual, shown(sent.packet[mine][wrong]))
            break
    packets, used = sent.used()
    granted = _granted(side, "max_data", packets, total)
    wrong = (used > granted) & (types[packets] != EARLY)
    if wrong.any():
        yield Broken(
            "rfc9000-4.1-connection-limit",
            f"the data of all streams together is {int((used - granted)[wrong].max())} B above the limit of the "
            "connection",
            shown(packets[wrong]),
        )


def _first_limit(side: Side, parameters: Mapping[str, Any], stream: int) -> int:
    opened_by_sender = stream & 1 == side.sender
    name = "uni" if stream & 2 else "bidi_remote" if opened_by_sender else "bidi_local"
    return _integer(parameters, f"initial_max_stream_data_{name}")


def _integer(parameters: Mapping[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    return value if isinstance(value, int) else 0


def remembered_limits(side: Side, earlier: list[Side]) -> Iterator[Broken]:
    """In 0-RTT packets, a client keeps the limits of the connection whose session it resumes (RFC 9000 §7.4.1). Packets
    don't show which connection this is, so the highest limits of all earlier connections count."""
    early = side.of_type(EARLY)
    before = [client.peer_parameters for client in earlier]
    if not side.is_client or not side.whole or not len(early) or not before or not all(before):
        return
    capture = side.capture
    theirs = side.sent_by_peer
    # From the server's first protected packet on, the client may know higher limits.
    answers = theirs[~np.isin(capture.type[theirs], (INITIAL, RETRY))]
    early = early[early < answers[0]] if len(answers) else early
    streams, frames = capture.stream_frames, capture.frames
    rows = np.flatnonzero(np.isin(streams["packet"], early))
    about = side.frames(*_ABOUT_STREAMS)
    about = about[np.isin(frames["packet"][about], early)]
    sent = _Sent(side, rows, about[frames.named("name", "reset_stream")[about]])
    opened = np.concatenate((streams["stream_id"][rows], frames["stream_id"][about]))
    excesses: list[tuple[str, int, int, Ints]] = []
    for bit, name in ((0, "bidi"), (2, "uni")):
        mine = opened & 3 == bit
        used = int(opened[mine].max(initial=-4)) // 4 + 1
        limit = max(_integer(each, f"initial_max_streams_{name}") for each in before)
        excesses.append((f"{name} streams", used, limit, early))
    for stream in sent.ids.tolist():
        limit = max(_first_limit(side, each, stream) for each in before)
        excesses.append(
            (f"B of stream {stream}", int(sent.highest[sent.of(stream)][-1]), limit, sent.packet[sent.of(stream)])
        )
    packets, total = sent.used()
    limit = max(_integer(each, "initial_max_data") for each in before)
    excesses.append(("B of all streams", int(total[-1]) if len(total) else 0, limit, packets))
    for what, used, limit, where in excesses:
        if used > limit:
            actual = f"{used} {what} in 0-RTT packets, the remembered limit is {limit}"
            yield Broken("rfc9000-7.4.1-remembered-limits", actual, shown(where))
            break
    rows = side.frames("datagram")
    rows = rows[np.isin(frames["packet"][rows], early)]
    limit = max(_integer(each, "max_datagram_frame_size") for each in before)
    largest = int(_datagram_sizes(side, rows).max(initial=0))
    if largest > limit:
        actual = f"a DATAGRAM frame of {largest} B in 0-RTT packets, the remembered limit is {limit} B"
        yield Broken(f"rfc9221-3-{'too-large' if limit else 'not-offered'}", actual, shown(frames["packet"][rows]))


def stream_counts(side: Side) -> Iterator[Broken]:
    """An endpoint opens no more streams than the peer allows."""
    if not side.sound or not side.peer_parameters:
        return
    streams, frames = side.capture.stream_frames, side.capture.frames
    rows, resets, answers = side.stream_frames(), side.frames(*_ABOUT_STREAMS), side.frames(*_BY_RECEIVER)
    # STOP_SENDING and MAX_STREAM_DATA open the sender's own bidirectional streams; unidirectional ones never have them.
    one_way = answers[frames["stream_id"][answers] & 2 != 0]
    resets = np.setdiff1d(resets, one_way)
    opened = np.concatenate((streams["stream_id"][rows], frames["stream_id"][resets]))
    packets = np.concatenate((streams["packet"][rows], frames["packet"][resets]))
    order = np.argsort(packets, kind="stable")
    opened, packets = opened[order], packets[order]
    for bit, name in ((0, "bidi"), (2, "uni")):
        mine = (opened & 3 == bit | side.sender) & (side.capture.type[packets] != EARLY)
        first = side.peer_parameters.get(f"initial_max_streams_{name}", 0)
        if not mine.any() or not isinstance(first, int):
            continue
        granted = _granted(side, f"max_streams_{name}", packets[mine], first)
        wrong = opened[mine] // 4 + 1 > granted
        if wrong.any():
            yield Broken(
                "rfc9000-4.6-too-many-streams",
                f"stream {opened[mine][wrong][0]} is opened, although the limit is "
                f"{format_count(granted[wrong][0], 'stream')} of this type",
                shown(packets[mine][wrong]),
            )


def endings(side: Side) -> Iterator[Broken]:
    """A stream has one final size, no data beyond it, and no data after RESET_STREAM."""
    capture = side.capture
    frames, streams = capture.frames, capture.stream_frames
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
        actual = f"the final size of stream {stream[at]} changes from {size[at]} to {size[at + 1]} B"
        yield Broken("rfc9000-4.5-final-size-changed", actual, shown(packet[at : at + 2]), pair=True)
    sent = _Sent(side, rows, resets)
    ending = find(stream, sent.stream)
    limit = np.append(size, _COMMON)[ending]  # NULL is -1: a stream that did not end has the limit _COMMON
    beyond = np.flatnonzero((sent.end > limit) & ~np.isin(sent.stream, list(changed)))
    if len(beyond):
        at = beyond[0]
        actual = f"data of stream {sent.stream[at]} ends at {sent.end[at]}, its final size is {limit[at]}"
        yield Broken("rfc9000-4.5-data-beyond-final-size", actual, shown(sent.packet[beyond]))
    blocked = side.frames("stream_data_blocked")
    yield from _after_reset(side, streams["stream_id"][rows], streams["packet"][rows], "stream")
    yield from _after_reset(side, frames["stream_id"][blocked], frames["packet"][blocked], "blocked")


def _resets(side: Side) -> Ints:
    """Rows of the endpoint's RESET_STREAM frames, without those in rejected 0-RTT packets."""
    rows = side.frames("reset_stream")
    return rows[side.is_valid(side.capture.frames["packet"][rows])]


def _after_reset(side: Side, stream: Ints, packet: Ints, rule: str) -> Iterator[Broken]:
    """Report frames of streams after their RESET_STREAM. `stream`, `packet`: the stream and the packet of each
    frame that the rule is about."""
    frames, resets = side.capture.frames, _resets(side)
    reset = find(frames["stream_id"][resets], stream)
    late = np.flatnonzero((reset != NULL) & (packet > np.append(frames["packet"][resets], NULL)[reset]))
    if len(late):
        name = "STREAM" if rule == "stream" else "STREAM_DATA_BLOCKED"
        actual = f"{name} of stream {stream[late[0]]} after its RESET_STREAM"
        yield Broken(f"rfc9000-3.3-{rule}-after-reset", actual, shown(packet[late]))


def datagram_frames(side: Side) -> Iterator[Broken]:
    """An endpoint sends DATAGRAM frames only when the peer accepts them, up to the size that the peer accepts (RFC 9221
    §3). 0-RTT packets use the limit of an earlier connection (`remembered_limits`)."""
    rows = side.frames("datagram")
    rows = rows[side.capture.type[side.capture.frames["packet"][rows]] != EARLY]
    if not len(rows) or not side.peer_parameters:
        return
    frames = side.capture.frames
    limit = side.peer_parameters.get("max_datagram_frame_size", 0)
    if not isinstance(limit, int) or limit == 0:
        actual = f"{format_count(len(rows), 'DATAGRAM frame')}, but the peer sent no max_datagram_frame_size or 0"
        yield Broken("rfc9221-3-not-offered", actual, shown(frames["packet"][rows]))
        return
    size = _datagram_sizes(side, rows)
    large = rows[size > limit]
    if len(large):
        yield Broken(
            "rfc9221-3-too-large", f"a frame of {int(size.max())} B, limit {limit} B", shown(frames["packet"][large])
        )


def _datagram_sizes(side: Side, rows: Ints) -> Ints:
    """Bytes of whole DATAGRAM frames, with type and length field, as max_datagram_frame_size counts (RFC 9221 §3)."""
    frames = side.capture.frames
    length_field = np.maximum(frames["value"][rows], 0)  # null in older tables
    return np.maximum(frames["type_length"][rows], 1) + length_field + frames["length"][rows]


def repeats(side: Side) -> Iterator[Broken]:
    """Data that is sent again has the same bytes (RFC 9000 §2.2): CRYPTO data, and the part of streams that the tables
    keep."""
    capture = side.capture
    streams, frames = capture.stream_frames, capture.frames
    crypto = side.frames("crypto")
    of_crypto = frames["packet"][crypto]
    rows = side.stream_frames()
    for table, name, where, group, title in (
        (frames, "payload", crypto, _attempts(side, of_crypto), "CRYPTO data"),
        (streams, "data", rows, streams["stream_id"][rows], "data of stream {}"),
    ):
        for key, part in _overlapping(where, group, table["offset"][where], table["length"][where]):
            changed = _changed(part, table, name)
            if changed is not None:
                at, first, second = changed
                yield Broken(
                    "rfc9000-2.2-data-changed",
                    f"byte {at} of the {title.format(key)} differs from the byte that was sent before",
                    (int(table["packet"][first]), int(table["packet"][second])),
                    pair=True,
                )
                return


def _attempts(side: Side, packets: Ints) -> Ints:
    """Per packet with CRYPTO data: a number that stands for its CRYPTO stream. Each packet number space has a stream of
    its own. The client begins again after Retry, where another rule compares the ClientHello (§17.2.5.3), and after
    Version Negotiation. A server may give up a handshake and begin a new handshake with another connection ID."""
    capture = side.capture
    space = capture.packet_space[packets]
    if side.is_client:
        retries = side.of_type(RETRY, got=True)
        retried = packets > retries[0] if len(retries) else np.zeros(len(packets), dtype=bool)
        versions = np.unique(capture.packets["version"][packets], return_inverse=True)[1]
        attempt = np.where(space == 0, versions * 2 + retried, 0)
    else:
        attempt = np.where(space < 2, capture.ids("scid")[0][packets], 0)
    return attempt * 3 + space


def _overlapping(rows: Ints, group: Ints, offset: Ints, length: Ints) -> Iterator[tuple[int, Ints]]:
    """Each group with frames that overlap, and its rows in the order of the capture."""
    near = (offset < _COMPARED) & (length > 0)
    rows, group, offset, end = rows[near], group[near], offset[near], (offset + length)[near]
    order = np.lexsort((offset, group))
    base = group[order] * _COMMON
    before = np.maximum.accumulate(base + np.minimum(end[order], _COMMON - 1))[:-1] if len(order) else base
    overlaps = (base + offset[order])[1:] < before
    for key in np.unique(group[order][1:][overlaps]).tolist():
        yield key, rows[group == key]


def _changed(rows: Ints, table: Columns, name: str) -> tuple[int, int, int] | None:
    """The first byte that differs from an earlier frame: its offset, the row of the first frame of the group, the row
    of the frame that differs. `name`: the column with the data."""
    known, have = np.zeros(_COMPARED, dtype=np.uint8), np.zeros(_COMPARED, dtype=bool)
    for row in rows.tolist():
        start = int(table["offset"][row])
        data = np.frombuffer(table.cell(name, row) or b"", dtype=np.uint8)[: _COMPARED - start]
        part = slice(start, start + len(data))
        differs = np.flatnonzero(have[part] & (known[part] != data))
        if len(differs):
            return start + int(differs[0]), int(rows[0]), row
        known[part], have[part] = data, True
    return None


STREAM_DETECTORS = (wrong_streams, offsets, flow_control, stream_counts, endings, datagram_frames, repeats)
