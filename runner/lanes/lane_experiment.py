"""One job in one lane, from preparing the lane to the evidence."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from runner import collect
from runner.decode.flood import flood_limit
from runner.engine.containers import Volume
from runner.errors import LaneError
from runner.lanes.beside import Beside
from runner.lanes.endpoint import Endpoint
from runner.lanes.experiment import (
    SERVER_GRACE_SECONDS,
    SERVER_READY_SECONDS,
    Experiment,
    Step,
    downloads_quota,
)
from runner.lanes.holders import CAPTURE_LIMIT, CAPTURES
from runner.lanes.lane import Lane, Shape
from runner.lanes.lane_base import together
from runner.lanes.link_document import LOGS, link_document
from runner.lanes.network import GATEWAY4
from runner.lanes.request import LaneJob
from runner.lanes.resident import Holder
from runner.lanes.segment import LINK_LOGS, Segment
from runner.lanes.served import Served
from runner.model.artifacts import Evidence
from runner.model.beside import BesideRole
from runner.model.topology import CLIENT, SERVER, TERMINAL

BOX_READY_SECONDS = 30.0
BOX_GRACE_SECONDS = 2.0
_CLIENT_AFTER_SERVER = 5.0  # seconds in which a client must end after the end of its server
DISCARD = 9  # a port on which no process listens
LAST_PACKETS = 0.05  # seconds, in addition to the return delay, until the client's last packet has passed all captures
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


class LaneExperiment(Experiment):
    """A job while it runs. `run` is called once."""

    def __init__(self, job: LaneJob, lane: Lane, served: Served, plumber: Holder) -> None:
        self._boxes = {box: Endpoint(box, spec, job.limits) for box, spec in job.boxes.items()}
        self._beside = Beside(job, lane)
        others = (*self._boxes.values(), *self._beside.endpoints)
        super().__init__(job, served=served, pool=lane.pool, bell=lane.bell, others=others)
        self._lane = lane
        self._engine = lane.engine
        self._plumber = plumber
        both = job.topology.link.end_to_end
        self._forward_delay, self._return_delay = both.forward.delay, both.return_.delay
        self._opened = False
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
            self._lane.prepare(self._plumber)
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
        self._opened = True

    def _serve(self) -> Mapping[str, tuple[Volume, ...]]:
        """The volumes that are given to each role."""
        www, certs = self._served.www(self._job.files), self._served.certs(self._job.chain_length)
        volumes: dict[str, tuple[Volume, ...]] = {CLIENT: (certs,), SERVER: (www, certs)}
        middlebox = self._job.topology.middlebox
        if self._boxes and middlebox is not None:
            keys = self._served.path_keys()
            volumes |= {box.value: (keys, certs) if middlebox.poses_as_server else (keys,) for box in self._boxes}
        return {**volumes, **self._beside.volumes(self._served)}

    def _link_starts(self) -> list[Callable[[], None]]:
        """Functions that start the simulators."""
        job = self._job
        records = job.topology.segments
        flood = None if job.own_server or job.beside else flood_limit([file.size for file in job.files])
        documents = {
            segment: link_document(
                forward=records[segment.role].forward,
                return_=records[segment.role].return_,
                seed=job.seed ^ number,
                path=records[segment.role].impairments,
                lose_all=job.lose_all,
                flood=flood,
            )
            for number, segment in enumerate(self._lane.segments)
        }
        return [partial(segment.start, documents[segment]) for segment in self._lane.segments]

    def _start_boxes(self) -> None:
        """Start the middlebox. Raises LaneError when a box isn't ready in time."""
        if self._job.topology.routed and self._job.forward.impairments.changes:
            # The time of a link's changes begins with the first UDP packet of its segment. This packet is sent for all
            # middleboxes, so that the time begins in the same way.
            self._lane.execute(TERMINAL, ["bash", "-c", f"echo > /dev/udp/{GATEWAY4}/{DISCARD}"])
        if not self._boxes:
            return
        with self._stages.stage("middlebox ready"):
            for endpoint in self._boxes.values():
                endpoint.start()
            deadline = self._stages.wall() + BOX_READY_SECONDS
            for box, endpoint in self._boxes.items():
                while not self._lane.box_ready(box):
                    self._bell.wait(lambda: True, timeout=0)  # raises when the run is stopped
                    ended = endpoint.supervised.ended
                    if ended or self._stages.wall() > deadline:
                        why = "ended" if ended else f"was not ready within {BOX_READY_SECONDS:g} s"
                        printed = endpoint.supervised.last_lines(3) or "nothing"
                        raise LaneError("box-not-ready", f"The {box.value} box {why}. It printed", printed=printed)

    def _start_server(self) -> bool:
        self._start_boxes()
        with self._stages.stage("server start"):
            self._server.start()
            self._beside.start_server()
        server = self._server.supervised
        if not self._job.wait_for_server:
            return not server.ended
        with self._stages.stage("server ready"):
            if self._job.server_port is None:
                self._server_ready = self._lane.wait_for_server(server, timeout=SERVER_READY_SECONDS)
            else:
                self._server_ready = self._wait_until_listening(self._job.server_port)
        if not self._server_ready and self._job.own_server:
            raise LaneError("origin-not-ready", "The origin did not listen.", printed=server.last_lines(3))
        if not self._server_ready and not server.ended:
            self._server_udp_ports = self._lane.udp_ports(SERVER)
        return self._server_ready

    def _wait_until_listening(self, port: int) -> bool:
        """True when the server accepts TCP in time. Doesn't wait for a server that has ended."""
        server, deadline = self._server.supervised, self._stages.wall() + SERVER_READY_SECONDS
        while not self._lane.listens(SERVER, port):
            if server.ended or self._stages.wall() > deadline:
                return False
            self._bell.wait(lambda: server.ended, timeout=0.05)
        return True

    def _run_client(self) -> None:
        client, server, lane = self._client.supervised, self._server.supervised, self._lane
        boxes = [endpoint.supervised for endpoint in self._boxes.values()]
        with self._stages.stage("client start"):
            together(self._pool, self._client.start, *self._beside.client_starts())
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
                name, printed = endpoint.role.value, endpoint.supervised.last_lines(3)
                raise LaneError(f"{name}-ended", f"The {name} ended early.", printed=printed)

    def _is_open(self) -> bool:
        return self._opened

    def _steps(self) -> list[Step]:
        return [
            *([("beside stop", self._beside.stop)] if self._job.beside else []),
            ("client files", self._collect_client),
            ("server stop", lambda: self._server.stop(grace=SERVER_GRACE_SECONDS)),
            *([("middlebox stop", self._stop_boxes)] if self._boxes else []),
            ("captures", self._stop_captures),
            ("collect", self._collect_rest),
        ]

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        """Wait until `until()` is true, at most until `deadline` in seconds of the job. Measure CPU times meanwhile."""
        while (left := deadline - self._stages.wall()) > 0:
            if self._bell.wait(until, timeout=min(left, _SAMPLE_SECONDS)):
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
            self._bell.wait(lambda: False, timeout=left)

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        return self._lane.archive(endpoint.role.value, path)

    def _stop_boxes(self) -> None:
        """End the middlebox after the server; it may print statistics at its end."""
        for endpoint in self._boxes.values():
            endpoint.stop(grace=BOX_GRACE_SECONDS)

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

    def _copy_truth(self, segment: Segment) -> None:
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
            boxes={box.value: endpoint.record(self._stages.began_unix) for box, endpoint in self._boxes.items()},
            beside=self._beside.records(self._stages.began_unix),
            via=self._job.topology.middlebox,
            content_seed=self._job.content_seed,
            server_udp_ports=self._server_udp_ports,
            flooded=self._flooded,
        )
