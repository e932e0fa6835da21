"""One lane: wired namespaces, simulated segments between them, captures."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from runner.engine.containers import ContainerSpec, Engine, Volume
from runner.errors import LaneError
from runner.images.images import SIMULATOR
from runner.model.link import CLIENT, SERVER, TERMINAL, Hop
from runner.model.result import InterfaceChange, InterfaceChangeKind
from runner.model.stack import Box, Role
from runner.places import supervised
from runner.places.lane_job import LOGS, LOOKED, READY_PORT, SERVER4, look_script, network_script, renewal_script
from runner.places.supervised import (
    CAPTURES,
    CAPTURING,
    LINK_MEMORY,
    NAMESPACE_SETTINGS,
    ROUTER_SETTINGS,
    TOOLS,
    CommandContainer,
    Notifier,
    Resident,
    Supervised,
    capture_drops,
    confined,
    link_keeper,
)
from runner.units import MIB

# One simulated link between two namespaces: a keeper with both captures, and the simulator.

_LINES = 20  # lines of a failed tool's output in an error message
LINK_LOGS = 256 * MIB  # bytes for truth and packet log
SIMULATOR_MEMORY = LINK_LOGS + 1024 * MIB  # bytes of memory, with its volume and the packets that wait in queues
WAKE_UP = Path("/dev/cpu_dma_latency")  # kernel, "PM Quality Of Service Interface": how late an idle CPU may wake up
_READY_SECONDS = 10.0
_STOP_SECONDS = 10.0
_ENDED = re.compile(r"^link ended with (\d+)$", re.MULTILINE)
_FLOODED = "link flooded"
_LISTENING = re.compile(r"listening on eth[01]")  # both captures print at the same time, so their lines may be joined


class LaneSegment:
    """One simulated segment of a lane's link. `role`: its name in containers, volume and the job's folder."""

    def __init__(self, lane: "Lane", role: str) -> None:
        self.role = role
        self.volume = Volume(name=f"{lane.name}-{role}-logs", path=LOGS)
        self._lane = lane
        self._keeper: CommandContainer | None = None
        self._link: Resident | None = None
        self._began = False  # True: the link was started in this job

    def hold(self) -> None:
        """Start the keeper, whose captures wait for the wiring, and the simulator, which waits for its document."""
        lane = self._lane
        lane.engine.create_volume(self.volume.name, role=self.role, quota=LINK_LOGS)
        self._keeper = lane.hold(self.role, link_keeper(self.role, (self.volume,)))
        self._link = Resident(lane.engine, lane.create(self._simulator(), stays=True), lane.notifier)
        self._link.start()

    def _simulator(self) -> ContainerSpec:
        return ContainerSpec(
            image=SIMULATOR,
            role=self.role,
            command=("--serve",),
            volumes=(self.volume,),
            stdin=True,
            host=confined(
                SIMULATOR_MEMORY,
                capabilities=("NET_RAW", "NET_ADMIN", "SYS_NICE"),
                network_mode=self._lane.namespace(self.role),
                devices=[f"{WAKE_UP}:{WAKE_UP}:w"] if WAKE_UP.exists() else [],
                cpu_shares=262144,  # the largest weight: it must never wait for a core
            ),
        )

    def renew(self) -> None:
        """Forget the output of the last job; the captures wait for the next wiring."""
        for part in self._parts():
            part.forget()
        self._began = False

    def start(self, document: dict[str, Any]) -> None:
        """Start the link (runner/places/lane_job.py); return when it carries packets and both captures listen."""
        link, keeper = self._parts()
        self._began = True
        link.say(json.dumps(document).encode() + b"\n")

        def is_ready() -> bool:
            printed = keeper.printed
            return "link ready" in printed and len(_LISTENING.findall(printed)) == 2

        self._lane.notifier.wait(lambda: is_ready() or self.died, timeout=_READY_SECONDS)
        if self.died or not is_ready():
            lines = "\n".join((link.last_lines(3), keeper.last_lines(3))).strip()
            raise LaneError(
                "link-not-ready", "The simulator was not ready in time.", printed=lines or "it printed nothing"
            )

    @property
    def died(self) -> bool:
        """True when the link or a capture ended before it was stopped."""
        return any(part.ended for part in self._parts()) or self._exit_code() is not None

    @property
    def is_gone(self) -> bool:
        """True when the keeper or the simulator has ended, so that the namespace may have ended."""
        return any(part.ended for part in self._parts())

    @property
    def flooded(self) -> bool:
        """True when the simulator reported a flood in this job."""
        link, _ = self._parts()
        return _FLOODED in link.printed

    def _exit_code(self) -> int | None:
        """The exit code of the link; None while it runs."""
        link, _ = self._parts()
        ended = _ENDED.search(link.printed)
        return int(ended[1]) if ended else None

    def stop_captures(self) -> int:
        """End both captures. Returns how many packets the kernel dropped before the two captures could read them."""
        _, keeper = self._parts()
        code, said = keeper.execute(["kill", "-TERM", "1"])  # `hold` passes the signal on
        if code != 0:
            raise LaneError("captures-not-ended", "The captures could not be told to end.", printed=said)
        ended = self._lane.notifier.wait(
            lambda: "captures ended" in keeper.printed or keeper.ended, timeout=_STOP_SECONDS
        )
        if not ended:
            raise LaneError(
                "captures-not-ended", "The captures did not end in time.", printed=keeper.last_lines(_LINES)
            )
        return capture_drops(keeper.printed, 2)

    def stop(self) -> None:
        """End the link; the simulator then writes its truth."""
        link, _ = self._parts()
        if not self._began:
            raise LaneError("no-lane", "There is no link.")
        if not link.ended:
            link.say(b"stop\n")
        self._lane.notifier.wait(lambda: self._exit_code() is not None or link.ended, timeout=_STOP_SECONDS)
        code = self._exit_code()
        if code != 0:
            raise LaneError(
                "link-failed", f"The simulator ended with exit code {code}.", printed=link.last_lines(_LINES)
            )

    def output(self) -> str:
        """The output of simulator and captures."""
        return "".join(part.printed for part in (self._link, self._keeper) if part is not None)

    def _parts(self) -> tuple[Resident, CommandContainer]:
        if self._link is None or self._keeper is None:
            raise LaneError("no-lane", "The lane was not prepared.")
        return self._link, self._keeper


# Captures packets in the namespace of the client or the server. On the link, a tunnel may hide these packets.

_OUTPUT = MIB
_SNAPSHOT = 2048  # captured bytes of each packet, the same as on the segments


class EndCapture:
    """A capture of one job at eth0 of `role`; the file is `<role>.pcap`."""

    def __init__(self, lane: "Lane", role: str) -> None:
        self.role = role
        self._lane = lane
        self._running: Supervised | None = None

    def start(self) -> None:
        """Start the capture and wait until it listens. Raises LaneError when it doesn't listen."""
        command = (
            f"mkdir -p {CAPTURES}; exec tcpdump -Z root -n -i eth0 --immediate-mode -s {_SNAPSHOT} -B 16384 "
            f"--time-stamp-precision=nano -w {CAPTURES}/{self.role}.pcap not tcp port {READY_PORT}"
        )
        spec = ContainerSpec(
            image=TOOLS,
            role=f"{self.role}-capture",
            command=("sh", "-c", command),
            host=confined(LINK_MEMORY, network_mode=self._lane.namespace(self.role), **CAPTURING),
        )
        running = self._running = self._lane.supervise(self._lane.create(spec), output_limit=_OUTPUT)
        running.start()
        self._lane.notifier.wait(lambda: "listening on eth0" in running.printed or running.ended, timeout=_STOP_SECONDS)
        if running.ended or "listening on eth0" not in running.printed:
            raise LaneError(
                "no-end-capture", f"The capture at the {self.role} did not begin.", printed=running.last_lines(3)
            )

    @property
    def died(self) -> bool:
        """True when the capture ended before `stop` was called."""
        return self._running is not None and self._running.ended

    def stop(self) -> int:
        """End the capture. Returns how many packets the kernel dropped before it could read them. Raises LaneError."""
        running = self._require()
        running.terminate(grace=_STOP_SECONDS)
        return capture_drops(running.printed, 1, where=f" at the {self.role}")

    def archive(self) -> Iterator[bytes]:
        """The folder with the capture, as tar. Raises LaneError without a capture."""
        return self._lane.engine.archive(self._require().container, CAPTURES)

    def _require(self) -> Supervised:
        if self._running is None:
            raise LaneError("no-lane", f"There is no capture at the {self.role}.")
        return self._running


# Watches the interface of an endpoint, which its image may change with NET_ADMIN.
#
# An image that makes its MTU small or switches it off keeps the simulator from sending. Without this watch, the host
# would seem to be disturbed, and no endpoint would be blamed.

_SCRIPT = (Path(__file__).parents[1] / "scripts" / "interface_watch.py").read_text()
_CHANGES = "/interface-changes"  # file in the keeper, to which the script writes
# Runs as long as the keeper, because a program that ends would stay in the keeper's table of processes.
_START = (
    f'python3 -ISBc "$0" > {_CHANGES} 2>&1 &'
    f" for _ in $(seq 500); do grep -q watching {_CHANGES} && exit; sleep 0.01; done; exit 1"
)
_NUMBER = "/sys/class/net/eth0/ifindex"
_ON = "on"


def begin_watch(keeper: CommandContainer) -> None:
    """Watch eth0 in the namespace of `keeper` until it ends. Raises LaneError."""
    if keeper.execute(["sh", "-c", _START, _SCRIPT])[0] != 0:
        raise LaneError("holder-silent", "The watch of an interface did not start.")


class InterfaceWatch:
    """The changes of eth0 at a keeper during one job. Make it between wiring and endpoint. Raises LaneError."""

    def __init__(self, keeper: CommandContainer) -> None:
        self._keeper = keeper
        self._number = keeper.execute(["cat", _NUMBER])[1].strip()

    def changes(self, began: float) -> tuple[InterfaceChange, ...]:
        """The changes so far. `began`: the beginning of the job in seconds since 1970. Raises LaneError."""
        _, printed = self._keeper.execute(["cat", _CHANGES])
        return parse_changes(printed.splitlines(), self._number, began)


def parse_changes(lines: Sequence[str], number: str, began: float) -> tuple[InterfaceChange, ...]:
    """The changes of the interface with this number, from the lines of scripts/interface_watch.py."""
    changes = []
    for line in lines:
        words = line.split()
        if len(words) < 3 or words[0] != number or words[2] == _ON:
            continue
        value = words[3] if len(words) > 3 else ""
        changes.append(InterfaceChange(kind=InterfaceChangeKind(words[2]), value=value, time=float(words[1]) - began))
    return tuple(changes)


# The base of lanes: keepers whose namespaces other containers join, volumes of the endpoints, simulated links.

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


# One lane: wired namespaces, simulated segments between them, captures. Making keepers and namespaces takes most of a
# job's set-up time, so a lane without routers serves several jobs. For each job, the cables with their addresses and
# routes are made again, and the volumes are emptied. Then the lane is compared with its first state. If a job has left
# anything, the lane gets new keepers.

READY_FILE = "/logs/ready"
_PORT_SECONDS = 10.0
_READY_LOOK = 1.0  # seconds that one command in a keeper waits for a file
# A socket without a peer in /proc/net/udp. The keeper's own socket, which sends packets to the server, has a peer.
_LOCAL_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 ", re.MULTILINE)


def unconnected_ports(table: str) -> tuple[int, ...]:
    """The ports of sockets without a peer in `table`, in the form of /proc/net/udp."""
    return tuple(sorted({int(port, 16) for port in _LOCAL_PORT.findall(table)}))


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
    ask_server: bool  # True: the keeper reports when the server is ready
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


class Lane:
    """A lane for jobs of one shape. It is prepared, used by one thread for one job at a time, and removed in any case
    by `discard`. Each node of the shape has a namespace and /logs; each segment is a simulated link with a capture at
    both ends."""

    def __init__(self, engine: Engine, pool: Executor, notifier: Notifier, *, name: str, shape: Shape) -> None:
        self.name = name
        self.engine = engine
        self.pool = pool
        self.notifier = notifier
        self.shape = shape
        self.segments = tuple(LaneSegment(self, role) for role in shape.segments)
        self._volumes = {role: {Volume(name=f"{name}-{role}-logs", path="/logs"): shape.logs} for role in shape.nodes}
        for role, quota in shape.downloads:
            self._volumes[role][Volume(name=f"{name}-{role}-downloads", path="/downloads")] = quota
        self.end_captures = tuple(EndCapture(self, role) for role in shape.captured)
        self._containers: list[str] = []  # containers of the job
        self._staying: list[str] = []
        self._keepers: dict[str, CommandContainer] = {}
        self._pids: dict[str, int] = {}  # process ids of the keepers by role
        self._preparing = threading.Lock()
        self._prepared = False
        self._failure: LaneError | None = None
        self._new = ""  # state of the namespaces before the first job
        self._used = self._fit = False
        self._wirings = count()

    def prepare(self, wiring: CommandContainer) -> None:
        """Start the keepers and wire their namespaces, unless this was done in the background. Raises LaneError."""
        with self._preparing:
            if self._failure is not None:
                raise self._failure
            if self._prepared:
                return
            try:
                self._make(wiring)
                self._prepared = True
            except LaneError as error:
                self._failure = error
                raise

    def _hold_all(self) -> None:
        together(
            self.pool,
            *(lambda role=role: self._hold_role(role) for role in self._volumes),
            *(segment.hold for segment in self.segments),
        )
        self._pids = {role: self.engine.state(keeper.container).pid for role, keeper in self._keepers.items()}
        if not all(self._pids.values()):
            raise LaneError("holder-died", "A namespace keeper of the lane ended at once: look at the engine's log.")

    def _hold_role(self, role: str) -> None:
        for volume, quota in self._volumes[role].items():
            self.engine.create_volume(volume.name, role=role, quota=quota)
        keeper = self.hold(role, self._keeper(role))
        if role in tuple(Role):
            begin_watch(keeper)

    def volumes(self, role: str) -> tuple[Volume, ...]:
        """The volumes of `role`: /logs and, for the receiver, /downloads. Their files exist as long as the keeper."""
        return tuple(self._volumes[role])

    def quota(self, role: str) -> int:
        """The quotas of all volumes of `role` together, in bytes."""
        return sum(self._volumes[role].values())

    def hold(self, role: str, spec: ContainerSpec) -> CommandContainer:
        """Start the keeper of `role`."""
        keeper = CommandContainer(self.engine, self.create(spec, stays=True), self.notifier)
        keeper.start()
        self._keepers[role] = keeper
        return keeper

    def _run_script(self, wiring: CommandContainer, script: str) -> str:
        """Run a script in the wiring container. Returns its output; raises LaneError when it fails."""
        exit_code, output = wiring.execute(["sh", "-c", script])
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
        """A supervised container that rings this lane's notifier."""
        return Supervised(self.engine, container, self.notifier, output_limit=output_limit)

    def namespace(self, role: str) -> str:
        """The network mode of a container that joins the keeper of `role`."""
        return f"container:{self._keepers[role].container}"

    def watch_interface(self, role: Role) -> InterfaceWatch:
        """A watch of the endpoint's interface, after the wiring."""
        return InterfaceWatch(self._keepers[role.value])

    def execute(self, role: str, command: list[str]) -> tuple[int, str]:
        """Run a command in the keeper of `role`. Returns its exit code and its output."""
        return self._keepers[role].execute(command)

    def listens(self, role: str, port: int) -> bool:
        """True when a process in the namespace of `role` accepts TCP on `port`."""
        return accepts(self.execute(role, ["cat", "/proc/net/tcp", "/proc/net/tcp6"])[1], port)

    def archive(self, role: str, path: str) -> Iterator[bytes]:
        """A folder of the volumes of `role` as tar, read through its keeper. Raises LaneError without a keeper."""
        if role not in self._keepers:
            raise LaneError("no-lane", f"There is no namespace keeper of the {role}.")
        return self._keepers[role].archive(path)

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

    def _remove(self, containers: list[str]) -> None:
        together(self.pool, *(lambda container=container: self.engine.remove(container) for container in containers))
        containers.clear()

    def _remove_all(self) -> None:
        self._remove(self._containers)
        self._remove(self._staying)
        self._keepers = {}
        for volumes in (*self._volumes.values(), [segment.volume for segment in self.segments]):
            for volume in volumes:
                self.engine.remove_volume(volume.name)

    def discard(self) -> None:
        """Remove every container and volume of the lane. Raises LaneError when one can't be removed."""
        with self._preparing:
            self._remove_all()

    def release(self, *, fit: bool) -> None:
        """Release the lane after a job; `prepare` renews it. When the lane isn't `fit`, it gets new keepers."""
        with self._preparing:
            self._prepared, self._failure, self._used, self._fit = False, None, True, fit

    def _make(self, wiring: CommandContainer) -> None:
        if self._used:
            self._used = False
            # New keepers may help after any error.
            with suppress(LaneError):
                if self._fit and self._renew(wiring):
                    return
            self._remove_all()
        self._hold_all()
        if self.shape.serves_again:
            self._new = self._look_and_wire(wiring)
        else:
            self._run_script(wiring, self._script(self._pids))

    def _renew(self, wiring: CommandContainer) -> bool:
        """Renew a used lane. Returns False when it differs from a new lane."""
        self._remove(self._containers)
        for segment in self.segments:
            segment.renew()
        self._keepers[SERVER].forget()
        if any(keeper.ended for keeper in self._keepers.values()) or any(segment.died for segment in self.segments):
            return False
        return self._look_and_wire(wiring, renewal_script(self._pids, self._folders())) == self._new

    def _look_and_wire(self, wiring: CommandContainer, *before: str) -> str:
        """Wire the lane. Returns the state that the namespaces had without cables."""
        script = "\n".join((*before, look_script(self._pids, self._folders()), self._script(self._pids)))
        return self._run_script(wiring, script).split(LOOKED)[0]

    def _folders(self) -> dict[str, list[str]]:
        folders = {role: [volume.path for volume in self.volumes(role)] for role in (CLIENT, SERVER)}
        return folders | {segment.role: [segment.volume.path] for segment in self.segments}

    def _keeper(self, role: str) -> ContainerSpec:
        """The keeper of a node. With `ask_server`, the server's prints `server ready` when UDP port 443 answers."""
        command = ("hold-server", SERVER4) if role == SERVER and self.shape.ask_server else ()
        settings = ROUTER_SETTINGS if role in tuple(Box) else NAMESPACE_SETTINGS
        return supervised.keeper(role, self.volumes(role), command, sysctls=settings)

    def _script(self, pids: dict[str, int]) -> str:
        return network_script(pids, self.shape.hops, dict(self.shape.controllers), before=next(self._wirings))

    def open_to_client(self) -> None:
        """Open the ready port at the terminal, which has the address that the contract calls `sim`. Without routers,
        the simulator itself opens the port. Raises LaneError when the port stays closed."""
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
            self.notifier.wait(lambda: False, timeout=0.05)

    def box_ready(self, box: Box) -> bool:
        """True when this box has reported that it forwards traffic; waits for a second at most."""
        return self.execute(box.value, look_for(READY_FILE))[0] == 0

    def wait_for_server(self, server: Supervised, *, timeout: float) -> bool:
        """True when the server answered within `timeout` seconds, without waiting after its end or a flood."""
        keeper = self._keepers[SERVER]
        self.notifier.wait(lambda: "server ready" in keeper.printed or server.ended or self.flooded, timeout=timeout)
        return "server ready" in keeper.printed

    def udp_ports(self, role: str) -> tuple[int, ...]:
        """The ports of unconnected UDP sockets in the namespace of `role`."""
        return unconnected_ports(self.execute(role, ["cat", "/proc/net/udp", "/proc/net/udp6"])[1])
