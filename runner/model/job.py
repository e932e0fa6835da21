"""A job, the unit of work: server × client × via × link × case × iteration. Only this module defines its folder."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True, kw_only=True)
class Job:
    """One iteration of one pair in one case. `iteration` counts from 1.

    `via`: the middlebox; empty: no middlebox. `link`: the link; empty: the case's own link.
    """

    server: str
    client: str
    via: str = ""
    case: str
    link: str = ""
    iteration: int

    @property
    def pair(self) -> str:
        """`<server>_<client>`."""
        return f"{self.server}_{self.client}"

    @property
    def client_via(self) -> str:
        """`<client>[+via]`: the client with the middlebox, which is a column of the matrix."""
        return f"{self.client}+{self.via}" if self.via else self.client

    @property
    def case_link(self) -> str:
        """`<case>[@link]`: the key of `Run.cases`."""
        return f"{self.case}@{self.link}" if self.link else self.case

    @property
    def cell(self) -> str:
        """`<server>_<client>[+via]/<case>[@link]`: the folder with the job and its other iterations."""
        return f"{self.server}_{self.client_via}/{self.case_link}"

    @property
    def path(self) -> Path:
        """The job's folder, relative to the run's folder: `<server>_<client>[+via]/<case>[@link]/<iteration>`."""
        return Path(self.cell) / str(self.iteration)

    @property
    def ends(self) -> str:
        """`client → server`, `client → server via middlebox`."""
        return f"{self.client} → {self.server}" + (f" via {self.via}" if self.via else "")

    def __str__(self) -> str:
        return self.path.as_posix()


def job_seed(run_seed: int, job: Job) -> int:
    """The seed of a job's link, with 31 bits. It is the same for every attempt of the job in a run with this seed."""
    digest = hashlib.sha256(f"{run_seed}/{job}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
