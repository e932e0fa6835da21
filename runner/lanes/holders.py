"""Containers of the tools image: holders keep the namespaces and volumes of a lane, and the plumber lays the cables."""

from collections.abc import Sequence
from typing import Any

from runner.engine.containers import ContainerSpec, Volume
from runner.lanes.addresses import LEFT_NETS, READY_PORT, RIGHT_NETS, SERVER4
from runner.units import MIB

TOOLS = "bentpipe/tools"
CAPTURES = "/captures"
CAPTURE_LIMIT = 1024 * MIB  # bytes of one capture: a server that floods its interface must not fill the disk

# The engine switches IPv6 off in namespaces without a network. Without duplicate address detection and router
# solicitations, addresses work immediately, and the link carries only packets of the endpoints.
NAMESPACE_SETTINGS = {
    f"net.ipv6.conf.{which}.{name}": value
    for which in ("all", "default")
    for name, value in (
        ("disable_ipv6", "0"),
        ("accept_dad", "0"),
        ("accept_ra", "0"),
        ("router_solicitations", "0"),
    )
} | {
    "net.ipv4.ip_forward": "0",
    "net.ipv6.conf.all.forwarding": "0",
    # A client that connects to a closed port of its own host can be assigned the same port as its source port and so
    # connect to itself (TCP simultaneous open): the simulator would seem ready, and its port would be in use.
    "net.ipv4.ip_local_reserved_ports": str(READY_PORT),
}

ROUTER_SETTINGS = NAMESPACE_SETTINGS | {
    "net.ipv4.ip_forward": "1",
    "net.ipv6.conf.all.forwarding": "1",
    # A box that intercepts connections sends packets from addresses of other hosts; the check of RFC 3704 drops them.
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
}

# Limits of the harness's own containers: files of images that they read must not fill the host's memory.
_MEMORY = 256 * MIB  # bytes
LINK_MEMORY = 1024 * MIB  # bytes; captured packets wait in memory until they are written
_HOLDER_CPUS = 1_500_000_000  # nanoseconds of CPU time per second; enough to read a folder


def bounded(memory: int) -> dict[str, Any]:
    """HostConfig entries that limit a container of the harness to `memory` bytes of memory, without swap."""
    return {"mem_limit": memory, "memswap_limit": memory}


def _holder(
    role: str, command: Sequence[str], *, volumes: tuple[Volume, ...], capabilities: Sequence[str] = (), **host: Any
) -> ContainerSpec:
    return ContainerSpec(
        image=TOOLS,
        role=f"{role}-holder",
        command=("hold", *command),
        volumes=volumes,
        hostname=role,
        stdin=True,
        host={
            "network_mode": "none",
            "sysctls": NAMESPACE_SETTINGS,
            "cap_drop": ["ALL"],
            "cap_add": ["DAC_OVERRIDE", *capabilities],  # to read the files of endpoints, which may belong to any user
            "security_opt": ["no-new-privileges"],
            "pids_limit": 64,
            "nano_cpus": _HOLDER_CPUS,
            "log_config": {"Type": "none", "Config": {}},
            **bounded(_MEMORY),
            **host,
        },
    )


def client_holder(volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The holder of the client's namespace and volumes."""
    return _holder("client", [], volumes=volumes)


def server_holder(volumes: tuple[Volume, ...], *, ask: bool) -> ContainerSpec:
    """The holder of the server's namespace and volumes. With `ask`, it prints `server ready` once in each job, when UDP
    port 443 answers."""
    command = ["hold-server", SERVER4] if ask else []
    return _holder("server", command, volumes=volumes)


def beside_holder(role: str, volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The holder of the namespace and volumes of an endpoint of the second flow."""
    return _holder(role, [], volumes=volumes)


def router_holder(role: str, volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The holder of a router's namespace, which forwards packets, and of the volumes of the box in it."""
    return _holder(role, [], volumes=volumes, sysctls=ROUTER_SETTINGS)


def link_holder(role: str, volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The holder of the simulator's namespace and volume. It runs both captures and prints `link ready`."""
    return _holder(
        role,
        ["hold-link", str(READY_PORT), ",".join(RIGHT_NETS), ",".join(LEFT_NETS)],
        volumes=volumes,
        capabilities=("NET_RAW", "SETUID", "SETGID"),  # `tcpdump -Z root` needs them
        ulimits=[{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
        nano_cpus=None,  # a capture that waits for a CPU loses packets
        **bounded(LINK_MEMORY),
    )


def plumber() -> ContainerSpec:
    """The plumber, which lays the cables between namespaces. It enters the namespaces of holders by their process ids,
    so that the runner only needs the right to use Docker."""
    return ContainerSpec(
        image=TOOLS,
        role="plumber",
        command=("hold",),
        stdin=True,
        host={
            "network_mode": "none",
            "pid_mode": "host",
            "cap_drop": ["ALL"],
            # The last two rights are for emptying volumes, whose files may belong to any user.
            "cap_add": ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE", "FOWNER"],
            "security_opt": ["no-new-privileges", "apparmor=unconfined"],
            "pids_limit": 256,
            **bounded(_MEMORY),
            "log_config": {"Type": "none", "Config": {}},
        },
    )


def engine_test() -> ContainerSpec:
    """A container that does nothing. An engine that can start this container works."""
    return ContainerSpec(
        image=TOOLS,
        role="engine-test",
        command=("true",),
        host={"network_mode": "none", "cap_drop": ["ALL"], "pids_limit": 16, **bounded(_MEMORY)},
    )
