"""The process: runs the flights that ALONE and FLIGHTS name against the other endpoint, and logs each in flights.jsonl.

Those of ALONE come first, one after the other. SLOTS of the others run at the same time. As a client, it makes one
connection for each flight, and an honest connection after it. As a server, it has a port for each slot, and takes the
name of a slot's next flight from a datagram to port 9, because the client under test must not know it.
"""

import json
import os
import selectors
import signal
import socket
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from ipaddress import ip_address
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
_PORT = 443
_REPEATS = 2  # meetings with a flood, so that what an endpoint keeps of each is seen
_FLOOD_SECONDS = 20.0  # that a slow endpoint may take longer for a flood
_SETTLE = 0.3  # seconds after a flood in which the other endpoint may forget its connection
_SLOTS_FROM = 4430  # the port of slot n, from 1, is this plus n; slot 0 is the usual port
_IP_TRANSPARENT = 19  # of linux/in.h; Python has no name for it
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
        self.gone = False  # whether the server answers no more
        self.lock = threading.Lock()  # the TLS engine edits messages by variables of its module

    def ticket(self) -> Any:
        """A session ticket that no other flight uses. When none is left, an honest connection asks for one. None: the
        server gives no tickets."""
        for _ in range(_TRIES + 1):
            with suppress(IndexError):
                return self.tickets.pop()
            self.connect({})
        return None

    def connect(self, flight: dict[str, Any], longer: float = 0.0, ticket: Any = None) -> Peer:
        """One connection, to its end. `longer`: seconds that it may take beyond the usual time."""
        ticket = self.ticket() if flight.get("resumes") else ticket
        replayed = self.connect({}, ticket=ticket) if flight.get("replays") else None
        before = self.connect(flight["before"]) if "before" in flight else None
        with self.lock:
            began = time.monotonic()
            until = began + self.longest + longer
            peer = Peer(
                flight, is_client=True, alpn=self.alpn, now=began, patience=PATIENCE, target=self.target,
                host=self.host, ticket=ticket, replayed=replayed, before=before, key_log=self.key_log,
            )  # fmt: skip
        with (
            socket.socket(self.address[0], socket.SOCK_DGRAM) as main,
            socket.socket(self.address[0], socket.SOCK_DGRAM) as other,
            selectors.DefaultSelector() as selector,
        ):
            if flight.get("other_address"):
                _leave_home(other, main, self.address)
            for each in (main, other):
                each.connect(self.address[4])
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ)
            while True:
                for data, elsewhere in peer.outbox:
                    _send((other if elsewhere else main), data)
                peer.outbox.clear()
                now = time.monotonic()
                if peer.done or self.gone:
                    break
                if now > until:
                    peer.finish(now)  # for servers that serve one connection after another
                    continue
                ready = selector.select(max(0.0, min(peer.timer() - now, 0.5)))
                with self.lock:
                    for key, _ in ready:
                        data = _receive(key.fileobj)
                        if data:
                            peer.receive(data, time.monotonic())
                    peer.elapse(time.monotonic())
        self.tickets += peer.new_tickets
        return peer

    def run(self, alone: list[dict[str, Any]], flights: list[dict[str, Any]], slots: int) -> int:
        """Run the flights until the server answers no more. The exit code."""
        alive = next((peer for _ in range(_FIRST_TRIES) if (peer := self.connect({})).answered), None)
        if alive is None:
            return 1
        self.longest = _LONGEST + 2 * (time.monotonic() - alive.began)
        for flight in alone:
            self.meet(flight)
        with ThreadPoolExecutor(slots) as pool:
            list(pool.map(self.meet, flights))
        if self.gone:
            return 1
        Path("/downloads", self.name).write_bytes(bytes(alive.streams[alive.requested or 0].data))
        return 0

    def meet(self, flight: dict[str, Any]) -> None:
        """Run a flight, and honest connections after it. Without a line that says `alive`, the server may have ended
        by this flight, or by another one at the same time."""
        if self.gone:
            return
        self.note(begun=flight["name"])
        floods, times = "times" in flight, [time.time()]
        longer = _FLOOD_SECONDS * floods
        for _ in range(_REPEATS if floods else 1):
            summary = self.connect(flight, longer).summary()
            self.note(**summary, alive=False)  # counts when the job ends with this server
            alive, tries = self.connect({}, longer), 1
            while tries < _TRIES and not alive.answered:
                alive, tries = self.connect({}), tries + 1
            time.sleep(_SETTLE if floods else 0)
            times.append(time.time())
            if alive.answered or not self.gone:
                self.note(**summary, alive=alive.answered, tries=tries, honest=alive.summary(), times=times)
            self.gone |= not alive.answered
            if self.gone:
                return


class Server(Endpoint):
    """Runs flights against clients, until SIGTERM."""

    def __init__(self, flights: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.flights, self.current = flights, dict[int, dict[str, Any]]()  # the flight of each slot
        self.began = dict[int, float]()  # when it began
        self.peers: dict[tuple[int, Any], Peer] = {}  # by slot and address
        self.tickets: dict[bytes, Any] | None = {} if os.environ["TESTCASE"] == "zerortt" else None
        certs = Path("/certs")
        self.identity = Identity((certs / "cert.pem").read_bytes(), (certs / "priv.key").read_bytes())
        self.content = next((path.read_bytes() for path in sorted(Path("/www").iterdir())), b"")
        self.running = True

    def stop(self, _: int, __: FrameType | None) -> None:
        self.running = False

    def run(self, slots: int) -> int:
        """Serve. The exit code."""
        signal.signal(signal.SIGTERM, self.stop)
        with ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            ports = (_PORT, *(_SLOTS_FROM + slot for slot in range(1, slots + 1)))
            listeners = [stack.enter_context(_listen(port)) for port in ports]
            announcements = stack.enter_context(_listen(_ANNOUNCEMENTS))
            for slot, each in enumerate((*listeners, announcements)):
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ, slot)
            while self.running:
                now = time.monotonic()
                wait = min((peer.timer() - now for peer in self.peers.values()), default=0.2)
                for key, _ in selector.select(max(0.0, min(wait, 0.2))):
                    with suppress(OSError):
                        if key.fileobj is announcements:
                            data, address = announcements.recvfrom(65536)
                            announcements.sendto(self.ring(data.decode().split()), address)
                        else:
                            self.take(key.data, listeners[key.data], *listeners[key.data].recvfrom(65536))
                for (slot, address), peer in list(self.peers.items()):
                    peer.elapse(time.monotonic())
                    self.send(listeners[slot], address, peer)
        for slot in range(slots + 1):
            self.end(slot)
        return 0

    def ring(self, words: list[str]) -> bytes:
        """`begin NAME SLOT`: the next client at this slot meets this flight, and starts after the answer. `end CODE
        SLOT`: it has ended with this exit code. `-`: it made no connection to the port of its slot."""
        slot = int(words[2])
        reached = any(at == slot for at, _ in self.peers)
        self.end(slot)
        if words[0] == "begin":
            self.current[slot], self.began[slot] = self.flights.get(words[1], {}), time.time()
            return b"+"
        flight, times = self.current.pop(slot, {}).get("name", ""), [self.began.get(slot, 0.0), time.time()]
        self.note(flight=flight, exit=int(words[1]), ended=time.monotonic(), times=times)
        return b"+" if reached else b"-"

    def end(self, slot: int) -> None:
        """Log the connections of a slot so far, and forget them."""
        for key in [key for key in self.peers if key[0] == slot]:
            self.note(**self.peers.pop(key).summary())

    def take(self, slot: int, listener: socket.socket, data: bytes, address: Any) -> None:
        """Give a datagram to its connection; the first of an address begins one."""
        version, key = int.from_bytes(data[1:5]), (slot, address)
        dcid = data[6 : 6 + data[5]] if len(data) >= 1200 and data[0] & 0x80 else b""
        if (old := self.peers.get(key)) and old.done and dcid and dcid not in (old.odcid, old.scid):
            self.peers[slot, old.odcid] = self.peers.pop(key)  # a client that connects again from the same port
        if key not in self.peers:
            if len(data) < 1200 or not data[0] & 0x80:
                return
            if version != 1:
                cids = data[6 : 6 + data[5]], data[7 + data[5] :][: data[6 + data[5]]]
                listener.sendto(encode_quic_version_negotiation(*cids, [1]), address)
                return
            flight = self.current.get(slot, {})
            if flight.get("resumes") and not any(at == slot for at, _ in self.peers):  # it gets the ticket
                flight = {"parameters": flight.get("earlier", {})}
            self.peers[key] = Peer(
                flight, is_client=False, alpn=self.alpn, now=time.monotonic(), patience=PATIENCE,
                identity=self.identity, content=self.content, tickets=self.tickets, key_log=self.key_log,
            )  # fmt: skip
        self.peers[key].receive(data, time.monotonic())
        self.send(listener, address, self.peers[key])

    def send(self, listener: socket.socket, address: Any, peer: Peer) -> None:
        """Send what the connection has."""
        for data, _ in peer.outbox:
            listener.sendto(data, address)
        peer.outbox.clear()


def _listen(port: int) -> socket.socket:
    ipv6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists()
    listener = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    if ipv6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::" if ipv6 else "0.0.0.0", port))
    return listener


def _leave_home(other: socket.socket, main: socket.socket, server: Any) -> None:
    """Let a socket send from the next IPv4 address. No answer arrives there. Needs NET_ADMIN."""
    main.connect(server[4])
    other.setsockopt(socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
    other.bind((str(ip_address(main.getsockname()[0]) + 1), 0))


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
    listed, slots = rows(), int(os.environ.get("SLOTS", "1"))
    names = [os.environ.get(variable, "").split() for variable in ("ALONE", "FLIGHTS")]
    if unknown := [name for part in names for name in part if name not in listed]:
        print(f"unknown flights: {', '.join(unknown)}; flights.toml lists them", flush=True)
        return 1
    if os.environ["ROLE"] == "server":
        return Server(listed).run(slots)
    alone, others = ([listed[name] for name in part] for part in names)
    return Client().run(alone, others, slots)


if __name__ == "__main__":
    raise SystemExit(main())
