"""One job in one lane, from holders to evidence."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from runner import collect
from runner.engine.containers import Volume
from runner.errors import LaneError
from runner.inputs.inputs import ServedFile
from runner.lanes.endpoint import Endpoint
from runner.lanes.experiment import SERVER_GRACE_SECONDS, Experiment, Step
from runner.lanes.holders import CAPTURE_LIMIT, CAPTURES
from runner.lanes.lane_base import LaneBase, together
from runner.lanes.link_arguments import LOGS
from runner.lanes.request import Request
from runner.lanes.resident import Holder
from runner.lanes.segment import LINK_LOGS, Segment
from runner.lanes.served import Served

LAST_PACKETS = 0.05  # s beyond the return link's delay until the client's last packet has passed all captures
_SAMPLE_SECONDS = 2.0  # between measurements of CPU time


class LaneExperiment(Experiment):
    """A job in a lane. `return_delay` in seconds, from client to server."""

    def __init__(
        self,
        job: Request,
        lane: LaneBase,
        served: Served,
        plumber: Holder,
        *,
        expected: tuple[ServedFile, ...],
        return_delay: float,
        others: Sequence[Endpoint] = (),
    ) -> None:
        super().__init__(job, served=served, pool=lane.pool, bell=lane.bell, expected=expected, others=others)
        self._lane = lane
        self._engine = lane.engine
        self._plumber = plumber
        self._return_delay = return_delay
        self._opened = False

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
                *(lambda one=one: one.create(self._lane, served[one.role.value]) for one in self._endpoints),
            )
        self._opened = True

    def _serve(self) -> Mapping[str, tuple[Volume, ...]]:
        """The volumes that are given to each role."""
        raise NotImplementedError

    def _link_starts(self) -> Sequence[Callable[[], None]]:
        """What starts simulators and captures."""
        raise NotImplementedError

    def _is_open(self) -> bool:
        return self._opened

    def _steps(self) -> list[Step]:
        return [
            ("client files", self._collect_client),
            ("server stop", lambda: self._stop(self._server, grace=SERVER_GRACE_SECONDS)),
            ("captures", self._stop_captures),
            ("collect", self._collect_rest),
        ]

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        """Wait until `until()` holds or for `deadline`, in seconds of the job; measure CPU times meanwhile."""
        while (left := deadline - self._stages.wall()) > 0:
            if self._bell.wait(until, timeout=min(left, _SAMPLE_SECONDS)):
                return
            for endpoint in self._endpoints:
                endpoint.measure(self._engine)

    def _require_link(self) -> None:
        """Raises LaneError when a simulator or a capture has ended, after the client's end."""
        if self._lane.link_died:
            self._client.supervised.kill()
            raise LaneError(
                "link-died", "A simulator or a capture ended early.", printed=self._lane.link_output()[-2000:]
            )

    def _collect_client(self) -> None:
        """Copy the client's files while its last packets are still on their way to the server, and ask what the others
        have used of the CPU, which takes the engine up to a second."""
        client_ended = self._stages.wall()
        others = (one for one in self._endpoints if one is not self._client)
        together(
            self._pool,
            lambda: self._copy_logs(self._client),
            self._compare_downloads,
            *(lambda one=one: one.measure(self._engine) for one in others),
        )
        if self._client.supervised.ended:
            left = client_ended + self._return_delay + LAST_PACKETS - self._stages.wall()
            self._bell.wait(lambda: False, timeout=left)

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        return self._lane.archive(endpoint.role.value, path)

    def _stop(self, endpoint: Endpoint, *, grace: float) -> None:
        running = endpoint.running
        if running is not None and not running.ended:
            endpoint.stopped_by_us |= running.terminate(grace=grace)

    def _stop_captures(self) -> None:
        self._capture_drops = self._lane.stop_captures()

    def _collect_rest(self) -> None:
        """Copy captures, the other endpoints' files and, when they have ended, what the simulators wrote."""
        together(self._pool, *self._copies(), *(segment.stop for segment in self._lane.segments))
        for segment in self._lane.segments:
            self._copy_truth(segment)

    def _copies(self) -> list[Callable[[], object]]:
        return [
            *(lambda one=one: self._copy_logs(one) for one in self._endpoints if one is not self._client),
            *(
                lambda role=role: collect.extract(
                    self._lane.archive(role, CAPTURES), self._job.folder / role, budget=2 * CAPTURE_LIMIT
                )
                for role in self._links()
            ),
        ]

    def _copy_truth(self, segment: Segment) -> None:
        folder = self._job.folder / segment.role
        collect.extract(self._lane.archive(segment.role, LOGS), folder, budget=LINK_LOGS)
        if not (folder / "truth.json").is_file():
            raise LaneError("no-truth", "The simulator left no truth.", printed=segment.output()[-2000:])

    def _outputs(self) -> dict[str, str]:
        endpoints = {one.role.value: one.supervised.printed if one.running else "" for one in self._endpoints}
        return endpoints | {segment.role: segment.output() for segment in self._lane.segments}
