"""The loop over several links: each carries one job at a time, and one whose volume is used up stops alone."""

import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runner.campaign.campaign import Campaign
from runner.errors import BudgetError, HostRefusedError
from runner.model.result import Progress
from runner.model.run import Job, Retention
from runner.places.links.real_links import resting
from runner.places.place import Concurrency
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder
from runner.tests.campaign.recorded import recorded_run
from runner.tests.links.test_volume import LINK
from runner.tests.records import RECORDINGS
from runner.tests.replay import Replay
from runner.tests.waiting import wait_until


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

    def stay(self) -> None:
        """A job that must not run beside this one has time to begin."""
        time.sleep(0.2)

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
        self.stay()
        super().run(job, folder, attempt=attempt)
        with self._lock:
            self.running.remove(lane)


def _campaign(folder: RunFolder, catalog: Catalog, links: Links, **how: Any) -> Campaign:
    return Campaign(
        folder=folder,
        cases={"lossy": catalog.cases["goodput"]},
        todo=folder.run.order,
        verdicts_without_run={},
        deployment=links,
        width=Concurrency.fixed(2),
        retention=Retention("all"),
        **how,
    )


def test_links_run_at_once_and_each_has_one_job(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))

    class Meeting(Links):
        def stay(self) -> None:
            wait_until(lambda: self.most == 2, 20, pause=0.01)
            super().stay()

    links = Meeting(budget=9)
    assert len(_campaign(folder, catalog, links).execute()) == 6
    assert links.most == 2
    assert not links.shared


def test_a_spent_budget_ends_its_link_and_leaves_the_others(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    with pytest.raises(BudgetError, match="its volume is used up"):
        _campaign(folder, catalog, Links(budget=1)).execute()
    assert sorted(job.iteration for job in folder.results()) == [1, 2, 3, 5]


class Evening(Links):
    """The first link rests from 18 to 23 o'clock, and in the morning; `clock` says what time it is."""

    def __init__(self) -> None:
        super().__init__(budget=9)
        self.clock = datetime(2026, 11, 22, 20, 0)
        self.told: list[str] = []
        self.finished: list[int] = []

    def resting(self, lane: int) -> str:
        return "" if lane else resting(replace(LINK, quiet_hours=("06:00-07:00", "18:00-23:00")), lambda: self.clock)

    def report(self, event: Progress) -> None:
        if event.event == "paused":
            self.told.append(event.message)
        elif event.event == "finished" and event.job is not None:
            self.finished.append(event.job.iteration)


def test_a_link_rests_in_its_quiet_hours_and_goes_on_by_itself(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))

    class Ending(Evening):
        def report(self, event: Progress) -> None:
            super().report(event)
            if len(self.finished) == 3:  # the jobs of the other link have ended; this link has not begun
                self.clock = datetime(2026, 11, 22, 23, 0)

    evening = Ending()
    _campaign(folder, catalog, evening, observer=evening).execute()
    assert evening.told == [
        "astra: quiet hours until 23:00, then its jobs continue by themselves. Ctrl-C ends the run; the same command "
        "continues it later."
    ]
    assert [iteration % 2 for iteration in evening.finished] == [1, 1, 1, 0, 0, 0]


def test_a_run_can_be_ended_in_quiet_hours(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))

    class Ended(Evening):
        def report(self, event: Progress) -> None:
            super().report(event)
            if len(self.finished) == 3:  # the jobs of the other link have ended; this link would begin within a second
                threading.Timer(1.0, work.stop).start()

    evening = Ended()
    work = _campaign(folder, catalog, evening, observer=evening)
    work.execute()
    assert sorted(job.iteration for job in folder.results()) == [1, 3, 5]


class Refused(Links):
    """A host that lets us in for one job, and then no more."""

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        if self.lane_of(job) == 0 and self.budget < 1:
            raise HostRefusedError("roof: me@roof does not accept the key in links.json: fix that.")
        super().run(job, folder, attempt=attempt)


def test_a_host_that_refuses_us_ends_its_link_and_its_jobs_stay_undone(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    with pytest.raises(HostRefusedError, match="does not accept the key"):
        _campaign(folder, catalog, Refused(budget=1)).execute()
    assert sorted(job.iteration for job in folder.results()) == [1, 2, 3, 5]
