"""One lane: three wired namespaces, a simulated link between them, captures on both sides. It serves one job."""

import re
from concurrent.futures import Executor
from dataclasses import dataclass

from runner.deploy import holders
from runner.deploy.containers import Engine, Volume
from runner.deploy.lane_base import LaneBase, together
from runner.deploy.segment import HOLDER_OUTPUT, Segment
from runner.deploy.supervised import Bell, Supervised
from runner.deploy.wiring import Namespaces, wiring_script
from runner.errors import LaneError

# A socket of /proc/net/udp without a peer: that of the holder, which asks the server, is connected.
_LOCAL_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is fixed when a lane is prepared: lanes of one shape are interchangeable. Quotas in bytes."""

    logs: int
    downloads: int
    ask_server: bool  # whether readiness of the server is watched


@dataclass(frozen=True, kw_only=True)
class LaneVolumes:
    """The volumes of the endpoints, which holders keep alive."""

    client: tuple[Volume, ...]
    server: tuple[Volume, ...]

    @classmethod
    def named(cls, name: str) -> "LaneVolumes":
        """The volumes of the lane `name`."""
        return cls(
            client=(
                Volume(name=f"{name}-client-logs", path="/logs"),
                Volume(name=f"{name}-client-downloads", path="/downloads"),
            ),
            server=(Volume(name=f"{name}-server-logs", path="/logs"),),
        )


class Lane(LaneBase):
    """A lane of pairs: `client`, `sim`, `server`."""

    def __init__(self, engine: Engine, pool: Executor, bell: Bell, *, name: str, shape: Shape) -> None:
        super().__init__(engine, pool, bell, name=name)
        self.shape = shape
        self.volumes = LaneVolumes.named(name)
        self.link = Segment(self)
        self._server_holder: Supervised | None = None

    def _hold_all(self) -> None:
        together(self.pool, self._hold_client, self._hold_server, self.link.hold)

    def _hold_client(self) -> None:
        for volume, quota in zip(self.volumes.client, (self.shape.logs, self.shape.downloads), strict=True):
            self.engine.create_volume(volume.name, role="client", quota=quota)
        self.engine.start(self.hold("client", holders.client_holder(self.volumes.client)))

    def _hold_server(self) -> None:
        for volume in self.volumes.server:
            self.engine.create_volume(volume.name, role="server", quota=self.shape.logs)
        spec = holders.server_holder(self.volumes.server, ask=self.shape.ask_server)
        self._server_holder = self.supervise(self.hold("server", spec), output_limit=HOLDER_OUTPUT)
        self._server_holder.start()

    def _script(self, pids: dict[str, int]) -> str:
        return wiring_script(Namespaces(client=pids["client"], link=pids["sim"], server=pids["server"]))

    def _volumes(self) -> list[str]:
        return [volume.name for volume in (*self.volumes.client, self.link.volume, *self.volumes.server)]

    def wait_for_server(self, server: Supervised, *, timeout: float) -> bool:
        """Whether the server answered within `timeout` seconds; returns at once when it has ended."""
        holder = self._server_holder
        if holder is None:
            raise LaneError("no-lane", "The lane was not prepared.")
        self.bell.wait(lambda: "server ready" in holder.printed or server.ended, timeout=timeout)
        return "server ready" in holder.printed

    def udp_ports(self, role: str) -> tuple[int, ...]:
        """The ports of UDP sockets in the namespace of `role` that take datagrams from everyone."""
        _, table = self.execute(role, ["cat", "/proc/net/udp", "/proc/net/udp6"])
        return tuple(sorted({int(port, 16) for port in _LOCAL_PORT.findall(table)}))
