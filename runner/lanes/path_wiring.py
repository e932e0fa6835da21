"""The network of a path's lane: client, terminal, satellite segment, gateway, ground segment, server. Addresses too.

Client and server have the addresses of every lane (addresses.py). The segments are bridged as there: each end has a
subnet of its own, whose `.2` is the simulator's, with the MAC address of the other end.
"""

from collections.abc import Mapping

from runner.lanes.addresses import LANE4, LANE6, LEFT4, LEFT6, RIGHT4, RIGHT6, SERVER4, SERVER6, SERVER_MAC
from runner.lanes.wiring import CLIENT, CLIENT_END, SERVER, SERVER_END, SIM, Cable, End, routes_via, wiring_script

TERMINAL, SATELLITE, GATEWAY, GROUND = "terminal", SIM, "gateway", "ground"

CLIENT_NETWORK4, CLIENT_NETWORK6 = "193.167.0.0/24", "fd00:cafe:cafe:0::/64"
SERVER_NETWORK4, SERVER_NETWORK6 = "193.167.100.0/24", "fd00:cafe:cafe:100::/64"
TERMINAL4, TERMINAL6 = "10.55.0.100", "fd00:55:0:0::100"
GATEWAY4, GATEWAY6 = "10.55.100.100", "fd00:55:0:100::100"

_SATELLITE_LEFT = ("10.55.0.2", "fd00:55:0:0::2")
_SATELLITE_RIGHT = ("10.55.100.2", "fd00:55:0:100::2")
_GROUND_LEFT = ("10.66.0.2", "fd00:66::2")
_WAN = ("10.66.0.100", "fd00:66::100")  # the gateway's towards the server
_OTHERS4, _OTHERS6 = ("10.55.0.0/16", "10.66.0.0/16"), ("fd00:55::/32", "fd00:66::/32")
_TERMINAL_MAC, _GATEWAY_MAC, _WAN_MAC, _LAN_MAC = (f"02:bb:00:00:01:0{number}" for number in range(1, 5))

_CABLES: tuple[Cable, ...] = (
    (CLIENT_END, End(TERMINAL, "lan0", _LAN_MAC, LEFT4, LEFT6)),
    (
        End(TERMINAL, "sat0", _TERMINAL_MAC, TERMINAL4, TERMINAL6),
        End(SATELLITE, "eth0", _GATEWAY_MAC, *_SATELLITE_LEFT),
    ),
    (
        End(GATEWAY, "sat0", _GATEWAY_MAC, GATEWAY4, GATEWAY6),
        End(SATELLITE, "eth1", _TERMINAL_MAC, *_SATELLITE_RIGHT),
    ),
    (End(GATEWAY, "wan0", _WAN_MAC, *_WAN), End(GROUND, "eth0", SERVER_MAC, *_GROUND_LEFT)),
    (SERVER_END, End(GROUND, "eth1", _WAN_MAC, RIGHT4, RIGHT6)),
)


def path_environment() -> dict[str, str]:
    """The addresses that the path contract gives to both sides (implementations/_path/README.md)."""
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


def path_wiring_script(pids: Mapping[str, int], controllers: Mapping[str, str]) -> str:
    """A shell script that wires a path's lane. `pids`: of the holders by role, as the host numbers them.

    `controllers`: TCP's congestion controller by role, CUBIC where none is named. It comes with the routes: the host's
    own default may be any, and only who has rights on the host may change it in a namespace.
    """

    def routes(role: str, gateway: tuple[str, str], *networks: str) -> list[str]:
        return routes_via(*gateway, *networks, more=controlled(role))

    def controlled(role: str) -> str:
        return f" congctl {controllers.get(role, 'cubic')}"

    to_client, to_server = (CLIENT_NETWORK4, CLIENT_NETWORK6), (SERVER_NETWORK4, SERVER_NETWORK6)
    others = (*_OTHERS4, *_OTHERS6)
    return wiring_script(
        pids,
        _CABLES,
        {
            CLIENT: routes(CLIENT, (LEFT4, LEFT6), LANE4, LANE6),
            TERMINAL: [
                f"route change {CLIENT_NETWORK4} dev lan0{controlled(TERMINAL)}",
                *routes(TERMINAL, _SATELLITE_LEFT, *to_server, *others),
            ],
            GATEWAY: [
                *routes(GATEWAY, _SATELLITE_RIGHT, *to_client, _OTHERS4[0], _OTHERS6[0]),
                *routes(GATEWAY, _GROUND_LEFT, *to_server),
            ],
            SERVER: routes(SERVER, (RIGHT4, RIGHT6), LANE4, LANE6, *others),
        },
    )
