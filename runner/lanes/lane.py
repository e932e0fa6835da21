"""One lane: wired namespaces, simulated segments between them, captures. Making holders and namespaces takes most
of a job's set-up time, so a lane without routers serves several jobs. For each job, the cables with their addresses and
routes are made again, and the volumes are emptied. Then the lane is compared with its first state. If a job has left
anything, the lane gets new holders.
"""

import re
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from time import monotonic

from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.lanes import holders
from runner.lanes.addresses import READY_PORT
from runner.lanes.lane_base import LaneBase
from runner.lanes.network import network_script
from runner.lanes.resident import Holder
from runner.lanes.supervised import Bell, Supervised
from runner.lanes.wiring import LOOKED, look_script, renewal_script
from runner.model.beside import BesideRole
from runner.model.middlebox import Box
from runner.model.topology import CLIENT, SERVER, TERMINAL, Hop

READY_FILE = "/logs/ready"
_PORT_SECONDS = 10.0
_READY_LOOK = 1.0  # seconds that one command in a holder waits for a file
# A socket without a peer in /proc/net/udp. The holder's own socket, which sends packets to the server, has a peer.
LOCAL_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 ", re.MULTILINE)


def look_for(file: str) -> list[str]:
    """A command that exits with 0 as soon as the file exists, and with 1 when it doesn't exist after a second."""
    rounds = round(_READY_LOOK / 0.05)
    return ["sh", "-c", f"for _ in $(seq {rounds}); do [ -e {file} ] && exit 0; sleep 0.05; done; exit 1"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The properties that are fixed when a lane is prepared: a part of a job's topology (see Topology), and quotas in
    bytes. Lanes of the same shape are interchangeable."""

    logs: int
    downloads: tuple[tuple[str, int], ...]  # quota of /downloads by role
    ask_server: bool  # True: the holder reports when the server is ready
    nodes: tuple[str, ...]
    segments: tuple[str, ...]
    hops: tuple[Hop, ...]
    captured: tuple[str, ...] = ()  # `captured_endpoints`
    controllers: tuple[tuple[str, str], ...] = ()  # TCP's congestion controller by role

    @property
    def routed(self) -> bool:
        """True when there are routers at both ends of the link."""
        return TERMINAL in self.nodes

    @property
    def serves_again(self) -> bool:
        """True when a lane of this shape can serve another job. A lane with routers can't, because no check finds
        what a middlebox leaves behind in the network."""
        return not self.routed


class Lane(LaneBase):
    """A lane for jobs of one shape."""

    def __init__(self, engine: Engine, pool: Executor, bell: Bell, *, name: str, shape: Shape) -> None:
        super().__init__(
            engine,
            pool,
            bell,
            name=name,
            roles=shape.nodes,
            segments=shape.segments,
            captured=shape.captured,
            logs=shape.logs,
            downloads=dict(shape.downloads),
        )
        self.shape = shape
        self._new = ""  # state of the namespaces before the first job
        self._used = self._fit = False
        self._wirings = count()

    def release(self, *, fit: bool) -> None:
        """Release the lane after a job; `prepare` renews it. When the lane isn't `fit`, it gets new holders."""
        with self._preparing:
            self._prepared, self._failure, self._used, self._fit = False, None, True, fit

    def _make(self, plumber: Holder) -> None:
        if self._used:
            self._used = False
            # New holders may help after any error.
            with suppress(LaneError):
                if self._fit and self._renew(plumber):
                    return
            self._remove_all()
        self._hold_all()
        if self.shape.serves_again:
            self._new = self._look_and_wire(plumber)
        else:
            self._run_script(plumber, self._script(self._pids))

    def _renew(self, plumber: Holder) -> bool:
        """Renew a used lane. Returns False when it differs from a new lane."""
        self._remove_joined()
        for segment in self.segments:
            segment.renew()
        self._holders[SERVER].forget()
        if any(holder.ended for holder in self._holders.values()) or any(segment.died for segment in self.segments):
            return False
        return self._look_and_wire(plumber, renewal_script(self._pids, self._folders())) == self._new

    def _look_and_wire(self, plumber: Holder, *before: str) -> str:
        """Wire the lane. Returns the state that the namespaces had without cables."""
        script = "\n".join((*before, look_script(self._pids, self._folders()), self._script(self._pids)))
        return self._run_script(plumber, script).split(LOOKED)[0]

    def _folders(self) -> dict[str, list[str]]:
        folders = {role: [volume.path for volume in self.volumes(role)] for role in (CLIENT, SERVER)}
        return folders | {segment.role: [segment.volume.path] for segment in self.segments}

    def _holder(self, role: str) -> ContainerSpec:
        if role == CLIENT:
            return holders.client_holder(self.volumes(role))
        if role == SERVER:
            return holders.server_holder(self.volumes(role), ask=self.shape.ask_server)
        if role in tuple(BesideRole):
            return holders.beside_holder(role, self.volumes(role))
        return holders.router_holder(role, self.volumes(role))

    def _script(self, pids: dict[str, int]) -> str:
        return network_script(pids, self.shape.hops, dict(self.shape.controllers), before=next(self._wirings))

    def open_to_client(self) -> None:
        """Open the ready port at the terminal, which has the address that the contract calls `sim`. Without routers,
        the simulator itself opens the port. Raises LaneError when the port stays closed.
        """
        if not self.shape.routed:
            return
        script = (
            "import socket\n"
            f"server = socket.create_server(('::', {READY_PORT}), family=socket.AF_INET6, dualstack_ipv6=True)\n"
            "while True: server.accept()[0].close()"
        )
        self.execute(TERMINAL, ["sh", "-c", 'python3 -c "$0" > /dev/null 2>&1 &', script])
        deadline = monotonic() + _PORT_SECONDS
        while not self.listens(TERMINAL, READY_PORT):
            if monotonic() > deadline:
                raise LaneError("link-not-ready", "The ready port at the terminal stays closed.")
            self.bell.wait(lambda: False, timeout=0.05)

    def box_ready(self, box: Box) -> bool:
        """True when this box has reported that it forwards traffic; waits for a second at most."""
        return self.execute(box.value, look_for(READY_FILE))[0] == 0

    def wait_for_server(self, server: Supervised, *, timeout: float) -> bool:
        """True when the server answered within `timeout` seconds. Doesn't wait for a server that has ended or floods
        the link."""
        holder = self._holders[SERVER]
        self.bell.wait(lambda: "server ready" in holder.printed or server.ended or self.flooded, timeout=timeout)
        return "server ready" in holder.printed

    def udp_ports(self, role: str) -> tuple[int, ...]:
        """The ports of unconnected UDP sockets in the namespace of `role`."""
        _, table = self.execute(role, ["cat", "/proc/net/udp", "/proc/net/udp6"])
        return tuple(sorted({int(port, 16) for port in LOCAL_PORT.findall(table)}))
