"""Commands that choose and run jobs: plan, run, check, demo."""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from runner.campaign import clocks, repeats
from runner.campaign.matrix import chosen, run_matrix
from runner.campaign.retention import Retention
from runner.cli.base import DEMO_STACKS, SITE, cas_option, draw_site, err, out, yes_option
from runner.cli.comparing import between_sentences
from runner.cli.group import main
from runner.config.links import LINKS
from runner.config.names import split
from runner.config.options import MatrixOptions
from runner.errors import UsageError
from runner.model.estimate import estimate
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.protocol import HTTP09
from runner.model.result import Outcome
from runner.model.run import Run
from runner.plan import runs
from runner.plan.link_plan import link_plans
from runner.plan.runs import LEDGER
from runner.remote.volume import Ledger
from runner.store import RunFolder
from runner.terminal import tables
from runner.units import format_count, format_duration, format_size

DEMO_CASES = ("handshake", "goodput", "sat")


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose jobs; shared by `plan` and `run`."""
    options = (
        click.option(
            "--server", "servers", multiple=True, metavar="NAME", help="Server stacks; repeat or use commas. [all]"
        ),
        click.option("--client", "clients", multiple=True, metavar="NAME", help="Client stacks. [all]"),
        click.option(
            "--case", "cases", multiple=True, metavar="NAME", help="Test cases, measurements, abbreviations. [all]"
        ),
        click.option("--via", "vias", multiple=True, metavar="NAME", help="Middleboxes on the way: VPNs, PEPs. [none]"),
        click.option(
            "--link",
            "links",
            multiple=True,
            metavar="NAME|rate=…",
            help="Emulated or real links, or rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp. [each case's own]",
        ),
        click.option("--size", "sizes", multiple=True, metavar="BYTES|all", help="Of measurements of one file."),
        click.option("--loss", "losses", multiple=True, metavar="0…1|all", help="Both ways on the satellite segment."),
        click.option("--warm", is_flag=True, help="Downloads and page loads twice; the second time counts."),
        click.option("--path", "old_paths", multiple=True, hidden=True),
        click.option("--workload", "old_workloads", multiple=True, hidden=True),
        click.option("--iterations", type=click.IntRange(1, 1000), help="Of each measurement. [as declared: 10]"),
        click.option(
            "--variant",
            "variants",
            multiple=True,
            metavar="STACK:NAME=VALUE,…",
            help="One more row or column: the stack with CCA, IW, ACK_FREQUENCY, CLIENT_PARAMS or SERVER_PARAMS; "
            "a middlebox with its knobs (see `list`). IW=10/32 are two.",
        ),
        click.option(
            "--image",
            "images",
            multiple=True,
            metavar="NAME=IMAGE",
            help="A local image in place of a stack's own.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of links, files and order. [drawn, recorded]"),
        click.option("--shuffle", is_flag=True, help="Random order by the seed."),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def clock_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """In which time jobs run."""
    return click.option(
        "--clock",
        type=click.Choice(["real", "virtual", "auto"]),
        help="virtual: each job in a small kernel whose clock jumps when nobody has work. auto: that for cases that "
        "mostly wait, real time for those that the CPU can limit. [the run's, else real]",
    )(command)


def links_file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where real links are described, of `plan` and `run`."""
    return click.option(
        "--links",
        "links_file",
        type=click.Path(dir_okay=False, path_type=Path),
        default=LINKS,
        show_default="links.json",
        help="Where real links and their hosts are described.",
    )(command)


def taken(implementations: Path, options: dict[str, Any]) -> MatrixOptions:
    """The options as one value. Raises UsageError for options of older versions."""
    if options.pop("old_paths"):
        raise UsageError("--path is called --via now: --via openvpn,qpep; without middlebox it is --via none.")
    if options.pop("old_workloads"):
        raise UsageError("--workload is called --case now: --case download,page; goodput over a path is download.")
    return MatrixOptions(implementations=implementations, **options)


def repetitions(asked: MatrixOptions, times: int | None) -> list[MatrixOptions]:
    """The same selection for each run that is to be made: under names and, where a seed is given, with seeds of their
    own, since equal losses would make runs look more alike than they are."""
    if times is None:
        return [asked]
    name = asked.name or runs.run_path(None).name
    return [
        replace(asked, name=f"{name}-{number}", seed=None if asked.seed is None else asked.seed + number - 1)
        for number in range(1, times + 1)
    ]


def _other_protocols(run: Run, todo: Sequence[Job]) -> Iterator[str]:
    """How many jobs run over another protocol than their case's first choice."""
    chosen = [(run.protocol(job), job.pair) for job in todo if job.cell in run.protocols]
    for protocol in sorted({name for name, _ in chosen}):
        pairs = [pair for name, pair in chosen if name == protocol]
        of_pairs = format_count(len(set(pairs)), "pair")
        yield f"{len(pairs)} of the jobs run over {protocol}, because their {of_pairs} can't speak {HTTP09}."


@main.command("plan")
@selection_options
@links_file_option
@clock_option
@click.pass_obj
def plan_(implementations: Path, /, **options: Any) -> None:
    """Show the jobs of a selection with their time and disk space, and the volume of real links."""
    asked, path = taken(implementations, options), runs.run_path(None)
    choice = chosen(asked, path)
    run = runs.new_run(
        path,
        choice.catalog,
        choice.selection,
        seed=asked.seed,
        shuffled=asked.shuffle,
        image_ids={},
        timeout_scale=1.0,
        records=choice.records,
    )
    unsupported = runs.presets(choice.catalog, run.order, {})
    todo = tuple(job for job in run.order if job not in unsupported)
    out.print(tables.plan_table(run, choice.selection, todo))
    total = estimate(todo, run.cases)
    out.print(
        f"\n{len(todo)} jobs, about {format_duration(total.seconds)} with one lane; "
        f"{format_size(total.disk('median'))} on disk with --keep-captures median, "
        f"{format_size(total.disk('all'))} with all. "
        f"{len(unsupported)} more are unsupported by declaration."
    )
    if not choice.real:
        out.print(_clock_sentence(run, todo, asked.clock), soft_wrap=True)
    for sentence in (*_other_protocols(run, todo), *choice.doubts):
        out.print(sentence, soft_wrap=True)
    if choice.real:
        plans = link_plans(todo, run.cases, choice.real, ledger=Ledger(LEDGER), now=datetime.now())
        out.print("", tables.links_table(plans), sep="\n")
        for one in plans:
            for sentence in one.sentences:
                out.print(sentence, soft_wrap=True)


def _clock_sentence(run: Run, todo: tuple[Job, ...], clock: str | None) -> str:
    """What the jobs take with each clock, the one that was asked for first."""
    cores = len(os.sched_getaffinity(0))
    guests = estimate(todo, run.cases).guest_seconds / cores
    parts = dict(clocks.parts(clocks.on(run, clocks.AUTO), todo))
    waiting, binding = (estimate(parts.get(name, ()), run.cases) for name in (clocks.VIRTUAL, clocks.REAL))
    mixed = waiting.guest_seconds / cores + binding.seconds
    told = {
        clocks.VIRTUAL: f"--clock virtual: about {format_duration(guests)} on {cores} cores",
        clocks.AUTO: f"--clock auto: about {format_duration(mixed)}, {format_duration(binding.seconds)} of it for "
        f"{len(parts.get(clocks.REAL, ()))} jobs with one lane",
    }
    first = [told.pop(clock)] if clock in told else []
    return f"{'; '.join([*first, *told.values()])}."


@main.command()
@selection_options
@click.option("--run", "name", metavar="NAME|DIR", help="The run to begin, to resume or to extend. [date and time]")
@click.option("--lanes", default="1", show_default=True, metavar="N|auto", help="Jobs at once.")
@links_file_option
@click.option("--retry", multiple=True, type=click.Choice(["failed", "error"]), help="Run jobs of that outcome again.")
@click.option("--pause", metavar="HH:MM-HH:MM", help="Start no job in these hours, such as 18:00-23:00.")
@click.option(
    "--timeout-scale", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="Times every time-out."
)
@click.option(
    "--keep-captures", type=click.Choice([policy.value for policy in Retention]), default="median", show_default=True
)
@clock_option
@click.option("--strict", is_flag=True, help="Exit with 1 when a job failed, with 3 when a job ended as an error.")
@click.option("-m", "--markdown", is_flag=True, help="Print the matrix at the end as Markdown.")
@click.option(
    "--repeat-runs",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Make N runs, NAME-1 to NAME-N, which tell `compare` how much runs of the same images differ.",
)
@click.option(
    "--repeat-check",
    is_flag=True,
    help="In virtual time: run every job again with the same seed, as NAME-again, and say which packets differ first. "
    "Exit code 1 when some do.",
)
@yes_option
@cas_option
@click.pass_obj
def run(implementations: Path, /, strict: bool, repeat_runs: int | None, repeat_check: bool, **options: Any) -> None:
    """Run the matrix. A run that was interrupted, or is to grow, goes on with the same --run."""
    asked = taken(implementations, options)
    if repeat_check:
        sys.exit(0 if _run_twice(asked, repeat_runs) else 1)
    outcomes: set[Outcome] = set()
    repeated = repetitions(asked, repeat_runs)
    for one in repeated:
        results = run_matrix(one, out=out, err=err)
        outcomes |= {result.outcome for result in results.values()}
    if len(repeated) > 1:
        for sentence in between_sentences([runs.run_path(one.name) for one in repeated]):
            out.print(sentence, soft_wrap=True)
    failed, undecided = Outcome.FAILED in outcomes, Outcome.ERROR in outcomes
    sys.exit((1 if failed else 3 if undecided else 0) if strict else 0)


def _run_twice(asked: MatrixOptions, repeat_runs: int | None) -> bool:
    """Run everything twice with one seed; whether all packets are the same."""
    asked = replace(asked, name=asked.name or runs.run_path(None).name, keep_captures="all")
    path = runs.run_path(asked.name)
    if clocks.chosen(asked.clock, path) == clocks.REAL:
        raise UsageError("--repeat-check: packets repeat in virtual time alone; add --clock virtual.")
    if repeat_runs is not None:
        raise UsageError("--repeat-check and --repeat-runs: leave out one of the two; the seeds of the second differ.")
    run_matrix(asked, out=out, err=err)
    first = RunFolder.open(path)
    run_matrix(repeats.again(asked, first.run), out=out, err=err)
    found = list(repeats.compare_packets(first, RunFolder.open(runs.run_path(f"{asked.name}-again"))))
    for sentence in repeats.sentences(found):
        out.print(sentence, soft_wrap=True, markup=False)
    return all(one.same is not False for one in found)


@main.command()
@click.argument("image", required=False)
@click.option("--client", "client", metavar="COMMAND", help="Instead of IMAGE: a client of this host, run in a shell.")
@click.option("--server", "server", metavar="COMMAND", help="Instead of IMAGE: a server of this host.")
@click.option("--name", help="The implementation's name. [from the image's]")
@click.option("--peer", "peers", multiple=True, metavar="NAME", help="Reference peers; each case takes the first two.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="[all test cases, goodput, sat]")
@click.option("--run", "run_name", metavar="DIR", help="Where report and evidence go. [logs/checks/NAME-TIME]")
@click.option("--lanes", default="auto", show_default=True, metavar="N|auto", help="Jobs at once.")
@click.option(
    "--clock", type=click.Choice(["real", "virtual"]), default="real", show_default=True, help="See `run --clock`."
)
@yes_option
@cas_option
@click.pass_obj
def check(implementations: Path, /, image: str | None, client: str | None, server: str | None, **options: Any) -> None:
    """Check an image or a local build before you submit it.

    First the contract, then every case with two peers.

    A case with random losses that fails is asked again, and held against IMAGE when it fails 3 of at most 5 times.

    Exit codes: 0 passed · 1 something is wrong, and how to mend it is said · 2 bad input · 3 this host lacks something,
    or could not decide a case with any peer.
    """
    from runner import check as checking  # noqa: PLC0415 - docker is slow to import
    from runner.check.show import show_report  # noqa: PLC0415

    commands = {role: command for role, command in ((Role.CLIENT, client), (Role.SERVER, server)) if command}
    if bool(image) == bool(commands):
        raise UsageError("check takes either IMAGE, or --client COMMAND and --server COMMAND, or one of the two.")
    peers, run_name = tuple(split(options.pop("peers"))), options.pop("run_name")
    asked = checking.CheckOptions(
        implementations=implementations,
        image=image,
        commands=commands,
        peers=peers or checking.PEERS,
        run=run_name,
        **options,
    )
    report = checking.check(asked, out=out, err=err)
    show_report(out, report)
    sys.exit(report.verdict.value)


@main.command()
@click.option("--lanes", default="auto", show_default=True, metavar="N|auto", help="Jobs at once.")
@click.option("--run", "name", default="demo", show_default=True, metavar="NAME|DIR")
@clock_option
@yes_option
@cas_option
@click.pass_obj
def demo(implementations: Path, /, **options: Any) -> None:
    """Set everything up, run three stacks against each other over three links, draw the site."""
    asked = MatrixOptions(
        implementations=implementations,
        servers=DEMO_STACKS,
        clients=DEMO_STACKS,
        cases=DEMO_CASES,
        iterations=1,
        keep_captures="all",
        **options,
    )
    results = run_matrix(asked, out=out, err=err)
    page = draw_site([RunFolder.open(runs.run_path(asked.name))], SITE)
    good = sum(result.outcome is Outcome.SUCCEEDED for result in results.values())
    out.print(f"\n{good} of {len(results)} jobs succeeded. The matrix: {page} (or: ./bentpipe serve)")
