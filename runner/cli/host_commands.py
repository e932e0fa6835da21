"""Commands about this host and its stacks: doctor, list, build, test, ci, night, worker."""

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from runner.cli.base import SITE, TEST_STACKS, draw_site, err, options_of, out
from runner.cli.group import main
from runner.errors import BentpipeError, InUseError, SetupError, UsageError
from runner.files import locked_folder
from runner.images import images, setup
from runner.images.images import Build, BuildHistory
from runner.model.run import NightRecord, NightState
from runner.model.stack import HTTP09, HTTP1, Implementation
from runner.nights.night import NIGHT, SYSTEMD, Night, cron_line, install, load_night, unit_names
from runner.paths import IMPLEMENTATIONS, INSTALLED, LOGS, ROOT
from runner.places.place import Concurrency
from runner.places.workers.worker import PORT, Address, Invitation, accepted, invitation_folder, schedule, use_dask
from runner.plan.catalog import Catalog, load_catalog, load_present
from runner.plan.choice import choose, split
from runner.plan.links import declared_links
from runner.plan.options import BuildOptions, JobOptions, MatrixOptions
from runner.terminal import printing
from runner.terminal.printing import emulated_links_table, knobs_table, middleboxes_table
from runner.units import format_duration, format_size


@main.command()
@click.option("--link", is_flag=True, help="Measure the emulated link: RTT, data rate, loss, with 1 and with N lanes.")
@click.option("--lanes", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of lanes for --link.")
@click.pass_obj
def doctor(implementations: Path, link: bool, lanes: int) -> None:
    """Show what this host lacks, and how to install it."""

    checks = setup.examine(load_catalog(implementations).implementations)
    if link:
        from runner.check.link_selftest import selftest

        checks += selftest(lanes=lanes, progress=lambda line: out.print(f"[dim]{line}[/dim]"))
    out.print(printing.checks_table(checks))
    sys.exit(0 if all(check.ok for check in checks) else 3)


@main.command("list")
@click.pass_obj
def list_(implementations: Path) -> None:
    """List the stacks, middleboxes, cases and links."""
    catalog = load_catalog(implementations)
    entries = catalog.implementations.values()
    boxes = {name: entry.as_stack() for name, entry in catalog.middleboxes.items()}
    sizes = images.sizes(stack.image for stack in (*entries, *boxes.values()))
    here = [stack for stack in entries if stack.build is not None]
    published = published_table([stack for stack in entries if stack.build is None], sizes, width=out.width)
    cases = printing.cases_table(case.record() for case in catalog.cases.values())
    states = {name: where(box, sizes) for name, box in boxes.items()}
    out.print(built_table(here, sizes))
    for note in stack_notes(here):
        out.print(note, markup=False)
    out.print("", published, "", cases, sep="\n")
    out.print(printing.CASES_LEGEND)
    out.print("", middleboxes_table(catalog.middleboxes.values(), states), "", knobs_table(catalog.knobs), sep="\n")
    out.print("", emulated_links_table(declared_links()), sep="\n")


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--pull", is_flag=True, help="Pull published images instead of building.")
@options_of(JobOptions, ("yes", "extra_cas"))
def build(options: JobOptions, names: tuple[str, ...], pull: bool) -> None:
    """Build the images of stacks and middleboxes, the simulator and the tools. Without NAME: all of them."""
    chosen = choose_stacks(load_catalog(options.implementations), names, pull=pull)
    failure: BentpipeError | None = None
    try:
        if pull:
            setup.pull(chosen, assume_yes=options.yes, console=err)
        else:
            setup.prepare(chosen, assume_yes=options.yes, extra_cas=options.extra_cas, console=err)
    except SetupError as error:
        failure = error
    except KeyboardInterrupt:
        err.print("Stopped. Run the same command again: it keeps the images and the build steps that are complete.")
        raise
    tags = [stack.image for stack in chosen] if pull else [image.tag for image in images.images_of(chosen)]
    if sizes := images.sizes(tags):  # also when some images failed
        out.print(_size_table(sizes, pulled=pull))
    if failure is not None:
        raise failure


def choose_stacks(catalog: Catalog, names: Sequence[str], *, pull: bool) -> list[Implementation]:
    """The stacks and middleboxes that `build NAMES` builds or `build --pull NAMES` fetches; without names, all that can
    be built or fetched. A withdrawn image is fetched only when it is named. Raises UsageError for a published image
    that should be built, and for an image built here that should be fetched.
    """
    boxes = [box.as_stack() for box in catalog.middleboxes.values()]
    every = [*catalog.implementations.values(), *boxes]
    choices = {entry.name: entry for entry in every}
    requested = split(names)
    for name in requested:
        if name not in choices:
            raise UsageError(f"There is no stack or middlebox '{name}'. Choices: {', '.join(choices)}.")
        if pull and choices[name].build is not None:
            hint = f"; the published image is {name}-public" if f"{name}-public" in choices else ""
            raise UsageError(f"{name} is built here: run `./bentpipe build {name}`{hint}.")
        if not pull and choices[name].build is None:
            raise UsageError(f"{name} is a published image: run `./bentpipe build --pull {name}`.")
    of_kind = [entry for entry in every if (entry.build is None) is pull]
    return [entry for entry in of_kind if entry.name in requested or not (requested or entry.withdrawn)]


def _size_table(sizes: Mapping[str, int], *, pulled: bool) -> Table:
    builds = BuildHistory().builds()
    table = Table("image", "size", "" if pulled else "build time", box=None)
    for tag, size in sizes.items():
        table.add_row(tag, format_size(size), "" if pulled else _build_time(builds.get(tag)))
    return table


def _build_time(build: Build | None) -> str:
    if build is None:
        return ""
    reused = "" if build.full else f", {build.reused} of {build.steps} steps reused"
    return f"{format_duration(build.seconds)}{reused}"


_NARROW = 132  # below this width in columns, tables leave out facts that another command prints


def built_table(stacks: Iterable[Implementation], sizes: Mapping[str, int] | None) -> Table:
    """The stacks that are built here, within 80 columns. `sizes`: bytes by tag; None without an engine."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("stack", "version", "language", "role", "speaks", "CCA", "IW", "image"):
        table.add_column(column, no_wrap=True, justify="right" if column == "IW" else "left")
    for stack in stacks:
        window = str(stack.initial_window) if stack.initial_window else ""
        about = (stack.name, stack.version, stack.language, _roles(stack), _protocols(stack))
        table.add_row(*about, stack.congestion_control, window, where(stack, sizes))
    return table


def stack_notes(stacks: Sequence[Implementation]) -> Iterator[str]:
    """The lines below the table: its abbreviations, and each stack's note."""
    yield LEGEND
    for note in dict.fromkeys(stack.note for stack in stacks if stack.note):
        yield f"{', '.join(stack.name for stack in stacks if stack.note == note)}: {note}"


_SHORT = {HTTP09: "hq", HTTP1: "h1"}
LEGEND = "hq: HTTP/0.9 over QUIC (hq-interop) · h1: HTTP/1.1 · CCA: congestion controller · IW: initial window, packets"


def published_table(stacks: Iterable[Implementation], sizes: Mapping[str, int] | None, *, width: int) -> Table:
    """The published images of the catalogue, and which of them are on this host. The names of images need 132
    columns."""
    wide = width >= _NARROW
    caption = "" if wide else f"implementations.json and terminals with {_NARROW} columns show the names of the images."
    table = Table(box=None, caption=caption or None, caption_justify="left")
    for column in ("stack", "role", "CCA", "also has", "image", *(("published as",) if wide else ())):
        table.add_column(column, no_wrap=column != "also has", overflow="fold")
    for stack in stacks:
        others = [name for name in stack.congestion_implemented if name != stack.congestion_control]
        more = [*others, *(["HyStart"] if stack.hystart else [])]
        control = stack.congestion_control or ("unknown" if others else "")
        row = (
            stack.name,
            _roles(stack),
            control,
            ", ".join(more),
            where(stack, sizes),
            *((stack.image,) if wide else ()),
        )
        table.add_row(*row)
    return table


def _protocols(stack: Implementation) -> str:
    return " ".join(_SHORT.get(name, name) for name in stack.speaks)


def _roles(stack: Implementation) -> str:
    return "both" if len(stack.roles) == 2 else ", ".join(stack.roles)


def where(stack: Implementation, sizes: Mapping[str, int] | None) -> str:
    """The size of the stack's or middlebox's image, or the reason why this host doesn't have the image."""
    if sizes is None:
        return "no engine"
    if stack.image in sizes:
        return format_size(sizes[stack.image])
    if stack.build is not None:
        return "not built"
    return "withdrawn" if stack.withdrawn else "not pulled"


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--all", "everything", is_flag=True, help="Run the slow tests, too.")
@options_of(JobOptions, ("yes",))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST ARGUMENTS]...")
def test(options: JobOptions, everything: bool, arguments: tuple[str, ...]) -> None:
    """Install what the tests need, then run the test suite."""
    if INSTALLED:
        raise UsageError("The tests are not installed: run ./bentpipe test in a checkout.")
    setup.prepare_tests(assume_yes=options.yes, console=err)
    catalog = load_present(IMPLEMENTATIONS)
    stacks = [catalog.implementations[name] for name in TEST_STACKS]
    if everything:
        stacks = [stack for name, stack in catalog.implementations.items() if name not in catalog.absent]
        stacks += [box.as_stack() for box in catalog.middleboxes.values()]
    try:
        setup.prepare(stacks, assume_yes=options.yes, extra_cas=None, console=err, guests=True)
    except SetupError as error:
        if everything:
            raise
        # Debian's mirror may lack the source of the guests' kernel. Other causes are raised again.
        setup.prepare(stacks, assume_yes=options.yes, extra_cas=None, console=err)
        err.print(f"{error}\nThe tests of virtual time are skipped.", markup=False)
    marks: tuple[str, ...] = () if everything else ("-m", "not slow")
    # One process for the tests with containers, one for the others.
    if not arguments and len(os.sched_getaffinity(0)) > 1:
        marks += ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *marks, *arguments])


# Commands of workers: worker invite, worker tls://…, worker accept.


class _WorkerGroup(click.Group):
    """Makes `worker tls://…` a short form of `worker join tls://…`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command's name, `join`, before an address."""
        is_join = any("://" in argument for argument in args) and args[0] not in self.commands
        return super().parse_args(ctx, ["join", *args] if is_join else args)


@main.group(cls=_WorkerGroup)
def worker() -> None:
    """Run jobs on many hosts (docs/workers.md).

    Call `worker invite` on the host where you start runs, and `worker tls://HOST:PORT` on each worker host.
    """


@worker.command("invite")
@click.option("--host", metavar="NAME", help="Name or address of this host, as workers reach it. [its host name]")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="TCP port to open.")
@click.option(
    "--days", default=2.0, show_default=True, type=click.FloatRange(0.01, 30), help="Days until the invitation ends."
)
@click.option("--new", is_flag=True, help="Make new certificates, which end earlier invitations.")
def invite(host: str | None, port: int, days: float, new: bool) -> None:
    """Invite workers, and run the scheduler until Ctrl-C.

    The command prints a line to paste on each worker host. A person who has this line can run any program as the user
    of each worker and of the runner. Treat the line like a password.
    """
    use_dask()
    address = Address.parse(f"tls://{host or socket.getfqdn()}:{port}")
    kept = Invitation(invitation_folder(LOGS, address))
    invitation = kept if kept.valid and not new else Invitation.make(kept.folder, days=days)

    def ready() -> None:
        out.print(
            f"Workers may take part in {address} until {invitation.until:%Y-%m-%d %H:%M}. On each of them:\n",
            soft_wrap=True,
        )
        out.print(f"    echo {invitation.token} | ./bentpipe worker {address}\n", markup=False)
        out.print(f"Then, on this host: ./bentpipe run --on {address} …")

    try:
        asyncio.run(schedule(address, invitation, ready=ready))
    except KeyboardInterrupt:
        out.print("The scheduler has ended. The same command starts it again with the same invitation.")


@worker.command("accept")
@click.argument("address")
def accept(address: str) -> None:
    """Read an invitation from the standard input and store it.

    The invitation is in the line that `worker invite` printed. Afterwards `run --on ADDRESS` works on this host.
    """
    at = Address.parse(address)
    accepted(LOGS, at, _token())
    out.print(f"This host may take part in {at}.")


@worker.command("join")
@click.argument("address")
@click.option("--lanes", type=click.IntRange(1, 64), help="Number of jobs at the same time. [one for each core]")
@options_of(JobOptions, ("yes",))
def join(options: JobOptions, address: str, lanes: int | None) -> None:
    """Run jobs of the scheduler at ADDRESS until Ctrl-C.

    ADDRESS is tls://HOST:PORT. `worker tls://HOST:PORT` is a short form of `worker join tls://HOST:PORT`.

    The first call reads the invitation from the standard input. Later calls use the stored invitation.
    """
    from runner.places.workers.worker import Deployments, OwnPlaces, take_part

    at = Address.parse(address)
    invitation = accepted(LOGS, at, _token())
    use_dask()
    lanes = lanes or len(os.sched_getaffinity(0))
    setup.require(setup.examine_host())
    setup.connect(assume_yes=options.yes, console=out)

    def say(sentence: str) -> None:
        out.print(escape(sentence))

    scratch = LOGS / ".workers" / "guests"  # disks of guests; only one process may use this folder

    def open_host() -> AbstractContextManager[Deployments]:
        return OwnPlaces.open(lanes=lanes, scratch=scratch, say=say)

    # Slurm and systemd end a worker by SIGTERM, and a shell starts background commands with SIGINT ignored. The handler
    # raises an exception, so that the worker can remove its containers first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with _alone(scratch):
            take_part(at, invitation, open_host, lanes=lanes, say=say)
    except KeyboardInterrupt:
        out.print("This worker and its running jobs have ended.")


@contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Be the only worker of this checkout. Raises UsageError when another worker of this checkout runs."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_folder(scratch))
        except InUseError as error:
            raise UsageError(
                "Another worker of this checkout is running: end it, or start it with more --lanes."
            ) from error
        yield


def _token() -> str | None:
    """The invitation on the standard input. None when the standard input is a terminal or has no invitation."""
    if sys.stdin.isatty():
        return None
    return sys.stdin.readline().strip() or None


# Commands of nightly runs: night run, night status, night install.

_SHOWN = 10  # nights at most
_SIGNS = {NightState.DONE: "✓", NightState.STOPPED: "⏸", NightState.FAILED: "✗", NightState.LEFT_OUT: "–"}

file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=NIGHT,
    show_default="night.json",
    help="File that describes a night.",
)


def _load_night(path: Path) -> Night:
    """The night, whose runs have options that `run` takes. Raises UsageError with the file, the run and the mistake."""
    from runner.cli.run_commands import run as command

    loaded = load_night(path)
    for each in loaded.runs:
        try:
            with command.make_context("run", list(each.arguments), obj=IMPLEMENTATIONS) as context:
                options = MatrixOptions(implementations=IMPLEMENTATIONS, **context.params)
            Concurrency.parse(options.lanes)
            choose(options, load_catalog(IMPLEMENTATIONS), None)
        except (click.ClickException, UsageError) as error:
            mistake = error.format_message() if isinstance(error, click.ClickException) else error
            raise UsageError(f"{path}, run '{each.name}', options: {mistake}") from error
    return loaded


@main.group()
def night() -> None:
    """Run the matrix every night, as night.json describes (docs/nights.md)."""


@night.command("run")
@file_option
def run(path: Path) -> None:
    """Run one night now, or resume a night that was killed.

    Two nights of the same name never overlap.

    Exit codes: 0 every stage is done · 2 bad input · 3 a stage failed or did not fit into the time.
    """
    from runner.nights.night import NightWork

    work = NightWork(night=_load_night(path), logs=LOGS, site=SITE, say=lambda text: out.print(escape(text)))
    record = work.run()
    for line in record.news:
        out.print(escape(line))
    sys.exit(0 if all(stage.state is NightState.DONE for stage in record.stages) else 3)


@night.command("status")
@file_option
def status(path: Path) -> None:
    """Show the last nights.

    Shows the duration and the stages of each night, the changes of the newest night, and when the next night begins.
    """
    from runner.nights.night import load_records, night_folder

    loaded = _load_night(path)
    records = load_records(night_folder(LOGS, loaded.name))
    if not records:
        out.print(f"No night of {loaded.name} has run yet: ./bentpipe night run begins one.")
    else:
        out.print(_table(records[:_SHOWN]))
        for line in records[0].news:
            out.print(escape(line))
    installed = (SYSTEMD / unit_names(loaded)[1]).is_file()
    if installed:
        begins = f"The next night begins at {loaded.at:%H:%M}."
    else:
        begins = "No timer is installed: ./bentpipe night install writes one."
    free = shutil.disk_usage(LOGS if LOGS.is_dir() else LOGS.parent).free
    out.print(f"{begins} {free / 1e9:.1f} GB are free below {LOGS}.", markup=False)


def _table(records: list[NightRecord]) -> Table:
    table = Table("night", "lasted", "stages", box=None)
    for record in records:
        ended = record.ended_unix_s
        lasted = format_duration(ended - record.began_unix_s) if ended is not None else "not ended"
        stages = [
            f"{_SIGNS[stage.state]} {stage.name}{': ' + stage.message if stage.message else ''}"
            for stage in record.stages
        ]
        table.add_row(
            f"{datetime.fromtimestamp(record.began_unix_s):%Y-%m-%d %H:%M}", lasted, escape("\n".join(stages))
        )
    return table


@night.command("install")
@file_option
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=SYSTEMD,
    show_default=True,
    help="Folder of systemd's units.",
)
@click.option("--cron", is_flag=True, help="Print a line for `crontab -e` instead.")
def install_(path: Path, folder: Path, cron: bool) -> None:
    """Let systemd start a night every day.

    Writes a service and a timer.
    """
    loaded = _load_night(path)
    if cron:
        click.echo(cron_line(loaded, path))
        return
    for unit in install(loaded, path, folder):
        out.print(f"{unit}", markup=False)
    out.print(f"Next: systemctl daemon-reload && systemctl enable --now {unit_names(loaded)[1]}")


# The command `ci`: compares two builds of a stack.


@main.command()
@options_of(BuildOptions)
def ci(options: BuildOptions) -> None:
    """Compare two builds of a stack, and report what the change made worse.

    Both builds run the same jobs side by side. A failure of both builds does not count against the change.

    Exit codes: 0 nothing got worse · 1 something got worse · 2 bad input · 3 this host lacks something, or no cell
    could be decided.
    """
    from runner.check.change import SITE
    from runner.check.two_builds import compare_builds

    report = compare_builds(options, out=out, err=err)
    if report.changed:
        draw_site(list(report.folders.values()), report.path / SITE)
    paths = report.write()
    if options.summary is not None:
        with options.summary.open("a", encoding="utf-8") as file:
            file.write(report.markdown())
    for text in (report.markdown(), *map(str, paths)):
        out.print(text, markup=False)
    sys.exit(report.verdict.value)
