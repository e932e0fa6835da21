"""A place where jobs run, as the loop over jobs sees it."""

from abc import ABC, abstractmethod
from pathlib import Path

from runner.model.job import Job


class Deployment(ABC):
    """A place where jobs run: lanes of this host, guests, real links, or the replay of recorded jobs.

    The campaign has numbered lanes, each of which runs one job at a time. Methods are called from many threads.
    """

    @abstractmethod
    def run(self, job: Job, folder: Path, *, attempt: int) -> object:
        """Run `job` and write its artifacts to `folder`, `evidence.json` as the last file. `attempt` counts from 1.

        Raises LaneError when the harness can't run the job. After a BudgetError or a HostRefusedError, this lane ends
        and the other lanes continue.
        """

    @abstractmethod
    def stop(self) -> None:
        """Make running jobs end soon."""

    def lane_of(self, job: Job) -> int | None:  # noqa: ARG002 - for deployments whose lanes differ
        """The only lane that may run `job`; None when every lane may run it."""
        return None

    def resting(self, lane: int) -> str:  # noqa: ARG002 - for deployments whose lanes differ
        """A sentence with the reason why the lane starts no job now, and with the time until which it waits. Empty when
        the lane may start jobs."""
        return ""
