"""The stages of `run` in their order: set-up, plan, probe, lanes, loop."""

from pathlib import Path

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.campaign import Campaign
from runner.campaign.places import Place, place_of
from runner.campaign.retention import Retention
from runner.campaign.session import Session, work_off
from runner.campaign.stacks import as_stack, load_present, load_saved, ready_without_engine, with_images
from runner.config.choice import Choice, choose
from runner.config.options import MatrixOptions
from runner.errors import SetupError, UsageError
from runner.guests.saved_images import SavedImages
from runner.images.setup import prepare
from runner.model.implementation import Implementation
from runner.model.job import Job
from runner.model.result import Result
from runner.plan import runs
from runner.store import RunFolder
from runner.terminal.tables import RunWatch
from runner.units import format_count


def run_matrix(options: MatrixOptions, *, out: Console, err: Console) -> dict[Job, Result]:
    """Run the selected jobs that have no result yet. Returns all results of the selection, also of earlier calls."""
    path = runs.run_path(options.name)
    clock = clocks.chosen(options.clock, path)
    charge = clocks.charge(clock, options.cpu_model, path)
    options.parsed_pause()  # an invalid value is refused before anything is built
    saved = _saved(options, clock)
    choice = chosen(options, path)
    for sentence in choice.doubts:
        out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    place = _place(choice, clock, options, saved)
    place.require(choice)
    place.width(options.lanes)
    if saved is not None:
        ready = ready_without_engine(_images(choice), saved)
    else:
        ready = prepare(
            _images(choice),
            assume_yes=options.yes,
            extra_cas=options.extra_cas,
            console=err,
            guests=clock != clocks.REAL,
        )
    new_run = runs.new_run(
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
    with Session.open(path, clocks.with_clock(new_run, clock, cpu_charge=charge), options) as session:
        session.announce(out)
        for name, part in clocks.parts(session.folder.run, session.todo):
            if len(part) < len(session.todo):
                out.print(f"{format_count(len(part), 'job')} in {name} time:")
            _execute(session, choice, part, _place(choice, name, options, saved), out=out)
    results = session.results()
    session.show(results, out)
    return results


def _place(choice: Choice, clock: str, options: MatrixOptions, saved: SavedImages | None) -> Place:
    """Where the jobs of `clock` run."""
    local = place_of(choice, clock, saved)
    if options.on is None:
        if options.store:
            raise UsageError("--store is only for workers: add --on, or leave out --store.")
        return local
    from runner.campaign.worker_place import WorkerPlace  # noqa: PLC0415 - it needs Dask: optional, and slow to import

    return WorkerPlace.at(local, options.on, spread=options.spread, store=options.store)


def chosen(options: MatrixOptions, path: Path) -> Choice:
    """The selection of the options, for a new run or for the stored run at `path`. Raises UsageError."""
    if options.rootless is not None:
        catalog = load_saved(options.implementations, SavedImages.open(options.rootless))
    else:
        catalog = with_images(load_present(options.implementations), options.images)
    return choose(options, catalog, RunFolder.open(path).run if (path / "run.json").is_file() else None)


def _saved(options: MatrixOptions, clock: str) -> SavedImages | None:
    """The images of --rootless. Raises UsageError for options that exclude --rootless."""
    if options.rootless is None:
        return None
    if clock != clocks.VIRTUAL:
        raise UsageError(f"--rootless: only jobs in virtual time run without Docker; add --clock {clocks.VIRTUAL}.")
    if options.on is not None:
        raise UsageError("--on: workers use Docker; leave out --on or --rootless.")
    if options.images:
        raise UsageError(
            "--image: with --rootless, images come only from the archives; leave out --image or --rootless."
        )
    return SavedImages.open(options.rootless)


def _images(choice: Choice) -> list[Implementation]:
    """The stacks and middleboxes whose images are needed. For a variant, this is its base, which has the same image."""
    catalog, selection = choice.catalog, choice.selection
    if not (selection.servers and selection.clients):
        missing = ", ".join(stack.image for stack in catalog.implementations.values())
        raise SetupError(f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`.")
    beside = [name for record in choice.records.values() for name in record.beside_stacks]
    stacks = [catalog.implementations[name] for name in (*selection.servers, *selection.clients, *beside)]
    names = dict.fromkeys(stack.variant_of or stack.name for stack in stacks)
    boxes = [catalog.middleboxes[via] for via in selection.vias if via]
    bases = dict.fromkeys(box.variant_of or box.name for box in boxes)
    return [
        *(catalog.implementations[name] for name in names),
        *(as_stack(catalog.middleboxes[name]) for name in bases if name not in names),
    ]


def _execute(session: Session, choice: Choice, todo: tuple[Job, ...], place: Place, *, out: Console) -> None:
    """Open the place, then run the jobs there."""
    options, width = session.options, place.width(session.options.lanes)
    with place.open(session.folder, todo, width, out) as opened, RunWatch(out) as watch:
        for (name, role), reason in opened.not_compliant.items():
            out.print(f"[yellow]{name} as {role.value} does not keep the contract: {reason}[/yellow]")
        campaign = Campaign(
            folder=session.folder,
            cases=choice.catalog.cases,
            todo=todo,
            presets=runs.presets(choice.catalog, todo, opened.not_compliant),
            deployment=opened.deployment,
            width=width,
            retention=Retention(options.keep_captures),
            observer=watch,
            pause=options.parsed_pause(),
        )
        work_off(campaign)
