"""One job over a path in one lane, from holders to evidence, which is written whatever an image does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner import collect
from runner.deploy.endpoint import Endpoint
from runner.deploy.experiment import LAST_PACKETS, SERVER_GRACE_SECONDS, SERVER_READY_SECONDS, downloads_quota
from runner.deploy.holders import CAPTURE_LIMIT, CAPTURES
from runner.deploy.lane_base import together
from runner.deploy.link_arguments import LOGS, link_arguments
from runner.deploy.path_lane import PathLane
from runner.deploy.path_request import PathJob, SegmentSpec
from runner.deploy.path_wiring import CLIENT, GATEWAY4, SERVER, TERMINAL
from runner.deploy.segment import LINK_LOGS, Segment
from runner.deploy.served import Served
from runner.deploy.stages import Stages
from runner.deploy.supervised import STOPPED
from runner.errors import LaneError
from runner.model.artifacts import Artifacts, Evidence, FileRecord
from runner.model.implementation import Role
from runner.model.path import Side
from runner.store import save_evidence

PATH_READY_SECONDS = 30.0
PATH_GRACE_SECONDS = 2.0
_DISCARD = 9  # a port that nobody listens on
_SAMPLE_SECONDS = 2.0
_OUTPUT = "output.log"


def quotas(job: PathJob) -> tuple[int, int]:
    """Bytes of /logs and of /downloads."""
    return job.limits.logs, downloads_quota(job.expected)


class PathExperiment:
    """A job while it runs. `run` is called once."""

    def __init__(self, job: PathJob, lane: PathLane, served: Served) -> None:
        self._job = job
        self._lane = lane
        self._engine = lane.engine
        self._pool = lane.pool
        self._bell = lane.bell
        self._served = served
        self._stages = Stages()
        self._artifacts = Artifacts(job.folder)
        self._client = Endpoint(Role.CLIENT, job.client, job.limits)
        self._server = Endpoint(Role.SERVER, job.server, job.limits)
        self._sides = {side: Endpoint(side, spec, job.limits) for side, spec in job.sides.items()}
        self._server_ready: bool | None = None
        self._files: tuple[FileRecord, ...] = ()
        self._extra: tuple[str, ...] = ()
        self._capture_drops: int | None = None
        self._error: dict[str, str] = {}
        self._opened = False

    def run(self, plumber: str) -> Evidence:
        """Run the job and write its folder, `evidence.json` last."""
        for folder in (CLIENT, SERVER, "sim", "ground", *(side.value for side in Side)):
            (self._job.folder / folder).mkdir(parents=True, exist_ok=True)
        with self._noting_errors():
            self._open(plumber)
            self._start_path()
            self._start_server()
            self._run_client()
        for name, step in (
            ("client files", self._collect_client),
            ("stop", self._stop),
            ("captures", self._stop_captures),
            ("collect", self._collect_rest),
        ):
            if not self._opened or self._error.get("code") == STOPPED:
                break
            with self._noting_errors(), self._stages.stage(name):
                step()
        self._write_outputs()
        evidence = self._evidence()
        save_evidence(self._artifacts, evidence)
        return evidence

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except LaneError as error:
            self._error = self._error or {"code": error.code, "message": str(error)}

    @property
    def _endpoints(self) -> list[Endpoint]:
        return [self._client, self._server, *self._sides.values()]

    def _open(self, plumber: str) -> None:
        job, lane = self._job, self._lane
        with self._stages.stage("files"):
            www, certs, keys = self._served.www(job.files), self._served.certs(1), self._served.path_keys()
            for endpoint in self._endpoints:
                endpoint.find(self._engine)
        with self._stages.stage("lane"):
            lane.prepare(plumber)
        with self._stages.stage("link"):
            logs = lane.logs_quota
            secrets = (keys, certs) if job.evidence.entry.poses_as_server else (keys,)
            both = logs + lane.downloads_quota
            together(
                self._pool,
                lambda: lane.satellite.start(_arguments(job.satellite, job.seed)),
                lambda: lane.ground.start(_arguments(job.ground, job.seed ^ 1)),
                lane.capture_client,
                lambda: self._client.create(lane, (lane.logs[CLIENT], lane.downloads, certs), quota=both),
                lambda: self._server.create(lane, (lane.logs[SERVER], www, certs), quota=logs),
                *(
                    lambda side=side, one=one: one.create(lane, (lane.logs[side.value], *secrets), quota=logs)
                    for side, one in self._sides.items()
                ),
            )
        self._opened = True

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
                        raise LaneError("path-not-ready", f"The {side.value} of the path {why}. It printed: {said}")

    def _start_server(self) -> None:
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
                raise LaneError("origin-not-ready", f"The origin did not listen: {server.last_lines(3)}")

    def _run_client(self) -> None:
        client, lane = self._client.supervised, self._lane
        with self._stages.stage("client start"):
            self._client.start()
        with self._stages.stage("transfer"):
            deadline = self._stages.wall() + self._job.timeout
            ended = [self._server.supervised, *(one.supervised for one in self._sides.values())]
            self._wait(deadline, lambda: client.ended or lane.link_died or any(one.ended for one in ended))
            if lane.link_died:
                client.kill()
                raise LaneError("link-died", f"A simulator or a capture ended early: {lane.link_output()[-500:]}")
            for name, one in self._others():
                if one.supervised.ended and not client.ended:
                    self._client.stopped_by_us = True
                    client.kill()
                    raise LaneError(f"{name}-ended", f"The {name} ended early: {one.supervised.last_lines(3)}")
            if not client.ended:
                self._client.timed_out = True
                client.kill()

    def _others(self) -> list[tuple[str, Endpoint]]:
        return [(SERVER, self._server), *((side.value, one) for side, one in self._sides.items())]

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        """Wait until `until()` holds or for `deadline`, in seconds of the job; measure CPU times meanwhile."""
        while (left := deadline - self._stages.wall()) > 0:
            if self._bell.wait(until, timeout=min(left, _SAMPLE_SECONDS)):
                return
            for endpoint in self._endpoints:
                endpoint.measure(self._engine)

    def _collect_client(self) -> None:
        """Copy the client's files while its last packets are still on their way."""
        ended = self._stages.wall()
        together(self._pool, lambda: self._copy_logs(CLIENT, self._client), self._compare_downloads)
        delay = self._job.satellite.return_.delay + self._job.ground.return_.delay
        self._bell.wait(lambda: False, timeout=ended + delay + LAST_PACKETS - self._stages.wall())

    def _compare_downloads(self) -> None:
        expected = self._served.expected(self._job.expected)
        found = collect.compare(
            self._lane.archive(CLIENT, "/downloads"), expected, budget=2 * self._lane.downloads_quota
        )
        self._files, self._extra = found.files, found.extra

    def _copy_logs(self, role: str, endpoint: Endpoint) -> None:
        folder = self._job.folder / role
        done = collect.extract(self._lane.archive(role, "/logs"), folder, reserved=frozenset((_OUTPUT,)))
        endpoint.skipped += done.skipped

    def _stop(self) -> None:
        """End the server, then the path, so that what the path prints at its end is printed."""
        for name, endpoint in self._others():
            running = endpoint.running
            if running is not None and not running.ended:
                endpoint.measure(self._engine)
                grace = SERVER_GRACE_SECONDS if name == SERVER else PATH_GRACE_SECONDS
                endpoint.stopped_by_us = running.terminate(grace=grace)

    def _stop_captures(self) -> None:
        self._capture_drops = self._lane.stop_captures()

    def _collect_rest(self) -> None:
        lane, folder = self._lane, self._job.folder
        together(
            self._pool,
            *(lambda name=name, one=one: self._copy_logs(name, one) for name, one in self._others()),
            lambda: collect.extract(lane.archive("satellite", CAPTURES), folder / "sim", budget=2 * CAPTURE_LIMIT),
            lambda: collect.extract(lane.archive("ground", CAPTURES), folder / "ground", budget=2 * CAPTURE_LIMIT),
            lambda: collect.extract(lane.client_capture(), folder / CLIENT, budget=CAPTURE_LIMIT),
            lane.satellite.stop,
            lane.ground.stop,
        )
        for segment, name in ((lane.satellite, "sim"), (lane.ground, "ground")):
            self._collect_truth(segment, name)

    def _collect_truth(self, segment: Segment, name: str) -> None:
        collect.extract(self._lane.archive(segment.role, LOGS), self._job.folder / name, budget=LINK_LOGS)
        if not (self._job.folder / name / "truth.json").is_file():
            raise LaneError("no-truth", f"The simulator left no truth: {segment.output()[-500:]}")

    def _write_outputs(self) -> None:
        outputs = {CLIENT: self._client, SERVER: self._server} | {side.value: one for side, one in self._sides.items()}
        texts = {name: one.running.printed if one.running is not None else "" for name, one in outputs.items()}
        texts |= {"sim": self._lane.satellite.output(), "ground": self._lane.ground.output()}
        for name, text in texts.items():
            (self._job.folder / name / _OUTPUT).write_text(text)
        self._artifacts.output_log.write_text(collect.merge_outputs(list(texts.items())))

    def _evidence(self) -> Evidence:
        began = self._stages.began_unix
        client = self._client.record(began)
        took = client.ended - client.started if client.started is not None and client.ended is not None else 0.0
        missing = tuple(
            FileRecord(name=file.name, size=file.size, received=None, equal=False) for file in self._job.expected
        )
        return Evidence(
            started_unix_s=began,
            wall_s=self._stages.wall(),
            transfer_s=took,
            stages_s=self._stages.seconds,
            client=client,
            server=self._server.record(began),
            sides={side.value: one.record(began) for side, one in self._sides.items()},
            server_ready=self._server_ready,
            files=self._files or missing,
            extra_files=self._extra,
            capture_drops=self._capture_drops,
            host_steal=self._stages.steal(),
            cpu_pressure=self._stages.pressure(),
            path=self._job.evidence,
            error=self._error,
        )


def _arguments(segment: SegmentSpec, seed: int) -> list[str]:
    """Losses of a segment take packets of every protocol: a TCP connection is to suffer as a tunnel does."""
    return link_arguments(forward=segment.forward, return_=segment.return_, seed=seed, path=segment.path, lose_all=True)
