"""The stages of `run` in their order: set-up, plan, probe, place, loop. Also what `--reuse` and `--repeats` need."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from runner.campaign.stacks import as_stack, chosen, ready
from runner.errors import BudgetError, InterruptedRunError, SetupError, UsageError
from runner.model.deployment import VIRTUAL, estimate
from runner.model.result import Artifacts, Evidence, JobVerdict, Outcome, Result
from runner.model.run import Job, Retention, Run
from runner.model.stack import Implementation
from runner.places.guests.processes import SavedImages
from runner.places.place import Place, Say, place_of
from runner.plan import jobs as runs
from runner.plan.catalog import Selection
from runner.plan.jobs import remaining
from runner.plan.options import MatrixOptions
from runner.store.runs import RunFolder, guest_pace, load_evidence, own_logs
from runner.terminal.printing import RunWatch, markdown_matrix, print_matrix
from runner.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from runner.campaign.campaign import Campaign
    from runner.decode.decode import Difference

# Imports inside functions are of the judge and the decoder: they are slow, and a complete run needs none of them.

# Takes over results of an earlier run into a new run, for jobs whose images, case and link have not changed.

_OF_THE_WHOLE_RUN = frozenset(("seed", "host", "clock"))  # conditions that `_unchanged` does not compare job by job


def take_over(folder: RunFolder, source: RunFolder) -> int:
    """Copy results of `source` into `folder`, for jobs without a result whose images, case and link are unchanged.
    Returns the number of copied results; it is 0 when the runs differ in a condition such as host, clock or order.
    Files are hard links where the file system allows it; `result.json` is a new file that names the run in which the
    job ran.
    """
    from runner.compare.conditions import differences  # noqa: PLC0415

    if not _OF_THE_WHOLE_RUN.isdisjoint(differences(source.run, folder.run)):
        return 0
    taken = list(_unchanged(folder.run, source, frozenset(folder.verdicts())))
    for job, result in taken:
        artifacts = folder.artifacts(job)
        shutil.rmtree(artifacts.folder, ignore_errors=True)  # the folder of a job that was interrupted
        shutil.copytree(source.artifacts(job).folder, artifacts.folder, copy_function=_link)
        artifacts.result.unlink()
        folder.save_result(replace(result, reused_from=result.reused_from or source.name))
    return len(taken)


def _unchanged(run: Run, source: RunFolder, done: frozenset[Job]) -> Iterator[tuple[Job, Result]]:
    results = source.results()
    for job in run.order:
        result = results.get(job)
        if job in done or result is None or result.outcome is Outcome.ERROR:
            continue
        images = _image_ids(run, job)
        if not all(images) or images != _image_ids(source.run, job):
            continue
        case = source.run.cases[job.case_link]
        if not case.asks_the_same(run.case(job)) or source.run.protocol(job) != run.protocol(job):
            continue
        try:
            source.own(job)
        except UsageError:  # the folder has a symbolic link or a device file; bentpipe makes neither
            continue
        yield job, result


def _image_ids(run: Run, job: Job) -> tuple[str, ...]:
    """Image ids of everything that takes part in a job; empty where unknown."""
    names = [name for name in (job.server, job.client, job.via) if name]
    known = [run.implementations.get(name) for name in names]
    return tuple("" if stack is None else stack.image_id for stack in known)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


# One call of `run`: it makes, resumes or extends a run folder, and runs its jobs.


@dataclass(frozen=True, kw_only=True)
class Session:
    """The jobs that one call selects in a new, resumed or extended run. Construct with `open`."""

    folder: RunFolder
    jobs: tuple[Job, ...]  # all jobs that the call selects
    todo: tuple[Job, ...]  # the selected jobs without a result
    stored: Mapping[Job, JobVerdict]  # of all results of the run when the session began
    reused: int  # number of results that were taken over from another run
    options: MatrixOptions

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, new_run: Run, options: MatrixOptions, stored: RunFolder | None = None
    ) -> Iterator["Session"]:
        """Make, resume or extend the run folder `path`, and lock it meanwhile. `stored`: the run that was read there.
        Raises UsageError.

        A stored run is extended by `new_run` only when the options select something.
        """
        with RunFolder(path, new_run).locked():
            source = None if options.reuse is None else RunFolder.open(runs.run_path(options.reuse))
            if source is not None and options.seed is None:
                new_run = replace(new_run, seed=source.run.seed)  # losses and contents of all cells stay comparable
            folder, jobs = _open(path, new_run, options, stored)
            reused = 0 if source is None else take_over(folder, source)
            stored_results = folder.verdicts()
            todo = remaining(jobs, stored_results, frozenset(Outcome(name) for name in options.retry))
            yield cls(folder=folder, jobs=jobs, todo=todo, stored=stored_results, reused=reused, options=options)

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
        run = self.folder.run
        cost, seconds = estimate(self.todo, run.cases), 0.0
        for clock, jobs in runs.parts_by_clock(run, self.todo):
            part = estimate(jobs, run.cases, guest_pace(runs.LOGS) if clock == VIRTUAL else {})
            seconds += part.guest_seconds if clock == VIRTUAL else part.seconds
        disk = cost.disk(self.options.keep_captures) + own_logs(runs.LOGS, self.todo, self.folder.run.cases)
        out.print(
            f"{format_count(len(self.todo), 'job')} into {path}, seed {self.folder.run.seed}, "
            f"about {format_duration(seconds)} one after the other, "
            f"{format_size(disk)} on disk.",
            soft_wrap=True,
        )

    def verdicts(self) -> dict[Job, JobVerdict]:
        """Stored verdicts of the selected jobs, also verdicts of earlier calls."""
        new = {job: result for job in self.todo if (result := self.folder.result(job)) is not None}
        results = {**self.stored, **new}
        return {job: results[job] for job in self.jobs if job in results}

    def show(self, results: Mapping[Job, JobVerdict], out: Console) -> None:
        """Print the matrix of these results."""
        if self.options.markdown:
            print(markdown_matrix(results, self.folder.run))
        else:
            print_matrix(out, results, self.folder.run)


def _open(
    path: Path, new_run: Run, options: MatrixOptions, stored: RunFolder | None
) -> tuple[RunFolder, tuple[Job, ...]]:
    """Make or extend the run folder. Returns the folder and the jobs that this call selects."""
    # Under the lock: another call may have made or extended the run meanwhile.
    folder = RunFolder.stored(path) if stored is None else stored.refreshed()
    if folder is None:
        return RunFolder.create(path, new_run), new_run.order
    if options.seed is not None and options.seed != folder.run.seed:
        raise UsageError(f"--seed {options.seed}: {path} began with seed {folder.run.seed}, and keeps it.")
    if not options.selects:
        new_run = runs.no_wider(folder.run, new_run)
    extended = runs.extend_run(folder, new_run)
    if extended != folder.run:
        folder.save_run(extended)
    selected = set(new_run.order)
    return folder, tuple(job for job in extended.order if job in selected)


def work_off(work: "Campaign") -> dict[Job, Result]:
    """Run the jobs; after an interruption, print the command that resumes the run."""
    from runner.campaign.campaign import stopping  # noqa: PLC0415

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


# Compares the packets of two runs with the same jobs and the same seed, and finds the first packet that differs.


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The comparison of a job that both runs have. `same` is None when one run has no hashes of the job, for example
    because the job ended as an error."""

    job: Job
    same: bool | None
    difference: "Difference | None" = None  # None also when the captures are not kept


def again(options: MatrixOptions, run: Run) -> MatrixOptions:
    """The options for a second run with the jobs and the seed of `run`."""
    options = replace(options, name=f"{options.name}-again", seed=run.seed, clock=run.clock)
    if options.selects:
        return options
    most = max(job.iteration for job in run.order)
    cases = tuple(dict.fromkeys(record.declared or record.case for record in run.cases.values()))
    return replace(options, servers=run.servers, clients=run.clients, cases=cases, iterations=most)


def compare_packets(before: RunFolder, after: RunFolder) -> Iterator[Repeat]:
    """Compare every job that ran in both runs, in the order of `before`."""
    done, again = before.results(), after.results()
    for job in before.run.order:
        folders = before.artifacts(job), after.artifacts(job)
        if job in done and job in again and all(folder.evidence.is_file() for folder in folders):
            yield compare_job(job, *folders)


def compare_job(job: Job, before: Artifacts, after: Artifacts) -> Repeat:
    """Compare one job by the hashes of its captures. When the hashes differ, compare the packets of the captures."""
    from runner.decode.decode import first_difference  # noqa: PLC0415

    first, second = (packet_hashes(load_evidence(folder)) for folder in (before, after))
    if not first or not second:
        return Repeat(job=job, same=None)
    if first == second:
        return Repeat(job=job, same=True)
    captures = {
        "client": (before.client_capture, after.client_capture),
        "server": (before.server_capture, after.server_capture),
    }
    differences = [
        difference
        for side, paths in captures.items()
        if all(path.is_file() for path in paths) and (difference := first_difference(side, *paths)) is not None
    ]
    return Repeat(
        job=job, same=False, difference=min(differences, key=lambda difference: difference.time, default=None)
    )


def packet_hashes(evidence: Evidence | None) -> dict[str, str]:
    """SHA-256 of the capture of each endpoint, by role; empty for a job in real time."""
    return evidence.guest.captures if evidence is not None and evidence.guest is not None else {}


def sentences(repeats: Sequence[Repeat]) -> Iterator[str]:
    """How many jobs had the same packets twice and, for each job with other packets, the first packet that differs."""
    known = [repeat for repeat in repeats if repeat.same is not None]
    yield f"{sum(repeat.same is True for repeat in known)} of {len(known)} jobs had the same packets in both runs."
    if len(known) < len(repeats):
        yield f"{len(repeats) - len(known)} more jobs can't be compared: captures of one of the two runs are missing."
    for repeat in known:
        if repeat.same is False:
            yield f"{repeat.job}: {_sentence(repeat.difference)}"


def _sentence(difference: "Difference | None") -> str:
    if difference is None:
        return "the packets differ; its captures, which would show the difference, were not kept"
    where = f"packet {difference.number} at the {difference.side}, {difference.time:.6f} s after the first"
    return f"{where}: {difference.what}"


# The stages of `run` in their order: set-up, plan, probe, lanes, loop.


def run_matrix(options: MatrixOptions, *, out: Console, err: Console) -> dict[Job, JobVerdict]:
    """Run the selected jobs that have no result yet. Returns all verdicts of the selection, also of earlier calls."""
    path = runs.run_path(options.name)
    stored = RunFolder.stored(path)
    clock = runs.chosen_clock(options.clock, stored)
    charge = runs.charge_of_run(clock, options.cpu_model, stored)
    options.parsed_pause()  # an invalid value is refused before anything is built
    saved = _saved(options, clock)
    selection = chosen(options, stored, saved)
    for sentence in selection.doubts:
        out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)
    say = partial(out.print, soft_wrap=True, markup=False)
    place = _place(selection, clock, options, saved, say)
    place.refuse(selection)
    place.width(options.lanes)
    images = ready(_images(selection), options, clock=clock, console=err, saved=saved)
    load = "" if selection.real else runs.busy(clock)
    new_run = runs.new_run(
        path,
        selection,
        clock=clock,
        cpu_charge=charge,
        busy_host=bool(load),
        seed=options.seed,
        shuffled=options.shuffle,
        image_ids=images.ids,
        image_digests=images.digests,
    )
    with Session.open(path, new_run, options, stored) as session:
        session.announce(out)
        if load:
            out.print(load, soft_wrap=True, markup=False)
        for name, part in runs.parts_by_clock(session.folder.run, session.todo):
            if len(part) < len(session.todo):
                out.print(f"{format_count(len(part), 'job')} in {name} time:")
            where = place if name == clock else _place(selection, name, options, saved, say)
            _execute(session, selection, part, where, out=out)
    results = session.verdicts()
    session.show(results, out)
    return results


def _place(selection: Selection, clock: str, options: MatrixOptions, saved: SavedImages | None, say: Say) -> Place:
    """Where the jobs of `clock` run."""
    local = place_of(clock, links=selection.real, say=say, saved=saved)
    if options.on is None:
        if options.store:
            raise UsageError("--store is only for workers: add --on, or leave out --store.")
        return local
    from runner.places.workers.workers import WorkerPlace  # noqa: PLC0415 - it needs Dask: optional, and slow to import

    return WorkerPlace.at(local, options.on, spread=options.spread, store=options.store)


def _saved(options: MatrixOptions, clock: str) -> SavedImages | None:
    """The images of --rootless. Raises UsageError for options that exclude --rootless."""
    if options.rootless is None:
        return None
    if clock != VIRTUAL:
        raise UsageError(f"--rootless: only jobs in virtual time run without Docker; add --clock {VIRTUAL}.")
    if options.on is not None:
        raise UsageError("--on: workers use Docker; leave out --on or --rootless.")
    if options.images:
        raise UsageError(
            "--image: with --rootless, images come only from the archives; leave out --image or --rootless."
        )
    return SavedImages.open(options.rootless)


def _images(selection: Selection) -> list[Implementation]:
    """The stacks and middleboxes whose images are needed. For a variant, this is its base, which has the same image."""
    catalog = selection.catalog
    if not (selection.servers and selection.clients):
        missing = ", ".join(stack.image for stack in catalog.implementations.values())
        raise SetupError(f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`.")
    beside = [name for record in selection.cases.values() for name in record.beside_stacks]
    stacks = [catalog.implementations[name] for name in (*selection.servers, *selection.clients, *beside)]
    names = dict.fromkeys(stack.variant_of or stack.name for stack in stacks)
    boxes = [catalog.middleboxes[via] for via in selection.vias if via]
    bases = dict.fromkeys(box.variant_of or box.name for box in boxes)
    return [
        *(catalog.implementations[name] for name in names),
        *(as_stack(catalog.middleboxes[name]) for name in bases if name not in names),
    ]


def _execute(session: Session, selection: Selection, todo: tuple[Job, ...], place: Place, *, out: Console) -> None:
    """Open the place, then run the jobs there."""
    from runner.campaign.campaign import Campaign  # noqa: PLC0415

    folder, options = session.folder, session.options
    with place.open(folder.run, place.width(options.lanes)):
        not_compliant = place.probe(folder.run, folder.path / "compliance.json", todo)
        with RunWatch(out) as watch:
            for (name, role), reason in not_compliant.items():
                out.print(f"[yellow]{name} as {role.value} does not keep the contract: {reason}[/yellow]")
            campaign = Campaign(
                folder=folder,
                cases=selection.catalog.cases,
                todo=todo,
                verdicts_without_run=runs.verdicts_without_run(selection.catalog, todo, not_compliant),
                deployment=place.deployment(folder.run),
                width=place.width(options.lanes),
                retention=Retention(options.keep_captures),
                observer=watch,
                pause=options.parsed_pause(),
            )
            work_off(campaign)
