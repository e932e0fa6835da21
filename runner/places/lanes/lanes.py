"""The lanes of one runner, each with namespaces of its own, also when the engine ends during a job."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import docker

from runner.engine import engine
from runner.engine.containers import LABEL_LANES, Engine, set_weights
from runner.engine.engine import labels_of, remove_own, sweep
from runner.errors import LaneError, SetupError
from runner.files import remove_tree
from runner.model.result import EndpointRecord, Evidence
from runner.model.stack import Role
from runner.places.lane_job import LaneJob, ProbeResult
from runner.places.lanes.lane import Lane, Shape
from runner.places.lanes.lane_experiment import PROBE_SECONDS, PROBE_SHAPE, LaneExperiment, Probe, shape_of
from runner.places.supervised import CommandContainer, Notifier, Served, engine_test, start_watchdog, wiring_container
from runner.units import MIB, format_duration, format_size

# The lanes on one running engine. Jobs run at the same time, each in its own namespaces, and leave nothing behind.

_CALLS_PER_LANE = 6  # engine calls that one lane makes in parallel


class LaneSet:
    """Open with `open`, use `run` and `probe` from as many threads as there are lanes, `close` at the end.

    When its engine has ended, a set can't be used any more: `works` then returns False."""

    def __init__(self, client: docker.DockerClient, run_name: str, *, lanes: int) -> None:
        self._prefix, labels = labels_of(run_name)
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
        """Connect to this host's engine, remove leftovers of killed runners, start watchdog and wiring container.

        Raises SetupError without an engine, LaneError when the engine fails.
        """
        opened = cls(client or engine.connect(), run_name, lanes=lanes)
        try:
            opened.sweep()
            opened.unwatched = start_watchdog(opened._engine, opened._prefix, opened._stop)
            opened._start_wiring()
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
            code, _ = self._wiring.execute(["true"])
            probe = self._engine.create(f"{self._prefix}-test-{next(self._numbers)}", engine_test())
            self._engine.start(probe)
            self._engine.remove(probe)
        except LaneError:
            return False
        return code == 0

    def _start_wiring(self) -> None:
        container = self._engine.create(f"{self._prefix}-plumber", wiring_container())
        self._wiring = CommandContainer(self._engine, container, Notifier(self._stop))
        self._wiring.start()
        set_weights()

    def run(self, job: LaneJob) -> Evidence:
        """Run one job and fill its folder, `evidence.json` last. All errors, also errors of the harness, are in the
        evidence. Raises OSError when the folder can't be written.
        """
        lane, fit = self._take(shape_of(job)), False
        try:
            evidence = LaneExperiment(job, lane, self._served, self._wiring).run()
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
            return Probe(image, role, lane, self._served).run(self._wiring, timeout=timeout)
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
        return Lane(self._engine, self._pool, Notifier(self._stop), name=name, shape=shape)

    def _prepare(self, lane: Lane) -> None:
        try:
            if not self._stop.is_set():
                lane.prepare(self._wiring)
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


# The lanes of one runner. When the engine ends during a job, the job runs again after the engine is back.

PATIENCE_SECONDS = 180.0  # seconds to wait for an engine that has ended: an upgrade of Docker takes a minute or two
_PAUSE_SECONDS = 1.0
_MOST_LOSSES = 5  # most ends of the engine during one job
_LEAST_FREE = 1024 * MIB  # bytes that must be free on the engine's disk before a job begins
_SPENT = 64 * MIB  # bytes; with less free, a job may have failed because the disk was full
_KILLED = (137, 143)  # exit codes of a process that SIGKILL or SIGTERM ended

Answer = TypeVar("Answer")


class Lanes:
    """Open with `open`, use `run` and `probe` from as many threads as there are lanes.

    `say` is called with a sentence when the engine has ended, and when it is back.
    """

    def __init__(self, lane_set: LaneSet, run_name: str, *, lanes: int, say: Callable[[str], None]) -> None:
        self._set = lane_set
        self._run_name = run_name
        self._lanes = lanes
        self._say = say
        self._stop = threading.Event()
        self._replacing = threading.Lock()
        self._lost: list[LaneSet] = []  # sets whose engine ended
        self._failure: SetupError | None = None  # why no other set can be opened

    @classmethod
    @contextmanager
    def open(
        cls,
        run_name: str,
        *,
        lanes: int,
        client: docker.DockerClient | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator["Lanes"]:
        """Connect to this host's engine, remove leftovers of killed runners, get ready. At the end remove everything of
        this runner.

        Raises SetupError without an engine, LaneError when the engine doesn't start or remove containers.
        """
        lane_set = LaneSet.open(run_name, lanes=lanes, client=client)
        if lane_set.unwatched:
            say(lane_set.unwatched)
        opened = cls(lane_set, run_name, lanes=lanes, say=say)
        try:
            yield opened
        except BaseException:
            with suppress(LaneError):  # the error of the jobs is more useful
                opened.close()
            raise
        opened.close()

    def run(self, job: LaneJob) -> Evidence:
        """Run one job and fill its folder, `evidence.json` last. All errors, also errors of the harness, are in the
        evidence. Raises OSError when the folder can't be written, SetupError when the engine ended and did not come
        back.
        """
        return self._outlive_engine(lambda lanes: lanes.run(job), _doubts, lambda: _empty(job.folder))

    def probe(self, image: str, role: Role, *, timeout: float = PROBE_SECONDS) -> ProbeResult:
        """Start an image with an unknown test case: it must exit with 127. Raises LaneError for errors of the harness,
        and SetupError as `run` does."""
        return self._outlive_engine(
            lambda lanes: lanes.probe(image, role, timeout=timeout),
            lambda answer: _Doubts(killed=not answer.compliant, failed=not answer.compliant),
            lambda: None,
        )

    def _outlive_engine(
        self, call: Callable[[LaneSet], Answer], doubts_of: Callable[[Answer], "_Doubts"], clean_up: Callable[[], None]
    ) -> Answer:
        """Make a call, and repeat it when the engine ended or had no disk space during the call. Returns the answer."""
        for _ in range(_MOST_LOSSES):
            self._await_disk()
            lane_set = self._set
            try:
                answer = call(lane_set)
            except LaneError:
                if self._stop.is_set() or lane_set.works():
                    raise
                self._replace(lane_set)
            else:
                doubts = doubts_of(answer)
                full = doubts.failed and _lacks(lane_set.free_disk(), _SPENT)
                if self._stop.is_set() or not (full or doubts.killed):
                    return answer
                if not full:
                    if lane_set.works():
                        return answer
                    self._replace(lane_set)
            clean_up()
        raise SetupError(
            f"The Docker Engine ended, or had no disk left, {_MOST_LOSSES} times while one job ran: look at "
            "the engine's log."
        )

    def _await_disk(self) -> None:
        """Wait until the engine's disk has space for a job."""
        reported = False
        while _lacks(self._set.free_disk(), _LEAST_FREE) and not self._stop.wait(_PAUSE_SECONDS if reported else 0.0):
            if not reported:
                self._say(
                    f"paused: less than {format_size(_LEAST_FREE)} are free on the disk of the Docker Engine. Make "
                    "space there (`docker image prune` removes unused images); the run then continues by itself. "
                    "Ctrl-C ends it."
                )
                reported = True

    def _replace(self, lost: LaneSet) -> None:
        """Open another set in place of `lost`, whose engine ended. Raises SetupError when no engine comes back."""
        with self._replacing:
            if self._failure is not None:
                raise self._failure
            if self._set is not lost:
                return  # another lane has replaced it
            lost.stop()  # ends its other jobs, which would wait for time-outs
            self._lost.append(lost)
            self._set = self._wait_for_engine()
            if self._stop.is_set():
                self._set.stop()
            with suppress(LaneError):  # if this fails, the watchdog of `lost` removes its containers
                self._set.remove_set(lost)

    def _wait_for_engine(self) -> LaneSet:
        deadline = time.monotonic() + PATIENCE_SECONDS
        reported = False
        while True:
            try:
                opened = LaneSet.open(self._run_name, lanes=self._lanes, client=engine.client())
            except (SetupError, LaneError) as error:
                if self._stop.is_set():
                    raise LaneError("stopped", "The run was stopped while the Docker Engine was away.") from error
                if time.monotonic() > deadline:
                    self._failure = SetupError(
                        f"The Docker Engine went away while jobs ran, and was not back after "
                        f"{format_duration(PATIENCE_SECONDS)}: start it (`sudo systemctl start docker`). {error}"
                    )
                    raise self._failure from error
                if not reported:
                    self._say(
                        f"The Docker Engine went away. Waiting for it, {format_duration(PATIENCE_SECONDS)} at most."
                    )
                    reported = True
                self._stop.wait(_PAUSE_SECONDS)
            else:
                self._say("The Docker Engine was restarted. The jobs that it ended run again.")
                return opened

    def stop(self) -> None:
        """Make running jobs end within about a second, with the error `stopped`. Any thread may call it."""
        self._stop.set()
        self._set.stop()

    def sweep(self) -> int:
        """Remove leftovers of dead runners of this machine. Returns the number of containers and volumes."""
        return self._set.sweep()

    def close(self) -> None:
        """Remove everything of this runner. Raises LaneError when the engine refuses."""
        self._stop.set()
        for lost in self._lost:
            with suppress(LaneError):
                lost.close()
        self._set.close()


@dataclass(frozen=True, kw_only=True)
class _Doubts:
    """Reasons why the harness and not the images may have caused a result. `killed`: the engine may have ended.
    `failed`: the engine's disk may have been full."""

    killed: bool
    failed: bool


def _doubts(evidence: Evidence) -> _Doubts:
    endpoints = (evidence.client, evidence.server, *evidence.boxes.values(), *evidence.beside.values())
    blamed = any(endpoint.volumes_full for endpoint in endpoints)
    failed = any(endpoint.exit_code not in (0, None) and not endpoint.stopped_by_us for endpoint in endpoints)
    return _Doubts(
        killed=bool(evidence.error) or any(map(_was_killed, endpoints)),
        failed=not blamed and (bool(evidence.error) or failed),
    )


def _lacks(free: int | None, needed: int) -> bool:
    return free is not None and free < needed


def _was_killed(endpoint: EndpointRecord) -> bool:
    by_us = endpoint.stopped_by_us or endpoint.timed_out or endpoint.output_flooded or endpoint.oom_killed
    return endpoint.exit_code in _KILLED and not by_us


def _empty(folder: Path) -> None:
    remove_tree(folder.parent, folder.name)
    folder.mkdir()
