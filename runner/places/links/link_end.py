"""The part of a job on one host of a real link: endpoint, router, side container, volumes, copied bytes."""

import contextlib
import errno
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.engine.containers import WATCHDOG_ROLE, ContainerSpec, Engine, Volume
from runner.errors import HostRefusedError, LaneError
from runner.model.link import CLIENT, GATEWAY, SERVER, TERMINAL, Hop, RemoteHost
from runner.model.stack import Box, Role
from runner.places.experiment import CAPABILITIES, Endpoint
from runner.places.lanes.lane import accepts, look_for
from runner.places.network import (
    CLIENT_HOSTS,
    CLIENT_NETWORK4,
    LANE6,
    RIGHT4,
    RIGHT6,
    SERVER4,
    SERVER_HOSTS,
    SERVER_NETWORK4,
    cables,
    hosts_file,
    routes,
    routes_via,
    wiring_script,
)
from runner.places.supervised import (
    CAPTURE_LIMIT,
    NAMESPACE_SETTINGS,
    ROUTER_SETTINGS,
    TOOLS,
    Bell,
    Watched,
    bounded,
    plumber,
)
from runner.units import MIB, format_size

# Counts the bytes that jobs copy from other hosts: a hostile host must not fill this host's disk.

MOST_OF_JOB = 2048 * MIB  # most bytes of one job; a transfer of 100 MB with four captures needs a fifth of it
MOST_OF_RUN = 100 * 1024 * MIB  # most bytes of one call


class Collected:
    """The bytes of one call, over all of its links. Thread-safe."""

    def __init__(self, *, most_of_job: int = MOST_OF_JOB, most_of_run: int = MOST_OF_RUN) -> None:
        self._most_of_job, self._most_of_run = most_of_job, most_of_run
        self._lock = threading.Lock()
        self._run = 0

    def job(self) -> "CollectedOfJob":
        """A counter for a job that begins now. Raises HostRefusedError when the call has reached its limit."""
        if self._run >= self._most_of_run:
            raise HostRefusedError(
                f"This call has copied {format_size(self._run)} from other hosts, and its limit is "
                f"{format_size(self._most_of_run)}: look at the files that the jobs left there; the same command then "
                "continues the run."
            )
        return CollectedOfJob(self, self._most_of_job)

    def add(self, size: int) -> None:
        """Count bytes of any job."""
        with self._lock:
            self._run += size


class CollectedOfJob:
    """The bytes of one job, from both of its hosts. Thread-safe."""

    def __init__(self, run: Collected, most: int) -> None:
        self._run, self._left = run, most
        self._most = most
        self._lock = threading.Lock()

    def counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yields and counts the blocks. Raises LaneError `collected-limit` when the job has copied too much."""
        for block in blocks:
            self._run.add(len(block))
            with self._lock:
                self._left -= len(block)
            if self._left < 0:
                raise LaneError("collected-limit", f"The job left more than {format_size(self._most)} on its hosts.")
            yield block


# The part of a job on one host of a real link: endpoint, side container, volumes, and their watchdog.

CONTRACT_PORT = 443  # the UDP port on which every server listens
SCRIPTS = Path(__file__).parents[1] / "scripts"
_SIDE, _WATCHDOG = "/side/side.py", "/watchdog.py"
_PYTHON = ("/usr/bin/python3", "-ISB")
LEASE_SECONDS = 90  # seconds without a sign of life; the runner may lose the connection to a host for a minute
_READY_SECONDS = 20.0
_LOOK_SECONDS = 0.25
_ENDED = "side ended"  # the line that scripts/capture_and_probe.py prints after SIGTERM
# The script of images would treat the host's first two addresses as addresses of a lane, and change the host's routes.
SETUP_SCRIPT = b"#!/bin/sh\n# A real link: the host has its routes already.\nmkdir -p /logs/qlog\n"
_WATCHDOG_MEMORY, _SIDE_MEMORY = 128 * MIB, 1024 * MIB  # bytes
LOG = {"Type": "json-file", "Config": {"max-size": "8m", "max-file": "2"}}
QUIET = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}}

SIDE_RIGHTS: dict[str, Any] = {
    "cap_drop": ["ALL"],
    "cap_add": ["NET_RAW", "SETUID", "SETGID", "NET_BIND_SERVICE"],  # for `tcpdump -Z root` and low ports
    "security_opt": ["no-new-privileges"],
    "pids_limit": 64,
    **bounded(_SIDE_MEMORY),
    "ulimits": [{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
    "log_config": QUIET,
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way of the traffic over the link. `gateway`: the address of the server's host. `terminal`: the client's
    address as the server's host sees it. `port`: the TCP and UDP port of the server's host. `server_port`: the port on
    which the server listens in its own network. `forwards`: True when no box takes the traffic; then routers translate
    the server's address.
    """

    gateway: str
    terminal: str
    port: int
    server_port: int
    forwards: bool


class LinkEnd:
    """The part of a job on one host, whose endpoint is in the host's own network. `guard` must be called first. The
    end is removed by `discard`, by its watchdog, or by the next sweep."""

    captures = 1  # number of captures on this host
    families: tuple[int, ...] = (4, 6)  # address families over which jobs cross the link

    def __init__(
        self,
        engine: Engine,
        host: RemoteHost | None,
        bell: Bell,
        *,
        endpoint: Endpoint,
        name: str,
        collected: CollectedOfJob,
        way: Way,
        box: Endpoint | None = None,
    ) -> None:
        """`box`: the middlebox's container at this end, if any."""
        self.engine = engine
        self._collected = collected
        self._way = way
        self.endpoint = endpoint
        self.role = endpoint.role
        self.name = f"{name}-{self.role.value}"
        self.side: Watched | None = None
        self._host = host.name if host is not None else "this host"
        self._docker_socket = host.docker_socket if host is not None else "/var/run/docker.sock"
        self._bell = bell
        self._containers: list[str] = []
        self._boxes = (box,) if box is not None else ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoint and the box of this host."""
        return (self.endpoint, *self._boxes)

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """/logs and, for a client, /downloads. Their files exist as long as the side container."""
        names = ("logs", "downloads") if self.role is Role.CLIENT else ("logs",)
        return tuple(Volume(name=f"{self.name}-{name}", path=f"/{name}") for name in names)

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

    def _names(self) -> list[str]:
        return [f"{self.name}-{part}" for part in self._parts()] + [f"volume:{volume.name}" for volume in self.volumes]

    def _parts(self) -> tuple[str, ...]:
        """The suffixes of the names of all containers except the watchdog."""
        return ("endpoint", "side")

    def guard(self, life: float) -> None:
        """Start the watchdog. It removes this end and itself after `life` seconds, or after LEASE_SECONDS without a
        call of `beat`."""
        watchdog = self._watchdog
        spec = ContainerSpec(
            image=TOOLS,
            role=WATCHDOG_ROLE,
            command=(*_PYTHON, _WATCHDOG, str(round(life)), str(LEASE_SECONDS), watchdog, *self._names()),
            host={
                "network_mode": "none",
                "binds": [f"{self._docker_socket}:/docker.sock"],
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "pids_limit": 16,
                **bounded(_WATCHDOG_MEMORY),
                "restart_policy": {"Name": "unless-stopped"},  # a restart of the engine only ends the job
                "log_config": QUIET,
            },
        )
        self._make(watchdog, spec, {_WATCHDOG: (SCRIPTS / "host_watchdog.py").read_bytes()})
        self.engine.start(watchdog)

    def _make(self, name: str, spec: ContainerSpec, files: Mapping[str, bytes], *, mode: int = 0o555) -> str:
        container = self.engine.create(name, spec)
        self._containers.append(container)
        self.engine.put(container, "/", {path.lstrip("/"): content for path, content in files.items()}, mode=mode)
        return container

    def start_side(self, arguments: tuple[str, ...], *, quotas: Mapping[str, int]) -> None:
        """Start capture and probe, with arguments for scripts/capture_and_probe.py. Returns when both work. Quotas in
        bytes."""
        for volume in self.volumes:
            self.engine.create_volume(volume.name, role=self.role.value, quota=quotas[volume.path])
        self.side = self._tools("side", arguments, host={**SIDE_RIGHTS, "network_mode": "host"}, volumes=self.volumes)
        self._await(self.side, ("listening on", "side ready"), "Capture and probe")

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
            command=(*_PYTHON, _SIDE, *arguments),
            volumes=volumes,
            ports=ports,
            host=host,
        )
        container = self._make(f"{self.name}-{part}", spec, {_SIDE: (SCRIPTS / "capture_and_probe.py").read_bytes()})
        running = Watched(self.engine, container, self._bell)
        running.start()
        return running

    @staticmethod
    def host_name(host: str) -> str:
        """The host name whose address on the link is used for jobs with the host name `host` in their URLs."""
        return host

    @staticmethod
    def url_port(port: int) -> int:
        """The server's UDP port in URLs. `port`: the UDP port on the link."""
        return port

    @property
    def capture_filter(self) -> str:
        """The filter of the captures on the link."""
        return f"udp port {self._way.port}"

    def open_network(self, *, life: float, token: str) -> None:
        """Make the endpoint's own network, if it has one. Raises LaneError."""

    def create_box(self, files: Mapping[str, bytes], *, quota: int) -> None:
        """Create the container of the box, if there is a box, without starting it. `files`: files of the box, such as
        its keys. `quota`: bytes that it may write to its volume."""

    def box_ready(self) -> bool:
        """True when the box has reported that it forwards traffic, or when there is no box; waits for a second at
        most."""
        return True

    def _await(self, side: Watched, words: tuple[str, ...], subject: str) -> str:
        """Wait until a container has printed all of `words`. Returns its output."""
        waited = 0.0
        while waited < _READY_SECONDS:
            printed = self.engine.printed(side.container)
            if all(word in printed for word in words):
                return printed
            if side.ended:
                break
            self._bell.wait(lambda: side.ended, timeout=_LOOK_SECONDS)
            waited += _LOOK_SECONDS
        last_words = self._last_words(side)
        raise LaneError("side-failed", f"{subject} at the {self.role.value} failed.", printed=last_words or "no output")

    def _await_end(self, side: Watched) -> str:
        return self._await(side, (_ENDED,), "A capture")

    def _last_words(self, side: Watched) -> str:
        """Why capture and probe ended, or the end of their output; empty when the container doesn't exist."""
        try:
            if self.engine.state(side.container).exit_code == errno.ENOSPC:
                return f"the disk of {self._host} is full: make room on it, then resume the run."
            return " ".join(self.engine.printed(side.container).splitlines()[-4:])
        except LaneError:
            return ""

    def require_side(self) -> None:
        """Raises LaneError `side-died` when capture and probe have ended: the host has then ended the endpoint, too."""
        if self.side is None or self.engine.state(self.side.container).exit_code is not None:
            last_words = self._last_words(self.side) if self.side is not None else ""
            if not last_words or _ENDED in last_words:  # another program killed or ended it
                last_words = "was Docker restarted?"
            raise LaneError(
                "side-died", f"Capture and probe at the {self.role.value} ended before the job.", printed=last_words
            )

    def stop_side(self) -> str:
        """End capture and probe; their volumes stay. Returns their output."""
        assert self.side is not None, "start_side() comes first"
        self.engine.signal(self.side.container, "SIGTERM")
        return self._await_end(self.side)

    def create_endpoint(
        self,
        *,
        files: Mapping[str, bytes],
        hosts: tuple[str, ...],
        volumes: tuple[Volume, ...] = (),
        udp_port: int = CONTRACT_PORT,
        quota: int,
    ) -> None:
        """Create the endpoint's container, without starting it. `hosts`: its host names, `name:address`. `quota`: bytes
        that it may write to its volumes, which count as its memory. When `udp_port` is not the port of the contract,
        the server is in Docker's bridge network, which publishes the port.
        """
        # In the host's network namespace, the endpoint has no rights to change the network.
        host: dict[str, Any] = {
            "network_mode": "host",
            "extra_hosts": [*hosts, "sim:127.0.0.1"],
            "cap_add": list(CAPABILITIES),
            "log_config": LOG,
        }
        ports: tuple[tuple[int, str], ...] = ()
        if self.role is Role.SERVER and udp_port != CONTRACT_PORT:
            host |= {"network_mode": "bridge", "port_bindings": {f"{CONTRACT_PORT}/udp": udp_port}}
            ports = ((CONTRACT_PORT, "udp"),)
        spec = self.endpoint.container((*self.volumes, *volumes), quota=quota, host=host)
        container = self._make(
            f"{self.name}-endpoint", replace(spec, ports=ports), {"/setup.sh": SETUP_SCRIPT, **files}
        )
        self.endpoint.join(self.engine, Watched(self.engine, container, self._bell))

    def _server_at(self) -> tuple[int, str]:
        """The server's UDP port and address, as the container of `_ready_from` sees them."""
        return self._way.port, self._way.gateway

    def listens(self, port: int) -> bool:
        """True when a process in the endpoint's network accepts TCP on `port`."""
        inside = self._ready_from()
        assert inside is not None, "the network is made first"
        return accepts(self.engine.execute(inside.container, ["cat", "/proc/net/tcp", "/proc/net/tcp6"])[1], port)

    def wait_until_ready(self, *, timeout: float) -> bool:
        """True when the server answers over QUIC within `timeout` seconds."""
        port, address = self._server_at()
        there = self._ready_from()
        assert there is not None, "start_side() comes first"
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            command = [*_PYTHON, _SIDE, "ready", str(max(1, round(left))), "00", str(port), address]
            # The exit code decides, because the engine may lose the output of a very short command.
            if self.engine.execute(there.container, command)[0] == 0:
                return True
        return False

    def _ready_from(self) -> Watched | None:
        """The container in the endpoint's network that sends packets to the server until the server answers."""
        return self.side

    def archive(self, path: str, *, limit: int) -> Iterator[bytes]:
        """A folder of the volumes, or a file of the side container, as tar, at most `limit` bytes."""
        if self.side is None:
            raise LaneError("no-side", f"There is no side container at the {self.role.value}.")
        return self._collected.counted(self.engine.archive(self.side.container, path, limit=limit))

    def path_of(self, endpoint: Endpoint, path: str) -> str:  # noqa: ARG002 - for ends with several endpoints
        """The path in the side container of the folder `path` of an endpoint."""
        return path

    def endpoint_captures(self, *, limit: int) -> Iterator[Iterator[bytes]]:  # noqa: ARG002 - for other networks
        """Captures at the endpoint in addition to the capture on the link, each as a tar of one pcap file of at most
        `limit` bytes."""
        return iter(())

    def output(self, endpoint: Endpoint) -> str:
        """The output of an endpoint of this end that its log still has."""
        return self.engine.printed(endpoint.running.container) if endpoint.running is not None else ""

    def discard(self) -> None:
        """Remove everything; the watchdog is removed last. Raises LaneError when the engine refuses."""
        for container in reversed(self._containers[1:]):
            self.engine.remove(container)
        for volume in self.volumes:
            self.engine.remove_volume(volume.name)
        for container in self._containers[:1]:
            self.engine.remove(container)


# An end whose endpoint has its own network, as in lanes, behind a router that may hold a box.
#
# client ── lan0 router sat0 ── bridge of Docker, host ══ link ══ host, bridge of Docker ── sat0 router wan0 ── server
#
# Endpoints have the addresses of lanes. The host's routes and interfaces stay unchanged: the router is an ordinary
# container on Docker's bridge, which translates its address and publishes the gateway's port.

_CUBIC = "cubic"  # the same on all hosts: their defaults may differ
_WIRINGS = 5000  # numbers of the cable's interfaces, above those that Docker uses
_BOX_LOGS = "/box"  # path of the box's /logs in the side container
_OFFLOADS = "tx off tso off gso off gro off"
_WIRED_SECONDS = 60.0  # longest time for the wiring, which takes a second on an idle host


class RoutedEnd(LinkEnd):
    """Call `open_network` after `start_side`."""

    captures = 2
    families = (4,)

    _inner: Watched | None = None
    _router: Watched | None = None

    @property
    def _place(self) -> Box:
        return Box.TERMINAL if self.role is Role.CLIENT else Box.GATEWAY

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The endpoint's volumes; with a box, also /logs of the box."""
        return (*super().volumes, *(Volume(name=f"{self.name}-box-logs", path=_BOX_LOGS) for _ in self._boxes))

    @staticmethod
    def host_name(host: str) -> str:  # noqa: ARG004 - the endpoints' own network has the names of lanes
        return "server4"

    @staticmethod
    def url_port(port: int) -> int:  # noqa: ARG004 - the router translates the port
        return CONTRACT_PORT

    @property
    def capture_filter(self) -> str:
        return f"port {self._way.port}"  # a middlebox may send TCP over the link

    def _parts(self) -> tuple[str, ...]:
        return ("box", *super()._parts(), "plumber", "router", "inner")

    def open_network(self, *, life: float, token: str) -> None:
        """Make and connect the networks of endpoint and router, and start the capture at the endpoint. Raises
        LaneError."""
        arguments = (str(round(life)), token)
        self._inner = self._tools(
            "inner",
            ("inner", *arguments),
            host={
                **SIDE_RIGHTS,
                "network_mode": "none",
                "sysctls": NAMESPACE_SETTINGS,
            },
        )
        published = {f"{self._way.port}/{protocol}": self._way.port for protocol in ("tcp", "udp")}
        at_gateway = self._place is Box.GATEWAY
        self._router = self._tools(
            "router",
            ("router", *arguments),
            host={
                **SIDE_RIGHTS,
                "network_mode": "bridge",
                "sysctls": ROUTER_SETTINGS,
                "port_bindings": published if at_gateway else {},
            },
            ports=((self._way.port, "tcp"), (self._way.port, "udp")) if at_gateway else (),
        )
        address = self._wire()
        ends = (address, self._way.gateway) if self._place is Box.TERMINAL else (self._way.terminal, address)
        for box in self._boxes:
            box.environment |= dict(zip(("TERMINAL_ADDRESS", "GATEWAY_ADDRESS"), ends, strict=True))
            box.environment["LINK_PORT"] = str(self._way.port)
        self._await(self._inner, ("listening on", "side ready"), "The capture")

    def _wire(self) -> str:
        """Connect the endpoint's network to the router. Returns the router's address on Docker's bridge."""
        pids = [self.engine.state(holder.container).pid for holder in (self._inner, self._router) if holder is not None]
        script = wiring(self._place, pids[0], pids[1], self._way)
        rights = plumber()
        host = {**rights.host, "network_mode": "host", "log_config": QUIET}
        spec = replace(rights, command=("sh", "-c", script), stdin=False, host=host)
        running = Watched(self.engine, self._make(f"{self.name}-plumber", spec, {}), self._bell)
        running.start()
        self._bell.wait(lambda: running.ended, timeout=_WIRED_SECONDS)
        printed = self.engine.printed(running.container).strip()
        if running.final is None or running.final.exit_code != 0:
            raise LaneError("not-wired", f"The networks at the {self.role.value} could not be wired.", printed=printed)
        return printed.splitlines()[-1]

    def create_endpoint(
        self,
        *,
        files: Mapping[str, bytes],
        hosts: tuple[str, ...],  # noqa: ARG002 - its network has the names of lanes
        volumes: tuple[Volume, ...] = (),
        udp_port: int = 0,  # noqa: ARG002 - the router publishes the port
        quota: int,
    ) -> None:
        """Create the endpoint's container in its own network, without starting it. `quota`: bytes of its volumes."""
        assert self._inner is not None, "open_network() comes first"
        host = {"network_mode": f"container:{self._inner.container}", "log_config": LOG}
        spec = self.endpoint.container((*super().volumes, *volumes), quota=quota, host=host)
        named = hosts_file(CLIENT_HOSTS if self.role is Role.CLIENT else SERVER_HOSTS).encode()
        container = self._make(f"{self.name}-endpoint", spec, {"/etc/hosts": named, **files})
        self.endpoint.join(self.engine, Watched(self.engine, container, self._bell))

    def create_box(self, files: Mapping[str, bytes], *, quota: int) -> None:
        assert self._router is not None, "open_network() comes first"
        host = {"network_mode": f"container:{self._router.container}", "log_config": LOG}
        logs = replace(self.volumes[-1], path="/logs")
        for box in self._boxes:
            container = self._make(f"{self.name}-box", box.container((logs,), quota=quota, host=host), files)
            box.join(self.engine, Watched(self.engine, container, self._bell))

    def box_ready(self) -> bool:
        assert self.side is not None, "start_side() comes first"
        look = look_for(f"{_BOX_LOGS}/ready")
        return all(self.engine.execute(self.side.container, look)[0] == 0 for _ in self._boxes)

    def path_of(self, endpoint: Endpoint, path: str) -> str:
        return _BOX_LOGS if endpoint in self._boxes else path

    def endpoint_captures(self, *, limit: int) -> Iterator[Iterator[bytes]]:
        """The capture in the endpoint's own network. Raises LaneError without a capture."""
        if self._inner is None:
            raise LaneError("no-side", f"There is no capture at the {self.role.value}.")
        archive = self.engine.archive(self._inner.container, "/side/capture.pcap", limit=limit)
        return iter((self._collected.counted(archive),))

    def stop_side(self) -> str:
        """End all captures and the probe. Returns their output."""
        printed = super().stop_side()
        if self._inner is None:
            return printed
        self.engine.signal(self._inner.container, "SIGTERM")
        return printed + self._await_end(self._inner)

    def _ready_from(self) -> Watched | None:
        return self._inner

    def _server_at(self) -> tuple[int, str]:
        return CONTRACT_PORT, SERVER4


def wiring(place: Box, inner: int, router: int, way: Way) -> str:
    """A shell script that connects an endpoint's network to its router; its last line is the router's address.

    It runs in the host's own network and sees the processes of the host. `inner` and `router` are processes in the two
    networks.
    """
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
