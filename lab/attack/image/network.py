"""Frames with forged addresses, floods, and attempts to leave the lane."""

import os
import random
import socket
import struct
import subprocess
import time
from contextlib import suppress

from aioquic.quic.crypto import CryptoPair
from common import AFTER, BEFORE, BESIDE, INSTEAD, OWN, PEER, ROLE, behaviour, escaped

# The gateway's address, which is also the peer's: the link forwards only frames to this address.
GATEWAY = bytes.fromhex("02bb00000002" if ROLE == "client" else "02bb00000001")
PING, CLOSE = b"\x01", b"\x1c\x0a\x00\x00"  # CLOSE: PROTOCOL_VIOLATION, without a reason (RFC 9000 §19.19)


def raw():
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sender.bind(("eth0", 0))
    return sender, sender.getsockname()[4]


def total(data):
    data += b"\0" * (len(data) % 2)
    words = sum(struct.unpack(f">{len(data) // 2}H", data))
    words = (words & 0xFFFF) + (words >> 16)
    return ~(words + (words >> 16)) & 0xFFFF


def ip4(source, target, protocol, payload):
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(target)
    return head[:10] + struct.pack(">H", total(head)) + head[12:] + payload


def send_all(frames, seconds=2.0):
    sender, _ = raw()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for frame in frames:
            with suppress(OSError):
                sender.send(frame)
        time.sleep(0.005)


def ethernet(payload, kind=b"\x08\x00", target=b"\xff" * 6):
    return target + raw()[1] + kind + payload


def send_forged(ports, datagram):
    """Send a UDP datagram in the peer's name, to this endpoint's own address and to the peer's."""
    udp = struct.pack(">HHHH", *ports, 8 + len(datagram), 0) + datagram
    packets = [ip4(PEER, OWN, 17, udp), ip4(PEER, PEER, 17, udp)]
    send_all([ethernet(packet, target=target) for packet in packets for target in (GATEWAY, b"\xff" * 6)])


@behaviour(BESIDE)
def forge_close():
    send_forged((443, 50000), b"\xc3\x00\x00\x00\x01" + os.urandom(1195))


def initial(from_client, original, target, source, frames):
    """A protected Initial packet of 1200 bytes. `original`: the first destination connection id of the client."""
    version = 1
    header = b"\xc3" + version.to_bytes(4) + bytes((len(target),)) + target + bytes((len(source),)) + source + b"\x00"
    payload = frames + bytes(1200 - len(header) - 2 - 4 - 16 - len(frames))
    header += (0x4000 | (4 + len(payload) + 16)).to_bytes(2) + (1000).to_bytes(4)
    keys = CryptoPair()
    keys.setup_initial(cid=original, is_client=from_client, version=version)
    return keys.encrypt_packet(header, payload, 1000)


def client_initial():
    """Connection ids and ports of the first Initial packet of the client that this endpoint sends or receives."""
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    listener.bind(("eth0", 0))
    listener.settimeout(10)
    while True:
        frame = listener.recv(65535)
        datagram = frame[14 + 20 + 8 :]
        is_udp4 = frame[12:14] == b"\x08\x00" and frame[14] == 0x45 and frame[23] == 17
        if not is_udp4 or frame[36:38] != b"\x01\xbb" or not datagram or datagram[0] & 0xF0 != 0xC0:
            continue
        target_end = 6 + datagram[5]
        source_end = target_end + 1 + datagram[target_end]
        return datagram[6:target_end], datagram[target_end + 1 : source_end], int.from_bytes(frame[34:36])


@behaviour(BESIDE)
def forge_initial_close():
    original, client, port = client_initial()
    if ROLE == "client":  # in the server's name, as if it came from the server
        send_forged((443, port), initial(False, original, client, os.urandom(8), CLOSE))
    else:
        send_forged((port, 443), initial(True, original, original, client, CLOSE))


@behaviour(BESIDE)
def forge_arp():
    mac = raw()[1]
    frames = []
    for address in (PEER, "193.167.0.2", "193.167.100.2"):
        head = struct.pack(">HHBBH", 1, 0x800, 6, 4, 2)  # a reply about Ethernet and IPv4 (RFC 826)
        addresses = mac + socket.inet_aton(address) + b"\xff" * 6 + socket.inet_aton(OWN)
        frames.append(ethernet(head + addresses, b"\x08\x06"))
    send_all(frames)


@behaviour(BESIDE)
def forge_routers():
    payload = bytes((134, 0, 0, 0, 64, 0)) + bytes(10) + os.urandom(32)
    header = struct.pack(">IHBB", 6 << 28, len(payload), 58, 255)
    header += socket.inet_pton(socket.AF_INET6, "fe80::1") + socket.inet_pton(socket.AF_INET6, "ff02::1")
    send_all([ethernet(header + payload, b"\x86\xdd", b"\x33\x33\0\0\0\1")])


@behaviour(BESIDE)
def forge_everything():
    end = time.monotonic() + 3
    sender, mac = raw()
    while time.monotonic() < end:
        with suppress(OSError):
            addresses = random.choice((b"\xff" * 6, os.urandom(6))) + random.choice((mac, os.urandom(6)))
            sender.send(addresses + os.urandom(random.randrange(2, 1400)))


@behaviour(INSTEAD)
def flood_initials():
    sender = socket.socket(type=socket.SOCK_DGRAM)
    while True:
        header = b"\xc3\x00\x00\x00\x01\x08" + os.urandom(8) + b"\x08" + os.urandom(8) + b"\x00\x44\x96"
        sender.sendto(header + os.urandom(1174), (PEER, 443))


@behaviour(INSTEAD)
def flood_connections():
    """Valid Initial packets of distinct connections, all with the same addresses and ports."""
    sender = socket.socket(type=socket.SOCK_DGRAM)
    while True:
        original, source = os.urandom(8), os.urandom(8)
        sender.sendto(initial(True, original, original, source, PING), (PEER, 443))


@behaviour(INSTEAD)
def flood_small():
    sender = socket.socket(type=socket.SOCK_DGRAM)
    while True:
        sender.sendto(b"\x40", (PEER, 443))


@behaviour(BESIDE)
def attack_simulator():
    for _ in range(2000):
        with suppress(OSError):
            socket.create_connection(("193.167.0.2", 57832), 0.2).send(os.urandom(5000))
    for port in range(1, 1025):
        with suppress(OSError):
            sender = socket.create_connection(("193.167.0.2" if ROLE == "client" else "193.167.100.2", port), 0.02)
            if port != 57832:
                escaped(f"port {port} of the simulator: {sender.getpeername()}")


@behaviour(BESIDE)
def reach_out():
    for target in ("172.17.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "193.167.0.1", "8.8.8.8", "127.0.0.11"):
        for port in (22, 53, 80, 443, 2375, 2376):
            with suppress(OSError):
                socket.create_connection((target, port), 0.1)
                escaped(f"reached {target}:{port}")
    for address in ("/var/run/docker.sock", "/run/containerd/containerd.sock"):
        if os.path.exists(address):
            escaped(address)


@behaviour(BESIDE)
def scan_lanes():
    flood_socket = socket.socket(type=socket.SOCK_DGRAM)
    flood_socket.settimeout(0.02)
    for last in range(1, 255):
        for network in ("193.167.0", "193.167.100", "172.17.0", "172.18.0"):
            address = f"{network}.{last}"
            if address in (PEER, OWN):
                continue
            with suppress(OSError):
                flood_socket.sendto(b"\xc3\x0a\x0a\x0a\x0a\x08" + bytes(1300), (address, 443))
                _, sender = flood_socket.recvfrom(2000)
                if sender[0] not in (PEER, OWN):
                    escaped(f"{sender} answers")


def run(command):
    return subprocess.run(command, shell=True, capture_output=True, timeout=10).returncode == 0


_INPUT = "add table inet f; add chain inet f i { type filter hook input priority 0; iif eth0 drop; }"
_OUTPUT = "add table inet f; add chain inet f o { type filter hook output priority 0; oif eth0 drop; }"
_INGRESS = "add table netdev f; add chain netdev f i { type filter hook ingress device eth0 priority 0; drop; }"
_DELAY, _RATE = "netem delay 2s loss 60%", "tbf rate 8kbit burst 1600 latency 9s"
_DOWN_AND_UP = "ip link set eth0 down; ip link set eth0 up"
_NEIGHBOURS = "".join(
    f"ip neighbour replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent; "
    for address in ("193.167.0.2", "193.167.100.2")
)
# Commands of an endpoint on its own network: name, when, command, seconds before it. Each is a behaviour.
COMMANDS = (
    ("link-down", AFTER, "ip link set eth0 down", 0),
    ("small-mtu", BEFORE, "ip link set eth0 mtu 68", 0),
    ("small-mtu-for-a-while", BESIDE, "ip link set eth0 mtu 68; sleep 2; ip link set eth0 mtu 1500", 0.2),
    ("flap-link", BESIDE, f"timeout 3 sh -c 'while true; do {_DOWN_AND_UP}; done'", 0),
    ("link-down-first", BEFORE, "ip link set eth0 down", 0),
    ("delete-interface", BEFORE, "ip link delete eth0", 0),
    ("delete-interface-later", BESIDE, "ip link delete eth0", 0.3),
    ("rename-interface", BEFORE, "ip link set eth0 down; ip link set eth0 name other; ip link set other up", 0),
    ("change-mac", BEFORE, "ip link set eth0 address 02:00:00:00:00:99", 0),
    ("remove-addresses", BEFORE, "ip address flush dev eth0", 0),
    ("remove-addresses-later", BESIDE, "ip address flush dev eth0", 0.3),
    ("delete-routes", BEFORE, "ip route flush table main; ip -6 route flush table main", 0),
    ("forbid-packets", BESIDE, "ip rule add prohibit pref 1; ip -6 rule add prohibit pref 1", 0.3),
    ("filter-packets", BEFORE, f"nft '{_INPUT}'", 0),
    ("filter-packets-later", BESIDE, f"nft '{_OUTPUT}'", 0.3),
    ("filter-at-the-interface", BEFORE, f"nft '{_INGRESS}'", 0),
    ("false-neighbours", BEFORE, f"{_NEIGHBOURS} ip link set eth0 arp off", 0),
    ("take-the-peers-address", BEFORE, f"ip address add {PEER}/32 dev lo", 0),
    ("shape-own-link", BEFORE, f"tc qdisc add dev eth0 root {_DELAY} || tc qdisc add dev eth0 root {_RATE}", 0),
)
for name, when, command, seconds in COMMANDS:
    behaviour(when, name)(lambda command=command, seconds=seconds: time.sleep(seconds) or run(command))


@behaviour(BEFORE)
def large_mtu():
    """Frames that are longer than any frame of the link, and frames without a checksum."""
    run("ethtool -K eth0 tx on sg on gso on tso on; ip link set eth0 mtu 9000; ip route flush cache")
    sender = socket.socket(type=socket.SOCK_DGRAM)
    for size in (100, 4000, 8000):
        for _ in range(5):
            with suppress(OSError):
                sender.sendto(bytes(size), (PEER, 9))


@behaviour(BEFORE)
def kernel_settings():
    for name, value in (("net/ipv4/conf/eth0/forwarding", "1"), ("net/ipv6/conf/all/disable_ipv6", "1")):
        with suppress(OSError), open(f"/proc/sys/{name}", "w") as file:
            file.write(value)
            escaped(f"wrote {name}")


@behaviour(BESIDE)
def many_interfaces():
    lines = "\n".join(f"link add v{number} type veth peer name w{number}" for number in range(2000))
    with suppress(subprocess.TimeoutExpired):
        subprocess.run("ip -force -batch -", shell=True, input=lines.encode(), capture_output=True, timeout=20)


@behaviour(BESIDE)
def busy_interfaces():
    end = time.monotonic() + 10
    lines = "link add v type veth peer name w\nlink delete v\n" * 200
    while time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run("ip -force -batch -", shell=True, input=lines.encode(), capture_output=True, timeout=10)
