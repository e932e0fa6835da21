"""The stages of `run` in their order: set-up, plan, probe, place, loop. Also what `--reuse` and `--repeats` need."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from runner.errors import BudgetError, InterruptedRunError, SetupError
from runner.images.setup import consent, prepare
from runner.model.result import Artifacts, Evidence, JobVerdict, Outcome
from runner.model.run import REAL, Job, Retention, Run
from runner.paths import LOGS
from runner.places.place import Place, place_of
from runner.plan import jobs as runs
from runner.plan.catalog import Catalog, load_present
from runner.plan.choice import choose
from runner.plan.jobs import remaining
from runner.plan.options import MatrixOptions
from runner.store.runs import RunFolder, load_evidence, opened, run_path
from runner.terminal.printing import RunWatch, markdown_matrix, print_matrix
from runner.units import format_count

if TYPE_CHECKING:
    from runner.decode.decode import Difference

# Imports inside functions are of the judge and the decoder: they are slow, and a complete run needs none of them.

# Takes over results of an earlier run into a new run, for jobs whose images, case and link have not changed.


def take_over(folder: RunFolder, source: RunFolder) -> int:
    """Copy results of `source` into `folder`, for jobs without a result whose images, case and link are unchanged.
    Returns the number of copied results; it is 0 when the runs differ in a condition such as host, clock or order.
    Files are hard links where the file system allows it; `result.json` is a new file that names the run in which the
    job ran.
    """
    from runner.compare.conditions import unchanged  # noqa: PLC0415

    taken = list(unchanged(folder.run, source, frozenset(folder.verdicts())))
    for job, result in taken:
        artifacts = folder.artifacts(job)
        shutil.rmtree(artifacts.folder, ignore_errors=True)  # the folder of a job that was interrupted
        shutil.copytree(source.artifacts(job).folder, artifacts.folder, copy_function=_link)
        artifacts.result.unlink()
        folder.save_result(replace(result, reused_from=result.reused_from or source.name))
    return len(taken)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


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
    options = replace(options, name=f"{options.name}-again", seed=run.seed, clock=run.clock, yes=True)
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
    say = partial(out.print, soft_wrap=True, markup=False)
    path = run_path(options.name)
    stored = RunFolder.stored(path)
    source = None if options.reuse is None else RunFolder.open(run_path(options.reuse))
    clock = runs.chosen_clock(options.clock, stored)
    charge = runs.charge_of_run(clock, options.cpu_model, stored)
    runs.refuse_contradictions(options, clock)
    catalog = load_present(options.implementations, options.rootless, options.images)
    selection = choose(options, catalog, stored.run if stored else None)
    for sentence in selection.doubts:
        out.print(f"[yellow]{sentence}[/yellow]", soft_wrap=True)

    def place_for(clock: str) -> Place:
        local = place_of(clock, links=selection.real, say=say, saved=catalog.saved)
        if options.on is None:
            return local
        from runner.places.workers.workers import WorkerPlace  # noqa: PLC0415 - it needs Dask: optional, slow to import

        return WorkerPlace.at(local, options.on, spread=options.spread, store=options.store)

    place = place_for(clock)
    place.refuse(selection)
    place.width(options.lanes)
    load = "" if selection.real else runs.busy(clock)
    new_run = runs.new_run(
        path,
        selection,
        clock=clock,
        cpu_charge=charge,
        busy_host=bool(load),
        seed=source.run.seed if source is not None and options.seed is None else options.seed,
        shuffled=options.shuffle,
    )
    if size := runs.large(new_run, stored, selection.catalog, options):
        say(size)
        if not consent(err, options.yes)("Start them?"):
            raise InterruptedRunError("Nothing was started.")
    images = prepare(
        selection.images_of,
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=clock != REAL,
        saved=catalog.saved,
    )
    new_run = replace(images.recorded_in(new_run), started_unix_s=time.time())
    with opened(path, new_run, stored=stored, seed=options.seed, widens=options.selects) as (folder, jobs):
        if source is not None:
            reused = take_over(folder, source)
            say(f"{reused} results of {options.reuse} are taken over, because nothing changed for them.")
        verdicts = folder.verdicts()
        todo = remaining(jobs, verdicts, frozenset(map(Outcome, options.retry)))
        say(runs.announcement(folder, jobs, todo, options.keep_captures))
        if load:
            say(load)
        for name, part in folder.run.parts_by_clock(todo):
            if len(part) < len(todo):
                say(f"{format_count(len(part), 'job')} in {name} time:")
            there = place if name == clock else place_for(name)
            _execute(folder, selection.catalog, part, there, options=options, out=out)
    verdicts |= {job: result for job in todo if (result := folder.result(job)) is not None}
    verdicts = {job: verdicts[job] for job in jobs if job in verdicts}
    if options.markdown:
        print(markdown_matrix(verdicts, folder.run))
    else:
        print_matrix(out, verdicts, folder.run)
    return verdicts


def _execute(
    folder: RunFolder, catalog: Catalog, todo: tuple[Job, ...], place: Place, *, options: MatrixOptions, out: Console
) -> None:
    """Open the place, then run the jobs there. After an interruption, the error names the command that resumes the
    run."""
    from runner.campaign.campaign import Campaign, stopping  # noqa: PLC0415

    how = f"To go on: ./bentpipe run --run {folder.name if folder.path.parent == LOGS else folder.path}"
    with place.open(folder.run, place.width(options.lanes)):
        not_compliant = place.probe(folder.run, folder.path / "compliance.json", todo)
        with RunWatch(out) as watch:
            for (name, role), reason in not_compliant.items():
                out.print(f"[yellow]{name} as {role.value} does not keep the contract: {reason}[/yellow]")
            work = Campaign(
                folder=folder,
                cases=catalog.cases,
                todo=todo,
                verdicts_without_run=runs.verdicts_without_run(catalog, todo, not_compliant),
                deployment=place.deployment(folder.run),
                width=place.width(options.lanes),  # of the open place: workers know their number only then
                retention=Retention(options.keep_captures),
                observer=watch,
                pause=options.pause,
            )
            try:
                with stopping(work):
                    results = work.execute()
            except (BudgetError, SetupError) as error:
                raise type(error)(f"{error} {how}") from error
            if work.stopped:
                raise InterruptedRunError(f"Stopped after {len(results)} of {len(work.todo)} jobs. {how}")
