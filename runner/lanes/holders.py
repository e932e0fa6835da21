"""Containers of the tools image: the holders of a lane's namespaces and volumes, and the plumber that wires them."""

from collections.abc import Sequence
from typing import Any

from runner.engine.containers import ContainerSpec, Volume
from runner.lanes.addresses import CLIENT_HOSTS, LEFT_NETS, READY_PORT, RIGHT_NETS, SERVER4, SERVER_HOSTS
from runner.units import MIB

TOOLS = "bentpipe/tools"
CAPTURES = "/captures"
CAPTURE_LIMIT = 1024 * MIB  # bytes of one capture: a server that floods its interface must not fill the disk

# The engine switches IPv6 off in namespaces without a network. Without duplicate address detection and router
# solicitations an address works at once and nothing but the endpoints' packets is on the wire.
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
    # Whoever asks a port of his own host that nobody listens on may be given that very port as his own, and TCP then
    # connects him to himself: the simulator would seem ready, and find its port taken.
    "net.ipv4.ip_local_reserved_ports": str(READY_PORT),
}


# What our own containers may use: whatever an image leaves to be read, it must not become the host's memory.
_MEMORY = 256 * MIB  # bytes
LINK_MEMORY = 1024 * MIB  # captures wait in memory until they are written, and must not wait for room
_HOLDER_CPUS = 1_500_000_000  # nanoseconds of CPU time in a second: reading a stranger's folder leaves the lanes theirs


def bounded(memory: int) -> dict[str, Any]:
    """The limit on the memory of a container of ours, in bytes, in the engine's words; it gets no swap beside it."""
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
            "cap_add": ["DAC_OVERRIDE", *capabilities],  # to read what endpoints have written, whoever owns the files
            "security_opt": ["no-new-privileges"],
            "pids_limit": 64,
            "nano_cpus": _HOLDER_CPUS,
            "log_config": {"Type": "none", "Config": {}},
            **bounded(_MEMORY),
            **host,
        },
    )


def client_holder(volumes: tuple[Volume, ...]) -> ContainerSpec:
    """Names that the client resolves, its namespace, its volumes."""
    return _holder("client", [], volumes=volumes, extra_hosts=list(CLIENT_HOSTS))


def server_holder(volumes: tuple[Volume, ...], *, ask: bool) -> ContainerSpec:
    """The same of the server. With `ask` it prints `server ready` when UDP port 443 answers, in each job once."""
    command = ["hold-server", SERVER4] if ask else []
    return _holder("server", command, volumes=volumes, extra_hosts=list(SERVER_HOSTS))


def router_holder(role: str, volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The namespace of a router, which forwards packets, and the volumes of the box in it."""
    own = {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}
    # A box that intercepts connections answers for addresses that lie elsewhere (RFC 3704's check would refuse).
    own |= {f"net.ipv4.conf.{which}.rp_filter": "0" for which in ("all", "default")}
    return _holder(role, [], volumes=volumes, sysctls=NAMESPACE_SETTINGS | own)


def link_holder(role: str, volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The simulator's namespace and volume, both captures, and the word `link ready`."""
    return _holder(
        role,
        ["hold-link", str(READY_PORT), ",".join(RIGHT_NETS), ",".join(LEFT_NETS)],
        volumes=volumes,
        capabilities=("NET_RAW", "SETUID", "SETGID"),  # what `tcpdump -Z root` needs
        ulimits=[{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
        nano_cpus=None,  # a capture that waits loses packets
        **bounded(LINK_MEMORY),
    )


def plumber() -> ContainerSpec:
    """Enters the namespaces of holders by their process ids, so that the runner itself needs no right but Docker's."""
    return ContainerSpec(
        image=TOOLS,
        role="plumber",
        command=("hold",),
        stdin=True,
        host={
            "network_mode": "none",
            "pid_mode": "host",
            "cap_drop": ["ALL"],
            # The last two: to empty volumes, whoever owns the files.
            "cap_add": ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE", "FOWNER"],
            "security_opt": ["no-new-privileges", "apparmor=unconfined"],
            "pids_limit": 256,
            **bounded(_MEMORY),
            "log_config": {"Type": "none", "Config": {}},
        },
    )


def engine_test() -> ContainerSpec:
    """A container that does nothing: an engine that starts it works."""
    return ContainerSpec(
        image=TOOLS,
        role="engine-test",
        command=("true",),
        host={"network_mode": "none", "cap_drop": ["ALL"], "pids_limit": 16, **bounded(_MEMORY)},
    )
