"""Plots that need no script: the sparkline of a cell, and the offset plot of one iteration. Inline SVG, no fonts."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np
from markupsafe import Markup, escape

from runner.render.metrics import digits
from runner.render.series import Frames, Series, curve

_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_MARGIN = 176, 52, 3
_MARK_LABELS = {
    "first_server_1rtt": "1-RTT",
    "handshake_confirmed": "handshake",
    "ttfb": "TTFB",
    "ttlb": "TTLB",
}
_ROW = 14  # height of a label
_STRIP = 7  # height of the limits
_WORD = re.compile(r"[a-z]+")
_MOST_TICKS = 400  # retransmissions drawn one by one; a denser set is thinned evenly


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """A rectangle of the drawing and the data range that it shows: x from 0 to `x_end`, y from 0 to `y_end`."""

    left: float
    top: float
    width: float
    height: float
    x_end: float
    y_end: float

    def x(self, value: float) -> float:
        return self.left + self.width * min(value, self.x_end) / self.x_end

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - min(value, self.y_end) / self.y_end)

    def line(self, points: Iterable[tuple[float, float]]) -> str:
        """`points` attribute of a polyline; what lies beyond `x_end` is cut off by interpolation."""
        inside = self._inside(points)
        flat = [value for x, y in inside for value in (self.x(x), self.y(y))]
        return " ".join(["%.1f,%.1f"] * len(inside)) % tuple(flat)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        """`d` attribute of a path in whole units: short, for the many small drawings of a matrix."""
        parts: list[str] = []
        at: tuple[int, int] | None = None
        step: tuple[int, int] = (0, 0)
        for x, y in self._inside(points):
            place = (round(self.x(x)), round(self.y(y)))
            if at is None:
                parts.append(f"M{place[0]} {place[1]}l")
            elif place != at:
                moved = (place[0] - at[0], place[1] - at[1])
                if parts[1:] and moved[0] * step[1] == moved[1] * step[0] and moved[0] * step[0] >= 0:
                    step = (step[0] + moved[0], step[1] + moved[1])
                    parts[-1] = f"{step[0]} {step[1]}"
                else:
                    step = moved
                    parts.append(f"{step[0]} {step[1]}")
            at = place
        return parts[0] + " ".join(parts[1:]) if len(parts) > 1 else ""

    def _inside(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        inside: list[tuple[float, float]] = []
        for x, y in points:
            if x > self.x_end:
                if inside and inside[-1][0] < self.x_end:
                    x0, y0 = inside[-1]
                    inside.append((self.x_end, y0 + (y - y0) * (self.x_end - x0) / (x - x0)))
                break
            inside.append((x, y))
        return inside


def sparkline(series: Series | None) -> Markup:
    """The offset curve of the median iteration from its first packet to its last byte, with the slow-start bound."""
    if series is None or not series.spark or not series.file_size:
        return Markup()
    end = series.marks.get("ttlb") or series.end
    if end <= 0:
        return Markup()
    frame = _Frame(
        left=_SPARK_MARGIN,
        top=_SPARK_MARGIN,
        width=_SPARK_WIDTH - 2 * _SPARK_MARGIN,
        height=_SPARK_HEIGHT - 2 * _SPARK_MARGIN,
        x_end=end,
        y_end=float(series.file_size),
    )
    bound = series.slow_start or series.ideal
    reference = f'<path class="ref" d="{frame.path(bound)}"/>' if bound else ""
    points = [(end * x / 1000, series.file_size * y / 1000) for x, y in series.spark]
    return Markup(
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true">{reference}<path d="{frame.path(points)}"/></svg>'
    )


def offset_plot(series: Series | None, others: Sequence[Series], *, title: str) -> Markup:
    """Offset versus time of one iteration at both vantage points, in front of the other iterations."""
    if series is None or series.end <= 0 or not series.file_size:
        return Markup()
    frame = _Frame(
        left=64,
        top=70,
        width=880,
        height=300,
        x_end=1.03 * max(series.end, *(one.end for one in others), series.marks.get("ttlb", 0.0)),
        y_end=1.02 * series.file_size,
    )
    parts = [_axes(frame), *(_steps(frame, one, "other") for one in others)]
    parts += [
        f'<polyline class="{name}" points="{frame.line(points)}"/>'
        for name, points in (("ideal", series.ideal), ("slow-start", series.slow_start))
        if points
    ]
    parts.append(_steps(frame, series, "server"))
    parts.append(_steps(frame, series, "client"))
    parts.append(_retransmissions(frame, series.server))
    parts.append(_limits(frame, series))
    parts.append(_marks(frame, series.marks))
    return Markup(
        f'<svg class="offset" viewBox="0 0 960 408" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _steps(frame: _Frame, series: Series, name: str) -> str:
    time, total = curve(series.server, series.files) if name == "server" else series.arrived
    if not len(time):
        return ""
    x = frame.left + frame.width * np.minimum(time / 1e6, frame.x_end) / frame.x_end
    y = frame.top + frame.height * (1 - np.minimum(total, frame.y_end) / frame.y_end)
    corners = np.column_stack([x, y]).ravel().tolist()
    steps = "H%.1fV%.1f" * len(x) % tuple(corners)
    return f'<path class="{name}" d="M{corners[0]:.1f},{frame.y(0):.1f}{steps}"/>'


def _retransmissions(frame: _Frame, frames: Frames) -> str:
    chosen = (frames.kind > 0).nonzero()[0]
    chosen = chosen[:: len(chosen) // _MOST_TICKS + 1]
    path = "".join(
        f"M{frame.x(time / 1e6):.1f},{frame.y(offset) - 3:.1f}v6"
        for time, offset in zip(frames.time[chosen].tolist(), frames.offset[chosen].tolist(), strict=True)
    )
    return f'<path class="again" d="{path}"/>' if path else ""


def _limits(frame: _Frame, series: Series) -> str:
    """A strip along the bottom: what held the transfer back at each moment."""
    return "".join(
        f'<rect class="{limit_class(limit)}" x="{frame.x(start):.1f}" y="{frame.top + frame.height - _STRIP}" '
        f'width="{frame.x(end) - frame.x(start):.1f}" height="{_STRIP}"><title>{escape(limit)}, {digits(start)} to '
        f"{digits(end)} s</title></rect>"
        for start, end, limit in series.limits
    )


def limit_class(limit: str) -> str:
    """The name of its colour in the style sheet, `limit-receive-window`."""
    return "limit-" + "-".join(_WORD.findall(limit))


def _marks(frame: _Frame, marks: dict[str, float]) -> str:
    """One line per instant. Each label has a row of its own, the earliest on top, so that no line crosses a label."""
    known = sorted((at, _MARK_LABELS[name]) for name, at in marks.items() if name in _MARK_LABELS)
    parts = []
    for row, (at, label) in enumerate(known):
        x, y = frame.x(at), frame.top - _ROW * (len(known) - row) + 8
        left = x < frame.left + 0.85 * frame.width
        parts.append(f'<path class="mark" d="M{x:.1f},{y - 8:.1f}V{frame.top + frame.height}"/>')
        parts.append(
            f'<text x="{x + (4 if left else -4):.1f}" y="{y:.1f}" text-anchor="{"start" if left else "end"}">'
            f"{label} {digits(at)} s</text>"
        )
    return "".join(parts)


def ticks(end: float) -> list[float]:
    """Four to ten round numbers from 0 up to `end`, `end` > 0."""
    step = 10.0 ** floor(log10(end))
    step *= next(factor for factor in (0.1, 0.2, 0.5, 1.0) if end / (step * factor) <= 10)
    return [step * index for index in range(int(end / step + 1e-9) + 1)]


def size_unit(size: float) -> tuple[str, int]:
    """The binary unit in which an axis up to `size` bytes is read, and its bytes."""
    return next((unit for unit in (("MiB", 2**20), ("KiB", 2**10)) if size >= unit[1]), ("B", 1))


def _axes(frame: _Frame) -> str:
    bottom = frame.top + frame.height
    parts = []
    for at in ticks(frame.x_end):
        x = frame.x(at)
        parts.append(f'<path class="grid" d="M{x:.1f},{frame.top}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{at:g}</text>')
    name, unit = size_unit(frame.y_end)
    for at in ticks(frame.y_end / unit):
        y = frame.y(at * unit)
        parts.append(f'<path class="grid" d="M{frame.left},{y:.1f}H{frame.left + frame.width}"/>')
        parts.append(f'<text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{at:g}</text>')
    parts.append(f'<text x="{frame.left + frame.width}" y="{bottom + 32}" text-anchor="end">time (s)</text>')
    parts.append(f'<text x="{frame.left - 6}" y="{frame.top - 10}" text-anchor="end">{name}</text>')
    return "".join(parts)
