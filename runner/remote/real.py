"""The jobs of a run over real links: from the run's record to what the two hosts of a link are asked to do."""

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
from runner.errors import LaneError, SetupError, UsageError
from runner.inputs.inputs import certificates
from runner.lanes.holders import TOOLS
from runner.lanes.lane_job import lane_job
from runner.lanes.served import Served
from runner.lanes.supervised import Bell
from runner.model.artifacts import Artifacts, Evidence
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.pause import Pause
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord, Run
from runner.remote import reach
from runner.remote.engine import RemoteEngine
from runner.remote.experiment import BASELINE_SECONDS, CLIENT_START, RealExperiment
from runner.remote.probes import PROBE_BYTES, probe_period
from runner.remote.shipping import Report, Shipping
from runner.remote.volume import Ledger
from runner.store import save_evidence
from runner.units import format_size

Say = Callable[[str], None]
_OVERHEAD = 1.15  # bytes on the link per byte of file: headers, ACKs, a few retransmissions
FIND_BYTES = 60_000  # of the search for an address
_SSH_OVERHEAD = 1.05  # bytes of IP packets per byte that SSH carries: headers, ACKs
_COPIES_OVER_SSH = 2  # of what a job transfers: the client's capture, and its downloads; of a remote server one more
_LOGS_OVER_SSH = 2_000_000  # bytes: logs, calls of the engine


@dataclass(kw_only=True)
class _Open:
    """A link whose hosts are ready."""

    link: RealLink
    engines: dict[Role, Engine]
    served: Served
    reach: reach.Reach


class RealLinks:
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
        """Connect to the hosts, remove what killed runners left there, ship what is missing, find addresses.

        Raises UsageError for jobs over TCP, SetupError with what is wrong with a host, and the mend. At the end
        everything is removed.
        """
        if over_tcp := run.pairs_over_tcp(clock=run.clock):
            # Hosts hand TCP segments to their captures many at once (offloads), and a real link's port is one of UDP.
            raise UsageError(
                f"A real link carries QUIC alone, and {over_tcp[0]} speaks over TCP: leave it out, or name an emulated "
                "link such as `--link sat`."
            )
        opened = cls(run, Ledger(ledger), now)
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
        found = self._find(link, by_role, say)
        served = Served(by_role[Role.SERVER], f"{self._prefix}-{link.name}")
        return _Open(link=link, engines=by_role, served=served, reach=found)

    def _find(self, link: RealLink, engines: dict[Role, Engine], say: Say) -> reach.Reach:
        """The address of the server for a link's jobs."""
        say(f"{link.name}: looking for an address of the server that {link.client.name} reaches")
        client, server = engines[Role.CLIENT], engines[Role.SERVER]
        # Where the server's host has a public address that none of its interfaces has, this finds it.
        if isinstance(server, RemoteEngine):
            seen_as = server.tunnel.connection.peer_address()
        else:
            seen_as = client.tunnel.connection.own_address() if isinstance(client, RemoteEngine) else ""
        self._ledger.add(link.name, FIND_BYTES, today=self._now().date())
        try:
            name = f"{self._prefix}-{next(self._numbers)}"
            found = reach.find(link, client, server, Bell(self._stop), name=name, seen_as=seen_as)
        except LaneError as error:
            raise SetupError(str(error)) from error
        for one in found.known:
            problem = one.problem(link)
            rtt = f"RTT {one.rtt * 1e3:.0f} ms" if one.rtt is not None else ""
            chosen = "chosen" if found.chosen.get(one.family) == one else "works"
            say(f"  {one.address} over {one.interface or 'nothing'}: {problem or f'{chosen}, {rtt}'}")
        return found

    def _close(self, engine: Engine, name: str, say: Say) -> None:
        try:
            remove_own(engine, {LABEL_LANES: self._prefix})
        except LaneError as error:  # results are safe: this must not hide them
            say(f"{name or 'this host'} could not be cleaned up, its watchdogs will do it: {error}")
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
        """Bring the tools and the images of everybody who has this role on this link."""
        jobs = [job for job in self._run.order if self._link_of(job) == link.name]
        names = {job.client if role is Role.CLIENT else job.server for job in jobs}
        images = [TOOLS, *(self._run.implementations[name].image for name in sorted(names))]
        shipping = Shipping(engine, local)
        lacking = shipping.missing(images)
        for number, image in enumerate(lacking, start=1):
            say(f"{engine.name}: {image} is missing there, {number} of {len(lacking)}")
            # A client's host that has no other way would pull over the link, and nobody could say how much.
            if not (link.ssh_over_link and role is Role.CLIENT) and shipping.pull(image):
                continue
            with shipping.packed(image) as parcel:
                say(f"  {parcel.lacking} of its {len(parcel.layers)} layers, {format_size(parcel.size)} compressed")
                with self._charging(engine, link, parcel.size) if link.ssh_over_link else nullcontext():
                    shipping.send(parcel, report=report)

    @contextmanager
    def _charging(self, engine: RemoteEngine, link: RealLink, size: int) -> Iterator[None]:
        """Charge what SSH carries meanwhile to the link that it goes over, about `size` bytes of it beforehand."""
        what, expected = f"an image that {engine.name} lacks takes", round(size * _SSH_OVERHEAD)
        with self._ledger.reserved(link, expected, today=self._now().date(), what=what) as reservation:
            try:
                yield
            finally:
                reservation.used = _carried(link, (engine,))

    def _link_of(self, job: Job) -> str:
        record = self._run.case(job).real_link
        return record.name if record is not None else ""

    def lane_of(self, job: Job) -> int:
        """Which lane the job belongs to: one per link."""
        return list(self._links).index(self._link_of(job))

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt is the same
        """Run `job` over its link. Raises BudgetError when its volume is used up, HostRefusedError when a host lets us
        in no more, LaneError when it can't do it."""
        opened = self._links[self._link_of(job)]
        case = self._run.case(job)
        for engine in opened.engines.values():
            if isinstance(engine, RemoteEngine):
                engine.require_welcome()
        link, expected = opened.link, expected_volume(opened.link, case)
        with self._ledger.reserved(link, expected, today=self._now().date()) as reservation:
            evidence = self._measured(opened, job, folder)
            seen = seen_volume(link, Artifacts(folder), evidence)
            if seen is not None:
                reservation.used = seen + _carried(link, opened.engines.values())
        volume = expected if reservation.used is None else reservation.used
        if evidence.real_link is not None:
            evidence = replace(evidence, real_link=replace(evidence.real_link, volume=volume))
            save_evidence(Artifacts(folder), evidence)
        return evidence

    def _measured(self, opened: _Open, job: Job, folder: Path) -> Evidence:
        """Run a job, whatever it costs, and remove it from its hosts."""
        case = self._run.case(job)
        experiment = RealExperiment(
            lane_job(self._run, job, folder, port=opened.link.udp_port),
            opened.link,
            reach=opened.reach,
            engines=opened.engines,
            served=opened.served,
            certificates=certificates(chain_length=case.chain_length),
            bell=Bell(self._stop),
            host=case.host,
            prefix=self._prefix,
        )
        try:
            return experiment.run()
        finally:
            # A host that is away now cleans itself; what the job has shown is not lost for that.
            with suppress(LaneError):
                experiment.discard()

    def quiet(self, lane: int) -> str:
        """Why the link of a lane rests now, and until when; empty when it doesn't."""
        return resting(list(self._links.values())[lane].link, self._now)

    def stop(self) -> None:
        """Make running jobs end soon."""
        self._stop.set()


def resting(link: RealLink, now: Callable[[], datetime]) -> str:
    """What the user is told in quiet hours; empty in others."""
    pauses = [Pause.parse(span, now) for span in link.quiet_hours]
    last = max(pauses, key=Pause.seconds_left, default=None)
    if last is None or not last.seconds_left():
        return ""
    return (
        f"{link.name}: quiet hours until {last.end:%H:%M}, then its jobs go on by themselves. Ctrl-C ends the run, and "
        "the same command goes on with it later."
    )


def expected_volume(link: RealLink, case: CaseRecord) -> int:
    """Bytes that a job of the case takes of the link, about."""
    seconds = 2 * BASELINE_SECONDS + 8 * sum(case.file_sizes) / link.forward_rate
    transfer = sum(case.file_sizes) * _OVERHEAD
    copies = _COPIES_OVER_SSH + (link.server is not None)
    over_ssh = (copies * transfer + _LOGS_OVER_SSH) * _SSH_OVERHEAD if link.ssh_over_link else 0.0
    return round(transfer + over_ssh + 2 * PROBE_BYTES * seconds / probe_period(link))


def seen_volume(link: RealLink, artifacts: Artifacts, evidence: Evidence) -> int | None:
    """Bytes of IP packets that a job put on the link: its captures are a little larger. None: nobody can tell, because
    the client ran, and no capture was brought home."""
    sizes = [path.stat().st_size for path in (artifacts.client_capture, artifacts.server_capture) if path.is_file()]
    if not sizes and CLIENT_START in evidence.stages_s:
        return None
    return max(sizes, default=0) + round(2 * PROBE_BYTES * evidence.wall_s / probe_period(link))


def _carried(link: RealLink, engines: Iterable[Engine]) -> int:
    """Bytes of IP packets that SSH has put on the link since the last time; 0 where it goes another way."""
    if not link.ssh_over_link:
        return 0
    found = 0
    for engine in engines:
        if isinstance(engine, RemoteEngine):
            tunnel = engine.tunnel
            found, tunnel.charged = found + tunnel.carried - tunnel.charged, tunnel.carried
    return round(found * _SSH_OVERHEAD)
