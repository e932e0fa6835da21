"""Runs → a folder of static files. Works from `file://`, with scripts off, and fetches nothing from outside."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import plotly
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from runner.errors import UsageError
from runner.model.job import Job
from runner.render import colour, drawing, index, pair, words
from runner.render.cells import SIGNS, Cell, cells
from runner.render.files import Download, publish
from runner.render.metrics import BY_KEY, digits
from runner.render.series import Series, load_series, plot_document
from runner.store import RunFolder
from runner.units import format_duration, format_size

WEB = Path(__file__).resolve().parents[2] / "web"
_MARKER = ".bentpipe-site"  # a folder without it is not ours to replace
_STATIC = "static"


def render(folders: Sequence[RunFolder], target: Path) -> None:
    """Draw the site of `folders`, the newest first, into `target`; a site that is already there is replaced whole.

    Raises UsageError when `target` holds something else, when it can't be written, or when two runs have one name.
    """
    ordered = sorted(folders, key=lambda folder: folder.run.started_unix_s, reverse=True)
    repeated = {folder.name for folder in ordered if [other.name for other in ordered].count(folder.name) > 1}
    if repeated or any(folder.name == _STATIC for folder in ordered):
        name = next(iter(repeated), _STATIC)
        raise UsageError(f"Two things of the site would be called '{name}': rename a run's folder.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not (target / _MARKER).is_file():
        raise UsageError(f"{target} holds something else than a site of bentpipe: choose another --out.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            _Site(staging, target).write(ordered)
            _swap(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"The site can't be written to {target}: {error.strerror or error}.") from error


def _swap(staging: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.rename(old)
    staging.rename(target)
    shutil.rmtree(old, ignore_errors=True)


class _Site:
    """One drawing of the site in `staging`, which is to become `final`."""

    def __init__(self, staging: Path, final: Path) -> None:
        self.staging = staging
        self.final = final
        self.templates = Environment(
            loader=FileSystemLoader(WEB / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {
            "moment": words.moment,
            "duration": format_duration,
            "size": format_size,
            "digits": digits,
            "url": quote,
            "host": words.host_text,
            "subscript": words.subscript,
            "limit_class": drawing.limit_class,
            "shade": lambda fraction: f"e{colour.step_of(fraction)}",
        }
        self.templates.globals |= {"signs": SIGNS, "by_key": BY_KEY, "steps": colour.STEPS, "amount": words.amount}

    def write(self, folders: Sequence[RunFolder]) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir()
        (self.staging / _MARKER).touch()
        self._static()
        runs = [(folder.name, folder.run) for folder in folders]
        for number, folder in enumerate(folders):
            told = self._pairs(folder) | {"runs": runs, "folder": folder.name}
            self._page(f"{folder.name}/index.html", "run.html", told, root="../", base="")
            if number == 0:
                self._page("index.html", "run.html", told, root="", base=f"{quote(folder.name)}/")

    def _static(self) -> None:
        shutil.copytree(WEB / "static", self.staging / _STATIC)
        (self.staging / _STATIC / "scale.css").write_text(colour.stylesheet())
        library = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
        shutil.copyfile(library, self.staging / _STATIC / "plotly.min.js")

    def _page(self, path: str, template: str, told: dict[str, Any], *, root: str, base: str) -> None:
        """`root` leads from the page to the site's folder, `base` to the run's."""
        text = self.templates.get_template(template).render(told, root=root, base=base)
        (self.staging / path).parent.mkdir(parents=True, exist_ok=True)
        (self.staging / path).write_text(text, encoding="utf-8")

    def _pairs(self, folder: RunFolder) -> dict[str, Any]:
        """Write the pages of all cells; returns what the run's page is told."""
        results = folder.results()
        table = cells(folder.run, results)
        sparks: dict[tuple[str, str, str], Markup] = {}
        for key, cell in table.items():
            series, downloads = self._job_files(folder, cell)
            sparks[key] = drawing.sparkline(series.get(cell.shown or 0))
            told = pair.context(folder.run, cell, series=series, downloads=downloads)
            same_pair = [one for one in table.values() if (one.server, one.client) == (cell.server, cell.client)]
            told |= {"run": folder.run, "folder": folder.name, "same_pair": same_pair}
            path = f"{folder.name}/{cell.pair}/{cell.case.name}.html"
            self._page(path, "pair.html", told, root="../../", base="../")
        return index.context(folder.run, results, table, sparks)

    def _job_files(self, folder: RunFolder, cell: Cell) -> tuple[dict[int, Series], dict[int, list[Download]]]:
        series: dict[int, Series] = {}
        downloads: dict[int, list[Download]] = {}
        for result in cell.results:
            job = Job(server=cell.server, client=cell.client, case=cell.case.name, iteration=result.iteration)
            artifacts = folder.artifacts(job)
            inside = Path(folder.name) / job.path
            downloads[result.iteration] = publish(artifacts, staging=self.staging / inside, final=self.final / inside)
            if (found := load_series(artifacts.series)) is not None:
                series[result.iteration] = found
                text = json.dumps(plot_document(found, full=result.iteration == cell.shown), separators=(",", ":"))
                (self.staging / inside / "series.js").write_text(f"bentpipe.series({result.iteration},{text});\n")
        return series, downloads
