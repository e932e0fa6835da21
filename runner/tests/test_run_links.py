"""The loop over several links: each carries one job at a time, and one whose volume is used up stops alone."""

import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from runner import campaign
from runner.catalog import Catalog
from runner.deploy.remote.real import RealLinks
from runner.deploy.remote.volume import Ledger
from runner.deploy.replay import Replay
from runner.errors import BudgetError, LaneError
from runner.model.job import Job
from runner.retention import Retention
from runner.run import Campaign
from runner.store import RunFolder
from runner.tests.conftest import RECORDINGS
from runner.tests.deploy.remote.test_volume import LINK
from runner.tests.test_run import recorded_run
from runner.width import Width


class Links(Replay):
    """Recorded jobs, of which every second one belongs to the other link; the first link has volume for two."""

    def __init__(self, budget: int) -> None:
        super().__init__(RECORDINGS)
        self.budget = budget
        self.running: list[int] = []
        self.most = 0
        self.shared = False
        self._lock = threading.Lock()

    def lane_of(self, job: Job) -> int:
        return job.iteration % 2

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        lane = self.lane_of(job)
        with self._lock:
            if lane == 0:
                if not self.budget:
                    raise BudgetError("astra: its volume is used up.")
                self.budget -= 1
            self.shared |= lane in self.running
            self.running.append(lane)
            self.most = max(self.most, len(self.running))
        time.sleep(0.2)
        super().run(job, folder, attempt=attempt)
        with self._lock:
            self.running.remove(lane)


def _campaign(folder: RunFolder, catalog: Catalog, links: Links) -> Campaign:
    return Campaign(
        folder=folder,
        cases={"lossy": catalog.cases["goodput"]},
        todo=folder.run.order,
        presets={},
        deployment=links,
        width=Width.fixed(2),
        retention=Retention("all"),
        watch=lambda _: None,
        lane_of=links.lane_of,
    )


def test_links_run_at_once_and_each_has_one_job(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    links = Links(budget=9)
    assert len(_campaign(folder, catalog, links).execute()) == 6
    assert links.most == 2
    assert not links.shared


def test_a_spent_budget_ends_its_link_and_leaves_the_others(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    with pytest.raises(BudgetError, match="its volume is used up"):
        _campaign(folder, catalog, Links(budget=1)).execute()
    assert sorted(job.iteration for job in folder.results()) == [1, 2, 3, 5]


def test_quiet_hours_are_waited_for(tmp_path: Path, catalog: Catalog) -> None:
    selection = campaign.select(catalog, servers=("quinn",), clients=("quinn",), cases=("transfer",), iterations=1)
    run = campaign.new_run(tmp_path, catalog, selection, seed=1, shuffled=False, image_ids={}, timeout_scale=1.0)
    clock = [datetime(2026, 11, 22, 20, 0)]
    links = RealLinks(run, Ledger(tmp_path / "volume.json"), lambda: clock[0])
    link = replace(LINK, quiet_hours=("06:00-07:00", "18:00-23:00"))
    waiting = threading.Thread(target=links._wait_for_quiet, args=(link,))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    clock[0] = datetime(2026, 11, 22, 23, 0)
    waiting.join(5)
    assert not waiting.is_alive()
    clock[0] = datetime(2026, 11, 23, 6, 30)
    links.stop()
    with pytest.raises(LaneError, match="stopped in quiet hours"):
        links._wait_for_quiet(link)
