"""One call of `run`: it makes, resumes or extends a run folder, and runs its jobs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from runner.campaign.campaign import Campaign
from runner.campaign.reuse import take_over
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
from runner.units import format_count, format_duration, format_size


@dataclass(frozen=True, kw_only=True)
class Session:
    """The jobs that one call selects in a new, resumed or extended run. Construct with `open`."""

    folder: RunFolder
    jobs: tuple[Job, ...]  # all jobs that the call selects
    todo: tuple[Job, ...]  # the selected jobs without a result
    reused: int  # number of results that were taken over from another run
    options: MatrixOptions

    @classmethod
    @contextmanager
    def open(cls, path: Path, new_run: Run, options: MatrixOptions) -> Iterator["Session"]:
        """Make, resume or extend the run folder `path`, and lock it meanwhile. Raises UsageError.

        A stored run is extended by `new_run` only when the options select something.
        """
        with RunFolder(path, new_run).locked():
            source = None if options.reuse is None else RunFolder.open(runs.run_path(options.reuse))
            if source is not None and options.seed is None:
                new_run = replace(new_run, seed=source.run.seed)  # losses and contents of all cells stay comparable
            folder, jobs = _open(path, new_run, options)
            reused = 0 if source is None else take_over(folder, source)
            todo = remaining(jobs, folder.results(), frozenset(Outcome(name) for name in options.retry))
            yield cls(folder=folder, jobs=jobs, todo=todo, reused=reused, options=options)

    def announce(self, out: Console) -> None:
        """Print how many jobs are left, how long they take and how much disk they need."""
        path = self.folder.path
        if self.options.reuse is not None:
            out.print(
                f"{self.reused} results of {self.options.reuse} are taken over, because nothing changed for them."
            )
        if not self.todo:
            out.print(f"Nothing is left to run: {len(self.jobs)} jobs of {path} are done.")
            return
        cost = estimate(self.todo, self.folder.run.cases)
        out.print(
            f"{format_count(len(self.todo), 'job')} into {path}, seed {self.folder.run.seed}, "
            f"about {format_duration(cost.seconds)} one after the other, "
            f"{format_size(cost.disk(self.options.keep_captures))} on disk.",
            soft_wrap=True,
        )

    def results(self) -> dict[Job, Result]:
        """Stored results of the selected jobs, also results of earlier calls."""
        stored = self.folder.results()
        return {job: stored[job] for job in self.jobs if job in stored}

    def show(self, results: Mapping[Job, Result], out: Console) -> None:
        """Print the matrix of these results."""
        if self.options.markdown:
            print(markdown_matrix(results, self.folder.run))
        else:
            print_matrix(out, results, self.folder.run)


def _open(path: Path, new_run: Run, options: MatrixOptions) -> tuple[RunFolder, tuple[Job, ...]]:
    """Make or extend the run folder. Returns the folder and the jobs that this call selects."""
    if not (path / "run.json").is_file():
        return RunFolder.create(path, new_run), new_run.order
    folder = RunFolder.open(path)
    if options.seed is not None and options.seed != folder.run.seed:
        raise UsageError(f"--seed {options.seed}: {path} began with seed {folder.run.seed}, and keeps it.")
    if not options.selects:
        new_run = runs.no_wider(folder.run, new_run)
    extended = runs.extend_run(folder, new_run)
    if extended != folder.run:
        folder.save_run(extended)
    selected = set(new_run.order)
    return folder, tuple(job for job in extended.order if job in selected)


def work_off(work: Campaign) -> dict[Job, Result]:
    """Run the jobs; after an interruption, print the command that resumes the run."""
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
