"""One lane: three wired namespaces, a simulated link between them, captures on both sides. It serves one job."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from runner.deploy import holders
from runner.deploy.containers import ContainerSpec, Engine, Volume
from runner.deploy.link_arguments import LOGS
from runner.deploy.supervised import Bell, Supervised
from runner.deploy.wiring import Namespaces, wiring_script
from runner.errors import LaneError
from runner.units import MIB

SIMULATOR = "bentpipe/sim"
LINK_LOGS = 256 * MIB  # bytes: truth and packet log
_READY_SECONDS = 10.0
_STOP_SECONDS = 10.0
_HOLDER_OUTPUT = MIB
_DROPPED = re.compile(r"^(\d+) packets? dropped by (kernel|interface)", re.MULTILINE)
# A socket of /proc/net/udp without a peer: that of the holder, which asks the server, is connected.
_LOCAL_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 ", re.MULTILINE)
_LISTENING = re.compile(r"listening on eth[01]")  # both print at once: nothing need stand between


def together(pool: Executor, *calls: Callable[[], object]) -> None:
    """Run calls at once, wait for all of them, raise what the first of them raised."""
    futures = [pool.submit(call) for call in calls]
    failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        raise failures[0]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is fixed when a lane is prepared: lanes of one shape are interchangeable. Quotas in bytes."""

    logs: int
    downloads: int
    ask_server: bool  # whether readiness of the server is watched


@dataclass(frozen=True, kw_only=True)
class LaneVolumes:
    """The volumes that holders keep alive, by holder."""

    client: tuple[Volume, ...]
    link: Volume
    server: tuple[Volume, ...]

    @classmethod
    def named(cls, name: str) -> "LaneVolumes":
        """The volumes of the lane `name`."""
        return cls(
            client=(
                Volume(name=f"{name}-client-logs", path="/logs"),
                Volume(name=f"{name}-client-downloads", path="/downloads"),
            ),
            link=Volume(name=f"{name}-sim-logs", path=LOGS),
            server=(Volume(name=f"{name}-server-logs", path="/logs"),),
        )

    def names(self) -> list[str]:
        return [volume.name for volume in (*self.client, self.link, *self.server)]


class Lane:
    """Prepared, used by one thread for one job, and removed by `discard` whatever happened."""

    def __init__(self, engine: Engine, pool: Executor, bell: Bell, *, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        self.engine = engine
        self.pool = pool
        self.bell = bell
        self.volumes = LaneVolumes.named(name)
        self._containers: list[str] = []
        self._holders: dict[str, str] = {}
        self._link_holder: Supervised | None = None
        self._server_holder: Supervised | None = None
        self._link: Supervised | None = None
        self._preparing = threading.Lock()
        self._prepared = False
        self._failure: LaneError | None = None

    def prepare(self, plumber: str) -> None:
        """Start the holders and wire their namespaces, unless that was done in the background. Raises LaneError."""
        with self._preparing:
            if self._failure is not None:
                raise self._failure
            if self._prepared:
                return
            try:
                together(self.pool, self._hold_client, self._hold_server, self._hold_link)
                self._wire(plumber)
                self._prepared = True
            except LaneError as error:
                self._failure = error
                raise

    def _hold_client(self) -> None:
        for volume, quota in zip(self.volumes.client, (self.shape.logs, self.shape.downloads), strict=True):
            self.engine.create_volume(volume.name, role="client", quota=quota)
        self.engine.start(self._hold("client", holders.client_holder(self.volumes.client)))

    def _hold_server(self) -> None:
        for volume in self.volumes.server:
            self.engine.create_volume(volume.name, role="server", quota=self.shape.logs)
        spec = holders.server_holder(self.volumes.server, ask=self.shape.ask_server)
        self._server_holder = self.supervise(self._hold("server", spec), output_limit=_HOLDER_OUTPUT)
        self._server_holder.start()

    def _hold_link(self) -> None:
        self.engine.create_volume(self.volumes.link.name, role="sim", quota=LINK_LOGS)
        holder = self._hold("sim", holders.link_holder((self.volumes.link,)))
        self._link_holder = self.supervise(holder, output_limit=_HOLDER_OUTPUT)
        self._link_holder.start()

    def _hold(self, role: str, spec: ContainerSpec) -> str:
        self._holders[role] = self.create(spec)
        return self._holders[role]

    def _wire(self, plumber: str) -> None:
        """Connect the namespaces of the holders, through the plumber."""
        pids = {role: self.engine.state(holder).pid for role, holder in self._holders.items()}
        if not all(pids.values()):
            raise LaneError("holder-died", "A holder of the lane ended at once: look at the engine's log.")
        script = wiring_script(Namespaces(client=pids["client"], link=pids["sim"], server=pids["server"]))
        exit_code, output = self.engine.execute(plumber, ["sh", "-c", script])
        if exit_code != 0:
            raise LaneError("not-wired", f"The lane could not be wired: {output.strip() or f'exit code {exit_code}'}")

    def create(self, spec: ContainerSpec) -> str:
        """Make a container that `discard` will remove. Returns its id."""
        container = self.engine.create(f"{self.name}-{spec.role}", spec)
        self._containers.append(container)
        return container

    def supervise(self, container: str, *, output_limit: int) -> Supervised:
        """Watch a container, from its start on, with this lane's bell."""
        return Supervised(self.engine, container, self.bell, output_limit=output_limit)

    def namespace(self, role: str) -> str:
        """The network mode of a container that joins the holder of `role`."""
        return f"container:{self._holders[role]}"

    def archive(self, role: str, path: str) -> Iterator[bytes]:
        """A folder of the holder of `role` as tar: its volumes outlast the endpoint. Raises LaneError without it."""
        if role not in self._holders:
            raise LaneError("no-lane", f"There is no holder of the {role}.")
        return self.engine.archive(self._holders[role], path)

    def start_link(self, arguments: list[str]) -> None:
        """Start the simulator; return when it carries packets and both captures listen."""
        spec = ContainerSpec(
            image=SIMULATOR,
            role="sim",
            command=tuple(arguments),
            volumes=(self.volumes.link,),
            host={
                "network_mode": self.namespace("sim"),
                "cap_drop": ["ALL"],
                "cap_add": ["NET_RAW", "NET_ADMIN", "SYS_NICE"],
                "security_opt": ["no-new-privileges"],
                "cpu_shares": 262144,  # the most that there are: it must never wait for a core
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        self._link = self.supervise(self.create(spec), output_limit=_HOLDER_OUTPUT)
        self._link.start()
        link, holder = self._link, self._held(self._link_holder)

        def is_ready() -> bool:
            printed = holder.printed
            return "link ready" in printed and len(_LISTENING.findall(printed)) == 2

        self.bell.wait(lambda: is_ready() or link.ended or holder.ended, timeout=_READY_SECONDS)
        if link.ended or holder.ended or not is_ready():
            said = " ".join((link.last_lines(3), holder.last_lines(3))).strip()
            raise LaneError("link-not-ready", f"The simulator did not open the path: {said or 'it printed nothing'}")

    def wait_for_server(self, server: Supervised, *, timeout: float) -> bool:
        """Whether the server answered within `timeout` seconds; returns at once when it has ended."""
        holder = self._held(self._server_holder)
        self.bell.wait(lambda: "server ready" in holder.printed or server.ended, timeout=timeout)
        return "server ready" in holder.printed

    def udp_ports(self, role: str) -> tuple[int, ...]:
        """The ports of UDP sockets in the namespace of `role` that take datagrams from everyone."""
        _, table = self.engine.execute(self._holders[role], ["cat", "/proc/net/udp", "/proc/net/udp6"])
        return tuple(sorted({int(port, 16) for port in _LOCAL_PORT.findall(table)}))

    @property
    def link_died(self) -> bool:
        """Whether the simulator or the captures ended although nobody asked them to."""
        return any(part is not None and part.ended for part in (self._link, self._link_holder))

    def stop_captures(self) -> int:
        """End both captures. Returns how many packets the kernel dropped before them, both sides together."""
        holder = self._held(self._link_holder)
        self.engine.signal(holder.container, "SIGTERM")
        if not self.bell.wait(lambda: "captures ended" in holder.printed or holder.ended, timeout=_STOP_SECONDS):
            raise LaneError("captures-not-ended", f"The captures did not end in time: {holder.last_lines(3)}")
        dropped = _DROPPED.findall(holder.printed)
        if sum(where == "kernel" for _, where in dropped) < 2:
            raise LaneError("captures-died", f"A capture ended before its time: {holder.last_lines(3)}")
        return sum(int(count) for count, _ in dropped)

    def stop_link(self) -> None:
        """End the simulator, which then writes its truth."""
        if self._link is None:
            raise LaneError("no-lane", "There is no simulator.")
        self._link.terminate(grace=_STOP_SECONDS)
        final = self._link.final
        if final is None or final.exit_code != 0:
            code = None if final is None else final.exit_code
            raise LaneError("link-failed", f"The simulator ended with exit code {code}: {self._link.last_lines(3)}")

    def link_output(self) -> str:
        """What simulator and captures printed."""
        return "".join(part.printed for part in (self._link, self._link_holder) if part is not None)

    @staticmethod
    def _held(holder: Supervised | None) -> Supervised:
        if holder is None:
            raise LaneError("no-lane", "The lane was not prepared.")
        return holder

    def discard(self) -> None:
        """Remove every container and volume of the lane. Raises LaneError when the engine refuses one."""
        with self._preparing:
            kept = set(self._holders.values())
            joined = [container for container in self._containers if container not in kept]
            for group in (joined, list(kept)):
                removals = (lambda container=container: self.engine.remove(container) for container in group)
                together(self.pool, *removals)
            for name in self.volumes.names():
                self.engine.remove_volume(name)
