#!/usr/bin/env python3
"""Sends datagrams whose bytes are all known, so that a receiver detects each change. Needs only the standard library,
and prints JSON.

Run it inside the network namespaces of the endpoints, receiver first:

    datagrams.py receive --port 4000 --idle 2 [--echo] [--ipv6]
    datagrams.py send --to 193.167.0.100 --port 4000 --count 100 --interval 0.01 --length 300 --first 0x40 --ecn 2
"""

import argparse
import itertools
import json
import socket
import struct
import time
from typing import Any

FRONT = struct.Struct("!BIQ")  # first byte (0x40: a QUIC short header), number, send time in ns since 1970
IP_TOS, IPV6_TCLASS, IP_RECVTOS, IPV6_RECVTCLASS = 1, 67, 13, 66
RECEIVE_BUFFER_BYTES = 32 << 20


def payload(first: int, number: int, sent_ns: int, length: int) -> bytes:
    """The payload: `length` bytes that are calculated from the front, so that the receiver finds every changed byte."""
    front = FRONT.pack(first, number, sent_ns)
    return front + bytes(itertools.islice(itertools.cycle(front), length - len(front)))


def family_of(ipv6: bool) -> socket.AddressFamily:
    return socket.AF_INET6 if ipv6 else socket.AF_INET


def ecn_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The ECN field of a received packet."""
    for _, kind, data in ancillary:
        if kind in (IP_TOS, IPV6_TCLASS):
            return data[0] & 3
    return 0


def receive(port: int, timeout: float, idle: float, echo: bool, ipv6: bool) -> dict[str, Any]:
    """Receives datagrams. Returns for each: number, whether it is intact, source, length, ECN, delay in s. `echo`: send
    each datagram back."""
    found: list[list[Any]] = []
    with socket.socket(family_of(ipv6), socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        level, option = (socket.IPPROTO_IPV6, IPV6_RECVTCLASS) if ipv6 else (socket.IPPROTO_IP, IP_RECVTOS)
        sock.setsockopt(level, option, 1)
        sock.bind(("", port))
        sock.settimeout(timeout)
        while True:
            try:
                data, ancillary, _, source = sock.recvmsg(65536, 256)
            except TimeoutError:
                return {"datagrams": found}
            sock.settimeout(idle)
            now = time.time_ns()
            if echo:
                sock.sendto(data, source)
            first, number, sent = FRONT.unpack_from(data)
            intact = data == payload(first, number, sent, len(data))
            delay = (now - sent) * 1e-9
            found.append([number, intact, f"{source[0]} {source[1]}", len(data), ecn_of(ancillary), delay])


def send(*, to: str, port: int, count: int, interval: float, length: int, first: int, ecn: int) -> dict[str, Any]:
    """Sends numbered datagrams from one socket, and counts the echoes that arrive until 1 s after the last datagram."""
    ipv6 = ":" in to
    echoed = []
    with socket.socket(family_of(ipv6), socket.SOCK_DGRAM) as sock:
        level, option = (socket.IPPROTO_IPV6, IPV6_TCLASS) if ipv6 else (socket.IPPROTO_IP, IP_TOS)
        sock.setsockopt(level, option, ecn)
        sock.connect((to, port))
        begin = time.monotonic()
        for number in range(count):
            echoed += _drain(sock, begin + number * interval)
            sock.send(payload(first, number, time.time_ns(), length))
        echoed += _drain(sock, time.monotonic() + 1.0)
    return {"sent": count, "echoed": echoed}


def _drain(sock: socket.socket, until: float) -> list[int]:
    """The numbers of the datagrams that arrive before `until`."""
    numbers = []
    while (left := until - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            numbers.append(FRONT.unpack_from(sock.recv(65536))[1])
        except (TimeoutError, ConnectionRefusedError):
            continue
    return numbers


def main() -> None:
    """Parses the command line and prints the measured values."""
    parser = argparse.ArgumentParser(description="Numbered datagrams of known content.")
    modes = parser.add_subparsers(dest="mode", required=True)
    receiving = modes.add_parser("receive")
    receiving.add_argument("--port", type=int, required=True)
    receiving.add_argument("--timeout", type=float, default=20.0)
    receiving.add_argument("--idle", type=float, default=1.5)
    receiving.add_argument("--echo", action="store_true")
    receiving.add_argument("--ipv6", action="store_true")
    sending = modes.add_parser("send")
    sending.add_argument("--to", required=True)
    sending.add_argument("--port", type=int, required=True)
    sending.add_argument("--count", type=int, required=True)
    sending.add_argument("--interval", type=float, default=0.005)
    sending.add_argument("--length", type=int, default=200)
    sending.add_argument("--first", type=lambda text: int(text, 0), default=0x40)
    sending.add_argument("--ecn", type=int, default=0)
    options = vars(parser.parse_args())
    modes_by_name = {"receive": receive, "send": send}
    print(json.dumps(modes_by_name[options.pop("mode")](**options)))


if __name__ == "__main__":
    main()
