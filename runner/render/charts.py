"""Static charts as inline SVG: strips with boxes, scatter plots, lines over time. No script, font or external
reference.

Groups differ in colour and in the shape of their marks. Coordinates have one decimal, which is enough for any
screen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup, escape

from runner.render.colour import shade, step_of
from runner.render.drawing import ticks
from runner.render.metrics import digits

GROUPS = 8
_DASHES = 4  # of lines; with the colours 32 that differ
"""Colours and shapes that differ; a ninth group has those of the first."""
_R = 3.6
_D = 2 * _R
# Where each shape begins, from its middle, and how it goes on.
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
_LABEL_CHARACTER = 7.4  # width of one at 12 px in bold, about
_LABEL_LINE = 18  # px


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One value of a chart. `title` appears on hovering; `href` makes the mark a link; `low` and `high` bound its
    interval."""

    x: float
    y: float = 0.0
    title: str = ""
    href: str = ""
    group: int = 0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One row: its name and its values on the common axis. `group` sets their colour; `note` stands at the right
    end."""

    label: str
    marks: Sequence[Mark]
    group: int = 0
    href: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`end` 0: as far as the values go. `reference`: a line to compare with, its name beside it."""

    label: str
    end: float = 0.0
    reference: float | None = None
    reference_label: str = ""
    dates: bool = False  # values are Unix times
    named: Sequence[tuple[float, str]] = ()  # the only ticks: their places and what stands there


@dataclass(frozen=True, kw_only=True)
class Area:
    """The rectangle of the values and what it shows."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float] = (0.0, 1.0)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Place of a value in the drawing."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return self.left + self.width * across, self.top + self.height * (1 - up)


@dataclass(kw_only=True)
class Drawing:
    """SVG in the making."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)
    linked: bool = False  # a picture has nothing in it that could be followed

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", css: str = "", turn: bool = False) -> None:
        """A label; `turn` writes it upwards."""
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
        named = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}{turned}>{escape(text)}</text>')

    def line(self, d: str, css: str) -> None:
        """A path."""
        self.parts.append(f'<path class="{css}" d="{d}"/>')

    def mark(self, x: float, y: float, one: Mark, group: int) -> None:
        """A value, with what hovering tells."""
        shape = f'<path class="mark g{group % GROUPS}" d="{shape_path(x, y, group)}">'
        title = f"<title>{escape(one.title)}</title>" if one.title else ""
        if one.href:
            # Marks are many: a keyboard would have to walk through all of them, and tables beside have the same links.
            self.parts.append(f'<a href="{escape(one.href)}" tabindex="-1">{title}{shape}</path></a>')
            self.linked = True
        else:
            self.parts.append(f"{shape}{title}</path>")

    def done(self) -> Markup:
        """The whole element."""
        inside = "".join(self.parts)
        role = "group" if self.linked else "img"
        return Markup(
            f'<svg class="chart" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="{role}" '
            f'aria-label="{escape(self.title)}" style="--w:{self.width:.0f}px">{inside}</svg>'
        )


def shape_path(x: float, y: float, group: int) -> str:
    """Circle, square, triangle, diamond, cross, triangle down, plus, hourglass: by the group's number."""
    right, down, rest = _SHAPES[group % GROUPS]
    return f"M{x + right:.1f},{y + down:.1f}{rest}"


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
    """A strip per row: every value as a mark, and behind it a box from quartile to quartile with the median."""
    if not any(row.marks for row in rows):
        return Markup()
    left = min(270.0, 14 + _LABEL_CHARACTER * max(len(row.label) for row in rows))
    right = 14 + _LABEL_CHARACTER * max(len(row.note) for row in rows)
    high, top = 26, 24
    end = _upper((mark.x for row in rows for mark in row.marks), axis)
    area = Area(left=left, top=top, width=width - left - right, height=high * len(rows), x=(0.0, end))
    drawing = Drawing(width=width, height=top + area.height + 36, title=title)
    _x_axis(drawing, area, axis)
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
            # Values side by side are told apart by a jitter that depends on nothing but their place in the row.
            drawing.mark(x, middle + ((index * 5) % 9 - 4) * 1.6, mark, mark.group or row.group)
    return drawing.done()


def _box(drawing: Drawing, area: Area, values: Sequence[float], middle: float, group: int) -> None:
    if len(values) < 3:
        return
    low, median, high = (area.at(float(one), 0)[0] for one in np.quantile(values, [0.25, 0.5, 0.75]))
    drawing.parts.append(
        f'<rect class="box g{group % GROUPS}" x="{low:.1f}" y="{middle - 9:.1f}" width="{high - low:.1f}" height="18"/>'
    )
    drawing.line(f"M{median:.1f},{middle - 11:.1f}v22", "median")


def _x_axis(drawing: Drawing, area: Area, axis: Axis) -> None:
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


def _y_axis(drawing: Drawing, area: Area, axis: Axis) -> None:
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
        from runner.render.words import moment  # noqa: PLC0415 - words needs the cells, which need no chart

        count = max(2, int(room // 150))
        places = np.linspace(span[0], span[1], count) if span[1] > span[0] else [span[0]]
        return [(float(at), moment(float(at)).removesuffix(" UTC")[5:]) for at in places]
    every = ticks(span[1] - span[0])
    every = every[:: 2 if room / len(every) < 44 else 1]
    return [(span[0] + at, f"{span[0] + at:g}") for at in every]


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
    """A scatter plot. `diagonal` draws the line of equal values; `trend` draws one line of least squares per group."""
    if not marks:
        return Markup()
    ends = [_upper((getattr(mark, name) for mark in marks), axis) for name, axis in (("x", x), ("y", y))]
    begin = min(mark.x for mark in marks) if x.dates else 0.0
    if x.dates:
        ends[0] = max(*(mark.x for mark in marks), begin + 60)
    area = Area(left=58, top=16, width=size[0] - 72, height=size[1] - 62, x=(begin, ends[0]), y=(0.0, ends[1]))
    drawing = Drawing(width=size[0], height=size[1], title=title)
    _x_axis(drawing, area, x)
    _y_axis(drawing, area, y)
    if diagonal:
        both = min(ends)
        (x0, y0), (x1, y1) = area.at(0, 0), area.at(both, both)
        drawing.line(f"M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}", "diagonal")
    for mark in marks:
        drawing.mark(*area.at(mark.x, mark.y), mark, mark.group)
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
    """One line per series through its marks, in order of x, with its name at the right end."""
    every = [mark for _, marks in series for mark in marks]
    if not every:
        return Markup()
    begin, end = min(mark.x for mark in every), max(mark.x for mark in every)
    if not (x.named or x.dates) and 0 < begin < end / 4:
        begin = 0.0  # round ticks, and nearly nothing left empty
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
    _x_axis(drawing, area, x)
    _y_axis(drawing, area, y)
    taken: list[float] = []
    for number, (name, marks) in enumerate(series):
        ordered = sorted(marks, key=lambda mark: mark.x)
        places = [area.at(mark.x, mark.y) for mark in ordered]
        drawing.line("M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in places), f"series g{number % GROUPS}")
        for (px, py), mark in zip(places, ordered, strict=True):
            if mark.low is not None and mark.high is not None:
                bottom, top = (area.at(mark.x, end)[1] for end in (mark.low, mark.high))
                drawing.line(f"M{px:.1f},{bottom:.1f}V{top:.1f}", f"series g{number % GROUPS}")
            drawing.mark(px, py, mark, number)
        at = places[-1][1] + 4
        while any(abs(at - other) < 13 for other in taken):
            at += 13
        taken.append(at)
        drawing.text(places[-1][0] + 9, at, name, css="row")
    return drawing.done()


def curves(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], x: Axis, y: Axis, *, title: str) -> Markup:
    """Lines without marks, each in its colour and dash, named below."""
    every = [point for _, points in series for point in points]
    if not every:
        return Markup()
    ends = [_upper((point[place] for point in every), axis) for place, axis in ((0, x), (1, y))]
    area = Area(left=58, top=16, width=788, height=250, x=(0.0, ends[0]), y=(0.0, ends[1]))
    labels = _labels([name for name, _ in series], left=area.left, right=852)
    drawing = Drawing(width=860, height=340 + _LABEL_LINE * labels[-1][1], title=title)
    _x_axis(drawing, area, x)
    _y_axis(drawing, area, y)
    for number, ((name, points), (left, down)) in enumerate(zip(series, labels, strict=True)):
        places = [area.at(px, py) for px, py in points]
        css = f"series g{number % GROUPS} dash{(number + number // GROUPS) % _DASHES}"
        if places:
            drawing.line("M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in places), css)
        drawing.line(f"M{left:.1f},{325 + _LABEL_LINE * down}h26", css)
        drawing.text(left + 32, 329 + _LABEL_LINE * down, name, css="row")
    return drawing.done()


def _labels(names: Sequence[str], *, left: float, right: float) -> list[tuple[float, int]]:
    """Where each name of a legend stands: its left end and its line, from 0."""
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
    """A matrix: by (row, column) the number that is printed, the fraction that colours it, a sign without a number."""
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
