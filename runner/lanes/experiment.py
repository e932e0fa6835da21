"""The base of experiments in lanes and over real links: timed steps, and evidence even when an image fails."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager

from runner import collect
from runner.errors import LaneError
from runner.inputs.inputs import ServedFile
from runner.lanes.endpoint import Endpoint
from runner.lanes.request import LaneJob
from runner.lanes.served import Served
from runner.lanes.stages import Stages
from runner.lanes.supervised import STOPPED, Bell
from runner.model.artifacts import Artifacts, Evidence, FileRecord
from runner.model.implementation import Role
from runner.model.middlebox import Box
from runner.store import save_evidence
from runner.units import MIB

SERVER_READY_SECONDS = 10.0
SERVER_GRACE_SECONDS = 10.0
_BOX_READY_SECONDS = 30.0
_BOX_GRACE_SECONDS = 2.0
_SPARE_DOWNLOADS = 16 * MIB  # bytes, in addition to twice the requested bytes
_LEAST_DOWNLOADS = 64 * MIB
_ALMOST_FULL = 64 * 1024  # bytes; with less of a quota left, the file system counts as full
_OUTPUT = "output.log"

Step = tuple[str, Callable[[], None]]


def downloads_quota(files: tuple[ServedFile, ...]) -> int:
    """Bytes for /downloads when `files` are requested: a power of two, so that most jobs need the same shape of
    lane."""
    size = max(_LEAST_DOWNLOADS, 2 * sum(file.size for file in files) + _SPARE_DOWNLOADS)
    return 1 << (size - 1).bit_length()


class Experiment(ABC):
    """A job while it runs. `run` is called once."""

    listen_look = 0.05  # seconds between two checks whether the server listens on TCP

    def __init__(
        self,
        job: LaneJob,
        *,
        served: Served,
        pool: Executor,
        bell: Bell,
        others: Sequence[Endpoint] = (),
    ) -> None:
        """`others`: endpoints in addition to client, server and boxes."""
        self._job = job
        self._served = served
        self._pool = pool
        self._bell = bell
        self._expected = job.required_files
        self._stages = Stages()
        self._artifacts = Artifacts(job.folder)
        self._client = Endpoint(Role.CLIENT, job.client, job.limits)
        self._server = Endpoint(Role.SERVER, job.server, job.limits)
        self._boxes = {box: Endpoint(box, spec, job.limits) for box, spec in job.boxes.items()}
        self._endpoints = (self._client, self._server, *self._boxes.values(), *others)
        self._server_ready: bool | None = None
        self._files: tuple[FileRecord, ...] = ()
        self._extra: tuple[str, ...] = ()
        self._capture_drops: int | None = None
        self._error: dict[str, str] = {}

    def run(self) -> Evidence:
        """Run the job and write its folder, `evidence.json` last."""
        for name in (*(endpoint.role.value for endpoint in self._endpoints), *self._links()):
            (self._job.folder / name).mkdir(parents=True, exist_ok=True)
        with self._noting_errors():
            self._open()
            if self._start_server():
                self._run_client()
        for name, step in self._steps():
            # Each step is tried even after a failed step, so that all available evidence is kept.
            if not self._is_open() or self._error.get("code") == STOPPED:
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
            self._error = self._error or error.record()

    def _links(self) -> Sequence[str]:
        """The folders of the links' captures and truth."""
        return ("sim",)

    def _start_server(self) -> bool:
        """Start the middlebox, then the server. Returns True when a client can be run against it. Raises LaneError when
        a box or the origin isn't ready in time."""
        self._start_boxes()
        with self._stages.stage("server start"):
            self._start_servers()
        if not self._job.wait_for_server:
            return not self._server.watched.ended
        with self._stages.stage("server ready"):
            port = self._job.server_port
            self._server_ready = self._answers_quic() if port is None else self._wait_until_listening(port)
        if not self._server_ready and self._job.own_server:
            raise LaneError("origin-not-ready", "The origin did not listen.", printed=self._last_lines(self._server))
        return self._server_ready

    def _start_boxes(self) -> None:
        if not self._boxes:
            return
        with self._stages.stage("middlebox ready"):
            for endpoint in self._boxes.values():
                endpoint.start()
            deadline = self._stages.wall() + _BOX_READY_SECONDS
            for box, endpoint in self._boxes.items():
                while not self._box_ready(box):
                    self._bell.wait(lambda: True, timeout=0)  # raises when the run is stopped
                    ended = endpoint.watched.ended
                    if ended or self._stages.wall() > deadline:
                        why = "ended" if ended else f"was not ready within {_BOX_READY_SECONDS:g} s"
                        printed = self._last_lines(endpoint) or "nothing"
                        raise LaneError("box-not-ready", f"The {box.value} box {why}. It printed", printed=printed)

    def _start_servers(self) -> None:
        self._server.start()

    def _wait_until_listening(self, port: int) -> bool:
        """True when the server accepts TCP in time. Doesn't wait for a server that has ended or floods the link."""
        server, deadline = self._server.watched, self._stages.wall() + SERVER_READY_SECONDS
        while not self._listens(port):
            if server.ended or self._link_flooded() or self._stages.wall() > deadline:
                return False
            self._bell.wait(lambda: server.ended, timeout=self.listen_look)
        return True

    def _stop_server(self) -> None:
        """End the server; it gets no time for a clean end when it floods the link."""
        self._server.stop(grace=SERVER_GRACE_SECONDS, hurry=self._link_flooded)

    def _link_flooded(self) -> bool:
        """True when endpoints sent so much that the link was closed."""
        return False

    def _stop_boxes(self) -> None:
        """End the middlebox after the server; it may print statistics at its end."""
        for endpoint in self._boxes.values():
            endpoint.stop(grace=_BOX_GRACE_SECONDS)

    @abstractmethod
    def _open(self) -> None:
        """Make everything that must exist before an image starts."""

    @abstractmethod
    def _box_ready(self, box: Box) -> bool:
        """True when the box has reported that it forwards traffic. Waits for a second at most."""

    @abstractmethod
    def _answers_quic(self) -> bool:
        """True when the server answers over QUIC within SERVER_READY_SECONDS."""

    @abstractmethod
    def _listens(self, port: int) -> bool:
        """True when the server accepts TCP on `port` now."""

    @abstractmethod
    def _run_client(self) -> None:
        """Start the client and wait for its end."""

    @abstractmethod
    def _steps(self) -> list[Step]:
        """The steps after the client's end, each with its name."""

    @abstractmethod
    def _is_open(self) -> bool:
        """True when there are containers from which steps can collect."""

    @abstractmethod
    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        """A folder of the endpoint's volumes as tar. Raises LaneError."""

    @abstractmethod
    def _last_lines(self, endpoint: Endpoint) -> str:
        """The last lines that the endpoint printed, for an error message."""

    @abstractmethod
    def _outputs(self) -> dict[str, str]:
        """The output of the containers, by folder of the job."""

    def _compare_downloads(self) -> None:
        quota = downloads_quota(self._expected)
        archive, expected = self._archive(self._client, "/downloads"), self._served.expected(self._expected)
        downloads = collect.compare(archive, expected, budget=2 * quota)
        self._files, self._extra = downloads.files, downloads.extra
        if downloads.occupied > quota - _ALMOST_FULL:
            self._client.volumes_full.append("/downloads")

    def _copy_logs(self, endpoint: Endpoint) -> None:
        """Copy /logs of an endpoint to the job's folder; the endpoint's record lists the files that were left out."""
        archive, folder = self._archive(endpoint, "/logs"), self._job.folder / endpoint.role.value
        done = collect.extract(archive, folder, reserved=frozenset((_OUTPUT,)))
        endpoint.skipped += done.skipped
        if done.occupied > self._job.limits.logs - _ALMOST_FULL:
            endpoint.volumes_full.append("/logs")

    def _write_outputs(self) -> None:
        outputs = self._outputs()
        for name, text in outputs.items():
            (self._job.folder / name / _OUTPUT).write_text(text)
        self._artifacts.output_log.write_text(collect.merge_outputs(list(outputs.items())))

    def _evidence(self) -> Evidence:
        began = self._stages.began_unix
        client = self._client.record(began)
        transfer = client.ended - client.started if client.started is not None and client.ended is not None else 0.0
        missing = tuple(
            FileRecord(name=file.name, size=file.size, received=None, equal=False) for file in self._expected
        )
        return Evidence(
            started_unix_s=began,
            wall_s=self._stages.wall(),
            transfer_s=transfer,
            stages_s=self._stages.seconds,
            client=client,
            server=self._server.record(began),
            boxes={box.value: endpoint.record(began) for box, endpoint in self._boxes.items()},
            via=self._job.topology.middlebox,
            content_seed=self._job.content_seed,
            server_ready=self._server_ready,
            files=self._files or missing,
            extra_files=self._extra,
            capture_drops=self._capture_drops,
            host_steal=self._stages.steal(),
            cpu_pressure=self._stages.pressure(),
            error=self._error,
        )
