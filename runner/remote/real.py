"""A deployment whose jobs run over real links, between the two hosts of each link."""

import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import docker

from runner.engine import engine as host_engine
from runner.engine.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.engine.owner import Owner
from runner.engine.sweep import remove_own, sweep
from runner.errors import LaneError, SetupError
from runner.inputs.inputs import certificates, path_keys
from runner.lanes.holders import TOOLS
from runner.lanes.lane_job import lane_job
from runner.lanes.served import Served
from runner.lanes.supervised import Bell
from runner.model.artifacts import Artifacts, Evidence
from runner.model.deployment import Deployment
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.middlebox import Box
from runner.model.pause import Pause
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord, Run
from runner.remote import reach
from runner.remote.collected import Collected
from runner.remote.engine import RemoteEngine
from runner.remote.experiment import BASELINE_SECONDS, CLIENT_START, RealExperiment, station_kind
from runner.remote.probes import PROBE_BYTES, probe_period
from runner.remote.shipping import Report, Shipping
from runner.remote.volume import Ledger
from runner.store import save_evidence
from runner.units import format_size

Say = Callable[[str], None]
_OVERHEAD = 1.15  # bytes on the link per byte of file: headers, ACKs, a few retransmissions
FIND_BYTES = 60_000  # bytes that are charged to the link for the search for an address
_SSH_OVERHEAD = 1.05  # bytes of IP packets per byte that SSH carries: headers, ACKs
_COPIES_OVER_SSH = 2  # copies of a job's bytes: client's capture and downloads; a remote server adds its capture
_LOGS_OVER_SSH = 2_000_000  # bytes of logs and of calls to the engine


@dataclass(kw_only=True)
class _Open:
    """A link whose hosts are ready."""

    link: RealLink
    engines: dict[Role, Engine]
    served: Served
    reach: reach.Reach


class RealLinks(Deployment):
    """A deployment over real links: one job per link at a time. Construct with `open`."""

    def __init__(self, run: Run, ledger: Ledger, now: Callable[[], datetime]) -> None:
        self._run = run
        self._ledger = ledger
        self._now = now
        self._prefix = f"bentpipe-{secrets.token_hex(4)}"
        self._labels = {LABEL_OWNER: str(Owner.current()), LABEL_RUN: run.name, LABEL_LANES: self._prefix}
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._links: dict[str, _Open] = {}
        self._collected = Collected()
        self._say: Say = lambda _: None
        self._box_keys = path_keys() if any(run.vias) else {}

    @classmethod
    @contextmanager
    def open(
        cls,
        run: Run,
        links: tuple[RealLink, ...],
        *,
        ledger: Path,
        say: Say,
        report: Report,
        now: Callable[[], datetime] = datetime.now,
    ) -> Iterator["RealLinks"]:
        """Connect to the hosts, remove leftovers of killed runners there, send missing images, find addresses. Raises
        SetupError with the problem of a host and the fix. Removes everything at the end.
        """
        opened = cls(run, Ledger(ledger), now)
        opened._say = say
        local = host_engine.connect()
        with ExitStack() as stack:
            engines: dict[str, Engine] = {}
            for link in links:
                opened._links[link.name] = opened._open(link, local, engines, stack, say=say, report=report)
            try:
                yield opened
            finally:
                opened._stop.set()

    def _open(
        self,
        link: RealLink,
        local: docker.DockerClient,
        engines: dict[str, Engine],
        stack: ExitStack,
        *,
        say: Say,
        report: Report,
    ) -> _Open:
        by_role = {}
        for role, host in ((Role.CLIENT, link.client), (Role.SERVER, link.server)):
            name = host.name if host is not None else ""
            if name not in engines:
                if host is not None:
                    say(f"{link.name}: connecting to {host.name}")
                engine = RemoteEngine.open(host, self._labels) if host is not None else Engine(local, self._labels)
                stack.callback(self._close, engine, name, say)
                removed = sweep(engine)
                if removed:
                    say(f"{name or 'this host'}: {removed} containers and volumes of dead runners removed")
                engines[name] = engine
            by_role[role] = engines[name]
            if isinstance(engine := engines[name], RemoteEngine):
                self._ship(engine, local, link, role, say=say, report=report)
        reached = self._find(link, by_role, say)
        served = Served(by_role[Role.SERVER], f"{self._prefix}-{link.name}")
        return _Open(link=link, engines=by_role, served=served, reach=reached)

    def _find(self, link: RealLink, engines: dict[Role, Engine], say: Say) -> reach.Reach:
        """The addresses of the server for a link's jobs. Raises SetupError when the client's host reaches none."""
        say(f"{link.name}: looking for an address of the server that {link.client.name} reaches")
        client, server = engines[Role.CLIENT], engines[Role.SERVER]
        # The address according to SSH may be a public address that no interface of the server's host has.
        if isinstance(server, RemoteEngine):
            seen_as = server.tunnel.connection.peer_address()
        else:
            seen_as = client.tunnel.connection.own_address() if isinstance(client, RemoteEngine) else ""
        self._ledger.add(link.name, FIND_BYTES, today=self._now().date())
        try:
            name = f"{self._prefix}-{next(self._numbers)}"
            reached = reach.find(link, client, server, Bell(self._stop), name=name, seen_as=seen_as)
        except LaneError as error:
            raise SetupError(str(error)) from error
        for candidate in reached.known:
            problem = candidate.problem(link)
            rtt = f"RTT {candidate.rtt * 1e3:.0f} ms" if candidate.rtt is not None else ""
            chosen = "chosen" if reached.chosen.get(candidate.family) == candidate else "works"
            say(f"  {candidate.address} over {candidate.interface or 'nothing'}: {problem or f'{chosen}, {rtt}'}")
        return reached

    def _close(self, engine: Engine, name: str, say: Say) -> None:
        try:
            remove_own(engine, {LABEL_LANES: self._prefix})
        except LaneError as error:  # results are stored already, so this error must not end the run
            say(f"{name or 'this host'} could not be cleaned up; its watchdogs will remove the rest. {error}")
        finally:
            engine.close()

    def _ship(
        self,
        engine: RemoteEngine,
        local: docker.DockerClient,
        link: RealLink,
        role: Role,
        *,
        say: Say,
        report: Report,
    ) -> None:
        """Bring the image of the tools, and the images of stacks and boxes for this role on this link, to the host."""
        jobs = [job for job in self._run.order if self._link_of(job) == link.name]
        names = {job.client if role is Role.CLIENT else job.server for job in jobs}
        box = Box.TERMINAL if role is Role.CLIENT else Box.GATEWAY
        vias = [self._run.middleboxes[name] for name in sorted({job.via for job in jobs if job.via})]
        images = [
            TOOLS,
            *(self._run.implementations[name].image for name in sorted(names)),
            *(via.image for via in vias if box in via.boxes),
        ]
        shipping = Shipping(engine, local)
        lacking = shipping.missing(images)
        for number, image in enumerate(lacking, start=1):
            say(f"{engine.name}: {image} is missing there, {number} of {len(lacking)}")
            # A client's host without another connection would pull over the link, and the bytes could not be counted.
            if not (link.ssh_over_link and role is Role.CLIENT) and shipping.pull(image):
                continue
            with shipping.packed(image) as parcel:
                say(f"  {parcel.lacking} of its {len(parcel.layers)} layers, {format_size(parcel.size)} compressed")
                with self._charging(engine, link, parcel.size) if link.ssh_over_link else nullcontext():
                    shipping.send(parcel, report=report)

    @contextmanager
    def _charging(self, engine: RemoteEngine, link: RealLink, size: int) -> Iterator[None]:
        """Charge the bytes that SSH carries inside the context to its link; about `size` bytes are reserved before."""
        purpose, expected = f"an image that {engine.name} lacks takes", round(size * _SSH_OVERHEAD)
        with self._ledger.reserved(link, expected, today=self._now().date(), purpose=purpose) as reservation:
            try:
                yield
            finally:
                reservation.used = _carried(link, (engine,))

    def _link_of(self, job: Job) -> str:
        record = self._run.case(job).real_link
        return record.name if record is not None else ""

    def lane_of(self, job: Job) -> int:
        """The lane of the job's link: each link has its own lane."""
        return list(self._links).index(self._link_of(job))

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt is the same
        """Run `job` over its link. Raises BudgetError when the link's volume is used up, HostRefusedError when a host
        refuses the login, LaneError for other errors."""
        opened = self._links[self._link_of(job)]
        case = self._run.case(job)
        for engine in opened.engines.values():
            if isinstance(engine, RemoteEngine):
                engine.require_welcome(self._stop, self._say)
        link, expected = opened.link, expected_volume(opened.link, case)
        with self._ledger.reserved(link, expected, today=self._now().date()) as reservation:
            evidence = self._measured(opened, job, folder)
            carried = seen_volume(link, Artifacts(folder), evidence)
            if carried is not None:
                reservation.used = carried + _carried(link, opened.engines.values())
        volume = expected if reservation.used is None else reservation.used
        if evidence.real_link is not None:
            evidence = replace(evidence, real_link=replace(evidence.real_link, volume=volume))
            save_evidence(Artifacts(folder), evidence)
        return evidence

    def _measured(self, opened: _Open, job: Job, folder: Path) -> Evidence:
        """Run a job without checking the budget, and remove its containers and volumes from its hosts."""
        case = self._run.case(job)
        port = station_kind(lane_job(self._run, job, folder)).url_port(opened.link.udp_port)
        spec = lane_job(self._run, job, folder, port=port)
        experiment = RealExperiment(
            spec,
            opened.link,
            reach=opened.reach,
            engines=opened.engines,
            served=opened.served,
            certificates=certificates(chain_length=case.chain_length),
            box_keys=self._box_keys,
            collected=self._collected.job(),
            bell=Bell(self._stop),
            host=case.host,
            prefix=self._prefix,
        )
        try:
            return experiment.run()
        finally:
            # When a host can't be reached, its watchdog removes the rest of the job later. The job's result counts.
            with suppress(LaneError):
                experiment.discard()

    def resting(self, lane: int) -> str:
        """A sentence about the quiet hours of a lane's link; empty outside of them."""
        return resting(list(self._links.values())[lane].link, self._now)

    def stop(self) -> None:
        """Make running jobs end soon."""
        self._stop.set()


def resting(link: RealLink, now: Callable[[], datetime]) -> str:
    """The sentence for quiet hours; empty outside of them."""
    pauses = [Pause.parse(span, now) for span in link.quiet_hours]
    last = max(pauses, key=Pause.seconds_left, default=None)
    if last is None or not last.seconds_left():
        return ""
    return (
        f"{link.name}: quiet hours until {last.end:%H:%M}, then its jobs continue by themselves. Ctrl-C ends the run; "
        "the same command continues it later."
    )


def expected_volume(link: RealLink, case: CaseRecord) -> int:
    """The expected number of bytes that a job of the case puts on the link."""
    seconds = 2 * BASELINE_SECONDS + 8 * sum(case.file_sizes) / link.forward_rate
    transfer = sum(case.file_sizes) * _OVERHEAD
    copies = _COPIES_OVER_SSH + (link.server is not None)
    over_ssh = (copies * transfer + _LOGS_OVER_SSH) * _SSH_OVERHEAD if link.ssh_over_link else 0.0
    return round(transfer + over_ssh + 2 * PROBE_BYTES * seconds / probe_period(link))


def seen_volume(link: RealLink, artifacts: Artifacts, evidence: Evidence) -> int | None:
    """Bytes of IP packets that a job put on the link; its captures are a little larger. None: unknown, because the
    client ran and no capture could be copied."""
    captures = (*artifacts.link_captures, artifacts.client_capture, artifacts.server_capture)
    sizes = [path.stat().st_size for path in captures if path.is_file()]
    if not sizes and CLIENT_START in evidence.stages_s:
        return None
    return max(sizes, default=0) + round(2 * PROBE_BYTES * evidence.wall_s / probe_period(link))


def _carried(link: RealLink, engines: Iterable[Engine]) -> int:
    """Bytes of IP packets that SSH has put on the link since the last call; 0 when SSH does not cross the link."""
    if not link.ssh_over_link:
        return 0
    carried = 0
    for engine in engines:
        if isinstance(engine, RemoteEngine):
            tunnel = engine.tunnel
            carried, tunnel.charged = carried + tunnel.carried - tunnel.charged, tunnel.carried
    return round(carried * _SSH_OVERHEAD)
