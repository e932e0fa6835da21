"""Plots without scripts, as inline SVG: the sparkline of a cell, and the offset plot of one iteration."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup, escape

from runner.render.axes import Area, Axis, Drawing, size_unit, x_axis, y_axis
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
_MOST_TICKS = 400  # largest number of retransmissions that are drawn; larger sets are thinned evenly


def sparkline(series: Series | None) -> Markup:
    """The offset curve of one iteration from its first packet to its last byte, with the slow-start bound or, when that
    is unknown, the ideal curve."""
    if series is None or not series.spark or not series.file_size:
        return Markup()
    end = series.marks.get("ttlb") or series.end
    if end <= 0:
        return Markup()
    area = Area(
        left=_SPARK_MARGIN,
        top=_SPARK_MARGIN,
        width=_SPARK_WIDTH - 2 * _SPARK_MARGIN,
        height=_SPARK_HEIGHT - 2 * _SPARK_MARGIN,
        x=(0.0, end),
        y=(0.0, float(series.file_size)),
    )
    bound = series.slow_start or series.ideal
    reference = f'<path class="ref" d="{_short_path(area, bound)}"/>' if bound else ""
    points = [(end * x / 1000, series.file_size * y / 1000) for x, y in series.spark]
    return Markup(
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true">{reference}<path d="{_short_path(area, points)}"/></svg>'
    )


def offset_plot(series: Series | None, others: Sequence[Series], *, title: str) -> Markup:
    """Offset versus time of one iteration at both vantage points, in front of the other iterations."""
    if series is None or series.end <= 0 or not series.file_size:
        return Markup()
    end = 1.03 * max(series.end, *(other.end for other in others), series.marks.get("ttlb", 0.0))
    area = Area(left=64, top=70, width=880, height=300, x=(0.0, end), y=(0.0, 1.02 * series.file_size))
    drawing = Drawing(width=960, height=408, title=title, css="offset")
    name, unit = size_unit(area.y[1])
    x_axis(drawing, area, Axis(label="time (s)"))
    y_axis(drawing, area, Axis(label=f"offset ({name})", unit=unit))
    drawing.parts += [_steps(area, other, "other") for other in others]
    drawing.parts += [
        f'<polyline class="{css}" points="{_line(area, points)}"/>'
        for css, points in (("ideal", series.ideal), ("slow-start", series.slow_start))
        if points
    ]
    drawing.parts += [_steps(area, series, "server"), _steps(area, series, "client")]
    drawing.parts += [_retransmissions(area, series.server), _limits(area, series), _marks(area, series.marks)]
    return drawing.done()


def _line(area: Area, points: Iterable[tuple[float, float]]) -> str:
    """The `points` attribute of a polyline."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in area.inside(points))


def _short_path(area: Area, points: Iterable[tuple[float, float]]) -> str:
    """The `d` attribute of a path, with coordinates in whole units. It is short, because a matrix has many small
    drawings."""
    parts: list[str] = []
    at: tuple[int, int] | None = None
    step: tuple[int, int] = (0, 0)
    for x, y in area.inside(points):
        place = (round(x), round(y))
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


def _steps(area: Area, series: Series, name: str) -> str:
    time, total = curve(series.server, series.files) if name == "server" else series.arrived
    if not len(time):
        return ""
    x = area.left + area.width * np.minimum(time / 1e6, area.x[1]) / area.x[1]
    y = area.top + area.height * (1 - np.minimum(total, area.y[1]) / area.y[1])
    corners = np.column_stack([x, y]).ravel().tolist()
    steps = "H%.1fV%.1f" * len(x) % tuple(corners)
    return f'<path class="{name}" d="M{corners[0]:.1f},{area.top + area.height:.1f}{steps}"/>'


def _retransmissions(area: Area, frames: Frames) -> str:
    chosen = (frames.kind > 0).nonzero()[0]
    chosen = chosen[:: len(chosen) // _MOST_TICKS + 1]
    path = "".join(
        f"M{x:.1f},{y - 3:.1f}v6"
        for time, offset in zip(frames.time[chosen].tolist(), frames.offset[chosen].tolist(), strict=True)
        for x, y in (area.at(min(time / 1e6, area.x[1]), offset),)
    )
    return f'<path class="again" d="{path}"/>' if path else ""


def _limits(area: Area, series: Series) -> str:
    """A strip along the bottom that shows the limit of the transfer at each moment."""
    parts = []
    for start, end, limit in series.limits:
        left, right = (area.at(min(at, area.x[1]), 0)[0] for at in (start, end))
        parts.append(
            f'<rect class="{limit_class(limit)}" x="{left:.1f}" y="{area.top + area.height - _STRIP}" '
            f'width="{right - left:.1f}" height="{_STRIP}"><title>{escape(limit)}, {digits(start)} to '
            f"{digits(end)} s</title></rect>"
        )
    return "".join(parts)


def limit_class(limit: str) -> str:
    """The CSS class of a limit's colour: `limit-receive-window`."""
    return "limit-" + "-".join(_WORD.findall(limit))


def _marks(area: Area, marks: dict[str, float]) -> str:
    """One vertical line for each mark. Each label has its own row, the earliest at the top, so that no line crosses a
    label."""
    known = sorted((at, _MARK_LABELS[name]) for name, at in marks.items() if name in _MARK_LABELS)
    parts = []
    for row, (at, label) in enumerate(known):
        x, y = area.at(at, 0)[0], area.top - _ROW * (len(known) - row) + 8
        left = x < area.left + 0.85 * area.width
        parts.append(f'<path class="mark" d="M{x:.1f},{y - 8:.1f}V{area.top + area.height}"/>')
        parts.append(
            f'<text x="{x + (4 if left else -4):.1f}" y="{y:.1f}" text-anchor="{"start" if left else "end"}">'
            f"{label} {digits(at)} s</text>"
        )
    return "".join(parts)
