"""The process: runs the flights that FLIGHTS names against the other endpoint, and logs each in flights.jsonl.

As a client, it makes one connection for each flight, and an honest connection after it. As a server, it takes the name
of the next flight from a datagram to port 9, because the client under test must not know it.
"""

import json
import os
import selectors
import signal
import socket
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from aioquic.quic.packet import encode_quic_version_negotiation
from connection import Identity
from peer import Peer

PATIENCE = 0.25  # seconds in which the other endpoint may react to a flight
_LONGEST = 4.0  # seconds of a connection, in addition to twice the time of the first honest connection
_TRIES = 2  # honest connections after a flight
_FIRST_TRIES = 5  # honest connections before the first flight: a server may still be starting
_FIRST_LONGEST = 8.0
_ANNOUNCEMENTS = 9
_ROWS = Path(__file__).with_name("flights.toml")
LOG = Path("/logs/flights.jsonl")


def rows(path: Path = _ROWS) -> dict[str, dict[str, Any]]:
    """The flights by name: those of the list, and those in the variable ROWS."""
    listed = tomllib.loads(path.read_text()) | json.loads(os.environ.get("ROWS", "{}"))
    return {name: {**row, "name": name} for name, row in listed.items()}


class Endpoint:
    """Sockets, clock and log."""

    def __init__(self) -> None:
        self.alpn = "h3" if os.environ["TESTCASE"] == "http3" else "hq-interop"
        self.log = LOG.open("a", buffering=1)
        key_log = os.environ.get("SSLKEYLOGFILE")
        self.key_log: Callable[[str], Any] = Path(key_log).open("a", buffering=1).write if key_log else len  # noqa: SIM115

    def note(self, **record: Any) -> None:
        """Write a line to the log."""
        self.log.write(json.dumps(record) + "\n")


class Client(Endpoint):
    """Runs flights against a server."""

    def __init__(self) -> None:
        super().__init__()
        url = urlsplit(os.environ["REQUESTS"].split()[0])
        self.target, self.host = url.path, url.hostname or "server4"
        self.name = Path(url.path).name
        self.address = socket.getaddrinfo(self.host, url.port or 443, type=socket.SOCK_DGRAM)[0]
        self.tickets: list[Any] = []
        self.longest = _FIRST_LONGEST

    def connect(self, flight: dict[str, Any]) -> Peer:
        """One connection, to its end."""
        ticket = self.tickets.pop() if flight.get("resumes") and self.tickets else None
        began = time.monotonic()
        peer = Peer(
            flight, is_client=True, alpn=self.alpn, now=began, patience=PATIENCE, target=self.target, host=self.host,
            ticket=ticket, key_log=self.key_log,
        )  # fmt: skip
        with (
            socket.socket(self.address[0], socket.SOCK_DGRAM) as main,
            socket.socket(self.address[0], socket.SOCK_DGRAM) as other,
            selectors.DefaultSelector() as selector,
        ):
            for each in (main, other):
                each.connect(self.address[4])
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ)
            while True:
                for data, elsewhere in peer.outbox:
                    _send((other if elsewhere else main), data)
                peer.outbox.clear()
                now = time.monotonic()
                if peer.done or now > began + self.longest:
                    break
                for key, _ in selector.select(max(0.0, min(peer.timer() - now, 0.5))):
                    data = _receive(key.fileobj)
                    if data:
                        peer.receive(data, time.monotonic())
                peer.elapse(time.monotonic())
        self.tickets += peer.new_tickets
        return peer

    def run(self, flights: list[dict[str, Any]]) -> int:
        """Run the flights until the server answers no more. The exit code."""
        alive = next((peer for _ in range(_FIRST_TRIES) if (peer := self.connect({})).answered), None)
        if alive is None:
            return 1
        self.longest = _LONGEST + 2 * (time.monotonic() - alive.began)
        for flight in flights:
            summary = self.connect(flight).summary()
            self.note(**summary, alive=False)  # counts when the job ends with this server
            alive, tries = self.connect({}), 1
            while tries < _TRIES and not alive.answered:
                alive, tries = self.connect({}), tries + 1
            self.note(**summary, alive=alive.answered, tries=tries, honest=alive.summary())
            if not alive.answered:
                return 1
        Path("/downloads", self.name).write_bytes(bytes(alive.streams[alive.requested or 0].data))
        return 0


class Server(Endpoint):
    """Runs flights against clients, until SIGTERM."""

    def __init__(self, flights: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.flights, self.current = flights, dict[str, Any]()
        self.peers: dict[Any, Peer] = {}
        certs = Path("/certs")
        self.identity = Identity((certs / "cert.pem").read_bytes(), (certs / "priv.key").read_bytes())
        self.content = next((path.read_bytes() for path in sorted(Path("/www").iterdir())), b"")
        self.running = True

    def stop(self, _: int, __: FrameType | None) -> None:
        self.running = False

    def run(self) -> int:
        """Serve. The exit code."""
        signal.signal(signal.SIGTERM, self.stop)
        with _listen(443) as main, _listen(_ANNOUNCEMENTS) as announcements, selectors.DefaultSelector() as selector:
            for each in (main, announcements):
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ)
            while self.running:
                now = time.monotonic()
                wait = min((peer.timer() - now for peer in self.peers.values()), default=0.2)
                selector.select(max(0.0, min(wait, 0.2)))
                # The announcement came before the client began: on a busy host both wait here.
                while data := _receive(announcements):
                    self.ring(data.decode().split())
                with suppress(OSError):
                    self.take(main, *main.recvfrom(65536))
                for address, peer in list(self.peers.items()):
                    peer.elapse(time.monotonic())
                    self.send(main, address, peer)
        self.end()
        return 0

    def ring(self, words: list[str]) -> None:
        """`begin NAME`: the next client meets this flight. `end CODE`: the client has ended with this exit code."""
        if words[0] == "begin":
            self.end()
            self.current = self.flights.get(words[1], {})
        else:
            self.end()
            self.note(flight=self.current.get("name", ""), exit=int(words[1]), ended=time.monotonic())
            self.current = {}

    def end(self) -> None:
        """Log the connections so far, and forget them."""
        for peer in self.peers.values():
            self.note(**peer.summary())
        self.peers.clear()

    def take(self, main: socket.socket, data: bytes, address: Any) -> None:
        """Give a datagram to its connection; the first of an address begins one."""
        version = int.from_bytes(data[1:5])
        if address not in self.peers:
            if len(data) < 1200 or not data[0] & 0x80:
                return
            if version != 1:
                cids = data[6 : 6 + data[5]], data[7 + data[5] :][: data[6 + data[5]]]
                main.sendto(encode_quic_version_negotiation(*cids, [1]), address)
                return
            self.peers[address] = Peer(
                self.current, is_client=False, alpn=self.alpn, now=time.monotonic(), patience=PATIENCE,
                identity=self.identity, content=self.content, key_log=self.key_log,
            )  # fmt: skip
        self.peers[address].receive(data, time.monotonic())
        self.send(main, address, self.peers[address])

    def send(self, main: socket.socket, address: Any, peer: Peer) -> None:
        """Send what the connection has."""
        for data, _ in peer.outbox:
            main.sendto(data, address)
        peer.outbox.clear()


def _listen(port: int) -> socket.socket:
    ipv6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists()
    listener = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    if ipv6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::" if ipv6 else "0.0.0.0", port))
    return listener


def _send(where: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # an ICMP error of an earlier datagram: the server has ended
        where.send(data)


def _receive(where: Any) -> bytes:
    try:
        return bytes(where.recv(65536))
    except OSError:
        return b""


def main() -> int:
    """Run the role that the contract names. The exit code."""
    role = os.environ["ROLE"]
    listed, names = rows(), os.environ.get("FLIGHTS", "").split()
    if unknown := [name for name in names if name not in listed]:
        print(f"unknown flights: {', '.join(unknown)}; flights.toml lists them", flush=True)
        return 1
    return Client().run([listed[name] for name in names]) if role == "client" else Server(listed).run()


if __name__ == "__main__":
    raise SystemExit(main())
