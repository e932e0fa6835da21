"""The base of experiments in lanes and over real links: timed steps, and evidence even when an image fails."""

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
from runner.store import save_evidence
from runner.units import MIB

SERVER_READY_SECONDS = 10.0
SERVER_GRACE_SECONDS = 10.0
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


class Experiment:
    """A job while it runs. `run` is called once."""

    def __init__(
        self,
        job: LaneJob,
        *,
        served: Served,
        pool: Executor,
        bell: Bell,
        others: Sequence[Endpoint] = (),
    ) -> None:
        self._job = job
        self._served = served
        self._pool = pool
        self._bell = bell
        self._expected = job.required_files
        self._stages = Stages()
        self._artifacts = Artifacts(job.folder)
        self._client = Endpoint(Role.CLIENT, job.client, job.limits)
        self._server = Endpoint(Role.SERVER, job.server, job.limits)
        self._endpoints = (self._client, self._server, *others)
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

    def _open(self) -> None:
        """Make everything that must exist before an image starts."""
        raise NotImplementedError

    def _start_server(self) -> bool:
        """Start the server. Returns True when a client can be run against it."""
        raise NotImplementedError

    def _run_client(self) -> None:
        """Start the client and wait for its end."""
        raise NotImplementedError

    def _steps(self) -> list[Step]:
        """The steps after the client's end, each with its name."""
        raise NotImplementedError

    def _is_open(self) -> bool:
        """True when there are containers from which steps can collect."""
        raise NotImplementedError

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        """A folder of the endpoint's volumes as tar. Raises LaneError."""
        raise NotImplementedError

    def _outputs(self) -> dict[str, str]:
        """The output of the containers, by folder of the job."""
        raise NotImplementedError

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
            server_ready=self._server_ready,
            files=self._files or missing,
            extra_files=self._extra,
            capture_drops=self._capture_drops,
            host_steal=self._stages.steal(),
            cpu_pressure=self._stages.pressure(),
            error=self._error,
        )
