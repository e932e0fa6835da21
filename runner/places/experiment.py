"""The base of experiments in lanes, in guests and over real links: endpoints, their files, timed steps, evidence."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from docker.errors import APIError

from runner.engine.containers import FOREIGN, OWN, BoundedLayer, ContainerSpec, ContainerState, Engine, Usage, Volume
from runner.errors import LaneError
from runner.inputs.inputs import ServedFile
from runner.model.result import Artifacts, EndpointRecord, Evidence, FileRecord, InterfaceChange
from runner.model.stack import BesideRole, Box, Role
from runner.places.lane_job import EndpointLimits, EndpointSpec, LaneJob
from runner.places.lanes.lane import Lane
from runner.places.supervised import STOPPED, Notifier, Served, Supervised, Watched, confined
from runner.store import collect
from runner.store.collect import Expected
from runner.store.runs import save_evidence
from runner.units import MIB, format_size

# Ends an endpoint that fills its root file system.
#
# A root file system on a tmpfs (`runner.engine.containers`) has a limit in the kernel, and its size is known from one
# system call. For other root file systems, the engine counts the files on demand, which takes a few milliseconds. So
# the engine counts them often only while the free space of its disk shrinks fast.

_LOOK_SECONDS = 0.1  # seconds between checks of a tmpfs
_FREE_LOOK_SECONDS = 0.02  # seconds between checks of the free space of the engine's disk
_EARLY = 8  # the container is killed when 1/8 of the limit is left, because it still writes until it is dead
_SUSPICIOUS = 4  # the container is measured when the free space has shrunk by more than 1/4 of the limit
_DEATH_SECONDS = 0.15  # seconds from a measurement to the container's last write


def _watch_root(
    engine: Engine, watched: Watched, layer: BoundedLayer | None, limit: int, over: Callable[[], None]
) -> None:
    """Watch a started container until it ends. When `layer` is full, `over` is called and the container is killed.
    Without a layer, this is done shortly before the container has written `limit` bytes."""
    if layer is not None and not layer.is_used and not watched.ended:
        layer.release()
        layer = None
    try:
        is_over = _fills(watched, layer) if layer is not None else _grows(engine, watched, limit)
        if is_over and not watched.ended:
            over()
            engine.signal(watched.container, "SIGKILL")
    except LaneError:
        return  # the job notices an engine that fails


def _fills(watched: Watched, layer: BoundedLayer) -> bool:
    """Wait until the layer is full, or the container has ended. Returns whether it is full."""
    while not watched.ended:
        if layer.is_full:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _grows(engine: Engine, watched: Watched, limit: int) -> bool:
    """Wait until the container has written nearly `limit` bytes, or until it writes so fast that it would exceed this
    limit before it could be killed. Returns False when the container has ended before."""
    free, counted = engine.free_disk(), time.monotonic()
    while not watched.ended:
        time.sleep(_FREE_LOOK_SECONDS)
        now = engine.free_disk()
        shrunk = free is not None and now is not None and free - now > limit // _SUSPICIOUS
        if not shrunk and time.monotonic() - counted < engine.longest_look:
            continue
        free, size, began = now, engine.layer_size(watched.container), time.monotonic()
        soon = 0.0
        if shrunk:  # perhaps because of another container: measure how fast this container writes
            time.sleep(_FREE_LOOK_SECONDS / 2)
            size, before = engine.layer_size(watched.container), size
            soon = (size - before) / (time.monotonic() - began) * _DEATH_SECONDS
        counted = time.monotonic()
        if size + soon > limit - limit // _EARLY:
            return True
    return False


# CPU time of a container of this host, read from its cgroup, because the engine needs up to a second to measure it.

_ROOT = Path("/sys/fs/cgroup")
# The cgroup of a container, below a parent that bentpipe sets or below the engine's parent for each cgroup driver.
GROUPS = (f"{FOREIGN}/{{0}}", f"{OWN}/{{0}}", "docker/{0}", "system.slice/docker-{0}.scope")


def usage_of(container: str) -> Usage | None:
    """The container's CPU time so far, and the time for which its CPU limit stopped it. `container`: its full id. None
    when the container has ended, when it runs on another host, or when the kernel doesn't report its CPU time."""
    for group in GROUPS:
        name = group.format(container)
        first, second = _first_version(name), _second_version(name)
        if first is not None or second is not None:
            return first or second
    return None


def _first_version(group: str) -> Usage | None:
    """Linux, Documentation/admin-guide/cgroup-v1/cpuacct.rst: nanoseconds."""
    try:
        used = int((_ROOT / "cpuacct" / group / "cpuacct.usage").read_text())
    except (OSError, ValueError):
        return None
    return Usage(cpu=used / 1e9, throttled=_field(_ROOT / "cpu" / group / "cpu.stat", "throttled_time") / 1e9)


def _second_version(group: str) -> Usage | None:
    """Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.stat: microseconds."""
    path = _ROOT / group / "cpu.stat"
    if not path.is_file():
        return None
    return Usage(cpu=_field(path, "usage_usec") / 1e6, throttled=_field(path, "throttled_usec") / 1e6)


def _field(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines_of(path, name)), 0)


def _lines_of(path: Path, name: str) -> list[str]:
    """The lines of a file of the kernel that begin with a name; empty when the kernel does not have the file."""
    try:
        return [line for line in path.read_text().splitlines() if line.startswith(f"{name} ")]
    except OSError:
        return []


# How long runnable tasks waited for a CPU: pressure stall information (Linux, Documentation/accounting/psi).

_HOST = Path("/proc/pressure/cpu")
# Mount points of cgroup v2: together with v1, or without v1.
_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))


def of_host() -> float | None:
    """Seconds since the boot in which some task waited; None when the kernel doesn't report it."""
    return _seconds(_HOST, "some")


def of_container(container: str) -> float | None:
    """Seconds since the container's start in which some of its threads were runnable and none had a CPU. `container`:
    its full id. None when the container has ended, when it runs on another host, or when the kernel (before 5.13)
    doesn't report this for cgroups."""
    for root in _ROOTS:
        for group in GROUPS:
            waited = _seconds(root / group.format(container) / "cpu.pressure", "full")
            if waited is not None:
                return waited
    return None


def _seconds(path: Path, kind: str) -> float | None:
    totals = [line.rpartition("total=")[2] for line in _lines_of(path, kind)]
    return next((int(total) / 1e6 for total in totals if total.isdigit()), None)


# Measures how long the stages of a job take, and how busy this host's CPUs are meanwhile.

_STEAL = 7  # position, from 0, in the numbers after `cpu` in /proc/stat (proc_stat(5))
_WITHOUT_GUEST = 8  # number of values to add: user and nice already include the guest times


class Stages:
    """A stopwatch with named stages, in seconds. The times of a stage that is measured twice are added."""

    def __init__(self) -> None:
        self.began_unix = time.time()
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()
        self._steal, self._total = _cpu_times()
        self._pressure = of_host()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time inside the context."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def wall(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def steal(self) -> float:
        """Fraction of this host's CPU time since the beginning that the hypervisor took (steal); 0: unknown."""
        steal, total = _cpu_times()
        return (steal - self._steal) / (total - self._total) if total > self._total else 0.0

    def pressure(self) -> float | None:
        """Share of the time since the beginning in which some task waited for a CPU (PSI); None: unknown."""
        now = of_host()
        if now is None or self._pressure is None:
            return None
        return (now - self._pressure) / self.wall()


def _cpu_times() -> tuple[int, int]:
    """Stolen and all clock ticks of all cores since the boot."""
    numbers = [int(word) for line in _lines_of(Path("/proc/stat"), "cpu") for word in line.split()[1:]]
    return (numbers[_STEAL] if len(numbers) > _STEAL else 0), sum(numbers[:_WITHOUT_GUEST])


# One endpoint's container: an image that is not trusted, with the contract's environment and limits.

# Unmodified images need these capabilities at their start: to change the user, to use a port below 1024, and to set
# routes and offloads and to ping in their own namespace.
CAPABILITIES = ("NET_BIND_SERVICE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
READ_ONLY_LABEL = "bentpipe.read-only-root"  # label of an image that writes only to volumes and to `_WRITABLE`
_WRITABLE = ("/tmp", "/var/tmp", "/run")
_NETWORK_CAPABILITIES = ("NET_ADMIN", "NET_RAW")


class Endpoint:
    """The client or the server of one job or of the flow beside it, or one box of a middlebox. `record` may be called
    at any time."""

    def __init__(self, role: Role | Box | BesideRole, spec: EndpointSpec, limits: EndpointLimits) -> None:
        self.role = role
        self.running: Watched | None = None
        self.timed_out = False
        self.stopped_by_us = False
        self.skipped: list[str] = []
        self.volumes_full: list[str] = []
        self.interface_changes: tuple[InterfaceChange, ...] = ()
        self.clock_ahead = 0.0  # seconds by which the clock of its host is ahead of this host's clock
        self._spec = spec
        self._image_id = ""
        self._declared: tuple[str, ...] = ()
        self._read_only = False
        self._limits = limits
        self._usage = Usage(cpu=0.0, throttled=0.0)
        self._began = 0.0
        self._pressure: float | None = None
        self._engine: Engine | None = None  # the engine of the lane
        self._final: ContainerState | None = None  # without a container
        self._flooded = False
        self._layer: BoundedLayer | None = None
        named = role.role if isinstance(role, BesideRole) else role
        self.environment = {**spec.environment, "ROLE": named.value}

    def find(self, engine: Engine, *, writable_root: bool = False) -> None:
        """Look up the id of the image, its volumes and its label. Raises LaneError when there is no such image.
        `writable_root`: True when files will be copied into the container's root, which an engine refuses when the root
        is read-only. The label is then ignored, and the root is watched instead."""
        self._image_id = engine.image_id(self._spec.pinned)
        config = engine.image_config(self._image_id)
        self._declared = tuple(config.get("Volumes") or ())
        self._read_only = not writable_root and (config.get("Labels") or {}).get(READ_ONLY_LABEL) == "true"

    def create(self, lane: Lane, served: tuple[Volume, ...]) -> None:
        """Create the container in its lane, with the lane's volumes and the volumes `served`, without starting it.
        Raises LaneError `<role>-not-started` when the engine refuses the image, for example without an entry point."""
        role = self.role.value
        spec = self.container(
            (*lane.volumes(role), *served), quota=lane.quota(role), host={"network_mode": lane.namespace(role)}
        )
        try:
            container = lane.create(spec)
        except LaneError as error:
            # The engine refuses an image whose configuration is wrong.
            if isinstance(cause := error.__cause__, APIError) and cause.status_code == HTTPStatus.BAD_REQUEST:
                raise LaneError(f"{role}-not-started", str(error)) from error
            raise
        self.join(lane.engine, lane.supervise(container, output_limit=self._limits.output))

    def join(self, engine: Engine, running: Watched) -> None:
        """Use `running`, a container with the specification of `container`. Its root is watched from its start on."""
        self._engine, self.running = engine, running

    def note_end(self, image_id: str, final: ContainerState, *, flooded: bool) -> None:
        """Note the end of an endpoint that has no container. `flooded`: killed because it printed too much."""
        self._image_id, self._final, self._flooded = image_id, final, flooded

    def container(self, volumes: tuple[Volume, ...], *, quota: int, host: Mapping[str, Any]) -> ContainerSpec:
        """The specification of the container. `quota`: bytes that the endpoint may write to its volumes, which count as
        its memory. `host`: further entries of the engine's HostConfig, such as the network."""
        return ContainerSpec(
            image=self._image_id,
            role=self.role.value,
            entrypoint=self._spec.entrypoint,
            environment=self.environment,
            volumes=volumes,
            foreign=True,
            root_quota=self._limits.root + self._limits.root // 8,  # more than the limit: the watch acts first
            host=self._fence(quota) | self._bounded_volumes(volumes) | dict(host),
        )

    def _bounded_volumes(self, volumes: tuple[Volume, ...]) -> dict[str, Any]:
        """A tmpfs for each volume that the image declares; otherwise the engine would make the volume on its disk,
        without a limit. With a read-only root, also a tmpfs for each folder that programs expect to be writable."""
        ours = {volume.path for volume in volumes}
        options = f"rw,exec,nosuid,nodev,mode=1777,size={self._limits.declared}"
        paths = (*self._declared, *(_WRITABLE if self._read_only else ()))
        return {
            "read_only": self._read_only,
            "tmpfs": {path: options for path in paths if path.rstrip("/") not in ours},
        }

    def _fence(self, quota: int) -> dict[str, Any]:
        limits = self._limits
        memory = limits.memory + quota
        return confined(
            memory,
            pids=limits.processes,
            capabilities=(*CAPABILITIES, *_NETWORK_CAPABILITIES),
            binds=list(self._spec.binds),
            devices=list(self._spec.devices),
            shm_size=memory,  # /dev/shm counts as memory; the engine's default, 64 MiB, is too small for a browser
            nano_cpus=round(limits.cpus * 1e9) if limits.cpus is not None else None,
            ulimits=[
                {"Name": "fsize", "Soft": limits.largest_file, "Hard": limits.largest_file},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
        )

    def start(self) -> None:
        """Start the container. Raises LaneError `<role>-not-started`, for example without an entry point."""
        if self._engine is not None and not self._read_only:
            self._layer = self._engine.bound_layer(self.watched.container, self._limits.root)
        self._began = time.monotonic()
        try:
            self.watched.start()
        except LaneError as error:
            code = f"{self.role.value}-not-started" if error.code == "engine" else error.code
            raise LaneError(code, str(error)) from error
        if self._engine is not None and not self._read_only:
            arguments = (self._engine, self.watched, self._layer, self._limits.root, self._stop_for_root)
            threading.Thread(target=_watch_root, args=arguments, name="root", daemon=True).start()

    def _stop_for_root(self) -> None:
        self.stopped_by_us = True
        self._note_full_root()

    def _note_full_root(self) -> None:
        name = f"/ ({format_size(self._limits.root)})"
        if name not in self.volumes_full:
            self.volumes_full.append(name)

    @property
    def watched(self) -> Watched:
        """The container."""
        assert self.running is not None, "the container is made first"
        return self.running

    @property
    def supervised(self) -> Supervised:
        """The container in a lane."""
        assert isinstance(self.running, Supervised), "create() comes first"
        return self.running

    def stop(self, *, grace: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """End the container if it still runs: SIGTERM, and SIGKILL after `grace` seconds or as soon as `hurry()` is
        true. `stopped_by_us` stays True when the container was stopped before."""
        if self.running is not None:
            self.stopped_by_us |= self.running.terminate(grace=grace, hurry=hurry)

    def measure(self, engine: Engine) -> None:
        """Note the container's CPU time and how long it waited for a CPU. The kernel deletes both counters when the
        container ends, so the last successful measurement counts."""
        if self.running is None or self.running.ended:
            return
        waited = of_container(self.running.container)
        if waited is not None:
            self._pressure = waited / (time.monotonic() - self._began)
        try:
            usage = usage_of(self.running.container) or engine.usage(self.running.container)
        except LaneError:
            return
        if usage.cpu > 0:
            self._usage = usage

    def record(self, job_began: float) -> EndpointRecord:
        """The record of the endpoint for the evidence. `job_began` in seconds since 1970."""
        began = job_began + self.clock_ahead
        if self._layer is not None and self._layer.is_full:
            self._note_full_root()
        final, flooded = self._final, self._flooded
        if self.running is not None:
            final, flooded = self.running.final, self.running.flooded
        return EndpointRecord(
            image=self._spec.image,
            image_id=self._image_id,
            exit_code=final.exit_code if final is not None else None,
            timed_out=self.timed_out,
            oom_killed=final.oom_killed if final is not None else False,
            stopped_by_us=self.stopped_by_us,
            output_flooded=flooded,
            started=final.started - began if final is not None and final.started is not None else None,
            ended=final.ended - began if final is not None and final.ended is not None else None,
            environment=self.environment,
            cpu_s=self._usage.cpu,
            throttled_s=self._usage.throttled,
            cpu_pressure=self._pressure,
            skipped_files=tuple(self.skipped),
            volumes_full=tuple(self.volumes_full),
            interface_changes=self.interface_changes,
        )


# The base of all experiments: the endpoints' files and output, and the evidence.

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
    """Bytes for /downloads when `files` are requested: a power of two, so that most jobs need the same lane."""
    size = max(_LEAST_DOWNLOADS, 2 * sum(file.size for file in files) + _SPARE_DOWNLOADS)
    return 1 << (size - 1).bit_length()


class Experiment(ABC):
    """A job while it runs. `run` is called once."""

    def __init__(self, job: LaneJob, others: Sequence[Endpoint] = ()) -> None:
        """`others`: endpoints in addition to client, server and boxes."""
        self._job = job
        self._fingerprints: tuple[str, ...] = ()  # of the server's certificates
        self._artifacts = Artifacts(job.folder)
        self._client = Endpoint(Role.CLIENT, job.client, job.limits)
        self._server = Endpoint(Role.SERVER, job.server, job.limits)
        self._boxes = {box: Endpoint(box, spec, job.limits) for box, spec in job.boxes.items()}
        self._receiver = self._client if job.sender is Role.SERVER else self._server
        self._endpoints = (self._client, self._server, *self._boxes.values(), *others)
        self._server_ready: bool | None = None
        self._files: tuple[FileRecord, ...] = ()
        self._extra: tuple[str, ...] = ()
        self._capture_drops: int | None = None
        self._error: dict[str, str] = {}

    @abstractmethod
    def run(self) -> Evidence:
        """Run the job and write its folder, `evidence.json` last."""

    @abstractmethod
    def _links(self) -> Sequence[str]:
        """The folders of the links' captures and truth."""

    @abstractmethod
    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        """A folder of the endpoint's volumes as tar. Raises LaneError."""

    @abstractmethod
    def _required_files(self) -> Mapping[str, Expected]:
        """Size and digest of the files that the receiver must have at the end, by name."""

    @abstractmethod
    def _outputs(self) -> dict[str, str]:
        """The output of the containers, by folder of the job."""

    def _make_folders(self) -> None:
        for name in (*(endpoint.role.value for endpoint in self._endpoints), *self._links()):
            (self._job.folder / name).mkdir(parents=True, exist_ok=True)

    def _compare_downloads(self) -> None:
        quota = downloads_quota(self._job.required_files)
        archive = self._archive(self._receiver, "/downloads")
        downloads = collect.compare(archive, self._required_files(), budget=2 * quota)
        self._files, self._extra = downloads.files, downloads.extra
        if downloads.occupied > quota - _ALMOST_FULL:
            self._receiver.volumes_full.append("/downloads")

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

    def _record(self, began: float, wall: float, stages: dict[str, float]) -> Evidence:
        """The evidence of a job that began at `began`, in seconds since 1970, and took `wall` seconds."""
        client = self._client.record(began)
        transfer = client.ended - client.started if client.started is not None and client.ended is not None else 0.0
        missing = tuple(
            FileRecord(name=file.name, size=file.size, received=None, equal=False) for file in self._job.required_files
        )
        return Evidence(
            started_unix_s=began,
            wall_s=wall,
            transfer_s=transfer,
            stages_s=stages,
            client=client,
            server=self._server.record(began),
            boxes={box.value: endpoint.record(began) for box, endpoint in self._boxes.items()},
            via=self._job.topology.middlebox,
            certificates=self._fingerprints,
            content_seed=self._job.content_seed,
            server_ready=self._server_ready,
            files=self._files or missing,
            extra_files=self._extra,
            capture_drops=self._capture_drops,
            error=self._error,
        )


# The base of experiments in lanes and over real links: timed steps, and evidence even when an image fails.


class TimedExperiment(Experiment):
    """A job in containers, in real time."""

    listen_look = 0.05  # seconds between two checks whether the server listens on TCP

    def __init__(
        self, job: LaneJob, *, served: Served, pool: Executor, notifier: Notifier, others: Sequence[Endpoint] = ()
    ) -> None:
        super().__init__(job, others)
        self._served = served
        self._pool = pool
        self._notifier = notifier
        self._stages = Stages()

    def run(self) -> Evidence:
        self._make_folders()
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

    def _start_server(self) -> bool:
        """Start middlebox and server. Returns True when a client can run. Raises LaneError for a late box or origin."""
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
                    self._notifier.wait(lambda: True, timeout=0)  # raises when the run is stopped
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
            self._notifier.wait(lambda: server.ended, timeout=self.listen_look)
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

    def _required_files(self) -> Mapping[str, Expected]:
        return self._served.expected(self._job.required_files)

    @abstractmethod
    def _last_lines(self, endpoint: Endpoint) -> str:
        """The last lines that the endpoint printed, for an error message."""

    def _evidence(self) -> Evidence:
        stages = self._stages
        return replace(
            self._record(stages.began_unix, stages.wall(), stages.seconds),
            host_steal=stages.steal(),
            cpu_pressure=stages.pressure(),
        )
