"""One lane: wired namespaces, simulated segments between them, captures. It may serve job after job.

Holders and their namespaces are what costs most of a job, so a lane without routers is used again. Cables and
everything on them are made anew for each job, volumes emptied; then the lane is compared with itself when it was new,
and made of new holders where a stranger's container has left anything.
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
from runner.lanes.network import TERMINAL, network_script
from runner.lanes.resident import Holder
from runner.lanes.supervised import Bell, Supervised
from runner.lanes.wiring import CLIENT, LOOKED, SERVER, SIM, look_script, renewal_script
from runner.model.middlebox import Box

READY_FILE = "/logs/ready"
_PORT_SECONDS = 10.0
_READY_LOOK = 1.0  # s that one command in a holder may wait
# A socket of /proc/net/udp without a peer: that of the holder, which asks the server, is connected.
LOCAL_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is fixed when a lane is prepared: lanes of one shape are interchangeable. Quotas in bytes."""

    logs: int
    downloads: int
    ask_server: bool  # whether readiness of the server is watched
    nodes: tuple[str, ...] = (CLIENT, SERVER)
    segments: tuple[str, ...] = (SIM,)
    controllers: tuple[tuple[str, str], ...] = ()  # TCP's congestion controller by role

    @property
    def routed(self) -> bool:
        """Whether routers stand before and behind the link."""
        return len(self.nodes) > 2

    @property
    def serves_again(self) -> bool:
        """Whether a lane of this shape can be made as new: what a middlebox leaves in its network is not looked for."""
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
            captured=(CLIENT, SERVER) if shape.routed else (),
            logs=shape.logs,
            downloads=shape.downloads,
        )
        self.shape = shape
        self._new = ""  # what there was to see before the first job
        self._used = self._fit = False
        self._wirings = count()

    def release(self, *, fit: bool) -> None:
        """The job in it is over; `prepare` makes it as new. Unless `fit`, it gets new holders."""
        with self._preparing:
            self._prepared, self._failure, self._used, self._fit = False, None, True, fit

    def _make(self, plumber: Holder) -> None:
        if self._used:
            self._used = False
            # Whatever hinders it, new holders may do.
            with suppress(LaneError):
                if self._fit and self._renew(plumber):
                    return
            self._remove_all()
        self._hold_all()
        if self.shape.serves_again:
            self._new = self._look_and_wire(plumber)
        else:
            self._ask(plumber, self._script(self._pids))

    def _renew(self, plumber: Holder) -> bool:
        """Make a used lane as new. False when it is not."""
        self._remove_joined()
        for segment in self.segments:
            segment.renew()
        self._holders[SERVER].forget()
        if any(holder.ended for holder in self._holders.values()) or any(segment.died for segment in self.segments):
            return False
        return self._look_and_wire(plumber, renewal_script(self._pids, self._folders())) == self._new

    def _look_and_wire(self, plumber: Holder, *before: str) -> str:
        """Returns what was to be seen without cables."""
        script = "\n".join((*before, look_script(self._pids, self._folders()), self._script(self._pids)))
        return self._ask(plumber, script).split(LOOKED)[0]

    def _folders(self) -> dict[str, list[str]]:
        folders = {role: [volume.path for volume in self.volumes(role)] for role in (CLIENT, SERVER)}
        return folders | {segment.role: [segment.volume.path] for segment in self.segments}

    def _holder(self, role: str) -> ContainerSpec:
        if role == CLIENT:
            return holders.client_holder(self.volumes(role))
        if role == SERVER:
            return holders.server_holder(self.volumes(role), ask=self.shape.ask_server)
        return holders.router_holder(role, self.volumes(role))

    def _script(self, pids: dict[str, int]) -> str:
        shape = self.shape
        return network_script(
            pids,
            dict(shape.controllers),
            routed=shape.routed,
            ground=len(shape.segments) > 1,
            before=next(self._wirings),
        )

    def open_to_client(self) -> None:
        """Let the client find the ready port that the contract promises at `sim`: there the terminal stands.

        Where no routers stand, the simulator itself accepts. Raises LaneError when nobody listens.
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
                raise LaneError("link-not-ready", "Nobody listens on the ready port at the terminal.")
            self.bell.wait(lambda: False, timeout=0.05)

    def box_ready(self, box: Box) -> bool:
        """Whether this box has said that it carries traffic; takes a second when it hasn't."""
        rounds = round(_READY_LOOK / 0.05)
        loop = f"for _ in $(seq {rounds}); do [ -e {READY_FILE} ] && exit 0; sleep 0.05; done; exit 1"
        return self.execute(box.value, ["sh", "-c", loop])[0] == 0

    def wait_for_server(self, server: Supervised, *, timeout: float) -> bool:
        """Whether the server answered within `timeout` seconds; returns at once when it has ended."""
        holder = self._holders[SERVER]
        self.bell.wait(lambda: "server ready" in holder.printed or server.ended, timeout=timeout)
        return "server ready" in holder.printed

    def udp_ports(self, role: str) -> tuple[int, ...]:
        """The ports of UDP sockets in the namespace of `role` that take datagrams from everyone."""
        _, table = self.execute(role, ["cat", "/proc/net/udp", "/proc/net/udp6"])
        return tuple(sorted({int(port, 16) for port in LOCAL_PORT.findall(table)}))
