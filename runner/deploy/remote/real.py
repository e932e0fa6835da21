"""The jobs of a run over real links: from the run's record to what the two hosts of a link are asked to do."""

import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import docker

from runner.deploy import engine as host_engine
from runner.deploy.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.deploy.holders import TOOLS
from runner.deploy.owner import Owner
from runner.deploy.pair_request import pair_request
from runner.deploy.remote import reach, shipping
from runner.deploy.remote.engine import RemoteEngine
from runner.deploy.remote.experiment import BASELINE_SECONDS, RealExperiment
from runner.deploy.remote.probes import PROBE_BYTES, probe_period
from runner.deploy.remote.volume import Ledger
from runner.deploy.served import Served
from runner.deploy.supervised import Bell
from runner.deploy.sweep import remove_own, sweep
from runner.errors import LaneError, SetupError
from runner.inputs import certificates
from runner.model.artifacts import Artifacts, Evidence
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord, Run
from runner.pause import Pause
from runner.store import save_evidence

Say = Callable[[str], None]
_OVERHEAD = 1.15  # bytes on the link per byte of file: headers, ACKs, a few retransmissions
FIND_BYTES = 60_000  # of the search for an address


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
        report: shipping.Report,
        now: Callable[[], datetime] = datetime.now,
    ) -> Iterator["RealLinks"]:
        """Connect to the hosts, remove what killed runners left there, ship what is missing, find addresses.

        Raises SetupError with what is wrong with a host, and the mend. At the end everything is removed.
        """
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
        report: shipping.Report,
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
        say(f"{link.name}: looking for an address of the server that {link.client.name} reaches")
        client = by_role[Role.CLIENT]
        seen_as = client.tunnel.connection.own_address() if isinstance(client, RemoteEngine) and not link.server else ""
        try:
            found = reach.find(
                link,
                client,
                by_role[Role.SERVER],
                Bell(self._stop),
                name=f"{self._prefix}-{next(self._numbers)}",
                seen_as=seen_as,
            )
        except LaneError as error:
            raise SetupError(str(error)) from error
        self._ledger.add(link.name, FIND_BYTES, today=self._now().date())
        for one in found.known:
            problem = one.problem(link)
            rtt = f"RTT {one.rtt * 1e3:.0f} ms" if one.rtt is not None else ""
            chosen = "chosen" if found.chosen.get(one.family) == one else "works"
            say(f"  {one.address} over {one.interface or 'nothing'}: {problem or f'{chosen}, {rtt}'}")
        served = Served(by_role[Role.SERVER], f"{self._prefix}-{link.name}")
        return _Open(link=link, engines=by_role, served=served, reach=found)

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
        report: shipping.Report,
    ) -> None:
        """Bring the tools and the images of everybody who has this role on this link."""
        jobs = [job for job in self._run.order if self._link_of(job) == link.name]
        names = {job.client if role is Role.CLIENT else job.server for job in jobs}
        images = [TOOLS, *(self._run.implementations[name].image for name in sorted(names))]
        lacking = shipping.missing(engine, local, images)
        for number, image in enumerate(lacking, start=1):
            say(f"{engine.name}: {image} is missing there, {number} of {len(lacking)}")
            shipping.ship(engine, local, image, report=report)
        self._charge_ssh(engine, link)

    def _charge_ssh(self, engine: Engine, link: RealLink) -> None:
        """Charge what SSH has carried since the last time, where it goes over the link."""
        if not link.ssh_over_link or not isinstance(engine, RemoteEngine):
            return
        carried = engine.tunnel.carried
        self._ledger.add(link.name, carried - engine.tunnel.charged, today=self._now().date())
        engine.tunnel.charged = carried

    def _link_of(self, job: Job) -> str:
        record = self._run.cases[job.case].real_link
        return record.name if record is not None else ""

    def lane_of(self, job: Job) -> int:
        """Which lane the job belongs to: one per link."""
        return list(self._links).index(self._link_of(job))

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt is the same
        """Run `job` over its link. Raises BudgetError when its volume is used up, HostRefusedError when a host lets us
        in no more, LaneError when it can't do it."""
        opened = self._links[self._link_of(job)]
        case = self._run.cases[job.case]
        for engine in opened.engines.values():
            if isinstance(engine, RemoteEngine):
                engine.require_welcome()
        self._ledger.require(opened.link, expected_volume(opened.link, case), today=self._now().date())
        experiment = RealExperiment(
            pair_request(self._run, job, folder, port=opened.link.udp_port),
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
            evidence = experiment.run()
        finally:
            # A host that is away now cleans itself; what the job has shown is not lost for that.
            with suppress(LaneError):
                experiment.discard()
        volume = self._volume(opened.link, Artifacts(folder), evidence)
        self._ledger.add(opened.link.name, volume, today=self._now().date())
        for engine in opened.engines.values():
            self._charge_ssh(engine, opened.link)
        if evidence.real_link is not None:
            evidence = replace(evidence, real_link=replace(evidence.real_link, volume=volume))
            save_evidence(Artifacts(folder), evidence)
        return evidence

    def quiet(self, lane: int) -> str:
        """Why the link of a lane rests now, and until when; empty when it doesn't."""
        return resting(list(self._links.values())[lane].link, self._now)

    @staticmethod
    def _volume(link: RealLink, artifacts: Artifacts, evidence: Evidence) -> int:
        """Bytes of IP packets that a job put on the link: its captures are a little larger."""
        sizes = [path.stat().st_size for path in (artifacts.client_capture, artifacts.server_capture) if path.is_file()]
        return max(sizes, default=0) + round(2 * PROBE_BYTES * evidence.wall_s / probe_period(link))

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
    return round(sum(case.file_sizes) * _OVERHEAD + 2 * PROBE_BYTES * seconds / probe_period(link))
