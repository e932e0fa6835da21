"""Counts the bytes that jobs copy from other hosts: a hostile host must not fill this host's disk."""

import threading
from collections.abc import Iterator

from runner.errors import HostRefusedError, LaneError
from runner.units import MIB, format_size

MOST_OF_JOB = 2048 * MIB  # most bytes of one job; a transfer of 100 MB with four captures needs a fifth of it
MOST_OF_RUN = 100 * 1024 * MIB  # most bytes of one call


class Collected:
    """The bytes of one call, over all of its links. Thread-safe."""

    def __init__(self, *, most_of_job: int = MOST_OF_JOB, most_of_run: int = MOST_OF_RUN) -> None:
        self._most_of_job, self._most_of_run = most_of_job, most_of_run
        self._lock = threading.Lock()
        self._run = 0

    def job(self) -> "CollectedOfJob":
        """A counter for a job that begins now. Raises HostRefusedError when the call has reached its limit."""
        if self._run >= self._most_of_run:
            raise HostRefusedError(
                f"This call has copied {format_size(self._run)} from other hosts, and its limit is "
                f"{format_size(self._most_of_run)}: look at the files that the jobs left there; the same command then "
                "continues the run."
            )
        return CollectedOfJob(self, self._most_of_job)

    def add(self, size: int) -> None:
        """Count bytes of any job."""
        with self._lock:
            self._run += size


class CollectedOfJob:
    """The bytes of one job, from both of its hosts. Thread-safe."""

    def __init__(self, run: Collected, most: int) -> None:
        self._run, self._left = run, most
        self._most = most
        self._lock = threading.Lock()

    def counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yields and counts the blocks. Raises LaneError `collected-limit` when the job has copied too much."""
        for block in blocks:
            self._run.add(len(block))
            with self._lock:
                self._left -= len(block)
            if self._left < 0:
                raise LaneError("collected-limit", f"The job left more than {format_size(self._most)} on its hosts.")
            yield block
