"""`run`, from options to results: set-up, plan, probe, lanes, loop. What holds the stages together and nothing else."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.campaign import Campaign, Deployment
from runner.campaign.retention import Retention
from runner.campaign.session import MatrixOptions, run_remaining, work_off
from runner.campaign.stacks import load_present, with_images
from runner.campaign.width import Width
from runner.config.catalog import Catalog, split
from runner.config.links import load_links, select_links
from runner.config.over_links import assign, refuse_real, with_measurements
from runner.config.variants import Placed, doubts, parse_all, place, with_variants_of
from runner.errors import SetupError, UsageError
from runner.guests.deployment import Guests
from runner.images.setup import prepare
from runner.lanes.emulated import Emulated
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.real_link import RealLink
from runner.model.result import Result
from runner.model.run import Run
from runner.plan import runs
from runner.remote.real import RealLinks
from runner.store import RunFolder
from runner.terminal.tables import RunWatch
from runner.units import format_size
from testcases import pathlinks


def run_matrix(options: MatrixOptions, *, out: Console, err: Console) -> dict[Job, Result]:
    """Run what is left of the selection. Returns all results of the selection, earlier ones included."""
    path = runs.run_path(options.name)
    clock = clocks.chosen(options.clock, path)
    clocks.width(options.lanes, clock)
    options.parsed_pause()  # refused before anything is built
    placed, over, links = choose(options, path, out)
    if links and clock != clocks.REAL:
        raise UsageError(f"--clock {clock}: a real link runs in real time; leave out --clock or --link.")
    if links:
        _one_lane_per_link(options, links)  # refused before anything is built
    catalog, selection = placed.catalog, placed.selection
    if not (selection.servers and selection.clients):
        missing = ", ".join(stack.image for stack in catalog.implementations.values())
        raise SetupError(f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`.")
    chosen = (catalog.implementations[name] for name in (*selection.servers, *selection.clients))
    stacks = [catalog.implementations[name] for name in dict.fromkeys(one.variant_of or one.name for one in chosen)]
    ready = prepare(
        stacks,
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=clock != clocks.REAL,
    )
    wanted = runs.new_run(
        path,
        catalog,
        selection,
        seed=options.seed,
        shuffled=options.shuffle,
        image_ids=ready.ids,
        image_digests=ready.digests,
        timeout_scale=options.timeout_scale,
        links=over,
    )
    return run_remaining(
        path,
        clocks.on(wanted, clock),
        options,
        wider=bool(options.servers or options.clients or options.cases or options.iterations),
        execute=lambda folder, todo: _execute(folder, catalog, todo, options=options, links=links, out=out),
        out=out,
    )


def _links(options: MatrixOptions, path: Path) -> tuple[RealLink, ...]:
    """The links that are named; without a name, those of a run that goes on."""
    names = options.links
    if not names and (path / "run.json").is_file():
        records = RunFolder.open(path).run.cases.values()
        names = tuple(dict.fromkeys(record.real_link.name for record in records if record.real_link))
    if not names:
        return ()
    under_paths = [name for name in split(names) if name in pathlinks.LINKS]
    links = {} if under_paths and not options.links_file.exists() else load_links(options.links_file)
    for name in under_paths:
        if name not in links:
            raise UsageError(f"--link {name}: that link is under paths: add --path.")
    return select_links(links, names)


def _one_lane_per_link(options: MatrixOptions, links: tuple[RealLink, ...]) -> Width:
    if options.lanes != "1":
        raise UsageError(f"--lanes {options.lanes}: a link carries one job at a time; leave --lanes out with --link.")
    return Width.fixed(len(links))


def choose(
    options: MatrixOptions, path: Path, out: Console
) -> tuple[Placed, dict[str, RealLink], tuple[RealLink, ...]]:
    """What is selected, with its variants, the link of each case that runs over a real one, and all real links.

    Without any selection on a run that exists, what that run has.
    """
    catalog = with_images(load_present(options.implementations), options.images)
    links = _links(options, path)
    if links:
        catalog = with_measurements(catalog, links)
    asked = parse_all(options.variants, catalog.implementations)
    servers, clients, cases = options.servers, options.clients, options.cases
    if (path / "run.json").is_file():
        run = RunFolder.open(path).run
        catalog = with_variants_of(catalog, run)
        if not (servers or clients or cases or options.iterations):
            servers, clients, cases = run.servers, run.clients, tuple(run.cases)
    over = assign(catalog, links, cases) if links else {}
    cases = tuple(over) or cases
    selection = runs.select(catalog, servers=servers, clients=clients, cases=cases, iterations=options.iterations)
    for variant in asked:
        for sentence in doubts(variant, catalog.implementations[variant.stack]):
            out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    if not links:
        refuse_real(catalog, selection.cases)
    return place(catalog, selection, asked), over, links


def _execute(
    folder: RunFolder,
    catalog: Catalog,
    todo: tuple[Job, ...],
    *,
    options: MatrixOptions,
    links: tuple[RealLink, ...],
    out: Console,
) -> dict[Job, Result]:
    """Run the jobs of one clock after those of the other."""
    results: dict[Job, Result] = {}
    for clock, part in clocks.parts(folder.run, todo):
        if len(part) < len(todo):
            out.print(f"{len(part)} jobs in {clock} time:")
        width = _one_lane_per_link(options, links) if links else clocks.width(options.lanes, clock)
        results |= _execute_part(folder, catalog, part, clock, options=options, width=width, links=links, out=out)
    return results


def _execute_part(
    folder: RunFolder,
    catalog: Catalog,
    todo: tuple[Job, ...],
    clock: str,
    *,
    options: MatrixOptions,
    width: Width,
    links: tuple[RealLink, ...],
    out: Console,
) -> dict[Job, Result]:
    """Probe, then run."""
    run, say = folder.run, partial(out.print, soft_wrap=True, markup=False)
    with ExitStack() as stack:
        deployment: Deployment
        if clock == clocks.VIRTUAL:
            scratch = runs.LOGS / ".guests"
            deployment = stack.enter_context(Guests.open(run, lanes=width.all, scratch=scratch))
            not_compliant: Mapping[tuple[str, Role], str] = {}  # images are probed in real time
        else:
            emulated = stack.enter_context(Emulated.open(run, lanes=1 if links else width.all, say=say))
            not_compliant, deployment = emulated.probe(folder.path / "compliance.json", todo), emulated
        for (name, role), reason in not_compliant.items():
            out.print(f"[yellow]{name} as {role.value} does not keep the contract: {reason}[/yellow]")
        real = None
        if links:
            stack.pop_all().close()  # the lane was for the probe alone
            real = stack.enter_context(_over_links(run, links, out))
        with RunWatch(out) as watch:
            return work_off(
                Campaign(
                    folder=folder,
                    cases=catalog.cases,
                    todo=todo,
                    presets=runs.presets(catalog, todo, not_compliant),
                    deployment=real or deployment,
                    lane_of=real.lane_of if real else None,
                    quiet=real.quiet if real else lambda _: "",
                    width=width,
                    retention=Retention(options.keep_captures),
                    watch=watch,
                    pause=options.parsed_pause(),
                )
            )


def _over_links(run: Run, links: tuple[RealLink, ...], out: Console) -> AbstractContextManager[RealLinks]:
    """The hosts of the links, made ready; what is done there is told."""
    told = [""]

    def report(image: str, sent: int, size: int) -> None:
        tenth = f"  {image}: {10 * sent // max(1, size) * 10} % of {format_size(size)}"
        if tenth != told[0]:
            out.print(tenth, soft_wrap=True)
            told[0] = tenth

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False)

    return RealLinks.open(run, links, ledger=runs.LEDGER, say=say, report=report)
