"""Reads the congestion window from a server's qlog, because packets don't show the window.

Formats: draft-ietf-quic-qlog-main-schema, as JSON-SEQ or as one JSON document; draft-ietf-quic-qlog-quic-events
(`recovery:metrics_updated`), with the field names that stacks use. picoquic's events are arrays, as in
draft-marx-qlog-main-schema-01.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from runner.files.compressed import log_files, open_log

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
