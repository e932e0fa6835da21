"""Commands that choose and run jobs: plan, run, check, demo."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from runner.campaign import clocks, repeats
from runner.campaign.matrix import chosen, run_matrix
from runner.campaign.retention import Retention
from runner.cli.base import (
    DEMO_STACKS,
    SITE,
    cas_option,
    draw_site,
    err,
    lanes_option,
    out,
    rootless_option,
    yes_option,
)
from runner.cli.comparing import between_sentences
from runner.cli.group import main
from runner.cli.selection import clock_option, cpu_model_option, links_file_option, matrix_options, selection_options
from runner.config.names import split
from runner.config.options import MatrixOptions
from runner.errors import UsageError
from runner.model.estimate import REAL, estimate
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.protocol import HTTP09
from runner.model.result import Outcome, Result
from runner.model.run import Run
from runner.plan import runs
from runner.plan.link_plan import link_plans
from runner.plan.runs import LEDGER
from runner.remote.volume import Ledger
from runner.store import RunFolder
from runner.terminal import tables
from runner.units import format_count, format_duration, format_size

DEMO_CASES = ("handshake", "goodput", "sat")


def repetitions(options: MatrixOptions, times: int | None) -> list[MatrixOptions]:
    """The options of each run that `--repeat-runs` makes. Each run has its own name. When the options have a seed, each
    run also has its own seed, because equal losses would make the runs look more similar than they are."""
    if times is None:
        return [options]
    name = options.name or runs.run_path(None).name
    return [
        replace(options, name=f"{name}-{number}", seed=None if options.seed is None else options.seed + number - 1)
        for number in range(1, times + 1)
    ]


def _other_protocols(run: Run, todo: Sequence[Job]) -> Iterator[str]:
    """Sentences with the numbers of jobs that can't use the first protocol of their case."""
    chosen = [(run.protocol(job), job.pair) for job in todo if job.cell in run.protocols]
    for protocol in sorted({name for name, _ in chosen}):
        pairs = [pair for name, pair in chosen if name == protocol]
        count = format_count(len(set(pairs)), "pair")
        yield f"{len(pairs)} of the jobs run over {protocol}, because their {count} can't speak {HTTP09}."


@main.command("plan")
@selection_options
@links_file_option
@clock_option
@click.pass_obj
def plan_(implementations: Path, /, **parsed: Any) -> None:
    """Show the jobs of a selection, with time, disk space and the data volume on real links."""
    options, path = matrix_options(implementations, parsed), runs.run_path(None)
    choice = chosen(options, path)
    run = runs.new_run(
        path,
        choice.catalog,
        choice.selection,
        seed=options.seed,
        shuffled=options.shuffle,
        image_ids={},
        timeout_scale=1.0,
        records=choice.records,
    )
    unsupported = runs.presets(choice.catalog, run.order, {})
    todo = tuple(job for job in run.order if job not in unsupported)
    out.print(tables.plan_table(run, choice.selection, todo))
    total = estimate(todo, run.cases)
    out.print(
        f"\n{format_count(len(todo), 'job')}, about {format_duration(total.seconds)} with one lane; "
        f"{format_size(total.disk('median'))} on disk with --keep-captures median, "
        f"{format_size(total.disk('all'))} with all. "
        f"{len(unsupported)} more are declared as unsupported."
    )
    if not choice.real:
        out.print(_clock_sentence(run, todo, options.clock), soft_wrap=True)
    for sentence in (*_other_protocols(run, todo), *choice.doubts):
        out.print(sentence, soft_wrap=True)
    if choice.real:
        plans = link_plans(todo, run.cases, choice.real, ledger=Ledger(LEDGER), now=datetime.now())
        out.print("", tables.links_table(plans), sep="\n")
        for plan in plans:
            for sentence in plan.sentences:
                out.print(sentence, soft_wrap=True)


def _clock_sentence(run: Run, todo: tuple[Job, ...], clock: str | None) -> str:
    """A sentence with the time that the jobs take with each clock; the selected clock comes first."""
    cores = len(os.sched_getaffinity(0))
    guests = estimate(todo, run.cases).guest_seconds / cores
    parts = dict(clocks.parts(clocks.with_clock(run, clocks.AUTO), todo))
    waiting, binding = (estimate(parts.get(name, ()), run.cases) for name in (clocks.VIRTUAL, clocks.REAL))
    mixed = waiting.guest_seconds / cores + binding.seconds
    times = {
        clocks.VIRTUAL: f"--clock virtual: about {format_duration(guests)} on {cores} cores",
        clocks.AUTO: f"--clock auto: about {format_duration(mixed)}, {format_duration(binding.seconds)} of it for "
        f"{format_count(len(parts.get(clocks.REAL, ())), 'job')} with one lane",
    }
    first = [times.pop(clock)] if clock in times else []
    return f"{'; '.join([*first, *times.values()])}."


@main.command()
@selection_options
@click.option("--run", "name", metavar="NAME|DIR", help="Name of the run to begin, resume or extend. [date and time]")
@lanes_option("1")
@links_file_option
@click.option(
    "--retry",
    multiple=True,
    type=click.Choice(["failed", "error"]),
    help="Run jobs with this outcome again. Repeat the option for both.",
)
@click.option("--pause", metavar="HH:MM-HH:MM", help="Start no job in these hours, such as 18:00-23:00.")
@click.option(
    "--timeout-scale",
    type=click.FloatRange(0.01, 100),
    default=1.0,
    show_default=True,
    help="Multiply every time-out by this number.",
)
@click.option(
    "--keep-captures",
    type=click.Choice([policy.value for policy in Retention]),
    default="median",
    show_default=True,
    help="Captures to keep. failed: of jobs that failed or ended with an error. median: in addition, of the median "
    "iteration of each measurement.",
)
@click.option(
    "--reuse",
    metavar="NAME|DIR",
    help="Reuse the results of that run for cells whose images, case and link did not change.",
)
@clock_option
@cpu_model_option
@click.option("--on", metavar="tls://HOST:PORT", help="Run on this scheduler's workers (docs/workers.md). [this host]")
@click.option(
    "--spread",
    type=click.Choice(["any", "hosts", "pinned"]),
    default="any",
    show_default=True,
    help="Workers for the iterations of a matrix cell: any, different hosts, or the same host.",
)
@click.option("--store", default="", metavar="URL", help="Folder that workers and runner share, for their archives.")
@rootless_option
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 1 when a job failed or an endpoint broke a MUST of an RFC (§), with 3 when a job ended with an "
    "error.",
)
@click.option("-m", "--markdown", is_flag=True, help="Print the matrix at the end as Markdown.")
@click.option(
    "--repeat-runs",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Make N runs, NAME-1 to NAME-N. `compare` learns from them how much runs of the same images differ.",
)
@click.option(
    "--repeat-check",
    is_flag=True,
    help="In virtual time: run every job again with the same seed, as run NAME-again, and show the first different "
    "packets. Exit with 1 when packets differ.",
)
@yes_option
@cas_option
@click.pass_obj
def run(implementations: Path, /, strict: bool, repeat_runs: int | None, repeat_check: bool, **parsed: Any) -> None:
    """Run the matrix.

    With the name of an existing run, --run resumes this run when it was interrupted, and adds the newly selected jobs.

    Exit codes: 0 the run is complete · 1 see --strict and --repeat-check · 2 bad input · 3 this host lacks something,
    or the run was interrupted. docs/outcomes.md explains the outcomes of jobs.
    """
    options = matrix_options(implementations, parsed)
    if repeat_check:
        sys.exit(0 if _run_twice(options, repeat_runs) else 1)
    results: list[Result] = []
    repeated = repetitions(options, repeat_runs)
    for repetition in repeated:
        results += run_matrix(repetition, out=out, err=err).values()
    if len(repeated) > 1:
        for sentence in between_sentences([runs.run_path(repetition.name) for repetition in repeated]):
            out.print(sentence, soft_wrap=True)
    failed = any(result.outcome is Outcome.FAILED or result.violations for result in results)
    undecided = any(result.outcome is Outcome.ERROR for result in results)
    sys.exit((1 if failed else 3 if undecided else 0) if strict else 0)


def _run_twice(options: MatrixOptions, repeat_runs: int | None) -> bool:
    """Run everything twice with the same seed. True when all packets are the same."""
    options = replace(options, name=options.name or runs.run_path(None).name, keep_captures="all")
    path = runs.run_path(options.name)
    if clocks.chosen(options.clock, path) == clocks.REAL:
        raise UsageError("--repeat-check: packets repeat only in virtual time; add --clock virtual.")
    if repeat_runs is not None:
        raise UsageError(
            "--repeat-check needs equal seeds and --repeat-runs draws different seeds; leave out one of the two."
        )
    run_matrix(options, out=out, err=err)
    first = RunFolder.open(path)
    run_matrix(repeats.again(options, first.run), out=out, err=err)
    comparisons = list(repeats.compare_packets(first, RunFolder.open(runs.run_path(f"{options.name}-again"))))
    for sentence in repeats.sentences(comparisons):
        out.print(sentence, soft_wrap=True, markup=False)
    return all(comparison.same is not False for comparison in comparisons)


@main.command()
@click.argument("image", required=False)
@click.option(
    "--client", "client", metavar="COMMAND", help="Instead of IMAGE: command of this host that runs a client."
)
@click.option(
    "--server", "server", metavar="COMMAND", help="Instead of IMAGE: command of this host that runs a server."
)
@click.option("--name", help="Name of the stack. [from the image's name]")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    help="Stacks to run against; each case takes the first two that can run it. [quic-go,quinn,aioquic]",
)
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Cases to run. [all test cases, goodput, sat]")
@click.option("--run", "run_name", metavar="DIR", help="Folder of the report and its evidence. [logs/checks/NAME-TIME]")
@lanes_option("auto")
@click.option("--clock", type=click.Choice(["real", "virtual"]), default="real", show_default=True, help="As in `run`.")
@yes_option
@cas_option
@click.pass_obj
def check(implementations: Path, /, image: str | None, client: str | None, server: str | None, **parsed: Any) -> None:
    """Check an image or a local build before you submit it.

    The check tests the contract first, then runs every case with two peers. A case with random losses runs up to 5
    times; the image fails it when 3 of them fail.

    Exit codes: 0 passed · 1 a problem was found, and the report says how to fix it · 2 bad input · 3 this host lacks
    something, or no peer could decide a case.
    """
    from runner import check as checking  # noqa: PLC0415 - docker is slow to import
    from runner.check.show import show_report  # noqa: PLC0415

    commands = {role: command for role, command in ((Role.CLIENT, client), (Role.SERVER, server)) if command}
    if bool(image) == bool(commands):
        raise UsageError("check takes either IMAGE, or at least one of --client COMMAND and --server COMMAND.")
    peers, run_name = tuple(split(parsed.pop("peers"))), parsed.pop("run_name")
    options = checking.CheckOptions(
        implementations=implementations,
        image=image,
        commands=commands,
        peers=peers or checking.PEERS,
        run=run_name,
        **parsed,
    )
    report = checking.check(options, out=out, err=err)
    show_report(out, report)
    sys.exit(report.verdict.value)


@main.command()
@lanes_option("auto")
@click.option("--run", "name", metavar="NAME|DIR", help="Name of the run. [demo; demo-virtual with --clock virtual]")
@clock_option
@yes_option
@cas_option
@click.pass_obj
def demo(implementations: Path, /, **parsed: Any) -> None:
    """Set everything up, run three stacks against each other over three links, and draw the site."""
    clock = parsed["clock"]
    parsed["name"] = parsed["name"] or ("demo" if clock in (None, REAL) else f"demo-{clock}")
    options = MatrixOptions(
        implementations=implementations,
        servers=DEMO_STACKS,
        clients=DEMO_STACKS,
        cases=DEMO_CASES,
        iterations=1,
        keep_captures="all",
        **parsed,
    )
    results = run_matrix(options, out=out, err=err)
    page = draw_site([RunFolder.open(runs.run_path(options.name))], SITE)
    good = sum(result.outcome is Outcome.SUCCEEDED for result in results.values())
    out.print(f"\n{good} of {len(results)} jobs succeeded. The matrix: {page} (or: ./bentpipe serve)")
