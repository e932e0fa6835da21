"""Commands that choose and run jobs: plan, run, check, demo."""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from runner.campaign import matrix
from runner.campaign.campaign import Retention
from runner.campaign.matrix import chosen, run_matrix
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
from runner.cli.group import main
from runner.cli.read_commands import between_sentences
from runner.errors import UsageError
from runner.model.deployment import REAL, VIRTUAL, estimate
from runner.model.result import Outcome, Result
from runner.model.run import Job, Run
from runner.model.stack import HTTP09, Role
from runner.places import place
from runner.places.links.real_links import Ledger, link_plans
from runner.plan import jobs
from runner.plan.catalog import split
from runner.plan.jobs import LEDGER
from runner.plan.links import LINKS_FILE
from runner.plan.options import MatrixOptions
from runner.store.runs import RunFolder, own_logs
from runner.terminal import printing
from runner.units import format_count, format_duration, format_size

_HOSTILE = "hostile"  # the group of cases with the hostile peer

# The options that choose jobs, shared by `plan` and `run`.


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose jobs."""
    options = (
        click.option(
            "--server",
            "servers",
            multiple=True,
            metavar="NAME",
            help="Server stacks. Repeat the option or separate names by commas. [all]",
        ),
        click.option("--client", "clients", multiple=True, metavar="NAME", help="Client stacks. [all]"),
        click.option(
            "--case",
            "cases",
            multiple=True,
            metavar="NAME",
            help="Test cases and measurements, by name or abbreviation. [all]",
        ),
        click.option(
            "--via",
            "vias",
            multiple=True,
            metavar="NAME",
            help="Middleboxes between client and server: VPNs, PEPs. [none]",
        ),
        click.option(
            "--link",
            "links",
            multiple=True,
            metavar="NAME|rate=…",
            help="Links by name, emulated or real, or a link as text: rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp. "
            "[each case's own]",
        ),
        click.option(
            "--size",
            "sizes",
            multiple=True,
            metavar="BYTES|all",
            help="Size of the file, for measurements that download one file. all: several sizes from 0.5 to 10 MB. "
            "[the case's own]",
        ),
        click.option(
            "--loss",
            "losses",
            multiple=True,
            metavar="0…1|all",
            help="Packet loss in both directions of the satellite segment. all: 0, and 28 fractions from 1e-9 to 1. "
            "[the link's own]",
        ),
        click.option(
            "--beside",
            "besides",
            multiple=True,
            metavar="FLOW",
            help="A second download through the same link: tcp-cubic, tcp-bbr, tcp-reno or a stack. [none]",
        ),
        click.option(
            "--warm", is_flag=True, help="Do the download or the page load twice, and measure only the second one."
        ),
        click.option("--path", "old_paths", multiple=True, hidden=True),
        click.option("--workload", "old_workloads", multiple=True, hidden=True),
        click.option(
            "--iterations",
            type=click.IntRange(1, 1000),
            help="Iterations of each measurement and of each test case with random losses. [as declared, mostly 10]",
        ),
        click.option(
            "--variant",
            "variants",
            multiple=True,
            metavar="STACK:NAME=VALUE,…",
            help="Add the stack with other settings (CCA, IW, ACK_FREQUENCY, CLIENT_PARAMS, SERVER_PARAMS) as one more "
            "row or column, or a middlebox with other settings. `list` shows the settings. IW=10/32 adds two variants.",
        ),
        click.option(
            "--image",
            "images",
            multiple=True,
            metavar="NAME=IMAGE",
            help="Use this local image for the stack NAME.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**31 - 1),
            help="Seed of links, files and order. [random, recorded in run.json]",
        ),
        click.option("--shuffle", is_flag=True, help="Run the jobs in random order, drawn from the seed."),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def clock_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--clock` of `plan`, `run` and `demo`."""
    return click.option(
        "--clock",
        type=click.Choice(["real", "virtual", "auto"]),
        help="real: real time. virtual: each job runs in a small kernel whose clock jumps ahead while programs "
        "wait. auto: virtual for cases that mostly wait, real for cases that the CPU can limit. "
        "[existing run's or real]",
    )(command)


def cpu_model_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--cpu-model` of `run`."""
    return click.option(
        "--cpu-model",
        type=click.Choice(["none", "calibrated", "measured"]),
        help="In virtual time, CPU work takes no time (none), takes the time that the calibration of this host found "
        "(calibrated), or takes no time but is measured (measured). [existing run's or none]",
    )(command)


def links_file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--links` of `plan` and `run`."""
    return click.option(
        "--links",
        "links_file",
        type=click.Path(dir_okay=False, path_type=Path),
        default=LINKS_FILE,
        show_default="links.json",
        help="File that describes real links and their hosts.",
    )(command)


def matrix_options(implementations: Path, options: dict[str, Any]) -> MatrixOptions:
    """The parsed options as a MatrixOptions. Raises UsageError for options of older versions."""
    if options.pop("old_paths"):
        raise UsageError("--path is now called --via, such as --via openvpn,qpep. Write --via none for no middlebox.")
    if options.pop("old_workloads"):
        raise UsageError("--workload is now called --case, such as --case download,page.")
    return MatrixOptions(implementations=implementations, **options)


DEMO_CASES = ("handshake", "goodput", "sat")


def repetitions(options: MatrixOptions, times: int | None) -> list[MatrixOptions]:
    """The options of each run that `--repeat-runs` makes. Each run has its own name. When the options have a seed, each
    run also has its own seed, because equal losses would make the runs look more similar than they are."""
    if times is None:
        return [options]
    name = options.name or jobs.run_path(None).name
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
    options, path = matrix_options(implementations, parsed), jobs.run_path(None)
    choice = chosen(options, None)
    run = jobs.new_run(
        path,
        choice.catalog,
        choice.selection,
        seed=options.seed,
        shuffled=options.shuffle,
        image_ids={},
        timeout_scale=1.0,
        records=choice.records,
    )
    unsupported = jobs.verdicts_without_run(choice.catalog, run.order, {})
    todo = tuple(job for job in run.order if job not in unsupported)
    out.print(printing.plan_table(run, choice.selection, todo))
    total, logs = estimate(todo, run.cases), own_logs(jobs.LOGS, todo, run.cases)
    out.print(
        f"\n{format_count(len(todo), 'job')}, about {format_duration(total.seconds)} with one lane; "
        f"{format_size(total.disk('median') + logs)} on disk with --keep-captures median, "
        f"{format_size(total.disk('all') + logs)} with all. "
        f"{len(unsupported)} more are declared as unsupported."
    )
    if not choice.real:
        out.print(_clock_sentence(run, todo, options.clock), soft_wrap=True)
    for sentence in (*_other_protocols(run, todo), *choice.doubts):
        out.print(sentence, soft_wrap=True)
    if choice.real:
        plans = link_plans(todo, run.cases, choice.real, ledger=Ledger(LEDGER), now=datetime.now())
        out.print("", printing.links_table(plans), sep="\n")
        for plan in plans:
            for sentence in plan.sentences:
                out.print(sentence, soft_wrap=True)


def _clock_sentence(run: Run, todo: tuple[Job, ...], clock: str | None) -> str:
    """A sentence with the time that the jobs take with each clock; the selected clock comes first."""
    cores = len(os.sched_getaffinity(0))
    guests = estimate(todo, run.cases).guest_seconds / cores
    parts = dict(place.parts(place.with_clock(run, place.AUTO), todo))
    waiting, binding = (estimate(parts.get(name, ()), run.cases) for name in (VIRTUAL, REAL))
    mixed = waiting.guest_seconds / cores + binding.seconds
    times = {
        VIRTUAL: f"--clock virtual: about {format_duration(guests)} on {cores} cores",
        place.AUTO: f"--clock auto: about {format_duration(mixed)}, {format_duration(binding.seconds)} of it for "
        f"{format_count(len(parts.get(REAL, ())), 'job')} with one lane",
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
    if _HOSTILE in split(parsed["cases"]):
        _meet_selected(implementations, parsed)
    options = matrix_options(implementations, parsed)
    if repeat_check:
        sys.exit(0 if _run_twice(options, repeat_runs) else 1)
    results: list[Result] = []
    repeated = repetitions(options, repeat_runs)
    for repetition in repeated:
        results += run_matrix(repetition, out=out, err=err).values()
    if len(repeated) > 1:
        for sentence in between_sentences([jobs.run_path(repetition.name) for repetition in repeated]):
            out.print(sentence, soft_wrap=True)
    failed = any(result.outcome is Outcome.FAILED or result.violations for result in results)
    undecided = any(result.outcome is Outcome.ERROR for result in results)
    sys.exit((1 if failed else 3 if undecided else 0) if strict else 0)


def _run_twice(options: MatrixOptions, repeat_runs: int | None) -> bool:
    """Run everything twice with the same seed. True when all packets are the same."""
    options = replace(options, name=options.name or jobs.run_path(None).name, keep_captures="all")
    path = jobs.run_path(options.name)
    if place.chosen(options.clock, RunFolder.stored(path)) == REAL:
        raise UsageError("--repeat-check: packets repeat only in virtual time; add --clock virtual.")
    if repeat_runs is not None:
        raise UsageError(
            "--repeat-check needs equal seeds and --repeat-runs draws different seeds; leave out one of the two."
        )
    run_matrix(options, out=out, err=err)
    first = RunFolder.open(path)
    run_matrix(matrix.again(options, first.run), out=out, err=err)
    comparisons = list(matrix.compare_packets(first, RunFolder.open(jobs.run_path(f"{options.name}-again"))))
    for sentence in matrix.sentences(comparisons):
        out.print(sentence, soft_wrap=True, markup=False)
    return all(comparison.same is not False for comparison in comparisons)


def _meet_selected(implementations: Path, parsed: Mapping[str, Any]) -> NoReturn:
    """`run --case hostile`: the selected servers and clients meet the hostile peer."""
    allowed = {"cases", "servers", "clients", "name", "lanes", "clock", "yes", "extra_cas"}
    context = click.get_current_context()
    for name in context.params.keys() - allowed:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--case {_HOSTILE}: the option for {name} has no effect here; leave it out.")
    servers, clients = split(parsed["servers"]), split(parsed["clients"])
    if split(parsed["cases"]) != [_HOSTILE] or not (servers or clients):
        raise UsageError(f"--case {_HOSTILE} runs alone, and needs --server or --client with the stacks to test.")
    stacks = {
        stack: tuple(role for role, names in ((Role.CLIENT, clients), (Role.SERVER, servers)) if stack in names)
        for stack in dict.fromkeys((*servers, *clients))
    }
    clock = parsed["clock"] or REAL
    if clock not in (REAL, VIRTUAL):
        raise UsageError(f"--case {_HOSTILE}: --clock is real or virtual, not {clock}.")
    _meet(implementations, stacks, {**parsed, "cases": (), "run": parsed["name"], "clock": clock})


def _meet(implementations: Path, stacks: Mapping[str, tuple[Role, ...]], parsed: Mapping[str, Any]) -> NoReturn:
    """Let stacks meet the hostile peer, print the results, and exit."""
    from runner.hostile.flight_report import exit_code, show_meeting  # noqa: PLC0415 - docker is slow to import
    from runner.hostile.flights import load_flights  # noqa: PLC0415
    from runner.hostile.meeting import MeetingOptions, meet_all  # noqa: PLC0415

    options = MeetingOptions(
        implementations=implementations,
        stacks=stacks,
        cases=tuple(split(parsed["cases"])),
        **{name: parsed[name] for name in ("run", "lanes", "clock", "yes", "extra_cas")},
    )
    results = []
    for meeting in meet_all(options, out=out, err=err):
        show_meeting(out, meeting, load_flights())
        results += meeting.results
    sys.exit(exit_code(results))


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
@click.option(
    "--hostile",
    is_flag=True,
    help="Only meet the hostile peer, which breaks one rule at a time (docs/hostile.md); --case names flights.",
)
@click.option("--run", "run_name", metavar="DIR", help="Folder of the report and its evidence. [logs/checks/NAME-TIME]")
@lanes_option("auto")
@click.option("--clock", type=click.Choice(["real", "virtual"]), default="real", show_default=True, help="As in `run`.")
@click.option("--strict", is_flag=True, help="Exit with 1 also when the image broke a MUST of an RFC (§).")
@yes_option
@cas_option
@click.pass_obj
def check(implementations: Path, /, image: str | None, client: str | None, server: str | None, **parsed: Any) -> None:
    """Check an image or a local build before you submit it.

    The check tests the contract first, then runs every case with two peers. A case with random losses runs up to 5
    times; the image fails it when 3 of them fail.

    Exit codes: 0 passed · 1 a problem was found, and the report says how to fix it; with --strict, also a broken MUST
    (§) · 2 bad input · 3 this host lacks something, no peer could decide a case, or Ctrl-C ended the check: the report
    then covers the jobs before.
    """
    from runner import check as checking  # noqa: PLC0415 - docker is slow to import
    from runner.check.check import show_report  # noqa: PLC0415

    commands = {role: command for role, command in ((Role.CLIENT, client), (Role.SERVER, server)) if command}
    if bool(image) == bool(commands):
        raise UsageError("check takes either IMAGE, or at least one of --client COMMAND and --server COMMAND.")
    if parsed.pop("hostile"):
        if not image:
            raise UsageError("check --hostile needs an IMAGE: a local build can't be run once for each flight.")
        _meet(implementations, {image: tuple(Role)}, {**parsed, "run": parsed["run_name"]})
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
    page = draw_site([RunFolder.open(jobs.run_path(options.name))], SITE)
    good = sum(result.outcome is Outcome.SUCCEEDED for result in results.values())
    out.print(f"\n{good} of {len(results)} jobs succeeded. The matrix: {page} (or: ./bentpipe serve)")
