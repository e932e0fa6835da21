"""The network that every lane's endpoints see (contract.md): the same addresses in each, in namespaces of their own."""

READY_PORT = 57832  # TCP, on the simulator: accepts once the path is open
CLIENT4, CLIENT6 = "193.167.0.100", "fd00:cafe:cafe:0::100"
SERVER4, SERVER6 = "193.167.100.100", "fd00:cafe:cafe:100::100"
LEFT4, LEFT6 = "193.167.0.2", "fd00:cafe:cafe:0::2"  # the simulator, towards the client
RIGHT4, RIGHT6 = "193.167.100.2", "fd00:cafe:cafe:100::2"  # and towards the server
LEFT_NETS = ("193.167.0.0/24", "fd00:cafe:cafe::/64")  # of the client; no packet of the server's side has them
RIGHT_NETS = ("193.167.100.0/24", "fd00:cafe:cafe:100::/64")
LANE4, LANE6 = "193.167.0.0/16", "fd00:cafe:cafe::/48"  # what endpoints reach through the simulator

# Locally administered. The simulator bridges frames as they are: its interface towards an endpoint bears the MAC
# address of the endpoint on the other side, so that a frame to the gateway is already addressed to its receiver.
CLIENT_MAC, SERVER_MAC = "02:bb:00:00:00:01", "02:bb:00:00:00:02"

_SERVERS = (f"server4:{SERVER4}", f"server6:{SERVER6}", f"server46:{SERVER4}", f"server46:{SERVER6}")
CLIENT_HOSTS = (*_SERVERS, f"sim:{LEFT4}", f"client4:{CLIENT4}", f"client6:{CLIENT6}")
SERVER_HOSTS = (*_SERVERS, f"sim:{RIGHT4}", f"client4:{CLIENT4}", f"client6:{CLIENT6}")
