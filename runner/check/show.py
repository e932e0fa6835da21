"""Prints a check's report to a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.check.cell import Place
from runner.check.report import UNKNOWN_URL, Report, Verdict, fix_of
from runner.model.implementation import Role
from runner.terminal.tables import STYLES
from runner.units import format_duration

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.INCONCLUSIVE: "yellow"}


def show_report(console: Console, report: Report) -> None:
    """Print problems with their fixes, the table of cases, failures, the places of the files, the verdict."""
    for problem in report.problems:
        console.print(f"\n[red]✗ {escape(problem.code)}[/red] {escape(problem.what)}", soft_wrap=True)
        console.print(f"  fix: {escape(problem.fix)}", soft_wrap=True)
    for role in Role:
        columns = [column for column in report.columns() if column[0] is role]
        if columns:
            console.print("", _cases_table(report, columns), sep="\n")
    for title, places in report.groups():
        console.print(f"\n[bold]{title}[/bold]")
        for place in places:
            _show_cell(console, report, place)
    markdown, junit, entry = report.write()
    style = _STYLES[report.verdict]
    console.print(
        f"\n[{style}]{report.verdict.name.lower()}[/{style}] in {format_duration(report.seconds)}: "
        f"{escape(report.subject)} {report.summary()}.",
        soft_wrap=True,
    )
    console.print(f"report {markdown}\nJUnit  {junit}\nentry  {entry}", soft_wrap=True)
    if report.facts is not None and not report.facts.url:
        console.print(
            "The image has no label org.opencontainers.image.source: "
            f"write your project's page instead of {UNKNOWN_URL}.",
            soft_wrap=True,
        )


def _cases_table(report: Report, columns: list[tuple[Role, str]]) -> Table:
    """The cases in one role with a column per peer, within 80 columns: long codes of failures are folded."""
    table = Table(box=None)
    table.add_column(f"as {columns[0][0].value}", no_wrap=True)
    for _, peer in columns:
        table.add_column(f"with {peer}", overflow="fold")
    for case in report.rows():
        places = [Place(case, role, peer) for role, peer in columns]
        if any(place in report.cells for place in places):
            table.add_row(case, *(f"[{_style(report, place)}]{escape(report.text(place))}[/]" for place in places))
    return table


def _style(report: Report, place: Place) -> str:
    cell = report.cells.get(place)
    if cell is None or cell.excused or report.says_nothing(place):
        return "yellow"
    return STYLES[cell.outcome][1]


def _show_cell(console: Console, report: Report, place: Place) -> None:
    cell = report.cells[place]
    console.print(f"\n[bold]{place}[/bold]" + (f": {cell.rate}" if cell.rate else ""), soft_wrap=True)
    for finding in cell.shown.findings:
        section = f" ({finding.section})" if finding.section else ""
        whose = f" of the {finding.role}" if finding.role else ""
        console.print(f"  {escape(finding.code)}{whose}: {escape(finding.requirement)}{section}", soft_wrap=True)
        console.print(f"  expected {escape(finding.expected)}; got {escape(finding.actual)}", soft_wrap=True)
        if fix := fix_of(cell, finding, place.role):
            console.print(f"  fix: {fix}", soft_wrap=True)
    console.print(f"  [dim]./bentpipe show {report.path(place)}[/dim]", soft_wrap=True)
