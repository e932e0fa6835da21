"""`run --path`, from options to results: set-up, plan, lanes, loop. As `matrix.py` does for pairs."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from runner.campaign.campaign import Campaign
from runner.campaign.retention import Retention
from runner.campaign.session import MatrixOptions, run_remaining, work_off
from runner.campaign.width import Width
from runner.config.path_material import BROWSER_IMAGE, WORKLOAD_IMAGE, images, material
from runner.config.path_selection import (
    PathOptions,
    PathSelection,
    as_stack,
    load_path_catalog,
    more_paths,
    refusal,
    select_paths,
    uncarried,
)
from runner.config.selection import Selection
from runner.errors import UsageError
from runner.images.setup import prepare
from runner.judge.crossing.path_judge import analyse_path
from runner.lanes.path_emulated import PathEmulated
from runner.model.job import Job
from runner.model.path import BROWSER, ORIGIN, PathEntry
from runner.model.result import Result
from runner.model.run import ImplementationRecord, Run
from runner.plan import runs
from runner.store import RunFolder
from runner.terminal.tables import RunWatch


def is_path_run(options: MatrixOptions, paths: PathOptions) -> bool:
    """Whether the options ask for paths: by name, or by a run that has them. Raises UsageError for a mixture."""
    pairs = options.servers or options.clients or options.cases
    folder = runs.run_path(options.name)
    stored = RunFolder.open(folder).run if options.name and (folder / "run.json").is_file() else None
    if pairs and paths.given:
        raise UsageError("--path, --workload, --size, --loss and --warm don't go with --server, --client or --case.")
    if stored is not None and stored.paths and pairs:
        raise UsageError(f"{folder} is a run of paths: pairs need another --run.")
    if stored is not None and not stored.paths and paths.given:
        raise UsageError(f"{folder} is a run of pairs: paths need another --run.")
    return paths.given or (stored is not None and bool(stored.paths))


def run_paths(options: MatrixOptions, asked: PathOptions, *, out: Console, err: Console) -> dict[Job, Result]:
    """Run what is left of the selection. Returns all results of the selection, earlier ones included."""
    if options.clock not in (None, "real"):
        raise UsageError(
            f"--clock {options.clock}: paths and pages run in real time only; leave out --clock or --path."
        )
    width = Width.parse(options.lanes)
    options.parsed_pause()  # refused before anything is built
    path = runs.run_path(options.name)
    selection, scale = choose(options, asked, path, out)
    clients = images(selection.cases)
    stacks = [*(as_stack(entry) for entry in selection.paths.values()), *clients]
    ready = prepare(stacks, assume_yes=options.yes, extra_cas=options.extra_cas, console=err)
    wanted = path_run(path, selection, replace(options, timeout_scale=scale), ids=ready.ids)
    return run_remaining(
        path,
        wanted,
        options,
        wider=asked.wider,
        execute=lambda folder, todo: _execute(folder, todo, options=options, width=width, out=out),
        out=out,
    )


def choose(options: MatrixOptions, asked: PathOptions, path: Path, out: Console) -> tuple[PathSelection, float]:
    """What is selected, and the scale of its time-outs. On a run that exists, what isn't named is what that run has."""
    catalog, scale = load_path_catalog(options.implementations), options.timeout_scale
    if (path / "run.json").is_file():
        run = RunFolder.open(path).run
        selection, scale = more_paths(catalog, asked, run), _timeout_scale(scale, run)
    else:
        selection = select_paths(catalog, asked)
    for sentence in uncarried(catalog, selection):
        out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    return selection, scale


def _timeout_scale(asked: float, run: Run) -> float:
    """That of the run. Raises UsageError when another one is asked for."""
    before = run.options.get("timeout_scale", "1")
    if asked != 1 and f"{asked:g}" != before:
        raise UsageError(f"--timeout-scale {asked:g}: {run.name} began with {before}, and keeps it.")
    return float(before)


def path_run(path: Path, selection: PathSelection, options: MatrixOptions, *, ids: dict[str, str]) -> Run:
    """The record of a run of paths that begins now. `ids` of the images by name; empty when nothing is to run."""
    ends = {WORKLOAD_IMAGE: ORIGIN, BROWSER_IMAGE: BROWSER}
    both = {
        ends[one.image]: ImplementationRecord(
            name=ends[one.image], version="", url="", image=one.image, image_id=ids.get(one.image, "")
        )
        for one in images(selection.cases)
    }
    records = {name: _record(entry, ids.get(name, "")) for name, entry in selection.paths.items()}
    run = runs.begin_run(
        path,
        Selection(servers=(ORIGIN,), clients=tuple(selection.paths), cases=tuple(selection.cases)),
        selection.cases,
        both | records,
        seed=options.seed,
        shuffled=options.shuffle,
        timeout_scale=options.timeout_scale,
    )
    kept = {name: selection.cases[name] for name in selection.kept}
    return replace(run, paths=selection.paths, cases={**run.cases, **kept})


def _record(entry: PathEntry, image_id: str) -> ImplementationRecord:
    return ImplementationRecord(
        name=entry.name,
        version=entry.version,
        url=entry.url,
        image=entry.image,
        image_id=image_id,
        variant_of=entry.variant_of,
        parameters=entry.parameters,
    )


def presets(run: Run, todo: tuple[Job, ...]) -> dict[Job, Result]:
    """Verdicts that need no run: what a path doesn't carry."""
    found = {}
    for job in todo:
        if reason := refusal(run.paths[job.client], run.cases[job.case]):
            found[job] = runs.unsupported(job, reason, requirement="The path carries what the workload sends.")
    return found


def _execute(
    folder: RunFolder, todo: tuple[Job, ...], *, options: MatrixOptions, width: Width, out: Console
) -> dict[Job, Result]:
    run, say = folder.run, partial(out.print, soft_wrap=True, markup=False)
    with PathEmulated.open(run, lanes=width.all, material=material, say=say) as deployment, RunWatch(out) as watch:
        return work_off(
            Campaign(
                folder=folder,
                cases=dict.fromkeys(run.cases),
                todo=todo,
                presets=presets(run, todo),
                deployment=deployment,
                width=width,
                retention=Retention(options.keep_captures),
                watch=watch,
                pause=options.parsed_pause(),
                judge=analyse_path,
            )
        )
