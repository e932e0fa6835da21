#!/usr/bin/env python3
"""Measures a link from its two ends: UDP sender, UDP receiver, ICMP echo. Standard library only; prints JSON.

Run it inside the network namespaces of the endpoints, receiver first:

    traffic.py receive --port 4000 --idle 2
    traffic.py send --to 193.167.0.100 --port 4000 --rate 26000000 --ip-length 1500 --count 13000
    traffic.py ping --to 193.167.100.100 --count 20
"""

import argparse
import ipaddress
import itertools
import json
import os
import socket
import statistics
import struct
import time
from typing import Any

SEQUENCE = struct.Struct("!IQ")  # number of the packet, send time in ns since 1970
TIMESPEC = struct.Struct("qq")
SO_TIMESTAMPNS = 35
IP_RECVTOS = 13
RECEIVE_BUFFER_BYTES = 32 << 20
UDP_HEADER = 8
ICMP_HEADER = struct.Struct("!BBHHH")


def family_of(address: str) -> socket.AddressFamily:
    """The socket family of a literal address."""
    return socket.AF_INET if ipaddress.ip_address(address).version == 4 else socket.AF_INET6


def ip_header_length(family: int) -> int:
    """Bytes of an IP header without options."""
    return 20 if family == socket.AF_INET else 40


def arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Time at which the kernel received a packet, in ns since 1970; the current time when the kernel gave no time."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = TIMESPEC.unpack(data[: TIMESPEC.size])
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return time.time_ns()


def ecn_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The ECN field of a packet over IPv4."""
    return next((data[0] & 3 for _, kind, data in ancillary if kind == socket.IP_TOS), 0)


def send(to: str, port: int, rate: float, ip_length: int, count: int, *, ecn: int = 0) -> dict[str, Any]:
    """Sends `count` numbered datagrams of `ip_length` bytes at `rate` bit/s of IP bytes, evenly spaced. `ecn`: their
    ECN field, over IPv4."""
    family = family_of(to)
    padding = bytes(ip_length - ip_header_length(family) - UDP_HEADER - SEQUENCE.size)
    interval = ip_length * 8 / rate
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((to, port))
        if ecn:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ecn)
        begin = time.monotonic()
        latest = 0.0
        for number in range(count):
            ahead = begin + number * interval - time.monotonic()
            if ahead > 50e-6:
                time.sleep(ahead)
            latest = max(latest, -ahead)
            sock.send(SEQUENCE.pack(number, time.time_ns()) + padding)
        took = time.monotonic() - begin
    return {"sent": count, "ip_length": ip_length, "duration_s": took, "largest_lateness_s": latest}


def collect(sock: socket.socket, timeout: float, idle: float) -> list[tuple[int, int, int, int, int]]:
    """Receives until no datagram came for `idle` s (before the first datagram: `timeout` s). Returns for each datagram:
    number, time of sending in ns, time of arrival in ns, payload bytes, ECN field (0 unless the socket asks for it)."""
    packets = []
    sock.settimeout(timeout)
    try:
        while True:
            data, ancillary, _, _ = sock.recvmsg(65536, 256)
            if len(data) >= SEQUENCE.size:
                number, sent = SEQUENCE.unpack_from(data)
                packets.append((number, sent, arrival_ns(ancillary), len(data), ecn_of(ancillary)))
            if len(packets) == 1:
                sock.settimeout(idle)
    except TimeoutError:
        return packets


def receive(port: int, timeout: float, idle: float, family: int, *, each: bool = False) -> dict[str, Any]:
    """Receives the datagrams of `send`. Returns how many arrived, their rate, and the missing numbers.

    The rate counts IP bytes between the first and the last arrival. `missing` lists the numbers below the largest
    received number that never arrived. Delays are time of arrival minus time of sending; they are right only when both
    ends share a clock. `each`: also return the packets as `collect` does.
    """
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BUFFER_BYTES)  # SO_RCVBUFFORCE
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if each:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        sock.bind(("", port))
        packets = collect(sock, timeout, idle)
    if not packets:
        return {"received": 0}
    numbers = [packet[0] for packet in packets]
    distinct = set(numbers)
    header = ip_header_length(family) + UDP_HEADER
    span = (packets[-1][2] - packets[0][2]) * 1e-9
    counted = sum(packet[3] + header for packet in packets[1:])
    return {
        "received": len(distinct),
        "duplicates": len(numbers) - len(distinct),
        "reordered": sum(1 for before, after in itertools.pairwise(numbers) if after < before),
        "missing": sorted(set(range(max(distinct))) - distinct),
        "rate_bps": counted * 8 / span if span > 0 else 0.0,
        "first_unix_s": packets[0][2] * 1e-9,
        "last_unix_s": packets[-1][2] * 1e-9,
        "delay_s": percentiles([(packet[2] - packet[1]) * 1e-9 for packet in packets]),
        **({"packets": packets} if each else {}),
    }


def percentiles(samples: list[float]) -> dict[str, float]:
    """Minimum, median, 99th percentile and maximum of at least one sample."""
    ordered = sorted(samples)
    return {
        "min": ordered[0],
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "max": ordered[-1],
    }


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def echo_request(family: int, identifier: int, number: int) -> bytes:
    """An ICMP echo request of 56 bytes of data, as ping sends; the kernel fills in the checksum of ICMPv6."""
    kind = 8 if family == socket.AF_INET else 128
    data = bytes(56)
    packet = ICMP_HEADER.pack(kind, 0, 0, identifier, number) + data
    if family == socket.AF_INET6:
        return packet
    return ICMP_HEADER.pack(kind, 0, checksum(packet), identifier, number) + data


def await_reply(sock: socket.socket, family: int, identifier: int, number: int, deadline: float) -> int | None:
    """The arrival time of the echo reply, ns since 1970, or None when the deadline (monotonic, s) passed before."""
    reply = 0 if family == socket.AF_INET else 129
    while (remaining := deadline - time.monotonic()) > 0:
        sock.settimeout(remaining)
        try:
            data, ancillary, _, _ = sock.recvmsg(2048, 256)
        except TimeoutError:
            return None
        offset = (data[0] & 0x0F) * 4 if family == socket.AF_INET else 0
        kind, _, _, got_identifier, got_number = ICMP_HEADER.unpack_from(data, offset)
        if (kind, got_identifier, got_number) == (reply, identifier, number):
            return arrival_ns(ancillary)
    return None


def ping(to: str, count: int, interval: float, timeout: float) -> dict[str, Any]:
    """Measures round-trip times by ICMP echo, one echo after another. Packets have 84 bytes (IPv4) or 104 bytes (IPv6).
    Needs NET_RAW."""
    family = family_of(to)
    protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
    identifier = os.getpid() & 0xFFFF
    samples = []
    with socket.socket(family, socket.SOCK_RAW, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for number in range(count):
            sent = time.time_ns()
            sock.sendto(echo_request(family, identifier, number), (to, 0))
            arrived = await_reply(sock, family, identifier, number, time.monotonic() + timeout)
            if arrived is not None:
                samples.append((arrived - sent) * 1e-9)
            time.sleep(interval)
    summary = {"sent": count, "received": len(samples), "rtt_samples_s": samples}
    return summary | ({"rtt_s": percentiles(samples)} if samples else {})


def main() -> None:
    """Runs one of the commands and prints its result."""
    parser = argparse.ArgumentParser(description="UDP sender, UDP receiver and ICMP echo; prints JSON.")
    commands = parser.add_subparsers(dest="command", required=True)
    sender = commands.add_parser("send")
    sender.add_argument("--to", required=True)
    sender.add_argument("--port", type=int, required=True)
    sender.add_argument("--rate", type=float, required=True, help="bit/s of IP bytes")
    sender.add_argument("--ip-length", type=int, default=1500, help="bytes, at least 60")
    sender.add_argument("--count", type=int, required=True)
    receiver = commands.add_parser("receive")
    receiver.add_argument("--port", type=int, required=True)
    receiver.add_argument("--timeout", type=float, default=20.0, help="s to wait for the first packet")
    receiver.add_argument("--idle", type=float, default=2.0, help="s without a packet that end the measurement")
    receiver.add_argument("--ipv6", action="store_true")
    pinger = commands.add_parser("ping")
    pinger.add_argument("--to", required=True)
    pinger.add_argument("--count", type=int, default=10)
    pinger.add_argument("--interval", type=float, default=0.1, help="s between a reply and the next request")
    pinger.add_argument("--timeout", type=float, default=3.0, help="s to wait for a reply")
    arguments = parser.parse_args()
    if arguments.command == "send":
        result = send(arguments.to, arguments.port, arguments.rate, arguments.ip_length, arguments.count)
    elif arguments.command == "receive":
        family = socket.AF_INET6 if arguments.ipv6 else socket.AF_INET
        result = receive(arguments.port, arguments.timeout, arguments.idle, family)
    else:
        result = ping(arguments.to, arguments.count, arguments.interval, arguments.timeout)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
