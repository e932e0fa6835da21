"""The lanes of one runner. When the engine ends during a job, the job runs again after the engine is back."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import docker

from runner.engine import engine as host_engine
from runner.errors import LaneError, SetupError
from runner.files.safe_files import remove_tree
from runner.lanes.lane_set import LaneSet
from runner.lanes.probe import PROBE_SECONDS
from runner.lanes.request import LaneJob, ProbeResult
from runner.model.artifacts import EndpointRecord, Evidence
from runner.model.implementation import Role
from runner.units import MIB, format_duration, format_size

PATIENCE_SECONDS = 180.0  # seconds to wait for an engine that has ended: an upgrade of Docker takes a minute or two
_PAUSE_SECONDS = 1.0
_MOST_LOSSES = 5  # most ends of the engine during one job
_LEAST_FREE = 1024 * MIB  # bytes that must be free on the engine's disk before a job begins
_SPENT = 64 * MIB  # bytes; with less free, a job may have failed because the disk was full
_KILLED = (137, 143)  # exit codes of a process that SIGKILL or SIGTERM ended

Answer = TypeVar("Answer")


class Lanes:
    """Open with `open`, use `run` and `probe` from as many threads as there are lanes, `close` at the end.

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
    def open(
        cls,
        run_name: str,
        *,
        lanes: int,
        client: docker.DockerClient | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> "Lanes":
        """Connect to this host's engine, remove leftovers of killed runners, get ready.

        Raises SetupError without an engine, LaneError when the engine doesn't start containers.
        """
        lane_set = LaneSet.open(run_name, lanes=lanes, client=client)
        if lane_set.unwatched:
            say(lane_set.unwatched)
        return cls(lane_set, run_name, lanes=lanes, say=say)

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(LaneError):  # the error of the jobs is more useful
                self.close()

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
                opened = LaneSet.open(self._run_name, lanes=self._lanes, client=host_engine.client())
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
