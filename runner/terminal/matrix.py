"""The last words of `run`: the client × server matrix, what did not succeed and why, and a sentence of counts.

As a table for a terminal, or as Markdown for a report.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.terminal.tables import STYLES

_COLUMN = 12  # characters of a terminal that a column of the matrix needs
_LISTED = 40  # reasons; a run in which everything fails has thousands
_NAMED = (Outcome.FAILED, Outcome.ERROR, Outcome.UNSUPPORTED, Outcome.SKIPPED)
_SHORT = {Outcome.UNSUPPORTED, Outcome.SKIPPED}  # of these a terminal shows the number alone


@dataclass(frozen=True)
class Reason:
    """Why jobs did not succeed: the same case, outcome and cause, with all pairs that it happened to."""

    outcome: Outcome
    case: CaseRecord
    text: str
    jobs: tuple[Job, ...]


def print_matrix(console: Console, results: Mapping[Job, Result], run: Run) -> None:
    """The matrix as tables, then the reasons, then the sentence of counts."""
    grid = _Grid(results, run)
    room = max(1, (console.width - _COLUMN) // _COLUMN)
    for first in range(0, len(grid.servers), room):
        servers = grid.servers[first : first + room]
        table = Table("client \\ server", *servers, box=None, show_lines=False)
        for client in grid.clients:
            table.add_row(client, *("\n".join(grid.styled(client, server)) for server in servers))
        console.print(table, "", sep="\n")
    console.print(f"[dim]{escape(grid.legend)}[/dim]", soft_wrap=True)
    for line in _reason_lines(results, run):
        console.print(escape(line), soft_wrap=True)
    console.print(sentence(results, run), soft_wrap=True)


def markdown_matrix(results: Mapping[Job, Result], run: Run) -> str:
    """The same as Markdown."""
    grid = _Grid(results, run)
    lines = [
        f"| client \\ server | {' | '.join(grid.servers)} |",
        f"|---{'|---' * len(grid.servers)}|",
        *(
            f"| {client} | {' | '.join('<br>'.join(grid.lines(client, server)) for server in grid.servers)} |"
            for client in grid.clients
        ),
        "",
        grid.legend,
        "",
        *(f"- {line}" for line in _reason_lines(results, run)),
        "",
        sentence(results, run),
    ]
    return "\n".join(lines)


def sentence(results: Mapping[Job, Result], run: Run) -> str:
    """The last line: how many jobs ended how, and the command that retries what the harness could not decide."""
    counts = {outcome: _count(results, outcome) for outcome in Outcome}
    parts = ", ".join(f"{number} {outcome.value}" for outcome, number in counts.items() if number)
    text = f"{len(results)} jobs: {parts or 'none'}."
    if counts[Outcome.ERROR]:
        text += f" Retry the errors: ./bentpipe run --run {run.name} --retry error"
    return text


def _count(results: Mapping[Job, Result], outcome: Outcome) -> int:
    return sum(result.outcome is outcome for result in results.values())


class _Grid:
    """Outcomes by client and server."""

    def __init__(self, results: Mapping[Job, Result], run: Run) -> None:
        self._cells: dict[tuple[str, str], dict[Job, Result]] = {}
        self._run = run
        for job, result in results.items():
            self._cells.setdefault((job.client_via, job.server), {})[job] = result
        columns = [f"{client}+{via}" if via else client for client in run.clients for via in run.vias]
        self.clients = [name for name in columns if any(client == name for client, _ in self._cells)]
        self.servers = [name for name in run.servers if any(server == name for _, server in self._cells)]
        chosen = {job.case_link for job in results}
        names = ", ".join(f"{run.cases[name].abbreviation} {name}" for name in run.cases if name in chosen)
        signs = " · ".join(f"{sign} {outcome.value}" for outcome, (sign, _) in STYLES.items())
        self.legend = f"{signs}; time: median delivery time. {names}"

    def styled(self, client: str, server: str) -> Iterator[str]:
        """Lines of one matrix cell for a terminal."""
        for outcome, cases in self._by_outcome(client, server):
            sign, style = STYLES[outcome]
            named = outcome in _NAMED and outcome not in _SHORT
            yield f"[{style}]{sign} {' '.join(cases) if named else len(cases)}[/{style}]"
        yield from self._numbers(client, server)

    def lines(self, client: str, server: str) -> Iterator[str]:
        """Lines of one matrix cell for Markdown, with the names of all cases."""
        for outcome, cases in self._by_outcome(client, server):
            yield f"{STYLES[outcome][0]} {', '.join(cases)}"
        yield from self._numbers(client, server)

    def _by_outcome(self, client: str, server: str) -> Iterator[tuple[Outcome, list[str]]]:
        """Per outcome, the abbreviations of the cases; with counts where only some of the iterations ended so."""
        jobs = self._cells.get((client, server), {})
        for outcome in Outcome:
            cases = []
            for name, case in self._run.cases.items():
                all_of_it = [result for job, result in jobs.items() if job.case_link == name]
                those = sum(result.outcome is outcome for result in all_of_it)
                if those:
                    part = f" {those}/{len(all_of_it)}" if those < len(all_of_it) else ""
                    cases.append(f"{case.abbreviation}{part}")
            if cases:
                yield outcome, cases

    def _numbers(self, client: str, server: str) -> Iterator[str]:
        """Per measurement, the median delivery time of the iterations that succeeded: rankings go by it."""
        jobs = self._cells.get((client, server), {})
        for name, case in self._run.cases.items():
            if case.kind is Kind.MEASUREMENT:
                known = [
                    result.sample.ttlb
                    for job, result in jobs.items()
                    if job.case_link == name and result.outcome is Outcome.SUCCEEDED and result.sample is not None
                    if result.sample.ttlb is not None
                ]
                if known:
                    yield f"{case.abbreviation} {median(known):.2f} s"


def _reason_lines(results: Mapping[Job, Result], run: Run) -> Iterator[str]:
    reasons = list(_reasons(results, run))
    for reason in reasons[:_LISTED]:
        first, *others = reason.jobs
        more = f" and {len(others)} more" if others else ""
        sign = STYLES[reason.outcome][0]
        yield f"{sign} {reason.case.name}  {first.ends} #{first.iteration}{more}: {reason.text}"
    if len(reasons) > _LISTED:
        yield f"{len(reasons) - _LISTED} more reasons: ./bentpipe show {run.name}/{reasons[_LISTED].jobs[0]}"


def _reasons(results: Mapping[Job, Result], run: Run) -> Iterable[Reason]:
    """Failures first, then errors, in the order of the run's cases."""
    for outcome in (Outcome.FAILED, Outcome.ERROR):
        for name, case in run.cases.items():
            grouped: dict[str, list[Job]] = {}
            for job, result in results.items():
                if job.case_link == name and result.outcome is outcome:
                    grouped.setdefault(_why(job, result), []).append(job)
            for text, jobs in grouped.items():
                yield Reason(outcome, case, text, tuple(jobs))


def _why(job: Job, result: Result) -> str:
    """Role, code, and the actual behaviour."""
    if not result.findings:
        return "no reason was recorded"
    finding = result.findings[0]
    stack = {"client": job.client, "server": job.server}.get(finding.role, "")
    whose = f"{finding.role} {stack}: " if stack and result.outcome is Outcome.FAILED else ""
    return f"{whose}{finding.code}: {' '.join(finding.actual.split())}"
