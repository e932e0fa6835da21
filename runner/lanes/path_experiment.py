"""One job over a path in one lane, from holders to evidence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner import collect
from runner.engine.containers import Volume
from runner.errors import LaneError
from runner.lanes.endpoint import Endpoint
from runner.lanes.experiment import SERVER_READY_SECONDS, Step
from runner.lanes.holders import CAPTURE_LIMIT
from runner.lanes.lane_experiment import LaneExperiment
from runner.lanes.link_arguments import link_arguments
from runner.lanes.path_lane import PathLane
from runner.lanes.path_request import PathJob
from runner.lanes.path_wiring import GATEWAY4, TERMINAL
from runner.lanes.resident import Holder
from runner.lanes.served import Served
from runner.lanes.wiring import CLIENT, SERVER
from runner.model.artifacts import Evidence

PATH_READY_SECONDS = 30.0
PATH_GRACE_SECONDS = 2.0
_DISCARD = 9  # a port that nobody listens on


class PathExperiment(LaneExperiment):
    """A job while it runs. `run` is called once."""

    _job: PathJob
    _lane: PathLane

    def __init__(self, job: PathJob, lane: PathLane, served: Served, plumber: Holder) -> None:
        self._sides = {side: Endpoint(side, spec, job.limits) for side, spec in job.sides.items()}
        super().__init__(
            job,
            lane,
            served,
            plumber,
            expected=job.expected,
            return_delay=job.satellite.return_.delay + job.ground.return_.delay,
            others=tuple(self._sides.values()),
        )

    def _serve(self) -> Mapping[str, tuple[Volume, ...]]:
        www, certs, keys = self._served.www(self._job.files), self._served.certs(1), self._served.path_keys()
        secrets = (keys, certs) if self._job.evidence.entry.poses_as_server else (keys,)
        return {CLIENT: (certs,), SERVER: (www, certs)} | dict.fromkeys(self._sides, secrets)

    def _link_starts(self) -> Sequence[Callable[[], None]]:
        job, lane = self._job, self._lane
        specs = zip(lane.segments, (job.satellite, job.ground), (job.seed, job.seed ^ 1), strict=True)
        # Losses of a segment take packets of every protocol: a TCP connection is to suffer as a tunnel does.
        arguments = {
            segment: link_arguments(
                forward=spec.forward, return_=spec.return_, seed=seed, path=spec.path, lose_all=True
            )
            for segment, spec, seed in specs
        }
        starts = (lambda segment=segment: segment.start(arguments[segment]) for segment in lane.segments)
        return [*starts, lane.capture_client]

    def _start_path(self) -> None:
        """Start both sides; raise LaneError when one isn't ready in time."""
        with self._stages.stage("path ready"):
            if self._job.satellite.forward.impairments.changes:
                # Changes count from the first UDP packet of a segment: with every path the same one.
                self._lane.execute(TERMINAL, ["bash", "-c", f"echo > /dev/udp/{GATEWAY4}/{_DISCARD}"])
            for endpoint in self._sides.values():
                endpoint.start()
            deadline = self._stages.wall() + PATH_READY_SECONDS
            for side, endpoint in self._sides.items():
                while not self._lane.path_ready(side):
                    self._bell.wait(lambda: True, timeout=0)  # a run that is stopped ends here
                    ended = endpoint.supervised.ended
                    if ended or self._stages.wall() > deadline:
                        why = "ended" if ended else f"was not ready within {PATH_READY_SECONDS:g} s"
                        said = endpoint.supervised.last_lines(3) or "nothing"
                        raise LaneError(
                            "path-not-ready", f"The {side.value} of the path {why}. It printed", printed=said
                        )

    def _start_server(self) -> bool:
        self._start_path()
        with self._stages.stage("server ready"):
            self._server.start()
            server, port = self._server.supervised, self._job.server_port
            deadline = self._stages.wall() + SERVER_READY_SECONDS
            while not (ready := self._lane.listens(SERVER, port)):
                if server.ended or self._stages.wall() > deadline:
                    break
                self._bell.wait(lambda: server.ended, timeout=0.05)
            self._server_ready = ready
            if not ready:
                raise LaneError("origin-not-ready", "The origin did not listen.", printed=server.last_lines(3))
        return True

    def _run_client(self) -> None:
        client, lane = self._client.supervised, self._lane
        with self._stages.stage("client start"):
            self._client.start()
        with self._stages.stage("transfer"):
            deadline = self._stages.wall() + self._job.timeout
            others = [one for one in self._endpoints if one is not self._client]
            self._wait(deadline, lambda: client.ended or lane.link_died or any(one.supervised.ended for one in others))
            self._require_link()
            for one in others:
                if one.supervised.ended and not client.ended:
                    self._client.stopped_by_us = True
                    client.kill()
                    name, said = one.role.value, one.supervised.last_lines(3)
                    raise LaneError(f"{name}-ended", f"The {name} ended early.", printed=said)
            if not client.ended:
                self._client.timed_out = True
                client.kill()

    def _steps(self) -> list[Step]:
        files, server, *rest = super()._steps()
        return [files, server, ("path stop", self._stop_path), *rest]

    def _stop_path(self) -> None:
        """End the path after the server, so that what it prints at its end is printed."""
        for endpoint in self._sides.values():
            self._stop(endpoint, grace=PATH_GRACE_SECONDS)

    def _copies(self) -> list[Callable[[], object]]:
        return [*super()._copies(), self._copy_client_capture]

    def _copy_client_capture(self) -> None:
        collect.extract(self._lane.client_capture(), self._job.folder / CLIENT, budget=CAPTURE_LIMIT)

    def _evidence(self) -> Evidence:
        sides = {side.value: one.record(self._stages.began_unix) for side, one in self._sides.items()}
        return replace(super()._evidence(), sides=sides, path=self._job.evidence)
