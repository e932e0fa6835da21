"""Reads `series.json` for the pages: decoded, checked, and thinned to the resolution of a screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.files.safe_files import read_regular
from runner.store import parse

Ints = NDArray[np.int64]
Points = list[tuple[float, float]]

_CURVE_POINTS = 600
_JOINED_FRAMES = 4000
_RATES = ("forward_raw", "forward_goodput", "return_raw")
KINDS = ("new", "retransmission", "spurious")


@dataclass(frozen=True, kw_only=True)
class Frames:
    """STREAM frames of response data at one vantage point, in time order. Times in µs since the origin, sizes in bytes.

    `kind` is an index of KINDS.
    """

    time: Ints
    offset: Ints
    length: Ints
    kind: Ints


@dataclass(frozen=True, kw_only=True)
class Series:
    """The data for the plots of one job. `text`: the content of `series.json`; `document`: the same content, parsed.

    `marks`: seconds since the origin, by name. `ideal` and `slow_start`: points (seconds, bytes). `spark`: points in
    per mille of the time and of the file. `rates`: points (seconds, Mbit/s), by name.
    """

    text: bytes
    document: dict[str, Any]
    file_size: int
    files: tuple[int, ...]
    client: Frames
    server: Frames
    marks: dict[str, float]
    ideal: Points
    slow_start: Points
    spark: Points
    rates: dict[str, Points]
    limits: tuple[tuple[float, float, str], ...] = ()
    """Start in seconds, end in seconds, and limit. Runs of older programs have no limits."""

    @cached_property
    def arrived(self) -> tuple[Ints, Ints]:
        """The client's `curve`."""
        return curve(self.client, self.files)

    @property
    def end(self) -> float:
        """Seconds until the last frame at either vantage point; 0 when there is no frame."""
        last = [int(frames.time[-1]) for frames in (self.client, self.server) if len(frames.time)]
        return max(last, default=0) / 1e6


def load_series(path: Path) -> Series | None:
    """The job's series; None when its file is missing or can't be read."""
    try:
        text = read_regular(path)
        document = parse(text)
        bounds = document["bounds"]
        return Series(
            text=text,
            document=document,
            file_size=int(document["file_size"]),
            files=tuple(int(size) for size in document["files"]),
            client=_frames(document["client"]),
            server=_frames(document["server"]),
            marks={name: float(at) for name, at in document["marks"].items() if at is not None},
            ideal=_points(bounds["ideal"]),
            slow_start=_points(bounds["slow_start"]),
            spark=_points(document["spark"]),
            rates={name: _rate(document["rate"], name) for name in _RATES},
            limits=tuple((float(start), float(end), str(limit)) for start, end, limit in document.get("limits", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError):
        return None


def _points(pairs: Sequence[Sequence[float]]) -> Points:
    return [(float(x), float(y)) for x, y in pairs]


def _rate(document: dict[str, Any], name: str) -> Points:
    step = float(document["interval_s"])
    return [(step * (index + 0.5), float(value) / 1e6) for index, value in enumerate(document[name])]


def _frames(document: dict[str, list[int]]) -> Frames:
    time, offset, length, kind = (
        np.array(document[name], dtype=np.int64) for name in ("t_us", "offset", "length", "kind")
    )
    if not len(time) == len(offset) == len(length) == len(kind):
        raise ValueError("the columns of a vantage point have different lengths")
    if len(kind) and not 0 <= kind.min() <= kind.max() < len(KINDS):
        raise ValueError(f"kinds of frames are 0 to {len(KINDS) - 1}")
    return Frames(time=np.cumsum(time), offset=np.cumsum(offset), length=length, kind=kind)


def curve(frames: Frames, files: Sequence[int]) -> tuple[Ints, Ints]:
    """The steps of an offset curve, about `_CURVE_POINTS` at most: times in µs, and totals in bytes. The total is the
    sum of the highest offsets that each file has reached so far; data that is missing below them counts as present."""
    gained = np.zeros(len(frames.time), dtype=np.int64)
    begin = 0
    for size in files:
        inside = np.flatnonzero((frames.offset >= begin) & (frames.offset < begin + size))
        reached = np.maximum.accumulate(frames.offset[inside] + frames.length[inside] - begin)
        gained[inside] = np.diff(reached, prepend=0)
        begin += size
    moved = np.flatnonzero(gained)
    if not len(moved):
        return frames.time[:0], gained[:0]
    time, total = frames.time[moved], np.cumsum(gained[moved])
    pixel = max(1, int(time[-1]) // _CURVE_POINTS)
    last = np.flatnonzero(np.append(np.diff(time // pixel) > 0, True))
    return time[last], total[last]


def joined(frames: Frames) -> Frames:
    """Join frames of the same kind when each begins at the end offset of the previous frame and within the same 1/4000
    of the time. This resolution is enough for a whole screen."""
    if len(frames.time) < 2:
        return frames
    pixel = max(1, int(frames.time[-1]) // _JOINED_FRAMES)
    follows = frames.offset[1:] == frames.offset[:-1] + frames.length[:-1]
    follows &= frames.kind[1:] == frames.kind[:-1]
    follows &= frames.time[1:] // pixel == frames.time[:-1] // pixel
    heads = np.flatnonzero(np.append(True, ~follows))
    return Frames(
        time=frames.time[heads],
        offset=frames.offset[heads],
        length=np.add.reduceat(frames.length, heads),
        kind=frames.kind[heads],
    )


def plot_document(series: Series) -> dict[str, Any]:
    """The data that the interactive plot loads for an iteration that is not shown first: `series.json` with joined
    frames."""
    return series.document | {name: _coded(joined(getattr(series, name))) for name in ("client", "server")}


def _coded(frames: Frames) -> dict[str, list[int]]:
    return {
        "t_us": coded(frames.time),
        "offset": coded(frames.offset),
        "length": frames.length.tolist(),
        "kind": frames.kind.tolist(),
    }


def coded(values: Ints) -> list[int]:
    """The values in delta coding: the first value, then the difference of each value from the previous value."""
    differences: list[int] = np.diff(values, prepend=0).tolist()
    return differences
