"""Draws runs into a folder of static files. These files also work from `file://` and without scripts, and they load
nothing from other hosts."""

import json
import os
import re
import shutil
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from runner.compare import RunMeans
from runner.compare.stats import Summary, summarise
from runner.errors import BentpipeError, UsageError
from runner.model.result import (
    BY_KEY,
    DOWNLOAD_NUMBERS,
    PAGE_NUMBERS,
    PAIR_NUMBERS,
    Finding,
    Number,
    Outcome,
    Result,
    Sample,
)
from runner.model.run import ClientKind, NightRecord, Run
from runner.model.stack import PageLoad
from runner.site import charts, exports
from runner.site import view as words
from runner.site.front import Front
from runner.site.front_data import front_data
from runner.site.pages import Asset, modules
from runner.site.pages.scenarios import SCOREBOARD
from runner.site.series import Download, Series, coded, load_series, plot_document, publish
from runner.site.view import MARKER, Cell, Level, Manifest, RunView, digest, value
from runner.site.writer import (
    BADGES,
    LATEST,
    REPORTS,
    RESERVED,
    ROBUSTNESS,
    TONIGHT,
    WEB,
    Progress,
    Writer,
    every,
    printable_json,
    script_json,
)
from runner.store.runs import RunFolder
from runner.units import MIB


class UndrawableRunError(BentpipeError):
    """A run could be read but not drawn. This is a fault of bentpipe. The caller can draw the site without this run."""

    def __init__(self, folder: RunFolder, error: Exception) -> None:
        super().__init__(
            f"{folder.path} can't be drawn ({type(error).__name__}: {error}). This is a fault of bentpipe."
        )
        self.folder = folder


def render(
    folders: Sequence[RunFolder],
    target: Path,
    *,
    nights: Mapping[str, NightRecord] | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Draw the site of `folders`, the newest first, into `target`. `nights`: the newest record of each night, by name.

    In an existing site, only changed pages are drawn again, and files that don't belong to the site are removed.
    `progress` is called many times a second with a text such as `NAME: 3 of 40 cells`.

    Raises UsageError when `target` is not a site of bentpipe, when it can't be written, or when two runs have the same
    name or a run has a name that the site itself uses. Raises UndrawableRunError for a run that can't be drawn.
    """
    names = [folder.name for folder in folders]
    repeated = {name for name in names if names.count(name) > 1 or name in RESERVED}
    if repeated:
        raise UsageError(f"The site needs the name '{min(repeated)}' twice: rename the run's folder.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not (target / MARKER).is_file():
        raise UsageError(f"{target} is not empty and not a site of bentpipe: choose another --out.")
    try:
        _draw(RunView.all(folders), target, nights or {}, progress or (lambda _: None))
    except OSError as error:
        reason = error.args[0][0][2].partition("] ")[2] if isinstance(error, shutil.Error) else error.strerror or error
        raise UsageError(f"The site can't be written to {target}: {reason}.") from error


def _draw(
    folders: Sequence[RunView],
    target: Path,
    nights: Mapping[str, NightRecord],
    progress: Callable[[str], None],
) -> None:
    """When the same program drew the existing site, update that site in place. Otherwise draw a new site beside it, and
    then replace the old site by the new site."""
    before = Manifest.load(target, _program())
    if before.runs:
        (target / MARKER).write_text("")
        _Site(Writer(target, target), folders, nights, before, progress).draw()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        _Site(Writer(staging, target), folders, nights, before, progress).draw()
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        if target.exists():
            target.rename(old)
        staging.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_left_over(target)


def _remove_left_over(target: Path) -> None:
    """Remove unfinished and replaced sites beside `target` that killed processes left behind."""
    for path in target.parent.glob(f".{target.name}.*"):
        match = re.fullmatch(r"\.(\d+)\.(tmp|old)", path.name.removeprefix(f".{target.name}"))
        if match and not Path("/proc", match[1]).exists():
            shutil.rmtree(path, ignore_errors=True)


def _program() -> str:
    """Digest of the program that draws. When it changes, every page is drawn again."""
    here = Path(__file__).parents[1]
    code = [
        *here.glob("site/**/*.py"),
        *here.glob("compare/*.py"),
        *here.glob("model/*.*"),
    ]
    web = [path for folder in ("templates", "static") for path in (WEB / folder).iterdir()]
    return digest((path.name, path.read_bytes()) for path in sorted([*code, *web]))


@dataclass
class _Site:
    writer: Writer
    folders: Sequence[RunView]
    nights: Mapping[str, NightRecord]
    before: Manifest
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self.after = Manifest(program=self.before.program)

    def draw(self) -> None:
        """Draw all changed pages, then remove files that no longer belong to the site."""
        if not self.before.runs:
            self.writer.static()
        states = {folder.name: self._state(folder) for folder in self.folders}
        for folder in self.folders:
            known = self.before.runs.get(folder.name)
            if known is not None and known["state"] == states[folder.name]:
                folder.levels = {
                    case: {name: Level(*level) for name, level in some.items()}
                    for case, some in known["levels"].items()
                }
                folder.means = RunMeans.load(folder.run, known["means"])
        for folder in self.folders:
            try:
                self._run(folder, states)
            except (BentpipeError, OSError):
                raise
            except Exception as error:
                raise UndrawableRunError(folder, error) from error
        self._draw_shared()
        pages = (f"{name}/{path}" for name, entry in self.after.runs.items() for path in entry["paths"])
        self.writer.tidy(self.after.cells, pages)
        self.after.save(self.writer.root)

    def _state(self, folder: RunView) -> str:
        return digest([(folder.path / "run.json").read_bytes(), *folder.states.items()])

    def _run(self, view: RunView, states: dict[str, str]) -> None:
        """Draw the pages of one run when that run, or another run that its pages show, has changed."""
        inputs = digest([states[folder.name] for folder in view.alike])
        known = self.before.runs.get(view.name)
        prefix = f"{view.name}/"
        if known is not None and known["inputs"] == inputs:
            self.after.runs[view.name] = known
            self.after.cells |= {key: cell for key, cell in self.before.cells.items() if key.startswith(prefix)}
            return
        self.writer.load()
        kept = {key: cell for key, cell in self.before.cells.items() if key.startswith(prefix)}
        report = self.progress
        drawn = draw_cells(view, self.writer, kept, lambda done, of: report(f"{view.name}: {done:,} of {of:,} cells"))
        report(f"{view.name}: its pages")
        self.after.cells |= drawn
        keys = {cell_name(view, cell): key for key, cell in view.table.items()}
        view.sparks |= {keys[name]: Markup(spark) for name, (_, spark) in drawn.items()}
        # Compute these values once here. Otherwise every process that draws pages would compute them again.
        view.prepare()
        entry, front = exports.entry(view), front_data(view)
        named = [module.__name__ for module in modules(view.run)]
        paths = every(named, lambda name: self._module(view, name), least=2)
        self.after.runs[view.name] = {
            "inputs": inputs,
            "state": states[view.name],
            "levels": view.levels,
            "means": view.means.document(),
            "paths": sorted(path for some in paths for path in some),
            "entry": entry,
            "front": front,
        }

    def _module(self, view: RunView, name: str) -> list[str]:
        """Write the pages of one module and return their paths."""
        pages = []
        for page in sys.modules[name].pages(view):
            path = f"{view.name}/{page.path}"
            if isinstance(page, Asset):
                self.writer.file(path, page.content)
            else:
                self.writer.page(path, page.template, view, page.context)
            pages.append(page.path)
        return pages

    def _draw_shared(self) -> None:
        """Draw the pages about all runs and the feeds. Copy files of the newest run to addresses that are the same for
        every run."""
        newest = self.folders[0]
        runs = [(folder.name, folder.run, self.after.runs[folder.name]["entry"]) for folder in self.folders]
        results = newest_results(newest.path.parent / "checks")
        self._shared_page("runs.html", "runs.html", {"every": runs, "hostile": bool(results)})
        if results:
            page = robustness(results)
            self._shared_page(ROBUSTNESS, "robustness.html", page)
            for name, report in page["reports"].items():
                self.writer.file(f"{REPORTS}/{name}", report)
            self.writer.keep_only(REPORTS, set(page["reports"]))
        else:
            (self.writer.root / ROBUSTNESS).unlink(missing_ok=True)
        self.writer.file("atom.xml", exports.document(runs))
        self.writer.file("static/runs.js", exports.selector(runs))
        # The list of the public runner's page: the folders that hold a `result.json`, the oldest first.
        self.writer.file("logs.json", json.dumps([name for name, _, _ in reversed(runs)]).encode() + b"\n")
        run_folder = self.writer.root / newest.name
        self.writer.file(f"{LATEST}/result.json", (run_folder / "result.json").read_bytes())
        badges = [path for path in self.after.runs[newest.name]["paths"] if path.startswith(f"{BADGES}/")]
        for path in badges:
            self.writer.file(path, (run_folder / path).read_bytes())
        self.writer.keep_only(BADGES, {path.removeprefix(f"{BADGES}/") for path in badges})
        self._front()

    def _front(self) -> None:
        """Draw the front page, the page of the last nights, and a page, badge and feed for each stack."""
        data = {name: entry["front"] for name, entry in self.after.runs.items()}
        front = Front(self.folders, data, self.nights)
        boards = [folder for folder in self.folders if SCOREBOARD in self.after.runs[folder.name]["paths"]]
        self._shared_page("index.html", "front.html", front.index() | {"scoreboards": boards[:1]})
        if self.nights:
            self._shared_page(TONIGHT, "tonight.html", front.tonight())
        else:
            (self.writer.root / TONIGHT).unlink(missing_ok=True)
        lines = front.stack_lines(front.plans())
        for line in lines:
            folder = f"{LATEST}/{line.name}"
            self._shared_page(f"{folder}/index.html", "latest.html", front.stack_page(line))
            self.writer.file(f"{folder}/badge.svg", front.badge(line))
            self.writer.file(f"{folder}/atom.xml", front.feed(line))
        self.writer.keep_only(LATEST, {"result.json", *(line.name for line in lines)})

    def _shared_page(self, path: str, template: str, context: Mapping[str, Any]) -> None:
        """Draw a page about all runs. Its navigation is that of the newest run."""
        self.writer.page(path, template, self.folders[0], context, of_run=False)


# The page *Robustness*: what stacks accept from the hostile peer (docs/hostile.md), from the files `hostile.json`.

SIGNS = {"passed": "✓", "failed": "✗", "note": "≈", "error": "?", "inapplicable": "⊘", "unsupported": "–"}
STYLES = {"passed": "succeeded", "failed": "failed", "error": "error"}
"""Verdict → class of the style sheet; the others are drawn as unsupported."""
_RESULTS = "*/hostile.json"
_TOLD = ("failed", "note", "error")  # verdicts with an entry below the table
_REPORT = "hostile.md"


def newest_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Stack → its newest results below `folder`. Broken files are left out."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(_RESULTS), key=lambda path: path.stat().st_mtime):
        try:
            read = json.loads(path.read_bytes())
            stack, flights, results = read["stack"], read["flights"], read["results"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(stack, str) and isinstance(flights, dict) and isinstance(results, list):
            newest[stack] = {**read, "folder": path.parent.name, "path": path.parent}
    return newest


def reports(newest: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Name of a file → the report of a stack, which can be pasted into its issue tracker."""
    files = {f"{stack}.md": read["path"] / _REPORT for stack, read in newest.items() if re.fullmatch(r"[\w.-]+", stack)}
    return {name: path.read_bytes() for name, path in files.items() if path.is_file()}


def robustness(newest: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The variables of the page: a column for each role of each stack, a row for each flight, by RFC."""
    cells = {
        (stack, str(result.get("role")), str(result.get("flight"))): result
        for stack, read in newest.items()
        for result in read["results"]
        if isinstance(result, dict)
    }
    columns = sorted({key[:2] for key, result in cells.items() if result.get("verdict") != "unsupported"})
    flights = {name: flight for read in newest.values() for name, flight in read["flights"].items()}
    by_rfc: dict[str, list[dict[str, Any]]] = {}
    for name, flight in flights.items():
        row = [cells.get((stack, role, name)) for stack, role in columns]
        rfc = " ".join(str(flight.get("section", "")).split()[:2])
        verdicts = " ".join(sorted({str(cell.get("verdict")) for cell in row if cell}))
        by_rfc.setdefault(rfc, []).append({"name": name, "flight": flight, "cells": row, "verdicts": verdicts})
    return {
        "columns": columns,
        "groups": sorted(by_rfc.items(), key=lambda group: int("0" + group[0].removeprefix("RFC ").strip())),
        "findings": list(_findings(newest, flights)),
        "measured": _measured(newest),
        "sections": sorted({str(flight.get("section", "")) for flight in flights.values()}),
        "reports": reports(newest),
        "totals": [_total(cells, stack, role) for stack, role in columns],
        "told": _TOLD,
        "verdict_signs": SIGNS,
        "styles": STYLES,
    }


def _total(cells: Mapping[tuple[str, str, str], Mapping[str, Any]], stack: str, role: str) -> str:
    """Passed of decided flights."""
    verdicts = [result.get("verdict") for (of, in_role, _), result in cells.items() if (of, in_role) == (stack, role)]
    decided = sum(verdict in ("passed", "failed", "note") for verdict in verdicts)
    return f"{verdicts.count('passed')}/{decided}" if verdicts else ""


def _measured(newest: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, list[str]]]:
    """Flood, stack, role and numbers of each result with memory and CPU time: MiB before, at most and after; CPU
    seconds; datagrams and kB of the flood."""
    rows = []
    for stack, read in newest.items():
        for result in read["results"]:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                usage = result["usage"]
                before, most, *after = (
                    f"{each / MIB:.0f}" for each in (usage["before"], usage["most"], *usage["after"])
                )
                cost = [
                    "" if usage["cpu_s"] is None else f"{usage['cpu_s']:.2f}",
                    str(int(usage["datagrams"])),
                    f"{usage['sent'] / 1000:.0f}",
                ]
                rows.append(
                    (str(result["flight"]), stack, str(result["role"]), [before, most, " → ".join(after), *cost])
                )
    return sorted(rows)


def _findings(
    newest: Mapping[str, Mapping[str, Any]], flights: Mapping[str, Mapping[str, Any]]
) -> Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any], str]]:
    """Stack, result, flight and the command that shows the packets, of each result that did not pass."""
    for verdict in _TOLD:
        for stack, read in sorted(newest.items()):
            for result in read["results"]:
                if isinstance(result, dict) and result.get("verdict") == verdict:
                    yield stack, result, flights.get(str(result.get("flight")), {}), _command(read, result)


def _command(read: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The command that shows the packets of a result; nothing when it has none."""
    numbers = [
        int(number) for name in ("sent", "answers") for number in result.get(name) or () if str(number).isdigit()
    ]
    end = "right" if result.get("role") == "server" else "left"
    capture = f"logs/checks/{read['folder']}/{result.get('job')}/sim/{end}.pcapng"
    shown = ",".join(map(str, numbers))
    return f"tshark -r {capture} -Y 'frame.number in {{{shown}}}' -V" if numbers else ""


# The data of the page of one matrix cell.

_TILES = ("ttlb", "goodput", "efficiency", "efficiency_of_bound", "handshake_time", "ttfb", "retransmission_ratio")
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


def pair_context(
    run: Run, cell: Cell, *, series: Mapping[int, Series], downloads: Mapping[int, Sequence[Download]]
) -> dict[str, Any]:
    """The variables of the template `pair.html`. `series` and `downloads` are by iteration."""
    title = f"Offset versus time, {cell.client} → {cell.server}, {cell.case.name}"
    shown = cell.shown if cell.shown in series else next(iter(series), None)
    others = [behind for iteration, behind in series.items() if iteration != shown]
    return _common(cell, [BY_KEY[key] for key in _COLUMNS], "sample", downloads) | {
        "client": run.implementations.get(cell.client),
        "server": run.implementations.get(cell.server),
        "transfer": words.transfer_facts(cell.case, [cell]),
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
        "drawing": charts.offset_plot(series.get(shown or 0), others, title=title, upload=cell.case.upload),
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
        "verdict": words.outcomes_text(cell.results, "iteration") + "." if cell.results else "Not run yet.",
        "columns": columns,
        "rows": [_row(result, columns, getattr(result, source), downloads) for result in cell.results],
        "reasons": distinct(cell.results, "findings"),
    }


def _row(
    result: Result,
    columns: Sequence[Number],
    numbers: Sample | PageLoad | None,
    downloads: Mapping[int, Sequence[Download]],
) -> dict[str, Any]:
    """One iteration of the table. `numbers`: a text for each column."""
    values = [(metric, value(numbers, metric.key)) for metric in columns]
    return {
        "result": result,
        "numbers": ["–" if number is None else metric.number(number) for metric, number in values],
        "broken": [invariant for invariant in result.invariants if invariant.holds is False],
        "downloads": downloads.get(result.iteration, ()),
    }


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
    return {
        "case": cell.case.name,
        "upload": cell.case.upload,
        "shown": shown,
        "median": cell.median,
        "curves": curves,
    }


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
    record = (view.path / "run.json").read_bytes()
    pair_digests = {pair_name: digest([record, *map(_shared, group)]) for pair_name, group in siblings.items()}
    drawn: dict[str, tuple[str, str]] = {}
    waiting: list[tuple[str, str, Cell]] = []
    for cell in view.table.values():
        name = cell_name(view, cell)
        inputs = digest([pair_digests[cell.pair], view.states.get(f"{cell.pair}/{cell.case.name}", "")])
        if name in known and known[name][0] == inputs:
            drawn[name] = known[name]
        else:
            waiting.append((name, inputs, cell))
    sparks = every(
        waiting,
        lambda entry: _draw_cell(view, writer, entry[2], siblings[entry[2].pair]),
        least=_LEAST,
        progress=progress,
    )
    return drawn | {name: (inputs, spark) for (name, inputs, _), spark in zip(waiting, sparks, strict=True)}


def cell_name(view: RunView, cell: Cell) -> str:
    """`<run>/<pair>/<case>`: the name in the manifest, and the folder in the site."""
    return f"{view.name}/{cell.pair}/{cell.case.name}"


def _shared(cell: Cell) -> tuple[object, ...]:
    """The data of a cell that the pages of the same pair's other cases show."""
    efficiency = cell.summaries.get("efficiency")
    return cell.case.name, cell.css, cell.says, efficiency.median if efficiency is not None else None


def _draw_cell(view: RunView, writer: Writer, cell: Cell, siblings: list[Cell]) -> str:
    inside = cell_name(view, cell)
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
        artifacts = view.artifacts(result.job)
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
