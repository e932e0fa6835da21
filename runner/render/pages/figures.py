"""The page *Figures*: counterparts of the thesis' figures 5.1 to 5.24, made from this run.

Each figure has files in SVG, CSV and Parquet; the page's script makes PNG.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from runner.render import exports, statistics_figures, time_figures, trace_figures
from runner.render.pages import Asset, Page, Pages
from runner.render.standalone import standalone
from runner.render.view import RunView

NAV = (4, "Figures", "figures/index.html")
NEEDS = "stacks"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A drawn figure: its panels (caption, SVG), the rows of its CSV file, and the reason when it is empty."""

    number: str
    title: str
    panels: Sequence[tuple[str, Markup]] = ()
    rows: Sequence[dict[str, Any]] = ()
    text: str = ""
    missing: str = ""
    href: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)  # words, path relative to the run


def pages(view: RunView) -> Pages:
    """The page with all figures, and their files."""
    drawn = []
    figures: list[Callable[[RunView], dict[str, Any]]] = [
        *statistics_figures.FIGURES,
        *trace_figures.FIGURES,
        *time_figures.FIGURES,
    ]
    for figure in figures:
        content = figure(view)
        panels = [(caption, svg) for caption, svg in content.pop("panels", ()) if svg]
        rows = content.pop("rows", ())
        drawing = Drawn(panels=panels, rows=rows, **content)
        stem = f"figures/{drawing.number.replace('.', '-').replace(' ', '')}"
        for number, (_, svg) in enumerate(drawing.panels):
            path = f"{stem}{'' if len(drawing.panels) == 1 else '-' + str(number + 1)}.svg"
            drawing.files.append(("SVG" if len(drawing.panels) == 1 else f"SVG {number + 1}", path))
            yield Asset(path, standalone(svg))
        if drawing.rows and drawing.panels:
            drawing.files.extend([("CSV", f"{stem}.csv"), ("Parquet", f"{stem}.parquet")])
            yield Asset(f"{stem}.csv", exports.as_csv(drawing.rows))
            yield Asset(f"{stem}.parquet", exports.as_parquet(drawing.rows))
        drawn.append(drawing)
    drawn.sort(key=lambda drawing: [int(part) for part in drawing.number.split(".")])
    yield Page("figures/index.html", "figures.html", {"figures": drawn})
