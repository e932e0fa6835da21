"""The results of a stack with the hostile peer, for the terminal and as Markdown; the table of h3spec's cases."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.hostile.flight_verdicts import ERROR, FAILED, NOTE, PASSED, FlightResult, counts
from runner.hostile.flights import HostileFlight, load_flights
from runner.hostile.meeting import Meeting
from runner.model.stack import Role
from runner.paths import ROOT

REPORT = "hostile.md"
PAGE = ROOT / "docs" / "hostile.md"
_MARK = "<!-- h3spec -->"
_STYLES = {FAILED: "red", NOTE: "yellow", ERROR: "yellow", PASSED: "green"}


def exit_code(results: Iterable[FlightResult]) -> int:
    """0: nothing failed · 1: a flight failed · 3: nothing failed, and a flight has no verdict."""
    verdicts = {result.verdict for result in results}
    return 1 if FAILED in verdicts else 3 if ERROR in verdicts or not verdicts else 0


def show_meeting(console: Console, meeting: Meeting, flights: Mapping[str, HostileFlight]) -> None:
    """Print the results that did not pass, and the number of each verdict; write the report."""
    table = Table(box=None)
    for column in ("flight", "as", "", "what it did", "rule"):
        table.add_column(column, overflow="fold")
    for result in meeting.results:
        if result.verdict in (FAILED, NOTE, ERROR):
            why = f"; {result.why}" if result.why else ""
            what, style = escape(f"{result.seen}{why}"), _STYLES[result.verdict]
            section = flights[result.flight].section
            table.add_row(result.flight, result.role, f"[{style}]{result.verdict}[/]", what, section)
    if table.row_count:
        console.print(table)
    path = meeting.path / REPORT
    path.write_text(markdown(meeting.name, meeting.path, meeting.results, flights))
    for role in Role:
        part = counts(result for result in meeting.results if result.role == role.value)
        if part:
            numbers = ", ".join(f"{number} {verdict}" for verdict, number in part.items())
            console.print(f"{meeting.name} as {role.value}: {numbers}", soft_wrap=True, markup=False)
    console.print(f"report {path}", soft_wrap=True, markup=False)


def markdown(name: str, path: Path, results: Sequence[FlightResult], flights: Mapping[str, HostileFlight]) -> str:
    """The report of a stack. Each failed flight can be pasted into the stack's issue tracker."""
    lines = [f"# {name} and the hostile peer", ""]
    for verdict, title in ((FAILED, "Failed"), (NOTE, "Notes"), (ERROR, "Without a verdict")):
        chosen = [result for result in results if result.verdict == verdict]
        lines += [f"## {title}: {len(chosen)}", ""] if chosen else []
        for result in chosen:
            lines += [*_entry(path, result, flights[result.flight]), ""]
    return "\n".join(lines)


def _entry(path: Path, result: FlightResult, flight: HostileFlight) -> list[str]:
    ends = "server" if result.role == Role.SERVER.value else "client"
    capture = path / result.job / "sim" / f"{'right' if ends == 'server' else 'left'}.pcapng"
    numbers = ",".join(map(str, (*result.sent, *result.answers)))
    lines = [
        f"### {flight.name}, as {ends}",
        "",
        f"- rule: {flight.must} ({flight.section}, {flight.level})",
        f"- sent: {flight.sent}",
        f"- expected: {' or '.join(flight.then)}",
        f"- actual: {result.seen}",
    ]
    if result.why and result.crashed:
        lines.append(f"- {result.why}")
    if numbers:
        lines.append(
            f"- packets (secrets are in the file): `tshark -r {capture} -Y 'frame.number in {{{numbers}}}' -V`"
        )
    return [*lines, f"- again: `./bentpipe check IMAGE --hostile --case {flight.name}`"]


def h3spec_table(flights: Iterable[HostileFlight]) -> str:
    """The cases of h3spec and the flights that cover them, as Markdown."""
    rows = sorted((flight.h3spec, flight.name) for flight in flights if flight.h3spec)
    return "\n".join(["| h3spec | flight |", "| --- | --- |", *(f"| {case} | `{name}` |" for case, name in rows), ""])


def page(text: str) -> str:
    """docs/hostile.md with the present table."""
    return text.partition(_MARK)[0] + f"{_MARK}\n{h3spec_table(load_flights().values())}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
