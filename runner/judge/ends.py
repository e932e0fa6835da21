"""The addresses of client, server, middlebox and second flow. The host name in the request selects the IP version
(docs/contract.md)."""

import ipaddress
from collections.abc import Iterable

from runner.decode.ip_packets import Packet

_ENDS = {
    "server4": ("193.167.0.100", "193.167.100.100"),
    "server6": ("fd00:cafe:cafe:0::100", "fd00:cafe:cafe:100::100"),
}
BESIDE = (  # client and server of the second flow
    ipaddress.ip_address("193.167.1.100").packed,
    ipaddress.ip_address("193.167.101.100").packed,
)
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
