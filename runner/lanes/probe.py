"""The compliance probe: an image that doesn't know the case in TESTCASE must exit with 127 soon."""

import secrets

from runner.errors import LaneError
from runner.inputs import inputs
from runner.lanes.endpoint import Endpoint
from runner.lanes.lane import Lane, Shape
from runner.lanes.link_document import link_document
from runner.lanes.request import EndpointSpec, Limits, ProbeResult
from runner.lanes.resident import Holder
from runner.lanes.served import Served
from runner.model.implementation import Role
from runner.model.link_record import LinkParameters, LinkRecord
from runner.model.topology import CLIENT, Topology

UNSUPPORTED = 127
PROBE_SECONDS = 30.0
_FILE_SIZE = 1024  # bytes
_LINK = LinkParameters(data_rate=10_000_000, delay=0.015, queue_packets=25, loss=0.0)
_LINES = 12
_TOPOLOGY = Topology(link=LinkRecord.single("probe", _LINK, _LINK))
PROBE_SHAPE = Shape(
    logs=Limits().logs,
    downloads=((CLIENT, Limits().logs),),
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

    def run(self, plumber: Holder, *, timeout: float) -> ProbeResult:
        """Start the image and wait `timeout` seconds at most. Raises LaneError when the lane failed."""
        limits, lane = Limits(), self._lane
        files = inputs.served_files(0, (_FILE_SIZE,))
        www, certs = self._served.www(files), self._served.certs(1)
        endpoint = Endpoint(self._role, EndpointSpec(image=self._image, environment=self._environment(files)), limits)
        endpoint.find(self._lane.engine)
        lane.prepare(plumber)
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
        if not self._lane.bell.wait(lambda: endpoint.supervised.ended, timeout=timeout):
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
            output=endpoint.supervised.last_lines(_LINES) if endpoint.running is not None else "",
            problem=problem,
        )
