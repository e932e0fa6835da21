"""Starts and stops the second flow of a job (docs/beside.md)."""

from collections.abc import Mapping

from runner.engine.containers import Volume
from runner.errors import LaneError
from runner.lanes.endpoint import Endpoint
from runner.lanes.lane import Lane
from runner.lanes.request import LaneJob
from runner.lanes.served import Served
from runner.model.artifacts import EndpointRecord
from runner.model.beside import BesideRole

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
            self._lane.bell.wait(lambda: server.supervised.ended, timeout=0.05)
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
