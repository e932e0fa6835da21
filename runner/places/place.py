"""Places where jobs run, and how many jobs run there at the same time."""

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self

from runner.errors import UsageError
from runner.images.pulling import SavedImages
from runner.model.link import RealLink
from runner.model.result import Evidence, Result
from runner.model.run import REAL, VIRTUAL, ClientKind, Job, Kind, Run
from runner.model.stack import Role
from runner.paths import LEDGER, LOGS
from runner.places.guests.guests import GuestHost, Setting
from runner.places.guests.processes import require_memory
from runner.places.lane_job import Deployment, LaneJob, Specs, lane_job
from runner.places.lanes.lanes import Lanes
from runner.plan.choice import Selection
from runner.store.runs import write_atomically
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
        """True when the job must run alone: a measurement of a stack that few open lanes already disturbed."""
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
    truth = result.truth
    if truth is None or max(truth.lateness_p99, truth.receive_lateness_p99) >= _CALM[kind]:
        return False
    return kind is Kind.TEST_CASE or (result.cpu_pressure or 0.0) < _UNCROWDED


# Places where jobs run: lanes of this host, guests, the hosts of real links, and workers (`runner.places.workers`).

Say = Callable[[str], None]
Problems = Mapping[tuple[str, Role], str]  # the reasons why stacks break the contract, by name and role
_NO_SPECS: Specs = MappingProxyType({})


class JobHost(Protocol):
    """Lanes or guests of this host."""

    def run(self, job: LaneJob) -> Evidence:
        """Run a job in a free lane or guest, and fill its folder. Raises LaneError."""
        ...

    def stop(self) -> None:
        """Make running jobs end soon."""
        ...


class HostDeployment(Deployment):
    """The jobs of one run in lanes or guests of this host."""

    def __init__(self, run: Run, host: JobHost, specs: Specs) -> None:
        self._run = run
        self._host = host
        self._specs = specs

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt has the same seed
        """Run `job`. Raises LaneError when the harness can't run it."""
        return self._host.run(lane_job(self._run, job, folder, specs=self._specs))

    def stop(self) -> None:
        """Make running jobs end soon, of all runs on this host."""
        self._host.stop()


@dataclass(kw_only=True)
class Place(ABC):
    """A place where jobs run. `refuse` and `width` need nothing. The other methods need an open place; several runs may
    share it. `say` is called with a sentence for each step, and when an engine stops answering."""

    say: Say = lambda _: None
    runs_at_once = False  # True: two runs can run here at the same time without disturbing each other
    unprobed = ""  # why images are not probed here; empty: they are probed

    @abstractmethod
    def refuse(self, selection: Selection) -> None:
        """Raise UsageError for a selection that can't run here."""

    @abstractmethod
    def width(self, lanes: str) -> Concurrency:
        """The number of jobs that run at the same time, for a value of `--lanes`; an open place with workers asks them.
        Raises UsageError, and SetupError when this host has too little memory for them."""

    @abstractmethod
    def open(self, run: Run, width: Concurrency) -> AbstractContextManager[Self]:
        """Make the place ready for the jobs of `run`, without leftovers of killed runners; clean up at the end."""

    @abstractmethod
    def deployment(self, run: Run, specs: Specs = _NO_SPECS) -> Deployment:
        """The deployment for the jobs of `run`. `specs`: endpoints that aren't plain images, by stack and role; the
        environment of a job is added to their environment."""

    def probe(self, run: Run, record: Path, jobs: Iterable[Job]) -> Problems:
        """The reasons why stacks of `jobs` break the contract. Each image is probed once per role in a lane of this
        host; the file `record` (JSON, by image id) stores the results for later calls."""
        return LanePlace(say=self.say).probe(run, record, jobs)


@dataclass(kw_only=True)
class HostPlace(Place):
    """A place on this host."""

    _host: JobHost | None = None

    def deployment(self, run: Run, specs: Specs = _NO_SPECS) -> HostDeployment:
        assert self._host is not None, "the place is open"
        return HostDeployment(run, self._host, specs)

    def stop(self) -> None:
        """Make running jobs end soon."""
        if self._host is not None:
            self._host.stop()


@dataclass(kw_only=True)
class LanePlace(HostPlace):
    """Lanes of this host, in real time."""

    _host: Lanes | None = None

    def refuse(self, selection: Selection) -> None:
        """Lanes run every selection of emulated links."""

    def width(self, lanes: str) -> Concurrency:
        return Concurrency.parse(lanes)

    @contextmanager
    def open(self, run: Run, width: Concurrency) -> Iterator[Self]:
        with Lanes.open(run.name, lanes=width.all, say=self.say) as self._host:
            yield self

    def probe(self, run: Run, record: Path, jobs: Iterable[Job]) -> Problems:
        """As in `Place`. A place that is not open opens one lane meanwhile."""
        # The downloader, the browser and the origin of this project have another contract.
        stack_jobs = [job for job in jobs if run.case(job).client is ClientKind.STACK]
        endpoints = {(job.server, Role.SERVER) for job in stack_jobs} | {
            (job.client, Role.CLIENT) for job in stack_jobs
        }
        known: dict[str, dict[str, object]] = json.loads(record.read_bytes()) if record.is_file() else {}
        problems = {}
        with nullcontext(self._host) if self._host else Lanes.open(run.name, lanes=1, say=self.say) as lanes:
            for name, role in sorted(endpoints):
                stack = run.implementations[name]
                key = (
                    f"{stack.variant_of or name}/{role.value}/{stack.image_id}"  # a variant has the image of its stack
                )
                if key not in known:
                    answer = lanes.probe(stack.image, role)
                    known[key] = asdict(answer)
                    write_atomically(record, json.dumps(known, indent=1, sort_keys=True).encode())
                if problem := str(known[key]["problem"]):
                    problems[name, role] = problem
        return problems


@dataclass(kw_only=True)
class GuestPlace(HostPlace):
    """Guests, in virtual time. `saved`: images from archives, without an engine. `scratch`: for jobs and disks."""

    saved: SavedImages | None = None
    scratch: Path = LOGS / ".guests"
    runs_at_once = True
    unprobed = "The probe with an unknown test case (exit code 127) runs in real time only."

    def refuse(self, selection: Selection) -> None:
        for record in selection.cases.values():
            if record.beside:
                raise UsageError(
                    f"--clock virtual: guests can't run the second flow of {record.name}: leave out --clock."
                )

    def width(self, lanes: str) -> Concurrency:
        """`auto` means one guest for each core: a guest uses one core."""
        width = Concurrency.fixed(len(os.sched_getaffinity(0))) if lanes == "auto" else Concurrency.parse(lanes)
        require_memory(width.all)  # before the kernel of guests is built, which takes minutes
        return width

    @contextmanager
    def open(self, run: Run, width: Concurrency) -> Iterator[Self]:
        setting, scratch = Setting.of(run), self.scratch
        with GuestHost.open(run.name, setting, lanes=width.all, scratch=scratch, saved=self.saved) as self._host:
            yield self

    def probe(self, run: Run, record: Path, jobs: Iterable[Job]) -> Problems:  # noqa: ARG002 - see `unprobed`
        return {}


@dataclass(kw_only=True)
class LinkPlace(Place):
    """The hosts of real links. Each link is a lane."""

    links: tuple[RealLink, ...]
    clock: str
    _deployment: Deployment | None = None

    def refuse(self, selection: Selection) -> None:
        if self.clock != REAL:
            raise UsageError(f"--clock {self.clock}: a real link runs in real time; leave out --clock or --link.")
        for name in filter(None, selection.vias):
            middlebox = selection.catalog.middleboxes[name]
            if not (middlebox.link_port or middlebox.forwards):
                raise UsageError(
                    f"--via {name}: between each other, its boxes use more than one UDP port of the gateway (no "
                    f"`link_port` in implementations.json), so they can't run at the ends of the real "
                    f"link {self.links[0].name}: leave {name} out."
                )
        for record in selection.cases.values():
            if record.beside:
                raise UsageError(f"--case {record.name}: no second flow runs over a real link: leave out --link.")

    def width(self, lanes: str) -> Concurrency:
        if lanes != "1":
            raise UsageError(f"--lanes {lanes}: a real link carries one job at a time; leave out --lanes or --link.")
        return Concurrency.fixed(len(self.links))

    @contextmanager
    def open(self, run: Run, width: Concurrency) -> Iterator[Self]:  # noqa: ARG002 - each link is a lane
        from runner.places.links.real_links import RealLinks  # noqa: PLC0415 - SSH is slow to import

        last = ""

        def report(image: str, sent: int, size: int) -> None:
            """Print the progress of an image that is sent to a host, in steps of 10 %."""
            nonlocal last
            tenth = f"  {image}: {10 * sent // max(1, size) * 10} % of {format_size(size)}"
            if tenth != last:
                self.say(tenth)
                last = tenth

        with RealLinks.open(run, self.links, ledger=LEDGER, say=self.say, report=report) as self._deployment:
            yield self

    def deployment(self, run: Run, specs: Specs = _NO_SPECS) -> Deployment:  # noqa: ARG002 - opened for one run
        assert self._deployment is not None, "the place is open"
        return self._deployment


def place_of(clock: str, *, links: tuple[RealLink, ...] = (), say: Say, saved: SavedImages | None = None) -> Place:
    """The place for jobs of `clock`, over their real `links`. `saved`: images from archives, without Docker."""
    if links:
        return LinkPlace(links=links, clock=clock, say=say)
    return GuestPlace(say=say, saved=saved) if clock == VIRTUAL else LanePlace(say=say)
