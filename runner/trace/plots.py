"""Converts a recording to `series.json`: the plots of a job as small integers, with the qlog's congestion window."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from runner.decode.columns import CLIENT, SERVER
from runner.files import log_files, open_log
from runner.model.facts import TraceFacts
from runner.model.link import LinkParameters
from runner.model.result import Sample
from runner.model.stack import HTTP09
from runner.trace.measure import Line, rate_bound, slow_start_bound
from runner.trace.recording import Ints
from runner.trace.streams import StreamData, Transfer

# Converts a recording to `series.json`: the plots of a job as small integers. `series` describes the format.

SERIES_SCHEMA = 1

_MAX_BINS = 600
_INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_SPARK_POINTS = 40
# A plot is only about 2000 pixels wide, so adjacent frames are joined when there are more than `_MAX_FRAMES`.
_MAX_FRAMES = 20_000
_JOIN_SHARE = 2000


def series(
    transfer: Transfer,
    facts: TraceFacts,
    sample: Sample,
    *,
    file_sizes: Sequence[int],
    forward: LinkParameters,
    return_: LinkParameters,
) -> dict[str, Any]:
    """The content of `series.json`.

    - `origin_unix_ns`: the time of the client's first Initial packet at the client's vantage point.
    - `files`: sizes of the response streams (over HTTP/3 with their framing). On the axis of offsets, the streams
      follow each other without gaps.
    - `client`, `server`: the frames with response data that passed each vantage point. `t_us` since the origin,
      `offset` on this axis, `length`, `kind` (0 new, 1 retransmission, 2 spurious retransmission).
    - `lost`: frames that never reached the client.
    - `rate`: bit/s per bin of `interval_s` at the client.
    - `marks`: times of events in seconds since the origin.
    - `bounds`: the best possible reception at the client over this link, from the request's arrival at the server on.
    - `spark`: points of a small curve: per mille of the time, per mille of the bytes.

    Lists named `t_us` and `offset` are delta-coded.
    """
    origin = _origin(transfer)
    request = _request(facts)
    return {
        "schema": SERIES_SCHEMA,
        "origin_unix_ns": origin,
        "file_size": sum(file_sizes),
        "files": _stream_sizes(transfer, facts) or list(file_sizes),
        "client": _vantage(transfer.received, transfer.received_kind, origin),
        "server": _vantage(transfer.sent, transfer.sent_kind, origin),
        "lost": _lost(transfer, origin),
        "rate": _rate(transfer, origin),
        "marks": {
            "first_server_1rtt": sample.first_server_1rtt,
            "handshake_confirmed": sample.handshake_time,
            "request": request,
            "ttfb": sample.ttfb,
            "ttlb": sample.ttlb,
        },
        "bounds": _bounds(transfer, sample, request, forward=forward, return_=return_),
        "spark": _spark(transfer, origin),
    }


def _origin(transfer: Transfer) -> int:
    """The recording's origin. When it is unknown, the time of the first datagram in the captures; 0 when there is no
    datagram."""
    if transfer.recording.origin_ns is not None:
        return transfer.recording.origin_ns
    first = [
        int(vantage.datagrams["time_ns"].min()) for vantage in transfer.recording.vantages if len(vantage.datagrams)
    ]
    return min(first, default=0)


def _stream_sizes(transfer: Transfer, facts: TraceFacts) -> list[int]:
    """The size of each response stream in bytes, when streams contain framing besides the files. Empty when each stream
    is exactly a file."""
    framed = any(connection.alpn not in (None, HTTP09) for connection in facts.connections)
    sizes: list[int] = transfer.layout.size.tolist() if framed else []
    return sizes


def _request(facts: TraceFacts) -> float | None:
    """The time when the client sent its first request; None when it was not seen."""
    times = [stream.request for connection in facts.connections for stream in connection.request_streams]
    return min((time for time in times if time is not None), default=None)


def _microseconds(time_ns: Ints, origin: int) -> Ints:
    return (time_ns - origin) // 1000


def _delta(values: Ints) -> list[int]:
    """Delta coding: the first value, then differences."""
    coded: list[int] = np.diff(values, prepend=0).tolist()
    return coded


def _vantage(data: StreamData | None, kind: Ints | None, origin: int) -> dict[str, list[int]]:
    if data is None or kind is None:
        return {"t_us": [], "offset": [], "length": [], "kind": []}
    filled = data.length > 0
    time, start, length, kind = (
        column[filled] for column in (_microseconds(data.time_ns, origin), data.start, data.length, kind)
    )
    if len(time) > _MAX_FRAMES:
        time, start, length, kind = _join(time, start, length, kind)
    return {"t_us": _delta(time), "offset": _delta(start), "length": length.tolist(), "kind": kind.tolist()}


def _join(time: Ints, start: Ints, length: Ints, kind: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Join adjacent frames of the same kind whose times are in the same pixel."""
    pixel = max(1, int(time[-1] - time[0]) // _JOIN_SHARE)
    follows = (start[1:] == start[:-1] + length[:-1]) & (kind[1:] == kind[:-1])
    follows &= time[1:] // pixel == time[:-1] // pixel
    heads = np.flatnonzero(np.append(True, ~follows))
    return time[heads], start[heads], np.add.reduceat(length, heads), kind[heads]


def _lost(transfer: Transfer, origin: int) -> dict[str, list[int]]:
    data, arrived = transfer.sent, transfer.arrived
    if data is None or arrived is None:
        return {"t_us": [], "offset": []}
    chosen = ~arrived & (data.length > 0)
    return {"t_us": _delta(_microseconds(data.time_ns[chosen], origin)), "offset": _delta(data.start[chosen])}


def _rate(transfer: Transfer, origin: int) -> dict[str, object]:
    """Data rates at the client's vantage point, up to the last datagram of response data (without such data, up to the
    last datagram)."""
    client = transfer.recording.client
    if client is None or not len(client.datagrams):
        return {"interval_s": _INTERVALS[0], "forward_raw": [], "forward_goodput": [], "return_raw": []}
    datagrams = client.datagrams
    time = (datagrams["time_ns"] - origin) / 1e9
    data = transfer.received
    end = float(time.max()) if data is None or not len(data.time_ns) else int(data.time_ns.max() - origin) / 1e9
    interval = next((step for step in _INTERVALS if end / step <= _MAX_BINS - 1), max(end / (_MAX_BINS - 1), 0.1))
    bins = max(0, int(end / interval)) + 1

    def rates(times: NDArray[np.float64], sizes: Ints) -> list[int]:
        index = np.floor(times / interval).astype(np.int64)
        inside = (index >= 0) & (index < bins)
        sums = np.bincount(index[inside], weights=sizes[inside], minlength=bins)
        bits_per_second: list[int] = np.rint(8 * sums / interval).astype(np.int64).tolist()
        return bits_per_second

    forward, back = datagrams["sender"] == SERVER, datagrams["sender"] == CLIENT
    goodput = rates((data.time_ns - origin) / 1e9, data.new) if data is not None else [0] * bins
    return {
        "interval_s": interval,
        "forward_raw": rates(time[forward], datagrams["ip_length"][forward]),
        "forward_goodput": goodput,
        "return_raw": rates(time[back], datagrams["ip_length"][back]),
    }


def _bounds(
    transfer: Transfer, sample: Sample, request: float | None, *, forward: LinkParameters, return_: LinkParameters
) -> dict[str, object]:
    """The link's bounds as polylines. A polyline begins when the request reaches the server. Each byte needs the
    forward delay to reach the client."""
    rtt = forward.delay + return_.delay or sample.rtt_min
    window = sample.initial_window_bytes
    begin = _request_at_server(transfer, request, return_)
    ideal: list[list[float]] = []
    slow_start: list[list[float]] = []
    size = sample.file_size
    if begin is not None and size > 0:
        delay = forward.delay or sample.one_way_delay_median or 0.0
        ideal = _shift(rate_bound(file_size=size, way=forward, begin=begin).line, begin, delay)
        if rtt is not None and window:
            bound = slow_start_bound(file_size=size, way=forward, rtt=rtt, initial_window=window, begin=begin)
            slow_start = _shift(bound.line, begin, delay)
    return {
        "forward_rate": forward.data_rate,
        "rtt": rtt,
        "initial_window_bytes": window,
        "ideal": ideal,
        "slow_start": slow_start,
    }


def _request_at_server(transfer: Transfer, request: float | None, return_: LinkParameters) -> float | None:
    """The time when the first request passed the server's vantage point. When the captures don't show this time, the
    time of the request at the client plus the return delay."""
    server = transfer.recording.server
    if server is not None and transfer.recording.one_clock:
        frames = server.stream_frames
        requests = frames["time_ns"][(frames["sender"] == CLIENT) & (frames["stream_id"] % 4 == 0)]
        if len(requests):
            return transfer.recording.seconds(int(requests.min()))
    return request + return_.delay if request is not None else None


def _shift(line: Line, begin: float, delay: float) -> list[list[float]]:
    return [
        [round(begin, 6), 0],
        *([round(begin + delay + time, 6), round(size)] for time, size in line if math.isfinite(time)),
    ]


def _spark(transfer: Transfer, origin: int) -> list[list[int]]:
    """The curve of unique bytes at the client, in 40 points. A point: per mille of the time since the origin, per mille
    of the bytes."""
    data = transfer.received
    if data is None or not data.new.any():
        return []
    fresh = data.new > 0
    time, size = data.time_ns[fresh] - origin, np.cumsum(data.new[fresh])
    grid = np.linspace(time[0], time[-1], _SPARK_POINTS)
    index = np.searchsorted(time, grid, side="right") - 1
    whole = max(int(time[-1]), 1)
    return [
        [round(1000 * at / whole), round(1000 * int(size[row]) / int(size[-1]))]
        for at, row in zip(grid.tolist(), index.tolist(), strict=True)
    ]


# Reads the congestion window from a server's qlog, because packets don't show the window.
#
# Formats: draft-ietf-quic-qlog-main-schema, as JSON-SEQ or as one JSON document; draft-ietf-quic-qlog-quic-events
# (`recovery:metrics_updated`), with the field names that stacks use. picoquic's events are arrays, as in
# draft-marx-qlog-main-schema-01.

_NAMES = ("congestion_window", "cwnd")
_TELLS = re.compile(rb'"(?:congestion_window|cwnd)"\s*:\s*"?(\d+)')
_MOST_WINDOW = 2**40  # bytes
_LONGEST_LINE = 1 << 20  # most bytes of a line; an event with a window has about a hundred
_LARGEST_DOCUMENT = 64 << 20  # most bytes of a JSON document, which is read at once; a sequence is read line by line
_SENT = "packet_sent"
_LATEST_MS = 4e12  # ms since 1970, the year 2096; in ns it fits into 64 bits


@dataclass(frozen=True)
class CongestionWindow:
    """The changes of the server's congestion window. `time_ns`: Unix times in ns, by the clock of the server's capture.
    `size`: the new windows in bytes."""

    time_ns: NDArray[np.int64]
    size: NDArray[np.int64]

    def at(self, moments_ns: NDArray[np.int64]) -> list[int | None]:
        """The window at each moment; None before the first known value."""
        index = np.searchsorted(self.time_ns, moments_ns, side="right") - 1
        return [None if value < 0 else int(self.size[value]) for value in index.tolist()]


def congestion_window(folder: Path, first_sent_ns: int) -> CongestionWindow | None:
    """The window of the connection with the largest qlog in `folder`. None when this qlog has
    no window.

    `first_sent_ns`: the time of the server's first datagram in the server's capture. The first sent packet of the qlog
    gets this time, because clocks of qlogs can't be trusted: quiche's clock differed by 2.7 s, and quinn's qlog has no
    absolute time. When the server sent a Retry that is not in the qlog, all times are one round trip too early.
    """
    files = log_files(folder)
    if not files:
        return None
    with open_log(max(files, key=lambda path: (path.stat().st_size, path.name))) as file:
        trace = _Trace()
        known = sorted(trace.windows(file), key=lambda sighting: sighting[0])
    if not known:
        return None
    first = known[0][0] if trace.first_sent_ms is None else trace.first_sent_ms
    time_ns = first_sent_ns + np.rint((np.array([place[0] for place in known]) - first) * 1e6).astype(np.int64)
    size = np.array([place[1] for place in known], dtype=np.int64)
    changes = np.flatnonzero(np.append(True, size[1:] != size[:-1]))
    return CongestionWindow(time_ns[changes], size[changes])


class _Trace:
    """One qlog while it is read. `first_sent_ms`: the time of the first sent packet."""

    def __init__(self) -> None:
        self.first_sent_ms: float | None = None
        self._scale = 1.0  # ms per unit of time

    def windows(self, file: BinaryIO) -> Iterator[tuple[float, int]]:
        """Time in ms and window in bytes of every event with a window."""
        for event in self._events(file):
            stamp, name, data = _members(event)
            time = (_number(stamp) or 0.0) * self._scale
            if stamp is None or abs(time) > _LATEST_MS:
                continue
            if self.first_sent_ms is None and str(name).endswith(_SENT):
                self.first_sent_ms = time
            sizes = [_number(data.get(name)) for name in _NAMES] if isinstance(data, dict) else []
            yield from ((time, int(size)) for size in sizes if size is not None and 0 < size < _MOST_WINDOW)

    def _events(self, file: BinaryIO) -> Iterator[Any]:
        """The events of the file. A JSON document gives all events. A sequence gives all events until a packet was
        sent, and then only events with a new window."""
        head = file.readline(_LONGEST_LINE)
        header = _parsed(head)
        if not isinstance(header, dict) or "traces" in header:
            document = header if isinstance(header, dict) else _parsed(head + file.read(_LARGEST_DOCUMENT))
            traces = document.get("traces") if isinstance(document, dict) else None
            if isinstance(traces, list) and traces and isinstance(traces[0], dict):
                self._describe(traces[0])
                events = traces[0].get("events")
                yield from events if isinstance(events, list) else ()
            return
        self._describe(header.get("trace"))
        before = b""
        while line := file.readline(_LONGEST_LINE):
            window = _TELLS.search(line)
            if self.first_sent_ms is None or (window is not None and window[1] != before):
                yield _parsed(line)
            if window is not None:
                before = window[1]

    def _describe(self, trace: Any) -> None:
        configuration = trace.get("configuration") if isinstance(trace, dict) else None
        if isinstance(configuration, dict) and configuration.get("time_units") == "us":
            self._scale = 1e-3


def _members(event: Any) -> tuple[Any, Any, Any]:
    """Time, name and data of an event. A missing value is None."""
    if isinstance(event, list) and len(event) == 4:
        return event[0], event[2], event[3]
    return (event.get("time"), event.get("name"), event.get("data")) if isinstance(event, dict) else (None, None, None)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text.lstrip(b"\x1e"))
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    """A finite number, also when it is written as a string; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
