"""The base of lanes: holders whose namespaces other containers join, volumes of the endpoints, simulated links."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from runner.engine.containers import ContainerSpec, Engine, Volume
from runner.errors import LaneError
from runner.lanes.end_capture import EndCapture
from runner.lanes.interface_watch import InterfaceWatch, begin_watch
from runner.lanes.resident import Holder
from runner.lanes.segment import Segment
from runner.lanes.supervised import Bell, Supervised
from runner.model.implementation import Role

_LISTENS = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 0A ", re.MULTILINE)  # a line of /proc/net/tcp


def together(pool: Executor, *calls: Callable[[], object]) -> None:
    """Run calls in parallel, wait for all of them, and raise the exception of the first that failed."""
    futures = [pool.submit(call) for call in calls]
    failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        raise failures[0]


def accepts(table: str, port: int) -> bool:
    """True when `table`, in the form of /proc/net/tcp, has a socket that accepts on `port`."""
    return any(int(digits, 16) == port for digits in _LISTENS.findall(table))


class LaneBase:
    """A lane is prepared, used by one thread for one job at a time, and in any case removed by `discard`. Each of
    `roles` has a namespace and /logs of `logs` bytes. `downloads`: bytes of /downloads by role. Each of `segments` is a
    simulated link with a capture at both ends. `captured`: roles at which packets are captured, too.
    """

    def __init__(
        self,
        engine: Engine,
        pool: Executor,
        bell: Bell,
        *,
        name: str,
        roles: Sequence[str],
        segments: Sequence[str],
        captured: Sequence[str] = (),
        logs: int,
        downloads: Mapping[str, int],
    ) -> None:
        self.name = name
        self.engine = engine
        self.pool = pool
        self.bell = bell
        self.segments = tuple(Segment(self, role) for role in segments)
        self._volumes = {role: {Volume(name=f"{name}-{role}-logs", path="/logs"): logs} for role in roles}
        for role, quota in downloads.items():
            self._volumes[role][Volume(name=f"{name}-{role}-downloads", path="/downloads")] = quota
        self.end_captures = tuple(EndCapture(self, role) for role in captured)
        self._containers: list[str] = []  # containers of the job
        self._staying: list[str] = []
        self._holders: dict[str, Holder] = {}
        self._pids: dict[str, int] = {}  # process ids of the holders by role
        self._preparing = threading.Lock()
        self._prepared = False
        self._failure: LaneError | None = None

    def prepare(self, plumber: Holder) -> None:
        """Start the holders and wire their namespaces, unless this was done in the background. Raises LaneError."""
        with self._preparing:
            if self._failure is not None:
                raise self._failure
            if self._prepared:
                return
            try:
                self._make(plumber)
                self._prepared = True
            except LaneError as error:
                self._failure = error
                raise

    def _make(self, plumber: Holder) -> None:
        self._hold_all()
        self._run_script(plumber, self._script(self._pids))

    def _hold_all(self) -> None:
        together(
            self.pool,
            *(lambda role=role: self._hold_role(role) for role in self._volumes),
            *(segment.hold for segment in self.segments),
        )
        self._pids = {role: self.engine.state(holder.container).pid for role, holder in self._holders.items()}
        if not all(self._pids.values()):
            raise LaneError("holder-died", "A holder of the lane ended at once: look at the engine's log.")

    def _hold_role(self, role: str) -> None:
        for volume, quota in self._volumes[role].items():
            self.engine.create_volume(volume.name, role=role, quota=quota)
        holder = self.hold(role, self._holder(role))
        if role in tuple(Role):
            begin_watch(holder)

    def _holder(self, role: str) -> ContainerSpec:
        """The holder of an endpoint's namespace and volumes."""
        raise NotImplementedError

    def _script(self, pids: dict[str, int]) -> str:
        """The script that wires the lane. `pids`: the process ids of the holders by role."""
        raise NotImplementedError

    def volumes(self, role: str) -> tuple[Volume, ...]:
        """The volumes of `role`: /logs and, for a client, /downloads. Their files exist as long as the holder."""
        return tuple(self._volumes[role])

    def quota(self, role: str) -> int:
        """The quotas of all volumes of `role` together, in bytes."""
        return sum(self._volumes[role].values())

    def hold(self, role: str, spec: ContainerSpec) -> Holder:
        """Start the holder of `role`."""
        holder = Holder(self.engine, self.create(spec, stays=True), self.bell)
        holder.start()
        self._holders[role] = holder
        return holder

    def _run_script(self, plumber: Holder, script: str) -> str:
        """Run a script in the plumber. Returns its output; raises LaneError when it fails."""
        exit_code, output = plumber.execute(["sh", "-c", script])
        if exit_code != 0:
            raise LaneError(
                "not-wired", "The lane could not be wired.", printed=output.strip() or f"exit code {exit_code}"
            )
        return output

    def create(self, spec: ContainerSpec, *, stays: bool = False) -> str:
        """Create a container for this job or, with `stays`, for as long as the lane exists. Returns its id."""
        container = self.engine.create(f"{self.name}-{spec.role}", spec)
        (self._staying if stays else self._containers).append(container)
        return container

    def supervise(self, container: str, *, output_limit: int) -> Supervised:
        """A supervised container that rings this lane's bell."""
        return Supervised(self.engine, container, self.bell, output_limit=output_limit)

    def namespace(self, role: str) -> str:
        """The network mode of a container that joins the holder of `role`."""
        return f"container:{self._holders[role].container}"

    def watch_interface(self, role: Role) -> InterfaceWatch:
        """A watch of the endpoint's interface, after the wiring."""
        return InterfaceWatch(self._holders[role.value])

    def execute(self, role: str, command: list[str]) -> tuple[int, str]:
        """Run a command in the holder of `role`. Returns its exit code and its output."""
        return self._holders[role].execute(command)

    def listens(self, role: str, port: int) -> bool:
        """True when a process in the namespace of `role` accepts TCP on `port`."""
        return accepts(self.execute(role, ["cat", "/proc/net/tcp", "/proc/net/tcp6"])[1], port)

    def archive(self, role: str, path: str) -> Iterator[bytes]:
        """A folder of the volumes of `role` as tar, read through its holder. Raises LaneError without a holder."""
        if role not in self._holders:
            raise LaneError("no-lane", f"There is no holder of the {role}.")
        return self._holders[role].archive(path)

    def stop_captures(self) -> int:
        """End all captures. Returns how many packets the kernel dropped before the captures could read them."""
        return sum(capture.stop() for capture in self.end_captures) + sum(
            segment.stop_captures() for segment in self.segments
        )

    @property
    def link_died(self) -> bool:
        """True when a simulator or a capture ended before it was stopped."""
        return any(segment.died for segment in self.segments) or any(capture.died for capture in self.end_captures)

    @property
    def flooded(self) -> bool:
        """True when endpoints sent so much that a segment was closed (`flood_limit`)."""
        return any(segment.flooded for segment in self.segments)

    def link_output(self) -> str:
        """The output of simulators and captures."""
        return "".join(segment.output() for segment in self.segments)

    def _remove_joined(self) -> None:
        """Remove the containers of the job."""
        self._remove(self._containers)

    def _remove(self, containers: list[str]) -> None:
        together(self.pool, *(lambda container=container: self.engine.remove(container) for container in containers))
        containers.clear()

    def _remove_all(self) -> None:
        self._remove_joined()
        self._remove(self._staying)
        self._holders = {}
        for volumes in (*self._volumes.values(), [segment.volume for segment in self.segments]):
            for volume in volumes:
                self.engine.remove_volume(volume.name)

    def discard(self) -> None:
        """Remove every container and volume of the lane. Raises LaneError when one can't be removed."""
        with self._preparing:
            self._remove_all()
