#!/usr/bin/python3 -ISB
"""A server that answers unknown versions on UDP and serves /www over TCP, or misbehaves."""

import _thread
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path


def negotiate() -> None:
    """Answer every packet with a long header with Version Negotiation (RFC 9000 §17.2.1)."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("", 443))
    while True:
        packet, sender = udp.recvfrom(65535)
        destination_end = 6 + packet[5]
        destination, source = (
            packet[5:destination_end],
            packet[destination_end : destination_end + 1 + packet[destination_end]],
        )
        udp.sendto(b"\x80" + bytes(4) + source + destination + struct.pack(">I", 1), sender)


def serve() -> None:
    """Serve HTTP/0.9 over TCP."""
    tcp = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind(("::", 443))
    tcp.listen()
    while True:
        connection, _ = tcp.accept()
        name = connection.recv(1024).split()[1].decode()
        with Path("/www" + name).open("rb") as file:
            connection.sendall(file.read())
        connection.close()


def flood() -> None:
    """Send packets to the client without an end."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        udp.sendto(bytes(1200), ("193.167.0.100", 443))


def flood_at_the_end(*_signal: object) -> None:
    """Flood after SIGTERM."""
    flood()


def say_goodbye(*_signal: object) -> None:
    """Send four packets to the client, which may have ended, and exit."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(4):
        udp.sendto(b"goodbye", ("193.167.0.100", 443))
    os._exit(0)


AT_THE_END = {"flood-at-the-end": flood_at_the_end, "say-goodbye": say_goodbye}

case = os.environ["TESTCASE"]
if case == "exit":
    sys.exit(4)
if case not in ("fetch", "mute", "die", "ignore-term", "fill-root", "flood", *AT_THE_END):
    sys.exit(127)
if case != "ignore-term":
    signal.signal(signal.SIGTERM, AT_THE_END.get(case, lambda *_: os._exit(0)))
if case == "flood":
    flood()
_thread.start_new_thread(serve, ())
if case != "mute":
    _thread.start_new_thread(negotiate, ())
if case == "fill-root":
    with Path("/filling").open("wb") as filling:
        while True:
            filling.write(bytes(1 << 20))
if case == "die":
    time.sleep(1.5)
    os._exit(5)
while True:
    time.sleep(1)
