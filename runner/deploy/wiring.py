"""Two veth pairs between three network namespaces, with the addresses of the contract and honest packets on them."""

from dataclasses import dataclass

from runner.deploy.addresses import (
    CLIENT4,
    CLIENT6,
    CLIENT_MAC,
    LANE4,
    LANE6,
    LEFT4,
    LEFT6,
    RIGHT4,
    RIGHT6,
    SERVER4,
    SERVER6,
    SERVER_MAC,
)


@dataclass(frozen=True, kw_only=True)
class Namespaces:
    """The process ids of the three holders as the host numbers them."""

    client: int
    link: int
    server: int


def wiring_script(pids: Namespaces) -> str:
    """A shell script that wires a lane. It runs in the plumber, which sees the processes of the host."""
    return "\n".join(
        (
            "set -eu",
            veth((pids.client, "eth0", CLIENT_MAC), (pids.link, "eth0", SERVER_MAC)),
            veth((pids.server, "eth0", SERVER_MAC), (pids.link, "eth1", CLIENT_MAC)),
            inside(pids.link, interface("eth0", LEFT4, LEFT6) + interface("eth1", RIGHT4, RIGHT6), "eth0", "eth1"),
            inside(pids.client, interface("eth0", CLIENT4, CLIENT6) + _routes(LEFT4, LEFT6), "eth0"),
            inside(pids.server, interface("eth0", SERVER4, SERVER6) + _routes(RIGHT4, RIGHT6), "eth0"),
        )
    )


def veth(end: tuple[int, str, str], peer: tuple[int, str, str]) -> str:
    """A pair, made in its two namespaces at once; an end is the process id of a holder, interface and MAC address."""
    pid, name, mac = end
    peer_pid, peer_name, peer_mac = peer
    return (
        f"ip link add {name} netns {pid} address {mac} type veth"
        f" peer name {peer_name} netns {peer_pid} address {peer_mac}"
    )


def inside(pid: int, commands: list[str], *interfaces: str) -> str:
    """`ip` commands in the namespace of a process, after its offloads are off.

    The simulator forwards raw frames and the captures record them: what leaves must bear its checksum and be one
    datagram a frame, and a stock image without NET_ADMIN can't see to that itself.
    """
    offloads = "; ".join(f"ethtool -K {interface} tx off tso off gso off gro off" for interface in interfaces)
    batch = "\n".join(commands)
    return f"nsenter --net=/proc/{pid}/ns/net sh -euc '{offloads}; ip -batch -' <<END\n{batch}\nEND"


def interface(name: str, ipv4: str, ipv6: str) -> list[str]:
    return [
        f"address add {ipv4}/24 dev {name}",
        f"address add {ipv6}/64 dev {name} nodad",
        f"link set {name} up",
    ]


def _routes(gateway4: str, gateway6: str) -> list[str]:
    return [
        "link set lo up",
        f"route add {LANE4} via {gateway4}",
        f"route add {LANE6} via {gateway6}",
    ]
