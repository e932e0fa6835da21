"""The lanes on one running engine. Jobs run at the same time, each in its own namespaces, and leave nothing behind."""

import itertools
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import docker

from runner.engine import engine as host_engine
from runner.engine.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.engine.owner import Owner
from runner.engine.priority import set_weights
from runner.engine.sweep import remove_own, sweep
from runner.errors import LaneError
from runner.lanes.holders import engine_test, plumber
from runner.lanes.lane import Lane, Shape
from runner.lanes.lane_experiment import LaneExperiment, shape_of
from runner.lanes.probe import PROBE_SECONDS, PROBE_SHAPE, Probe
from runner.lanes.request import LaneJob, ProbeResult
from runner.lanes.resident import Holder
from runner.lanes.served import Served
from runner.lanes.supervised import Bell
from runner.lanes.watchdog import start_watchdog
from runner.model.artifacts import Evidence
from runner.model.implementation import Role

_CALLS_PER_LANE = 6  # engine calls that one lane makes in parallel


class LaneSet:
    """Open with `open`, use `run` and `probe` from as many threads as there are lanes, `close` at the end.

    When its engine has ended, a set can't be used any more: `works` then returns False."""

    def __init__(self, client: docker.DockerClient, run_name: str, *, lanes: int) -> None:
        self._prefix = f"bentpipe-{secrets.token_hex(4)}"
        labels = {LABEL_OWNER: str(Owner.current()), LABEL_RUN: run_name, LABEL_LANES: self._prefix}
        self._engine = Engine(client, labels)
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(_CALLS_PER_LANE * lanes, thread_name_prefix="engine")
        self._background = ThreadPoolExecutor(lanes, thread_name_prefix="lanes")
        self._lock = threading.Lock()
        self._spares: list[Lane] = []
        self.unwatched = ""  # why no watchdog removes this set when the runner is killed; empty: a watchdog does
        self._served = Served(self._engine, self._prefix)

    @classmethod
    def open(cls, run_name: str, *, lanes: int, client: docker.DockerClient | None = None) -> "LaneSet":
        """Connect to this host's engine, remove leftovers of killed runners, start watchdog and plumber.

        Raises SetupError without an engine, LaneError when the engine fails.
        """
        opened = cls(client or host_engine.connect(), run_name, lanes=lanes)
        try:
            opened.sweep()
            opened.unwatched = start_watchdog(opened._engine, opened._prefix, opened._stop)
            opened._start_plumber()
        except BaseException:
            with suppress(LaneError):  # the engine may have just failed
                opened.close()
            raise
        return opened

    def works(self) -> bool:
        """True when the engine still runs the containers of this set and starts new containers. False once `stop` was
        called."""
        if self._stop.is_set():
            return False
        try:
            code, _ = self._plumber.execute(["true"])
            probe = self._engine.create(f"{self._prefix}-test-{next(self._numbers)}", engine_test())
            self._engine.start(probe)
            self._engine.remove(probe)
        except LaneError:
            return False
        return code == 0

    def _start_plumber(self) -> None:
        container = self._engine.create(f"{self._prefix}-plumber", plumber())
        self._plumber = Holder(self._engine, container, Bell(self._stop))
        self._plumber.start()
        set_weights()

    def run(self, job: LaneJob) -> Evidence:
        """Run one job and fill its folder, `evidence.json` last. All errors, also errors of the harness, are in the
        evidence. Raises OSError when the folder can't be written.
        """
        lane, fit = self._take(shape_of(job)), False
        try:
            evidence = LaneExperiment(job, lane, self._served, self._plumber).run()
            fit = not evidence.error
            return evidence
        finally:
            if lane.shape.serves_again:
                lane.release(fit=fit)
                with self._lock:
                    self._spares.append(lane)
                # The lane is renewed now, while this job is judged.
                self._background.submit(self._prepare, lane)
            else:
                self._background.submit(lane.discard)

    def probe(self, image: str, role: Role, *, timeout: float = PROBE_SECONDS) -> ProbeResult:
        """Start an image with an unknown test case: it must exit with 127. Raises LaneError for errors of the
        harness."""
        lane = self._take(PROBE_SHAPE)
        try:
            return Probe(image, role, lane, self._served).run(self._plumber, timeout=timeout)
        finally:
            self._background.submit(lane.discard)

    def _take(self, shape: Shape) -> Lane:
        """A spare lane of that shape, or a new lane. In both cases the caller must call `prepare`."""
        with self._lock:
            spare = next((lane for lane in self._spares if lane.shape == shape), None)
            unfit = self._spares[0] if self._spares and spare is None else None
            for lane in (spare, unfit):
                if lane is not None:
                    self._spares.remove(lane)
        if unfit is not None:
            self._background.submit(unfit.discard)
        return spare or self._new(shape)

    def _new(self, shape: Shape) -> Lane:
        name = f"{self._prefix}-{next(self._numbers)}"
        return Lane(self._engine, self._pool, Bell(self._stop), name=name, shape=shape)

    def _prepare(self, lane: Lane) -> None:
        try:
            if not self._stop.is_set():
                lane.prepare(self._plumber)
        except LaneError:
            self._drop(lane)

    def _drop(self, spare: Lane) -> None:
        """Remove a spare lane that failed, unless a job has taken it: then the job reports the failure."""
        with self._lock:
            taken = spare not in self._spares
            if not taken:
                self._spares.remove(spare)
        if not taken:
            spare.discard()

    def free_disk(self) -> int | None:
        """Free bytes of the file system with the engine's containers; None when this process can't see it."""
        return self._engine.free_disk()

    def stop(self) -> None:
        """Make running jobs end within about a second, with the error `stopped`. Any thread may call it."""
        self._stop.set()

    def remove_set(self, other: "LaneSet") -> None:
        """Remove every container and volume of `other`. Raises LaneError when the engine refuses."""
        remove_own(self._engine, {LABEL_LANES: other._prefix})

    def sweep(self) -> int:
        """Remove leftovers of dead runners of this machine. Returns the number of containers and volumes."""
        return sweep(self._engine)

    def close(self) -> None:
        """Remove everything of this runner. Raises LaneError when the engine refuses."""
        self._stop.set()
        self._background.shutdown(wait=True)
        self._pool.shutdown(wait=True)
        try:
            remove_own(self._engine, {LABEL_LANES: self._prefix})
        finally:
            self._engine.close()
