"""A deployment whose jobs run on workers. When a worker is lost, its jobs are sent again, also to other workers."""

import io
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from runner.errors import LaneError, SetupError, first_line
from runner.files.safe_files import remove_tree
from runner.model.codes import another_attempt_helps
from runner.model.deployment import Deployment
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import Run
from runner.workers.cluster import LANE, security, source_digest
from runner.workers.host import introduce, run_order, tell
from runner.workers.images import Wanted, bring, required_images
from runner.workers.invitation import Address, Invitation
from runner.workers.parcel import Order, Parcel, part_of, unpack
from runner.workers.roster import Member, Roster, Spread
from runner.workers.shared import clean, take

_LOOK = 1.0  # seconds between updates of the list of workers
_WAIT = 0.2
_PATIENCE = 15.0  # seconds for a worker's answer to a query
_CONNECT_SECONDS = 60.0  # seconds for a scheduler that starts on a busy host
_IMAGE_SECONDS = 1800.0  # seconds for a worker's engine to pull or load an image
_ADMISSIONS = 8  # workers that are admitted in parallel
_DELIVERIES = 20  # workers that may be lost during one attempt at a job


class Workers(Deployment):
    """A deployment. Construct with `open`. `run` may be called from any number of threads, also from more than
    `window`."""

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
        self._required: tuple[Wanted, ...] | None = None
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
        """Connect to the scheduler at `address`. `url`: a folder that runner and workers share, for archives.

        Raises SetupError when no scheduler answers.
        """
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
        self._learn(result.host.get("worker", ""), f"{first.code}: {first.actual}" if fault and first else "")

    def _learn(self, worker: str, fault: str) -> None:
        with self._state:
            sentence = self._roster.learn(worker, fault=fault)
            address = next((member.address for member in self._roster.members.values() if member.name == worker), "")
        if sentence:
            self._say(sentence)
            with suppress(Exception):  # the worker may have ended
                self._ask(address, tell, sentence)

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        """Run `job` on a worker and write its files into `folder`. Raises LaneError when no worker could run it, or
        when the run was stopped."""
        for _ in range(_DELIVERIES):
            member = self._take(job)
            try:
                parcel = self._deliver(job, member, attempt)
            finally:
                with self._state:
                    self._roster.give_back(member)
                    self._state.notify_all()
            if parcel is None:
                continue
            if parcel.error is not None and parcel.error["code"] == "stopped":
                continue  # the worker was ended
            if parcel.error is not None:
                self._learn(member.name, f"{parcel.error['code']}: {parcel.error['message']}")
                raise LaneError(parcel.error["code"], f"{member.name}: {parcel.error['message']}")
            self._unpack(parcel, folder)
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

    def _deliver(self, job: Job, member: Member, attempt: int) -> Parcel | None:
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
            parcel: Parcel = future.result(_PATIENCE)
        except LaneError:
            raise
        except Exception:  # Dask has a dozen errors for a lost connection; a worker's own errors are in parcels
            self._stopped.wait(_LOOK)
            return None
        return parcel

    def _unpack(self, parcel: Parcel, folder: Path) -> None:
        try:
            unpack(take(self._store, parcel.place) if parcel.place else io.BytesIO(parcel.archive), parcel, folder)
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
                noun = "lane" if lanes == 1 else "lanes"
                self._say(f"{member.name} takes part with {lanes} {noun} ({introduction['cpu']}).")
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
            with self._sending:  # one worker at a time, because the runner's own connection is the bottleneck
                if self._required is None:
                    self._required = required_images(self._run)
                bring(
                    self._required,
                    partial(self._ask, member.address, patience=_IMAGE_SECONDS),
                    say=lambda text: self._say(f"{member.name}: {text}"),
                )
        except SetupError as error:
            return str(error).rstrip(".")
        return ""

    def _ask(self, address: str, question: Callable[..., Any], *arguments: object, patience: float = _PATIENCE) -> Any:
        """Call a function on one worker and return its result. The worker's jobs don't delay the call. `patience`: the
        longest wait, in seconds."""
        return self._client.submit(question, *arguments, workers=[address], pure=False, priority=10).result(patience)
