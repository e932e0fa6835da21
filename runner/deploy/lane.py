"""One lane: three wired namespaces, a simulated link between them, captures on both sides. It serves one job."""

import re
from concurrent.futures import Executor
from dataclasses import dataclass

from runner.deploy import holders
from runner.deploy.containers import ContainerSpec, Engine
from runner.deploy.lane_base import LaneBase
from runner.deploy.segment import HOLDER_OUTPUT
from runner.deploy.supervised import Bell, Supervised
from runner.deploy.wiring import CLIENT, SERVER, SIM, pair_wiring_script
from runner.errors import LaneError

# A socket of /proc/net/udp without a peer: that of the holder, which asks the server, is connected.
_LOCAL_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is fixed when a lane is prepared: lanes of one shape are interchangeable. Quotas in bytes."""

    logs: int
    downloads: int
    ask_server: bool  # whether readiness of the server is watched


class Lane(LaneBase):
    """A lane of pairs."""

    def __init__(self, engine: Engine, pool: Executor, bell: Bell, *, name: str, shape: Shape) -> None:
        super().__init__(
            engine,
            pool,
            bell,
            name=name,
            roles=(CLIENT, SERVER),
            segments=(SIM,),
            logs=shape.logs,
            downloads=shape.downloads,
        )
        self.shape = shape
        self._server_holder: Supervised | None = None

    def _holder(self, role: str) -> ContainerSpec:
        if role == CLIENT:
            return holders.client_holder(self.volumes(role))
        return holders.server_holder(self.volumes(role), ask=self.shape.ask_server)

    def _start_holder(self, role: str, holder: str) -> None:
        if role == CLIENT:
            super()._start_holder(role, holder)
        else:
            self._server_holder = self.supervise(holder, output_limit=HOLDER_OUTPUT)
            self._server_holder.start()

    def _script(self, pids: dict[str, int]) -> str:
        return pair_wiring_script(pids)

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
