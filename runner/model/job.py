"""Pair × case × iteration: the unit of work, and the one place that knows its folder."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True, kw_only=True)
class Job:
    """One run of one pair in one case. `iteration` counts from 1."""

    server: str
    client: str
    case: str
    iteration: int

    @property
    def pair(self) -> str:
        """`<server>_<client>`, as in the folder's name."""
        return f"{self.server}_{self.client}"

    @property
    def path(self) -> Path:
        """The job's folder relative to the run's: `<server>_<client>/<case>/<iteration>`."""
        return Path(self.pair) / self.case / str(self.iteration)

    def __str__(self) -> str:
        return self.path.as_posix()


def job_seed(run_seed: int, job: Job) -> int:
    """The seed of a job's link: 31 bits, the same whenever the job runs in this run."""
    digest = hashlib.sha256(f"{run_seed}/{job}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
