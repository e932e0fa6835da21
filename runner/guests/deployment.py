"""The jobs of a run in virtual time: one guest for each, as many at once as there are cores."""

import itertools
import os
import queue
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.engine import engine as host_engine
from runner.engine.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.engine.owner import Owner
from runner.engine.sweep import remove_own, sweep
from runner.errors import LaneError, UsageError
from runner.files.folder_lock import LOCK_NAME, locked_folder
from runner.guests.disks import Disks
from runner.guests.experiment import GuestExperiment, Setting
from runner.guests.house import House
from runner.lanes.lane_job import lane_job
from runner.lanes.request import LaneJob
from runner.lanes.watchdog import start_watchdog
from runner.model.artifacts import Evidence
from runner.model.estimate import VIRTUAL
from runner.model.job import Job
from runner.model.run import Run
from runner.units import MIB

_MEMORY = 3072 * MIB  # of one guest, at most
_SPARE = 512 * MIB


class GuestHost:
    """Where guests of one run live. Construct with `open`; `run` may be called from as many threads as `lanes`."""

    def __init__(self, house: House, disks: Disks, work: Path, setting: Setting, *, lanes: int) -> None:
        self._house = house
        self._disks = disks
        self._work = work
        self._setting = setting
        self._numbers = itertools.count(1)
        self._cpus: queue.LifoQueue[int] = queue.LifoQueue()
        cores = sorted(os.sched_getaffinity(0))
        for number in range(lanes):
            self._cpus.put(cores[number % len(cores)])
        self._stopped = threading.Event()

    @classmethod
    @contextmanager
    def open(cls, name: str, setting: Setting, *, lanes: int, scratch: Path) -> Iterator["GuestHost"]:
        """Up to `lanes` guests at once, for the run `name`.

        `scratch`: a folder for disks, which stay, and for jobs while they run.
        """
        prefix = f"bentpipe-{secrets.token_hex(4)}"
        labels = {LABEL_OWNER: str(Owner.current()), LABEL_RUN: name, LABEL_LANES: prefix}
        engine = Engine(host_engine.connect(), labels)
        work, stop, disks = scratch / prefix, threading.Event(), scratch / "disks"
        with locked_folder(work):
            try:
                sweep(engine)
                _remove_left_over(scratch)
                start_watchdog(engine, prefix, stop)
                house = House(engine, stop, name=prefix, work=work, disks=disks, memory=lanes * _MEMORY + _SPARE)
                yield cls(house, Disks(engine, house, disks), work, setting, lanes=lanes)
            finally:
                stop.set()
                try:
                    remove_own(engine, {LABEL_LANES: prefix})
                finally:
                    engine.close()
                    shutil.rmtree(work, ignore_errors=True)

    def run(self, job: LaneJob) -> Evidence:
        """Run one job in a guest of its own and fill its folder, `evidence.json` last. Raises LaneError."""
        # A guest has one CPU. On one of the host it is fastest: its kernel and its processes take turns.
        cpu = self._cpus.get()
        try:
            if self._stopped.is_set():
                raise LaneError("stopped", "The run was stopped while this job ran.")
            work = self._work / str(next(self._numbers))
            return GuestExperiment(job, self._house, self._disks, self._setting, work, cpu=cpu).run()
        finally:
            self._cpus.put(cpu)

    def stop(self) -> None:
        """Make running jobs end soon."""
        self._stopped.set()
        self._house.close()


def _remove_left_over(scratch: Path) -> None:
    """Remove the folders of runners that were killed: nobody holds them any more."""
    for lock in scratch.glob(f"bentpipe-*/{LOCK_NAME}"):
        with suppress(UsageError), locked_folder(lock.parent):
            shutil.rmtree(lock.parent, ignore_errors=True)


class Guests:
    """A deployment in virtual time: from the run's record to what a guest is asked to do. Construct with `open`."""

    def __init__(self, run: Run, host: GuestHost) -> None:
        self._run = run
        self._host = host

    @classmethod
    @contextmanager
    def open(cls, run: Run, *, lanes: int, scratch: Path) -> Iterator["Guests"]:
        """Up to `lanes` jobs at once. First removes what a killed runner left; at the end, everything of this one.

        Raises UsageError for jobs over TCP.
        """
        if over_tcp := run.pairs_over_tcp(clock=VIRTUAL):
            # A guest's kernel has no TCP that is known to behave as the host's does.
            raise UsageError(
                f"--clock virtual runs QUIC alone, and {over_tcp[0]} speaks over TCP: leave it out, or "
                "leave out --clock."
            )
        with GuestHost.open(run.name, Setting.of(run), lanes=lanes, scratch=scratch) as host:
            yield cls(run, host)

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt has the same seed
        """Run `job` in a guest. Raises LaneError when the harness can't."""
        return self._host.run(lane_job(self._run, job, folder))

    def stop(self) -> None:
        """Make running jobs end soon."""
        self._host.stop()
