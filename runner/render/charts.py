"""Static charts as inline SVG, without scripts and external files: strips with boxes, scatter plots, lines, matrices.

Groups differ in colour and in the shape of their marks. Coordinates have one decimal, which is enough for any screen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from runner.render.axes import Area, Axis, Drawing, x_axis, y_axis
from runner.render.colour import shade, step_of
from runner.render.metrics import digits

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


Heat = Mapping[tuple[str, str], tuple[float | None, float | None, str]]


def heat(rows: Sequence[str], columns: Sequence[str], values: Heat, *, title: str) -> Markup:
    """A matrix. `values`, by (row, column): the number to print, the fraction that sets the colour, and the sign to
    print when there is no number."""
    if not values:
        return Markup()
    wide, high = 62, 26
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
                _heat_cell(drawing, (left + wide * across, y), (wide, high), values[row, column])
    return drawing.done()


def _heat_cell(
    drawing: Drawing,
    place: tuple[float, float],
    size: tuple[float, float],
    value: tuple[float | None, float | None, str],
) -> None:
    (x, y), (wide, high) = place, size
    number, fraction, sign = value
    back, ink = ("#eef0f2", "#59636d") if fraction is None else shade(step_of(fraction), dark=False)
    drawing.parts.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 2}" height="{high - 2}" fill="{back}"/>'
        f'<text x="{x + wide / 2 - 1:.1f}" y="{y + 16:.1f}" text-anchor="middle" style="fill:{ink}">'
        f"{escape(sign if number is None else digits(number))}</text>"
    )
