"""Draws the pages of matrix cells: one page per pair and case, with plots and files. A page is drawn again only when
its inputs changed."""

import json
from collections.abc import Mapping
from pathlib import Path

from runner.model.run import ClientKind
from runner.render import crossing, drawing, pair, parallel
from runner.render.cells import Cell
from runner.render.files import Download, publish
from runner.render.manifest import digest
from runner.render.series import Series, load_series, plot_document
from runner.render.view import RunView
from runner.render.writer import Writer

_LEAST = 24  # with fewer cells, starting processes takes longer than it saves


def draw_cells(
    view: RunView, writer: Writer, known: Mapping[str, tuple[str, str]], progress: parallel.Progress
) -> dict[str, tuple[str, str]]:
    """Draw the pages of all cells whose inputs differ from the inputs in `known`. Return the digest of the inputs and
    the sparkline of each cell, by name."""
    siblings: dict[str, list[Cell]] = {}
    for cell in view.table.values():
        siblings.setdefault(cell.pair, []).append(cell)
    record = (view.folder.path / "run.json").read_bytes()
    pair_digests = {pair_name: digest([record, *map(_shared, group)]) for pair_name, group in siblings.items()}
    drawn: dict[str, tuple[str, str]] = {}
    waiting: list[tuple[str, str, Cell]] = []
    for cell in view.table.values():
        name = f"{view.name}/{cell.pair}/{cell.case.name}"
        inputs = digest([pair_digests[cell.pair], view.folder.states.get(f"{cell.pair}/{cell.case.name}", "")])
        if name in known and known[name][0] == inputs:
            drawn[name] = known[name]
        else:
            waiting.append((name, inputs, cell))
    sparks = parallel.every(
        waiting, lambda entry: _draw(view, writer, entry[2], siblings[entry[2].pair]), least=_LEAST, progress=progress
    )
    return drawn | {name: (inputs, spark) for (name, inputs, _), spark in zip(waiting, sparks, strict=True)}


def _shared(cell: Cell) -> tuple[object, ...]:
    """The data of a cell that the pages of the same pair's other cases show."""
    efficiency = cell.summaries.get("efficiency")
    return cell.case.name, cell.css, cell.says, efficiency.median if efficiency is not None else None


def _draw(view: RunView, writer: Writer, cell: Cell, siblings: list[Cell]) -> str:
    inside = f"{view.name}/{cell.pair}/{cell.case.name}"
    writer.remove(inside)
    series, downloads = _job_files(view, writer, cell)
    if cell.case.client is not ClientKind.STACK:
        template, context = "load_cell.html", crossing.context(view.run, cell, downloads=downloads)
    else:
        template, context = "pair.html", pair.context(view.run, cell, series=series, downloads=downloads)
    writer.page(f"{inside}.html", template, view, context | {"same_pair": siblings})
    return str(drawing.sparkline(series.get(cell.shown or 0)))


def _job_files(view: RunView, writer: Writer, cell: Cell) -> tuple[dict[int, Series], dict[int, list[Download]]]:
    series: dict[int, Series] = {}
    downloads: dict[int, list[Download]] = {}
    for result in cell.results:
        artifacts = view.folder.artifacts(result.job)
        inside = Path(view.name) / result.job.path
        downloads[result.iteration] = publish(artifacts, staging=writer.root / inside, final=writer.final / inside)
        if (stored_series := load_series(artifacts.series)) is not None:
            series[result.iteration] = stored_series
            shown = result.iteration == cell.shown
            text = (
                stored_series.text.strip()
                if shown
                else json.dumps(plot_document(stored_series), separators=(",", ":")).encode()
            )
            script = b"bentpipe.series(%d,%b);\n" % (result.iteration, text)
            (writer.root / inside / "series.js").write_bytes(script)
    return series, downloads
