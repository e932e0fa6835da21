"""A disk that fills up while jobs run: the run waits for room, and no job is lost or stored as an error."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.campaign import campaign
from runner.campaign.campaign import LEAST_FREE, Campaign
from runner.model.result import Observer, Outcome, Progress
from runner.model.run import Retention
from runner.places.place import Concurrency
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder
from runner.tests.campaign.recorded import recorded_run
from runner.tests.records import RECORDINGS
from runner.tests.replay import Replay

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")


def campaign_of(folder: RunFolder, catalog: Catalog, observer: Observer) -> Campaign:
    """All recorded jobs of the run, one after the other."""
    return Campaign(
        folder=folder,
        cases=dict.fromkeys(folder.run.cases, catalog.cases["goodput"]),
        todo=folder.run.order,
        verdicts_without_run={},
        deployment=Replay(RECORDINGS),
        width=Concurrency.parse("1"),
        retention=Retention.ALL,
        observer=observer,
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("least", [64 * 1024, LEAST_FREE])
def test_a_full_disk_pauses_the_run_and_loses_nothing(
    small_disk: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """The smaller limit lets jobs begin that then find no room; the other one lets none begin."""
    monkeypatch.setattr(campaign, "LEAST_FREE", least)
    path = small_disk / "run"
    folder = RunFolder.create(path, recorded_run(path, catalog, iterations=20))
    done: list[int] = []

    class Remounting:
        def report(self, progress: Progress) -> None:
            if progress.event == "paused":
                done.append(len(folder.results()))
                assert f"are free in {path}. Make space there" in progress.message
                subprocess.run(["mount", "-o", "remount,size=1g", str(small_disk)], check=True)

    results = campaign_of(folder, catalog, Remounting()).execute()
    assert len(done) == 1
    assert (0 < done[0] < 20) == (least < LEAST_FREE)
    assert len(results) == len(folder.results()) == 20
    assert {result.outcome for result in folder.results().values()} == {Outcome.SUCCEEDED}


def test_a_disk_that_stays_full_ends_with_ctrl_c(small_disk: Path, catalog: Catalog) -> None:
    path = small_disk / "run"
    folder = RunFolder.create(path, recorded_run(path, catalog, iterations=2))

    class Stopping:
        def report(self, progress: Progress) -> None:
            if progress.event == "paused":
                work.stop()

    work = campaign_of(folder, catalog, Stopping())
    assert work.execute() == {}
    assert folder.results() == {}
