"""The place where the jobs of one call run, its clock, and how many jobs run at the same time."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from runner.errors import UsageError
from runner.model.deployment import REAL, VIRTUAL, Deployment
from runner.model.link import RealLink
from runner.model.result import LinkTruth, Result
from runner.model.run import Job, Kind, Run
from runner.model.stack import Role
from runner.places.guests.guest_experiment import Setting
from runner.places.guests.guests import GuestHost, Guests
from runner.places.guests.processes import SavedImages, require_memory
from runner.places.lane_job import EndpointSpec
from runner.places.lanes.lanes import Emulated, Lanes
from runner.plan.choice import Choice
from runner.plan.jobs import LEDGER, LOGS
from runner.store.runs import RunFolder
from runner.units import format_size

# The number of open lanes: fixed, or `auto`, which starts with few lanes and follows the simulator's lateness.

_LANES_PER_CORE = 4  # measured: one core carries 4 to 5 links of 20/2 Mbit/s with their endpoints
# A verdict tolerates more disturbance than a number (`judge`): each kind of job has its own number of lanes.
_FIRST_PER_CORE = {Kind.MEASUREMENT: 1, Kind.TEST_CASE: 4}
_CALM = {Kind.MEASUREMENT: 0.5e-3, Kind.TEST_CASE: 5e-3}  # s of lateness (p99) below which one more lane is tried
# One more lane is tried while tasks wait for a CPU in less than this share of the time. The share is 0.15 to 0.35 with
# one lane, 0.4 to 0.67 with two lanes and 0.8 with three lanes (goodput of nine pairs, 2 cores).
_UNCROWDED = 0.4
_LANE_LIMIT = 64
_WAITING_PER_LANE = 1  # a job that mostly waits lasts 1 minute and takes 3 s of CPU time, most of it for containers


@dataclass
class Concurrency:
    """The number of open lanes for jobs of each kind, between 1 and `most`. Thread-safe."""

    most: int
    _open: dict[Kind, int]
    adaptive: bool = False
    _loners: set[str] = field(default_factory=set)  # stacks that had to wait for a CPU although few lanes were open
    _calm: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> "Concurrency":
        """`auto` or a number from 1 to 64. Raises UsageError for anything else."""
        if text == "auto":
            most = _LANES_PER_CORE * (os.cpu_count() or 1)
            return cls(most=most, _open={kind: _first(kind) for kind in Kind}, adaptive=True)
        if not text.isdigit() or not 1 <= int(text) <= _LANE_LIMIT:
            raise UsageError(f"--lanes: '{text}' is neither 'auto' nor a number from 1 to {_LANE_LIMIT}.")
        return cls.fixed(int(text))

    @classmethod
    def fixed(cls, number: int) -> "Concurrency":
        """Exactly `number` lanes for every job."""
        return cls(most=number, _open=dict.fromkeys(Kind, number))

    @property
    def waiting(self) -> int:
        """How many jobs that mostly wait may run at the same time as other jobs; 0 when `--lanes` is a number."""
        return _WAITING_PER_LANE * self.most if self.adaptive else 0

    @property
    def all(self) -> int:
        """The highest number of jobs that run at the same time, of all kinds together."""
        return self.most + self.waiting

    def of(self, kind: Kind) -> int:
        """How many jobs may run at the same time when one of them is of `kind`."""
        return self._open[kind]

    def alone(self, job: Job, kind: Kind) -> bool:
        """True when the job must run alone: a measurement of a stack that was disturbed although few lanes were
        open."""
        return kind is Kind.MEASUREMENT and not self._loners.isdisjoint((job.server, job.client))

    def learn(self, result: Result, kind: Kind) -> None:
        """Open a lane after as many calm jobs as there are open lanes. Close a lane after a disturbed job. But when a
        stack had to wait for a CPU although few lanes were open, this stack runs alone from now on, and other stacks
        keep their lanes."""
        if not self.adaptive:
            return
        disturbed = next((finding for finding in result.findings if finding.code == "disturbed"), None)
        with self._lock:
            now = self._open[kind]
            if disturbed is not None and disturbed.role and now <= _first(kind):
                self._loners.add(result.server if disturbed.role == Role.SERVER.value else result.client)
            elif disturbed is not None:
                self._open[kind], self._calm[kind] = max(1, now - 1), 0
            elif _is_calm(result, kind):
                self._calm[kind] += 1
                if self._calm[kind] >= now and now < self.most:
                    self._open[kind], self._calm[kind] = now + 1, 0


def _first(kind: Kind) -> int:
    """The number of open lanes for jobs of `kind` at the start."""
    return _FIRST_PER_CORE[kind] * (os.cpu_count() or 1)


def _is_calm(result: Result, kind: Kind) -> bool:
    """True when the job was so calm that one more lane may be tried."""
    if result.truth is None or _lateness(result.truth) >= _CALM[kind]:
        return False
    return kind is Kind.TEST_CASE or (result.cpu_pressure or 0.0) < _UNCROWDED


def _lateness(truth: LinkTruth) -> float:
    return max(truth.lateness_p99, truth.receive_lateness_p99)


def concurrency(lanes: str, clock: str) -> Concurrency:
    """The number of jobs that run at the same time. `auto` means one guest for each core: a guest uses one core."""
    if lanes == "auto" and clock == VIRTUAL:
        return Concurrency.fixed(len(os.sched_getaffinity(0)))
    return Concurrency.parse(lanes)


# Places where the jobs of a run can run: lanes of this host, guests, the hosts of real links.


class Opened(NamedTuple):
    """A place that is ready for jobs. `not_compliant`: the reasons why stacks break the contract, by name and role."""

    deployment: Deployment
    not_compliant: Mapping[tuple[str, Role], str]


class Place(ABC):
    """The place where the jobs of one call run."""

    @abstractmethod
    def require(self, choice: Choice) -> None:
        """Raise UsageError for a choice that can't run here."""

    @abstractmethod
    def width(self, lanes: str) -> Concurrency:
        """The number of jobs that run at the same time, for a value of `--lanes`. Raises UsageError, and SetupError
        when this host has too little memory for them."""

    def probe(self, folder: RunFolder, todo: tuple[Job, ...], out: Console) -> Mapping[tuple[str, Role], str]:  # noqa: ARG002
        """Probe the images of `todo` here, before their jobs go to other hosts. Returns the reasons why images break
        the contract, by name and role; empty for a place that doesn't probe images."""
        return {}

    @abstractmethod
    def open(
        self, folder: RunFolder, todo: tuple[Job, ...], width: Concurrency, out: Console
    ) -> AbstractContextManager[Opened]:
        """Make the place ready for the jobs of `todo`; at the end remove everything. Prints each step."""


class LanePlace(Place):
    """Lanes of this host, in real time. They refuse no choice."""

    def require(self, choice: Choice) -> None:
        """Lanes run every choice of emulated links."""

    def width(self, lanes: str) -> Concurrency:
        return Concurrency.parse(lanes)

    def probe(self, folder: RunFolder, todo: tuple[Job, ...], out: Console) -> Mapping[tuple[str, Role], str]:
        with self.open(folder, todo, Concurrency.fixed(1), out) as opened:
            return opened.not_compliant

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Concurrency, out: Console) -> Iterator[Opened]:
        say = partial(out.print, soft_wrap=True, markup=False)
        with Emulated.open(folder.run, lanes=width.all, say=say) as lanes:
            yield Opened(lanes, lanes.probe(folder.path / "compliance.json", todo))


@dataclass(frozen=True)
class GuestPlace(Place):
    """Guests, in virtual time. They don't probe images. `saved`: images from archives, for a host without an engine."""

    saved: SavedImages | None = None

    def require(self, choice: Choice) -> None:
        for record in choice.records.values():
            if record.beside:
                raise UsageError(
                    f"--clock virtual: guests can't run the second flow of {record.name}: leave out --clock."
                )

    def width(self, lanes: str) -> Concurrency:
        width = concurrency(lanes, VIRTUAL)
        require_memory(width.all)  # before the kernel of guests is built, which takes minutes
        return width

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Concurrency, out: Console) -> Iterator[Opened]:  # noqa: ARG002
        with Guests.open(folder.run, lanes=width.all, scratch=LOGS / ".guests", saved=self.saved) as guests:
            yield Opened(guests, {})


@dataclass(frozen=True)
class LinkPlace(Place):
    """The hosts of real links. Each link is a lane. Images are probed in a lane of this host."""

    links: tuple[RealLink, ...]
    clock: str

    def require(self, choice: Choice) -> None:
        if self.clock != REAL:
            raise UsageError(f"--clock {self.clock}: a real link runs in real time; leave out --clock or --link.")
        for name in filter(None, choice.selection.vias):
            if not choice.catalog.middleboxes[name].crosses_real_links:
                raise UsageError(
                    f"--via {name}: between each other, its boxes use more than one UDP port of the gateway (no "
                    f"`link_port` in implementations.json), so they can't run at the ends of the real "
                    f"link {self.links[0].name}: leave {name} out."
                )
        for record in choice.records.values():
            if record.beside:
                raise UsageError(f"--case {record.name}: no second flow runs over a real link: leave out --link.")

    def width(self, lanes: str) -> Concurrency:
        if lanes != "1":
            raise UsageError(f"--lanes {lanes}: a real link carries one job at a time; leave out --lanes or --link.")
        return Concurrency.fixed(len(self.links))

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Concurrency, out: Console) -> Iterator[Opened]:  # noqa: ARG002
        from runner.places.links.real_links import RealLinks  # noqa: PLC0415 - SSH is slow to import

        not_compliant = LanePlace().probe(folder, todo, out)
        say, shipping = partial(out.print, soft_wrap=True, markup=False), _Shipping(out)
        with RealLinks.open(folder.run, self.links, ledger=LEDGER, say=say, report=shipping.report) as links:
            yield Opened(links, not_compliant)


@dataclass
class _Shipping:
    """Prints the progress of an image that is sent to a host, in steps of 10 %."""

    out: Console
    _last: str = field(default="")

    def report(self, image: str, sent: int, size: int) -> None:
        tenth = f"  {image}: {10 * sent // max(1, size) * 10} % of {format_size(size)}"
        if tenth != self._last:
            self.out.print(tenth, soft_wrap=True)
            self._last = tenth


def place_of(choice: Choice, clock: str, saved: SavedImages | None = None) -> Place:
    """The place for the jobs of `clock`. `saved`: images from archives, for virtual time without Docker."""
    if choice.real:
        return LinkPlace(choice.real, clock)
    return GuestPlace(saved) if clock == VIRTUAL else LanePlace()


# The open place where the jobs of a check or a comparison run: lanes of this host, or guests in virtual time.

Say = Callable[[str], None]


class OpenPlace(ABC):
    """A place for jobs that several runs share. Each run has its own deployment there."""

    runs_at_once: bool
    """True when two runs can run at the same time without disturbing each other."""
    unprobed: str
    """Reason why images are not probed here. Empty when they are probed."""

    @abstractmethod
    def deployment(self, run: Run, specs: Mapping[tuple[str, Role], EndpointSpec]) -> Deployment:
        """The deployment for the jobs of `run`. `specs`: endpoints that aren't plain images; only
        lanes can run a local build."""

    @abstractmethod
    def probe(self, run: Run, path: Path, jobs: Sequence[Job]) -> Mapping[tuple[str, Role], str]:
        """Why images of `jobs` break the contract, by name and role. `path`: the file that stores the results."""

    @abstractmethod
    def blocks(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Divide the jobs into blocks. Runs that disturb each other take turns after each block."""


@dataclass(frozen=True)
class OpenLanes(OpenPlace):
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
class OpenGuests(OpenPlace):
    """Guests, in virtual time, whose images are not probed."""

    host: GuestHost
    runs_at_once = True
    unprobed = "The probe with an unknown test case (exit code 127) runs in real time only."

    def deployment(self, run: Run, specs: Mapping[tuple[str, Role], EndpointSpec]) -> Deployment:
        return Guests(run, self.host, specs)

    def probe(self, run: Run, path: Path, jobs: Sequence[Job]) -> Mapping[tuple[str, Role], str]:  # noqa: ARG002
        return {}

    def blocks(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """One block with all jobs."""
        return [list(jobs)] if jobs else []


@contextmanager
def open_place(run: Run, width: Concurrency, say: Say, saved: SavedImages | None = None) -> Iterator[OpenPlace]:
    """The open place for the clock of `run`. `say` is called with a sentence when the engine stops answering, and
    when it answers again. `saved`: images from archives, for guests without an engine."""
    if run.clock == REAL:
        with Lanes.open(run.name, lanes=width.all, say=say) as lanes:
            yield OpenLanes(lanes)
    else:
        scratch = LOGS / ".guests"
        with GuestHost.open(run.name, Setting.of(run), lanes=width.all, scratch=scratch, saved=saved) as host:
            yield OpenGuests(host)
