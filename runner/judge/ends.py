"""The addresses of client, server, middlebox and second flow. The host name in the request selects the IP version
(docs/contract.md)."""

import ipaddress
from collections.abc import Iterable

from runner.decode.ip_packets import Packet
from runner.decode.schema import CLIENT, SERVER

_ENDS = {
    "server4": ("193.167.0.100", "193.167.100.100"),
    "server6": ("fd00:cafe:cafe:0::100", "fd00:cafe:cafe:100::100"),
}
BESIDE = (  # client and server of the second flow
    ipaddress.ip_address("193.167.1.100").packed,
    ipaddress.ip_address("193.167.101.100").packed,
)
SIMULATOR = ("193.167.0.2", "193.167.100.2", "fd00:cafe:cafe::2", "fd00:cafe:cafe:100::2")  # of a lane
_NETWORKS = {  # of the hosts at the client's end of an emulated link, and at the server's end
    CLIENT: ("193.167.0.0/24", "193.167.1.0/24", "fd00:cafe:cafe::/64", "fd00:cafe:cafe:1::/64"),
    SERVER: ("193.167.100.0/24", "193.167.101.0/24", "fd00:cafe:cafe:100::/64", "fd00:cafe:cafe:101::/64"),
}
TERMINAL, GATEWAY = (ipaddress.ip_address(text).packed for text in ("10.55.0.100", "10.55.100.100"))


def addresses(host: str, at_client: Iterable[Packet]) -> tuple[bytes, bytes]:
    """The addresses of client and server in binary form. `server46` has addresses of both IP versions: IPv6 is chosen
    when the client sent packets only to the server's IPv6 address, otherwise IPv4."""
    pairs = {name: tuple(ipaddress.ip_address(text).packed for text in ends) for name, ends in _ENDS.items()}
    if host not in pairs:
        used = {packet.destination for packet in at_client}
        host = "server6" if pairs["server6"][1] in used and pairs["server4"][1] not in used else "server4"
    client, server = pairs[host]
    return client, server


def sending_end(source: str, destination: str) -> int | None:
    """The end of an emulated link from which a packet with these addresses came: CLIENT or SERVER. None when neither
    address shows it, because an endpoint used addresses that the lane does not have."""
    for address, receives in ((destination, True), (source, False)):
        for end, networks in _NETWORKS.items():
            if any(ipaddress.ip_address(address) in ipaddress.ip_network(network) for network in networks):
                return 1 - end if receives else end
    return None
