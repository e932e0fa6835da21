"""Commands that choose and run jobs: plan, run, check, demo."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import NoReturn

import click

from runner.cli.base import DEMO_STACKS, SITE, draw_site, err, options_of, out
from runner.cli.group import main
from runner.errors import UsageError
from runner.model.result import JobVerdict, Outcome
from runner.model.run import REAL, VIRTUAL, Job, PaceGroup, Run, estimate
from runner.model.stack import HTTP09, Role
from runner.paths import LEDGER, LOGS
from runner.places.place import Concurrency
from runner.plan import jobs
from runner.plan.catalog import load_present
from runner.plan.choice import choose, split
from runner.plan.options import AUTO, SELECTION, CheckOptions, JobOptions, MatrixOptions, StackOptions
from runner.store.runs import NamedRuns, RunFolder, guest_pace, own_logs, run_path
from runner.terminal import printing
from runner.units import format_count, format_duration, format_size

_HOSTILE = "hostile"  # the group of cases with the hostile peer

DEMO_CASES = ("handshake", "goodput", "sat")


def repetitions(options: MatrixOptions) -> list[MatrixOptions]:
    """The options of each run that `--repeat-runs` makes. Each run has its own name. When the options have a seed, each
    run also has its own seed, because equal losses would make the runs look more similar than they are."""
    if options.repeat_runs is None:
        return [options]
    name = options.name or run_path(None).name
    return [
        replace(
            options,
            name=f"{name}-{number}",
            seed=None if options.seed is None else options.seed + number - 1,
            yes=options.yes or number > 1,  # the first run asks for all
        )
        for number in range(1, options.repeat_runs + 1)
    ]


def _other_protocols(run: Run, todo: Sequence[Job]) -> Iterator[str]:
    """Sentences with the numbers of jobs that can't use the first protocol of their case."""
    chosen = [(run.protocol(job), job.pair) for job in todo if job.cell in run.protocols]
    for protocol in sorted({name for name, _ in chosen}):
        pairs = [pair for name, pair in chosen if name == protocol]
        count = format_count(len(set(pairs)), "pair")
        yield f"{len(pairs)} of the jobs run over {protocol}, because their {count} can't speak {HTTP09}."


@main.command("plan")
@options_of(MatrixOptions, SELECTION)
def plan_(options: MatrixOptions) -> None:
    """Show the jobs of a selection, with time, disk space and the data volume on real links.

    With the name of an existing run, --run shows the jobs that this run still lacks.
    """
    path = run_path(options.name)
    stored = RunFolder.stored(path) if options.name else None
    catalog = load_present(options.implementations, replacements=options.images)
    selection = choose(options, catalog, stored.run if stored else None)
    run = jobs.new_run(path, selection, seed=options.seed, shuffled=options.shuffle)
    done = stored.verdicts() if stored else {}
    left = jobs.remaining(run.order, done, frozenset(map(Outcome, options.retry)))
    unsupported = jobs.verdicts_without_run(selection.catalog, left, {})
    todo = tuple(job for job in left if job not in unsupported)
    pace = guest_pace(LOGS)
    busy = not selection.real and bool(jobs.busy(AUTO))
    auto = jobs.with_clock(run, AUTO, stacks=selection.catalog.implementations, busy_host=busy)
    out.print(printing.plan_table(auto, todo, pace))
    lanes = 1 if options.lanes == "auto" else Concurrency.parse(options.lanes).most
    total, logs = estimate(todo, run.cases), own_logs(LOGS, todo, run.cases)
    out.print(
        f"\n{format_count(len(todo), 'job')}: {format_size(total.disk('median') + logs)} on disk with "
        "--keep-captures median, "
        f"{format_size(total.disk('all') + logs)} with all."
        + (f" {len(unsupported)} more are declared as unsupported." if unsupported else "")
        + (f" {format_count(len(run.order) - len(left), 'job')} of {stored.name} ended before." if stored else ""),
        soft_wrap=True,
    )
    real = f"about {format_duration(total.seconds / lanes)} with {'one lane' if lanes == 1 else f'{lanes} lanes'}"
    if selection.real:
        out.print(f"Time: {real}.")
    else:
        clock = stored.run.clock if stored is not None else options.clock or REAL
        for name, time in sorted(_times(auto, todo, real, pace).items(), key=lambda item: item[0] != clock):
            own = " (this run)" if stored is not None and name == clock else ""
            out.print(f"Time with --clock {name}{own}: {time}.")
    for sentence in (*_other_protocols(run, todo), *selection.doubts):
        out.print(sentence)
    if selection.real:
        from runner.places.links.real_links import Ledger, link_plans

        plans = link_plans(todo, run.cases, selection.real, ledger=Ledger(LEDGER), now=datetime.now())
        out.print("", printing.links_table(plans), sep="\n")
        for plan in plans:
            for sentence in plan.sentences:
                out.print(sentence)


def _times(auto: Run, todo: tuple[Job, ...], real: str, pace: Mapping[PaceGroup, float]) -> dict[str, str]:
    """The time that the jobs take on an idle host, as text, by clock. `auto`: the run with `--clock auto`. `real`: the
    time in lanes."""
    cores = len(os.sched_getaffinity(0))
    guests = estimate(todo, auto.cases, pace).guest_seconds / cores
    parts = dict(auto.parts_by_clock(todo))
    waiting, binding = (estimate(parts.get(name, ()), auto.cases, pace) for name in (VIRTUAL, REAL))
    mixed = f"about {format_duration(waiting.guest_seconds / cores + binding.seconds)}"
    if in_lanes := parts.get(REAL):
        mixed += f", {format_duration(binding.seconds)} of it for {format_count(len(in_lanes), 'job')} with one lane"
    virtual = f"about {format_duration(guests)} on {format_count(cores, 'idle core')}"
    return {REAL: real, VIRTUAL: virtual, AUTO: mixed}


@main.command()
@options_of(MatrixOptions)
def run(options: MatrixOptions) -> None:
    """Run the matrix.

    With the name of an existing run, --run resumes this run when it was interrupted, and adds the newly selected jobs.

    Exit codes: 0 the run is complete · 1 see --strict and --repeat-check · 2 bad input · 3 this host lacks something,
    or the run was interrupted. docs/outcomes.md explains the outcomes of jobs.
    """
    if _HOSTILE in split(options.cases):
        _meet_selected(options)
    if options.repeat_check:
        sys.exit(0 if _run_twice(options) else 1)
    from runner.campaign.campaign import run_matrix

    results: list[JobVerdict] = []
    repeated = repetitions(options)
    for repetition in repeated:
        runs = NamedRuns.open(repetition.name, repetition.reuse)
        results += run_matrix(repetition, runs, out=out, err=err).values()
    if len(repeated) > 1:
        from runner.cli.read_commands import between_sentences

        for sentence in between_sentences([run_path(repetition.name) for repetition in repeated]):
            out.print(sentence)
    failed = any(result.outcome is Outcome.FAILED or result.violations for result in results)
    undecided = any(result.outcome is Outcome.ERROR for result in results)
    sys.exit((1 if failed else 3 if undecided else 0) if options.strict else 0)


def _run_twice(options: MatrixOptions) -> bool:
    """Run everything twice with the same seed. True when all packets are the same."""
    options = replace(options, name=options.name or run_path(None).name, keep_captures="all")
    runs = NamedRuns.open(options.name, options.reuse)
    if jobs.chosen_clock(options.clock, runs.stored) == REAL:
        raise UsageError("--repeat-check: packets repeat only in virtual time; add --clock virtual.")
    if options.repeat_runs is not None:
        raise UsageError(
            "--repeat-check needs equal seeds and --repeat-runs draws different seeds; leave out one of the two."
        )
    from runner.campaign import campaign

    campaign.run_matrix(options, runs, out=out, err=err)
    first = RunFolder.open(runs.path)
    second = campaign.again(options, first.run)
    runs = NamedRuns.open(second.name, second.reuse)
    campaign.run_matrix(second, runs, out=out, err=err)
    comparisons = list(campaign.compare_packets(first, RunFolder.open(runs.path)))
    for sentence in campaign.sentences(comparisons):
        out.print(sentence, markup=False)
    return all(comparison.same is not False for comparison in comparisons)


def _meet_selected(options: MatrixOptions) -> NoReturn:
    """`run --case hostile`: the selected servers and clients meet the hostile peer."""
    allowed = ("implementations", "cases", "servers", "clients", "name", "lanes", "clock", "yes", "extra_cas")
    for entry in fields(options):
        if entry.name not in allowed and getattr(options, entry.name) != entry.default:
            raise UsageError(f"--case {_HOSTILE}: the option for {entry.name} has no effect here; leave it out.")
    servers, clients = split(options.servers), split(options.clients)
    if split(options.cases) != [_HOSTILE] or not (servers or clients):
        raise UsageError(f"--case {_HOSTILE} runs alone, and needs --server or --client with the stacks to test.")
    stacks = {
        stack: tuple(role for role, names in ((Role.CLIENT, clients), (Role.SERVER, servers)) if stack in names)
        for stack in dict.fromkeys((*servers, *clients))
    }
    clock = options.clock or REAL
    if clock not in (REAL, VIRTUAL):
        raise UsageError(f"--case {_HOSTILE}: --clock is real or virtual, not {clock}.")
    shared = {entry.name: getattr(options, entry.name) for entry in fields(JobOptions)}
    _meet(StackOptions(**shared, run=options.name, clock=clock), stacks)


def _meet(options: StackOptions, stacks: Mapping[str, tuple[Role, ...]]) -> NoReturn:
    """Let stacks meet the hostile peer, print the results, and exit."""
    from runner.check.flights import load_flights
    from runner.check.meeting import exit_code, meet_all, show_meeting

    results = []
    for meeting in meet_all(options, stacks, out=out, err=err):
        show_meeting(out, meeting, load_flights())
        results += meeting.results
    sys.exit(exit_code(results))


@main.command()
@click.argument("image", required=False)
@options_of(CheckOptions, arguments=("image",))
def check(options: CheckOptions) -> None:
    """Check an image or a local build before you submit it.

    The check tests the contract first, then runs every case with two peers. A case with random losses runs up to 5
    times; the image fails it when 3 of them fail.

    Exit codes: 0 passed · 1 a problem was found, and the report says how to fix it; with --strict, also a broken MUST
    (§) · 2 bad input · 3 this host lacks something, no peer could decide a case, or Ctrl-C ended the check: the report
    then covers the jobs before.
    """
    from runner.check import check as checking

    if (options.image is None) is not bool(options.commands):
        raise UsageError("check takes either IMAGE, or at least one of --client COMMAND and --server COMMAND.")
    if options.hostile:
        if options.image is None:
            raise UsageError("check --hostile needs an IMAGE: a local build can't be run once for each flight.")
        _meet(options, {options.image: tuple(Role)})
    report = checking.check(options, out=out, err=err)
    checking.show_report(out, report)
    sys.exit(report.verdict.value)


@main.command()
@options_of(
    MatrixOptions,
    ("lanes", "name", "clock", "yes", "extra_cas"),
    lanes={"default": "auto"},
    name={"help": "Name of the run. [demo; demo-virtual with --clock virtual]"},
)
def demo(options: MatrixOptions) -> None:
    """Set everything up, run three stacks against each other over three links, and draw the site."""
    from runner.campaign.campaign import run_matrix

    options = replace(
        options,
        name=options.name or ("demo" if options.clock in (None, REAL) else f"demo-{options.clock}"),
        servers=DEMO_STACKS,
        clients=DEMO_STACKS,
        cases=DEMO_CASES,
        iterations=1,
        keep_captures="all",
    )
    runs = NamedRuns.open(options.name)
    results = run_matrix(options, runs, out=out, err=err)
    page = draw_site([RunFolder.open(runs.path)], SITE)
    good = sum(result.outcome is Outcome.SUCCEEDED for result in results.values())
    out.print(f"\n{good} of {len(results)} jobs succeeded. The matrix: {page} (or: ./bentpipe serve)", markup=False)
