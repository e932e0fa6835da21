"""One job in one lane, from holders to evidence, which is written whatever an image does, and says what it did."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner import collect
from runner.deploy.endpoint import Endpoint
from runner.deploy.holders import CAPTURE_LIMIT, CAPTURES
from runner.deploy.lane import Lane, Shape
from runner.deploy.lane_base import together
from runner.deploy.link_arguments import LOGS, link_arguments
from runner.deploy.request import LaneJob
from runner.deploy.segment import LINK_LOGS
from runner.deploy.served import Served
from runner.deploy.stages import Stages
from runner.deploy.supervised import STOPPED, Supervised
from runner.errors import LaneError
from runner.inputs import ServedFile
from runner.model.artifacts import Artifacts, Evidence, FileRecord
from runner.model.implementation import Role
from runner.store import save_evidence
from runner.units import MIB

SERVER_READY_SECONDS = 10.0
SERVER_GRACE_SECONDS = 10.0
_SPARE_DOWNLOADS = 16 * MIB  # bytes, beyond twice what is requested
_LEAST_DOWNLOADS = 64 * MIB
_CLIENT_AFTER_SERVER = 5.0  # s that a client gets to end when its server has died
_SAMPLE_SECONDS = 2.0  # between measurements of CPU time
LAST_PACKETS = 0.05  # s beyond the return link's delay until the client's last packet has passed the server's capture
_ALMOST_FULL = 64 * 1024  # bytes left of a quota below which the next write is refused
_OUTPUT = "output.log"


def shape_of(job: LaneJob) -> Shape:
    """The lane that a job needs. Its quota of /downloads is a power of two, so that most jobs share one shape."""
    return Shape(logs=job.limits.logs, downloads=downloads_quota(job.files), ask_server=job.wait_for_server)


def downloads_quota(files: tuple[ServedFile, ...]) -> int:
    """Bytes for /downloads when `files` are asked for."""
    wanted = max(_LEAST_DOWNLOADS, 2 * sum(file.size for file in files) + _SPARE_DOWNLOADS)
    return 1 << (wanted - 1).bit_length()


class Experiment:
    """A job while it runs. `run` is called once."""

    def __init__(self, job: LaneJob, lane: Lane, served: Served) -> None:
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
        self._server_ready: bool | None = None
        self._server_udp_ports: tuple[int, ...] = ()
        self._files: tuple[FileRecord, ...] = ()
        self._extra: tuple[str, ...] = ()
        self._capture_drops: int | None = None
        self._error: dict[str, str] = {}
        self._opened = False

    def run(self, plumber: str) -> Evidence:
        """Run the job and write its folder, `evidence.json` last."""
        for role in ("client", "server", "sim"):
            (self._job.folder / role).mkdir(parents=True, exist_ok=True)
        with self._noting_errors():
            self._open(plumber)
            if self._start_server():
                self._run_client()
        for name, step in (
            ("client files", self._collect_client),
            ("server stop", self._stop_server),
            ("captures", self._stop_captures),
            ("collect", self._collect_rest),
        ):
            # Each step is tried even when one before it failed: what there is of evidence is kept.
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

    def _open(self, plumber: str) -> None:
        job, lane = self._job, self._lane
        with self._stages.stage("files"):
            www, certs = self._served.www(job.files), self._served.certs(job.chain_length)
            self._client.find(self._engine)
            self._server.find(self._engine)
        with self._stages.stage("lane"):
            lane.prepare(plumber)
        with self._stages.stage("link"):
            quota, volumes = lane.shape.logs + lane.shape.downloads, lane.volumes
            arguments = link_arguments(forward=job.forward, return_=job.return_, seed=job.seed, path=job.path)
            together(
                self._pool,
                lambda: lane.link.start(arguments),
                lambda: self._client.create(lane, (*volumes.client, certs), quota=quota),
                lambda: self._server.create(lane, (*volumes.server, www, certs), quota=lane.shape.logs),
            )
        self._opened = True

    def _start_server(self) -> bool:
        """Start the server. Returns whether there is something to run a client against."""
        with self._stages.stage("server start"):
            self._server.start()
        if self._job.wait_for_server:
            with self._stages.stage("server ready"):
                self._server_ready = self._lane.wait_for_server(self._server.supervised, timeout=SERVER_READY_SECONDS)
            if not self._server_ready and not self._server.supervised.ended:
                self._server_udp_ports = self._lane.udp_ports("server")
            return self._server_ready
        return not self._server.supervised.ended

    def _run_client(self) -> None:
        client, server, lane = self._client.supervised, self._server.supervised, self._lane
        with self._stages.stage("client start"):
            self._client.start()
        with self._stages.stage("transfer"):
            deadline = self._stages.wall() + self._job.timeout
            self._wait(deadline, lambda: client.ended or server.ended or lane.link.died)
            if server.ended:
                # What it sent before it ended may still arrive.
                grace = _CLIENT_AFTER_SERVER + self._job.forward.delay + self._job.return_.delay
                self._wait(min(deadline, self._stages.wall() + grace), lambda: client.ended or lane.link.died)
            if lane.link.died:
                client.kill()
                raise LaneError("link-died", f"The simulator or a capture ended early: {lane.link.output()[-500:]}")
            if not client.ended:
                self._client.timed_out = not server.ended
                self._client.stopped_by_us = server.ended
                client.kill()

    def _wait(self, deadline: float, until: Callable[[], bool]) -> bool:
        """Wait until `until()` holds; measure CPU times meanwhile. False at `deadline`, in seconds of the job."""
        while (left := deadline - self._stages.wall()) > 0:
            if self._bell.wait(until, timeout=min(left, _SAMPLE_SECONDS)):
                return True
            for endpoint in (self._client, self._server):
                endpoint.measure(self._engine)
        return until()

    def _collect_client(self) -> None:
        """Copy the client's files while its last packets are still on their way to the server."""
        client_ended = self._stages.wall()
        together(self._pool, lambda: self._copy_logs(self._client), self._compare_downloads)
        if self._client.supervised.ended:
            left = client_ended + self._job.return_.delay + LAST_PACKETS - self._stages.wall()
            self._bell.wait(lambda: False, timeout=left)

    def _compare_downloads(self) -> None:
        quota = self._lane.shape.downloads
        archive, expected = self._lane.archive("client", "/downloads"), self._served.expected(self._job.files)
        found = collect.compare(archive, expected, budget=2 * quota)
        self._files, self._extra = found.files, found.extra
        if found.occupied > quota - _ALMOST_FULL:
            self._client.volumes_full.append("/downloads")

    def _copy_logs(self, endpoint: Endpoint) -> None:
        """Copy /logs of an endpoint to the job's folder; the endpoint's record keeps what was left out."""
        role = endpoint.role.value
        archive, folder = self._lane.archive(role, "/logs"), self._job.folder / role
        done = collect.extract(archive, folder, reserved=frozenset((_OUTPUT,)))
        endpoint.skipped += done.skipped
        if done.occupied > self._lane.shape.logs - _ALMOST_FULL:
            endpoint.volumes_full.append("/logs")

    def _stop_server(self) -> None:
        server = self._server.running
        if server is None or server.ended:
            return
        self._server.measure(self._engine)
        self._server.stopped_by_us = server.terminate(grace=SERVER_GRACE_SECONDS)

    def _stop_captures(self) -> None:
        self._capture_drops = self._lane.link.stop_captures()

    def _collect_rest(self) -> None:
        """Copy captures, the server's files and, when it has ended, what the simulator wrote."""
        sim = self._job.folder / "sim"
        together(
            self._pool,
            lambda: self._copy_logs(self._server),
            lambda: collect.extract(self._lane.archive("sim", CAPTURES), sim, budget=2 * CAPTURE_LIMIT),
            self._lane.link.stop,
        )
        collect.extract(self._lane.archive("sim", LOGS), sim, budget=LINK_LOGS)
        if not self._artifacts.link_truth.is_file():
            raise LaneError("no-truth", f"The simulator left no truth: {self._lane.link.output()[-500:]}")

    def _write_outputs(self) -> None:
        outputs = {
            "client": _printed(self._client.running),
            "server": _printed(self._server.running),
            "sim": self._lane.link.output(),
        }
        for role, text in outputs.items():
            (self._job.folder / role / _OUTPUT).write_text(text)
        self._artifacts.output_log.write_text(collect.merge_outputs(list(outputs.items())))

    def _evidence(self) -> Evidence:
        began = self._stages.began_unix
        client = self._client.record(began)
        transfer = client.ended - client.started if client.started is not None and client.ended is not None else 0.0
        missing = tuple(
            FileRecord(name=file.name, size=file.size, received=None, equal=False) for file in self._job.files
        )
        return Evidence(
            started_unix_s=began,
            wall_s=self._stages.wall(),
            transfer_s=transfer,
            stages_s=self._stages.seconds,
            client=client,
            server=self._server.record(began),
            server_ready=self._server_ready,
            server_udp_ports=self._server_udp_ports,
            files=self._files or missing,
            extra_files=self._extra,
            capture_drops=self._capture_drops,
            host_steal=self._stages.steal(),
            cpu_pressure=self._stages.pressure(),
            error=self._error,
        )


def _printed(container: Supervised | None) -> str:
    return container.printed if container is not None else ""
