"""The network of a lane from its topology: cables, routes, addresses.

Client and server have the addresses of every lane (addresses.py). Segments are bridged: each end of a segment has a
subnet of its own, whose `.2` is the simulator's, with the MAC address of the other end.
"""

from collections.abc import Mapping

from runner.lanes.addresses import LANE4, LANE6, LEFT4, LEFT6, RIGHT4, RIGHT6, SERVER4, SERVER6, SERVER_MAC
from runner.lanes.wiring import CABLES, CLIENT_END, SERVER_END, Cable, End, routes_via, wiring_script
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
_WAN = ("10.66.0.100", "fd00:66::100")  # the gateway's towards a ground segment
_OTHERS4, _OTHERS6 = ("10.55.0.0/16", "10.66.0.0/16"), ("fd00:55::/32", "fd00:66::/32")
_TERMINAL_MAC, _GATEWAY_MAC, _WAN_MAC, _LAN_MAC = (f"02:bb:00:00:01:0{number}" for number in range(1, 5))

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
_TO_SERVER: tuple[Cable, ...] = ((End(GATEWAY, "wan0", _WAN_MAC, RIGHT4, RIGHT6), SERVER_END),)


def box_environment() -> dict[str, str]:
    """The addresses that the contract gives to both boxes (implementations/_path/README.md)."""
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


def cables(*, routed: bool, ground: bool) -> tuple[Cable, ...]:
    """All cables of a lane. `routed`: routers join the ends to the link; `ground`: it has a second segment."""
    if not routed:
        return CABLES
    return (*_ROUTED, *(_TO_GROUND if ground else _TO_SERVER))


def network_script(
    pids: Mapping[str, int], controllers: Mapping[str, str], *, routed: bool, ground: bool, before: int = 0
) -> str:
    """A shell script that wires a lane. `pids`: of the holders by role, as the host numbers them.

    `controllers`: TCP's congestion controller by role. It comes with the routes: the host's own default may be any, and
    only who has rights on the host may change it in a namespace. Where routers stand it is CUBIC unless it is named.
    """
    found = _routes(controllers, ground=ground) if routed else _direct_routes(controllers)
    return wiring_script(pids, cables(routed=routed, ground=ground), found, before=before)


def _direct_routes(controllers: Mapping[str, str]) -> dict[str, list[str]]:
    def more(role: str) -> str:
        return f" congctl {controllers[role]}" if role in controllers else ""

    return {
        CLIENT: routes_via(LEFT4, LEFT6, LANE4, LANE6, more=more(CLIENT)),
        SERVER: routes_via(RIGHT4, RIGHT6, LANE4, LANE6, more=more(SERVER)),
    }


def _routes(controllers: Mapping[str, str], *, ground: bool) -> dict[str, list[str]]:
    def controlled(role: str) -> str:
        return f" congctl {controllers.get(role, 'cubic')}"

    def routes(role: str, gateway: tuple[str, str], *networks: str) -> list[str]:
        return routes_via(*gateway, *networks, more=controlled(role))

    to_client, to_server = (CLIENT_NETWORK4, CLIENT_NETWORK6), (SERVER_NETWORK4, SERVER_NETWORK6)
    others = (*_OTHERS4, *_OTHERS6)
    behind = (
        routes(GATEWAY, _GROUND_LEFT, *to_server)
        if ground
        else [f"route change {SERVER_NETWORK4} dev wan0{controlled(GATEWAY)}"]
    )
    return {
        CLIENT: routes(CLIENT, (LEFT4, LEFT6), LANE4, LANE6),
        TERMINAL: [
            f"route change {CLIENT_NETWORK4} dev lan0{controlled(TERMINAL)}",
            *routes(TERMINAL, _SATELLITE_LEFT, *to_server, *others),
        ],
        GATEWAY: [*routes(GATEWAY, _SATELLITE_RIGHT, *to_client, _OTHERS4[0], _OTHERS6[0]), *behind],
        SERVER: routes(SERVER, (RIGHT4, RIGHT6), LANE4, LANE6, *others),
    }
