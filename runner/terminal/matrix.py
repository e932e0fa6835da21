"""The output at the end of `run`: the client × server matrix, the reasons of failures and errors, and a sentence of
counts. It is a table for a terminal, or Markdown for a report.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.terminal.tables import STYLES
from runner.units import format_count

_COLUMN = 12  # characters of a terminal that a column of the matrix needs
_LISTED = 40  # reasons at most; a run in which everything fails has thousands
_NAMED = (Outcome.FAILED, Outcome.ERROR, Outcome.UNSUPPORTED, Outcome.SKIPPED)
_SHORT = {Outcome.UNSUPPORTED, Outcome.SKIPPED}  # a terminal shows only the number of such cases


@dataclass(frozen=True)
class Reason:
    """Jobs that did not succeed, with the case, outcome and cause that they share."""

    outcome: Outcome
    case: CaseRecord
    text: str
    jobs: tuple[Job, ...]


def print_matrix(console: Console, results: Mapping[Job, Result], run: Run) -> None:
    """Print the matrix as tables, then the reasons, then the sentence of counts."""
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
    """The matrix, the reasons and the sentence of counts as Markdown."""
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
    """The last line: the number of jobs by outcome, and the command that retries errors."""
    counts = {outcome: _count(results, outcome) for outcome in Outcome}
    parts = ", ".join(f"{number} {outcome.value}" for outcome, number in counts.items() if number)
    text = f"{format_count(len(results), 'job')}: {parts or 'none'}."
    if broken := sum(bool(result.violations) for result in results.values()):
        text += f" In {broken} of them an endpoint broke a MUST of an RFC (§)."
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
        beside = any(run.cases[name].beside for name in chosen)
        signs = " · ".join(f"{sign} {outcome.value}" for outcome, (sign, _) in STYLES.items())
        fairness = "; J: Jain's fairness index beside another flow" if beside else ""
        self.legend = f"{signs} · § an endpoint broke a MUST; time: median delivery time{fairness}. {names}"

    def styled(self, client: str, server: str) -> Iterator[str]:
        """Lines of one matrix cell for a terminal."""
        for outcome, cases in self._by_outcome(client, server):
            sign, style = STYLES[outcome]
            named = outcome in _NAMED and outcome not in _SHORT
            marked = sum("§" in case for case in cases)
            count = f"{len(cases)}, {marked} §" if marked else f"{len(cases)}"
            yield f"[{style}]{sign} {' '.join(cases) if named else count}[/{style}]"
        yield from self._numbers(client, server)

    def lines(self, client: str, server: str) -> Iterator[str]:
        """Lines of one matrix cell for Markdown, with the names of all cases."""
        for outcome, cases in self._by_outcome(client, server):
            yield f"{STYLES[outcome][0]} {', '.join(cases)}"
        yield from self._numbers(client, server)

    def _by_outcome(self, client: str, server: str) -> Iterator[tuple[Outcome, list[str]]]:
        """For each outcome, the abbreviations of its cases, with § when an endpoint broke a MUST. A count follows when
        only some iterations had the outcome."""
        jobs = self._cells.get((client, server), {})
        for outcome in Outcome:
            cases = []
            for name, case in self._run.cases.items():
                results = [result for job, result in jobs.items() if job.case_link == name]
                chosen = [result for result in results if result.outcome is outcome]
                if chosen:
                    sign = "§" if any(result.violations for result in chosen) else ""
                    part = f" {len(chosen)}/{len(results)}" if len(chosen) < len(results) else ""
                    cases.append(f"{case.abbreviation}{sign}{part}")
            if cases:
                yield outcome, cases

    def _numbers(self, client: str, server: str) -> Iterator[str]:
        """For each measurement, the median delivery time of the successful iterations, and their median fairness if the
        case has a second flow."""
        jobs = self._cells.get((client, server), {})
        for name, case in self._run.cases.items():
            if case.kind is Kind.MEASUREMENT:
                samples = [
                    result.sample
                    for job, result in jobs.items()
                    if job.case_link == name and result.outcome is Outcome.SUCCEEDED and result.sample is not None
                ]
                times = [sample.ttlb for sample in samples if sample.ttlb is not None]
                fairness = [sample.fairness for sample in samples if sample.fairness is not None]
                if times:
                    index = f" J {median(fairness):.2f}" if fairness else ""
                    yield f"{case.abbreviation} {median(times):.2f} s{index}"


def _reason_lines(results: Mapping[Job, Result], run: Run) -> Iterator[str]:
    reasons = list(_reasons(results, run))
    for reason in reasons[:_LISTED]:
        first, *others = reason.jobs
        more = f" and {len(others)} more" if others else ""
        sign = STYLES[reason.outcome][0]
        yield f"{sign} {reason.case.name}  {first.ends} #{first.iteration}{more}: {reason.text}"
    if len(reasons) > _LISTED:
        count = format_count(len(reasons) - _LISTED, "more reason")
        yield f"{count}: ./bentpipe show {run.name}/{reasons[_LISTED].jobs[0]}"
    yield from _rule_lines(results)


def _rule_lines(results: Mapping[Job, Result]) -> Iterator[str]:
    """A line for each MUST that a stack broke, with the job that shows it."""
    broken: dict[tuple[str, str, str], list[tuple[Job, Finding]]] = {}
    for job, result in results.items():
        for finding in result.violations:
            stack = {"client": job.client, "server": job.server}.get(finding.role, "")
            broken.setdefault((finding.role, stack, finding.code), []).append((job, finding))
    for (role, stack, code), shown in list(broken.items())[:_LISTED]:
        job, finding = shown[0]
        where = f"{job.case_link}  {job.ends} #{job.iteration}"
        more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
        yield f"§ {role} {stack}: {code}: {' '.join(finding.actual.split())} ({where}{more})"
    if len(broken) > _LISTED:
        yield f"{format_count(len(broken) - _LISTED, 'more broken rule')}: the page *Rules* of the site lists them."


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
    """The role, stack, code and actual behaviour of the first finding."""
    if (finding := result.cause) is None:
        return "no reason was recorded"
    stack = {"client": job.client, "server": job.server}.get(result.culprit, "")
    whose = f"{result.culprit} {stack}: " if stack else ""
    return f"{whose}{finding.code}: {' '.join(finding.actual.split())}"
