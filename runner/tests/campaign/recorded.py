"""Runs of recorded jobs, and campaigns over them."""

from dataclasses import replace
from pathlib import Path

from runner.campaign.campaign import Campaign
from runner.model.result import Progress, Result
from runner.model.run import Job, Retention, Run
from runner.places.lane_job import Deployment
from runner.places.place import Concurrency
from runner.plan import jobs
from runner.plan.catalog import Catalog
from runner.plan.jobs import remaining
from runner.store.runs import RunFolder
from runner.tests.records import RECORDINGS, select
from runner.tests.replay import Replay


def recorded_run(path: Path, catalog: Catalog, iterations: int = 6) -> Run:
    """A run of one pair. There is a recording for all its jobs: a measurement over the lossy link with the recorded
    file size."""
    selection = select(catalog, servers=("quinn",), clients=("quinn",), cases=("goodput",), iterations=iterations)
    run = jobs.new_run(path, selection, seed=1)
    lossy = replace(run.cases["goodput"], name="lossy", file_sizes=(102400,))
    order = tuple(replace(job, case="lossy") for job in run.order)
    return replace(run, cases={"lossy": lossy}, order=order)


class Events(list[Progress]):
    """An observer that keeps every event."""

    def report(self, progress: Progress) -> None:
        self.append(progress)


def execute(
    folder: RunFolder,
    catalog: Catalog,
    deployment: Deployment | None = None,
    *,
    lanes: str = "2",
    retention: str = "all",
    width: Concurrency | None = None,
) -> tuple[dict[Job, Result], list[Progress]]:
    events = Events()
    work = Campaign(
        folder=folder,
        cases=dict.fromkeys(folder.run.cases, catalog.cases["goodput"]),
        todo=remaining(folder.run.order, folder.results(), frozenset()),
        verdicts_without_run={},
        deployment=deployment or Replay(RECORDINGS),
        width=width or Concurrency.parse(lanes),
        retention=Retention(retention),
        observer=events,
    )
    return work.execute(), events
