"""Workers as the place of a run's jobs. A scheduler sends the jobs to workers on other hosts (docs/workers.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from runner.campaign.places import Opened, Place
from runner.campaign.width import Width
from runner.config.choice import Choice
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import Kind
from runner.plan import runs
from runner.store import RunFolder
from runner.workers.cluster import use_dask
from runner.workers.invitation import Address, Invitation, accepted
from runner.workers.roster import Spread
from runner.workers.workers import Workers

_FEWEST, _MOST = 64, 2048  # limits of the number of threads that wait for jobs. Workers may join later
_GROWTH = 4  # the number of threads, as a multiple of the jobs that the workers accept at the start of the run


@dataclass
class WorkerWidth(Width):
    """The number of jobs that run at the same time: as many as the present workers accept. Results are passed on to the
    roster of workers, which gives no more jobs to workers that disturb."""

    workers: Workers | None = field(default=None, kw_only=True)

    def follow(self, workers: Workers) -> None:
        """Take the number of jobs from `workers` from now on."""
        self.workers = workers
        self.most = min(_MOST, max(_FEWEST, _GROWTH * workers.window))

    def of(self, kind: Kind) -> int:  # noqa: ARG002 - a worker's lanes run jobs of both kinds
        """The number of jobs that may run now."""
        return max(1, self.workers.window) if self.workers else 1

    def learn(self, result: Result, kind: Kind) -> None:  # noqa: ARG002 - a worker can disturb jobs of both kinds
        """Pass the result of a job on to the workers."""
        if self.workers:
            self.workers.learn(result)


@dataclass(frozen=True)
class WorkerPlace(Place):
    """The workers of the scheduler at `address`. Images are probed in a lane of this host.

    `local`: the place that would run these jobs without workers. `store`: a URL that runner and workers share.
    """

    local: Place
    address: Address
    invitation: Invitation
    spread: Spread
    store: str

    @classmethod
    def at(cls, local: Place, url: str, *, spread: str, store: str) -> "WorkerPlace":
        """The workers at `tls://HOST:PORT`. Raises UsageError without an invitation, SetupError without Dask."""
        address = Address.parse(url)
        invitation = accepted(runs.LOGS, address, None)
        use_dask()
        return cls(local, address, invitation, Spread(spread), store)

    def require(self, choice: Choice) -> None:
        if choice.real:
            raise UsageError(
                f"--on: the hosts of a real link are fixed, and {choice.real[0].name} is real: leave out --on."
            )
        self.local.require(choice)

    def width(self, lanes: str) -> Width:
        if lanes != "1":
            raise UsageError(f"--lanes {lanes}: each worker has its own number of lanes; leave out --lanes with --on.")
        return WorkerWidth(most=_FEWEST, _open={})

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Width, out: Console) -> Iterator[Opened]:
        not_compliant = self.local.probe(folder, todo, out)
        say = partial(out.print, soft_wrap=True, markup=False)
        with Workers.open(
            folder.run, self.address, self.invitation, spread=self.spread, url=self.store, say=say
        ) as workers:
            assert isinstance(width, WorkerWidth), "it comes from `width` above"
            width.follow(workers)
            yield Opened(workers, not_compliant)
