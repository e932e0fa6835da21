"""Facts about streams: their bytes in each direction, the times when they were open, and limits of their number."""

from dataclasses import dataclass

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Bools, Ints
from runner.trace.nouns import StreamFacts
from runner.trace.scope import Scope, integer_parameter
from runner.trace.transfer import Layout, StreamData, stream_data
from runner.trace.vantage import NULL, Recording, Vantage

_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class _Seen:
    """The streams of one direction at one vantage point. Each array has one entry per stream of the layout."""

    bytes: Ints
    """Number of distinct bytes."""
    end: Ints
    """Highest end offset of a frame."""
    fin: Ints
    """Final size in bytes; NULL without a FIN."""
    first_frame: Ints
    """Time of the first frame in ns; _NEVER without a frame."""
    first_byte: Ints
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
    end = np.zeros(count, dtype=np.int64)
    np.maximum.at(end, data.stream, offset + data.length)
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
        end=end,
        fin=fin,
        first_frame=_earliest(count, data.stream, data.time_ns),
        first_byte=_earliest(count, data.stream[fresh], data.time_ns[fresh]),
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
        self.early_bytes = np.zeros(len(recording.connections), dtype=np.int64)
        for vantage, part in list(zip(recording.vantages, data, strict=True))[:1]:
            early = vantage.packets.named("type", "0rtt")[part.packet]
            np.add.at(self.early_bytes, part.connection[early], part.new[early])
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
        request = first = last = None
        if sent is not None and client.near is not None:
            request = self._seconds(client.near.first_frame[sent])
        if answered is not None and server.far is not None:
            first = self._seconds(server.far.first_byte[answered])
            last = self._seconds(server.far.last_new_byte[answered])
        return StreamFacts(
            stream_id=key[1],
            client_bytes=int(arrived.bytes[sent]) if arrived and sent is not None else 0,
            server_bytes=int(response.bytes[answered]) if response and answered is not None else 0,
            client_fin=_fin(client, sent),
            server_fin=_fin(server, answered),
            request=request,
            first_new_byte=first,
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

    def early_bytes(self, number: int) -> int:
        """Distinct STREAM bytes that the client sent in 0-RTT packets."""
        return int(self._client.early_bytes[number])


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
