"""A deployment whose jobs run on workers: which worker gets a job, and the images that it needs."""

import hashlib
import io
import itertools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Self, cast

import docker
from docker.errors import DockerException

from runner.engine import engine
from runner.errors import LaneError, SetupError, UsageError, first_line
from runner.files import remove_tree
from runner.images import pulling
from runner.images.images import SIMULATOR
from runner.images.pulling import Answer, WantedImage
from runner.model.result import Outcome, Result, another_attempt_helps
from runner.model.run import VIRTUAL, Job, Kind, Run
from runner.paths import LOGS
from runner.places.guests.processes import IMAGE as GUEST
from runner.places.lane_job import Deployment, Specs
from runner.places.place import Concurrency, Place, Problems
from runner.places.supervised import TOOLS
from runner.places.workers.worker import (
    LANE,
    Address,
    Invitation,
    Order,
    OrderResult,
    accepted,
    clean,
    introduce,
    part_of,
    run_order,
    security,
    source_digest,
    take,
    tell,
    unpack,
    use_dask,
)
from runner.plan.choice import Selection
from runner.units import format_count

# Lists the workers and chooses a worker for each job. It uses no network. Its owner calls it under a lock, because
# it has no lock of its own.

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
        address of the worker that had the job before; it gets the job again only when there is no other worker."""
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
        sentence when the worker is benched now. The last worker is never benched."""
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


# A worker gets the images of a run: its engine pulls them by their digests, or the runner sends them.

_BLOCK = 4 << 20  # most bytes of one message


def required_images(client: docker.DockerClient, run: Run) -> list[WantedImage]:
    """The images that jobs of `run` need, as this host's engine has them. Raises SetupError for a missing image."""
    boxes, stacks = run.middleboxes.values(), run.implementations.values()
    names = [TOOLS, SIMULATOR, *(stack.image for stack in stacks), *(box.image for box in boxes)]
    if VIRTUAL in (run.clock, *run.clocks.values()):
        names.append(GUEST)
    return [WantedImage.of(client, name) for name in dict.fromkeys(names)]


@dataclass(frozen=True)
class WorkerHost:
    """A worker's host as a receiver of images. `call(function, …)` calls a function on the worker."""

    name: str
    call: Callable[..., Any]

    def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        return cast("Answer", self.call(of_engine, question, *arguments))

    def load(self, image: WantedImage, archive: IO[bytes], size: int) -> None:  # noqa: ARG002 - shows no progress
        """Send an archive in messages, and load it there. Raises SetupError."""
        place = self.call(begin)
        archive.seek(0)
        while block := archive.read(_BLOCK):
            self.call(append, place, block)
        if why := self.call(load, place, image):
            raise SetupError(f"{image.name} is not available there: {why}")


# The runner calls the functions below on the worker.


def of_engine(question: Callable[..., Answer], *arguments: Any) -> Answer:
    """The answer of a function about this host's engine, whose client is its first argument."""
    with closing(engine.client()) as client:
        return question(client, *arguments)


def begin() -> str:
    """Make a file for an archive. Returns its path."""
    with tempfile.NamedTemporaryFile(prefix="bentpipe-image-", delete=False) as file:
        return file.name


def append(place: str, block: bytes) -> None:
    """Append a block to an archive."""
    with Path(place).open("ab") as file:
        file.write(block)


def load(place: str, image: WantedImage) -> str:
    """Load the archive into the engine. Returns the reason of a failure; empty after a success."""
    try:
        with closing(engine.client()) as client, Path(place).open("rb") as file:
            pulling.load(client, image, iter(partial(file.read, _BLOCK), b""))
    except (SetupError, DockerException, OSError) as error:
        return first_line(error)
    finally:
        Path(place).unlink(missing_ok=True)
    return ""


# A deployment whose jobs run on workers. When a worker is lost, its jobs are sent again, also to other workers.

_LOOK = 1.0  # seconds between updates of the list of workers
_WAIT = 0.2
_PATIENCE = 15.0  # seconds for a worker's answer to a query
_CONNECT_SECONDS = 60.0  # seconds for a scheduler that starts on a busy host
_IMAGE_SECONDS = 1800.0  # seconds for a worker's engine to pull or load an image
_ADMISSIONS = 8  # workers that are admitted in parallel
_DELIVERIES = 20  # workers that may be lost during one attempt at a job


class Workers(Deployment):
    """A deployment. Construct with `open`. Any number of threads may call `run`, also more than `window`."""

    def __init__(
        self,
        run: Run,
        address: Address,
        invitation: Invitation,
        *,
        spread: Spread,
        url: str,
        say: Callable[[str], None],
    ) -> None:
        self._run = run
        self._identity = f"{run.name}-{run.started_unix_s:.0f}-{run.seed}"
        self._address = address
        self._invitation = invitation
        self._store = url
        self._say = say
        self._roster = Roster(spread=spread)
        self._state = threading.Condition()
        self._stopped = threading.Event()
        self._client: Any = None
        self._refused: set[str] = set()  # addresses of workers that can't take part
        self._coming: set[str] = set()  # addresses of workers that are being admitted
        self._admissions = ThreadPoolExecutor(_ADMISSIONS, thread_name_prefix="admission")
        self._sending = threading.Lock()
        self._nobody = False  # True: the last update found no worker
        self._required: list[WantedImage] | None = None
        self._last: dict[Job, str] = {}  # the worker that had the job's last attempt
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def open(
        cls,
        run: Run,
        address: Address,
        invitation: Invitation,
        *,
        spread: Spread = Spread.ANY,
        url: str = "",
        say: Callable[[str], None],
    ) -> Iterator["Workers"]:
        """Connect to the scheduler at `address`. `url`: a folder that runner and workers share, for archives. Raises
        SetupError when no scheduler answers."""
        opened = cls(run, address, invitation, spread=spread, url=url, say=say)
        opened._connect()
        if url:
            clean(url, opened._identity)
        opened._look()
        watcher = threading.Thread(target=opened._watch, name="workers", daemon=True)
        watcher.start()
        try:
            yield opened
        finally:
            opened.stop()
            watcher.join()
            opened._admissions.shutdown(wait=False, cancel_futures=True)
            opened._disconnect()

    @property
    def window(self) -> int:
        """The number of jobs that the present workers have at the same time: 1.5 times their lanes."""
        with self._state:
            return self._roster.window

    @property
    def members(self) -> tuple[Member, ...]:
        """The workers that take part now."""
        with self._state:
            return tuple(self._roster.members.values())

    def learn(self, result: Result) -> None:
        """Count a result for its worker. After several consecutive results that don't count, the worker is benched."""
        first = result.findings[0] if result.findings else None
        fault = result.outcome is Outcome.ERROR and first is not None and another_attempt_helps(first.code)
        self._learn(result.host.get("worker", ""), first.headline if fault and first else "")

    def _learn(self, worker: str, fault: str) -> None:
        with self._state:
            sentence = self._roster.learn(worker, fault=fault)
            address = next((member.address for member in self._roster.members.values() if member.name == worker), "")
        if sentence:
            self._say(sentence)
            with suppress(Exception):  # the worker may have ended
                self._ask(address, tell, sentence)

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        """Run `job` on a worker and write its files into `folder`. Raises LaneError, also when the run was stopped."""
        for _ in range(_DELIVERIES):
            member = self._take(job)
            try:
                order_result = self._deliver(job, member, attempt)
            finally:
                with self._state:
                    self._roster.give_back(member)
                    self._state.notify_all()
            if order_result is None:
                continue
            if order_result.error is not None and order_result.error["code"] == "stopped":
                continue  # the worker was ended
            if order_result.error is not None:
                self._learn(member.name, f"{order_result.error['code']}: {order_result.error['message']}")
                raise LaneError(order_result.error["code"], f"{member.name}: {order_result.error['message']}")
            self._unpack(order_result, folder)
            return
        raise LaneError("worker-lost", f"{_DELIVERIES} workers, one after the other, were lost while they had the job.")

    def _take(self, job: Job) -> Member:
        """Wait for a worker with room. Raises LaneError when the run is stopped."""
        with self._state:
            while not self._stopped.is_set():
                member = self._roster.place(job, avoid=self._last.get(job, ""))
                if member is not None:
                    self._last[job] = member.address
                    return member
                self._state.wait(_LOOK)
        raise LaneError("stopped", "The run was stopped while this job waited for a worker.")

    def _deliver(self, job: Job, member: Member, attempt: int) -> OrderResult | None:
        """The worker's answer to one order; None when the worker or the scheduler was lost."""
        key = f"{self._identity}/{job}/{attempt}/{next(self._numbers)}"
        order = Order(run=part_of(self._run, job), job=job, attempt=attempt, key=key, store=self._store)
        done = threading.Event()
        try:
            future = self._client.submit(
                run_order, order, key=key, workers=[member.address], resources={LANE: 1}, pure=False
            )
            future.add_done_callback(lambda _: done.set())
            while not done.wait(_WAIT):
                if self._stopped.is_set():
                    future.cancel(force=True)
                    raise LaneError("stopped", "The run was stopped while this job ran.")
                if member.gone:
                    future.cancel(force=True)
                    return None
            order_result: OrderResult = future.result(_PATIENCE)
        except LaneError:
            raise
        except Exception:  # Dask has a dozen errors for a lost connection; a worker's own errors are in order results
            self._stopped.wait(_LOOK)
            return None
        return order_result

    def _unpack(self, order_result: OrderResult, folder: Path) -> None:
        try:
            unpack(
                take(self._store, order_result.place) if order_result.place else io.BytesIO(order_result.archive),
                order_result,
                folder,
            )
        except LaneError:
            remove_tree(folder.parent, folder.name)
            folder.mkdir()
            raise

    def stop(self) -> None:
        """Stop waiting for running jobs; their workers then end them."""
        self._stopped.set()
        with self._state:
            self._state.notify_all()

    def _connect(self) -> None:
        from distributed import Client  # noqa: PLC0415 - an extra

        try:
            self._client = Client(
                str(self._address), security=security(self._invitation), timeout=_CONNECT_SECONDS, set_as_default=False
            )
        except (OSError, TimeoutError) as error:
            raise SetupError(
                f"No scheduler answers at {self._address} ({first_line(error)}): run "
                "`./bentpipe worker invite` there, and check the firewall."
            ) from error

    def _disconnect(self) -> None:
        with suppress(Exception):  # the scheduler may have ended
            self._client.close(timeout=2)

    def _watch(self) -> None:
        """Keep the roster up to date, and connect again when the scheduler was lost."""
        reported = False
        while not self._stopped.wait(_LOOK):
            try:
                self._look()
                if reported:
                    self._say(f"{self._address} answers again. The jobs that were running run again.")
                reported = False
            except Exception:  # any error of Dask
                if not reported:
                    self._say(
                        f"{self._address} does not answer. The run continues when it answers again; Ctrl-C ends it."
                    )
                reported = True
                self._update({})
                self._disconnect()
                with suppress(SetupError):
                    self._connect()

    def _look(self) -> None:
        self._update(self._client.scheduler_info(n_workers=-1)["workers"])

    def _update(self, addresses: Mapping[str, Any]) -> None:
        """Admit new workers, and remove workers that have gone."""
        with self._state:
            known = set(self._roster.members)
            for address in known - addresses.keys():
                self._say(f"{self._roster.members[address].name} has gone.")
                self._roster.lose(address)
            self._refused &= addresses.keys()
            new = addresses.keys() - known - self._refused - self._coming
            self._coming |= new
            nobody = not self._roster.members and not self._coming
            reported, self._nobody = self._nobody, nobody
        for address in new:
            self._admissions.submit(self._admit, address, addresses[address])
        if nobody and not reported:
            self._say(f"No worker takes part in {self._address} now: jobs wait until one does.")
        with self._state:
            self._state.notify_all()

    def _admit(self, address: str, facts: Mapping[str, Any]) -> None:
        """Admit one worker and bring its images, unless it runs another version."""
        lanes = int(facts["resources"].get(LANE, 0))
        try:
            introduction = self._ask(address, introduce)
            member = Member(address=address, name=introduction["worker"], host=introduction["name"], lanes=lanes)
            same = introduction["source"] == source_digest()
            why = "" if same else "its checkout of bentpipe differs from this one: update it"
            if introduction["images"] and same:
                why = self._bring_images(member)
            if not why and lanes:
                self._say(f"{member.name} takes part with {format_count(lanes, 'lane')} ({introduction['cpu']}).")
            with self._state:
                if why or not lanes:
                    self._refused.add(address)
                else:
                    self._roster.admit(member)
            if why:
                self._say(f"{member.name} gets no jobs: {why}.")
        except Exception:  # an error of Dask: the worker has gone or is not ready; the next update tries again
            return
        finally:
            with self._state:
                self._coming.discard(address)
                self._state.notify_all()

    def _bring_images(self, member: Member) -> str:
        """Bring the images of the run to a worker. Returns the reason of a failure; empty when the worker has them."""
        try:
            with self._sending, closing(engine.client()) as client:  # one at a time: this host's uplink limits them
                if self._required is None:
                    self._required = required_images(client, self._run)
                host = WorkerHost(member.name, partial(self._ask, member.address, patience=_IMAGE_SECONDS))
                pulling.bring(client, self._required, host, say=lambda text: self._say(f"{member.name}: {text}"))
        except SetupError as error:
            return str(error).rstrip(".")
        return ""

    def _ask(self, address: str, question: Callable[..., Any], *arguments: object, patience: float = _PATIENCE) -> Any:
        """The result of a function on one worker, beside its jobs. `patience`: the longest wait, in seconds."""
        return self._client.submit(question, *arguments, workers=[address], pure=False, priority=10).result(patience)


# Workers as the place of a run's jobs. A scheduler sends the jobs to workers on other hosts (docs/workers.md).

_FEWEST, _MOST = 64, 2048  # limits of the number of threads that wait for jobs. Workers may join later
_GROWTH = 4  # the number of threads, as a multiple of the jobs that the workers accept at the start of the run


@dataclass
class WorkerWidth(Concurrency):
    """The number of jobs that run at the same time: as many as the present workers accept. Results are passed on to the
    roster of workers, which gives no more jobs to workers that disturb."""

    workers: Workers = field(kw_only=True)

    @classmethod
    def following(cls, workers: Workers) -> "WorkerWidth":
        """Takes the number of jobs from `workers`."""
        return cls(most=min(_MOST, max(_FEWEST, _GROWTH * workers.window)), _open={}, workers=workers)

    def of(self, kind: Kind) -> int:  # noqa: ARG002 - a worker's lanes run jobs of both kinds
        """The number of jobs that may run now."""
        return max(1, self.workers.window)

    def learn(self, result: Result, kind: Kind) -> None:  # noqa: ARG002 - a worker can disturb jobs of both kinds
        """Pass the result of a job on to the workers."""
        self.workers.learn(result)


@dataclass(kw_only=True)
class WorkerPlace(Place):
    """The workers of the scheduler at `address`. `local`: the place that would run these jobs without workers. `store`:
    a URL that runner and workers share."""

    local: Place
    address: Address
    invitation: Invitation
    spread: Spread
    store: str
    _workers: Workers | None = None

    @classmethod
    def at(cls, local: Place, url: str, *, spread: str, store: str) -> "WorkerPlace":
        """The workers at `tls://HOST:PORT`. Raises UsageError without an invitation, SetupError without Dask."""
        address = Address.parse(url)
        invitation = accepted(LOGS, address, None)
        use_dask()
        return cls(
            local=local, address=address, invitation=invitation, spread=Spread(spread), store=store, say=local.say
        )

    def refuse(self, selection: Selection) -> None:
        if selection.real:
            raise UsageError(
                f"--on: the hosts of a real link are fixed, and {selection.real[0].name} is real: leave out --on."
            )
        self.local.refuse(selection)

    def width(self, lanes: str) -> Concurrency:
        if lanes != "1":
            raise UsageError(f"--lanes {lanes}: each worker has its own number of lanes; leave out --lanes with --on.")
        return Concurrency.fixed(1) if self._workers is None else WorkerWidth.following(self._workers)

    @contextmanager
    def open(self, run: Run, width: Concurrency) -> Iterator[Self]:  # noqa: ARG002 - workers have lanes of their own
        with Workers.open(
            run, self.address, self.invitation, spread=self.spread, url=self.store, say=self.say
        ) as self._workers:
            yield self

    def deployment(self, run: Run, specs: Specs = MappingProxyType({})) -> Deployment:  # noqa: ARG002 - opened for one run
        assert self._workers is not None, "the place is open"
        return self._workers

    def probe(self, run: Run, record: Path, jobs: Iterable[Job]) -> Problems:
        return self.local.probe(run, record, jobs)
