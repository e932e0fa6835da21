"""One job of a pair in one lane, from holders to evidence, which says what an image did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner.decode.flood import flood_limit
from runner.engine.containers import Volume
from runner.lanes.experiment import SERVER_READY_SECONDS, downloads_quota
from runner.lanes.lane import Lane, Shape
from runner.lanes.lane_experiment import LaneExperiment
from runner.lanes.link_arguments import link_arguments
from runner.lanes.request import LaneJob
from runner.lanes.resident import Holder
from runner.lanes.served import Served
from runner.lanes.wiring import CLIENT, SERVER
from runner.model.artifacts import Evidence

_HTTPS = 443
_LOOK = 0.05  # s between looks at the server's sockets
_CLIENT_AFTER_SERVER = 5.0  # s that a client gets to end when its server has died


def shape_of(job: LaneJob) -> Shape:
    """The lane that a job needs."""
    return Shape(logs=job.limits.logs, downloads=downloads_quota(job.files), ask_server=job.wait_for_server)


class PairExperiment(LaneExperiment):
    """A job while it runs. `run` is called once."""

    _job: LaneJob
    _lane: Lane

    def __init__(self, job: LaneJob, lane: Lane, served: Served, plumber: Holder) -> None:
        super().__init__(job, lane, served, plumber, expected=job.files, return_delay=job.return_.delay)
        self._server_udp_ports: tuple[int, ...] = ()
        self._flooded = False

    def _serve(self) -> Mapping[str, tuple[Volume, ...]]:
        www, certs = self._served.www(self._job.files), self._served.certs(self._job.chain_length)
        return {CLIENT: (certs,), SERVER: (www, certs)}

    def _link_starts(self) -> Sequence[Callable[[], None]]:
        job, [link] = self._job, self._lane.segments
        arguments = link_arguments(
            forward=job.forward,
            return_=job.return_,
            seed=job.seed,
            path=job.path,
            flood=flood_limit([file.size for file in job.files]),
            lose_all=job.over_tcp,
        )
        return [lambda: link.start(arguments)]

    def _start_server(self) -> bool:
        with self._stages.stage("server start"):
            self._server.start()
        if self._job.wait_for_server:
            with self._stages.stage("server ready"):
                self._server_ready = self._wait_until_ready()
            if not self._server_ready and not self._server.supervised.ended:
                self._server_udp_ports = self._lane.udp_ports(SERVER)
            return self._server_ready
        return not self._server.supervised.ended

    def _wait_until_ready(self) -> bool:
        server, lane = self._server.supervised, self._lane
        if not self._job.over_tcp:
            return lane.wait_for_server(server, timeout=SERVER_READY_SECONDS)
        deadline = self._stages.wall() + SERVER_READY_SECONDS
        while not (ready := lane.listens(SERVER, _HTTPS)):
            if server.ended or self._stages.wall() > deadline:
                break
            lane.bell.wait(lambda: server.ended, timeout=_LOOK)
        return ready

    def _run_client(self) -> None:
        client, server, lane = self._client.supervised, self._server.supervised, self._lane
        with self._stages.stage("client start"):
            self._client.start()
        with self._stages.stage("transfer"):
            deadline = self._stages.wall() + self._job.timeout
            self._wait(deadline, lambda: client.ended or server.ended or lane.link_died or lane.flooded)
            if server.ended:
                # What it sent before it ended may still arrive.
                grace = _CLIENT_AFTER_SERVER + self._job.forward.delay + self._job.return_.delay
                self._wait(min(deadline, self._stages.wall() + grace), lambda: client.ended or lane.link_died)
            self._require_link()
            if not client.ended:
                self._flooded = lane.flooded
                self._client.stopped_by_us = self._flooded or server.ended
                self._client.timed_out = not self._client.stopped_by_us
                client.kill()
                if self._flooded:
                    self._server.stopped_by_us = not server.ended
                    server.kill()

    def _evidence(self) -> Evidence:
        return replace(super()._evidence(), server_udp_ports=self._server_udp_ports, flooded=self._flooded)
