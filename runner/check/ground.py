"""The ground on which the jobs of a check or a comparison run: lanes of this host, or guests in virtual time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from runner.campaign import clocks
from runner.campaign.width import Width
from runner.guests.deployment import GuestHost, Guests
from runner.guests.experiment import Setting
from runner.guests.saved_images import SavedImages
from runner.lanes.emulated import Emulated
from runner.lanes.lanes import Lanes
from runner.lanes.request import EndpointSpec
from runner.model.deployment import Deployment
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.run import Run
from runner.plan.runs import LOGS

Say = Callable[[str], None]


class Ground(ABC):
    """A place for jobs that several runs share. Each run has its own deployment there."""

    runs_at_once: bool
    """True when two runs can run at the same time without disturbing each other."""
    unprobed: str
    """Reason why images are not probed on this ground. Empty when they are probed."""

    @abstractmethod
    def deployment(self, run: Run, specs: Mapping[tuple[str, Role], EndpointSpec]) -> Deployment:
        """The deployment for the jobs of `run`. `specs`: endpoints that aren't plain images; only lanes use them."""

    @abstractmethod
    def probe(self, run: Run, path: Path, jobs: Sequence[Job]) -> Mapping[tuple[str, Role], str]:
        """Why images of `jobs` break the contract, by name and role. `path`: the file that stores the results."""

    @abstractmethod
    def blocks(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Divide the jobs into blocks. Runs that disturb each other take turns after each block."""


@dataclass(frozen=True)
class LaneGround(Ground):
    """Lanes of this host, in real time."""

    lanes: Lanes
    runs_at_once = False
    unprobed = ""

    def deployment(self, run: Run, specs: Mapping[tuple[str, Role], EndpointSpec]) -> Deployment:
        return Emulated(run, self.lanes, specs)

    def probe(self, run: Run, path: Path, jobs: Sequence[Job]) -> Mapping[tuple[str, Role], str]:
        return Emulated(run, self.lanes, {}).probe(path, jobs)

    def blocks(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """One block for each case."""
        return [list(block) for _, block in groupby(jobs, key=lambda job: job.case)]


@dataclass(frozen=True)
class GuestGround(Ground):
    """Guests, in virtual time, whose images are not probed."""

    host: GuestHost
    runs_at_once = True
    unprobed = "The probe with an unknown test case (exit code 127) runs in real time only."

    def deployment(self, run: Run, specs: Mapping[tuple[str, Role], EndpointSpec]) -> Deployment:  # noqa: ARG002
        return Guests(run, self.host)

    def probe(self, run: Run, path: Path, jobs: Sequence[Job]) -> Mapping[tuple[str, Role], str]:  # noqa: ARG002
        return {}

    def blocks(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """One block with all jobs."""
        return [list(jobs)] if jobs else []


@contextmanager
def open_ground(run: Run, width: Width, say: Say, saved: SavedImages | None = None) -> Iterator[Ground]:
    """The ground for the clock of `run`. `say` is called with a sentence when the engine stops answering, and when it
    answers again. `saved`: images from archives, for guests without an engine."""
    if run.clock == clocks.REAL:
        with Lanes.open(run.name, lanes=width.all, say=say) as lanes:
            yield LaneGround(lanes)
    else:
        scratch = LOGS / ".guests"
        with GuestHost.open(run.name, Setting.of(run), lanes=width.all, scratch=scratch, saved=saved) as host:
            yield GuestGround(host)
