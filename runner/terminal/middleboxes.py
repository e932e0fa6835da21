"""Prints middleboxes, emulated links, and how a job's traffic passed through a middlebox."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from runner.model.crossing_words import carried
from runner.model.knob import Knob
from runner.model.link_record import LinkRecord
from runner.model.middlebox import Middlebox, PageLoad
from runner.model.result import Result
from runner.units import format_data_rate, format_duration


def page_line(page: PageLoad) -> str:
    """A page load as text: `page 4.1 s, first paint 2.3 s, 75/75 objects`."""
    load = "not loaded" if page.load is None else f"page {format_duration(page.load)}"
    paint = page.first_contentful_paint
    first = "" if paint is None else f", first paint {format_duration(paint)}"
    return f"{load}{first}, {page.completed}/{page.attempted} objects"


def show_crossing(console: Console, result: Result) -> None:
    """Print how the traffic crossed the satellite link, and what an eavesdropper there sees."""
    crossing, page = result.crossing, result.page
    if page is not None:
        start = "–" if page.response_start is None else format_duration(page.response_start)
        console.print(f"\nresponse start {start}, {page_line(page)}")
    if crossing is None:
        return
    console.print()
    for sentence in carried(crossing):
        console.print(sentence, markup=False)
    table = Table("searched on the satellite link", "", "packets", "first", "how", box=None)
    for sight in crossing.sights:
        sign = "[red]visible[/red]" if sight.visible else "[green]hidden[/green]"
        first = "" if sight.packet is None else str(sight.packet)
        table.add_row(escape(sight.what), sign, str(sight.times or ""), first, escape(sight.how))
    console.print(table)
    for box, setting in result.applied.items():
        console.print(f"{box} applied {setting}", markup=False)


def middleboxes_table(boxes: Iterable[Middlebox], where: Mapping[str, str]) -> Table:
    """The middleboxes that `--via` accepts. `where`: for each middlebox, a text about the place of its image."""
    table = Table(
        Column("middlebox", no_wrap=True), "TCP ends", "carries", "hides", Column("image", no_wrap=True), "", box=None
    )
    for entry in boxes:
        ends = "both" if len(entry.splits) > 1 else "".join(entry.splits) or "–"
        hides = "all" if entry.encrypts else "–"
        table.add_row(entry.name, ends, " ".join(entry.carries), hides, where[entry.name], escape(entry.note))
    return table


def knobs_table(knobs: Mapping[str, Mapping[str, Knob]]) -> Table:
    """The settings that variants of middleboxes may have."""
    table = Table(Column("setting of a middlebox", no_wrap=True), "", Column("values", no_wrap=True), box=None)
    for name, declared in knobs.items():
        for number, (variable, knob) in enumerate(declared.items()):
            table.add_row("" if number else name, variable, knob.text)
    return table


def emulated_links_table(links: Mapping[str, LinkRecord]) -> Table:
    """The emulated links that `--link` accepts."""
    table = Table(Column("link", no_wrap=True), "data rates", "RTT", "loss", "segments", "", box=None)
    for name, link in links.items():
        first = link.satellite
        rates = f"{format_data_rate(first.forward.data_rate)} / {format_data_rate(first.return_.data_rate)}"
        segments = " + ".join(segment.name for segment in link.segments if segment.name) or "one"
        loss = f"{first.forward.loss:g}" if first.forward.loss else ""
        table.add_row(name, rates, format_duration(link.rtt), loss, segments, link.note)
    return table
