"""The pages of matrix cells: one page per pair and case, drawn again only when its inputs changed."""

import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from runner.compare.stats import Summary, summarise
from runner.model.result import (
    BY_KEY,
    DOWNLOAD_NUMBERS,
    PAGE_NUMBERS,
    PAIR_NUMBERS,
    Finding,
    Invariant,
    Number,
    Outcome,
    Result,
    Sample,
)
from runner.model.run import ClientKind, Run
from runner.model.stack import PageLoad
from runner.site import cells, charts
from runner.site.cells import Cell, value
from runner.site.series import Download, Series, coded, load_series, plot_document, publish
from runner.site.view import RunView, digest
from runner.site.writer import Progress, Writer, every, printable_json, script_json

# The data of the page of one matrix cell.

_TILES = (
    "ttlb",
    "goodput",
    "efficiency",
    "efficiency_of_bound",
    "handshake_time",
    "ttfb",
    "retransmission_ratio",
)
_COLUMNS = (
    "ttlb",
    "goodput",
    "efficiency",
    "handshake_time",
    "ttfb",
    "retransmission_ratio",
    "spurious_bytes",
    "rtt_min",
    "rtt_median",
)
_LEAST_SHARE = 0.001  # of the time, summed over the iterations; a limit with a smaller share has no column


@dataclass(frozen=True)
class IterationRow:
    """One iteration of the table. `numbers`: a text for each column."""

    result: Result
    numbers: tuple[str, ...]
    broken: tuple[Invariant, ...]
    downloads: Sequence[Download]


def pair_context(
    run: Run, cell: Cell, *, series: Mapping[int, Series], downloads: Mapping[int, Sequence[Download]]
) -> dict[str, Any]:
    """The variables of the template `pair.html`. `series` and `downloads` are by iteration."""
    title = f"Offset versus time, {cell.client} → {cell.server}, {cell.case.name}"
    shown = _first_plot(cell, series)
    others = [behind for iteration, behind in series.items() if iteration != shown]
    return _common(cell, [BY_KEY[key] for key in _COLUMNS], "sample", downloads) | {
        "client": run.implementations.get(cell.client),
        "server": run.implementations.get(cell.server),
        "transfer": cells.transfer_facts(cell.case, [cell]),
        "tiles": [(BY_KEY[key], cell.summaries[key]) for key in _TILES if key in cell.summaries],
        "groups": _groups(cell.summaries),
        "notes": distinct(cell.results, "notes"),
        "judged": [result for result in cell.results if result.public is not None],
        "public_differs": any(result.public and result.public.outcome is not result.outcome for result in cell.results),
        "limits": _limits(cell.results),
        "diagnosed": [result for result in cell.results if result.diagnoses],
        "readings": next((result.readings for result in cell.results if result.iteration == cell.shown), ()),
        "shown": shown,
        "plotted": set(series),
        "sky": _sky(cell, shown, series),
        "drawing": charts.offset_plot(series.get(shown or 0), others, title=title),
        "plot": _plot(cell, series, shown),
    }


def load_context(run: Run, cell: Cell, *, downloads: Mapping[int, Sequence[Download]]) -> dict[str, Any]:
    """The variables of the template `load_cell.html`, for a download or a page load. `downloads` is by iteration."""
    source, numbers = ("page", PAGE_NUMBERS) if cell.case.page else ("sample", DOWNLOAD_NUMBERS)
    succeeded = [result for result in cell.results if result.outcome is Outcome.SUCCEEDED]
    summaries = [
        (metric, summarise(value(getattr(result, source), metric.key) for result in succeeded)) for metric in numbers
    ]
    return _common(cell, numbers, source, downloads) | {
        "middlebox": run.middleboxes.get(cell.via),
        "tiles": [(metric, summary) for metric, summary in summaries if summary is not None],
    }


def _common(
    cell: Cell, columns: Sequence[Number], source: str, downloads: Mapping[int, Sequence[Download]]
) -> dict[str, Any]:
    """The variables of both templates. `source`: the field of a result that has the numbers of the columns."""
    return {
        "cell": cell,
        "verdict": cells.outcomes_text(cell.results, "iteration") + "." if cell.results else "Not run yet.",
        "columns": columns,
        "rows": [_row(result, columns, getattr(result, source), downloads) for result in cell.results],
        "reasons": distinct(cell.results, "findings"),
    }


def _row(
    result: Result,
    columns: Sequence[Number],
    numbers: Sample | PageLoad | None,
    downloads: Mapping[int, Sequence[Download]],
) -> IterationRow:
    values = [(metric, value(numbers, metric.key)) for metric in columns]
    return IterationRow(
        result=result,
        numbers=tuple("–" if number is None else metric.number(number) for metric, number in values),
        broken=tuple(invariant for invariant in result.invariants if invariant.holds is False),
        downloads=downloads.get(result.iteration, ()),
    )


def _first_plot(cell: Cell, series: Mapping[int, Series]) -> int | None:
    return cell.shown if cell.shown in series else next(iter(series), None)


def _sky(cell: Cell, shown: int | None, series: Mapping[int, Series]) -> Markup:
    """The parameters of the link that changed during the iteration in front, on the time axis of its plot."""
    truth = next((result.truth for result in cell.results if result.iteration == shown), None)
    if truth is None or shown is None or series[shown].end <= 0:
        return Markup()
    others = [behind for iteration, behind in series.items() if iteration != shown]
    link = cell.case.link.begun(truth.seed, cell.case.timeout)
    end = charts.offset_end(series[shown], others)
    return charts.sky(link.satellite, end=end, title=f"The link in iteration {shown}")


def _groups(summaries: Mapping[str, Summary]) -> dict[str, list[tuple[Number, Summary]]]:
    groups: dict[str, list[tuple[Number, Summary]]] = {}
    for metric in PAIR_NUMBERS:
        if metric.key in summaries:
            groups.setdefault(metric.group, []).append((metric, summaries[metric.key]))
    return groups


def _limits(results: Sequence[Result]) -> list[str]:
    """The limits of all iterations. The limit with the largest share of the time comes first."""
    total: dict[str, float] = {}
    for result in results:
        for limit, share in result.limits.items():
            total[limit] = total.get(limit, 0.0) + share
    return sorted((limit for limit in total if total[limit] >= _LEAST_SHARE), key=lambda limit: -total[limit])


def distinct(results: Sequence[Result], kind: str) -> list[tuple[Finding, list[int]]]:
    """Each distinct finding of the `kind` (`findings` or `notes`), with the iterations in which it occurred. Its text
    and its log come from the first of these iterations."""
    found: dict[tuple[str, str], tuple[Finding, list[int]]] = {}
    for result in results:
        for finding in getattr(result, kind):
            found.setdefault((finding.code, finding.role), (finding, []))[1].append(result.iteration)
    return list(found.values())


def _plot(cell: Cell, series: Mapping[int, Series], shown: int | None) -> dict[str, Any]:
    """The data that the page's script needs before it loads an iteration: the thinned curves of all iterations."""
    outcomes = {result.iteration: result.outcome for result in cell.results}
    curves = []
    for iteration, series_of_iteration in series.items():
        time, total = series_of_iteration.arrived
        curves.append(
            {
                "iteration": iteration,
                "succeeded": outcomes.get(iteration) is Outcome.SUCCEEDED,
                "t_us": coded(time),
                "bytes": coded(total),
            }
        )
    return {"case": cell.case.name, "shown": shown, "median": cell.median, "curves": curves}


# Draws the pages of matrix cells: one page per pair and case, with plots and files. A page is drawn again only when
# its inputs changed.

_LEAST = 24  # with fewer cells, starting processes takes longer than it saves


def draw_cells(
    view: RunView, writer: Writer, known: Mapping[str, tuple[str, str]], progress: Progress
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
    sparks = every(
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
        template, context = "load_cell.html", load_context(view.run, cell, downloads=downloads)
    else:
        template, context = "pair.html", pair_context(view.run, cell, series=series, downloads=downloads)
    writer.page(f"{inside}.html", template, view, context | {"same_pair": siblings})
    return str(charts.sparkline(series.get(cell.shown or 0)))


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
                printable_json(stored_series.text.decode(errors="replace").strip())
                if shown
                else script_json(plot_document(stored_series), separators=(",", ":"))
            )
            packed = b64encode(zlib.compress(text.encode())).decode()  # a fifth to a tenth of the text
            script = f'bentpipe.series({result.iteration},"{packed}");\n'
            (writer.root / inside / "series.js").write_text(script, encoding="utf-8")
    return series, downloads
