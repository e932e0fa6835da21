"""The lanes of one runner, each with namespaces of its own, also when the engine ends during a job; one job in one
lane, its second flow (docs/beside.md), and the compliance probe."""

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import docker

from runner.engine import engine
from runner.engine.containers import LABEL_LANES, Engine, Volume, set_weights
from runner.engine.engine import labels_of, remove_own, sweep
from runner.errors import LaneError, SetupError
from runner.files import remove_tree
from runner.inputs import inputs
from runner.inputs.inputs import ServedFile
from runner.model.link import CLIENT, SERVER, TERMINAL, LinkParameters, LinkRecord, Topology
from runner.model.result import EndpointRecord, Evidence, InterfaceChangeKind
from runner.model.stack import BesideRole, Box, Role
from runner.places.experiment import SERVER_READY_SECONDS, Endpoint, Step, TimedExperiment, downloads_quota
from runner.places.lane_job import (
    GATEWAY4,
    LOGS,
    EndpointLimits,
    EndpointSpec,
    LaneJob,
    ProbeResult,
    link_document,
    link_documents,
)
from runner.places.lanes.lane import LINK_LOGS, InterfaceWatch, Lane, LaneSegment, Shape, together
from runner.places.supervised import (
    CAPTURE_LIMIT,
    CAPTURES,
    CommandContainer,
    Notifier,
    Served,
    engine_test,
    start_watchdog,
    wiring_container,
)
from runner.store import collect
from runner.units import MIB, format_duration, format_size

# Starts and stops the second flow of a job (docs/beside.md).

_PORT = 443
_READY_SECONDS = 10.0
_SERVER_GRACE_SECONDS = 2.0


class Beside:
    """The endpoints of the second flow of a job."""

    def __init__(self, job: LaneJob, lane: Lane) -> None:
        self._job = job
        self._lane = lane
        self._by_role = {role: Endpoint(role, spec, job.limits) for role, spec in job.beside.items()}

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(self._by_role.values())

    def volumes(self, served: Served) -> Mapping[str, tuple[Volume, ...]]:
        """The volumes that are given to each role."""
        certs = served.certs(1)
        return {BesideRole.CLIENT: (certs,), BesideRole.SERVER: (served.www(self._job.beside_files), certs)}

    def start_server(self) -> None:
        """Start the server and wait until it listens. Raises LaneError when it doesn't listen within 10 seconds."""
        server = self._by_role[BesideRole.SERVER]
        server.start()
        for _ in range(round(_READY_SECONDS / 0.05)):
            if server.supervised.ended or self._listens():
                break
            self._lane.notifier.wait(lambda: server.supervised.ended, timeout=0.05)
        if server.supervised.ended or not self._listens():
            printed = server.supervised.last_lines(3) or "nothing"
            raise LaneError(
                "beside-not-ready", "The server of the second flow did not listen. It printed", printed=printed
            )

    def _listens(self) -> bool:
        if self._job.beside_over_tcp:
            return self._lane.listens(BesideRole.SERVER, _PORT)
        return _PORT in self._lane.udp_ports(BesideRole.SERVER)

    def start_client(self) -> None:
        """Start the client. Raises LaneError when it can't be started."""
        self._by_role[BesideRole.CLIENT].start()

    def stop(self) -> None:
        """End the client and then the server. A client that has ended before keeps its exit code."""
        for role, grace in ((BesideRole.CLIENT, 0.0), (BesideRole.SERVER, _SERVER_GRACE_SECONDS)):
            self._by_role[role].stop(grace=grace)

    def records(self, job_began: float) -> dict[str, EndpointRecord]:
        """The engine's record of each endpoint, by role. `job_began` in seconds since 1970."""
        return {role.value: endpoint.record(job_began) for role, endpoint in self._by_role.items()}


# One job in one lane, from preparing the lane to the evidence.

_CLIENT_AFTER_SERVER = 5.0  # seconds in which a client must end after the end of its server
DISCARD = 9  # a port on which no process listens
LAST_PACKETS = 0.05  # seconds, in addition to the delay, until an endpoint's last packets have passed all captures
_LINES = 3  # lines of an endpoint's output in an error message
_SAMPLE_SECONDS = 2.0  # seconds between measurements of CPU time


def shape_of(job: LaneJob) -> Shape:
    """The shape of the lane that a job needs."""
    downloads: dict[str, tuple[ServedFile, ...]] = {job.sender.peer.value: job.required_files}
    downloads |= {BesideRole.CLIENT: job.beside_files} if job.beside else {}
    return Shape(
        logs=job.limits.logs,
        downloads=tuple((role, downloads_quota(files)) for role, files in downloads.items()),
        ask_server=job.wait_for_server and job.server_port is None,
        nodes=job.topology.nodes,
        segments=tuple(job.topology.segments),
        hops=job.topology.hops,
        captured=job.topology.captured_endpoints,
        controllers=tuple(sorted(job.controllers.items())),
    )


class LaneExperiment(TimedExperiment):
    """A job while it runs. `run` is called once."""

    def __init__(self, job: LaneJob, lane: Lane, served: Served, wiring: CommandContainer) -> None:
        self._besides = (Beside(job, lane),) if job.beside else ()
        others = tuple(endpoint for beside in self._besides for endpoint in beside.endpoints)
        super().__init__(job, served=served, pool=lane.pool, notifier=lane.notifier, others=others)
        self._lane = lane
        self._engine = lane.engine
        self._wiring = wiring
        both = job.topology.link.end_to_end
        self._forward_delay, self._return_delay = both.forward.delay, both.return_.delay
        self._opened = False
        self._watches: dict[Endpoint, InterfaceWatch] = {}
        self._server_udp_ports: tuple[int, ...] = ()
        self._flooded = False

    def _links(self) -> Sequence[str]:
        return [segment.role for segment in self._lane.segments]

    def _open(self) -> None:
        with self._stages.stage("files"):
            served = self._serve()
            for endpoint in self._endpoints:
                endpoint.find(self._engine)
        with self._stages.stage("lane"):
            self._lane.prepare(self._wiring)
        with self._stages.stage("link"):
            documents = link_documents(self._job)
            together(
                self._pool,
                *(partial(segment.start, documents[segment.role]) for segment in self._lane.segments),
                *(capture.start for capture in self._lane.end_captures),
                *(
                    lambda endpoint=endpoint: endpoint.create(self._lane, served[endpoint.role.value])
                    for endpoint in self._endpoints
                ),
            )
            self._lane.open_to_client()
            self._watches = {
                endpoint: self._lane.watch_interface(role)
                for role, endpoint in ((Role.CLIENT, self._client), (Role.SERVER, self._server))
            }
        self._opened = True

    def _serve(self) -> Mapping[str, tuple[Volume, ...]]:
        """The volumes that are given to each role."""
        www, certs = self._served.www(self._job.files), self._served.certs(self._job.chain_length)
        self._fingerprints = self._served.fingerprints(self._job.chain_length)
        sender = self._job.sender
        volumes: dict[str, tuple[Volume, ...]] = {sender.value: (www, certs), sender.peer.value: (certs,)}
        of_boxes = (certs,) if self._job.topology.poses_as_server else ()
        volumes |= {box.value: (self._served.path_keys(), *of_boxes) for box in self._boxes}
        for beside in self._besides:
            volumes |= beside.volumes(self._served)
        return {role: (self._served.hosts(role), *others) for role, others in volumes.items()}

    def _start_boxes(self) -> None:
        if self._job.topology.routed and self._job.forward.impairments.changes:
            # The times of a link's changes count from the first UDP packet on its segment. Because this packet is sent
            # here, they count from the same stage of the job with every middlebox.
            self._lane.execute(TERMINAL, ["bash", "-c", f"echo > /dev/udp/{GATEWAY4}/{DISCARD}"])
        super()._start_boxes()

    def _box_ready(self, box: Box) -> bool:
        return self._lane.box_ready(box)

    def _start_servers(self) -> None:
        super()._start_servers()
        for beside in self._besides:
            beside.start_server()

    def _start_server(self) -> bool:
        started = super()._start_server()
        if self._server_ready is False and self._link_flooded():
            self._flooded = True
            self._server.stopped_by_us = not self._server.supervised.ended
            self._server.supervised.kill()
        if self._server_ready is False and not self._server.supervised.ended:
            self._server_udp_ports = self._lane.udp_ports(SERVER)
        return started

    def _answers_quic(self) -> bool:
        return self._lane.wait_for_server(self._server.supervised, timeout=SERVER_READY_SECONDS)

    def _link_flooded(self) -> bool:
        return self._lane.flooded

    def _stop_server(self) -> None:
        super()._stop_server()
        self._flooded |= self._link_flooded()

    def _listens(self, port: int) -> bool:
        return self._lane.listens(SERVER, port)

    def _last_lines(self, endpoint: Endpoint) -> str:
        return endpoint.supervised.last_lines(_LINES)

    def _run_client(self) -> None:
        client, server, lane = self._client.supervised, self._server.supervised, self._lane
        boxes = [endpoint.supervised for endpoint in self._boxes.values()]
        with self._stages.stage("client start"):
            together(self._pool, self._client.start, *(beside.start_client for beside in self._besides))
        with self._stages.stage("transfer"):
            deadline = self._stages.wall() + self._job.timeout
            self._wait(
                deadline,
                lambda: (
                    client.ended or server.ended or lane.link_died or lane.flooded or any(box.ended for box in boxes)
                ),
            )
            self._require_links_and_boxes()
            if server.ended:
                # Packets that the server sent before its end may still arrive.
                grace = _CLIENT_AFTER_SERVER + self._forward_delay + self._return_delay
                self._wait(min(deadline, self._stages.wall() + grace), lambda: client.ended or lane.link_died)
            self._require_links_and_boxes()
            if not client.ended:
                self._end_client()

    def _end_client(self) -> None:
        """Kill the client, and record why: its time was over, a link was flooded, or the server had ended."""
        client, server = self._client.supervised, self._server.supervised
        self._flooded = self._lane.flooded
        self._client.stopped_by_us |= self._flooded or server.ended
        self._client.timed_out = not self._client.stopped_by_us
        client.kill()
        if self._flooded:
            self._server.stopped_by_us = not server.ended
            server.kill()

    def _require_links_and_boxes(self) -> None:
        """Raises LaneError when a box, the origin, a link or a capture ended too early."""
        client = self._client.supervised
        if self._lane.link_died:
            client.kill()
            printed = "".join(segment.output() for segment in self._lane.segments)[-2000:]
            raise LaneError("link-died", "A simulator or a capture ended early.", printed=printed)
        endpoints = [*self._boxes.values(), *([self._server] if self._job.own_server else [])]
        for endpoint in endpoints:
            if endpoint.supervised.ended and not client.ended:
                self._client.stopped_by_us = True
                client.kill()
                name, printed = endpoint.role.value, self._last_lines(endpoint)
                raise LaneError(f"{name}-ended", f"The {name} ended early.", printed=printed)

    def _is_open(self) -> bool:
        return self._opened

    def _steps(self) -> list[Step]:
        return [
            *(("beside stop", beside.stop) for beside in self._besides),
            ("client files", self._collect_client),
            ("server stop", self._stop_server),
            ("interfaces", self._look_at_interfaces),
            *([("middlebox stop", self._stop_boxes)] if self._boxes else []),
            ("captures", self._stop_captures),
            ("collect", self._collect_rest),
        ]

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        """Wait until `until()` is true, at most until `deadline` in seconds of the job. Measure CPU times meanwhile."""
        while (left := deadline - self._stages.wall()) > 0:
            if self._notifier.wait(until, timeout=min(left, _SAMPLE_SECONDS)):
                return
            for endpoint in self._endpoints:
                endpoint.measure(self._engine)

    def _collect_client(self) -> None:
        """Copy the client's files while its last packets still travel to the server. At the same time, measure CPU
        times, which takes up to a second when the engine must measure them."""
        client_ended = self._stages.wall()
        others = (endpoint for endpoint in self._endpoints if endpoint is not self._client)
        together(
            self._pool,
            lambda: self._copy_logs(self._client),
            self._compare_downloads,
            *(lambda endpoint=endpoint: endpoint.measure(self._engine) for endpoint in others),
        )
        if self._client.supervised.ended:
            left = client_ended + self._return_delay + LAST_PACKETS - self._stages.wall()
            self._notifier.wait(lambda: False, timeout=left)

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        return self._lane.archive(endpoint.role.value, path)

    def _look_at_interfaces(self) -> None:
        """Note the changes that endpoints made to their interfaces. Two others can delete an endpoint's interface:
        a box of a middlebox that deletes the other end of the cable, and the end of a simulator's namespace."""
        may_vanish = self._job.topology.routed or any(segment.is_gone for segment in self._lane.segments)
        for endpoint, watch in self._watches.items():
            changes = watch.changes(self._stages.began_unix)
            if may_vanish and any(change.kind is InterfaceChangeKind.DELETED for change in changes):
                continue  # the kernel reports that the interface was switched off, lost its addresses and was deleted
            endpoint.interface_changes = changes

    def _stop_captures(self) -> None:
        """End the captures when the server's last packets have passed them."""
        self._notifier.wait(lambda: False, timeout=self._forward_delay + LAST_PACKETS)
        self._capture_drops = self._lane.stop_captures()

    def _collect_rest(self) -> None:
        """Copy captures and the other endpoints' files, end the simulators, copy their truth and packet logs."""
        together(self._pool, *self._copies(), *(segment.stop for segment in self._lane.segments))
        for segment in self._lane.segments:
            self._copy_truth(segment)

    def _copies(self) -> list[Callable[[], object]]:
        return [
            *(
                lambda endpoint=endpoint: self._copy_logs(endpoint)
                for endpoint in self._endpoints
                if endpoint is not self._client
            ),
            *(
                lambda role=role: collect.extract(
                    self._lane.archive(role, CAPTURES), self._job.folder / role, budget=2 * CAPTURE_LIMIT
                )
                for role in self._links()
            ),
            *(
                lambda capture=capture: collect.extract(
                    capture.archive(), self._job.folder / capture.role, budget=CAPTURE_LIMIT
                )
                for capture in self._lane.end_captures
            ),
        ]

    def _copy_truth(self, segment: LaneSegment) -> None:
        folder = self._job.folder / segment.role
        collect.extract(self._lane.archive(segment.role, LOGS), folder, budget=LINK_LOGS)
        if not (folder / "truth.json").is_file():
            raise LaneError("no-truth", "The simulator left no truth.", printed=segment.output()[-2000:])

    def _outputs(self) -> dict[str, str]:
        endpoints = {
            endpoint.role.value: endpoint.supervised.printed if endpoint.running else "" for endpoint in self._endpoints
        }
        return endpoints | {segment.role: segment.output() for segment in self._lane.segments}

    def _evidence(self) -> Evidence:
        return replace(
            super()._evidence(),
            beside={
                role: record
                for beside in self._besides
                for role, record in beside.records(self._stages.began_unix).items()
            },
            server_udp_ports=self._server_udp_ports,
            flooded=self._flooded,
        )


# The compliance probe: an image that doesn't know the case in TESTCASE must exit with 127 soon.

UNSUPPORTED = 127
PROBE_SECONDS = 30.0
_FILE_SIZE = 1024  # bytes
_LINK = LinkParameters(data_rate=10_000_000, delay=0.015, queue_packets=25, loss=0.0)
_TOPOLOGY = Topology(link=LinkRecord.single("probe", _LINK, _LINK))
PROBE_SHAPE = Shape(
    logs=EndpointLimits().logs,
    downloads=((CLIENT, EndpointLimits().logs),),
    ask_server=False,
    nodes=_TOPOLOGY.nodes,
    segments=tuple(_TOPOLOGY.segments),
    hops=_TOPOLOGY.hops,
)


def _probe(
    image: str, role: Role, lane: Lane, served: Served, *, wiring: CommandContainer, timeout: float
) -> ProbeResult:
    """Start one image in one role, without a peer, in a lane with a simulator, and wait `timeout` seconds at most. Many
    clients wait for the simulator before they read TESTCASE. Raises LaneError when the lane failed."""
    files = inputs.served_files(0, (_FILE_SIZE,))
    www, certs = served.www(files), served.certs(1)
    environment = inputs.environment(role, testcase=secrets.token_hex(4), requests=inputs.request_urls(files))
    endpoint = Endpoint(role, EndpointSpec(image=image, environment=environment), EndpointLimits())

    def result(problem: str, exit_code: int | None = None) -> ProbeResult:
        record = endpoint.record(0.0)
        ran = record.ended - record.started if record.started is not None and record.ended is not None else 0.0
        return ProbeResult(exit_code=exit_code, seconds=ran, problem=problem)

    endpoint.find(lane.engine)
    lane.prepare(wiring)
    for segment in lane.segments:
        segment.start(link_document(_TOPOLOGY.link.satellite, seed=1))
    try:
        hosts = served.hosts(role.value)
        endpoint.create(lane, (hosts, www, certs) if role is Role.SERVER else (hosts, certs))
        endpoint.start()
    except LaneError as error:
        # When the engine refuses a call, for example without an ENTRYPOINT, the image causes the error. Otherwise,
        # the engine didn't answer.
        refused = error.code in ("engine", f"{role.value}-not-started")
        if endpoint.running is None and not refused:
            raise
        return result(f"it can't be started: {error}")
    if not lane.notifier.wait(lambda: endpoint.supervised.ended, timeout=timeout):
        endpoint.supervised.kill()
        return result(f"it still ran after {timeout:.0f} s; an unknown test case exits with 127")
    final = endpoint.supervised.final
    exit_code = final.exit_code if final is not None else None
    return result("" if exit_code == UNSUPPORTED else f"it exited with {exit_code} instead of 127", exit_code)


# The lanes on one running engine. Jobs run at the same time, each in its own namespaces, and leave nothing behind.

_CALLS_PER_LANE = 6  # engine calls that one lane makes in parallel


class LaneSet:
    """Open with `open`, use `run` and `probe` from as many threads as there are lanes, `close` at the end. When its
    engine has ended, a set can't be used any more: `works` then returns False."""

    def __init__(self, client: docker.DockerClient, run_name: str, *, lanes: int) -> None:
        self._prefix, labels = labels_of(run_name)
        self._engine = Engine(client, labels)
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(_CALLS_PER_LANE * lanes, thread_name_prefix="engine")
        self._background = ThreadPoolExecutor(lanes, thread_name_prefix="lanes")
        self._lock = threading.Lock()
        self._spares: list[Lane] = []
        self.unwatched = ""  # why no watchdog removes this set when the runner is killed; empty: a watchdog does
        self._served = Served(self._engine, self._prefix)

    @classmethod
    def open(cls, run_name: str, *, lanes: int, client: docker.DockerClient | None = None) -> "LaneSet":
        """Connect to this host's engine, remove leftovers of killed runners, start watchdog and wiring container.
        Raises SetupError without an engine, LaneError when the engine fails."""
        opened = cls(client or engine.connect(), run_name, lanes=lanes)
        try:
            sweep(opened._engine)
            opened.unwatched = start_watchdog(opened._engine, opened._prefix, opened._stop)
            opened._start_wiring()
        except BaseException:
            with suppress(LaneError):  # the engine may have just failed
                opened.close()
            raise
        return opened

    def works(self) -> bool:
        """True when the engine still runs this set and starts new containers. False once `stop` was called."""
        if self._stop.is_set():
            return False
        try:
            code, _ = self._wiring.execute(["true"])
            probe = self._engine.create(f"{self._prefix}-test-{next(self._numbers)}", engine_test())
            self._engine.start(probe)
            self._engine.remove(probe)
        except LaneError:
            return False
        return code == 0

    def _start_wiring(self) -> None:
        container = self._engine.create(f"{self._prefix}-plumber", wiring_container())
        self._wiring = CommandContainer(self._engine, container, Notifier(self._stop))
        self._wiring.start()
        set_weights()

    def run(self, job: LaneJob) -> Evidence:
        """Run one job and fill its folder, `evidence.json` last. All errors, also errors of the harness, are in the
        evidence. Raises OSError when the folder can't be written."""
        lane, fit = self._take(shape_of(job)), False
        try:
            evidence = LaneExperiment(job, lane, self._served, self._wiring).run()
            fit = not evidence.error
            return evidence
        finally:
            if lane.shape.serves_again:
                lane.release(fit=fit)
                with self._lock:
                    self._spares.append(lane)
                # The lane is renewed now, while this job is judged.
                self._background.submit(self._prepare, lane)
            else:
                self._background.submit(lane.discard)

    def probe(self, image: str, role: Role, *, timeout: float = PROBE_SECONDS) -> ProbeResult:
        """Start an image with an unknown test case: it must exit with 127. Raises LaneError for errors of the
        harness."""
        lane = self._take(PROBE_SHAPE)
        try:
            return _probe(image, role, lane, self._served, wiring=self._wiring, timeout=timeout)
        finally:
            self._background.submit(lane.discard)

    def _take(self, shape: Shape) -> Lane:
        """A spare lane of that shape, or a new lane. In both cases the caller must call `prepare`."""
        with self._lock:
            spare = next((lane for lane in self._spares if lane.shape == shape), None)
            unfit = self._spares[0] if self._spares and spare is None else None
            for lane in (spare, unfit):
                if lane is not None:
                    self._spares.remove(lane)
        if unfit is not None:
            self._background.submit(unfit.discard)
        name = f"{self._prefix}-{next(self._numbers)}"
        return spare or Lane(self._engine, self._pool, Notifier(self._stop), name=name, shape=shape)

    def _prepare(self, lane: Lane) -> None:
        try:
            if not self._stop.is_set():
                lane.prepare(self._wiring)
        except LaneError:
            self._drop(lane)

    def _drop(self, spare: Lane) -> None:
        """Remove a spare lane that failed, unless a job has taken it: then the job reports the failure."""
        with self._lock:
            taken = spare not in self._spares
            if not taken:
                self._spares.remove(spare)
        if not taken:
            spare.discard()

    def free_disk(self) -> int | None:
        """Free bytes of the file system with the engine's containers; None when this process can't see it."""
        return self._engine.free_disk()

    def stop(self) -> None:
        """Make running jobs end within about a second, with the error `stopped`. Any thread may call it."""
        self._stop.set()

    def remove_set(self, other: "LaneSet") -> None:
        """Remove every container and volume of `other`. Raises LaneError when the engine refuses."""
        remove_own(self._engine, {LABEL_LANES: other._prefix})

    def close(self) -> None:
        """Remove everything of this runner. Raises LaneError when the engine refuses."""
        self._stop.set()
        self._background.shutdown(wait=True)
        self._pool.shutdown(wait=True)
        try:
            remove_own(self._engine, {LABEL_LANES: self._prefix})
        finally:
            self._engine.close()


# The lanes of one runner. When the engine ends during a job, the job runs again after the engine is back.

PATIENCE_SECONDS = 180.0  # seconds to wait for an engine that has ended: an upgrade of Docker takes a minute or two
_PAUSE_SECONDS = 1.0
_MOST_LOSSES = 5  # most ends of the engine during one job
_LEAST_FREE = 1024 * MIB  # bytes that must be free on the engine's disk before a job begins
_SPENT = 64 * MIB  # bytes; with less free, a job may have failed because the disk was full
_KILLED = (137, 143)  # exit codes of a process that SIGKILL or SIGTERM ended

Answer = TypeVar("Answer")


class Lanes:
    """Open with `open`, use `run` and `probe` from as many threads as there are lanes. `say` is called with a sentence
    when the engine has ended, and when it is back."""

    def __init__(self, lane_set: LaneSet, run_name: str, *, lanes: int, say: Callable[[str], None]) -> None:
        self._set = lane_set
        self._run_name = run_name
        self._lanes = lanes
        self._say = say
        self._stop = threading.Event()
        self._replacing = threading.Lock()
        self._lost: list[LaneSet] = []  # sets whose engine ended
        self._failure: SetupError | None = None  # why no other set can be opened

    @classmethod
    @contextmanager
    def open(
        cls,
        run_name: str,
        *,
        lanes: int,
        client: docker.DockerClient | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator["Lanes"]:
        """Connect to this host's engine, remove leftovers of killed runners, get ready. At the end remove everything of
        this runner. Raises SetupError without an engine, LaneError when the engine doesn't start or remove containers.
        """
        lane_set = LaneSet.open(run_name, lanes=lanes, client=client)
        if lane_set.unwatched:
            say(lane_set.unwatched)
        opened = cls(lane_set, run_name, lanes=lanes, say=say)
        try:
            yield opened
        except BaseException:
            with suppress(LaneError):  # the error of the jobs is more useful
                opened.close()
            raise
        opened.close()

    def run(self, job: LaneJob) -> Evidence:
        """Run one job and fill its folder, `evidence.json` last. All errors, also errors of the harness, are in the
        evidence. Raises OSError when the folder can't be written, SetupError when the engine ended and did not come
        back."""
        return self._outlive_engine(lambda lanes: lanes.run(job), _doubts, lambda: _empty(job.folder))

    def probe(self, image: str, role: Role, *, timeout: float = PROBE_SECONDS) -> ProbeResult:
        """As `LaneSet.probe`. Raises LaneError for errors of the harness, and SetupError as `run` does."""
        return self._outlive_engine(
            lambda lanes: lanes.probe(image, role, timeout=timeout),
            lambda answer: _Doubts(killed=bool(answer.problem), failed=bool(answer.problem)),
            lambda: None,
        )

    def _outlive_engine(
        self, call: Callable[[LaneSet], Answer], doubts_of: Callable[[Answer], "_Doubts"], clean_up: Callable[[], None]
    ) -> Answer:
        """Make a call, and repeat it when the engine ended or had no disk space during the call. Returns the answer."""
        for _ in range(_MOST_LOSSES):
            self._await_disk()
            lane_set = self._set
            try:
                answer = call(lane_set)
            except LaneError:
                if self._stop.is_set() or lane_set.works():
                    raise
                self._replace(lane_set)
            else:
                doubts = doubts_of(answer)
                full = doubts.failed and _lacks(lane_set.free_disk(), _SPENT)
                if self._stop.is_set() or not (full or doubts.killed):
                    return answer
                if not full:
                    if lane_set.works():
                        return answer
                    self._replace(lane_set)
            clean_up()
        raise SetupError(
            f"The Docker Engine ended, or had no disk left, {_MOST_LOSSES} times while one job ran: look at "
            "the engine's log."
        )

    def _await_disk(self) -> None:
        """Wait until the engine's disk has space for a job."""
        reported = False
        while _lacks(self._set.free_disk(), _LEAST_FREE) and not self._stop.wait(_PAUSE_SECONDS if reported else 0.0):
            if not reported:
                self._say(
                    f"paused: less than {format_size(_LEAST_FREE)} are free on the disk of the Docker Engine. Make "
                    "space there (`docker image prune` removes unused images); the run then continues by itself. "
                    "Ctrl-C ends it."
                )
                reported = True

    def _replace(self, lost: LaneSet) -> None:
        """Open another set in place of `lost`, whose engine ended. Raises SetupError when no engine comes back."""
        with self._replacing:
            if self._failure is not None:
                raise self._failure
            if self._set is not lost:
                return  # another lane has replaced it
            lost.stop()  # ends its other jobs, which would wait for time-outs
            self._lost.append(lost)
            self._set = self._wait_for_engine()
            if self._stop.is_set():
                self._set.stop()
            with suppress(LaneError):  # if this fails, the watchdog of `lost` removes its containers
                self._set.remove_set(lost)

    def _wait_for_engine(self) -> LaneSet:
        deadline = time.monotonic() + PATIENCE_SECONDS
        reported = False
        while True:
            try:
                opened = LaneSet.open(self._run_name, lanes=self._lanes, client=engine.client())
            except (SetupError, LaneError) as error:
                if self._stop.is_set():
                    raise LaneError("stopped", "The run was stopped while the Docker Engine was away.") from error
                if time.monotonic() > deadline:
                    self._failure = SetupError(
                        f"The Docker Engine went away while jobs ran, and was not back after "
                        f"{format_duration(PATIENCE_SECONDS)}: start it (`sudo systemctl start docker`). {error}"
                    )
                    raise self._failure from error
                if not reported:
                    self._say(
                        f"The Docker Engine went away. Waiting for it, {format_duration(PATIENCE_SECONDS)} at most."
                    )
                    reported = True
                self._stop.wait(_PAUSE_SECONDS)
            else:
                self._say("The Docker Engine was restarted. The jobs that it ended run again.")
                return opened

    def stop(self) -> None:
        """Make running jobs end within about a second, with the error `stopped`. Any thread may call it."""
        self._stop.set()
        self._set.stop()

    def close(self) -> None:
        """Remove everything of this runner. Raises LaneError when the engine refuses."""
        self._stop.set()
        for lost in self._lost:
            with suppress(LaneError):
                lost.close()
        self._set.close()


@dataclass(frozen=True, kw_only=True)
class _Doubts:
    """Reasons why the harness and not the images may have caused a result. `killed`: the engine may have ended.
    `failed`: the engine's disk may have been full."""

    killed: bool
    failed: bool


def _doubts(evidence: Evidence) -> _Doubts:
    endpoints = (evidence.client, evidence.server, *evidence.boxes.values(), *evidence.beside.values())
    blamed = any(endpoint.volumes_full for endpoint in endpoints)
    failed = any(endpoint.exit_code not in (0, None) and not endpoint.stopped_by_us for endpoint in endpoints)
    return _Doubts(
        killed=bool(evidence.error) or any(map(_was_killed, endpoints)),
        failed=not blamed and (bool(evidence.error) or failed),
    )


def _lacks(free: int | None, needed: int) -> bool:
    return free is not None and free < needed


def _was_killed(endpoint: EndpointRecord) -> bool:
    by_us = endpoint.stopped_by_us or endpoint.timed_out or endpoint.output_flooded or endpoint.oom_killed
    return endpoint.exit_code in _KILLED and not by_us


def _empty(folder: Path) -> None:
    remove_tree(folder.parent, folder.name)
    folder.mkdir()
