"""`run`, from options to results: set-up, plan, probe, lanes, loop. What holds the stages together and nothing else."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.campaign import Campaign, Deployment
from runner.campaign.retention import Retention
from runner.campaign.session import run_remaining, work_off
from runner.campaign.stacks import as_stack, load_present, with_images
from runner.campaign.width import Width
from runner.config.choice import Choice, choose
from runner.config.options import MatrixOptions
from runner.errors import SetupError, UsageError
from runner.guests.deployment import Guests
from runner.images.setup import prepare
from runner.lanes.emulated import Emulated
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.real_link import RealLink
from runner.model.result import Result
from runner.model.run import ClientKind, Run
from runner.plan import runs
from runner.remote.real import RealLinks
from runner.store import RunFolder
from runner.terminal.tables import RunWatch
from runner.units import format_size


def run_matrix(options: MatrixOptions, *, out: Console, err: Console) -> dict[Job, Result]:
    """Run what is left of the selection. Returns all results of the selection, earlier ones included."""
    path = runs.run_path(options.name)
    clock = clocks.chosen(options.clock, path)
    clocks.width(options.lanes, clock)
    options.parsed_pause()  # refused before anything is built
    choice = chosen(options, path)
    for sentence in choice.doubts:
        out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    if choice.real:
        _require_real(choice, clock)
        _one_lane_per_link(options, choice.real)  # refused before anything is built
    if clock == clocks.VIRTUAL:
        _require_virtual(choice)
    ready = prepare(
        _images(choice),
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=clock != clocks.REAL,
    )
    wanted = runs.new_run(
        path,
        choice.catalog,
        choice.selection,
        seed=options.seed,
        shuffled=options.shuffle,
        image_ids=ready.ids,
        image_digests=ready.digests,
        timeout_scale=choice.timeout_scale,
        records=choice.records,
    )
    return run_remaining(
        path,
        clocks.on(wanted, clock),
        options,
        wider=options.selects,
        execute=lambda folder, todo: _execute(folder, choice, todo, options=options, out=out),
        out=out,
    )


def chosen(options: MatrixOptions, path: Path) -> Choice:
    """What the options ask for, of a new run or of the one at `path`. Raises UsageError."""
    catalog = with_images(load_present(options.implementations), options.images)
    return choose(options, catalog, RunFolder.open(path).run if (path / "run.json").is_file() else None)


def _images(choice: Choice) -> list[Implementation]:
    """What is to be built or looked for: the stacks and middleboxes, without variants, which share their images."""
    catalog, selection = choice.catalog, choice.selection
    if not (selection.servers and selection.clients):
        missing = ", ".join(stack.image for stack in catalog.implementations.values())
        raise SetupError(f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`.")
    stacks = [catalog.implementations[name] for name in (*selection.servers, *selection.clients)]
    names = dict.fromkeys(one.variant_of or one.name for one in stacks)
    boxes = [catalog.middleboxes[via] for via in selection.vias if via]
    bases = dict.fromkeys(one.variant_of or one.name for one in boxes)
    return [
        *(catalog.implementations[name] for name in names),
        *(as_stack(catalog.middleboxes[name]) for name in bases if name not in names),
    ]


def _require_virtual(choice: Choice) -> None:
    """Raise UsageError for what a guest can't do."""
    if any(choice.selection.vias):
        raise UsageError("--clock virtual: a guest has no middleboxes yet; leave out --clock or --via.")
    for record in choice.records.values():
        if record.client is not ClientKind.STACK:
            raise UsageError(f"--clock virtual: {record.case} runs in real time only; leave out --clock.")
        if len(record.link.segments) > 1:
            raise UsageError(
                f"--clock virtual: a guest has one segment, and {record.link.name} has {len(record.link.segments)}; "
                "leave out --clock, or name another --link."
            )


def _require_real(choice: Choice, clock: str) -> None:
    """Raise UsageError for what the hosts of real links can't do."""
    if clock != clocks.REAL:
        raise UsageError(f"--clock {clock}: a real link runs in real time; leave out --clock or --link.")
    if any(choice.selection.vias):
        raise UsageError(
            f"--via: middleboxes stand on emulated links only, and {choice.real[0].name} is real: leave out --via."
        )
    for record in choice.records.values():
        if record.client is not ClientKind.STACK:
            raise UsageError(f"--case {record.case}: over a real link stacks alone are asked: leave out --link.")


def _one_lane_per_link(options: MatrixOptions, links: tuple[RealLink, ...]) -> Width:
    if options.lanes != "1":
        raise UsageError(f"--lanes {options.lanes}: a link carries one job at a time; leave --lanes out with --link.")
    return Width.fixed(len(links))


def _execute(
    folder: RunFolder, choice: Choice, todo: tuple[Job, ...], *, options: MatrixOptions, out: Console
) -> dict[Job, Result]:
    """Run the jobs of one clock after those of the other."""
    results: dict[Job, Result] = {}
    for clock, part in clocks.parts(folder.run, todo):
        if len(part) < len(todo):
            out.print(f"{len(part)} jobs in {clock} time:")
        width = _one_lane_per_link(options, choice.real) if choice.real else clocks.width(options.lanes, clock)
        results |= _execute_part(folder, choice, part, clock, options=options, width=width, out=out)
    return results


def _execute_part(
    folder: RunFolder,
    choice: Choice,
    todo: tuple[Job, ...],
    clock: str,
    *,
    options: MatrixOptions,
    width: Width,
    out: Console,
) -> dict[Job, Result]:
    """Probe, then run."""
    run, links, say = folder.run, choice.real, partial(out.print, soft_wrap=True, markup=False)
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
                    cases=choice.catalog.cases,
                    todo=todo,
                    presets=runs.presets(choice.catalog, todo, not_compliant),
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
