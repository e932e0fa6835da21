"""The jobs of a run in virtual time: one guest for each job, several guests at the same time."""

import itertools
import os
import queue
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.engine.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.engine.engine import Owner, connect, remove_own, sweep
from runner.errors import LaneError
from runner.files import locked_folder, own_folder, remove_abandoned
from runner.model.result import Evidence
from runner.places.guests.guest_experiment import GuestExperiment, Setting
from runner.places.guests.processes import (
    IMAGE,
    ContainerLauncher,
    Disks,
    ImageDisks,
    Images,
    Launcher,
    SavedImages,
    open_launcher,
    require_memory,
)
from runner.places.lane_job import LaneJob
from runner.places.supervised import start_watchdog

_DISKS = "images"


class GuestHost:
    """The place of all guests of a run. Construct with `open`; `run` may be called from as many threads as `lanes`."""

    def __init__(self, launcher: Launcher, disks: Disks, work: Path, setting: Setting, *, lanes: int) -> None:
        self._launcher = launcher
        self._disks = disks
        self._work = work
        self._setting = setting
        self._numbers = itertools.count(1)
        self._cpus: queue.LifoQueue[int] = queue.LifoQueue()
        cores = sorted(os.sched_getaffinity(0))
        for number in range(lanes):
            self._cpus.put(cores[number % len(cores)])
        self._stopped = threading.Event()
        self._stopping = threading.Lock()

    @classmethod
    @contextmanager
    def open(
        cls, name: str, setting: Setting, *, lanes: int, scratch: Path, saved: SavedImages | None = None
    ) -> Iterator["GuestHost"]:
        """Run up to `lanes` guests at the same time, for the run `name`. `scratch`: a folder for running jobs and for
        disks; disks are kept. `saved`: images from archives, which need no engine. Raises SetupError when this host has
        too little memory.
        """
        require_memory(lanes)
        prefix = f"bentpipe-{secrets.token_hex(4)}"
        own_folder(scratch)
        work, disks = scratch / prefix, scratch / _DISKS
        with locked_folder(work):
            try:
                remove_abandoned(scratch)
                with ExitStack() as stack:
                    if saved is None:
                        launcher, images = stack.enter_context(_containers(name, prefix, work))
                    else:
                        launcher, images = open_launcher(saved, scratch), saved
                        stack.callback(launcher.close)
                    yield cls(launcher, Disks(images, launcher, disks), work, setting, lanes=lanes)
            finally:
                shutil.rmtree(work, ignore_errors=True)

    def run(self, job: LaneJob) -> Evidence:
        """Run one job in its own guest and write the job's folder, `evidence.json` last. Raises LaneError."""
        # A guest has one CPU and is fastest on one CPU of the host, because its kernel and its processes take turns.
        cpu = self._cpus.get()
        try:
            if self._stopped.is_set():
                raise LaneError("stopped", "The run was stopped while this job ran.")
            work = self._work / str(next(self._numbers))
            return GuestExperiment(job, self._launcher, self._disks, self._setting, work, cpu=cpu).run()
        finally:
            self._cpus.put(cpu)

    def stop(self) -> None:
        """Make running jobs end soon. Two campaigns that share this host may both call it."""
        with self._stopping:
            if not self._stopped.is_set():
                self._stopped.set()
                self._launcher.close()


@contextmanager
def _containers(name: str, prefix: str, work: Path) -> Iterator[tuple[Launcher, Images]]:
    """Containers for guests, and the images of their engine. First removes leftovers of killed runners."""
    labels = {LABEL_OWNER: str(Owner.current()), LABEL_RUN: name, LABEL_LANES: prefix}
    client = connect()
    engine, stop = Engine(client, labels), threading.Event()
    try:
        sweep(engine)
        start_watchdog(engine, prefix, stop)
        mapped = any("name=userns" in option or "name=rootless" in option for option in engine.security)
        images = ImageDisks(engine, prefix)
        kernel = images.text(IMAGE, "/guest/version", work / "version").strip()
        yield ContainerLauncher(engine, name=prefix, mapped=mapped, kernel=kernel), images
    finally:
        stop.set()
        try:
            remove_own(engine, {LABEL_LANES: prefix})
        finally:
            engine.close()
