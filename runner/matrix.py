"""`run`, from options to results: set-up, plan, probe, lanes, loop. What holds the stages together and nothing else."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from runner import campaign, plan, terminal
from runner.catalog import IMPLEMENTATIONS, Catalog
from runner.deploy.emulated import Emulated
from runner.deploy.setup import prepare
from runner.errors import InterruptedRunError, SetupError, UsageError
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import Run
from runner.pause import Pause
from runner.retention import Retention
from runner.run import Campaign
from runner.signals import stopping
from runner.stacks import load_present
from runner.store import RunFolder
from runner.terminal import RunWatch
from runner.units import format_duration, format_size
from runner.variants import Placed, doubts, parse_all, place, with_variants_of
from runner.width import Width


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """The options of `run` as they were typed."""

    implementations: Path = IMPLEMENTATIONS
    servers: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    iterations: int | None = None
    variants: tuple[str, ...] = ()
    seed: int | None = None
    shuffle: bool = False
    name: str | None = None
    lanes: str = "1"
    retry: tuple[str, ...] = ()
    pause: str | None = None
    timeout_scale: float = 1.0
    keep_captures: str = "median"
    yes: bool = False
    extra_cas: Path | None = None


def run_matrix(options: MatrixOptions, *, out: Console, err: Console) -> dict[Job, Result]:
    """Run what is left of the selection. Returns all results of the selection, earlier ones included."""
    catalog = load_present(options.implementations)
    width = Width.parse(options.lanes)
    if options.pause:
        Pause.parse(options.pause)  # refused before anything is built
    path = campaign.run_path(options.name)
    placed = _selection(options, catalog, path, out)
    catalog, selection = placed.catalog, placed.selection
    if not (selection.servers and selection.clients):
        missing = ", ".join(stack.image for stack in catalog.implementations.values())
        raise SetupError(f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`.")
    chosen = (catalog.implementations[name] for name in (*selection.servers, *selection.clients))
    stacks = [catalog.implementations[name] for name in dict.fromkeys(one.variant_of or one.name for one in chosen)]
    ready = prepare(stacks, assume_yes=options.yes, extra_cas=options.extra_cas, console=err)
    wanted = campaign.new_run(
        path,
        catalog,
        selection,
        seed=options.seed,
        shuffled=options.shuffle,
        image_ids=ready.ids,
        image_digests=ready.digests,
        timeout_scale=options.timeout_scale,
    )
    folder = RunFolder(path, wanted)
    with folder.locked():
        folder, order = _open(path, wanted, options)
        done = folder.results()
        retry = frozenset(Outcome(name) for name in options.retry)
        todo = plan.remaining(order, done, retry)
        if todo:
            done |= _execute(folder, catalog, todo, options=options, width=width, out=out)
        else:
            out.print(f"Nothing is left to run: {len(order)} jobs of {path} are done.")
    out.print(terminal.summary_table({job: done[job] for job in order if job in done}, folder.run.cases))
    return {job: done[job] for job in order if job in done}


def _selection(options: MatrixOptions, catalog: Catalog, path: Path, out: Console) -> Placed:
    """What is selected, with its variants; without any selection on a run that exists, what that run has."""
    asked = parse_all(options.variants, catalog.implementations)
    servers, clients, cases = options.servers, options.clients, options.cases
    if (path / "run.json").is_file():
        run = RunFolder.open(path).run
        catalog = with_variants_of(catalog, run)
        if not (servers or clients or cases or options.iterations):
            servers, clients, cases = run.servers, run.clients, tuple(run.cases)
    selection = campaign.select(catalog, servers=servers, clients=clients, cases=cases, iterations=options.iterations)
    for variant in asked:
        for sentence in doubts(variant, catalog.implementations[variant.stack]):
            out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    return place(catalog, selection, asked)


def _open(path: Path, wanted: Run, options: MatrixOptions) -> tuple[RunFolder, tuple[Job, ...]]:
    """The run folder, made or extended, and the jobs of it that this call asks for."""
    if not (path / "run.json").is_file():
        return RunFolder.create(path, wanted), wanted.order
    folder = RunFolder.open(path)
    if options.seed is not None and options.seed != folder.run.seed:
        raise UsageError(f"--seed {options.seed}: {path} began with seed {folder.run.seed}, and keeps it.")
    before = folder.run
    if not (options.servers or options.clients or options.cases or options.iterations):
        wanted = campaign.no_wider(before, wanted)
    extended = campaign.extend_run(folder, wanted)
    if extended != before:
        folder.save_run(extended)
    asked = set(wanted.order)
    return folder, tuple(job for job in extended.order if job in asked)


def _execute(
    folder: RunFolder,
    catalog: Catalog,
    todo: tuple[Job, ...],
    *,
    options: MatrixOptions,
    width: Width,
    out: Console,
) -> dict[Job, Result]:
    """Probe, run, and say how to go on when it was interrupted."""
    run = folder.run
    cost = plan.estimate(todo, run.cases)
    out.print(
        f"{len(todo)} jobs into {folder.path}, seed {run.seed}, about {format_duration(cost.seconds)} with one lane, "
        f"{format_size(cost.bytes_default)} on disk.",
        soft_wrap=True,
    )
    pause = Pause.parse(options.pause) if options.pause else None
    with Emulated.open(run, lanes=width.most) as deployment:
        not_compliant = deployment.probe(folder.path / "compliance.json", todo)
        for (name, role), reason in not_compliant.items():
            out.print(f"[yellow]{name} as {role.value} does not keep the contract: {reason}[/yellow]")
        with RunWatch(out) as watch:
            work = Campaign(
                folder=folder,
                cases=catalog.cases,
                todo=todo,
                presets=campaign.presets(catalog, todo, not_compliant),
                deployment=deployment,
                width=width,
                retention=Retention(options.keep_captures),
                watch=watch,
                pause=pause,
            )
            try:
                with stopping(work):
                    results = work.execute()
            except SetupError as error:
                raise SetupError(f"{error} {_how_to_resume(folder)}") from error
    if work.stopped:
        raise InterruptedRunError(f"Stopped after {len(results)} of {len(todo)} jobs. {_how_to_resume(folder)}")
    return results


def _how_to_resume(folder: RunFolder) -> str:
    return f"To go on: ./bentpipe run --run {folder.name if folder.path.parent == campaign.LOGS else folder.path}"
