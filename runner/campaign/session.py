"""One call of `run`: a run folder that begins, goes on or grows, and the loop over it."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from runner.campaign.campaign import Campaign
from runner.campaign.signals import stopping
from runner.config.options import MatrixOptions
from runner.errors import BudgetError, InterruptedRunError, SetupError, UsageError
from runner.model.estimate import estimate
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import Run
from runner.plan import runs
from runner.plan.jobs import remaining
from runner.store import RunFolder
from runner.terminal.matrix import markdown_matrix, print_matrix
from runner.units import format_duration, format_size


def run_remaining(
    path: Path,
    wanted: Run,
    options: MatrixOptions,
    *,
    wider: bool,
    execute: Callable[[RunFolder, tuple[Job, ...]], dict[Job, Result]],
    out: Console,
) -> dict[Job, Result]:
    """Run what is left of `wanted` in the folder `path`. Returns all its results, earlier ones included.

    `wider`: whether a stored run is to get what `wanted` has beyond it, because the call selects something.
    """
    with RunFolder(path, wanted).locked():
        folder, order = _open(path, wanted, options, wider=wider)
        done = folder.results()
        todo = remaining(order, done, frozenset(Outcome(name) for name in options.retry))
        if todo:
            cost = estimate(todo, folder.run.cases)
            out.print(
                f"{len(todo)} jobs into {path}, seed {folder.run.seed}, about {format_duration(cost.seconds)} one by "
                f"one, {format_size(cost.disk(options.keep_captures))} on disk.",
                soft_wrap=True,
            )
            done |= execute(folder, todo)
        else:
            out.print(f"Nothing is left to run: {len(order)} jobs of {path} are done.")
    asked = {job: done[job] for job in order if job in done}
    if options.markdown:
        print(markdown_matrix(asked, folder.run))
    else:
        print_matrix(out, asked, folder.run)
    return asked


def _open(path: Path, wanted: Run, options: MatrixOptions, *, wider: bool) -> tuple[RunFolder, tuple[Job, ...]]:
    """The run folder, made or extended, and the jobs of it that this call asks for."""
    if not (path / "run.json").is_file():
        return RunFolder.create(path, wanted), wanted.order
    folder = RunFolder.open(path)
    if options.seed is not None and options.seed != folder.run.seed:
        raise UsageError(f"--seed {options.seed}: {path} began with seed {folder.run.seed}, and keeps it.")
    if not wider:
        wanted = runs.no_wider(folder.run, wanted)
    extended = runs.extend_run(folder, wanted)
    if extended != folder.run:
        folder.save_run(extended)
    asked = set(wanted.order)
    return folder, tuple(job for job in extended.order if job in asked)


def work_off(work: Campaign) -> dict[Job, Result]:
    """Run, and say how to go on when it was interrupted."""
    folder = work.folder
    how = f"To go on: ./bentpipe run --run {folder.name if folder.path.parent == runs.LOGS else folder.path}"
    try:
        with stopping(work):
            results = work.execute()
    except (BudgetError, SetupError) as error:
        raise type(error)(f"{error} {how}") from error
    if work.stopped:
        raise InterruptedRunError(f"Stopped after {len(results)} of {len(work.todo)} jobs. {how}")
    return results
