"""One endpoint's container: the image of a stranger, with the contract's environment and a fence around it."""

import time
from collections.abc import Mapping
from typing import Any

from runner.engine.containers import ContainerSpec, Engine, Usage, Volume
from runner.errors import LaneError
from runner.lanes import pressure
from runner.lanes.cpu_usage import usage_of
from runner.lanes.lane_base import LaneBase
from runner.lanes.request import EndpointSpec, Limits
from runner.lanes.root_watch import watch_root
from runner.lanes.supervised import Supervised, Watched
from runner.model.artifacts import EndpointRecord
from runner.model.implementation import Role
from runner.model.middlebox import Box
from runner.units import format_size

# What stock images do at their start needs these: a user of their own, a port below 1024; and, in a namespace that is
# theirs, routes, offloads, ping.
CAPABILITIES = ("NET_BIND_SERVICE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_NETWORK_CAPABILITIES = ("NET_ADMIN", "NET_RAW")


class Endpoint:
    """The client or the server of one job, or one box of a middlebox. The record can be made at any time."""

    def __init__(self, role: Role | Box, spec: EndpointSpec, limits: Limits) -> None:
        self.role = role
        self.running: Watched | None = None
        self.timed_out = False
        self.stopped_by_us = False
        self.skipped: list[str] = []
        self.volumes_full: list[str] = []
        self.clock_ahead = 0.0  # s, of its host's clock before the clock of who asks for the record
        self._spec = spec
        self._image_id = ""
        self._declared: tuple[str, ...] = ()
        self._limits = limits
        self._usage = Usage(cpu=0.0, throttled=0.0)
        self._began = 0.0
        self._pressure: float | None = None
        self._engine: Engine | None = None  # of the lane
        self._environment = {**spec.environment, "ROLE": role.value}

    def find(self, engine: Engine) -> None:
        """Note which image the tag means, and the volumes that it declares. Raises LaneError when there is none."""
        self._image_id = engine.image_id(self._spec.image)
        self._declared = tuple(engine.image_config(self._spec.image).get("Volumes") or ())

    def create(self, lane: LaneBase, served: tuple[Volume, ...]) -> None:
        """Make the container in its lane, with the lane's volumes and those of `served`; not started."""
        role = self.role.value
        spec = self.container(
            (*lane.volumes(role), *served), quota=lane.quota(role), host={"network_mode": lane.namespace(role)}
        )
        self.running = lane.supervise(lane.create(spec), output_limit=self._limits.output)
        self._engine = lane.engine

    def container(self, volumes: tuple[Volume, ...], *, quota: int, host: Mapping[str, Any]) -> ContainerSpec:
        """Its container. `quota` is what it may write to its volumes, which count as its memory, in bytes.

        `host`, in the engine's words, says which network it is in, and what is not as in lanes.
        """
        return ContainerSpec(
            image=self._spec.image,
            role=self.role.value,
            entrypoint=self._spec.entrypoint,
            environment=self._environment,
            volumes=volumes,
            root_quota=self._limits.root + self._limits.root // 8,  # the watch comes first, and tells
            host=self._fence(quota) | self._bounded_volumes(volumes) | dict(host),
        )

    def _bounded_volumes(self, volumes: tuple[Volume, ...]) -> dict[str, Any]:
        """Memory in place of the volumes that the image declares: the engine would make them on its disk, without
        limit."""
        ours = {volume.path for volume in volumes}
        options = f"rw,exec,nosuid,nodev,mode=1777,size={self._limits.declared}"
        return {"tmpfs": {path: options for path in self._declared if path.rstrip("/") not in ours}}

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
            "shm_size": memory,  # it counts as memory; the engine's default, 64 MiB, is too small for a browser
            "pids_limit": limits.processes,
            "nano_cpus": round(limits.cpus * 1e9) if limits.cpus is not None else None,
            "ulimits": [
                {"Name": "fsize", "Soft": limits.largest_file, "Hard": limits.largest_file},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            # Its output is read while it runs. Without a log file a flood of it costs the engine half as much.
            "log_config": {"Type": "none", "Config": {}},
        }

    def start(self) -> None:
        """Start it. Raises LaneError `<role>-not-started` when the image lacks its own entry point, and the like."""
        self._began = time.monotonic()
        try:
            self.watched.start()
        except LaneError as error:
            code = f"{self.role.value}-not-started" if error.code == "engine" else error.code
            raise LaneError(code, str(error)) from error
        if self._engine is not None:
            watch_root(self._engine, self.watched, limit=self._limits.root, over=self._root_is_full)

    def _root_is_full(self) -> None:
        self.stopped_by_us = True
        self.volumes_full.append(f"/ ({format_size(self._limits.root)})")

    @property
    def watched(self) -> Watched:
        """Its container."""
        assert self.running is not None, "the container is made first"
        return self.running

    @property
    def supervised(self) -> Supervised:
        """Its container in a lane."""
        assert isinstance(self.running, Supervised), "create() comes first"
        return self.running

    def measure(self, engine: Engine) -> None:
        """Note its CPU time, and how long it had to wait for a CPU, while it runs: both are forgotten when it ends.

        One measurement may fail, because the container ends in the same moment: the last one counts.
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
        """What the engine said. `job_began` in seconds since 1970."""
        began = job_began + self.clock_ahead
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
            environment=self._environment,
            cpu_s=self._usage.cpu,
            throttled_s=self._usage.throttled,
            cpu_pressure=self._pressure,
            skipped_files=tuple(self.skipped),
            volumes_full=tuple(self.volumes_full),
        )
