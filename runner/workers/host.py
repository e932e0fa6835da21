"""The part of a worker that runs orders on this host and packs the jobs' folders."""

import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from runner import store
from runner.errors import LaneError
from runner.guests.deployment import GuestHost, Guests
from runner.guests.experiment import Setting
from runner.lanes.emulated import Emulated
from runner.lanes.lanes import Lanes
from runner.model.artifacts import Artifacts
from runner.model.deployment import Deployment
from runner.model.estimate import VIRTUAL
from runner.model.host import host_facts
from runner.model.job import Job
from runner.model.run import Run
from runner.workers.cluster import source_digest
from runner.workers.parcel import Order, Parcel, pack
from runner.workers.shared import put

_OWNER = "worker"  # label of containers, instead of a run's name


class OwnLanes:
    """Lanes and guests of this host. They are opened for the first job that needs them, because the runner must bring
    the images first.
    Construct with `open`.
    """

    images = True

    def __init__(self, stack: ExitStack, *, lanes: int, scratch: Path, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._number = lanes
        self._scratch = scratch
        self._say = say
        self._lanes: Lanes | None = None
        self._guests: dict[Setting, GuestHost] = {}
        self._lock = threading.Lock()
        self._stopped = False

    @classmethod
    @contextmanager
    def open(cls, *, lanes: int, scratch: Path, say: Callable[[str], None]) -> Iterator["OwnLanes"]:
        """Run up to `lanes` jobs at the same time. Removes leftovers of killed workers at the start and everything of
        this worker at the end."""
        with ExitStack() as stack:
            yield cls(stack, lanes=lanes, scratch=scratch, say=say)

    def deployment(self, run: Run, job: Job) -> Deployment:
        """The deployment for a job: lanes or guests, depending on the clock of its case. Raises LaneError or SetupError
        when it can't be opened."""
        with self._lock:
            if self._stopped:
                raise LaneError("stopped", "The worker was stopped before the job began.")
            return self._guest_deployment(run) if run.clock_of(job.case_link) == VIRTUAL else self._in_lanes(run)

    def _in_lanes(self, run: Run) -> Deployment:
        if self._lanes is None:
            self._lanes = self._stack.enter_context(Lanes.open(_OWNER, lanes=self._number, say=self._say))
        return Emulated(run, self._lanes, {})

    def _guest_deployment(self, run: Run) -> Deployment:
        setting = Setting.of(run)
        if setting not in self._guests:
            opened = GuestHost.open(_OWNER, setting, lanes=self._number, scratch=self._scratch)
            self._guests[setting] = self._stack.enter_context(opened)
        return Guests(run, self._guests[setting])

    def stop(self) -> None:
        """Make running jobs end soon, and start no more jobs."""
        with self._lock:
            self._stopped = True
            if self._lanes is not None:
                self._lanes.stop()
            for guests in self._guests.values():
                guests.stop()


class Deployments(Protocol):
    """Gives each job its deployment: `OwnLanes`, or a replay of recorded jobs. `images`: True when jobs need
    images of this host's engine.
    """

    images: bool

    def deployment(self, run: Run, job: Job) -> Deployment:
        """The deployment that runs `job`."""

    def stop(self) -> None:
        """Make running jobs end soon."""


class Host:
    """Runs the orders of one worker. Thread-safe."""

    def __init__(self, name: str, deployments: Deployments, scratch: Path, *, say: Callable[[str], None]) -> None:
        self.facts = {**host_facts(), "cpu": _processor(), "worker": name}
        self.say = say
        self.running: set[str] = set()  # keys of the running orders
        self._deployments = deployments
        self._scratch = scratch
        self.images = deployments.images
        self._stopped = threading.Event()

    def execute(self, order: Order) -> Parcel:
        """Run one job. Errors are in the parcel."""
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self._scratch))
        self.running.add(order.key)
        try:
            self._run(order, folder)
            return self._packed(order, folder)
        except LaneError as error:
            return Parcel(host=self.facts, error=error.record())
        except Exception as error:  # a bug of bentpipe must end only one job, not the worker
            return Parcel(
                host=self.facts, error={"code": "worker-failed", "message": f"{type(error).__name__}: {error}"}
            )
        finally:
            self.running.discard(order.key)
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, order: Order, folder: Path) -> None:
        self._deployments.deployment(order.run, order.job).run(order.job, folder, attempt=order.attempt)
        evidence = store.load_evidence(Artifacts(folder))
        if evidence is None:
            raise LaneError("worker-failed", "The job left no evidence.json.")
        if self._stopped.is_set():
            raise LaneError("stopped", "The worker was stopped while the job ran.")
        store.save_evidence(Artifacts(folder), replace(evidence, host=self.facts))

    def _packed(self, order: Order, folder: Path) -> Parcel:
        content = pack(folder)
        parcel = Parcel(host=self.facts, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        if order.store:
            return replace(parcel, place=put(order.store, archive_name(order.key), content))
        return replace(parcel, archive=content)

    def stop(self) -> None:
        """Make running jobs end soon, because no runner waits for them any more."""
        self._stopped.set()
        self._deployments.stop()


def archive_name(key: str) -> str:
    """The name of an order's archive in a shared folder: the name of the run, then a digest of the rest of the key."""
    run, _, job = key.partition("/")
    return f"{run}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"


def _processor() -> str:
    """The name of this host's processor; empty when the kernel doesn't report it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return ""


def this_host() -> Host:
    """The host of the worker whose thread calls this function."""
    from distributed import get_worker  # noqa: PLC0415 - an extra

    host: Host = get_worker().bentpipe
    return host


# A runner calls the functions below on a worker. Only their names are sent, because both have the same source.


def run_order(order: Order) -> Parcel:
    """Run a job on the worker."""
    return this_host().execute(order)


def introduce() -> dict[str, str]:
    """The facts of the worker, the digest of its source, and whether its jobs need images."""
    host = this_host()
    return {**host.facts, "source": source_digest(), "images": "needed" if host.images else ""}


def tell(sentence: str) -> None:
    """Print a sentence at the worker's terminal."""
    this_host().say(sentence)
