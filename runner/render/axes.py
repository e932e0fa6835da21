"""The axes of all drawings, as inline SVG: the area of the values, ticks, grid and names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, log10

import numpy as np
from markupsafe import Markup, escape


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
        """Add a path."""
        self.parts.append(f'<path class="{css}" d="{d}"/>')

    def done(self) -> Markup:
        """The finished SVG element."""
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
        from runner.render.words import moment  # noqa: PLC0415 - words needs the cells, which need no chart

        count = max(2, int(room // 150))
        places = np.linspace(span[0], span[1], count) if span[1] > span[0] else [span[0]]
        return [(float(at), moment(float(at)).removesuffix(" UTC")[5:]) for at in places]
    begin, every = span[0] / axis.unit, ticks((span[1] - span[0]) / axis.unit)
    every = every[:: 2 if room / len(every) < 44 else 1]
    return [((begin + at) * axis.unit, f"{begin + at:g}") for at in every]
