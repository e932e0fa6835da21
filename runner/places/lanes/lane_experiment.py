"""One job in one lane, its second flow (docs/beside.md), and the compliance probe."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from runner.engine.containers import Volume
from runner.errors import LaneError
from runner.inputs import inputs
from runner.model.link import CLIENT, SERVER, TERMINAL, LinkParameters, LinkRecord, Topology
from runner.model.result import EndpointRecord, Evidence, InterfaceChangeKind
from runner.model.stack import BesideRole, Box, Role
from runner.places.experiment import SERVER_READY_SECONDS, Endpoint, Step, TimedExperiment, downloads_quota
from runner.places.lane_job import (
    LOGS,
    EndpointLimits,
    EndpointSpec,
    LaneJob,
    ProbeResult,
    link_document,
    link_documents,
)
from runner.places.lanes.lane import LINK_LOGS, InterfaceWatch, Lane, LaneSegment, Shape, together
from runner.places.network import GATEWAY4
from runner.places.supervised import CAPTURE_LIMIT, CAPTURES, CommandContainer, Served
from runner.store import collect

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
LAST_PACKETS = 0.05  # seconds, in addition to the return delay, until the client's last packet has passed all captures
_LINES = 3  # lines of an endpoint's output in an error message
_SAMPLE_SECONDS = 2.0  # seconds between measurements of CPU time


def shape_of(job: LaneJob) -> Shape:
    """The shape of the lane that a job needs."""
    downloads = {CLIENT: job.required_files} | ({BesideRole.CLIENT: job.beside_files} if job.beside else {})
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
            together(
                self._pool,
                *self._link_starts(),
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
        volumes: dict[str, tuple[Volume, ...]] = {CLIENT: (certs,), SERVER: (www, certs)}
        of_boxes = (certs,) if self._job.topology.poses_as_server else ()
        volumes |= {box.value: (self._served.path_keys(), *of_boxes) for box in self._boxes}
        for beside in self._besides:
            volumes |= beside.volumes(self._served)
        return {role: (self._served.hosts(role), *others) for role, others in volumes.items()}

    def _link_starts(self) -> list[Callable[[], None]]:
        """Functions that start the simulators."""
        documents = link_documents(self._job)
        return [partial(segment.start, documents[segment.role]) for segment in self._lane.segments]

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
            raise LaneError(
                "link-died", "A simulator or a capture ended early.", printed=self._lane.link_output()[-2000:]
            )
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
        """Note the changes that endpoints made to their interfaces."""
        for endpoint, watch in self._watches.items():
            changes = watch.changes(self._stages.began_unix)
            if self._may_vanish() and any(change.kind is InterfaceChangeKind.DELETED for change in changes):
                continue  # the kernel reports that the interface was switched off, lost its addresses and was deleted
            endpoint.interface_changes = changes

    def _may_vanish(self) -> bool:
        """Whether others than the endpoint may have deleted its interface: a box of a middlebox may delete the other
        end of the cable, and with the namespace of a simulator this end vanishes."""
        return self._job.topology.routed or any(segment.is_gone for segment in self._lane.segments)

    def _stop_captures(self) -> None:
        self._capture_drops = self._lane.stop_captures()

    def _collect_rest(self) -> None:
        """Copy the captures and the files of the other endpoints. After the end of the simulators, copy their truth and
        packet logs."""
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
_PROBE_LINES = 12
_TOPOLOGY = Topology(link=LinkRecord.single("probe", _LINK, _LINK))
PROBE_SHAPE = Shape(
    logs=EndpointLimits().logs,
    downloads=((CLIENT, EndpointLimits().logs),),
    ask_server=False,
    nodes=_TOPOLOGY.nodes,
    segments=tuple(_TOPOLOGY.segments),
    hops=_TOPOLOGY.hops,
)


class Probe:
    """One image in one role, without a peer, in a lane with a simulator. Many clients wait for the simulator before
    they read TESTCASE."""

    def __init__(self, image: str, role: Role, lane: Lane, served: Served) -> None:
        self._image = image
        self._role = role
        self._lane = lane
        self._served = served

    def run(self, wiring: CommandContainer, *, timeout: float) -> ProbeResult:
        """Start the image and wait `timeout` seconds at most. Raises LaneError when the lane failed."""
        limits, lane = EndpointLimits(), self._lane
        files = inputs.served_files(0, (_FILE_SIZE,))
        www, certs = self._served.www(files), self._served.certs(1)
        endpoint = Endpoint(self._role, EndpointSpec(image=self._image, environment=self._environment(files)), limits)
        endpoint.find(self._lane.engine)
        lane.prepare(wiring)
        for segment in lane.segments:
            segment.start(link_document(forward=_LINK, return_=_LINK, seed=1))
        try:
            hosts = self._served.hosts(self._role.value)
            endpoint.create(lane, (hosts, www, certs) if self._role is Role.SERVER else (hosts, certs))
            endpoint.start()
        except LaneError as error:
            # When the engine refuses a call, for example without an ENTRYPOINT, the image causes the error. Otherwise,
            # the engine didn't answer.
            refused = error.code in ("engine", f"{self._role.value}-not-started")
            if endpoint.running is None and not refused:
                raise
            return self._result(endpoint, f"it can't be started: {error}")
        if not self._lane.notifier.wait(lambda: endpoint.supervised.ended, timeout=timeout):
            endpoint.supervised.kill()
            return self._result(endpoint, f"it still ran after {timeout:.0f} s; an unknown test case exits with 127")
        final = endpoint.supervised.final
        exit_code = final.exit_code if final is not None else None
        if exit_code == UNSUPPORTED:
            return self._result(endpoint, "", exit_code)
        return self._result(endpoint, f"it exited with {exit_code} instead of 127", exit_code)

    def _environment(self, files: tuple[inputs.ServedFile, ...]) -> dict[str, str]:
        return inputs.environment(self._role, testcase=secrets.token_hex(4), requests=inputs.request_urls(files))

    def _result(self, endpoint: Endpoint, problem: str, exit_code: int | None = None) -> ProbeResult:
        record = endpoint.record(0.0)
        ran = record.ended - record.started if record.started is not None and record.ended is not None else 0.0
        return ProbeResult(
            image=self._image,
            role=self._role.value,
            exit_code=exit_code,
            seconds=ran,
            output=endpoint.supervised.last_lines(_PROBE_LINES) if endpoint.running is not None else "",
            problem=problem,
        )
