"""The command line: parses, calls, prints, exits.

Exit codes: 0 done · 1 a job failed (`--strict`) · 2 bad input · 3 this host lacks something, or the run did not end.
"""

import functools
import http.server
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from runner import campaign, plan, store, terminal
from runner.analyse import analyse
from runner.campaign import LOGS, VERSION
from runner.catalog import IMPLEMENTATIONS, ROOT, implementations_schema, load_catalog, load_implementations, split
from runner.errors import BentpipeError, UsageError
from runner.matrix import MatrixOptions, run_matrix
from runner.model.artifacts import Artifacts
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import protocol_key
from runner.retention import Retention
from runner.store import RunFolder, find_runs, load_evidence
from runner.units import format_duration, format_size
from runner.variants import doubts, parse_all, place

SITE = ROOT / "web" / "site"
DEMO_CASES = ("handshake", "goodput", "sat")
DEMO_STACKS = ("quic-go", "quinn", "aioquic")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def entry() -> None:
    """Run the command line; a BentpipeError becomes one sentence and its exit code."""
    try:
        main(prog_name="bentpipe", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        err.print("bentpipe: interrupted.")
        sys.exit(3)
    except BentpipeError as error:
        err.print(f"bentpipe: {error}", soft_wrap=True, markup=False)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(3)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="bentpipe")
@click.option(
    "--implementations",
    type=click.Path(dir_okay=False, path_type=Path),
    default=IMPLEMENTATIONS,
    show_default="implementations.json",
    help="The list of stacks.",
)
@click.pass_context
def main(context: click.Context, implementations: Path) -> None:
    """Every QUIC client against every QUIC server over satellite links, judged from the packets."""
    context.obj = implementations


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
        click.option("--iterations", type=click.IntRange(1, 1000), help="Of each measurement. [as declared: 10]"),
        click.option(
            "--variant",
            "variants",
            multiple=True,
            metavar="STACK:NAME=VALUE,…",
            help="One more row or column: the stack with CCA, IW, ACK_FREQUENCY, CLIENT_PARAMS or SERVER_PARAMS.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of links, files and order. [drawn, recorded]"),
        click.option("--shuffle", is_flag=True, help="Random order by the seed."),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


yes_option = click.option("--yes", "-y", is_flag=True, help="Install and start what is missing without asking.")
cas_option = click.option(
    "--extra-cas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of *.crt that the base image trusts too. [/usr/local/share/ca-certificates]",
)


@main.command()
@click.option("--link", is_flag=True, help="Measure the emulated link: RTT, data rate, loss, with 1 and with N lanes.")
@click.option("--lanes", type=click.IntRange(1, 64), default=4, show_default=True, help="N of --link.")
@click.pass_obj
def doctor(implementations: Path, link: bool, lanes: int) -> None:
    """Say what this host lacks, and the mend."""
    from runner.deploy import doctor as examination  # noqa: PLC0415 - docker is slow to import

    checks = examination.examine(load_implementations(implementations))
    if link:
        from runner.deploy.link_selftest import selftest  # noqa: PLC0415

        checks += selftest(lanes=lanes, progress=lambda line: out.print(f"[dim]{line}[/dim]"))
    out.print(terminal.checks_table(checks))
    sys.exit(0 if all(check.ok for check in checks) else 3)


@main.command("list")
@click.pass_obj
def list_(implementations: Path) -> None:
    """The stacks and cases that can be chosen."""
    from runner import stacks  # noqa: PLC0415 - docker is slow to import

    catalog = load_catalog(implementations)
    every = catalog.implementations.values()
    sizes = stacks.image_sizes(stack.image for stack in every)
    built = stacks.built_table([stack for stack in every if stack.build is not None], sizes)
    published = stacks.published_table([stack for stack in every if stack.build is None], sizes)
    cases = terminal.cases_table(case.record() for case in catalog.cases.values())
    out.print(built, "", published, "", cases, sep="\n")


@main.command()
@click.argument("names", nargs=-1, metavar="[STACK]...")
@click.option("--pull", is_flag=True, help="Fetch published images instead: those of STACKs, all without any.")
@yes_option
@cas_option
@click.pass_obj
def build(implementations: Path, names: tuple[str, ...], pull: bool, yes: bool, extra_cas: Path | None) -> None:
    """Build the images of STACKs (all without any), the simulator and the tools."""
    from runner import stacks  # noqa: PLC0415

    chosen = stacks.choose(load_catalog(implementations), names, pull=pull)
    stacks.build(chosen, pull=pull, yes=yes, extra_cas=extra_cas, out=out, err=err)


@main.command("plan")
@selection_options
@click.pass_obj
def plan_(implementations: Path, /, **options: Any) -> None:
    """Show the jobs of a selection, and what time and disk they take."""
    from runner.stacks import load_present  # noqa: PLC0415

    catalog = load_present(implementations)
    shuffle, seed = options.pop("shuffle"), options.pop("seed")
    asked = parse_all(options.pop("variants"), catalog.implementations)
    placed = place(catalog, campaign.select(catalog, **options), asked)
    for variant in asked:
        for sentence in doubts(variant, catalog.implementations[variant.stack]):
            out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    catalog, selection = placed.catalog, placed.selection
    run = campaign.new_run(
        LOGS / "plan", catalog, selection, seed=seed, shuffled=shuffle, image_ids={}, timeout_scale=1.0
    )
    unsupported = campaign.presets(catalog, run.order, {})
    todo = tuple(job for job in run.order if job not in unsupported)
    out.print(terminal.plan_table(run, selection, todo))
    total = plan.estimate(todo, run.cases)
    out.print(
        f"\n{len(todo)} jobs, about {format_duration(total.seconds)} with one lane; "
        f"{format_size(total.bytes_default)} on disk with --keep-captures median, "
        f"{format_size(total.bytes_all)} with all. "
        f"{len(unsupported)} more are unsupported by declaration."
    )
    if over_h3 := [job for job in todo if protocol_key(job) in run.protocols]:
        pairs = len({job.pair for job in over_h3})
        out.print(f"{len(over_h3)} of the jobs run over HTTP/3: their {pairs} pairs share nothing else.")


@main.command()
@selection_options
@click.option("--run", "name", metavar="NAME|DIR", help="The run to begin, to resume or to extend. [date and time]")
@click.option("--lanes", default="1", show_default=True, metavar="N|auto", help="Jobs at once.")
@click.option("--retry", multiple=True, type=click.Choice(["failed", "error"]), help="Run jobs of that outcome again.")
@click.option("--pause", metavar="HH:MM-HH:MM", help="Start no job in these hours, such as 18:00-23:00.")
@click.option(
    "--timeout-scale", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="Times every time-out."
)
@click.option(
    "--keep-captures", type=click.Choice([policy.value for policy in Retention]), default="median", show_default=True
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a job failed.")
@yes_option
@cas_option
@click.pass_obj
def run(implementations: Path, /, strict: bool, **options: Any) -> None:
    """Run the matrix. A run that was interrupted, or is to grow, goes on with the same --run."""
    results = run_matrix(MatrixOptions(implementations=implementations, **options), out=out, err=err)
    failed = any(result.outcome in (Outcome.FAILED, Outcome.ERROR) for result in results.values())
    sys.exit(1 if strict and failed else 0)


@main.command()
@click.argument("image", required=False)
@click.option("--client", "client", metavar="COMMAND", help="Instead of IMAGE: a client of this host, run in a shell.")
@click.option("--server", "server", metavar="COMMAND", help="Instead of IMAGE: a server of this host.")
@click.option("--name", help="The implementation's name. [from the image's]")
@click.option("--peer", "peers", multiple=True, metavar="NAME", help="Reference peers; each case takes the first two.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="[all test cases, goodput, sat]")
@click.option("--run", "run_name", metavar="DIR", help="Where report and evidence go. [logs/checks/NAME-TIME]")
@click.option("--lanes", default="1", show_default=True, metavar="N|auto", help="Jobs at once.")
@yes_option
@cas_option
@click.pass_obj
def check(implementations: Path, /, image: str | None, client: str | None, server: str | None, **options: Any) -> None:
    """Check IMAGE, or a build of this host, before you submit it: the contract, then every case with two peers.

    Exit codes: 0 passed · 1 something is wrong, and how to mend it is said · 2 bad input · 3 this host went wrong.
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


@main.command("analyse")
@click.argument("name", metavar="RUN")
def analyse_(name: str) -> None:
    """Judge a stored run again, offline, and print which verdicts changed."""
    folder = RunFolder.open(campaign.run_path(name))
    catalog = load_catalog()
    changes: list[tuple[Job, Result, Result]] = []
    with folder.locked():
        results = folder.results()
        for number, (job, before) in enumerate(results.items(), start=1):
            artifacts = folder.artifacts(job)
            if job.case not in catalog.cases or not artifacts.evidence.is_file():
                continue
            after = campaign.rejudged(
                before, analyse(job, artifacts, catalog.cases[job.case], folder.run.cases[job.case])
            )
            folder.save_result(after)
            if (before.outcome, before.findings) != (after.outcome, after.findings):
                changes.append((job, before, after))
            err.print(f"judged {number} of {len(results)}", end="\r")
    err.print()
    out.print(terminal.changes_table(changes) if changes else f"{len(results)} jobs judged again, no verdict changed.")


@main.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option("--out", "target", type=click.Path(path_type=Path), default=SITE, show_default="web/site")
def render(names: tuple[str, ...], target: Path) -> None:
    """Draw the site of the named runs (all without any) from their results alone."""
    out.print(f"{_render([RunFolder.open(campaign.run_path(name)) for name in names] or find_runs(LOGS), target)}")


def _render(folders: list[RunFolder], target: Path) -> Path:
    from runner.render import render as draw  # noqa: PLC0415 - plotly is slow to import

    if not folders:
        raise UsageError("There is no run to draw in logs/: begin one with ./bentpipe run, or ./bentpipe demo.")
    draw(folders, target)
    return target / "index.html"


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--site", type=click.Path(path_type=Path), default=SITE, show_default="web/site")
def serve(port: int, bind: str, site: Path) -> None:
    """Serve the rendered site."""
    if not (site / "index.html").is_file():
        raise UsageError(f"{site} holds no site: draw it with ./bentpipe render.")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    try:
        server = http.server.ThreadingHTTPServer((bind, port), handler)
    except OSError as error:
        raise UsageError(f"--bind {bind} --port {port} can't be used: {error.strerror}.") from error
    with server:
        out.print(f"http://{bind}:{port}/ — Ctrl-C ends it.")
        server.serve_forever()


@main.command()
@click.argument("name", metavar="RUN/SERVER_CLIENT/CASE/ITERATION")
def show(name: str) -> None:
    """One job: the verdict, its evidence, its numbers."""
    path = Path(name) if Path(name).is_dir() else LOGS / name
    if not (path / "result.json").is_file():
        raise UsageError(
            f"{path} holds no finished job: write RUN/SERVER_CLIENT/CASE/ITERATION, such as demo/quinn_aioquic/sat/1."
        )
    folder = RunFolder.open(path.resolve().parents[2])
    results = {folder.artifacts(job).folder.resolve(): result for job, result in folder.results().items()}
    result = results[path.resolve()]
    terminal.show_result(out, result, folder.run.cases.get(result.case), load_evidence(Artifacts(path)))
    out.print(f"files: {path}")


@main.command()
@click.argument("capture", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--keys", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Key log; repeat."
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON document.")
def decode(capture: Path, keys: tuple[Path, ...], as_json: bool) -> None:
    """Decode any capture of QUIC."""
    from runner.decode import decode_capture, to_json  # noqa: PLC0415

    document = to_json(decode_capture(capture, keys))
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    terminal.show_decoded(out, document)


@main.command()
@click.argument("name", metavar="FILE")
def schema(name: str) -> None:
    """The JSON Schema of a file format: run.json, result.json, evidence.json or implementations.json."""
    schemas = {**store.schemas(), "implementations.json": implementations_schema()}
    if name not in schemas:
        raise UsageError(f"There is no schema of '{name}'. Choices: {', '.join(schemas)}.")
    click.echo(json.dumps(schemas[name], indent=1))


@main.command()
@click.option("--lanes", default="auto", show_default=True, metavar="N|auto", help="Jobs at once.")
@click.option("--run", "name", default="demo", show_default=True, metavar="NAME|DIR")
@yes_option
@cas_option
@click.pass_obj
def demo(implementations: Path, lanes: str, name: str, yes: bool, extra_cas: Path | None) -> None:
    """Set everything up, run three stacks against each other over three links, draw the site."""
    options = MatrixOptions(
        implementations=implementations,
        servers=DEMO_STACKS,
        clients=DEMO_STACKS,
        cases=DEMO_CASES,
        iterations=1,
        name=name,
        lanes=lanes,
        yes=yes,
        extra_cas=extra_cas,
        keep_captures="all",
    )
    results = run_matrix(options, out=out, err=err)
    page = _render([RunFolder.open(campaign.run_path(name))], SITE)
    good = sum(result.outcome is Outcome.SUCCEEDED for result in results.values())
    out.print(f"\n{good} of {len(results)} jobs succeeded. The matrix: {page} (or: ./bentpipe serve)")


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--all", "everything", is_flag=True, help="The slow tests too.")
@click.option("--yes", "-y", is_flag=True, help="Install and start what is missing without asking.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST ARGUMENTS]...")
def test(everything: bool, yes: bool, arguments: tuple[str, ...]) -> None:
    """Set up what the tests need, then run the whole suite."""
    from runner.deploy.setup import prepare, prepare_tests  # noqa: PLC0415
    from runner.stacks import load_present  # noqa: PLC0415

    prepare_tests(assume_yes=yes, console=err)
    catalog = load_present(IMPLEMENTATIONS)
    names = [name for name in catalog.implementations if name not in catalog.absent] if everything else DEMO_STACKS
    prepare([catalog.implementations[name] for name in names], assume_yes=yes, extra_cas=None, console=err)
    marks = () if everything else ("-m", "not slow")
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *marks, *arguments])
