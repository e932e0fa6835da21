"""What runs jobs, and the description of a job for a lane, a guest or the hosts of a real link, made from the run's
record, with its network: addresses (docs/contract.md), cables, routes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner.inputs.inputs import ServedFile, environment, flood_limit, load, request_urls, served_files
from runner.model.link import (
    CLIENT,
    GATEWAY,
    GROUND,
    SATELLITE,
    SERVER,
    TERMINAL,
    Hop,
    LinkParameters,
    SegmentRecord,
    Topology,
)
from runner.model.run import CaseRecord, ClientKind, Job, Run, job_seed
from runner.model.stack import KERNEL_CONTROLLERS, BesideFlow, BesideRole, Box, Middlebox, Role, transport_of
from runner.units import MIB

# A place where jobs run, as the loop over jobs sees it.


class Deployment(ABC):
    """A place where jobs run: lanes of this host, guests, real links, or the replay of recorded jobs. The campaign has
    numbered lanes, each of which runs one job at a time. Methods are called from many threads."""

    @abstractmethod
    def run(self, job: Job, folder: Path, *, attempt: int) -> object:
        """Run `job` and write its artifacts to `folder`, `evidence.json` as the last file. `attempt` counts from 1.
        Raises LaneError when the harness can't run the job. After a BudgetError or a HostRefusedError, this lane ends
        and the other lanes continue."""

    @abstractmethod
    def stop(self) -> None:
        """Make running jobs end soon."""

    def lane_of(self, job: Job) -> int | None:  # noqa: ARG002 - for deployments whose lanes differ
        """The only lane that may run `job`; None when every lane may run it."""
        return None

    def resting(self, lane: int) -> str:  # noqa: ARG002 - for deployments whose lanes differ
        """Why the lane starts no job now, and until when, as a sentence. Empty when the lane may start jobs."""
        return ""


# Shell scripts that lay cables between the network namespaces of a lane, with addresses and routes.

LOOKED = "bentpipe: looked"
_FIRST_INDEX = 10  # first number of an interface; 1 is the loopback interface
_LOOKS = 300  # number of waits of 10 ms


@dataclass(frozen=True)
class End:
    """One end of a cable, an interface in the namespace of `role`."""

    role: str
    name: str
    mac: str
    ipv4: str
    ipv6: str


Cable = tuple[End, End]


@dataclass(frozen=True)
class Route:
    """A route in the namespace of a role. Without `gateway` it changes the existing on-link route of `interface`.
    `controller`: TCP's congestion controller; empty: the namespace's default."""

    network: str
    gateway: str = ""
    interface: str = ""
    controller: str = ""

    def command(self) -> str:
        """A command of `ip -batch`."""
        controller = f" congctl {self.controller}" if self.controller else ""
        if self.gateway:
            return f"route add {self.network} via {self.gateway}{controller}"
        return f"route change {self.network} dev {self.interface}{controller}"


def wiring_script(
    pids: Mapping[str, int], cables: Sequence[Cable], routes: Mapping[str, Sequence[Route]], *, before: int = 0
) -> str:
    """A shell script that wires a lane. It runs in the wiring container, which sees the host's processes. `routes`: the
    routes by role; simulators have no routes, because they forward frames. `before`: how often the same namespaces were
    wired before; the numbers of interfaces depend on it, so that the captures recognise a new cable."""
    lines = ["set -eu"]
    # All ends have different numbers: Linux treats an end with the number of its peer as a device without a lower
    # device, and updates its carrier at most once a second. Until then, packets that the end sends are dropped.
    first = _FIRST_INDEX + 2 * len(cables) * before
    for number, (near, far) in zip(count(first, 2), cables, strict=False):
        # Both ends are made directly in their namespaces.
        lines.append(
            f"ip link add {near.name} index {number} netns {pids[near.role]} address {near.mac} type veth"
            f" peer name {far.name} index {number + 1} netns {pids[far.role]} address {far.mac}"
        )
    for role, pid in pids.items():
        ends = [end for cable in cables for end in cable if end.role == role]
        lines.append(_inside(pid, ends, routes.get(role, ())))
    lines += [_until_up(role, pid) for role, pid in pids.items()]
    return "\n".join(lines)


def renewal_script(pids: Mapping[str, int], folders: Mapping[str, Sequence[str]]) -> str:
    """A shell script that removes the cables of a used lane and empties its volumes. `folders`: mount points of the
    volumes in the keepers, by role. The containers of the job must have been removed."""
    lines = ["set -eu"]
    for role, pid in pids.items():
        # A job may have removed eth0. `look_script` checks afterwards whether the namespace is as before.
        inside = "ip link delete eth0; ip tcp_metrics flush" if role != SATELLITE else "ip tcp_metrics flush"
        lines.append(f"nsenter --net=/proc/{pid}/ns/net sh -c '{inside}' > /dev/null 2>&1 || true")
        lines += [f"find /proc/{pid}/root{folder} -mindepth 1 -delete" for folder in folders[role]]
    lines.append(f"kill -USR1 {pids[SERVER]}")
    return "\n".join(lines)


def look_script(pids: Mapping[str, int], folders: Mapping[str, Sequence[str]]) -> str:
    """A shell script that prints what jobs may have left in a lane without cables, and then `LOOKED`."""
    lines = [f"left-behind {pids[role]} {' '.join(folders[role])}" for role in (CLIENT, SERVER)]
    return "\n".join((*lines, f"echo {LOOKED}"))


def routes_via(gateway4: str, gateway6: str, *networks: str, controller: str = "") -> list[Route]:
    """Routes to `networks`, each through the gateway of its address family."""
    return [
        Route(network, gateway=gateway6 if ":" in network else gateway4, controller=controller) for network in networks
    ]


def _inside(pid: int, ends: Sequence[End], routes: Sequence[Route]) -> str:
    """A command that switches offloads off in the namespace of a process and then runs `ip` commands there. The
    simulator forwards raw frames and the captures record them, so each frame must be one datagram with its checksum.
    An image without NET_ADMIN can't switch offloads off itself."""
    offloads = "; ".join(f"ethtool -K {end.name} tx off tso off gso off gro off" for end in ends)
    commands = [
        command
        for end in ends
        for command in (
            f"address add {end.ipv4}/24 dev {end.name}",
            f"address add {end.ipv6}/64 dev {end.name} nodad",
            f"link set {end.name} up",
        )
    ]
    loopback = ["link set lo up"] if routes else []
    batch = "\n".join((*commands, *loopback, *(route.command() for route in routes)))
    return f"nsenter --net=/proc/{pid}/ns/net sh -euc '{offloads}; ip -batch -' <<END\n{batch}\nEND"


def _until_up(role: str, pid: int) -> str:
    """A command that waits until all interfaces of a namespace have a carrier; it fails after a few seconds."""
    wait = f"for _ in $(seq {_LOOKS}); do ip -brief link show up type veth | grep -qvw UP || exit 0; sleep 0.01; done"
    return (
        f"nsenter --net=/proc/{pid}/ns/net sh -c '{wait}; exit 1'"
        f" || {{ echo an interface of the {role} stays without a carrier; exit 1; }}"
    )


# Addresses of a lane (docs/contract.md). All lanes have the same addresses, each lane in its own namespaces.

READY_PORT = 57832  # TCP, on the simulator: it accepts connections when the link is open
CLIENT4, CLIENT6 = "193.167.0.100", "fd00:cafe:cafe:0::100"
SERVER4, SERVER6 = "193.167.100.100", "fd00:cafe:cafe:100::100"
LEFT4, LEFT6 = "193.167.0.2", "fd00:cafe:cafe:0::2"  # the simulator, towards the client
RIGHT4, RIGHT6 = "193.167.100.2", "fd00:cafe:cafe:100::2"  # the simulator, towards the server
# The client's subnets: no packet from the server's side has a source address in them.
LEFT_NETS = ("193.167.0.0/24", "fd00:cafe:cafe::/64")
RIGHT_NETS = ("193.167.100.0/24", "fd00:cafe:cafe:100::/64")
LANE4, LANE6 = "193.167.0.0/16", "fd00:cafe:cafe::/48"  # all networks of a lane, reached through the simulator

# Networks of the second flow's client and server; each has a router of the lane.
BESIDE_CLIENT4, BESIDE_CLIENT6 = "193.167.1.100", "fd00:cafe:cafe:1::100"
BESIDE_SERVER4, BESIDE_SERVER6 = "193.167.101.100", "fd00:cafe:cafe:101::100"
BESIDE_LEFT4, BESIDE_LEFT6 = "193.167.1.2", "fd00:cafe:cafe:1::2"
BESIDE_RIGHT4, BESIDE_RIGHT6 = "193.167.101.2", "fd00:cafe:cafe:101::2"
BESIDE_CLIENT_NETS = ("193.167.1.0/24", "fd00:cafe:cafe:1::/64")
BESIDE_SERVER_NETS = ("193.167.101.0/24", "fd00:cafe:cafe:101::/64")
BESIDE_CLIENT_MAC, BESIDE_SERVER_MAC = "02:bb:00:00:00:03", "02:bb:00:00:00:04"

# Locally administered. The simulator forwards frames unchanged: its interface towards one endpoint has the MAC address
# of the other endpoint, so that a frame to the gateway already has its receiver's address.
CLIENT_MAC, SERVER_MAC = "02:bb:00:00:00:01", "02:bb:00:00:00:02"

_SERVERS = (f"server4:{SERVER4}", f"server6:{SERVER6}", f"server46:{SERVER4}", f"server46:{SERVER6}")
CLIENT_HOSTS = (*_SERVERS, f"sim:{LEFT4}", f"client4:{CLIENT4}", f"client6:{CLIENT6}")
BESIDE_HOSTS = (f"server4:{BESIDE_SERVER4}", f"sim:{BESIDE_LEFT4}", f"client4:{BESIDE_CLIENT4}")
SERVER_HOSTS = (*_SERVERS, f"sim:{RIGHT4}", f"client4:{CLIENT4}", f"client6:{CLIENT6}")


def hosts_file(names: Sequence[str]) -> str:
    """The contents of /etc/hosts with localhost and `names`, `name:address` each."""
    entries = [name.split(":", 1) for name in ("localhost:127.0.0.1", "localhost:::1", *names)]
    return "".join(f"{address}\t{name}\n" for name, address in entries)


# The network of a lane from the hops of its topology: cables, addresses, routes.
#
# Client and server have the addresses of every lane. Segments are bridged: each end of a segment has its
# own subnet. The address `.2` in this subnet belongs to the simulator, whose interface has the MAC address of the other
# end.

CLIENT_NETWORK4, CLIENT_NETWORK6 = "193.167.0.0/24", "fd00:cafe:cafe:0::/64"
SERVER_NETWORK4, SERVER_NETWORK6 = "193.167.100.0/24", "fd00:cafe:cafe:100::/64"
TERMINAL4, TERMINAL6 = "10.55.0.100", "fd00:55:0:0::100"
GATEWAY4, GATEWAY6 = "10.55.100.100", "fd00:55:0:100::100"

_SATELLITE_LEFT = ("10.55.0.2", "fd00:55:0:0::2")
_SATELLITE_RIGHT = ("10.55.100.2", "fd00:55:0:100::2")
_GROUND_LEFT = ("10.66.0.2", "fd00:66::2")
_WAN = ("10.66.0.100", "fd00:66::100")  # the gateway's address towards a ground segment
_OTHERS4, _OTHERS6 = ("10.55.0.0/16", "10.66.0.0/16"), ("fd00:55::/32", "fd00:66::/32")
_TO_CLIENT, _TO_SERVER = (CLIENT_NETWORK4, CLIENT_NETWORK6), (SERVER_NETWORK4, SERVER_NETWORK6)
_TERMINAL_MAC, _GATEWAY_MAC, _WAN_MAC, _LAN_MAC, _BESIDE_LAN_MAC, _BESIDE_WAN_MAC = (
    f"02:bb:00:00:01:0{number}" for number in range(1, 7)
)

_CLIENT_END = End(CLIENT, "eth0", CLIENT_MAC, CLIENT4, CLIENT6)
_SERVER_END = End(SERVER, "eth0", SERVER_MAC, SERVER4, SERVER6)
_FROM_CLIENT = routes_via(LEFT4, LEFT6, LANE4, LANE6)
_FROM_SERVER = routes_via(RIGHT4, RIGHT6, LANE4, LANE6)
# With routers, the server also has routes to the routers' addresses on the segments.
_FROM_FAR_SERVER = routes_via(RIGHT4, RIGHT6, LANE4, LANE6, *_OTHERS4, *_OTHERS6)


@dataclass(frozen=True)
class _Connection:
    """The cable of a hop, and the routes that need it, by role. `controller`: TCP's congestion controller of these
    routes when the job names none for the role; empty: the host's default."""

    cable: Cable
    routes: Mapping[str, list[Route]]
    controller: str = "cubic"


_CONNECTIONS: Mapping[Hop, _Connection] = {
    (CLIENT, SATELLITE): _Connection(
        (_CLIENT_END, End(SATELLITE, "eth0", SERVER_MAC, LEFT4, LEFT6)), {CLIENT: _FROM_CLIENT}, controller=""
    ),
    (SATELLITE, SERVER): _Connection(
        (_SERVER_END, End(SATELLITE, "eth1", CLIENT_MAC, RIGHT4, RIGHT6)), {SERVER: _FROM_SERVER}, controller=""
    ),
    (CLIENT, TERMINAL): _Connection(
        (_CLIENT_END, End(TERMINAL, "lan0", _LAN_MAC, LEFT4, LEFT6)),
        {CLIENT: _FROM_CLIENT, TERMINAL: [Route(CLIENT_NETWORK4, interface="lan0")]},
    ),
    (TERMINAL, SATELLITE): _Connection(
        (
            End(TERMINAL, "sat0", _TERMINAL_MAC, TERMINAL4, TERMINAL6),
            End(SATELLITE, "eth0", _GATEWAY_MAC, *_SATELLITE_LEFT),
        ),
        {TERMINAL: routes_via(*_SATELLITE_LEFT, *_TO_SERVER, *_OTHERS4, *_OTHERS6)},
    ),
    (SATELLITE, GATEWAY): _Connection(
        (
            End(GATEWAY, "sat0", _GATEWAY_MAC, GATEWAY4, GATEWAY6),
            End(SATELLITE, "eth1", _TERMINAL_MAC, *_SATELLITE_RIGHT),
        ),
        {GATEWAY: routes_via(*_SATELLITE_RIGHT, *_TO_CLIENT, _OTHERS4[0], _OTHERS6[0])},
    ),
    (GATEWAY, SERVER): _Connection(
        (End(GATEWAY, "wan0", _WAN_MAC, RIGHT4, RIGHT6), _SERVER_END),
        {GATEWAY: [Route(SERVER_NETWORK4, interface="wan0")], SERVER: _FROM_FAR_SERVER},
    ),
    (GATEWAY, GROUND): _Connection(
        (End(GATEWAY, "wan0", _WAN_MAC, *_WAN), End(GROUND, "eth0", SERVER_MAC, *_GROUND_LEFT)),
        {GATEWAY: routes_via(*_GROUND_LEFT, *_TO_SERVER)},
    ),
    (GROUND, SERVER): _Connection(
        (_SERVER_END, End(GROUND, "eth1", _WAN_MAC, RIGHT4, RIGHT6)), {SERVER: _FROM_FAR_SERVER}
    ),
    (BesideRole.CLIENT, TERMINAL): _Connection(
        (
            End(BesideRole.CLIENT, "eth0", BESIDE_CLIENT_MAC, BESIDE_CLIENT4, BESIDE_CLIENT6),
            End(TERMINAL, "lan1", _BESIDE_LAN_MAC, BESIDE_LEFT4, BESIDE_LEFT6),
        ),
        {
            BesideRole.CLIENT: routes_via(BESIDE_LEFT4, BESIDE_LEFT6, LANE4, LANE6),
            GATEWAY: routes_via(*_SATELLITE_RIGHT, *BESIDE_CLIENT_NETS),
        },
        controller="",
    ),
    (GATEWAY, BesideRole.SERVER): _Connection(
        (
            End(GATEWAY, "wan1", _BESIDE_WAN_MAC, BESIDE_RIGHT4, BESIDE_RIGHT6),
            End(BesideRole.SERVER, "eth0", BESIDE_SERVER_MAC, BESIDE_SERVER4, BESIDE_SERVER6),
        ),
        {
            BesideRole.SERVER: routes_via(BESIDE_RIGHT4, BESIDE_RIGHT6, LANE4, LANE6),
            TERMINAL: routes_via(*_SATELLITE_LEFT, *BESIDE_SERVER_NETS),
        },
        controller="",
    ),
}


# The variables with addresses that both boxes get (implementations/_middlebox/README.md).
BOX_ENVIRONMENT = {
    "TERMINAL_ADDRESS": TERMINAL4,
    "TERMINAL_ADDRESS6": TERMINAL6,
    "GATEWAY_ADDRESS": GATEWAY4,
    "GATEWAY_ADDRESS6": GATEWAY6,
    "CLIENT_NETWORK": CLIENT_NETWORK4,
    "CLIENT_NETWORK6": CLIENT_NETWORK6,
    "SERVER_NETWORK": SERVER_NETWORK4,
    "SERVER_NETWORK6": SERVER_NETWORK6,
    "SERVER_ADDRESS": SERVER4,
    "SERVER_ADDRESS6": SERVER6,
}


def cables(hops: Iterable[Hop]) -> tuple[Cable, ...]:
    """The cables of the hops, one for each hop."""
    return tuple(_CONNECTIONS[hop].cable for hop in hops)


def routes(hops: Iterable[Hop], controllers: Mapping[str, str]) -> dict[str, list[Route]]:
    """The routes of each role. `controllers`: TCP's congestion controller by role. It is set in routes, because the
    default differs from host to host, and a namespace can't change its default without rights on the host. With
    routers, roles that `controllers` lacks have CUBIC."""
    by_role: dict[str, list[Route]] = {}
    for connection in (_CONNECTIONS[hop] for hop in hops):
        for role, of_role in connection.routes.items():
            controller = controllers.get(role, connection.controller)
            by_role.setdefault(role, []).extend(replace(route, controller=controller) for route in of_role)
    return by_role


def network_script(
    pids: Mapping[str, int], hops: Iterable[Hop], controllers: Mapping[str, str], *, before: int = 0
) -> str:
    """A script that wires a lane. `pids`: of the keepers, on the host. `before`: earlier wirings of the namespaces."""
    hops = tuple(hops)
    return wiring_script(pids, cables(hops), routes(hops, controllers), before=before)


# The description of a job for a lane, and the result of a probe: frozen values, made by code that knows test cases.


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """The container of one endpoint. `environment` is complete except for ROLE, which the lane adds. `devices` are for
    middleboxes. `entrypoint` and `binds` (`host:container:mode`) are for a local build, which has no image."""

    image: str
    image_id: str = ""  # the id that the run recorded; empty: the name decides
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    binds: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # devices of the host, `path:path:rwm`

    @property
    def pinned(self) -> str:
        """The image for the engine. A run keeps its images, even when a build in another terminal moves their names."""
        return self.image_id or self.image


@dataclass(frozen=True, kw_only=True)
class EndpointLimits:
    """Limits of one endpoint. Beyond a limit, its calls fail or it is killed; the endpoint's record shows this."""

    memory: int = 2048 * MIB  # bytes of memory, without its volumes
    processes: int = 1024
    cpus: float | None = None  # cores; None: its fair share of all cores
    logs: int = 512 * MIB  # bytes in /logs: a server that logs at debug level writes about 200 MiB in SAT
    output: int = 16 * MIB  # bytes of output; with more, the endpoint is killed
    root: int = 1024 * MIB  # bytes written to the root file system; with more, the endpoint is killed
    declared: int = 256 * MIB  # bytes in each folder that its image declares as a volume
    largest_file: int = 1024 * MIB  # bytes of a single file


@dataclass(frozen=True, kw_only=True)
class LaneJob:
    """One job, ready to run. `folder` is empty and gets all artifacts; `timeout` in seconds from the client's start.
    `sender`: the endpoint with the files in /www. `expected`: the files that its peer must have in /downloads at the
    end; None: all of `files`. `boxes`: the
    middlebox's containers. `server_port`: the TCP port on which the server listens; None: QUIC on UDP port 443."""

    job: Job
    folder: Path
    client: EndpointSpec
    server: EndpointSpec
    topology: Topology
    seed: int  # seed of the links
    timeout: float
    files: tuple[ServedFile, ...]  # all files in /www
    expected: tuple[ServedFile, ...] | None = None
    limits: EndpointLimits = EndpointLimits()
    chain_length: int = 1  # number of certificates in cert.pem
    wait_for_server: bool = True  # True: wait until the server sends Version Negotiation or, over TCP, listens
    server_port: int | None = None
    sender: Role = Role.SERVER
    boxes: Mapping[Box, EndpointSpec] = field(default_factory=dict)
    content_seed: int = 0  # seed of the served content, for the judge of a middlebox
    controllers: Mapping[str, str] = field(default_factory=dict)  # TCP's congestion controller by role
    own_server: bool = False  # True: the server belongs to the harness, so its early end is an error of the harness
    beside: Mapping[BesideRole, EndpointSpec] = field(default_factory=dict)  # a second flow, through the first segment
    beside_files: tuple[ServedFile, ...] = ()  # the file that the second flow downloads
    beside_over_tcp: bool = False

    @property
    def required_files(self) -> tuple[ServedFile, ...]:
        """The files that the receiver must have at the end."""
        return self.files if self.expected is None else self.expected

    @property
    def lose_all(self) -> bool:
        """True when losses take packets of every protocol: the link carries others than end-to-end QUIC."""
        return self.topology.routed or self.server_port is not None

    @property
    def flood(self) -> int | None:
        """The bytes of one side after which a segment carries nothing more. None: there is no limit, because the origin
        is trusted, or because a second flow sends as long as the job's own flow."""
        return None if self.own_server or self.beside else flood_limit([file.size for file in self.files])

    @property
    def forward(self) -> LinkParameters:
        """The forward direction of the first segment."""
        return self.topology.link.satellite.forward


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The result of an image with an unknown TESTCASE. `seconds`: from the container's start to its end."""

    exit_code: int | None  # None: it was still running at the end, or never started
    seconds: float
    problem: str  # a sentence that says why the image isn't compliant; empty when it is compliant


# Makes the description of one job, for a lane, a guest or the hosts of a real link, from the run's record.

_HTTPS = 443
_LARGEST_BESIDE = 256 * MIB  # largest file of a second flow, in bytes: its client keeps the file in memory
_TUN = "/dev/net/tun:/dev/net/tun:rwm"

Specs = Mapping[tuple[str, Role], EndpointSpec]


def lane_job(run: Run, job: Job, folder: Path, *, specs: Specs = MappingProxyType({}), port: int = 443) -> LaneJob:
    """The description of `job`, ready to run. `port`: the server's UDP port. `specs`: endpoints that are not plain
    images, by stack and role; the environment of the job is added to their environment."""
    case = run.case(job)
    topology = Topology(
        link=case.link, middlebox=run.middleboxes[job.via] if job.via else None, beside=bool(case.beside)
    )
    if case.client is ClientKind.STACK:
        planned = _stack_job(run, job, folder, topology, specs=specs, port=port)
    else:
        planned = _workload_job(run, job, folder, topology)
    if case.beside:
        planned = _add_second_flow(planned, run, case)
    return planned if topology.middlebox is None else _add_boxes(planned, topology.middlebox)


def _add_boxes(planned: LaneJob, middlebox: Middlebox) -> LaneJob:
    spec = EndpointSpec(
        image=middlebox.image,
        entrypoint=("/run_box.sh",),
        environment={
            **BOX_ENVIRONMENT,
            "SSLKEYLOGFILE": "/logs/keys.log",
            "QLOGDIR": "/logs/qlog/",
            **middlebox.parameters,
        },
        devices=(_TUN,),
    )
    # TCP's congestion controller at both routers, if a variant sets a controller of the kernel.
    controller = middlebox.parameters.get("CCA", "")
    controllers = {box.value: controller for box in Box if controller in KERNEL_CONTROLLERS}
    return replace(planned, boxes=dict.fromkeys(middlebox.boxes, spec), controllers=controllers)


def _stack_job(run: Run, job: Job, folder: Path, topology: Topology, *, specs: Specs, port: int) -> LaneJob:
    case, wire_names = run.case(job), run.wire_names(job)
    files = served_files(run.seed, case.file_sizes, name_length=case.name_length)

    def endpoint(stack: str, role: Role, requests: str = "") -> EndpointSpec:
        entry = run.implementations[stack]
        spec = specs.get((stack, role)) or EndpointSpec(image=entry.image, image_id=entry.image_id)
        variables = environment(role, testcase=wire_names[role.value], requests=requests, parameters=entry.parameters)
        return replace(spec, environment={**spec.environment, **variables})

    return LaneJob(
        job=job,
        folder=folder,
        client=endpoint(job.client, Role.CLIENT, request_urls(files, host=case.host, port=port)),
        server=endpoint(job.server, Role.SERVER),
        topology=topology,
        chain_length=case.chain_length,
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=files,
        server_port=_HTTPS if transport_of(run.protocol(job)) == "tcp" else None,
        sender=case.sender,
        content_seed=run.seed,
    )


def _add_second_flow(planned: LaneJob, run: Run, case: CaseRecord) -> LaneJob:
    """Add a second flow: a download that would take the case's time-out if nothing else used the link."""
    flow = BesideFlow.of(case.beside)
    size = min(_LARGEST_BESIDE, round(case.forward.data_rate * case.timeout / 8))
    files = served_files(run.seed, (size,))

    def endpoint(role: BesideRole) -> EndpointSpec:
        requests = request_urls(files) if role is BesideRole.CLIENT else ""
        stack = run.implementations[flow.stacks[role]]
        parameters = {**stack.parameters, **flow.parameters}
        variables = environment(role.role, testcase=flow.wire_name, requests=requests, parameters=parameters)
        return EndpointSpec(image=stack.image, image_id=stack.image_id, environment=variables)

    return replace(
        planned,
        beside={role: endpoint(role) for role in BesideRole},
        beside_files=files,
        beside_over_tcp=flow.over_tcp,
    )


def _workload_job(run: Run, job: Job, folder: Path, topology: Topology) -> LaneJob:
    """A download by curl or a page load by a browser, from the origin."""
    case = run.case(job)
    workload = load(case, run.seed)
    client, server = run.implementations[job.client], run.implementations[job.server]
    return LaneJob(
        job=job,
        folder=folder,
        client=EndpointSpec(image=client.image, image_id=client.image_id, environment=workload.environment),
        server=EndpointSpec(image=server.image, image_id=server.image_id),
        topology=topology,
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=workload.files,
        expected=workload.expected,
        server_port=workload.server_port,
        content_seed=run.seed,
        own_server=True,
    )


# Turns the parameters of a segment into the simulator's JSON document (sim/README.md). Only this module knows the
# document's form.

LOGS = "/logs"
TRUTH = "truth.json"
PACKETS = "packets.bin"


def link_documents(job: LaneJob, *, noise: float = 0.0) -> dict[str, dict[str, Any]]:
    """The documents of a job's segments, by the name of the segment. Each segment has its own seed, which also chooses
    where changes that repeat begin; they are written out for the time of the job. `noise`: seconds, as in
    `link_document`."""
    link = job.topology.link.begun(job.seed, job.timeout)
    return {
        name: link_document(segment, seed=job.seed ^ number, noise=noise, lose_all=job.lose_all, flood=job.flood)
        for number, (name, segment) in enumerate(replace(job.topology, link=link).segments.items())
    }


def _direction(way: LinkParameters, noise: float) -> dict[str, Any]:
    """One direction of the document. The simulator gets changes that happen once."""
    document = asdict(way)
    impairments = document["impairments"]
    impairments["jitter"] += noise
    del impairments["changes_period"], impairments["changes_start"]
    return document


def link_document(
    segment: SegmentRecord, *, seed: int, noise: float = 0.0, lose_all: bool = False, flood: int | None = None
) -> dict[str, Any]:
    """The document for a simulator whose eth0 leads to the client and whose eth1 leads to the server.

    `noise`: each packet waits a random time from 0 to this many seconds more than the segment's delay, as on a host.
    `lose_all`: losses affect packets of every protocol, not only UDP. `flood`: bytes, counted as in a capture; when one
    side sends more, the link carries nothing more. Directions and impairments are written with the field names of their
    dataclasses, so that each of them has the same name everywhere.
    """
    return {
        "left": {"interface": "eth0", "foreign": RIGHT_NETS},
        "right": {"interface": "eth1", "foreign": LEFT_NETS},
        "forward": _direction(segment.forward, noise),
        "return": _direction(segment.return_, noise),
        "impairments": asdict(segment.impairments),
        "loss_protocol": "any" if lose_all else "udp",
        "seed": seed,
        "flood": flood or 0,
        "truth": f"{LOGS}/{TRUTH}",
        "packets": f"{LOGS}/{PACKETS}",
        "ready_port": READY_PORT,
    }
