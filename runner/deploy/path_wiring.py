"""The network of a path's lane: client, terminal, satellite segment, gateway, ground segment, server. Addresses too.

Client and server have the addresses of every lane (addresses.py). The segments are bridged as there: each end has a
subnet of its own, whose `.2` is the simulator's, with the MAC address of the other end.
"""

from collections.abc import Mapping

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
from runner.deploy.wiring import inside, interface, veth

CLIENT, TERMINAL, SATELLITE = "client", "terminal", "satellite"
GATEWAY, GROUND, SERVER = "gateway", "ground", "server"

CLIENT_NETWORK4, CLIENT_NETWORK6 = "193.167.0.0/24", "fd00:cafe:cafe:0::/64"
SERVER_NETWORK4, SERVER_NETWORK6 = "193.167.100.0/24", "fd00:cafe:cafe:100::/64"
TERMINAL4, TERMINAL6 = "10.55.0.100", "fd00:55:0:0::100"
GATEWAY4, GATEWAY6 = "10.55.100.100", "fd00:55:0:100::100"
WAN4, WAN6 = "10.66.0.100", "fd00:66::100"  # the gateway's towards the server

_SATELLITE_LEFT4, _SATELLITE_LEFT6 = "10.55.0.2", "fd00:55:0:0::2"
_SATELLITE_RIGHT4, _SATELLITE_RIGHT6 = "10.55.100.2", "fd00:55:0:100::2"
_GROUND_LEFT4, _GROUND_LEFT6 = "10.66.0.2", "fd00:66::2"
_OTHERS4, _OTHERS6 = ("10.55.0.0/16", "10.66.0.0/16"), ("fd00:55::/32", "fd00:66::/32")
_TERMINAL_MAC, _GATEWAY_MAC, _WAN_MAC, _LAN_MAC = (f"02:bb:00:00:01:0{number}" for number in range(1, 5))


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
    chosen = {role: controllers.get(role, "cubic") for role in (CLIENT, TERMINAL, GATEWAY, SERVER)}
    return "\n".join(
        (
            "set -eu",
            veth((pids[CLIENT], "eth0", CLIENT_MAC), (pids[TERMINAL], "lan0", _LAN_MAC)),
            veth((pids[TERMINAL], "sat0", _TERMINAL_MAC), (pids[SATELLITE], "eth0", _GATEWAY_MAC)),
            veth((pids[GATEWAY], "sat0", _GATEWAY_MAC), (pids[SATELLITE], "eth1", _TERMINAL_MAC)),
            veth((pids[GATEWAY], "wan0", _WAN_MAC), (pids[GROUND], "eth0", SERVER_MAC)),
            veth((pids[SERVER], "eth0", SERVER_MAC), (pids[GROUND], "eth1", _WAN_MAC)),
            inside(
                pids[SATELLITE],
                interface("eth0", _SATELLITE_LEFT4, _SATELLITE_LEFT6)
                + interface("eth1", _SATELLITE_RIGHT4, _SATELLITE_RIGHT6),
                *("eth0", "eth1"),
            ),
            inside(
                pids[GROUND],
                interface("eth0", _GROUND_LEFT4, _GROUND_LEFT6) + interface("eth1", RIGHT4, RIGHT6),
                *("eth0", "eth1"),
            ),
            inside(
                pids[CLIENT],
                interface("eth0", CLIENT4, CLIENT6) + _routes(chosen[CLIENT], LEFT4, LEFT6, LANE4, LANE6),
                "eth0",
            ),
            inside(pids[SERVER], interface("eth0", SERVER4, SERVER6) + _server_routes(chosen[SERVER]), "eth0"),
            inside(pids[TERMINAL], _terminal(chosen[TERMINAL]), "lan0", "sat0"),
            inside(pids[GATEWAY], _gateway(chosen[GATEWAY]), "sat0", "wan0"),
        )
    )


def _terminal(controller: str) -> list[str]:
    return [
        *interface("lan0", LEFT4, LEFT6),
        f"route change {CLIENT_NETWORK4} dev lan0 congctl {controller}",
        *interface("sat0", TERMINAL4, TERMINAL6),
        *_routes(
            controller, _SATELLITE_LEFT4, _SATELLITE_LEFT6, SERVER_NETWORK4, SERVER_NETWORK6, *_OTHERS4, *_OTHERS6
        ),
    ]


def _gateway(controller: str) -> list[str]:
    return [
        *interface("sat0", GATEWAY4, GATEWAY6),
        *interface("wan0", WAN4, WAN6),
        *_routes(
            controller, _SATELLITE_RIGHT4, _SATELLITE_RIGHT6, CLIENT_NETWORK4, CLIENT_NETWORK6, _OTHERS4[0], _OTHERS6[0]
        ),
        *_routes(controller, _GROUND_LEFT4, _GROUND_LEFT6, SERVER_NETWORK4, SERVER_NETWORK6),
    ]


def _server_routes(controller: str) -> list[str]:
    return _routes(controller, RIGHT4, RIGHT6, LANE4, LANE6, *_OTHERS4, *_OTHERS6)


def _routes(controller: str, gateway4: str, gateway6: str, *networks: str) -> list[str]:
    found = (
        f"route add {network} via {gateway6 if ':' in network else gateway4} congctl {controller}"
        for network in networks
    )
    return ["link set lo up", *found]
