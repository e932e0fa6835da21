"""Facts about streams: requests and responses, HTTP/3 frames, flow control, repeated bytes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runner.decode.columns import CLIENT, NULL, SERVER, Trace
from runner.model.facts import Request, StreamFacts
from runner.model.stack import HTTP09
from runner.trace.recording import (
    APPLICATION,
    Bools,
    Ints,
    Recording,
    Scope,
    Vantage,
    are_kept,
    find,
    first_ack,
    heads,
    integer_parameter,
    new_bytes,
    resent_bytes,
)

# The requests of HTTP/0.9 over QUIC, each with its answer, from the heads of streams.

_METHOD = b"GET "


def requests(scope: Scope) -> tuple[Request, ...] | None:
    """The requests of a connection, ordered by stream ID. None when the connection isn't HTTP/0.9, or the tables are
    too old. Requests and answers are read from the capture at the client; without it, from the capture at the
    server."""
    if scope.row.value("alpn") != HTTP09 or not are_kept(scope):
        return None
    sender_side, receiver_side = scope.best(CLIENT), scope.recording.far(SERVER) or scope.best(SERVER)
    answers = {head.stream_id: head for head in heads(scope, receiver_side, SERVER)}
    found = []
    for head in heads(scope, sender_side, CLIENT):
        if head.stream_id % 4 == 0:
            line = head.data.split(b"\r\n")[0].removeprefix(_METHOD).strip()
            answer = answers.get(head.stream_id)
            found.append(
                Request(
                    stream_id=head.stream_id,
                    name=line.decode(errors="replace").rsplit("/", 1)[-1],
                    place=scope.place(sender_side, sender_side.stream_frames["packet"][head.rows[0]]),
                    answer=b"" if answer is None else answer.data,
                    answer_end=None
                    if answer is None
                    else scope.place(receiver_side, receiver_side.stream_frames["packet"][answer.rows[-1]]),
                )
            )
    return tuple(found)


_UNIDIRECTIONAL = 0x02  # bit of a stream ID, RFC 9000 §2.1

# The credit of flow control (RFC 9000 §4.1).


def used_up(scope: Scope) -> frozenset[int]:
    """The request streams for which the server has sent all data that the client's last limits allow. Empty without a
    capture at the server."""
    vantage = scope.recording.server
    total = integer_parameter(scope.client_parameters, "initial_max_data")
    if vantage is None or total is None:
        return frozenset()
    frames, end = vantage.stream_frames, np.array([len(vantage.packets)])
    rows = np.flatnonzero(scope.mine(frames, SERVER))
    sent: dict[int, int] = {}
    for stream in np.unique(frames["stream_id"][rows]).tolist():
        mine = rows[frames["stream_id"][rows] == stream]
        sent[stream] = int((frames["offset"][mine] + frames["length"][mine]).max())
    requests = {stream: size for stream, size in sent.items() if stream % 4 == 0}
    if sum(sent.values()) >= _granted(scope, vantage, end, total)[0]:
        return frozenset(requests)
    return frozenset(
        stream
        for stream, size in requests.items()
        if size >= _granted(scope, vantage, end, _first_limit(scope, stream), stream=stream)[0]
    )


def limits_raised(scope: Scope) -> bool | None:
    """Whether the client raised a limit for response data; None when its first limits were not seen."""
    total = integer_parameter(scope.client_parameters, "initial_max_data")
    if total is None:
        return None
    vantage = scope.best(CLIENT)
    frames = vantage.frames
    if (frames["value"][scope.frames(vantage, CLIENT, "max_data")] > total).any():
        return True
    rows = scope.frames(vantage, CLIENT, "max_stream_data")
    streams, limits = frames["stream_id"][rows].tolist(), frames["value"][rows].tolist()
    return any(limit > _first_limit(scope, stream) for stream, limit in zip(streams, limits, strict=True))


def _first_limit(scope: Scope, stream: int) -> int:
    name = "uni" if stream & _UNIDIRECTIONAL else "bidi_remote" if stream & 1 else "bidi_local"
    return integer_parameter(scope.client_parameters, f"initial_max_stream_data_{name}") or 0


def _granted(scope: Scope, vantage: Vantage, packets: Ints, first: int, *, stream: int | None = None) -> Ints:
    """Per packet: the limit of a stream, or of the connection, at the time when the packet was sent."""
    frames = vantage.frames
    rows = scope.frames(vantage, CLIENT, "max_data" if stream is None else "max_stream_data")
    if stream is not None:
        rows = rows[frames["stream_id"][rows] == stream]
    rows = rows[np.argsort(frames["packet"][rows], kind="stable")]
    limits = np.maximum.accumulate(np.concatenate(([first], frames["value"][rows])))
    granted: Ints = limits[np.searchsorted(frames["packet"][rows], packets)]
    return granted


# The response data of a recording: sent, received and repeated bytes of the request streams.

NEW, RETRANSMISSION, SPURIOUS = 0, 1, 2

# Larger than any stream in a capture. Only broken or hostile traces have larger offsets; sums of such offsets overflow.
_MAX_OFFSET = 1 << 44
_FRAMES_PER_PACKET = 1 << 16


@dataclass(frozen=True)
class Layout:
    """All streams of a direction on one axis of global offsets. The streams follow each other without gaps, ordered by
    connection, then by stream ID."""

    connection: Ints
    stream_id: Ints
    size: Ints
    """For each stream: the highest end offset of a frame, at either vantage point."""

    @cached_property
    def base(self) -> Ints:
        """Per stream: its first global offset."""
        return np.cumsum(self.size) - self.size


@dataclass(frozen=True)
class StreamData:
    """STREAM frames of one direction at one vantage point, in the order of the capture."""

    time_ns: Ints
    connection: Ints
    packet: Ints
    """Row of the packet in the capture."""
    key: Ints
    """A number made from the packet and the frame's place in it. It is unique in the capture."""
    stream: Ints
    """Index of the stream in the layout."""
    start: Ints
    """Global offset of the first byte of the frame."""
    length: Ints
    fin: Bools

    @cached_property
    def end(self) -> Ints:
        """Global offset of the first byte after each frame."""
        return self.start + self.length

    @cached_property
    def new(self) -> Ints:
        """Per frame: bytes that no earlier frame carried past this vantage point."""
        return new_bytes(self.start, self.end)


def stream_data(vantages: tuple[Vantage, ...], sender: int, *, requests_only: bool) -> tuple[Layout, list[StreamData]]:
    """The stream data that `sender` sent, per vantage point, in a common layout. With `requests_only`, only request
    streams: bidirectional streams that the client opened (RFC 9000 §2.1)."""
    chosen = [_chosen(vantage, sender, requests_only) for vantage in vantages]
    pairs = [
        np.column_stack([vantage.stream_frames[name][rows] for name in ("connection", "stream_id")])
        for vantage, rows in zip(vantages, chosen, strict=True)
    ]
    streams, index = _distinct(np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64))
    parts = np.split(index, np.cumsum([len(pair) for pair in pairs])[:-1]) if pairs else []
    size = np.zeros(len(streams), dtype=np.int64)
    for vantage, rows, part in zip(vantages, chosen, parts, strict=True):
        np.maximum.at(size, part, (vantage.stream_frames["offset"] + vantage.stream_frames["length"])[rows])
    layout = Layout(connection=streams[:, 0], stream_id=streams[:, 1], size=size)
    data = []
    for vantage, rows, part in zip(vantages, chosen, parts, strict=True):
        frames = vantage.stream_frames
        data.append(
            StreamData(
                time_ns=frames["time_ns"][rows],
                connection=frames["connection"][rows],
                packet=frames["packet"][rows],
                key=frames["packet"][rows] * _FRAMES_PER_PACKET + frames["frame"][rows],
                stream=part,
                start=layout.base[part] + frames["offset"][rows],
                length=frames["length"][rows],
                fin=frames["fin"][rows] == 1,
            )
        )
    return layout, data


def _chosen(vantage: Vantage, sender: int, requests_only: bool) -> Ints:
    frames = vantage.stream_frames
    chosen = (frames["sender"] == sender) & (frames["connection"] >= 0)
    chosen &= (frames["offset"] >= 0) & (frames["offset"] < _MAX_OFFSET) & (frames["length"] >= 0)
    if requests_only:
        chosen &= frames["stream_id"] % 4 == 0
    return np.flatnonzero(chosen)


def _distinct(pairs: Ints) -> tuple[Ints, Ints]:
    """The sorted distinct pairs (connection, stream ID), and the position of each given pair in them."""
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    ordered = pairs[order]
    fresh = np.ones(len(pairs), dtype=bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    index = np.empty(len(pairs), dtype=np.int64)
    index[order] = np.cumsum(fresh) - 1
    return ordered[fresh], index


class Transfer:
    """The response data of all connections, at both vantage points where they exist; with `upload`, the data of the
    requests (see `Recording`)."""

    def __init__(self, client_side: Trace | None, server_side: Trace | None, *, upload: bool = False) -> None:
        self.recording = recording = Recording(client_side, server_side, upload=upload)
        self.layout, data = stream_data(recording.vantages, SERVER, requests_only=True)
        rest = iter(data)
        self.received = next(rest) if recording.client else None
        self.sent = next(rest) if recording.server else None

    @cached_property
    def arrived(self) -> Bools | None:
        """Per sent frame: whether its packet was seen at the client. None without both captures."""
        if self.sent is None or self.recording.arrival is None:
            return None
        arrived: Bools = self.recording.arrival[self.sent.packet] != NULL
        return arrived

    @cached_property
    def resent(self) -> tuple[Ints, Ints] | None:
        """Per sent frame: the bytes that had been sent before, and the bytes of which an earlier copy arrived. The
        second number is 0 unless both captures exist."""
        if self.sent is None:
            return None
        arrived = self.arrived if self.arrived is not None else np.zeros(len(self.sent.start), dtype=bool)
        return resent_bytes(self.sent.start, self.sent.end, arrived)

    @cached_property
    def sent_kind(self) -> Ints | None:
        """Per sent frame: NEW, RETRANSMISSION (at least one byte was sent before) or SPURIOUS (an earlier copy of at
        least one byte arrived)."""
        if self.resent is None:
            return None
        repeated, spurious = self.resent
        return np.where(spurious > 0, SPURIOUS, np.where(repeated > 0, RETRANSMISSION, NEW))

    @cached_property
    def received_kind(self) -> Ints | None:
        """Per received frame: its kind when it was sent. Without the server's capture only NEW and SPURIOUS (a
        duplicate) can be distinguished."""
        if self.received is None:
            return None
        kind = np.where(self.received.new < self.received.length, SPURIOUS, NEW)
        if self.sent is None or self.sent_kind is None or self.recording.departure is None:
            return kind
        origin = self.recording.departure[self.received.packet]
        key = np.where(origin < 0, NULL, origin * _FRAMES_PER_PACKET + self.received.key % _FRAMES_PER_PACKET)
        row = find(self.sent.key, key)
        return np.where(row < 0, kind, self.sent_kind[row]) if len(self.sent.key) else kind

    @cached_property
    def sent_completely(self) -> bool:
        """True when the server's capture contains every packet with response data, and all these packets could be read.
        Otherwise counts of sent bytes are too low."""
        server = self.recording.server
        if server is None or self.sent is None or not len(self.sent.start):
            return False
        packets = server.packets
        mine = (packets["sender"] == SERVER) & packets.named("type", "1rtt")
        # Unreadable packets after the last readable packet are stateless resets (RFC 9000 §10.3).
        unread = np.flatnonzero(mine & (packets["decrypted"] == 0))
        last = np.flatnonzero(mine & (packets["decrypted"] == 1))
        if len(unread) and len(last) and unread[0] < last[-1]:
            return False
        if self.received is None or self.recording.departure is None:
            return True
        return bool((self.recording.departure[self.received.packet] != NULL).all())

    @cached_property
    def initial_window_bytes(self) -> int | None:
        """The response bytes that the server sent on the first connection before the first ACK for one of these bytes
        arrived."""
        if self.sent is None or self.recording.server is None or not self.sent_completely:
            return None
        connection = int(self.sent.connection[0])
        early = self.sent.connection == connection
        limit = first_acknowledged(self.recording.server, connection, self.sent.packet[early])
        if limit is not None:
            early &= self.sent.time_ns < limit
        return int(self.sent.new[early].sum())


def first_acknowledged(server: Vantage, connection: int, packets: Ints) -> int | None:
    """The time in ns when the first ACK for one of `packets` (rows) passed the server's vantage point; None when there
    is none."""
    acks = server.ack_frames
    numbers = np.sort(server.packets["packet_number"][packets])
    mine = (acks["connection"] == connection) & (acks["sender"] == CLIENT) & (server.ack_space == APPLICATION)
    row = first_ack(server, np.flatnonzero(mine & (acks["largest"] >= numbers[0])), numbers)
    return None if row is None else int(acks["time_ns"][row])


# Facts about streams: their bytes in each direction, the times when they were open, and limits of their number.

_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class _Seen:
    """The streams of one direction at one vantage point. Each array has one entry per stream of the layout."""

    bytes: Ints
    """Number of distinct bytes."""
    fin: Ints
    """Final size in bytes; NULL without a FIN."""
    first_frame: Ints
    """Time of the first frame in ns; _NEVER without a frame."""
    last_new_byte: Ints
    """Time of the last new byte in ns; NULL without a byte."""
    fin_time: Ints
    """Time of the first FIN in ns; _NEVER without a FIN."""
    early: Bools
    """True when the first byte was in a 0-RTT packet."""

    def complete(self) -> Ints:
        """Per stream: the time when all data up to the FIN had passed; _NEVER when data was missing."""
        whole = (self.fin != NULL) & (self.bytes == self.fin)
        return np.where(whole, np.maximum(self.last_new_byte, self.fin_time), _NEVER)


def _see(vantage: Vantage, layout: Layout, data: StreamData) -> _Seen:
    count = len(layout.size)
    offset = data.start - layout.base[data.stream]
    fin = np.full(count, NULL, dtype=np.int64)
    np.maximum.at(fin, data.stream[data.fin], (offset + data.length)[data.fin])
    fresh = data.new > 0
    last = np.full(count, NULL, dtype=np.int64)
    np.maximum.at(last, data.stream[fresh], data.time_ns[fresh])
    early = np.zeros(count, dtype=bool)
    starts = fresh & (offset == 0)
    early[data.stream[starts]] = vantage.packets.named("type", "0rtt")[data.packet[starts]]
    return _Seen(
        bytes=np.bincount(data.stream, weights=data.new, minlength=count).astype(np.int64),
        fin=fin,
        first_frame=_earliest(count, data.stream, data.time_ns),
        last_new_byte=last,
        fin_time=_earliest(count, data.stream[data.fin], data.time_ns[data.fin]),
        early=early,
    )


def _earliest(count: int, stream: Ints, time_ns: Ints) -> Ints:
    earliest = np.full(count, _NEVER, dtype=np.int64)
    np.minimum.at(earliest, stream, time_ns)
    return earliest


class _Direction:
    """The streams of one sender. `near`: as seen at the sender's vantage point. `far`: as seen at the receiver's
    vantage point. One of them may be None."""

    def __init__(self, recording: Recording, sender: int) -> None:
        self.layout, data = stream_data(recording.vantages, sender, requests_only=False)
        views = {
            vantage: _see(vantage, self.layout, part) for vantage, part in zip(recording.vantages, data, strict=True)
        }
        near, far = recording.near(sender), recording.far(sender)
        self.near = views[near] if near else None
        self.far = views[far] if far else None
        self.at = {
            (int(connection), int(stream)): index
            for index, (connection, stream) in enumerate(
                zip(self.layout.connection, self.layout.stream_id, strict=True)
            )
        }


class Streams:
    """All streams of all connections."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._client = _Direction(recording, CLIENT)
        self._server = _Direction(recording, SERVER)

    def of_connection(self, number: int) -> tuple[StreamFacts, ...]:
        """The streams of a connection, ordered by ID."""
        keys = sorted(key for key in self._client.at.keys() | self._server.at.keys() if key[0] == number)
        return tuple(self._facts(key) for key in keys)

    def _facts(self, key: tuple[int, int]) -> StreamFacts:
        client, server = self._client, self._server
        sent, answered = client.at.get(key), server.at.get(key)
        left, arrived = client.near or client.far, client.far or client.near
        response = server.far or server.near
        request = last = None
        if sent is not None and client.near is not None:
            request = self._seconds(client.near.first_frame[sent])
        if answered is not None and server.far is not None:
            last = self._seconds(server.far.last_new_byte[answered])
        return StreamFacts(
            stream_id=key[1],
            client_bytes=int(arrived.bytes[sent]) if arrived and sent is not None else 0,
            server_bytes=int(response.bytes[answered]) if response and answered is not None else 0,
            client_fin=_fin(client, sent),
            server_fin=_fin(server, answered),
            request=request,
            last_new_byte=last,
            early_data=bool(left.early[sent]) if left and sent is not None else False,
        )

    def _seconds(self, time_ns: int) -> float | None:
        return None if time_ns in (NULL, _NEVER) else self.recording.seconds(int(time_ns))

    def max_concurrent(self, number: int) -> int:
        """The highest number of request streams that were open at the same time. A stream is open from its request to
        the last byte of its response. The times are from the client's vantage point; without a capture there, from the
        server's vantage point."""
        requests = self._client.near or self._client.far
        answered = self._server.far if self._client.near else self._server.near
        if requests is None:
            return 0
        mine = (self._client.layout.connection == number) & (self._client.layout.stream_id % 4 == 0)
        opened = np.sort(requests.first_frame[mine])
        opened = opened[opened != _NEVER]
        closed = np.empty(0, dtype=np.int64)
        if answered is not None:
            layout = self._server.layout
            closed = np.sort(answered.complete()[(layout.connection == number) & (layout.stream_id % 4 == 0)])
        still_open = np.arange(1, len(opened) + 1) - np.searchsorted(closed, opened, side="right")
        return int(still_open.max(initial=0))


def _fin(direction: _Direction, index: int | None) -> int | None:
    if index is None:
        return None
    fin = max(int(view.fin[index]) for view in (direction.near, direction.far) if view is not None)
    return None if fin == NULL else fin


def max_streams(scope: Scope) -> tuple[int | None, int | None]:
    """The server's first and last limit for request streams (RFC 9000 §4.6)."""
    first = integer_parameter(scope.server_parameters, "initial_max_streams_bidi")
    vantage = scope.best(SERVER)
    limits = vantage.frames["value"][scope.frames(vantage, SERVER, "max_streams_bidi")]
    if first is None:
        return None, None
    return first, max([first, *(int(limit) for limit in limits)])
