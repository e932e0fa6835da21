"""One endpoint's container: an image that is not trusted, with the contract's environment and limits."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from docker.errors import APIError

from runner.engine.containers import ContainerSpec, Engine, Usage, Volume
from runner.engine.layers import BoundedLayer
from runner.errors import LaneError
from runner.lanes import pressure
from runner.lanes.cpu_usage import usage_of
from runner.lanes.lane_base import LaneBase
from runner.lanes.request import EndpointSpec, Limits
from runner.lanes.root_watch import watch_root
from runner.lanes.supervised import Supervised, Watched
from runner.model.artifacts import EndpointRecord, InterfaceChange
from runner.model.beside import BesideRole
from runner.model.implementation import Role
from runner.model.middlebox import Box
from runner.units import format_size

# Unmodified images need these capabilities at their start: to change the user, to use a port below 1024, and to set
# routes and offloads and to ping in their own namespace.
CAPABILITIES = ("NET_BIND_SERVICE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
READ_ONLY_LABEL = "bentpipe.read-only-root"  # label of an image that writes only to volumes and to `_WRITABLE`
_WRITABLE = ("/tmp", "/var/tmp", "/run")
_NETWORK_CAPABILITIES = ("NET_ADMIN", "NET_RAW")


def is_refused_image(error: LaneError) -> bool:
    """Whether the engine refuses to make a container because the configuration of the image is wrong."""
    return isinstance(error.__cause__, APIError) and error.__cause__.status_code == HTTPStatus.BAD_REQUEST


class Endpoint:
    """The client or the server of one job or of the flow beside it, or one box of a middlebox.

    `record` may be called at any time.
    """

    def __init__(self, role: Role | Box | BesideRole, spec: EndpointSpec, limits: Limits) -> None:
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
        self._layer: BoundedLayer | None = None
        named = role.role if isinstance(role, BesideRole) else role
        self.environment = {**spec.environment, "ROLE": named.value}

    def find(self, engine: Engine, *, writable_root: bool = False) -> None:
        """Look up the id of the image, its volumes and its label. Raises LaneError when there is no such image.

        `writable_root`: True when files will be copied into the container's root, which an engine refuses when the
        root is read-only. The label is then ignored, and the root is watched instead.
        """
        self._image_id = engine.image_id(self._spec.image)
        config = engine.image_config(self._spec.image)
        self._declared = tuple(config.get("Volumes") or ())
        self._read_only = not writable_root and (config.get("Labels") or {}).get(READ_ONLY_LABEL) == "true"

    def create(self, lane: LaneBase, served: tuple[Volume, ...]) -> None:
        """Create the container in its lane, with the lane's volumes and the volumes `served`, without starting it.
        Raises LaneError `<role>-not-started` when the engine refuses the image, for example without an entry point."""
        role = self.role.value
        spec = self.container(
            (*lane.volumes(role), *served), quota=lane.quota(role), host={"network_mode": lane.namespace(role)}
        )
        try:
            container = lane.create(spec)
        except LaneError as error:
            if is_refused_image(error):
                raise LaneError(f"{role}-not-started", str(error)) from error
            raise
        self.join(lane.engine, lane.supervise(container, output_limit=self._limits.output))

    def join(self, engine: Engine, running: Watched) -> None:
        """Use `running`, whose container was created with the specification that `container` returned. After its start,
        its root file system is watched."""
        self._engine, self.running = engine, running

    def container(self, volumes: tuple[Volume, ...], *, quota: int, host: Mapping[str, Any]) -> ContainerSpec:
        """The specification of the container. `quota`: bytes that the endpoint may write to its volumes, which count as
        its memory. `host`: further entries of the engine's HostConfig, such as the network.
        """
        return ContainerSpec(
            image=self._spec.image,
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
        return {
            "binds": list(self._spec.binds),
            "devices": list(self._spec.devices),
            "cap_drop": ["ALL"],
            "cap_add": [*CAPABILITIES, *_NETWORK_CAPABILITIES],
            "security_opt": ["no-new-privileges"],
            "mem_limit": memory,
            "memswap_limit": memory,
            "shm_size": memory,  # /dev/shm counts as memory; the engine's default, 64 MiB, is too small for a browser
            "pids_limit": limits.processes,
            "nano_cpus": round(limits.cpus * 1e9) if limits.cpus is not None else None,
            "ulimits": [
                {"Name": "fsize", "Soft": limits.largest_file, "Hard": limits.largest_file},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            # The output is read while the container runs. Without a log file, a flood of output takes only half of the
            # engine's work.
            "log_config": {"Type": "none", "Config": {}},
        }

    def start(self) -> None:
        """Start the container. Raises LaneError `<role>-not-started` when it can't be started, for example without an
        entry point."""
        if self._engine is not None and not self._read_only:
            self._layer = self._engine.bound_layer(self.watched.container, self._limits.root)
        self._began = time.monotonic()
        try:
            self.watched.start()
        except LaneError as error:
            code = f"{self.role.value}-not-started" if error.code == "engine" else error.code
            raise LaneError(code, str(error)) from error
        if self._engine is not None and not self._read_only:
            watch_root(self._engine, self.watched, layer=self._layer, limit=self._limits.root, over=self._stop_for_root)

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
        container ends, so the last successful measurement counts.
        """
        if self.running is None or self.running.ended:
            return
        waited = pressure.of_container(self.running.container)
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
        final = self.running.final if self.running is not None else None
        return EndpointRecord(
            image=self._spec.image,
            image_id=self._image_id,
            exit_code=final.exit_code if final is not None else None,
            timed_out=self.timed_out,
            oom_killed=final.oom_killed if final is not None else False,
            stopped_by_us=self.stopped_by_us,
            output_flooded=self.running is not None and self.running.flooded,
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
