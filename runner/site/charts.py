"""Charts and plots as inline SVG, without scripts and external files, and as files of their own."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import floor, log10

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from runner.model.link import LinkChange, LinkParameters, SegmentRecord
from runner.paths import ROOT
from runner.site.series import Frames, Series, curve
from runner.site.view import moment, step_of
from runner.units import format_digits

# The axes of all drawings, as inline SVG: the area of the values, ticks, grid and names.


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis. `end`: its highest value; with 0 it is chosen from the values. `reference`: a value that is marked by a
    line and a name."""

    label: str
    end: float = 0.0
    reference: float | None = None
    reference_label: str = ""
    dates: bool = False  # values are Unix times
    unit: float = 1.0  # the unit of the numbers at the ticks, expressed in the unit of the values
    named: Sequence[tuple[float, str]] = ()  # the only ticks: their places and texts


@dataclass(frozen=True, kw_only=True)
class Area:
    """The rectangle in which values are drawn, and the ranges of values that it shows."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float] = (0.0, 1.0)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point in the drawing."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return self.left + self.width * across, self.top + self.height * (1 - up)

    def inside(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """The places of points, which are in the order of x. A line that leaves the area at the right is cut at the
        edge by interpolation."""
        inside: list[tuple[float, float]] = []
        for x, y in points:
            if x > self.x[1]:
                if inside and inside[-1][0] < self.x[1]:
                    x0, y0 = inside[-1]
                    inside.append((self.x[1], y0 + (y - y0) * (self.x[1] - x0) / (x - x0)))
                break
            inside.append((x, y))
        return [self.at(x, min(y, self.y[1])) for x, y in inside]


@dataclass(kw_only=True)
class Drawing:
    """An SVG drawing to which parts are added."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)
    css: str = "chart"
    linked: bool = False  # True when the drawing has links; its ARIA role is then `group` instead of `img`

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", css: str = "", turn: bool = False) -> None:
        """Add a label. With `turn` it is written upwards."""
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
        named = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}{turned}>{escape(text)}</text>')

    def line(self, d: str, css: str) -> None:
        self.parts.append(f'<path class="{css}" d="{d}"/>')

    def done(self) -> Markup:
        inside = "".join(self.parts)
        role = "group" if self.linked else "img"
        return Markup(
            f'<svg class="{self.css}" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="{role}" '
            f'aria-label="{escape(self.title)}" style="--w:{self.width:.0f}px">{inside}</svg>'
        )


def ticks(end: float) -> list[float]:
    """Five to eleven round numbers from 0 up to `end`, which is above 0."""
    step = 10.0 ** floor(log10(end))
    step *= next(factor for factor in (0.1, 0.2, 0.5, 1.0) if end / (step * factor) <= 10)
    return [step * index for index in range(int(end / step + 1e-9) + 1)]


def size_unit(size: float) -> tuple[str, int]:
    """The binary unit for an axis up to `size` bytes, and the size of that unit in bytes."""
    return next((unit for unit in (("MiB", 2**20), ("KiB", 2**10)) if size >= unit[1]), ("B", 1))


def x_axis(drawing: Drawing, area: Area, axis: Axis) -> None:
    """Draw the grid, the numbers and the name along the bottom, and the reference value of the axis."""
    bottom = area.top + area.height
    for at, text in _ticks(area.x, axis, room=area.width):
        x, _ = area.at(at, 0)
        drawing.line(f"M{x:.1f},{area.top:.1f}V{bottom:.1f}", "grid")
        last = axis.dates and at == area.x[1] > area.x[0]
        drawing.text(x, bottom + 15, text, anchor="end" if last else "middle")
    drawing.text(area.left + area.width, bottom + 31, axis.label, anchor="end")
    if axis.reference is not None and area.x[0] <= axis.reference <= area.x[1]:
        x, _ = area.at(axis.reference, 0)
        drawing.line(f"M{x:.1f},{area.top - 6:.1f}V{bottom:.1f}", "reference")
        right = x > area.left + area.width * 0.6
        drawing.text(x, area.top - 10, axis.reference_label, anchor="end" if right else "start", css="soft")


def y_axis(drawing: Drawing, area: Area, axis: Axis) -> None:
    """Draw the grid, the numbers and the name at the left, and the reference value of the axis. The name is written
    upwards."""
    for at, text in _ticks(area.y, axis, room=area.height):
        _, y = area.at(0, at)
        drawing.line(f"M{area.left:.1f},{y:.1f}h{area.width:.1f}", "grid")
        drawing.text(area.left - 6, y + 4, text, anchor="end")
    drawing.text(area.left - 40, area.top + area.height / 2, axis.label, anchor="middle", turn=True)
    if axis.reference is not None and area.y[0] <= axis.reference <= area.y[1]:
        _, y = area.at(0, axis.reference)
        drawing.line(f"M{area.left:.1f},{y:.1f}h{area.width:.1f}", "reference")
        drawing.text(area.left + area.width, y - 4, axis.reference_label, anchor="end", css="soft")


def _ticks(span: tuple[float, float], axis: Axis, *, room: float) -> list[tuple[float, str]]:
    if axis.named:
        return [(at, text) for at, text in axis.named if span[0] <= at <= span[1]]
    if axis.dates:
        count = max(2, int(room // 150))
        places = np.linspace(span[0], span[1], count) if span[1] > span[0] else [span[0]]
        return [(float(at), moment(float(at)).removesuffix(" UTC")[5:]) for at in places]
    begin, every = span[0] / axis.unit, ticks((span[1] - span[0]) / axis.unit)
    every = every[:: 2 if room / len(every) < 44 else 1]
    return [((begin + at) * axis.unit, f"{begin + at:g}") for at in every]


# Static charts as inline SVG, without scripts and external files: strips with boxes, scatter plots, lines, matrices.
#
# Groups differ in colour and in the shape of their marks. Coordinates have one decimal, which is enough for any screen.

GROUPS = 8
"""Number of different colours, and of different shapes. The ninth group has the colour and the shape of the first
group."""
_DASHES = 4  # number of dash patterns; with 8 colours, 32 lines look different
_R = 3.6
_D = 2 * _R
# The start of each shape relative to its middle, and its SVG path from there.
_SHAPES = (
    (-_R, 0.0, f"a{_R},{_R} 0 1 0 {_D},0a{_R},{_R} 0 1 0 {-_D},0z"),
    (-_R, -_R, f"h{_D}v{_D}h{-_D}z"),
    (0.0, -_R - 0.6, f"l{_R + 0.6},{_D}h{-_D - 1.2}z"),
    (0.0, -_R - 1, f"l{_R + 1},{_R + 1}l{-_R - 1},{_R + 1}l{-_R - 1},{-_R - 1}z"),
    (-_R, -_R, f"l{_D},{_D}m0,{-_D}l{-_D},{_D}"),
    (0.0, _R + 0.6, f"l{_R + 0.6},{-_D}h{-_D - 1.2}z"),
    (-_R - 0.6, 0.0, f"h{_D + 1.2}m{-_R - 0.6:.1f},{-_R - 0.6:.1f}v{_D + 1.2}"),
    (-_R, -_R, f"h{_D}l{-_D},{_D}h{_D}z"),
)
_LABEL_CHARACTER = 7.4  # px, about the width of a bold character at 12 px
_LABEL_LINE = 18  # px


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One value of a chart. `title` is the tooltip. `href` makes the mark a link. `low` and `high` are the bounds of
    the value's interval."""

    x: float
    y: float = 0.0
    title: str = ""
    href: str = ""
    group: int = 0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One row: its name, and its values on the common axis. `group` sets the colour of the values. `note` is the text
    at the right end."""

    label: str
    marks: Sequence[Mark]
    group: int = 0
    href: str = ""
    note: str = ""


def _mark(drawing: Drawing, x: float, y: float, mark: Mark, group: int) -> None:
    """Draw the mark of a value with its tooltip."""
    shape = f'<path class="mark g{group % GROUPS}" d="{shape_path(x, y, group)}">'
    title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
    if mark.href:
        # The Tab key skips marks, because there are many marks, and tables on the page have the same links.
        drawing.parts.append(f'<a href="{escape(mark.href)}" tabindex="-1">{title}{shape}</path></a>')
        drawing.linked = True
    else:
        drawing.parts.append(f"{shape}{title}</path>")


def shape_path(x: float, y: float, group: int) -> str:
    """The shape for the group's number: circle, square, triangle, diamond, cross, triangle down, plus or hourglass."""
    right, down, outline = _SHAPES[group % GROUPS]
    return f"M{x + right:.1f},{y + down:.1f}{outline}"


def key(group: int) -> Markup:
    """The mark of a group for a legend."""
    return Markup(
        f'<svg class="key-mark" viewBox="0 0 12 12" aria-hidden="true">'
        f'<path class="mark g{group % GROUPS}" d="{shape_path(6, 6, group)}"/></svg>'
    )


def _upper(values: Iterable[float], axis: Axis) -> float:
    highest = max([*values, axis.reference or 0.0], default=0.0)
    return axis.end or 1.04 * highest or 1.0


def strips(rows: Sequence[Strip], axis: Axis, *, title: str, width: float = 860) -> Markup:
    """One strip for each row. Every value is a mark. Behind the marks is a box from the lower to the upper quartile,
    with the median."""
    if not any(row.marks for row in rows):
        return Markup()
    left = min(270.0, 14 + _LABEL_CHARACTER * max(len(row.label) for row in rows))
    right = 14 + _LABEL_CHARACTER * max(len(row.note) for row in rows)
    high, top = 26, 24
    end = _upper((mark.x for row in rows for mark in row.marks), axis)
    area = Area(left=left, top=top, width=width - left - right, height=high * len(rows), x=(0.0, end))
    drawing = Drawing(width=width, height=top + area.height + 36, title=title)
    x_axis(drawing, area, axis)
    for number, row in enumerate(rows):
        middle = top + high * (number + 0.5)
        drawing.linked |= bool(row.href)
        drawing.parts.append(f'<a href="{escape(row.href)}">' if row.href else "")
        drawing.text(left - 8, middle + 4, row.label, anchor="end", css="row")
        drawing.parts.append("</a>" if row.href else "")
        drawing.text(width - right + 10, middle + 4, row.note, css="soft")
        _box(drawing, area, [mark.x for mark in row.marks], middle, row.group)
        for index, mark in enumerate(row.marks):
            x, _ = area.at(min(mark.x, end), 0)
            # Marks are shifted up or down by their index, so that equal values stay visible.
            _mark(drawing, x, middle + ((index * 5) % 9 - 4) * 1.6, mark, mark.group or row.group)
    return drawing.done()


def _box(drawing: Drawing, area: Area, values: Sequence[float], middle: float, group: int) -> None:
    if len(values) < 3:
        return
    low, median, high = (area.at(float(quartile), 0)[0] for quartile in np.quantile(values, [0.25, 0.5, 0.75]))
    drawing.parts.append(
        f'<rect class="box g{group % GROUPS}" x="{low:.1f}" y="{middle - 9:.1f}" width="{high - low:.1f}" height="18"/>'
    )
    drawing.line(f"M{median:.1f},{middle - 11:.1f}v22", "median")


def scatter(
    marks: Sequence[Mark],
    x: Axis,
    y: Axis,
    *,
    title: str,
    size: tuple[float, float] = (420, 380),
    diagonal: bool = False,
    trend: bool = False,
) -> Markup:
    """A scatter plot. `diagonal` draws the line of equal values. `trend` draws a least-squares line for each group."""
    if not marks:
        return Markup()
    ends = [_upper((getattr(mark, name) for mark in marks), axis) for name, axis in (("x", x), ("y", y))]
    begin = min(mark.x for mark in marks) if x.dates else 0.0
    if x.dates:
        ends[0] = max(*(mark.x for mark in marks), begin + 60)
    area = Area(left=58, top=16, width=size[0] - 72, height=size[1] - 62, x=(begin, ends[0]), y=(0.0, ends[1]))
    drawing = Drawing(width=size[0], height=size[1], title=title)
    x_axis(drawing, area, x)
    y_axis(drawing, area, y)
    if diagonal:
        both = min(ends)
        (x0, y0), (x1, y1) = area.at(0, 0), area.at(both, both)
        drawing.line(f"M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}", "diagonal")
    for mark in marks:
        _mark(drawing, *area.at(mark.x, mark.y), mark, mark.group)
    for group in sorted({mark.group for mark in marks}) if trend else ():
        _trend(drawing, area, [mark for mark in marks if mark.group == group])
    return drawing.done()


def _trend(drawing: Drawing, area: Area, marks: Sequence[Mark]) -> None:
    across = np.array([mark.x for mark in marks])
    up = np.array([mark.y for mark in marks])
    if len(marks) < 3 or not np.ptp(across):
        return
    centre = float(across.mean())
    slope = float(((across - centre) * (up - up.mean())).sum() / ((across - centre) ** 2).sum())
    ends = [(at, float(up.mean()) + slope * (at - centre)) for at in (float(across.min()), float(across.max()))]
    (x0, y0), (x1, y1) = (area.at(at, max(0.0, value)) for at, value in ends)
    drawing.line(f"M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}", f"trend g{marks[0].group % GROUPS}")


def lines(series: Sequence[tuple[str, Sequence[Mark]]], x: Axis, y: Axis, *, title: str) -> Markup:
    """One line for each series. The line connects the marks in the order of x, and has the name of the series at its
    right end."""
    every = [mark for _, marks in series for mark in marks]
    if not every:
        return Markup()
    begin, end = min(mark.x for mark in every), max(mark.x for mark in every)
    if not (x.named or x.dates) and 0 < begin < end / 4:
        begin = 0.0  # an axis from 0 has round ticks, and here it wastes little space
    if begin == end and not (x.named or x.dates):
        begin, end = sorted((0.0, 2.0 * begin)) if begin else (-1.0, 1.0)  # a single value is drawn in the middle
    names = max(len(name) for name, _ in series)
    area = Area(
        left=58,
        top=16,
        width=min(650.0, max(380.0, 780 - _LABEL_CHARACTER * names)),
        height=300,
        x=(begin, max(end, begin + 1e-9)),
        y=(0.0, _upper((m.high or m.y for m in every), y)),
    )
    drawing = Drawing(width=860, height=364, title=title)
    x_axis(drawing, area, x)
    y_axis(drawing, area, y)
    taken: list[float] = []
    for number, (name, marks) in enumerate(series):
        ordered = sorted(marks, key=lambda mark: mark.x)
        places = [area.at(mark.x, mark.y) for mark in ordered]
        drawing.line("M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in places), f"series g{number % GROUPS}")
        for (px, py), mark in zip(places, ordered, strict=True):
            if mark.low is not None and mark.high is not None:
                bottom, top = (area.at(mark.x, end)[1] for end in (mark.low, mark.high))
                drawing.line(f"M{px:.1f},{bottom:.1f}V{top:.1f}", f"series g{number % GROUPS}")
            _mark(drawing, px, py, mark, number)
        at = places[-1][1] + 4
        while any(abs(at - other) < 13 for other in taken):
            at += 13
        taken.append(at)
        drawing.text(places[-1][0] + 9, at, name, css="row")
    return drawing.done()


def curves(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], x: Axis, y: Axis, *, title: str) -> Markup:
    """Lines without marks, each with its own colour and dash pattern. A legend below the chart names them."""
    every = [point for _, points in series for point in points]
    if not every:
        return Markup()
    ends = [_upper((point[place] for point in every), axis) for place, axis in ((0, x), (1, y))]
    area = Area(left=58, top=16, width=788, height=250, x=(0.0, ends[0]), y=(0.0, ends[1]))
    labels = _labels([name for name, _ in series], left=area.left, right=852)
    drawing = Drawing(width=860, height=340 + _LABEL_LINE * labels[-1][1], title=title)
    x_axis(drawing, area, x)
    y_axis(drawing, area, y)
    for number, ((name, points), (left, down)) in enumerate(zip(series, labels, strict=True)):
        places = [area.at(px, py) for px, py in points]
        css = f"series g{number % GROUPS} dash{(number + number // GROUPS) % _DASHES}"
        if places:
            drawing.line("M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in places), css)
        drawing.line(f"M{left:.1f},{325 + _LABEL_LINE * down}h26", css)
        drawing.text(left + 32, 329 + _LABEL_LINE * down, name, css="row")
    return drawing.done()


def _labels(names: Sequence[str], *, left: float, right: float) -> list[tuple[float, int]]:
    """For each name of a legend, its left end and the number of its text line, counted from 0."""
    places, at, down = [], left, 0
    for name in names:
        width = 60 + _LABEL_CHARACTER * len(name)
        if at > left and at + width > right:
            at, down = left, down + 1
        places.append((at, down))
        at += width
    return places


_STYLE, _SCALE = (ROOT / "web" / "static" / name for name in ("style.css", "scale.css"))
_HEAT_CELL = (62, 26)  # width and height
Heat = Mapping[tuple[str, str], tuple[float | None, float | None, str]]


def heat(rows: Sequence[str], columns: Sequence[str], values: Heat, *, title: str) -> Markup:
    """A matrix. `values`, by (row, column): the number to print, the fraction that sets the colour, and the sign to
    print when there is no number."""
    if not values:
        return Markup()
    wide, high = _HEAT_CELL
    left = 14 + _LABEL_CHARACTER * max(len(name) for name in rows)
    top = 14 + _LABEL_CHARACTER * max(len(name) for name in columns) * 0.72
    drawing = Drawing(width=left + wide * len(columns) + 40, height=top + high * len(rows) + 6, title=title)
    for index, name in enumerate(columns):
        x = left + wide * (index + 0.5)
        drawing.parts.append(
            f'<text class="row" x="{x:.1f}" y="{top - 6:.1f}" transform="rotate(-40 {x:.1f} {top - 6:.1f})">'
            f"{escape(name)}</text>"
        )
    for down, row in enumerate(rows):
        y = top + high * down
        drawing.text(left - 6, y + 17, row, anchor="end", css="row")
        for across, column in enumerate(columns):
            if (row, column) in values:
                _heat_cell(drawing, (left + wide * across, y), values[row, column])
    return drawing.done()


@cache
def _shades() -> list[tuple[str, str]]:
    """The background and the text colour of each step of the colour scale on light pages."""
    return re.findall(r"light-dark\((#\w+),#\w+\);color:light-dark\((#\w+),", _SCALE.read_text(encoding="utf-8"))


def _heat_cell(drawing: Drawing, place: tuple[float, float], value: tuple[float | None, float | None, str]) -> None:
    (x, y), (wide, high), (number, fraction, sign) = place, _HEAT_CELL, value
    back, ink = ("#eef0f2", "#59636d") if fraction is None else _shades()[step_of(fraction)]
    drawing.parts.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 2}" height="{high - 2}" fill="{back}"/>'
        f'<text x="{x + wide / 2 - 1:.1f}" y="{y + 16:.1f}" text-anchor="middle" style="fill:{ink}">'
        f"{escape(sign if number is None else format_digits(number))}</text>"
    )


# Plots without scripts, as inline SVG: the sparkline of a cell, and the offset plot of one iteration.

_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_MARGIN = 176, 52, 3
_WIDE, _LEFT = 960, 64  # width of drawings over the time of a transfer, and the left edge of their areas
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


def offset_end(series: Series, others: Sequence[Series]) -> float:
    """The last second of the offset plot."""
    return 1.03 * max(series.end, *(other.end for other in others), series.marks.get("ttlb", 0.0))


def offset_plot(series: Series | None, others: Sequence[Series], *, title: str, upload: bool = False) -> Markup:
    """Offset versus time of one iteration at both vantage points, in front of the other iterations. `upload`: the
    line of the sender has the client's colour."""
    if series is None or series.end <= 0 or not series.file_size:
        return Markup()
    end = offset_end(series, others)
    area = Area(left=_LEFT, top=70, width=_WIDE - 80, height=300, x=(0.0, end), y=(0.0, 1.02 * series.file_size))
    drawing = Drawing(width=_WIDE, height=408, title=title, css="offset")
    name, unit = size_unit(area.y[1])
    x_axis(drawing, area, Axis(label="time (s)"))
    y_axis(drawing, area, Axis(label=f"offset ({name})", unit=unit))
    drawing.parts += [_steps(area, *other.arrived, css="other") for other in others]
    drawing.parts += [
        f'<polyline class="{css}" points="{_line(area, points)}"/>'
        for css, points in (("ideal", series.ideal), ("slow-start", series.slow_start))
        if points
    ]
    near, far = ("client", "server") if upload else ("server", "client")
    drawing.parts += [
        _steps(area, *curve(series.server, series.files), css=near),
        _steps(area, *series.arrived, css=far),
    ]
    drawing.parts += [_retransmissions(area, series.server), _limits(area, series), _marks(area, series.marks)]
    return drawing.done()


_PANEL, _PANELS_APART = 84, 24  # heights
_STEPS = 1_000  # largest number of steps of a line
_CHANGING = (  # field of a change, label, unit, and which of several values in one step is drawn
    ("data_rate", "Mbit/s", 1e6, min),
    ("delay", "delay (ms)", 1e-3, max),
    ("loss", "loss (%)", 1e-2, max),
)


def sky(segment: SegmentRecord, *, end: float, title: str) -> Markup:
    """Data rate, delay and loss of a segment from its first packet on, one below the other, for `end` seconds. The
    changes of its directions happen once. Bands show handovers. Empty when nothing changes."""
    ways = {"forward": segment.forward, "return": segment.return_}
    if not any(way.impairments.changes for way in ways.values()):
        return Markup()
    values = {
        name: {key: _course(way, key, end, worst) for key, _, _, worst in _CHANGING} for name, way in ways.items()
    }
    shown = [panel for panel in _CHANGING if any(value for way in values.values() for _, value in way[panel[0]])]
    height = len(shown) * (_PANEL + _PANELS_APART)
    drawing = Drawing(width=_WIDE, height=height + 38, title=title)
    handovers = _handovers(segment.forward.impairments.changes, end)
    for place, (key, label, unit, _) in enumerate(shown):
        highest = max(value for way in values.values() for _, value in way[key])
        area = Area(
            left=_LEFT,
            top=18 + place * (_PANEL + _PANELS_APART),
            width=_WIDE - 80,
            height=_PANEL,
            x=(0.0, end),
            y=(0.0, 1.06 * highest),
        )
        for begin, over in handovers:
            left, right = area.at(begin, 0)[0], area.at(over, 0)[0]
            drawing.parts.append(
                f'<rect class="box g6" x="{left:.1f}" y="{area.top}" width="{max(right - left, 1.0):.1f}" '
                f'height="{_PANEL}"><title>handover, {format_digits(begin)} to {format_digits(over)} s</title></rect>'
            )
        y_axis(drawing, area, Axis(label=label, unit=unit))
        if place == len(shown) - 1:
            x_axis(drawing, area, Axis(label="time (s)"))
        for number, name in enumerate(ways):
            points = [area.at(time, value) for time, value in values[name][key]]
            steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
            drawing.line(
                f"M{points[0][0]:.1f},{points[0][1]:.1f}{steps}H{area.left + area.width:.1f}",
                f"series g{number} dash{number}",
            )
    for number, name in enumerate(ways):
        drawing.line(f"M{_LEFT + 110 * number},8h24", f"series g{number} dash{number}")
        drawing.text(_LEFT + 110 * number + 30, 12, name)
    if handovers:
        drawing.parts.append(f'<rect class="box g6" x="{_LEFT + 220}" y="2" width="16" height="12"/>')
        drawing.text(_LEFT + 242, 12, "handover")
    return drawing.done()


def _course(
    way: LinkParameters, key: str, end: float, worst: Callable[[Iterable[float]], float]
) -> list[tuple[float, float]]:
    """The values of one parameter over time, as steps: each holds until the next. Of too many values only the worst of
    each few neighbours remains."""
    changes = [change for change in way.impairments.changes if change.time <= end]
    steps = [(change.time, float(getattr(change, key))) for change in changes]
    if not changes or changes[0].time > 0:
        steps.insert(0, (0.0, float(getattr(way, key))))
    every = -(-len(steps) // _STEPS)
    groups = (steps[at : at + every] for at in range(0, len(steps), every))
    return [(group[0][0], worst(value for _, value in group)) for group in groups]


def _handovers(changes: Sequence[LinkChange], end: float) -> list[tuple[float, float]]:
    """Begin and end of each handover."""
    spans: list[tuple[float, float]] = []
    for change, after in zip(changes, (*(each.time for each in changes[1:]), end), strict=False):
        if change.handover and change.time < end:
            begin = spans.pop()[0] if spans and spans[-1][1] >= change.time else change.time
            spans.append((begin, min(after, end)))
    return spans


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


def _steps(area: Area, time: NDArray[np.int64], total: NDArray[np.int64], *, css: str) -> str:
    if not len(time):
        return ""
    x = area.left + area.width * np.minimum(time / 1e6, area.x[1]) / area.x[1]
    y = area.top + area.height * (1 - np.minimum(total, area.y[1]) / area.y[1])
    corners = np.column_stack([x, y]).ravel().tolist()
    steps = "H%.1fV%.1f" * len(x) % tuple(corners)
    return f'<path class="{css}" d="M{corners[0]:.1f},{area.top + area.height:.1f}{steps}"/>'


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
            f'width="{right - left:.1f}" height="{_STRIP}"><title>{escape(limit)}, {format_digits(start)} to '
            f"{format_digits(end)} s</title></rect>"
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
            f"{label} {format_digits(at)} s</text>"
        )
    return "".join(parts)


# Turns a chart of a page into an SVG file. The file contains the colours of the light theme themselves, because some
# programs don't know CSS variables.

_PAIR = re.compile(r"light-dark\((#[0-9a-f]+),\s*#[0-9a-f]+\)")
_PROPERTY = re.compile(r"(--[\w-]+):\s*([^;]+);")
_RULE = re.compile(r"^((?:svg\.(?:chart|offset|heat)|svg |\.mark|\.g\d)[^{\n]*)\{([^}]*)\}", re.MULTILINE)
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")


@cache
def _style() -> str:
    text = _PAIR.sub(r"\1", _STYLE.read_text(encoding="utf-8"))
    known = dict(_PROPERTY.findall(text.partition("}")[0]))
    groups = dict(re.findall(r"^\.g(\d) \{ --g: ([^;]+); \}", text, re.MULTILINE))

    def plain(value: str) -> str:
        return _VARIABLE.sub(lambda match: known.get(match[1], match[0]), value)

    rules = ["text{font-family:sans-serif}"]
    for selector, body in _RULE.findall(text):
        if _bare(selector) == "svg":
            continue  # this rule only sizes the drawing inside a page
        if "var(--g)" not in body:
            rules.append(f"{_bare(selector)}{{{plain(body)}}}" if "--g:" not in body else "")
            continue
        for number in range(GROUPS):
            coloured = plain(body.replace("var(--g)", plain(groups.get(str(number), "#000"))))
            rules.append(f".g{number}{_bare(selector)}{{{coloured}}}")
    return "".join(rules)


def _bare(selector: str) -> str:
    """The selector without the CSS class of the drawing, because the file contains only one drawing."""
    return re.sub(r"^svg(\.\w+)? ?", "", selector.strip()) or "svg"


def standalone(svg: str) -> bytes:
    """The content of an SVG file, from the inline `svg` of a page."""
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    opened = str(svg).replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" ', 1)
    # Links are removed, because their targets don't exist outside of the site.
    plain = re.sub(r"</?a\b[^>]*>", "", opened)
    head, body = plain.split(">", 1)
    back = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return f"{head}><style>{_style()}</style>{back}{body}\n".encode()
