"""The network of a lane from the hops of its topology: cables, addresses, routes.

Client and server have the addresses of every lane (addresses.py). Segments are bridged: each end of a segment has its
own subnet. The address `.2` in this subnet belongs to the simulator, whose interface has the MAC address of the other
end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from runner.lanes.addresses import (
    BESIDE_CLIENT4,
    BESIDE_CLIENT6,
    BESIDE_CLIENT_MAC,
    BESIDE_CLIENT_NETS,
    BESIDE_LEFT4,
    BESIDE_LEFT6,
    BESIDE_RIGHT4,
    BESIDE_RIGHT6,
    BESIDE_SERVER4,
    BESIDE_SERVER6,
    BESIDE_SERVER_MAC,
    BESIDE_SERVER_NETS,
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
from runner.lanes.wiring import Cable, End, Route, routes_via, wiring_script
from runner.model.beside import BesideRole
from runner.model.topology import CLIENT, GATEWAY, GROUND, SATELLITE, SERVER, TERMINAL, Hop

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


def box_environment() -> dict[str, str]:
    """The environment variables with addresses that both boxes get (implementations/_middlebox/README.md)."""
    return {
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
    routers, roles that `controllers` lacks have CUBIC.
    """
    by_role: dict[str, list[Route]] = {}
    for connection in (_CONNECTIONS[hop] for hop in hops):
        for role, of_role in connection.routes.items():
            controller = controllers.get(role, connection.controller)
            by_role.setdefault(role, []).extend(replace(route, controller=controller) for route in of_role)
    return by_role


def network_script(
    pids: Mapping[str, int], hops: Iterable[Hop], controllers: Mapping[str, str], *, before: int = 0
) -> str:
    """A shell script that wires a lane. `pids`: the holders' process ids on the host, by role. `before`: how often the
    same namespaces were wired before."""
    hops = tuple(hops)
    return wiring_script(pids, cables(hops), routes(hops, controllers), before=before)
