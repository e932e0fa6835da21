"""The bytes that the client's flow control (RFC 9000 §4.1) allowed the server at any moment."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runner.decode.schema import CLIENT
from runner.diagnose.flight import Floats
from runner.trace.intervals import Ints
from runner.trace.trace_facts import ConnectionFacts
from runner.trace.transfer import StreamData, Transfer
from runner.trace.vantage import Vantage

_MOST_STREAMS = 16  # with more streams the limits of single streams are ignored, because they hold nothing back


@dataclass(frozen=True)
class Steps:
    """A value that only grows: `value[i]` holds from `time[i]` on. `before` is the value before `time[0]`."""

    time: Floats
    value: Floats
    before: float

    def at(self, moments: Floats) -> Floats:
        return np.append(self.before, self.value)[np.searchsorted(self.time, moments, side="right")]


@dataclass(frozen=True)
class Room:
    """Limits and use of flow control for the response data of one connection, in the time of the server's capture."""

    transfer: Transfer
    connection: int
    facts: ConnectionFacts
    origin: int

    @cached_property
    def _server(self) -> Vantage:
        server = self.transfer.recording.server
        assert server is not None  # a Flight exists only with this capture
        return server

    @cached_property
    def _sent(self) -> StreamData:
        sent = self.transfer.sent
        assert sent is not None
        return sent

    @cached_property
    def _streams(self) -> Ints:
        """The streams of the connection, as indices in the layout."""
        return np.flatnonzero(self.transfer.layout.connection == self.connection)

    @cached_property
    def _gained(self) -> tuple[Ints, Floats, Ints]:
        """Per frame that extended its stream: stream, time, number of new bytes. Sorted by stream, then by time."""
        sent, base = self._sent, self.transfer.layout.base
        rows = np.flatnonzero(sent.connection == self.connection)
        rows = rows[np.argsort(sent.stream[rows], kind="stable")]
        stream, end = sent.stream[rows], sent.end[rows]
        reached = np.maximum.accumulate(end)
        fresh = np.append(True, stream[1:] != stream[:-1])
        before = np.where(fresh, base[stream], np.append(0, reached[:-1]))
        gain = np.maximum(end - before, 0)
        chosen = gain > 0
        return stream[chosen], self._seconds(sent.time_ns[rows][chosen]), gain[chosen]

    def _seconds(self, time_ns: Ints) -> Floats:
        return (time_ns - self.origin) / 1e9

    @cached_property
    def used(self) -> Steps:
        """Bytes of all streams that count against MAX_DATA."""
        _, time, gain = self._gained
        order = np.argsort(time, kind="stable")
        return Steps(time[order], np.cumsum(gain[order]).astype(np.float64), 0.0)

    @cached_property
    def limit(self) -> Steps:
        """The client's limit for the connection (MAX_DATA), by the time at which the server learnt it. Infinity when
        the first limit wasn't seen."""
        frames = self._server.frames
        mine = frames.named("name", "max_data") & (frames["connection"] == self.connection)
        return self._steps(np.flatnonzero(mine & (frames["sender"] == CLIENT)), self.facts.initial_max_data)

    def _steps(self, rows: Ints, first: int | None) -> Steps:
        if first is None:
            return Steps(np.empty(0), np.empty(0), np.inf)
        frames = self._server.frames
        value = np.maximum(np.maximum.accumulate(frames["value"][rows]), first) if len(rows) else np.empty(0)
        return Steps(self._seconds(frames["time_ns"][rows]), value.astype(np.float64), float(first))

    @cached_property
    def busy(self) -> tuple[Floats, Floats]:
        """Per stream with data: when its request reached the server, and when its last new byte left the server."""
        stream, time, _ = self._gained
        frames, layout = self._server.stream_frames, self.transfer.layout
        mine = (frames["connection"] == self.connection) & (frames["sender"] == CLIENT)
        requested, first = np.unique(frames["stream_id"][mine], return_index=True)
        requested_at = self._seconds(frames["time_ns"][mine][first])
        open_, begin = np.unique(stream, return_index=True)
        last = np.append(begin[1:], len(stream)) - 1
        start = time[begin]
        if len(requested):
            place = np.minimum(np.searchsorted(requested, layout.stream_id[open_]), len(requested) - 1)
            known = requested[place] == layout.stream_id[open_]
            start = np.where(known, np.minimum(requested_at[place], start), start)
        return start, time[last]

    def pending(self, at: Floats) -> Floats:
        """Per moment: number of requested responses that were not yet sent completely."""
        start, end = (np.sort(times) for times in self.busy)
        count: Floats = (np.searchsorted(start, at, side="right") - np.searchsorted(end, at, side="right")).astype(
            float
        )
        return count

    def left(self, at: Floats) -> Floats:
        """Per moment: bytes that the client's limits still allowed: the smaller of the connection's limit and the sum
        of the limits of its unfinished streams."""
        connection = self.limit.at(at) - self.used.at(at)
        if self.facts.initial_max_stream_data is None or len(self._streams) > _MOST_STREAMS:
            return connection
        frames, layout = self._server.frames, self.transfer.layout
        raised = frames.named("name", "max_stream_data") & (frames["sender"] == CLIENT)
        raised &= frames["connection"] == self.connection
        stream, time, gain = self._gained
        streams = np.zeros(len(at))
        for number, start, end in zip(np.unique(stream), *self.busy, strict=True):
            mine = stream == number
            used = Steps(time[mine], np.cumsum(gain[mine]).astype(np.float64), 0.0)
            rows = np.flatnonzero(raised & (frames["stream_id"] == layout.stream_id[number]))
            limit = self._steps(rows, self.facts.initial_max_stream_data)
            streams += np.where((at >= start) & (at < end), limit.at(at) - used.at(at), 0.0)
        return np.minimum(connection, np.where(self.pending(at) > 0, streams, np.inf))
