"""Lists the workers and chooses a worker for each job. It uses no network. Its owner calls it under a lock, because
it has no lock of its own."""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from runner.model.job import Job

WINDOW = 1.5  # jobs that a worker has per lane, so that it already has the next job when a lane becomes free
STRIKES = 3  # consecutive disturbed or lost jobs after which a worker is benched: it gets no jobs for a while
BENCH_SECONDS = 600.0


class Spread(StrEnum):
    """Where the iterations of a matrix cell run."""

    ANY = "any"  # on any worker that can take a job
    HOSTS = "hosts"  # on as many hosts as possible
    PINNED = "pinned"  # all on one host, as long as it takes part


@dataclass
class Member:
    """A worker that may get jobs. `outstanding`: its unfinished jobs."""

    address: str
    name: str
    host: str
    lanes: int
    outstanding: int = 0
    strikes: int = 0
    benched_until: float = 0.0
    gone: bool = False

    @property
    def room(self) -> bool:
        return self.outstanding < math.ceil(WINDOW * self.lanes)


@dataclass
class Roster:
    """The workers that were admitted, by address."""

    spread: Spread = Spread.ANY
    clock: Callable[[], float] = time.monotonic
    members: dict[str, Member] = field(default_factory=dict)
    _cells: dict[str, dict[str, int]] = field(default_factory=dict)  # cell → host → number of jobs that the host got

    @property
    def window(self) -> int:
        """The number of jobs that the workers have at the same time when all have work."""
        return sum(math.ceil(WINDOW * member.lanes) for member in self._fit())

    def admit(self, member: Member) -> None:
        """Add a worker."""
        self.members[member.address] = member

    def lose(self, address: str) -> None:
        """Remove a worker."""
        if member := self.members.pop(address, None):
            member.gone = True

    def place(self, job: Job, *, avoid: str = "") -> Member | None:
        """Choose the worker for a job, and count the job as outstanding. None when no worker has room. `avoid`: the
        address of the worker that had the job before; it gets the job again only when there is no other worker.
        """
        fit = self._fit()
        if self.spread is not Spread.PINNED:
            fit = [member for member in fit if member.address != avoid] or fit
        suitable = self._allowed(job, fit)
        free = [member for member in suitable if member.room]
        if not free:
            return None
        chosen = min(free, key=lambda member: (member.outstanding / member.lanes, member.strikes, member.address))
        chosen.outstanding += 1
        hosts = self._cells.setdefault(job.cell, {})
        hosts[chosen.host] = hosts.get(chosen.host, 0) + 1
        return chosen

    def _allowed(self, job: Job, fit: list[Member]) -> list[Member]:
        """The members of `fit` on the hosts that may run this job."""
        hosts = {member.host for member in fit}
        if self.spread is Spread.ANY or not hosts:
            return fit
        if self.spread is Spread.PINNED:
            # The highest hash wins (rendezvous hashing): when a host joins or leaves, no cell moves between the others.
            host = max(hosts, key=lambda name: hashlib.sha256(f"{name}/{job.cell}".encode()).digest())
            return [member for member in fit if member.host == host]
        had = self._cells.get(job.cell, {})
        fewest = min(had.get(host, 0) for host in hosts)
        return [member for member in fit if had.get(member.host, 0) == fewest]

    def give_back(self, member: Member) -> None:
        """Note that a job of the worker is done or lost."""
        member.outstanding -= 1

    def learn(self, worker: str, *, fault: str) -> str:
        """Count a result of `worker`, by name. `fault`: why the job does not count; empty: it counts. Returns a
        sentence when the worker is benched now. The last worker is never benched.
        """
        member = next((candidate for candidate in self.members.values() if candidate.name == worker), None)
        if member is None:
            return ""
        member.strikes = member.strikes + 1 if fault else 0
        if member.strikes < STRIKES or self._fit() == [member]:
            return ""
        member.strikes, member.benched_until = 0, self.clock() + BENCH_SECONDS
        return (
            f"{worker} gets no jobs for {BENCH_SECONDS / 60:.0f} minutes: its last {STRIKES} jobs did not count "
            f"({fault})."
        )

    def _fit(self) -> list[Member]:
        now = self.clock()
        return [member for member in self.members.values() if member.benched_until <= now]
