"""How a check's report looks in a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.check.problems import MENDS
from runner.check.report import UNKNOWN_URL, Report, Verdict, cell_text
from runner.model.result import Outcome
from runner.terminal import STYLES
from runner.units import format_duration

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.INCONCLUSIVE: "yellow"}


def show_report(console: Console, report: Report) -> None:
    """Problems with their mends, the table of cases, failures, where the files are, the verdict."""
    for problem in report.problems:
        console.print(f"\n[red]✗ {escape(problem.code)}[/red] {escape(problem.what)}", soft_wrap=True)
        console.print(f"  mend: {escape(problem.mend)}", soft_wrap=True)
    columns = report.columns()
    if columns:
        table = Table("case", *(f"as {role.value}\n{peer}" for role, peer in columns), box=None)
        for case in report.rows():
            results = [report.cell(case, role, peer) for role, peer in columns]
            cells = [(result, escape(cell_text(result))) for result in results]
            table.add_row(
                case, *(f"[{STYLES[result.outcome][1]}]{text}[/]" if result else "" for result, text in cells)
            )
        console.print()
        console.print(table)
    for job, result in report.results.items():
        if result.outcome not in (Outcome.FAILED, Outcome.ERROR):
            continue
        console.print(f"\n[bold]{job.case}[/bold] as {report.role_of(job).value} with {report.peer_of(job)}")
        for finding in result.findings:
            section = f" ({finding.section})" if finding.section else ""
            console.print(f"  {escape(finding.code)}: {escape(finding.requirement)}{section}", soft_wrap=True)
            console.print(f"  expected {escape(finding.expected)}; got {escape(finding.actual)}", soft_wrap=True)
            if finding.code in MENDS:
                console.print(f"  mend: {MENDS[finding.code]}", soft_wrap=True)
        console.print(f"  [dim]./bentpipe show {report.run / job.path}[/dim]", soft_wrap=True)
    markdown, junit, entry = report.write()
    style = _STYLES[report.verdict]
    roles = ", ".join(f"{role.value} ({len(report.cases(role))} cases)" for role in report.roles()) or "nothing"
    console.print(
        f"\n[{style}]{report.verdict.name.lower()}[/{style}] in {format_duration(report.seconds)}: "
        f"{escape(report.subject)} supports {roles}.",
        soft_wrap=True,
    )
    console.print(f"report {markdown}\nJUnit  {junit}\nentry  {entry}", soft_wrap=True)
    if report.facts is not None and not report.facts.url:
        console.print(
            "The image has no label org.opencontainers.image.source: "
            f"write your project's page instead of {UNKNOWN_URL}.",
            soft_wrap=True,
        )
