"""The network of a lane from its topology: cables, routes, addresses.

Client and server have the addresses of every lane (addresses.py). Segments are bridged: each end of a segment has its
own subnet. The address `.2` in this subnet belongs to the simulator, whose interface has the MAC address of the other
end.
"""

from collections.abc import Mapping

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
from runner.lanes.wiring import CABLES, CLIENT_END, SERVER_END, Cable, End, Route, routes_via, wiring_script
from runner.model.beside import BesideRole
from runner.model.middlebox import Box
from runner.model.topology import CLIENT, GROUND, SATELLITE, SERVER

TERMINAL, GATEWAY = Box.TERMINAL.value, Box.GATEWAY.value
CLIENT_NETWORK4, CLIENT_NETWORK6 = "193.167.0.0/24", "fd00:cafe:cafe:0::/64"
SERVER_NETWORK4, SERVER_NETWORK6 = "193.167.100.0/24", "fd00:cafe:cafe:100::/64"
TERMINAL4, TERMINAL6 = "10.55.0.100", "fd00:55:0:0::100"
GATEWAY4, GATEWAY6 = "10.55.100.100", "fd00:55:0:100::100"

_SATELLITE_LEFT = ("10.55.0.2", "fd00:55:0:0::2")
_SATELLITE_RIGHT = ("10.55.100.2", "fd00:55:0:100::2")
_GROUND_LEFT = ("10.66.0.2", "fd00:66::2")
_WAN = ("10.66.0.100", "fd00:66::100")  # the gateway's address towards a ground segment
_OTHERS4, _OTHERS6 = ("10.55.0.0/16", "10.66.0.0/16"), ("fd00:55::/32", "fd00:66::/32")
_TERMINAL_MAC, _GATEWAY_MAC, _WAN_MAC, _LAN_MAC, _BESIDE_LAN_MAC, _BESIDE_WAN_MAC = (
    f"02:bb:00:00:01:0{number}" for number in range(1, 7)
)

_ROUTED: tuple[Cable, ...] = (
    (CLIENT_END, End(TERMINAL, "lan0", _LAN_MAC, LEFT4, LEFT6)),
    (
        End(TERMINAL, "sat0", _TERMINAL_MAC, TERMINAL4, TERMINAL6),
        End(SATELLITE, "eth0", _GATEWAY_MAC, *_SATELLITE_LEFT),
    ),
    (
        End(GATEWAY, "sat0", _GATEWAY_MAC, GATEWAY4, GATEWAY6),
        End(SATELLITE, "eth1", _TERMINAL_MAC, *_SATELLITE_RIGHT),
    ),
)
_TO_GROUND: tuple[Cable, ...] = (
    (End(GATEWAY, "wan0", _WAN_MAC, *_WAN), End(GROUND, "eth0", SERVER_MAC, *_GROUND_LEFT)),
    (SERVER_END, End(GROUND, "eth1", _WAN_MAC, RIGHT4, RIGHT6)),
)
_BESIDE: tuple[Cable, ...] = (
    (
        End(BesideRole.CLIENT, "eth0", BESIDE_CLIENT_MAC, BESIDE_CLIENT4, BESIDE_CLIENT6),
        End(TERMINAL, "lan1", _BESIDE_LAN_MAC, BESIDE_LEFT4, BESIDE_LEFT6),
    ),
    (
        End(GATEWAY, "wan1", _BESIDE_WAN_MAC, BESIDE_RIGHT4, BESIDE_RIGHT6),
        End(BesideRole.SERVER, "eth0", BESIDE_SERVER_MAC, BESIDE_SERVER4, BESIDE_SERVER6),
    ),
)
_TO_SERVER: tuple[Cable, ...] = ((End(GATEWAY, "wan0", _WAN_MAC, RIGHT4, RIGHT6), SERVER_END),)


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


def cables(*, routed: bool, ground: bool, beside: bool = False) -> tuple[Cable, ...]:
    """All cables of a lane. `routed`: routers connect client and server to the link. `ground`: the link has a second
    segment. `beside`: the endpoints of a second flow are behind the routers."""
    if not routed:
        return CABLES
    return (*_ROUTED, *(_TO_GROUND if ground else _TO_SERVER), *(_BESIDE if beside else ()))


def network_script(
    pids: Mapping[str, int],
    controllers: Mapping[str, str],
    *,
    routed: bool,
    ground: bool,
    beside: bool = False,
    before: int = 0,
) -> str:
    """A shell script that wires a lane. `pids`: the holders' process ids on the host, by role. `controllers`: TCP's
    congestion controller by role. It is set in routes, because the default differs from host to host, and a namespace
    can't change its default without rights on the host. With routers, the default here is CUBIC.
    """
    return wiring_script(
        pids,
        cables(routed=routed, ground=ground, beside=beside),
        routes(controllers, routed=routed, ground=ground, beside=beside),
        before=before,
    )


def _routes_beside() -> dict[str, list[Route]]:
    return {
        BesideRole.CLIENT: routes_via(BESIDE_LEFT4, BESIDE_LEFT6, LANE4, LANE6),
        TERMINAL: routes_via(*_SATELLITE_LEFT, *BESIDE_SERVER_NETS),
        GATEWAY: routes_via(*_SATELLITE_RIGHT, *BESIDE_CLIENT_NETS),
        BesideRole.SERVER: routes_via(BESIDE_RIGHT4, BESIDE_RIGHT6, LANE4, LANE6),
    }


def routes(
    controllers: Mapping[str, str], *, routed: bool, ground: bool, beside: bool = False
) -> dict[str, list[Route]]:
    """The routes of each role. `controllers`: TCP's congestion controller by role. With routers, the other roles
    have CUBIC."""
    routes = _routed_routes(controllers, ground=ground) if routed else _direct_routes(controllers)
    for role, more in (_routes_beside() if beside else {}).items():
        routes[role] = [*routes.get(role, ()), *more]
    return routes


def _direct_routes(controllers: Mapping[str, str]) -> dict[str, list[Route]]:
    return {
        CLIENT: routes_via(LEFT4, LEFT6, LANE4, LANE6, controller=controllers.get(CLIENT, "")),
        SERVER: routes_via(RIGHT4, RIGHT6, LANE4, LANE6, controller=controllers.get(SERVER, "")),
    }


def _routed_routes(controllers: Mapping[str, str], *, ground: bool) -> dict[str, list[Route]]:
    def controlled(role: str) -> str:
        return controllers.get(role, "cubic")

    def via(role: str, gateway: tuple[str, str], *networks: str) -> list[Route]:
        return routes_via(*gateway, *networks, controller=controlled(role))

    def on_link(role: str, network: str, interface: str) -> Route:
        return Route(network, interface=interface, controller=controlled(role))

    to_client, to_server = (CLIENT_NETWORK4, CLIENT_NETWORK6), (SERVER_NETWORK4, SERVER_NETWORK6)
    others = (*_OTHERS4, *_OTHERS6)
    behind = via(GATEWAY, _GROUND_LEFT, *to_server) if ground else [on_link(GATEWAY, SERVER_NETWORK4, interface="wan0")]
    return {
        CLIENT: via(CLIENT, (LEFT4, LEFT6), LANE4, LANE6),
        TERMINAL: [
            on_link(TERMINAL, CLIENT_NETWORK4, interface="lan0"),
            *via(TERMINAL, _SATELLITE_LEFT, *to_server, *others),
        ],
        GATEWAY: [*via(GATEWAY, _SATELLITE_RIGHT, *to_client, _OTHERS4[0], _OTHERS6[0]), *behind],
        SERVER: via(SERVER, (RIGHT4, RIGHT6), LANE4, LANE6, *others),
    }
