"""Shell scripts that lay cables between the network namespaces of a lane, with addresses and routes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from runner.model.topology import CLIENT, SATELLITE, SERVER

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
    `controller`: TCP's congestion controller; empty: the namespace's default.
    """

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
    """A shell script that wires a lane. It runs in the plumber, which sees the processes of the host. `routes`: the
    routes by role; simulators have no routes, because they forward frames. `before`: how often the same namespaces were
    wired before; the numbers of interfaces depend on it, so that the captures recognise a new cable.
    """
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
    volumes in the holders, by role. The containers of the job must have been removed.
    """
    lines = ["set -eu"]
    for role, pid in pids.items():
        # A job may have removed eth0. `look_script` checks afterwards whether the namespace is as before.
        inside = "ip link delete eth0; ip tcp_metrics flush" if role != SATELLITE else "ip tcp_metrics flush"
        lines.append(f"nsenter --net=/proc/{pid}/ns/net sh -c '{inside}' > /dev/null 2>&1 || true")
        lines += [f"find /proc/{pid}/root{folder} -mindepth 1 -delete" for folder in folders[role]]
    lines.append(f"kill -USR1 {pids[SERVER]}")
    return "\n".join(lines)


def look_script(pids: Mapping[str, int], folders: Mapping[str, Sequence[str]]) -> str:
    """A shell script that prints the state of a lane without cables, where leftovers of jobs would be visible, and then
    `LOOKED`."""
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
    An image without NET_ADMIN can't switch offloads off itself.
    """
    offloads = "; ".join(f"ethtool -K {end.name} tx off tso off gso off gro off" for end in ends)
    commands = [command for end in ends for command in _up(end)]
    loopback = ["link set lo up"] if routes else []
    batch = "\n".join((*commands, *loopback, *(route.command() for route in routes)))
    return f"nsenter --net=/proc/{pid}/ns/net sh -euc '{offloads}; ip -batch -' <<END\n{batch}\nEND"


def _until_up(role: str, pid: int) -> str:
    """A command that waits until all interfaces in the namespace of a process have a carrier; it exits with 1 after a
    few seconds."""
    wait = f"for _ in $(seq {_LOOKS}); do ip -brief link show up type veth | grep -qvw UP || exit 0; sleep 0.01; done"
    return (
        f"nsenter --net=/proc/{pid}/ns/net sh -c '{wait}; exit 1'"
        f" || {{ echo an interface of the {role} stays without a carrier; exit 1; }}"
    )


def _up(end: End) -> tuple[str, ...]:
    return (
        f"address add {end.ipv4}/24 dev {end.name}",
        f"address add {end.ipv6}/64 dev {end.name} nodad",
        f"link set {end.name} up",
    )
