"""Prints results to a terminal: tables, the matrix, middleboxes, progress. All output goes through the given
console."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table

from runner.model.link import LinkParameters, LinkPlan, LinkRecord, real_link_sentences
from runner.model.result import (
    IMPAIRED,
    PAIR_NUMBERS,
    Artifacts,
    Evidence,
    Finding,
    JobVerdict,
    LinkTruth,
    Outcome,
    Reading,
    Result,
    Sample,
    is_current,
)
from runner.model.result import Progress as Event
from runner.model.run import REAL, CaseRecord, Check, Job, Kind, PaceGroup, Run, estimate
from runner.model.stack import HTTP09, Middlebox, PageLoad, carried, exchanged
from runner.paths import LOGS
from runner.plan.catalog import Knob
from runner.units import NARROW, format_count, format_data_rate, format_duration, format_size

# Prints middleboxes, emulated links, and how a job's traffic passed through a middlebox.


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


# The line of a job, progress, and tables of a job's numbers.

STYLES = {
    Outcome.SUCCEEDED: "green",
    Outcome.FAILED: "red",
    Outcome.UNSUPPORTED: "dim",
    Outcome.ERROR: "yellow",
    Outcome.SKIPPED: "dim",
}


def outcome_text(outcome: Outcome) -> str:
    """The outcome with its sign, in colour where the terminal supports it."""
    style = STYLES[outcome]
    return f"[{style}]{outcome.sign} {outcome.value}[/{style}]"


def result_line(result: Result, kind: Kind) -> str:
    """The line of a finished job: outcome, pair, case, iteration, and its number or the reason."""
    if result.findings:
        detail = result.findings[0].headline
    elif result.page is not None:
        detail = page_line(result.page)
    elif kind is Kind.MEASUREMENT and result.sample and result.sample.ttlb and result.sample.throughput:
        detail = measured_line(result.sample)
        detail += "".join(f"; {reading.sentence}" for reading in result.refuted)
        detail += f", over {result.protocol}" if result.protocol not in ("", HTTP09) else ""
    elif result.sample and result.sample.handshake_time is not None:
        detail = f"handshake {format_duration(result.sample.handshake_time)}"
    else:
        detail = "judged without keys" if result.without_keys else ""
    name = result.job.ends
    return f"{outcome_text(result.outcome):<28} {name:<22} {result.job.case_link} #{result.iteration}  {escape(detail)}"


def measured_line(sample: Sample) -> str:
    """`delivered in 11.2 s, goodput 8.41 Mbit/s, η 84%`; without goodput `delivered in 4.2 s, throughput 3 Mbit/s`."""
    delivered = f"delivered in {format_duration(sample.ttlb or 0.0)}"
    if sample.goodput is None or sample.efficiency is None:
        return f"{delivered}, throughput {format_data_rate(sample.throughput or 0.0)}"
    return f"{delivered}, goodput {format_data_rate(sample.goodput)}, η {sample.efficiency:.0%}"


class RunWatch:
    """Progress of a campaign: a line per job that ran, and on a terminal a bar with the running jobs and the time left.
    Jobs that are declared unsupported have one line together: a matrix of the field has hundreds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[running]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="", running="")
        self._declared = 0  # jobs since the last line

    def __enter__(self) -> "RunWatch":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tell_declared()
        self._progress.stop()

    def _tell_declared(self) -> None:
        if self._declared:
            jobs = format_count(self._declared, "job")
            self._console.print(f"{jobs} declared as unsupported; the pages of the pairs say why.")
        self._declared = 0

    def report(self, event: Event) -> None:
        """Print the line of an event and update the bar."""
        left = f"about {format_duration(event.seconds_left)} left" if event.seconds_left >= 1 else ""
        running = ", ".join(f"{job.client_via}→{job.server} {job.case_link}" for job in event.running[:3])
        more = f" and {len(event.running) - 3} more" if len(event.running) > 3 else ""
        self._progress.update(
            self._task, total=event.total, completed=event.done, left=left, running=f"{running}{more}"
        )
        codes = [finding.code for finding in event.result.findings] if event.result is not None else []
        if "declared-unsupported" in codes:
            self._declared += 1
            return
        self._tell_declared()
        if event.event == "finished" and event.result is not None:
            width = len(str(event.total))
            time_left = f" ({left})" if left and not self._console.is_terminal else ""
            line = result_line(event.result, event.kind)
            self._console.print(f"{event.done:>{width}}/{event.total} {line}{time_left}", soft_wrap=True)
        elif event.event in ("retried", "paused"):
            job = f"{event.job} again: " if event.job else ""
            self._console.print(f"  [yellow]{escape(job + event.message)}[/yellow]", soft_wrap=True)


def sample_table(sample: Sample, *, upload: bool) -> Table:
    """Every number of an iteration with its unit, in the order and with the names of the definitions."""
    table = Table("number", "value", box=None, pad_edge=False)
    table.add_row("file size", f"{sample.file_size:,} B")
    for number in PAIR_NUMBERS:
        value = getattr(sample, number.key)
        if value is not None:
            older = "" if is_current(number.key, sample.definitions) else "  (older formula)"
            label = exchanged(number.label) if upload else number.label
            table.add_row(label, number.text(value).replace(NARROW, " ") + older)
    return table


def truth_table(truth: LinkTruth) -> Table:
    """The simulator's counts for each direction."""
    ways = (("forward", truth.forward), ("return", truth.return_))
    # Most impairments affect no packet. Only impairments that affected a packet get a column.
    rare = [name for name in IMPAIRED if any(getattr(way, name) for _, way in ways)]
    table = Table(
        "link",
        *("in", "out", "lost by model", "queue overflow", "highest queue", "mean queue"),
        *(name.replace("_", " ") for name in rare),
        box=None,
    )
    for name, way in ways:
        table.add_row(
            name,
            f"{way.packets_in:,}",
            f"{way.packets_out:,}",
            f"{way.dropped_loss:,}",
            f"{way.dropped_queue:,}",
            f"{way.queue_max_packets:g}",
            f"{way.queue_mean_packets:.1f}",
            *(f"{getattr(way, name):,}" for name in rare),
        )
    return table


def readings_table(readings: Iterable[Reading]) -> Table:
    """The values of the parameters that each endpoint applied, beside the requested values."""
    signs = {True: "[green]✓[/green]", False: "[red]✗ not applied[/red]", None: ""}
    table = Table("role", "parameter", "requested", "value", "source", "", "", box=None)
    for reading in readings:
        texts = (reading.role, reading.parameter, reading.asked, reading.found or "unknown", reading.source)
        table.add_row(*map(escape, texts), signs[reading.holds], f"[dim]{escape(reading.detail)}[/dim]")
    return table


def plan_table(run: Run, todo: tuple[Job, ...], pace: Mapping[PaceGroup, float]) -> Table:
    """The jobs that will run, by case. `run`: with `--clock auto`. `pace`: as in `estimate`."""
    columns = ("pairs", "iterations", "jobs", "one lane", "one guest", "auto")
    table = Table(Column("case", no_wrap=True), *columns, box=None)
    for name, case in run.cases.items():
        planned = [job for job in run.order if job.case_link == name]
        jobs = tuple(job for job in todo if job.case_link == name)
        cost = estimate(jobs, run.cases, pace)
        times = [format_duration(seconds) for seconds in (cost.seconds, cost.guest_seconds)]
        pairs, iterations = len({job.pair for job in jobs}), len({job.iteration for job in planned})
        counts = (str(pairs), str(iterations), str(len(jobs)))
        label = name if name == case.abbreviation else f"{case.abbreviation} {name}"
        table.add_row(label, *counts, *times, run.clock_of(name))
    return table


def links_table(plans: Iterable[LinkPlan]) -> Table:
    """The planned volume on each real link, and the used part of the link's budgets."""
    table = Table("link", "jobs", "volume", "day's budget", "month's budget", "time", "done", box=None)
    for plan in plans:
        budgets = ((plan.spent_day, plan.link.budget_day), (plan.spent_month, plan.link.budget_month))
        left = (f"{format_size(used)} of {format_size(most)} used" if most else "no budget" for used, most in budgets)
        done = f"{plan.ends:%d %b %H:%M}" if plan.ends else "never"
        table.add_row(
            plan.link.name, str(plan.jobs), format_size(plan.volume), *left, format_duration(plan.seconds), done
        )
    return table


def show_result(
    console: Console, result: Result, case: CaseRecord | None, evidence: Evidence | None, artifacts: Artifacts
) -> None:
    """Print the verdict of one job, its evidence and its numbers."""
    title = escape(f"{result.job.ends}, {result.job.case_link} #{result.iteration}")
    console.print(f"[bold]{title}[/bold]")
    console.print(outcome_text(result.outcome) + (", judged without keys" if result.without_keys else ""))
    if case is not None:
        console.print(case.description, markup=False)
        for way, facts in case.link.facts():
            console.print(f"{way:<8} {', '.join(facts)}", markup=False)
    if evidence is not None and evidence.real_link is not None:
        for sentence in real_link_sentences(evidence.real_link):
            console.print(sentence, soft_wrap=True, markup=False)
    if case is not None and result.protocol not in ("", case.protocol):
        why = f"because the pair has no other protocol in common: not comparable with {case.protocol}"
        console.print(f"over {result.protocol}, {why}", markup=False)
    if result.outcome is Outcome.FAILED:
        stack = {"client": result.client, "server": result.server}.get(result.culprit)
        whose = (
            f"{result.culprit} {stack}" if stack else "nobody: the packets do not show a broken rule that explains it"
        )
        console.print(f"at fault: {whose}", markup=False)
    for finding in result.findings:
        console.print()
        show_finding(console, finding)
        _show_packets(console, finding, artifacts)
        if finding.log_tail:
            console.print(f"  last lines of its log:\n[dim]{escape(finding.log_tail)}[/dim]")
    _show_notes(console, result)
    if result.sample is not None:
        console.print()
        console.print(sample_table(result.sample, upload=case is not None and case.upload))
    show_crossing(console, result)
    _show_diagnoses(console, result)
    if result.truth is not None:
        console.print()
        console.print(truth_table(result.truth))
        console.print(f"seed {result.truth.seed}{_lateness(result, result.truth)}")
    _show_invariants(console, result)
    _show_violations(console, result)
    if result.readings:
        console.print()
        console.print(readings_table(result.readings))
    if evidence is not None:
        for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
            stopped = ", stopped by the runner" if endpoint.stopped_by_us else ""
            console.print(f"{role}: {escape(endpoint.image)}, exit code {endpoint.exit_code}{stopped}")
    speed = f", {result.guest_speed:.1f} guest seconds per host second" if result.guest_speed is not None else ""
    console.print(f"clock: {result.clock}{speed}")
    stages = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in result.stages_s.items())
    outside = f", {format_duration(result.overhead_s)} of it outside the transfer"
    # In virtual time the transfer may last longer than the host needed for it.
    console.print(f"took {format_duration(result.wall_s)}{outside if result.guest_speed is None else ' of the host'}")
    console.print(f"[dim]{escape(stages)}[/dim]")
    for number, reason in enumerate(result.disturbed, start=1):
        console.print(f"[yellow]attempt {number} did not count: {escape(reason)}[/yellow]")


def show_finding(console: Console, finding: Finding, fix: str = "") -> None:
    """Print the whole text of a finding. `fix`: advice for the endpoint at fault."""
    console.print(f"[bold]{escape(finding.title)}[/bold]: {escape(finding.rule)}", soft_wrap=True)
    for heading, text in finding.parts(fix).items():
        console.print(f"  {heading}: {escape(text)}", soft_wrap=True)


def _lateness(result: Result, truth: LinkTruth) -> str:
    """The simulator's lateness; empty in virtual time, where the load of the host has no effect."""
    if result.clock != REAL:
        return ""
    late, received = truth.lateness_p99 * 1e3, truth.receive_lateness_p99 * 1e3
    return f", lateness p99 {late:.2f} ms leaving, {received:.2f} ms arriving"


def _show_notes(console: Console, result: Result) -> None:
    """Print notes that don't change the verdict, and the public runner's verdict when it differs."""
    for note in result.notes:
        console.print(f"\nnote {escape(f'{note.title}: {note.rule} Here: {note.actual}')}", soft_wrap=True)
    if result.public is not None and result.public.outcome is not result.outcome:
        why = f": {result.public.why}" if result.public.why else ""
        console.print(
            f"\nThe public runner's verdict would be {escape(result.public.outcome.value + why)}", soft_wrap=True
        )


def _show_diagnoses(console: Console, result: Result) -> None:
    if result.limits:
        parts = sorted(result.limits.items(), key=lambda item: -item[1])
        console.print(
            "\nlimited by  " + ", ".join(f"{escape(name)} {share:.1%}" for name, share in parts if share >= 0.001)
        )
    for diagnosis in result.diagnoses:
        section = f" ({diagnosis.section})" if diagnosis.section else ""
        console.print(
            f"{diagnosis.start:8.3f} to {diagnosis.end:.3f} s  [bold]{escape(diagnosis.code)}[/bold]: "
            f"{escape(diagnosis.sentence + section)}"
        )


def _show_packets(console: Console, finding: Finding, artifacts: Artifacts) -> None:
    """Print the command that shows the packets of a finding."""
    if not finding.packets:
        return
    capture = artifacts.client_capture if finding.vantage == "client" else artifacts.server_capture
    if not capture.is_file():
        console.print("[dim]  the capture was not kept: run the job again with --keep-captures all[/dim]")
        return
    shown = f"frame.number in {{{', '.join(map(str, finding.packets))}}}"
    folder = artifacts.folder.absolute()
    job = folder.relative_to(LOGS) if folder.is_relative_to(LOGS) else folder
    command = f"./bentpipe packets {shlex.quote(str(job))} --vantage {finding.vantage} --details"
    console.print(f"  show them: {escape(command)} --filter '{escape(shown)}'", soft_wrap=True)


def _show_violations(console: Console, result: Result) -> None:
    """Print the broken rules of RFCs (docs/rules.md), including rules that don't affect the case's verdict."""
    if not result.violations:
        return
    console.print(f"\n{format_count(len(result.violations), 'broken protocol rule')}")
    for violation in result.violations:
        console.print(f"  [red]{escape(violation.title)}[/red]: {escape(violation.rule)}", soft_wrap=True)
        console.print(f"    {violation.evidence}", soft_wrap=True, markup=False)


def _show_invariants(console: Console, result: Result) -> None:
    if result.protected is not None:
        console.print(f"\n{result.protected.sentence}")
    if not result.invariants:
        return
    broken = [invariant for invariant in result.invariants if invariant.holds is False]
    console.print(f"\n{format_count(len(result.invariants), 'invariant')} of the trace, {len(broken)} broken")
    for invariant in broken:
        difference = escape(f"expected {invariant.expected}, got {invariant.actual}")
        console.print(f"  [red]{escape(invariant.name)}[/red]: {difference}")


def changes_table(changes: Iterable[tuple[Job, Result, Result]]) -> Table:
    """Changed verdicts: the outcome before and after the job was judged again."""
    table = Table("job", "before", "after", "why", box=None)
    for job, before, after in changes:
        why = after.findings[0].actual if after.findings else ""
        table.add_row(escape(str(job)), outcome_text(before.outcome), outcome_text(after.outcome), escape(why))
    return table


def checks_table(checks: Iterable[Check]) -> Table:
    """The results of `doctor`. A failed check has a suggestion how to fix the problem."""
    table = Table("", "subject", "state", "fix", box=None)
    for check in checks:
        sign = "[green]✓[/green]" if check.ok else "[red]✗[/red]"
        table.add_row(sign, check.name, check.what, "" if check.ok else check.fix)
    return table


CASES_LEGEND = (  # the line below `cases_table`
    "link: data rate, one-way delay, queue in packets · → forward · ← return · M: measurement · ×: iterations"
)


def cases_table(cases: Iterable[CaseRecord]) -> Table:
    """The cases that can be chosen, with their links, within 80 columns."""
    table = Table(box=None)
    for column in ("case", "", "", "×"):
        table.add_column(column, no_wrap=True, justify="right" if column == "×" else "left")
    table.add_column("link")
    for case in cases:
        if case.forward == case.return_:
            ways = [_short_link(case.forward)]
        else:
            ways = [f"→ {_short_link(case.forward)}", f"← {_short_link(case.return_)}"]
        link = "\n".join([*ways, *case.impairments.sentences()])
        kind = "M" if case.kind is Kind.MEASUREMENT else ""
        table.add_row(case.name, case.abbreviation, kind, str(case.iterations), link)
    return table


def _short_link(link: LinkParameters) -> str:
    if link.is_real:
        return f"{format_data_rate(link.data_rate)} advertised, real: --link"
    loss = [f"loss {100 * link.loss:g} %"] if link.loss else []
    values = [format_data_rate(link.data_rate), format_duration(link.delay), f"queue {link.queue_packets:,}"]
    return ", ".join([*values, *loss, *link.impairments.sentences()])


# The output at the end of `run`: the client × server matrix, the reasons of failures and errors, and a sentence of
# counts. It is a table for a terminal, or Markdown for a report.

_COLUMN = 12  # characters of a terminal that a column of the matrix needs
_LISTED = 40  # reasons at most; a run in which everything fails has thousands
_NAMED = (Outcome.FAILED, Outcome.ERROR)  # of cases with another outcome, a terminal shows only the number


def print_matrix(console: Console, results: Mapping[Job, JobVerdict], run: Run) -> None:
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


def markdown_matrix(results: Mapping[Job, JobVerdict], run: Run) -> str:
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


def sentence(results: Mapping[Job, JobVerdict], run: Run) -> str:
    """The last line: the number of jobs by outcome, and the command that retries errors."""
    counts = Counter(result.outcome for result in results.values())
    parts = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    text = f"{format_count(len(results), 'job')}: {parts or 'none'}."
    if broken := sum(bool(result.violations) for result in results.values()):
        text += f" In {broken} of them an endpoint broke a MUST of an RFC (§)."
    if sealed := sum(result.without_keys for result in results.values()):
        text += f" {sealed} of them were judged without keys (°)."
    if counts[Outcome.ERROR]:
        text += f" Retry the errors: ./bentpipe run --run {run.name} --retry error"
    if any(result.findings and result.findings[0].code == "disturbed" for result in results.values()):
        text += ", on a quiet host; a new run with --clock virtual needs none"
    return text


class _Grid:
    """Outcomes by client and server."""

    def __init__(self, results: Mapping[Job, JobVerdict], run: Run) -> None:
        self._cells: dict[tuple[str, str], dict[str, list[JobVerdict]]] = {}  # by case and link, in each matrix cell
        self._run = run
        for job, result in results.items():
            cases = self._cells.setdefault((job.client_via, job.server), {})
            cases.setdefault(job.case_link, []).append(result)
        columns = [f"{client}+{via}" if via else client for client in run.clients for via in run.vias]
        self.clients = [name for name in columns if any(client == name for client, _ in self._cells)]
        self.servers = [name for name in run.servers if any(server == name for _, server in self._cells)]
        chosen = {job.case_link for job in results}
        names = ", ".join(f"{run.cases[name].abbreviation} {name}" for name in run.cases if name in chosen)
        beside = any(run.cases[name].beside for name in chosen)
        signs = " · ".join(f"{outcome.sign} {outcome.value}" for outcome in Outcome)
        fairness = "; J: Jain's fairness index beside another flow" if beside else ""
        marks = "§ an endpoint broke a MUST · ° judged without keys"
        self.legend = f"{signs} · {marks}; time: median delivery time{fairness}. {names}"

    def styled(self, client: str, server: str) -> Iterator[str]:
        """Lines of one matrix cell for a terminal."""
        for outcome, cases in self._by_outcome(client, server):
            style = STYLES[outcome]
            marked = sum("§" in case for case in cases)
            count = f"{len(cases)}, {marked} §" if marked else f"{len(cases)}"
            yield f"[{style}]{outcome.sign} {' '.join(cases) if outcome in _NAMED else count}[/{style}]"
        yield from self._numbers(client, server)

    def lines(self, client: str, server: str) -> Iterator[str]:
        """Lines of one matrix cell for Markdown, with the names of all cases."""
        for outcome, cases in self._by_outcome(client, server):
            yield f"{outcome.sign} {', '.join(cases)}"
        yield from self._numbers(client, server)

    def _by_outcome(self, client: str, server: str) -> Iterator[tuple[Outcome, list[str]]]:
        """For each outcome, the abbreviations of its cases, with § when an endpoint broke a MUST, and ° when a job was
        judged without keys. A count follows when only some iterations had the outcome."""
        by_case = self._cells.get((client, server), {})
        for outcome in Outcome:
            cases = []
            for name, case in self._run.cases.items():
                results = by_case.get(name, [])
                chosen = [result for result in results if result.outcome is outcome]
                if chosen:
                    sign = "§" if any(result.violations for result in chosen) else ""
                    sign += "°" if any(result.without_keys for result in chosen) else ""
                    part = f" {len(chosen)}/{len(results)}" if len(chosen) < len(results) else ""
                    cases.append(f"{case.abbreviation}{sign}{part}")
            if cases:
                yield outcome, cases

    def _numbers(self, client: str, server: str) -> Iterator[str]:
        """For each measurement, the median delivery time of the successful iterations, and their median fairness if the
        case has a second flow."""
        by_case = self._cells.get((client, server), {})
        for name, case in self._run.cases.items():
            if case.kind is Kind.MEASUREMENT:
                samples = [
                    result.sample
                    for result in by_case.get(name, [])
                    if result.outcome is Outcome.SUCCEEDED and result.sample is not None
                ]
                times = [sample.ttlb for sample in samples if sample.ttlb is not None]
                fairness = [sample.fairness for sample in samples if sample.fairness is not None]
                if times:
                    index = f" J {median(fairness):.2f}" if fairness else ""
                    yield f"{case.abbreviation} {median(times):.2f} s{index}"


def _reason_lines(results: Mapping[Job, JobVerdict], run: Run) -> Iterator[str]:
    """Lines about jobs with the same outcome, case and cause: failures first, then errors, in the order of the run's
    cases. Then the broken rules."""
    grouped: dict[tuple[Outcome, str, str], list[Job]] = {}
    for job, result in results.items():
        if result.outcome in _NAMED and job.case_link in run.cases:
            grouped.setdefault((result.outcome, job.case_link, _why(job, result)), []).append(job)
    cases = list(run.cases)
    reasons = sorted(grouped.items(), key=lambda reason: (_NAMED.index(reason[0][0]), cases.index(reason[0][1])))
    for (outcome, case, text), (first, *others) in reasons[:_LISTED]:
        more = f" and {len(others)} more" if others else ""
        yield f"{outcome.sign} {case}  {first.ends} #{first.iteration}{more}: {text}"
    if len(reasons) > _LISTED:
        count = format_count(len(reasons) - _LISTED, "more reason")
        yield f"{count}: ./bentpipe show {run.name}/{reasons[_LISTED][1][0]}"
    yield from _rule_lines(results)


def _rule_lines(results: Mapping[Job, JobVerdict]) -> Iterator[str]:
    """A line for each MUST that a stack broke, with the job that shows it."""
    broken: dict[tuple[str, str, str], list[tuple[Job, Finding]]] = {}
    for job, result in results.items():
        for finding in result.violations:
            stack = {"client": job.client, "server": job.server}.get(finding.role, "")
            broken.setdefault((finding.role, stack, finding.code), []).append((job, finding))
    for (role, stack, _), shown in list(broken.items())[:_LISTED]:
        job, finding = shown[0]
        where = f"{job.case_link}  {job.ends} #{job.iteration}"
        more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
        yield f"§ {role} {stack}: {finding.headline} ({where}{more})"
    if len(broken) > _LISTED:
        yield f"{format_count(len(broken) - _LISTED, 'more broken rule')}: the page *Rules* of the site lists them."


def _why(job: Job, result: JobVerdict) -> str:
    """The role, stack, code and actual behaviour of the first finding."""
    if (finding := result.cause) is None:
        return "no reason was recorded"
    stack = {"client": job.client, "server": job.server}.get(result.culprit, "")
    whose = f"{result.culprit} {stack}: " if stack else ""
    return f"{whose}{finding.headline}"
