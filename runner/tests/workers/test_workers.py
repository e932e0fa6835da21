"""Recorded jobs on workers: the scheduler, the workers and the certificates are real."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from runner.errors import SetupError
from runner.model.result import Outcome
from runner.places.workers.worker import Address, Invitation, schedule, use_dask
from runner.places.workers.workers import Spread, Workers, WorkerWidth
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder
from runner.tests.campaign.recorded import execute, recorded_run
from runner.tests.records import RECORDINGS
from runner.tests.workers.recorded import Processes, processes

use_dask()


def wait_until(holds: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def begin(campaign: Processes, workers: int, *, seconds: float = 0.0, lanes: int = 1) -> None:
    campaign.start("schedule")
    for _ in range(workers):
        campaign.start("work", "--recording", str(RECORDINGS), "--seconds", str(seconds), "--lanes", str(lanes))


def run_on(
    campaign: Processes,
    folder: RunFolder,
    catalog: Catalog,
    *,
    workers: int,
    url: str = "",
    spread: Spread = Spread.ANY,
    disturb: Callable[[], None] | None = None,
) -> list[str]:
    """Run all remaining jobs. Returns the sentences for the user. `disturb` is called one second after the first job
    began."""
    messages: list[str] = []
    with Workers.open(
        folder.run, campaign.address, campaign.invitation, spread=spread, url=url, say=messages.append
    ) as deployment:
        wait_until(lambda: len(deployment.members) >= workers)
        if disturb is not None:
            threading.Timer(1.0, disturb).start()
        execute(folder, catalog, deployment, width=WorkerWidth.following(deployment))
    return messages


@pytest.mark.parametrize("shared", [False, True])
def test_jobs_run_on_workers_and_come_back_whole(tmp_path: Path, catalog: Catalog, *, shared: bool) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    here = RunFolder.create(tmp_path / "here", recorded_run(tmp_path / "here", catalog))
    url = str(tmp_path / "shared") if shared else ""
    with processes(tmp_path / "processes") as campaign:
        begin(campaign, 2)
        run_on(campaign, folder, catalog, workers=2, url=url)
    execute(here, catalog)
    results = folder.results()
    assert {result.outcome for result in results.values()} == {Outcome.SUCCEEDED}
    assert len({result.host["worker"] for result in results.values()}) == 2
    for job, result in here.results().items():
        assert results[job].sample == result.sample
        names = {path.relative_to(here.artifacts(job).folder) for path in here.artifacts(job).folder.rglob("*")}
        assert {
            path.relative_to(folder.artifacts(job).folder) for path in folder.artifacts(job).folder.rglob("*")
        } == names
    if shared:
        assert not list((tmp_path / "shared").iterdir())


def test_a_job_whose_worker_is_killed_runs_on_another(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    with processes(tmp_path / "processes") as campaign:
        begin(campaign, 2, seconds=2.0)
        victim = campaign.started[1]
        text = run_on(campaign, folder, catalog, workers=2, disturb=lambda: victim.send_signal(signal.SIGKILL))
    assert len(folder.results()) == 6
    assert any("has gone" in sentence for sentence in text)


def test_a_port_that_is_taken_is_said_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        address = Address(host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(SetupError, match=r"can't be opened .*--port"):
            asyncio.run(schedule(address, Invitation.make(tmp_path, days=1)))
