"""A deployment whose jobs run over real links: their images, their volume, budgets and quiet hours."""

import fcntl
import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from runner.engine.containers import LABEL_LANES, BoundedDockerClient, Engine
from runner.engine.engine import connect, labels_of, remove_own, sweep
from runner.errors import BudgetError, HostRefusedError, LaneError, SetupError, UsageError
from runner.images import pulling
from runner.images.pulling import Answer, WantedImage
from runner.inputs.inputs import path_keys
from runner.model.link import LinkPlan, RealLink
from runner.model.result import Artifacts, Evidence
from runner.model.run import CaseRecord, Job, Pause, Run, estimate
from runner.model.stack import Box, Role
from runner.places.lane_job import Deployment, lane_job
from runner.places.links import reach
from runner.places.links.hosts import RemoteEngine
from runner.places.links.link_experiment import (
    BASELINE_SECONDS,
    CLIENT_START,
    Collected,
    OpenLink,
    RealExperiment,
    url_port,
)
from runner.places.links.reach import PROBE_BYTES, probe_period
from runner.places.supervised import TOOLS, Notifier, Served
from runner.store.runs import save_evidence, write_atomically
from runner.units import format_size

# A host of a link gets images: its engine pulls them from a registry, or they are sent over SSH.

Report = Callable[[str, int, int], None]  # called with the image, the bytes sent so far and all bytes to send
_CALL_SECONDS = 3600
_TRIES = 3  # tries, each of which may wait a minute for the host
_SENT_AT_ONCE = 1 << 16


class LinkHost:
    """The host of a link as a receiver of images."""

    def __init__(self, engine: RemoteEngine, report: Report = lambda *_: None) -> None:
        self.name = engine.name
        self._engine = engine
        self._report = report

    def _client(self) -> AbstractContextManager[docker.DockerClient]:
        return closing(BoundedDockerClient(self._engine.tunnel.url, version="auto", timeout=_CALL_SECONDS))

    def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        with self._client() as remote:
            return question(remote, *arguments)

    def load(self, image: WantedImage, archive: IO[bytes], size: int) -> None:
        """Send an archive, again after the SSH connection was lost. Raises SetupError when it can't arrive."""
        connection = self._engine.tunnel.connection
        for left in reversed(range(_TRIES)):
            connects = connection.connects
            try:
                with self._client() as remote:
                    # After a lost connection, the image may have arrived and only the answer was lost.
                    if left == _TRIES - 1 or not pulling.has(remote, image):
                        pulling.load(remote, image, self._blocks(image, archive, size))
                return
            except (DockerException, RequestException, OSError) as error:
                failure = self._engine.tunnel.failure
                dropped = not connection.alive or connection.connects != connects
                if left and dropped and not isinstance(failure, HostRefusedError):
                    continue
                why = failure or getattr(error, "explanation", None) or error
                raise SetupError(
                    f"{image.name} can't be sent to {self.name} ({why}): make space on it, then run again; layers "
                    "that have arrived are not sent again."
                ) from error

    def _blocks(self, image: WantedImage, archive: IO[bytes], size: int) -> Iterator[bytes]:
        archive.seek(0)
        sent = 0
        while block := archive.read(_SENT_AT_ONCE):
            yield block
            sent += len(block)
            self._report(image.name, sent, size)


# Records how many bytes each link has carried, by day, over all runs, because a tariff limits the volume.

Links = dict[str, dict[str, int]]  # bytes by link and day


@dataclass
class Reservation:
    """Bytes charged before they are sent. `used`: the bytes then sent; None: unknown, so the charge stays."""

    used: int | None = None


class Ledger:
    """Bytes of IP packets by link and day, in a JSON file that several threads and runners share."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the file exists but can't be read: otherwise a budget would silently start again."""
        self._path = path
        self._read()

    def _read(self) -> Links:
        try:
            document: Any = json.loads(self._path.read_bytes())
            return {link: {day: int(size) for day, size in days.items()} for link, days in document.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self._path} is no record of data volumes, such as "
                '{"astra": {"2026-11-26": 1000000}} (bytes): correct it, or remove it.'
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[Links]:
        """The record, locked inside the context. At the end of the context it is written, but not after an error."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f".{self._path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            links = self._read()
            yield links
            write_atomically(self._path, json.dumps(links, indent=1, sort_keys=True).encode())

    def add(self, link: str, size: int, *, today: date) -> None:
        """Charge `size` bytes to a link."""
        with self._changing() as links:
            _charge(links, link, size, today)

    def spent(self, link: str, *, today: date) -> tuple[int, int]:
        """The bytes charged today, and the bytes charged in this month."""
        return _spent(self._read(), link, today)

    @contextmanager
    def reserved(
        self, link: RealLink, size: int, *, today: date, purpose: str = "the next job takes"
    ) -> Iterator[Reservation]:
        """Charge `size` bytes before they are sent, so that they also count when the runner is killed. At the end the
        charge is replaced by the used bytes, if known. Raises BudgetError when the charge would exceed a budget of the
        link."""
        with self._changing() as links:
            _require(link, size, _spent(links, link.name, today), purpose)
            _charge(links, link.name, size, today)
        reservation = Reservation()
        try:
            yield reservation
        finally:
            if reservation.used is not None:
                self.add(link.name, reservation.used - size, today=today)


def _charge(links: Links, link: str, size: int, today: date) -> None:
    days = links.setdefault(link, {})
    days[today.isoformat()] = days.get(today.isoformat(), 0) + size


def _spent(links: Links, link: str, today: date) -> tuple[int, int]:
    days, month = links.get(link, {}), today.isoformat()[:8]
    return days.get(today.isoformat(), 0), sum(size for day, size in days.items() if day.startswith(month))


def _require(link: RealLink, size: int, spent: tuple[int, int], purpose: str) -> None:
    budgets = zip(spent, (link.budget_day, link.budget_month), ("day", "month"), strict=True)
    for used, budget, span in budgets:
        if budget is not None and used + size > budget:
            raise BudgetError(
                f"{link.name}: {format_size(used)} of the {format_size(budget)} for this {span} are used, and "
                f"{purpose} about {format_size(size)}: continue in the next {span}, or raise "
                f"budget_per_{span} in links.json."
            )


# A deployment whose jobs run over real links, between the two hosts of each link.

Say = Callable[[str], None]
_OVERHEAD = 1.15  # bytes on the link per byte of file: headers, ACKs, a few retransmissions
FIND_BYTES = 60_000  # bytes that are charged to the link for the search for an address
_SSH_OVERHEAD = 1.05  # bytes of IP packets per byte that SSH carries: headers, ACKs
_COPIES_OVER_SSH = 2  # copies of a job's bytes: client's capture and downloads; a remote server adds its capture
_LOGS_OVER_SSH = 2_000_000  # bytes of logs and of calls to the engine


class RealLinks(Deployment):
    """A deployment over real links: one job per link at a time. Construct with `open`."""

    def __init__(self, run: Run, ledger: Ledger, say: Say, report: Report, now: Callable[[], datetime]) -> None:
        self._run = run
        self._ledger = ledger
        self._say, self._report = say, report
        self._now = now
        self._prefix, self._labels = labels_of(run.name)
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._links: dict[str, OpenLink] = {}
        self._collected = Collected()
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
        SetupError with the problem of a host and the fix. Removes everything at the end."""
        opened = cls(run, Ledger(ledger), say, report, now)
        local = connect()
        with ExitStack() as stack:
            engines: dict[str, Engine] = {}
            for link in links:
                opened._links[link.name] = opened._open(link, local, engines, stack)
            try:
                yield opened
            finally:
                opened._stop.set()

    def _open(
        self, link: RealLink, local: docker.DockerClient, engines: dict[str, Engine], stack: ExitStack
    ) -> OpenLink:
        by_role = {}
        for role, host in ((Role.CLIENT, link.client), (Role.SERVER, link.server)):
            name = host.name if host is not None else ""
            if name not in engines:
                if host is not None:
                    self._say(f"{link.name}: connecting to {host.name}")
                engine = RemoteEngine.open(host, self._labels) if host is not None else Engine(local, self._labels)
                stack.callback(self._close, engine, name)
                removed = sweep(engine)
                if removed:
                    self._say(f"{name or 'this host'}: {removed} containers and volumes of dead runners removed")
                engines[name] = engine
            by_role[role] = engines[name]
            if isinstance(engine := engines[name], RemoteEngine):
                self._ship(engine, local, link, role)
        reached = self._find(link, by_role)
        served = Served(by_role[Role.SERVER], f"{self._prefix}-{link.name}")
        return OpenLink(link=link, engines=by_role, served=served, reach=reached)

    def _find(self, link: RealLink, engines: dict[Role, Engine]) -> reach.Reach:
        """The addresses of the server for a link's jobs. Raises SetupError when the client's host reaches none."""
        self._say(f"{link.name}: looking for an address of the server that {link.client.name} reaches")
        client, server = engines[Role.CLIENT], engines[Role.SERVER]
        # The address according to SSH may be a public address that no interface of the server's host has.
        if isinstance(server, RemoteEngine):
            seen_as = server.tunnel.connection.peer_address()
        else:
            seen_as = client.tunnel.connection.own_address() if isinstance(client, RemoteEngine) else ""
        self._ledger.add(link.name, FIND_BYTES, today=self._now().date())
        try:
            name = f"{self._prefix}-{next(self._numbers)}"
            reached = reach.find(link, client, server, Notifier(self._stop), name=name, seen_as=seen_as)
        except LaneError as error:
            raise SetupError(str(error)) from error
        for candidate in reached.known:
            problem = candidate.problem(link)
            rtt = f"RTT {candidate.rtt * 1e3:.0f} ms" if candidate.rtt is not None else ""
            chosen = "chosen" if reached.chosen.get(candidate.family) == candidate else "works"
            where = f"{candidate.address} over {candidate.interface or 'nothing'}"
            self._say(f"  {where}: {problem or f'{chosen}, {rtt}'}")
        return reached

    def _close(self, engine: Engine, name: str) -> None:
        try:
            remove_own(engine, {LABEL_LANES: self._prefix})
        except LaneError as error:  # results are stored already, so this error must not end the run
            where = name or "this host"
            self._say(f"{where} could not be cleaned up; its watchdogs will remove the rest. {error}")
        finally:
            engine.close()

    def _ship(self, engine: RemoteEngine, local: docker.DockerClient, link: RealLink, role: Role) -> None:
        """Bring the image of the tools, and the images of stacks and boxes for this role on this link, to the host."""
        jobs = [job for job in self._run.order if self._link_of(job) == link.name]
        names = {job.client if role is Role.CLIENT else job.server for job in jobs}
        box = Box.TERMINAL if role is Role.CLIENT else Box.GATEWAY
        vias = [self._run.middleboxes[name] for name in sorted({job.via for job in jobs if job.via})]
        names_of_images = [
            TOOLS,
            *(self._run.implementations[name].image for name in sorted(names)),
            *(via.image for via in vias if box in via.boxes),
        ]

        def charged(size: int) -> AbstractContextManager[None]:
            return self._charging(engine, link, size) if link.ssh_over_link else nullcontext()

        pulling.bring(
            local,
            [WantedImage.of(local, name) for name in names_of_images],
            LinkHost(engine, self._report),
            say=lambda text: self._say(f"{engine.name}: {text}"),
            # A client's host without another connection would pull over the link, and the bytes could not be counted.
            may_pull=not (link.ssh_over_link and role is Role.CLIENT),
            sending=charged,
        )

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

    def _measured(self, opened: OpenLink, job: Job, folder: Path) -> Evidence:
        """Run a job without checking the budget, and remove its containers and volumes from its hosts."""
        port = url_port(lane_job(self._run.elsewhere, job, folder), opened.link)
        spec = lane_job(self._run.elsewhere, job, folder, port=port)
        experiment = RealExperiment(
            spec,
            opened,
            box_keys=self._box_keys,
            collected=self._collected.job(),
            notifier=Notifier(self._stop),
            host=self._run.case(job).host,
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
    """Bytes of IP packets of a job on the link, from its captures. None: it ran, and no capture was copied."""
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


# Computes the volume and the end of a plan over real links, with their budgets and quiet hours. Pure.

_YEAR = 366  # days; a plan that takes longer counts as a plan that never fits into the budgets


class _Share(NamedTuple):
    """The cost of one job: `size` in bytes on its link, and its time in seconds."""

    size: int
    seconds: float


def link_plans(
    todo: Iterable[Job], cases: Mapping[str, CaseRecord], links: Collection[RealLink], *, ledger: Ledger, now: datetime
) -> tuple[LinkPlan, ...]:
    """The plan of each link when the jobs of all links begin `now`."""
    shares: dict[str, list[_Share]] = {link.name: [] for link in links}
    known = {link.name: link for link in links}
    for job in todo:
        record = cases[job.case_link].real_link
        if record is not None and record.name in known:
            size = expected_volume(known[record.name], cases[job.case_link])
            shares[record.name].append(_Share(size, estimate((job,), cases).seconds))
    return tuple(_walk(known[name], of_link, ledger, now) for name, of_link in shares.items())


def _walk(link: RealLink, shares: list[_Share], ledger: Ledger, now: datetime) -> LinkPlan:
    """Go through the jobs in time. Quiet hours delay them, and used-up budgets until the next day or month."""
    day, month = ledger.spent(link.name, today=now.date())
    plan = LinkPlan(
        link=link,
        jobs=len(shares),
        volume=FIND_BYTES + sum(share.size for share in shares),
        seconds=sum(share.seconds for share in shares),
        spent_day=day,
        spent_month=month,
        begins=now,
        ends=None,
        first_day=len(shares),
        broken="",
        pauses=False,
        calls=1,
    )
    moment, day, month = now, day + FIND_BYTES, month + FIND_BYTES
    for number, (size, seconds) in enumerate(shares):
        rested = _after_quiet(link, moment)
        plan, moment = replace(plan, pauses=plan.pauses or rested > moment), rested
        while span := _exceeded(link, day + size, month + size):
            if not plan.broken:
                plan = replace(plan, broken=span, first_day=number)
            if (link.budget_day or link.budget_month or 0) < size + FIND_BYTES or (moment - now).days > _YEAR:
                return plan
            later = _next(moment, span)
            day, month = FIND_BYTES, FIND_BYTES + (month if later.month == moment.month else 0)
            moment, plan = _after_quiet(link, later), replace(plan, calls=plan.calls + 1)
        after = moment + timedelta(seconds=seconds)
        day = day + size if after.date() == moment.date() else 0
        month = month + size if after.month == moment.month else 0
        moment = after
    return replace(plan, ends=moment)


def _exceeded(link: RealLink, day: int, month: int) -> str:
    """The budget that these bytes would exceed: `month`, `day`, or empty when both are large enough."""
    if link.budget_month is not None and month > link.budget_month:
        return "month"
    return "day" if link.budget_day is not None and day > link.budget_day else ""


def _next(moment: datetime, span: str) -> datetime:
    """The first moment of the next day or month."""
    day = moment.date() + timedelta(days=1)
    if span == "month":
        day = (moment.date().replace(day=1) + timedelta(days=32)).replace(day=1)
    return datetime.combine(day, time())


def _after_quiet(link: RealLink, moment: datetime) -> datetime:
    """The first moment from `moment` on at which a job may begin."""
    for _ in link.quiet_hours:  # the end of one span may be inside another span
        for span in link.quiet_hours:
            moment += timedelta(seconds=Pause.parse(span, lambda at=moment: at).seconds_left())  # type: ignore[misc]
    return moment
