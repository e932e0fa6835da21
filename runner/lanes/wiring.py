"""Cables between the network namespaces of a lane: the addresses of the contract, and honest packets on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from runner.lanes.addresses import (
    CLIENT4,
    CLIENT6,
    CLIENT_MAC,
    LEFT4,
    LEFT6,
    RIGHT4,
    RIGHT6,
    SERVER4,
    SERVER6,
    SERVER_MAC,
)

CLIENT, SIM, SERVER = "client", "sim", "server"
LOOKED = "bentpipe: looked"
_FIRST_INDEX = 10  # of interfaces; 1 is the loopback's
_LOOKS = 300  # of 10 ms


@dataclass(frozen=True)
class End:
    """One end of a cable, an interface in the namespace of `role`."""

    role: str
    name: str
    mac: str
    ipv4: str
    ipv6: str


Cable = tuple[End, End]

CLIENT_END = End(CLIENT, "eth0", CLIENT_MAC, CLIENT4, CLIENT6)
SERVER_END = End(SERVER, "eth0", SERVER_MAC, SERVER4, SERVER6)
CABLES: tuple[Cable, ...] = (
    (CLIENT_END, End(SIM, "eth0", SERVER_MAC, LEFT4, LEFT6)),
    (SERVER_END, End(SIM, "eth1", CLIENT_MAC, RIGHT4, RIGHT6)),
)


def wiring_script(
    pids: Mapping[str, int], cables: Sequence[Cable], routes: Mapping[str, Sequence[str]], *, before: int = 0
) -> str:
    """A shell script that wires a lane. It runs in the plumber, which sees the processes of the host.

    `routes`, by role, are commands of `ip -batch`. Simulators have none: they forward frames. `before`: how often the
    same namespaces were wired; by its new number the captures know a new cable.
    """
    lines = ["set -eu"]
    # Numbers of their own: an end with the number of its other end passes for a device that stands on no other, and
    # Linux looks after the carriers of such at most once a second. Until then whatever it is to send is dropped.
    first = _FIRST_INDEX + 2 * len(cables) * before
    for number, (one, other) in zip(count(first, 2), cables, strict=False):
        # Made in its two namespaces at once.
        lines.append(
            f"ip link add {one.name} index {number} netns {pids[one.role]} address {one.mac} type veth"
            f" peer name {other.name} index {number + 1} netns {pids[other.role]} address {other.mac}"
        )
    for role, pid in pids.items():
        ends = [end for cable in cables for end in cable if end.role == role]
        lines.append(_inside(pid, ends, routes.get(role, ())))
    lines += [_until_up(role, pid) for role, pid in pids.items()]
    return "\n".join(lines)


def renewal_script(pids: Mapping[str, int], folders: Mapping[str, Sequence[str]]) -> str:
    """A shell script that takes a used lane's cables away and empties its volumes.

    `folders`, by role: where the holder sees its volumes. The containers of the job must be gone.
    """
    lines = ["set -eu"]
    for role, pid in pids.items():
        # A stranger may have removed it: whether the namespace is as it was is looked at afterwards.
        inside = "ip link delete eth0; ip tcp_metrics flush" if role != SIM else "ip tcp_metrics flush"
        lines.append(f"nsenter --net=/proc/{pid}/ns/net sh -c '{inside}' > /dev/null 2>&1 || true")
        lines += [f"find /proc/{pid}/root{folder} -mindepth 1 -delete" for folder in folders[role]]
    lines.append(f"kill -USR1 {pids[SERVER]}")
    return "\n".join(lines)


def look_script(pids: Mapping[str, int], folders: Mapping[str, Sequence[str]]) -> str:
    """A shell script that prints what strangers could have left in a lane without cables, and then `LOOKED`."""
    lines = [f"left-behind {pids[role]} {' '.join(folders[role])}" for role in (CLIENT, SERVER)]
    return "\n".join((*lines, f"echo {LOOKED}"))


def routes_via(gateway4: str, gateway6: str, *networks: str, more: str = "") -> list[str]:
    """Routes to `networks`; `more`: further words of `ip route add`."""
    gateways = ((network, gateway6 if ":" in network else gateway4) for network in networks)
    return ["link set lo up", *(f"route add {network} via {gateway}{more}" for network, gateway in gateways)]


def _inside(pid: int, ends: Sequence[End], routes: Sequence[str]) -> str:
    """`ip` commands in the namespace of a process, after its offloads are off.

    The simulator forwards raw frames and the captures record them: what leaves must bear its checksum and be one
    datagram a frame, and a stock image without NET_ADMIN can't see to that itself.
    """
    offloads = "; ".join(f"ethtool -K {end.name} tx off tso off gso off gro off" for end in ends)
    commands = [command for end in ends for command in _up(end)]
    batch = "\n".join((*commands, *routes))
    return f"nsenter --net=/proc/{pid}/ns/net sh -euc '{offloads}; ip -batch -' <<END\n{batch}\nEND"


def _until_up(role: str, pid: int) -> str:
    """Ends when all interfaces of a process' namespace carry packets, with 1 when they don't in a few seconds."""
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
