"""A scheduler, or a worker that plays recorded jobs, as a process.

python -m runner.tests.workers.recorded schedule tls://127.0.0.1:8786 INVITATION
python -m runner.tests.workers.recorded work tls://127.0.0.1:8786 INVITATION --recording FOLDER --seconds 2
"""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from runner.campaign.campaign import Campaign
from runner.model.result import Observer, Progress
from runner.model.run import Job, Retention, Run
from runner.paths import ROOT
from runner.places.lane_job import Deployment
from runner.places.workers.worker import Address, Invitation, schedule, take_part, use_dask
from runner.places.workers.workers import Workers, WorkerWidth
from runner.plan.catalog import load_catalog
from runner.plan.choice import Selection
from runner.plan.jobs import new_run, remaining
from runner.store.runs import RunFolder
from runner.tests.replay import Replay


class Recorded:
    """Plays each job: copies a recorded job, and takes a given time for it."""

    images = False

    def __init__(self, recording: Path, seconds: float) -> None:
        self._replay = Replay(recording, seconds_per_job=seconds)

    def deployment(self, run: Run, job: Job) -> Deployment:  # noqa: ARG002 - a recording knows its jobs
        """The player of all jobs."""
        return self._replay

    def stop(self) -> None:
        """End the jobs that are being played."""
        self._replay.stop()


@dataclass
class Processes:
    """The processes of one campaign on this host, each with its own process group. `close` kills those that remain."""

    folder: Path
    port: int
    host: str = "127.0.0.1"
    invitation: Invitation = field(init=False)
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.invitation = Invitation.make(self.folder / "invitation", days=1)

    @property
    def address(self) -> Address:
        return Address(host=self.host, port=self.port)

    def start(self, part: str, *options: str, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        """Start a process: `schedule`, or `work`. Its output goes to its own file."""
        log = self.folder / f"{part}-{next(self._numbers)}.log"
        command = [
            *prefix, sys.executable, "-m", "runner.tests.workers.recorded", part, str(self.address),
            str(self.invitation.folder), *options,
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        """Kill all processes that still run."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """The processes of a campaign. The port of the scheduler was free just before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Processes(folder, port)
    try:
        yield campaign
    finally:
        campaign.close()


def recorded_run(path: Path, iterations: int) -> RunFolder:
    """A new run of one pair in which every job is the recorded transfer over a lossy link."""
    catalog = load_catalog()
    selection = Selection.of(catalog, servers=("quinn",), clients=("quinn",), cases=("goodput",), iterations=iterations)
    run = new_run(path, selection, seed=1)
    lossy = replace(run.cases["goodput"], name="lossy", file_sizes=(102400,))
    order = tuple(replace(job, case="lossy") for job in run.order)
    return RunFolder.create(path, replace(run, cases={"lossy": lossy}, order=order))


def run_on(workers: Workers, folder: RunFolder, observer: Observer) -> None:
    """Run the remaining jobs on workers."""
    Campaign(
        folder=folder,
        cases=dict.fromkeys(folder.run.cases, load_catalog().cases["goodput"]),
        todo=remaining(folder.run.order, folder.results(), frozenset()),
        verdicts_without_run={},
        deployment=workers,
        width=WorkerWidth.following(workers),
        retention=Retention.NONE,
        observer=observer,
    ).execute()


class _Finished:
    """Writes a line immediately for each job that counts."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def report(self, progress: Progress) -> None:
        if progress.event == "finished":
            print(progress.job, file=self._file, flush=True)


@click.group()
def main() -> None:
    """Run a scheduler, workers or a runner with recorded jobs."""
    use_dask()


@main.command("schedule")
@click.argument("address")
@click.argument("invitation", type=click.Path(path_type=Path))
def schedule_(address: str, invitation: Path) -> None:
    """Run a scheduler."""
    asyncio.run(schedule(Address.parse(address), Invitation(invitation)))


@main.command()
@click.argument("address")
@click.argument("invitation", type=click.Path(path_type=Path))
@click.option("--recording", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seconds", default=0.0)
@click.option("--lanes", default=1)
@click.option("--count", default=1, help="Workers in this process.")
def work(address: str, invitation: Path, count: int, lanes: int, **jobs: Any) -> None:
    """Run one or several workers."""

    @contextmanager
    def opened() -> Iterator[Recorded]:
        yield Recorded(jobs["recording"], jobs["seconds"])

    def be_worker() -> None:
        take_part(
            Address.parse(address),
            Invitation(invitation),
            opened,
            lanes=lanes,
            say=lambda text: print(text, flush=True),
        )

    for _ in range(count - 1):
        threading.Thread(target=be_worker, daemon=True).start()
    be_worker()


@main.command("run")
@click.argument("address")
@click.argument("invitation", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
def run_(address: str, invitation: Path, folder: Path) -> None:
    """Run the remaining jobs in FOLDER as the runner. `FOLDER/finished` gets a line for each job that counts."""
    opened = RunFolder.open(folder)
    with (
        opened.locked(),
        Workers.open(opened.run, Address.parse(address), Invitation(invitation), say=print) as workers,
    ):
        run_on(workers, opened, _Finished(folder / "finished"))


if __name__ == "__main__":
    main()
