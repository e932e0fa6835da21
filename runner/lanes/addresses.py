"""Addresses of a lane (docs/contract.md). All lanes have the same addresses, each lane in its own namespaces."""

from collections.abc import Sequence

READY_PORT = 57832  # TCP, on the simulator: it accepts connections when the link is open
CLIENT4, CLIENT6 = "193.167.0.100", "fd00:cafe:cafe:0::100"
SERVER4, SERVER6 = "193.167.100.100", "fd00:cafe:cafe:100::100"
LEFT4, LEFT6 = "193.167.0.2", "fd00:cafe:cafe:0::2"  # the simulator, towards the client
RIGHT4, RIGHT6 = "193.167.100.2", "fd00:cafe:cafe:100::2"  # the simulator, towards the server
# The client's subnets: no packet from the server's side has a source address in them.
LEFT_NETS = ("193.167.0.0/24", "fd00:cafe:cafe::/64")
RIGHT_NETS = ("193.167.100.0/24", "fd00:cafe:cafe:100::/64")
LANE4, LANE6 = "193.167.0.0/16", "fd00:cafe:cafe::/48"  # all networks of a lane, reached through the simulator

# Networks of the second flow's client and server; each has a router of the lane.
BESIDE_CLIENT4, BESIDE_CLIENT6 = "193.167.1.100", "fd00:cafe:cafe:1::100"
BESIDE_SERVER4, BESIDE_SERVER6 = "193.167.101.100", "fd00:cafe:cafe:101::100"
BESIDE_LEFT4, BESIDE_LEFT6 = "193.167.1.2", "fd00:cafe:cafe:1::2"
BESIDE_RIGHT4, BESIDE_RIGHT6 = "193.167.101.2", "fd00:cafe:cafe:101::2"
BESIDE_CLIENT_NETS = ("193.167.1.0/24", "fd00:cafe:cafe:1::/64")
BESIDE_SERVER_NETS = ("193.167.101.0/24", "fd00:cafe:cafe:101::/64")
BESIDE_CLIENT_MAC, BESIDE_SERVER_MAC = "02:bb:00:00:00:03", "02:bb:00:00:00:04"

# Locally administered. The simulator forwards frames unchanged: its interface towards one endpoint has the MAC address
# of the other endpoint, so that a frame to the gateway already has its receiver's address.
CLIENT_MAC, SERVER_MAC = "02:bb:00:00:00:01", "02:bb:00:00:00:02"

_SERVERS = (f"server4:{SERVER4}", f"server6:{SERVER6}", f"server46:{SERVER4}", f"server46:{SERVER6}")
CLIENT_HOSTS = (*_SERVERS, f"sim:{LEFT4}", f"client4:{CLIENT4}", f"client6:{CLIENT6}")
BESIDE_HOSTS = (f"server4:{BESIDE_SERVER4}", f"sim:{BESIDE_LEFT4}", f"client4:{BESIDE_CLIENT4}")
SERVER_HOSTS = (*_SERVERS, f"sim:{RIGHT4}", f"client4:{CLIENT4}", f"client6:{CLIENT6}")


def hosts_file(names: Sequence[str]) -> str:
    """The contents of /etc/hosts with localhost and `names`, `name:address` each."""
    entries = [name.split(":", 1) for name in ("localhost:127.0.0.1", "localhost:::1", *names)]
    return "".join(f"{address}\t{name}\n" for name, address in entries)
