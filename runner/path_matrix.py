"""`run --path`, from options to results: set-up, plan, lanes, loop. As `matrix.py` does for pairs."""

import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from runner import campaign, plan, terminal
from runner.campaign import VERSION, host_facts
from runner.deploy.path_emulated import PathEmulated
from runner.deploy.setup import prepare
from runner.errors import InterruptedRunError, SetupError, UsageError
from runner.matrix import MatrixOptions, how_to_resume
from runner.model.job import Job
from runner.model.path import ORIGIN, PathEntry
from runner.model.result import Finding, Outcome, Result
from runner.model.run import ImplementationRecord, Run
from runner.paths.judge import analyse_path
from runner.paths.material import WORKLOAD_IMAGE, images, material
from runner.paths.selection import (
    PathOptions,
    PathSelection,
    as_stack,
    load_path_catalog,
    refusal,
    select_paths,
)
from runner.pause import Pause
from runner.retention import Retention
from runner.run import Campaign
from runner.signals import stopping
from runner.store import RunFolder
from runner.terminal import RunWatch
from runner.units import format_duration, format_size
from runner.width import Width


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The run as stored, and the jobs of it that this call asks for."""

    folder: RunFolder
    order: tuple[Job, ...]


def is_path_run(options: MatrixOptions, paths: PathOptions) -> bool:
    """Whether the options ask for paths: by name, or by a run that has them. Raises UsageError for a mixture."""
    pairs = options.servers or options.clients or options.cases
    folder = campaign.run_path(options.name)
    stored = RunFolder.open(folder).run if options.name and (folder / "run.json").is_file() else None
    if pairs and paths.given:
        raise UsageError("--path, --workload, --link, --size and --loss don't go with --server, --client or --case.")
    if stored is not None and stored.paths and pairs:
        raise UsageError(f"{folder} is a run of paths: pairs need another --run.")
    if stored is not None and not stored.paths and paths.given:
        raise UsageError(f"{folder} is a run of pairs: paths need another --run.")
    return paths.given or (stored is not None and bool(stored.paths))


def run_paths(options: MatrixOptions, asked: PathOptions, *, out: Console, err: Console) -> dict[Job, Result]:
    """Run what is left of the selection. Returns all results of the selection, earlier ones included."""
    width = Width.parse(options.lanes)
    if options.pause:
        Pause.parse(options.pause)
    path = campaign.run_path(options.name)
    selection = _selection(options, asked, path)
    clients = images(selection.cases)
    stacks = [*(as_stack(entry) for entry in selection.paths.values()), *clients]
    ready = prepare(stacks, assume_yes=options.yes, extra_cas=options.extra_cas, console=err)
    wanted = path_run(path, selection, options, ids=ready.ids)
    folder = RunFolder(path, wanted)
    with folder.locked():
        planned = _open(path, wanted, options)
        folder, order = planned.folder, planned.order
        done = folder.results()
        todo = plan.remaining(order, done, frozenset(Outcome(name) for name in options.retry))
        if todo:
            done |= _execute(folder, todo, options=options, width=width, out=out)
        else:
            out.print(f"Nothing is left to run: {len(order)} jobs of {path} are done.")
    out.print(terminal.summary_table({job: done[job] for job in order if job in done}, folder.run.cases))
    return {job: done[job] for job in order if job in done}


def _selection(options: MatrixOptions, asked: PathOptions, path: Path) -> PathSelection:
    """What is selected; without any selection on a run that exists, what that run has."""
    if (path / "run.json").is_file() and not (asked.given or asked.variants):
        run = RunFolder.open(path).run
        cases = run.cases
        if options.iterations:
            cases = {name: replace(case, iterations=options.iterations) for name, case in cases.items()}
        return PathSelection(paths={name: run.paths[name] for name in run.clients}, cases=cases)
    return select_paths(load_path_catalog(options.implementations), asked)


def path_run(path: Path, selection: PathSelection, options: MatrixOptions, *, ids: dict[str, str]) -> Run:
    """The record of a run of paths that begins now. `ids` of the images by name; empty when nothing is to run."""
    seed = secrets.randbits(31) if options.seed is None else options.seed
    scale = options.timeout_scale
    cases = {name: replace(case, timeout=case.timeout * scale) for name, case in selection.cases.items()}
    chosen = plan.Selection(servers=(ORIGIN,), clients=tuple(selection.paths), cases=tuple(cases))
    order = plan.jobs(chosen, cases, shuffle_seed=seed if options.shuffle else None)
    return Run(
        name=path.name,
        started_unix_s=time.time(),
        bentpipe_version=VERSION,
        host=host_facts(),
        seed=seed,
        shuffled=options.shuffle,
        clients=tuple(selection.paths),
        servers=(ORIGIN,),
        cases=cases,
        implementations={
            ORIGIN: ImplementationRecord(
                name=ORIGIN, version="", url="", image=WORKLOAD_IMAGE, image_id=ids.get(WORKLOAD_IMAGE, "")
            ),
            **{name: _record(entry, ids.get(name, "")) for name, entry in selection.paths.items()},
        },
        order=order,
        options={"timeout_scale": f"{scale:g}"},
        paths=selection.paths,
    )


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


def _open(path: Path, wanted: Run, options: MatrixOptions) -> _Plan:
    """The run folder, made or extended."""
    if not (path / "run.json").is_file():
        return _Plan(folder=RunFolder.create(path, wanted), order=wanted.order)
    folder = RunFolder.open(path)
    if options.seed is not None and options.seed != folder.run.seed:
        raise UsageError(f"--seed {options.seed}: {path} began with seed {folder.run.seed}, and keeps it.")
    extended = replace(campaign.extend_run(folder, wanted), paths={**wanted.paths, **folder.run.paths})
    if extended != folder.run:
        folder.save_run(extended)
    asked = set(wanted.order)
    return _Plan(folder=folder, order=tuple(job for job in extended.order if job in asked))


def presets(run: Run, todo: tuple[Job, ...]) -> dict[Job, Result]:
    """Verdicts that need no run: what a path doesn't carry."""
    found = {}
    for job in todo:
        if reason := refusal(run.paths[job.client], run.cases[job.case]):
            finding = Finding(
                code="declared-unsupported",
                requirement="The path carries what the workload sends.",
                expected="support",
                actual=reason,
            )
            found[job] = Result(
                server=job.server,
                client=job.client,
                case=job.case,
                iteration=job.iteration,
                outcome=Outcome.UNSUPPORTED,
                findings=(finding,),
                started_unix_s=time.time(),
                captures_kept=False,
            )
    return found


def _execute(
    folder: RunFolder, todo: tuple[Job, ...], *, options: MatrixOptions, width: Width, out: Console
) -> dict[Job, Result]:
    """Run, and say how to go on when it was interrupted."""
    run = folder.run
    cost = plan.estimate(todo, run.cases)
    out.print(
        f"{len(todo)} jobs into {folder.path}, seed {run.seed}, about {format_duration(cost.seconds)} with one lane, "
        f"{format_size(cost.bytes_default)} on disk.",
        soft_wrap=True,
    )
    pause = Pause.parse(options.pause) if options.pause else None
    with PathEmulated.open(run, lanes=width.most, material=material) as deployment, RunWatch(out) as watch:
        work = Campaign(
            folder=folder,
            cases=dict.fromkeys(run.cases),
            todo=todo,
            presets=presets(run, todo),
            deployment=deployment,
            width=width,
            retention=Retention(options.keep_captures),
            watch=watch,
            pause=pause,
            judge=analyse_path,
        )
        try:
            with stopping(work):
                results = work.execute()
        except SetupError as error:
            raise SetupError(f"{error} {how_to_resume(folder)}") from error
    if work.stopped:
        raise InterruptedRunError(f"Stopped after {len(results)} of {len(todo)} jobs. {how_to_resume(folder)}")
    return results
