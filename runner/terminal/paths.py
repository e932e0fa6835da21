"""What a terminal is told of a job over a path."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from runner.config.path_selection import PathCatalog
from runner.model.path import PageLoad
from runner.model.path_words import carried
from runner.model.result import Result
from runner.model.run import CaseRecord
from runner.units import format_duration


def page_line(page: PageLoad) -> str:
    """`page 4.10 s, first paint 2.30 s, 75/75 objects`."""
    load = "not loaded" if page.load is None else f"page {format_duration(page.load)}"
    paint = page.first_contentful_paint
    first = "" if paint is None else f", first paint {format_duration(paint)}"
    return f"{load}{first}, {page.completed}/{page.attempted} objects"


def show_crossing(console: Console, result: Result, case: CaseRecord | None) -> None:
    """How the traffic crossed the satellite link, and what somebody who records it sees."""
    crossing = result.crossing
    if crossing is None:
        return
    console.print()
    if case is not None and case.workload is not None:
        workload = case.workload
        note = f" ({workload.note})" if workload.note else ""
        console.print(f"{workload.title} over {workload.protocol}, link {workload.link}{note}")
    if crossing.page is not None:
        page = crossing.page
        start = "–" if page.response_start is None else format_duration(page.response_start)
        console.print(f"response start {start}, {page_line(page)}")
    for sentence in carried(crossing):
        console.print(sentence)
    table = Table("an eavesdropper on the satellite link looked for", "", "packets", "first", "how", box=None)
    for sight in crossing.sights:
        sign = "[red]visible[/red]" if sight.visible else "[green]hidden[/green]"
        first = "" if sight.packet is None else str(sight.packet)
        table.add_row(sight.what, sign, str(sight.times or ""), first, escape(sight.how))
    console.print(table)
    for side, said in result.applied.items():
        console.print(f"{side} applied {escape(said)}")


def paths_tables(catalog: PathCatalog, where: Mapping[str, str]) -> tuple[Table, ...]:
    """The paths, what their variants may set, the workloads and the links under paths that can be chosen.

    `where`: each path's image, in words.
    """
    paths = Table(
        Column("path", no_wrap=True), "TCP ends", "carries", "hides", Column("image", no_wrap=True), "", box=None
    )
    for entry in catalog.paths.values():
        ends = "both" if len(entry.splits) > 1 else "".join(entry.splits) or "–"
        hides = "all" if entry.encrypts else "–"
        paths.add_row(entry.name, ends, " ".join(entry.carries), hides, where[entry.name], escape(entry.note))
    knobs = Table(Column("knob of a path", no_wrap=True), "", Column("takes", no_wrap=True), box=None)
    for name, declared in catalog.knobs.items():
        for number, (variable, knob) in enumerate(declared.items()):
            knobs.add_row("" if number else name, variable, knob.text)
    workloads = Table(Column("workload", no_wrap=True), "", "sizes, kB", box=None)
    for one in catalog.workloads.values():
        sizes = "page" if one.page else ", ".join(f"{size / 1000:g}" for size in one.sizes)
        workloads.add_row(one.name, one.description, sizes)
    links = Table(Column("link under paths", no_wrap=True), "satellite", "ground", "", box=None)
    for link in catalog.links.values():
        delays = (format_duration(segment.forward.delay) for segment in (link.satellite, link.ground))
        links.add_row(link.name, *(f"{delay} one way" for delay in delays), link.note)
    return paths, knobs, workloads, links
