"""One job over a real link, from the watchdogs to the evidence, and its part on each of the two hosts: endpoint,
router, monitor container, volumes, copied bytes."""

import contextlib
import errno
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.engine import engine as host_engine
from runner.engine.containers import ContainerSpec, Engine, Volume
from runner.errors import HostRefusedError, LaneError
from runner.inputs.inputs import certificates
from runner.model.link import (
    CLIENT,
    GATEWAY,
    LINK_DOWN,
    SERVER,
    TERMINAL,
    Hop,
    RealLink,
    RealLinkEvidence,
    RemoteHost,
)
from runner.model.result import Evidence
from runner.model.stack import Box, Role
from runner.places.experiment import (
    CAPABILITIES,
    SERVER_READY_SECONDS,
    Endpoint,
    Step,
    TimedExperiment,
    downloads_quota,
)
from runner.places.lane_job import (
    CLIENT_HOSTS,
    CLIENT_NETWORK4,
    LANE6,
    RIGHT4,
    RIGHT6,
    SERVER4,
    SERVER_HOSTS,
    SERVER_NETWORK4,
    LaneJob,
    cables,
    hosts_file,
    routes,
    routes_via,
    wiring_script,
)
from runner.places.lanes.lane import accepts, look_for, together
from runner.places.links.reach import (
    PROBE_BYTES,
    QUIET,
    Reach,
    judge,
    probe_period,
    require_datagrams,
    settled,
)
from runner.places.supervised import (
    CAPTURE_LIMIT,
    CAPTURING,
    NAMESPACE_SETTINGS,
    ROUTER_SETTINGS,
    SCRIPTS,
    TOOLS,
    Notifier,
    Served,
    Watched,
    capture_drops,
    confined,
    create_watchdog,
    wiring_container,
)
from runner.plan.link_traces import ProbeExchange, parse_probes
from runner.store import collect
from runner.units import MIB, format_size

# Counts the bytes that jobs copy from other hosts: a hostile host must not fill this host's disk.

MOST_OF_JOB = 2048 * MIB  # most bytes of one job; a transfer of 100 MB with four captures needs a fifth of it
MOST_OF_RUN = 100 * 1024 * MIB  # most bytes of one call


Counted = Callable[[Iterator[bytes]], Iterator[bytes]]
"""Yields and counts the blocks of one job. Raises LaneError `collected-limit` when the job has copied too much."""


class Collected:
    """The bytes of one call, over all of its links. Thread-safe."""

    def __init__(self, *, most_of_job: int = MOST_OF_JOB, most_of_run: int = MOST_OF_RUN) -> None:
        self._most_of_job, self._most_of_run = most_of_job, most_of_run
        self._lock = threading.Lock()
        self._run = 0

    def job(self) -> Counted:
        """Counts the bytes of a job that begins now, from both of its hosts. Raises HostRefusedError when the call has
        reached its limit."""
        if self._run >= self._most_of_run:
            raise HostRefusedError(
                f"This call has copied {format_size(self._run)} from other hosts, and its limit is "
                f"{format_size(self._most_of_run)}: look at the files that the jobs left there; the same command then "
                "continues the run."
            )
        left = self._most_of_job

        def counted(blocks: Iterator[bytes]) -> Iterator[bytes]:
            nonlocal left
            for block in blocks:
                with self._lock:
                    self._run += len(block)
                    left -= len(block)
                if left < 0:
                    limit = format_size(self._most_of_job)
                    raise LaneError("collected-limit", f"The job left more than {limit} on its hosts.")
                yield block

        return counted


# The part of a job on one host of a real link: endpoint, monitor container, volumes, and their watchdog.

CONTRACT_PORT = 443  # the UDP port on which every server listens
_MONITOR = "/monitor/monitor.py"
_PYTHON = ("/usr/bin/python3", "-ISB")
LEASE_SECONDS = 90  # seconds without a sign of life; the runner may lose the connection to a host for a minute
_READY_SECONDS = 20.0
_LOOK_SECONDS = 0.25
_ENDED = "monitor ended"  # the line that scripts/capture_and_probe.py prints after SIGTERM
# The script of images would treat the host's first two addresses as addresses of a lane, and change the host's routes.
SETUP_SCRIPT = b"#!/bin/sh\n# A real link: the host has its routes already.\nmkdir -p /logs/qlog\n"
_MONITOR_MEMORY = 1024 * MIB  # bytes
_CUBIC = "cubic"  # the same on all hosts: their defaults may differ
_WIRINGS = 5000  # numbers of the cable's interfaces, above those that Docker uses
_BOX_LOGS = "/box"  # path of the box's /logs in the monitor container
_OFFLOADS = "tx off tso off gso off gro off"
_WIRED_SECONDS = 60.0  # longest time for the wiring, which takes a second on an idle host
LOG = {"Type": "json-file", "Config": {"max-size": "8m", "max-file": "2"}}

MONITOR_RIGHTS = confined(
    _MONITOR_MEMORY,
    capabilities=(*CAPTURING["capabilities"], "NET_BIND_SERVICE"),  # for low ports, too
    ulimits=CAPTURING["ulimits"],
    log_config=QUIET,
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way of the traffic over the link. `gateway`: the address of the server's host. `terminal`: the client's
    address as the server's host sees it. `port`: the TCP and UDP port of the server's host. `server_port`: the port on
    which the server listens in its own network. `forwards`: True when no box takes the traffic; then routers translate
    the server's address."""

    gateway: str
    terminal: str
    port: int
    server_port: int
    forwards: bool


@dataclass(kw_only=True, eq=False)
class LinkEnd:
    """The part of a job on one host. `guard` must be called first, and `open_network` after `start_monitor`. The end is
    removed by `discard`, by its watchdog, or by the next sweep.

    The endpoint is in the host's own network. The endpoint of a routed end has its own network, as in lanes, behind a
    router that may hold a box:

        client ── lan0 router sat0 ── Docker's bridge ══ link ══ Docker's bridge ── sat0 router wan0 ── server

    Then endpoints have the addresses of lanes. The host's routes and interfaces stay unchanged: the router is an
    ordinary container on Docker's bridge, which translates its address and publishes the gateway's port.
    """

    engine: Engine
    host: RemoteHost | None  # None: this host
    notifier: Notifier
    endpoint: Endpoint
    name: str
    collected: Counted
    way: Way
    routed: bool
    receives: bool  # True: the endpoint writes the files to /downloads
    box: Endpoint | None = None  # the middlebox's container at this end, if any; only a routed end may have one
    monitor: Watched | None = None
    _containers: list[str] = field(default_factory=list)
    _inner: Watched | None = None  # keeps the network of a routed end's endpoint, and captures in it
    _router: Watched | None = None

    @property
    def role(self) -> Role:
        """The role of the endpoint."""
        return Role(self.endpoint.role.value)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoint and the box of this host."""
        return (self.endpoint, *self._boxes)

    @property
    def _boxes(self) -> tuple[Endpoint, ...]:
        return () if self.box is None else (self.box,)

    @property
    def captures(self) -> int:
        """The number of captures on this host."""
        return 2 if self.routed else 1

    @property
    def _endpoint_volumes(self) -> tuple[Volume, ...]:
        """/logs and, for the receiver of the files, /downloads. Their files exist as long as the monitor container."""
        names = ("logs", "downloads") if self.receives else ("logs",)
        return tuple(Volume(name=f"{self.name}-{name}", path=f"/{name}") for name in names)

    @property
    def _volumes(self) -> tuple[Volume, ...]:
        """The endpoint's volumes, and /logs of the box."""
        boxes = (Volume(name=f"{self.name}-box-logs", path=_BOX_LOGS) for _ in self._boxes)
        return (*self._endpoint_volumes, *boxes)

    def find_images(self) -> None:
        """Look up the ids of the images on this host. Raises LaneError when an image is missing."""
        for endpoint in self.endpoints:
            endpoint.find(self.engine, writable_root=True)

    def beat(self, number: int) -> None:
        """Send the watchdog a sign of life. A failure is ignored, because the next sign follows soon."""
        with contextlib.suppress(LaneError):
            Engine.put(self.engine, self._watchdog, "/", {"beat": str(number).encode()})

    @property
    def _watchdog(self) -> str:
        return f"{self.name}-watchdog"

    def guard(self, life: float) -> None:
        """Start the watchdog. It removes this end and itself after `life` s, or LEASE_SECONDS without `beat`."""
        which, path = f"name={self.name}-", Path(self.host.docker_socket if self.host else host_engine.SOCKET)
        watchdog = create_watchdog(self.engine, self._watchdog, which, lease=LEASE_SECONDS, path=path, life=life)
        self._containers.append(watchdog)
        self.engine.start(watchdog)

    def _make(self, name: str, spec: ContainerSpec, files: Mapping[str, bytes]) -> str:
        container = self.engine.create(name, spec)
        self._containers.append(container)
        self.engine.put(container, "/", {path.lstrip("/"): content for path, content in files.items()}, mode=0o555)
        return container

    def start_monitor(self, arguments: tuple[str, ...], *, quotas: Mapping[str, int]) -> None:
        """Start scripts/capture_and_probe.py; return when capture and probe work. Quotas in bytes."""
        for volume in self._volumes:
            self.engine.create_volume(volume.name, role=self.role.value, quota=quotas[volume.path])
        self.monitor = self._tools(
            "monitor", arguments, host={**MONITOR_RIGHTS, "network_mode": "host"}, volumes=self._volumes
        )
        self._await(self.monitor, ("listening on", "monitor ready"), "Capture and probe")

    def _tools(
        self,
        part: str,
        arguments: tuple[str, ...],
        *,
        host: Mapping[str, Any],
        volumes: tuple[Volume, ...] = (),
        ports: tuple[tuple[int, str], ...] = (),
    ) -> Watched:
        """Start a container that runs scripts/capture_and_probe.py."""
        spec = ContainerSpec(
            image=TOOLS,
            role=f"{self.role.value}-{part}",
            command=(*_PYTHON, _MONITOR, *arguments),
            volumes=volumes,
            ports=ports,
            host=host,
        )
        container = self._make(f"{self.name}-{part}", spec, {_MONITOR: (SCRIPTS / "capture_and_probe.py").read_bytes()})
        running = Watched(self.engine, container, self.notifier)
        running.start()
        return running

    @property
    def capture_filter(self) -> str:
        """The filter of the captures on the link. A middlebox may send TCP over the link."""
        return f"{'' if self.routed else 'udp '}port {self.way.port}"

    @property
    def _place(self) -> Box:
        return Box.TERMINAL if self.role is Role.CLIENT else Box.GATEWAY

    def open_network(self, *, life: float, token: str) -> None:
        """Make and connect the networks of a routed end, and capture at its endpoint. Raises LaneError."""
        if not self.routed:
            return
        arguments = (str(round(life)), token)
        self._inner = self._tools(
            "inner",
            ("inner", *arguments),
            host={
                **MONITOR_RIGHTS,
                "network_mode": "none",
                "sysctls": NAMESPACE_SETTINGS,
            },
        )
        published = {f"{self.way.port}/{protocol}": self.way.port for protocol in ("tcp", "udp")}
        at_gateway = self._place is Box.GATEWAY
        self._router = self._tools(
            "router",
            ("router", *arguments),
            host={
                **MONITOR_RIGHTS,
                "network_mode": "bridge",
                "sysctls": ROUTER_SETTINGS,
                "port_bindings": published if at_gateway else {},
            },
            ports=((self.way.port, "tcp"), (self.way.port, "udp")) if at_gateway else (),
        )
        address = self._wire()
        ends = (address, self.way.gateway) if self._place is Box.TERMINAL else (self.way.terminal, address)
        for box in self._boxes:
            box.environment |= dict(zip(("TERMINAL_ADDRESS", "GATEWAY_ADDRESS"), ends, strict=True))
            box.environment["LINK_PORT"] = str(self.way.port)
        self._await(self._inner, ("listening on", "monitor ready"), "The capture")

    def _wire(self) -> str:
        """Connect the endpoint's network to the router. Returns the router's address on Docker's bridge."""
        pids = [self.engine.state(keeper.container).pid for keeper in (self._inner, self._router) if keeper is not None]
        script = wiring(self._place, pids[0], pids[1], self.way)
        rights = wiring_container()
        host = {**rights.host, "network_mode": "host", "log_config": QUIET}
        spec = replace(rights, command=("sh", "-c", script), stdin=False, host=host)
        running = Watched(self.engine, self._make(f"{self.name}-plumber", spec, {}), self.notifier)
        running.start()
        self.notifier.wait(lambda: running.ended, timeout=_WIRED_SECONDS)
        printed = self.engine.printed(running.container).strip()
        if running.final is None or running.final.exit_code != 0:
            raise LaneError("not-wired", f"The networks at the {self.role.value} could not be wired.", printed=printed)
        return printed.splitlines()[-1]

    def create_box(self, files: Mapping[str, bytes], *, quota: int) -> None:
        """Create the container of the box, if there is a box, without starting it. `files`: files of the box, such as
        its keys. `quota`: bytes that it may write to its volume."""
        for box in self._boxes:
            assert self._router is not None, "open_network() comes first"
            host = {"network_mode": f"container:{self._router.container}", "log_config": LOG}
            logs = replace(self._volumes[-1], path="/logs")
            container = self._make(f"{self.name}-box", box.container((logs,), quota=quota, host=host), files)
            box.join(self.engine, Watched(self.engine, container, self.notifier))

    def box_ready(self) -> bool:
        """True when the box has reported that it forwards, or there is no box; waits for a second at most."""
        assert self.monitor is not None, "start_monitor() comes first"
        look = look_for(f"{_BOX_LOGS}/ready")
        return all(self.engine.execute(self.monitor.container, look)[0] == 0 for _ in self._boxes)

    def _await(self, monitor: Watched, words: tuple[str, ...], subject: str) -> str:
        """Wait until a container has printed all of `words`. Returns its output."""
        waited = 0.0
        while waited < _READY_SECONDS:
            printed = self.engine.printed(monitor.container)
            if all(word in printed for word in words):
                return printed
            if monitor.ended:
                break
            self.notifier.wait(lambda: monitor.ended, timeout=_LOOK_SECONDS)
            waited += _LOOK_SECONDS
        last_words = self._last_words(monitor)
        raise LaneError("side-failed", f"{subject} at the {self.role.value} failed.", printed=last_words or "no output")

    def _last_words(self, monitor: Watched) -> str:
        """Why capture and probe ended, or the end of their output; empty when the container doesn't exist."""
        try:
            if self.engine.state(monitor.container).exit_code == errno.ENOSPC:
                where = self.host.name if self.host else "this host"
                return f"the disk of {where} is full: make room on it, then resume the run."
            return " ".join(self.engine.printed(monitor.container).splitlines()[-4:])
        except LaneError:
            return ""

    def require_monitor(self) -> None:
        """Raises LaneError `side-died` when capture and probe have ended: the host has then ended the endpoint, too."""
        if self.monitor is None or self.engine.state(self.monitor.container).exit_code is not None:
            last_words = self._last_words(self.monitor) if self.monitor is not None else ""
            if not last_words or _ENDED in last_words:  # another program killed or ended it
                last_words = "was Docker restarted?"
            raise LaneError(
                "side-died", f"Capture and probe at the {self.role.value} ended before the job.", printed=last_words
            )

    def stop_monitor(self) -> str:
        """End all captures and the probe; their volumes stay. Returns their output."""
        printed = ""
        for monitor in filter(None, (self.monitor, self._inner)):
            self.engine.signal(monitor.container, "SIGTERM")
            printed += self._await(monitor, (_ENDED,), "A capture")
        return printed

    def create_endpoint(
        self,
        *,
        files: Mapping[str, bytes],
        hosts: tuple[str, ...],
        volumes: tuple[Volume, ...] = (),
        udp_port: int = CONTRACT_PORT,
        quota: int,
    ) -> None:
        """Create the endpoint's container, without starting it. `quota`: bytes that it may write to its volumes, which
        count as its memory. `hosts`: its host names, `name:address`; a routed end has the names of lanes. When
        `udp_port` is not the port of the contract, a server without a router is in Docker's bridge network, which
        publishes the port."""
        ports: tuple[tuple[int, str], ...] = ()
        host: dict[str, Any] = {"log_config": LOG}
        if self.routed:
            assert self._inner is not None, "open_network() comes first"
            host |= {"network_mode": f"container:{self._inner.container}"}
            named = hosts_file(CLIENT_HOSTS if self.role is Role.CLIENT else SERVER_HOSTS).encode()
            files = {"/etc/hosts": named, **files}
        else:
            # In the host's network namespace, the endpoint has no rights to change the network.
            own = [*hosts, "sim:127.0.0.1"]
            host |= {"network_mode": "host", "extra_hosts": own, "cap_add": list(CAPABILITIES)}
            files = {"/setup.sh": SETUP_SCRIPT, **files}
            if self.role is Role.SERVER and udp_port != CONTRACT_PORT:
                host |= {"network_mode": "bridge", "port_bindings": {f"{CONTRACT_PORT}/udp": udp_port}}
                ports = ((CONTRACT_PORT, "udp"),)
        spec = self.endpoint.container((*self._endpoint_volumes, *volumes), quota=quota, host=host)
        container = self._make(f"{self.name}-endpoint", replace(spec, ports=ports), files)
        self.endpoint.join(self.engine, Watched(self.engine, container, self.notifier))

    @property
    def _inside(self) -> Watched:
        """The container in the endpoint's network from which the endpoint is looked at."""
        inside = self._inner or self.monitor
        assert inside is not None, "the network is made first"
        return inside

    def listens(self, port: int) -> bool:
        """True when a process in the endpoint's network accepts TCP on `port`."""
        return accepts(self.engine.execute(self._inside.container, ["cat", "/proc/net/tcp", "/proc/net/tcp6"])[1], port)

    def wait_until_ready(self, *, timeout: float) -> bool:
        """True when the server answers over QUIC within `timeout` seconds."""
        port, address = (CONTRACT_PORT, SERVER4) if self.routed else (self.way.port, self.way.gateway)
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            command = [*_PYTHON, _MONITOR, "ready", str(max(1, round(left))), "00", str(port), address]
            # The exit code decides, because the engine may lose the output of a very short command.
            if self.engine.execute(self._inside.container, command)[0] == 0:
                return True
        return False

    def archive(self, path: str, *, limit: int) -> Iterator[bytes]:
        """A folder of the volumes, or a file of the monitor container, as tar, at most `limit` bytes."""
        if self.monitor is None:
            raise LaneError("no-side", f"There is no monitor container at the {self.role.value}.")
        return self.collected(self.engine.archive(self.monitor.container, path, limit=limit))

    def endpoint_captures(self, *, limit: int) -> Iterator[Iterator[bytes]]:
        """The capture in the endpoint's own network, if any, as a tar of one pcap. Raises LaneError without it."""
        if self.routed and self._inner is None:
            raise LaneError("no-side", f"There is no capture at the {self.role.value}.")
        for inner in filter(None, (self._inner,)):
            yield self.collected(self.engine.archive(inner.container, "/monitor/capture.pcap", limit=limit))

    def output(self, endpoint: Endpoint) -> str:
        """The output of an endpoint of this end that its log still has."""
        return self.engine.printed(endpoint.running.container) if endpoint.running is not None else ""

    def discard(self) -> None:
        """Remove everything; the watchdog is removed last. Raises LaneError when the engine refuses."""
        for container in reversed(self._containers[1:]):
            self.engine.remove(container)
        for volume in self._volumes:
            self.engine.remove_volume(volume.name)
        for container in self._containers[:1]:
            self.engine.remove(container)


def wiring(place: Box, inner: int, router: int, way: Way) -> str:
    """A shell script that connects an endpoint's network to its router; its last line is the router's address. It runs
    in the host's own network and sees the processes of the host. `inner` and `router` are processes in the two
    networks."""
    inside = f"nsenter --net=/proc/{router}/ns/net"
    hop: Hop = (CLIENT, TERMINAL) if place is Box.TERMINAL else (GATEWAY, SERVER)
    pids = {CLIENT: inner, TERMINAL: router} if place is Box.TERMINAL else {SERVER: inner, GATEWAY: router}
    # The client may have any address: without a box, the server sees the address of the client's host.
    far = {SERVER: routes_via(RIGHT4, RIGHT6, LANE6, "default", controller=_CUBIC)}
    by_role = {role: far.get(role, of_role) for role, of_role in routes([hop], {}).items()}
    return "\n".join(
        (
            "set -eu",
            f"gateway=$({inside} ip -4 route show default | cut -d' ' -f3)",
            f"address=$({inside} ip -4 -o address show eth0 | sed 's/.*inet \\([0-9.]*\\).*/\\1/')",
            f"peer=$({inside} ip -o link show eth0 | sed 's/.*@if\\([0-9]*\\):.*/\\1/')",
            'ours=$(ip -o link | sed -n "s/^$peer: \\([^@:]*\\).*/\\1/p")',
            # Offloads are off at both ends of Docker's cable, so that captures show the packets of the link.
            f"ethtool -K $ours {_OFFLOADS}",
            f"{inside} ip link set eth0 down",
            f"{inside} ip link set eth0 name sat0",
            f"{inside} ip link set sat0 up",
            f"{inside} ip route add default via $gateway dev sat0 congctl {_CUBIC}",
            f"{inside} ethtool -K sat0 {_OFFLOADS}",
            wiring_script(pids, cables([hop]), by_role, before=_WIRINGS),
            f"{inside} sh -euc '{_crossing(place, way)}'",
            "echo $address",
        )
    )


def _crossing(place: Box, way: Way) -> str:
    """Shell commands for the router. Without a box that takes the traffic, the router translates addresses and forwards
    the traffic; otherwise it drops traffic that would bypass the box."""
    if not way.forwards:  # no packet may bypass the box without encryption
        return f"ip route add blackhole {SERVER_NETWORK4 if place is Box.TERMINAL else CLIENT_NETWORK4}"
    ports = "meta l4proto { tcp, udp } th dport"
    if place is Box.TERMINAL:
        rules = _chain("there", "prerouting", f"iifname lan0 ip daddr {SERVER4} {ports} {way.server_port}"
                       f" dnat to {way.gateway}:{way.port}")  # fmt: skip
        rules += _chain("back", "postrouting", "oifname sat0 masquerade")
    else:
        rules = _chain("here", "prerouting", f"iifname sat0 {ports} {way.port} dnat to {SERVER4}:{way.server_port}")
    return f'echo "table ip crossing {{ {rules} }}" | nft -f -'


def _chain(name: str, hook: str, rule: str) -> str:
    priority = "dstnat" if hook == "prerouting" else "srcnat"
    return f"chain {name} {{ type nat hook {hook} priority {priority}; {rule}; }}; "


# One job over a real link. The evidence is written in any case.

CLIENT_START = "client start"  # from this stage on, files may cross the link
BASELINE_SECONDS = 3.0  # seconds before and after the transfer in which the link carries only probes
LINK_PATIENCE_SECONDS = 30.0  # seconds in which a link must come up before the transfer
LIFE_MARGIN = 150.0  # seconds after a job's time-out until the watchdogs end it
_CLIENT_AFTER_SERVER = 6.0  # seconds in which a client must end after the end of its server
_RECENT_PROBES = 15
_LINES = 3  # lines of an endpoint's output in an error message
_BEAT_SECONDS = 20.0
_PROBES = 16 * MIB  # most bytes of the file with the probes' times


@dataclass(kw_only=True)
class OpenLink:
    """A link whose hosts are ready."""

    link: RealLink
    engines: dict[Role, Engine]
    served: Served
    reach: Reach


class RealExperiment(TimedExperiment):
    """A job while it runs. `run` is called once; `discard` removes everything that is left on the hosts."""

    listen_look = 0.25  # longer than in lanes, because SSH may use the link

    def __init__(
        self,
        job: LaneJob,
        opened: OpenLink,
        *,
        box_keys: Mapping[str, bytes],
        collected: Counted,
        notifier: Notifier,
        host: str,
        prefix: str,
    ) -> None:
        """`box_keys`: the files of the boxes' /keys, by name. `host`: the host name of the server in the case's
        URLs."""
        pool = ThreadPoolExecutor(8, thread_name_prefix="real")
        super().__init__(job, served=opened.served, pool=pool, notifier=notifier)
        self._link = link = opened.link
        made = certificates(chain_length=job.chain_length)
        self._certificates = {f"/certs/{name}": content for name, content in made.files().items()}
        self._fingerprints = made.fingerprints
        self._box_keys = {f"/keys/{name}": content for name, content in box_keys.items()}
        routed = is_routed(job)
        self._to = opened.reach.of("server4" if routed else host)
        self._hosts = opened.reach.hosts()
        if routed and self._to.family != 4:
            raise LaneError("no-address", f"{link.name} has no IPv4, over which middleboxes and TCP cross a real link.")
        name = f"{prefix}-{secrets.token_hex(3)}"

        def end(endpoint: Endpoint, at: RemoteHost | None, box: Box) -> LinkEnd:
            return LinkEnd(
                engine=opened.engines[Role(endpoint.role.value)],
                host=at,
                notifier=notifier,
                endpoint=endpoint,
                name=f"{name}-{endpoint.role.value}",
                collected=collected,
                way=self._way(),
                routed=routed,
                receives=endpoint is self._receiver,
                box=self._boxes.get(box),
            )

        self._at_client = end(self._client, link.client, Box.TERMINAL)
        self._at_server = end(self._server, link.server, Box.GATEWAY)
        self._ends = (self._at_client, self._at_server)
        self._printed: dict[str, str] = {}
        self._exchanges: list[ProbeExchange] = []
        self._over = threading.Event()

    def _links(self) -> Sequence[str]:
        return ("sim",)

    def _steps(self) -> list[Step]:
        return [
            ("baseline after", self._probe_after),
            ("server stop", self._stop_server),
            *([("middlebox stop", self._stop_boxes)] if self._job.boxes else []),
            ("captures", self._stop_monitors),
            ("collect", self._collect),
        ]

    def _is_open(self) -> bool:
        return self._at_client.monitor is not None

    def _beat(self) -> None:
        """Send the watchdogs signs of life of this runner."""
        number = 0
        while not self._over.wait(_BEAT_SECONDS):
            number += 1
            for end in self._ends:
                end.beat(number)

    def discard(self) -> None:
        """Remove everything of this job from both hosts. Raises LaneError when a host can't be reached."""
        self._over.set()
        try:
            together(self._pool, *(end.discard for end in self._ends))
        finally:
            self._pool.shutdown(wait=False)

    def _open(self) -> None:
        """Start the watchdogs, then captures and probes; make the endpoints; then probe the idle link for a while."""
        job, link = self._job, self._link
        life = job.timeout + LIFE_MARGIN
        quotas = {"/logs": job.limits.logs, "/box": job.limits.logs, "/downloads": downloads_quota(job.required_files)}
        token, probe = secrets.token_hex(16), str(link.probe_port)
        common = (str(round(life)), token, probe)
        with self._stages.stage("watchdogs"):
            for end in self._ends:
                end.find_images()
            together(self._pool, *(lambda member=member: member.guard(life) for member in self._ends))
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
        with self._stages.stage("captures and probes"):
            interfaces, filter_text = self._interfaces(), self._at_client.capture_filter
            answering = (interfaces["server"], filter_text, str(link.udp_port))
            self._at_server.start_monitor(("server", *common, *answering), quotas=quotas)
            asking = (interfaces["client"], filter_text, self._to.address, f"{probe_period(link):.4f}")
            self._at_client.start_monitor(("client", *common, *asking), quotas=quotas)
            began = time.monotonic()
        with self._stages.stage("networks"):
            together(
                self._pool,
                *(lambda member=member: member.open_network(life=life, token=token) for member in self._ends),
            )
        with self._stages.stage("endpoints"):
            together(
                self._pool,
                lambda: self._create(self._at_client, quotas),
                lambda: self._create(self._at_server, quotas),
            )
        with self._stages.stage("baseline"):
            left = BASELINE_SECONDS + (self._to.rtt or 0.0) - (time.monotonic() - began)
            self._notifier.wait(lambda: False, timeout=max(0.0, left))
            self._require_link()

    def _require_link(self) -> None:
        """Wait up to LINK_PATIENCE_SECONDS for a link that is down. Raises LaneError `link` when it doesn't come up."""
        deadline = time.monotonic() + LINK_PATIENCE_SECONDS
        while True:
            self._copy_probes()
            if any(exchange.rtt is not None for exchange in self._exchanges[-_RECENT_PROBES:]):
                return
            if time.monotonic() > deadline:
                sent = len(self._exchanges)
                raise LaneError(LINK_DOWN, f"{self._link.name}: none of {sent} probes was answered before the transfer")
            self._notifier.wait(lambda: False, timeout=BASELINE_SECONDS)

    def _create(self, end: LinkEnd, quotas: Mapping[str, int]) -> None:
        end.create_endpoint(
            files=self._certificates,
            hosts=self._hosts,
            volumes=() if end.receives else (self._served.www(self._job.files),),
            udp_port=self._link.udp_port,
            quota=sum(quotas.values()),
        )
        posing = self._certificates if self._job.topology.poses_as_server else {}
        end.create_box({**self._box_keys, **posing}, quota=quotas["/box"])

    def _box_ready(self, box: Box) -> bool:
        return self._end_of(self._boxes[box]).box_ready()

    def _answers_quic(self) -> bool:
        return self._at_server.wait_until_ready(timeout=SERVER_READY_SECONDS)

    def _listens(self, port: int) -> bool:
        return self._at_server.listens(port)

    def _last_lines(self, endpoint: Endpoint) -> str:
        return "\n".join(self._end_of(endpoint).output(endpoint).splitlines()[-_LINES:])

    def _end_of(self, endpoint: Endpoint) -> LinkEnd:
        return next(end for end in self._ends if endpoint in end.endpoints)

    def _run_client(self) -> None:
        client, server, monitor = self._client.watched, self._server.watched, self._at_client.monitor
        assert monitor is not None, "_open() comes first"
        with self._stages.stage(CLIENT_START):
            self._client.start()
        with self._stages.stage("transfer"):

            def broken() -> bool:
                return server.ended or monitor.ended or any(box.watched.ended for box in self._boxes.values())

            self._notifier.wait(lambda: client.ended or broken(), timeout=self._job.timeout)
            if server.ended and not client.ended:
                self._notifier.wait(lambda: client.ended, timeout=_CLIENT_AFTER_SERVER)
            if not client.ended:
                self._client.stopped_by_us |= broken()
                self._client.timed_out = not self._client.stopped_by_us
                client.kill()
            for end in self._ends:
                end.require_monitor()
            self._require_boxes()

    def _require_boxes(self) -> None:
        """Raises LaneError when a box ended before the client."""
        for box, endpoint in self._boxes.items():
            if endpoint.watched.ended and self._client.stopped_by_us:
                printed = self._last_lines(endpoint)
                raise LaneError(f"{box.value}-ended", f"The {box.value} ended early.", printed=printed)

    def _probe_after(self) -> None:
        self._notifier.wait(lambda: False, timeout=BASELINE_SECONDS + 1.5 * (self._to.rtt or 0.0))

    def _stop_monitors(self) -> None:
        printed = [end.stop_monitor() for end in self._ends]
        self._capture_drops = sum(
            capture_drops(text, end.captures) for end, text in zip(self._ends, printed, strict=True)
        )

    def _collect(self) -> None:
        """Copy captures, probes and the endpoints' files; compare the downloads."""
        together(
            self._pool,
            lambda: self._copy_capture(self._at_client, "left.pcap"),
            lambda: self._copy_capture(self._at_server, "right.pcap"),
            self._copy_probes,
            *(lambda endpoint=endpoint: self._copy_printed(endpoint) for endpoint in self._endpoints),
            *(lambda end=end: self._copy_endpoint_captures(end) for end in self._ends),
            self._compare_downloads,
        )

    def _copy_capture(self, end: LinkEnd, name: str) -> None:
        blocks = end.archive("/monitor/capture.pcap", limit=CAPTURE_LIMIT)
        path = self._job.folder / "sim" / name
        collect.extract_file(blocks, path, budget=CAPTURE_LIMIT)
        where = end.role.value
        require_datagrams(path, where=where, interface=self._interfaces()[where])

    def _copy_endpoint_captures(self, end: LinkEnd) -> None:
        role = end.role.value
        path = self._job.folder / role / f"{role}.pcap"
        for blocks in end.endpoint_captures(limit=CAPTURE_LIMIT):
            collect.extract_file(blocks, path, budget=CAPTURE_LIMIT)

    def _way(self) -> Way:
        """The way of the traffic over the link."""
        box = self._job.topology.middlebox
        return Way(
            gateway=self._to.address,
            terminal=self._to.client,
            port=self._link.udp_port,
            server_port=self._job.server_port or CONTRACT_PORT,
            forwards=box is None or box.forwards,
        )

    def _interfaces(self) -> dict[str, str]:
        return {"client": self._to.interface, "server": self._link.server_interface or self._to.server_interface}

    def _copy_probes(self) -> None:
        path = self._job.folder / "sim" / "probes.txt"
        blocks = self._at_client.archive("/monitor/probes.txt", limit=_PROBES)
        collect.extract_file(blocks, path, budget=_PROBES)
        self._exchanges = settled(parse_probes(path.read_text(errors="replace")))

    def _copy_printed(self, endpoint: Endpoint) -> None:
        self._printed[endpoint.role.value] = self._end_of(endpoint).output(endpoint)
        self._copy_logs(endpoint)

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        end = self._end_of(endpoint)
        limit = downloads_quota(self._job.required_files) if path == "/downloads" else self._job.limits.logs
        return end.archive(_BOX_LOGS if endpoint in self._boxes.values() else path, limit=limit)

    def _outputs(self) -> dict[str, str]:
        return dict(sorted(self._printed.items()))

    def _evidence(self) -> Evidence:
        client = self._client.running
        observed = judge(self._exchanges, client.final if client is not None else None)
        if observed.problem and (not self._error or self._error["code"] in (LINK_DOWN, "host-lost", "side-failed")):
            self._error = {"code": LINK_DOWN, "message": f"{self._link.name}: {observed.problem}"}
        self._client.clock_ahead = observed.clock.offset if observed.clock is not None else 0.0
        evidence = super()._evidence()
        server_is_here = self._link.server is None
        return replace(
            evidence,
            host_steal=evidence.host_steal if server_is_here else 0.0,
            cpu_pressure=evidence.cpu_pressure if server_is_here else None,
            real_link=RealLinkEvidence(
                name=self._link.name,
                server_address=self._to.address,
                family=self._to.family,
                interface=self._to.interface,
                udp_port=self._link.udp_port,
                translated=self._to.client != self._to.local if self._to.client and self._to.local else None,
                clock=observed.clock,
                before=observed.before,
                during=observed.during,
                after=observed.after,
                probe_data_rate=8 * (PROBE_BYTES + (20 if self._to.family == 6 else 0)) / probe_period(self._link),
                comment=self._link.comment,
            ),
        )


def is_routed(job: LaneJob) -> bool:
    """True when the endpoints need their own networks: for a middlebox, and for TCP, because a host's network card
    would join TCP segments before they are captured."""
    return job.topology.middlebox is not None or job.server_port is not None


def url_port(job: LaneJob, link: RealLink) -> int:
    """The server's UDP port in URLs: a router translates the port of the link."""
    return CONTRACT_PORT if is_routed(job) else link.udp_port
