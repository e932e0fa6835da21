"""A link in user space: a UDP proxy that delays, queues, polices, drops and reorders datagrams, and records its
actions.

`python -m lab.proxy SPEC FOLDER` runs in the network namespace between client and server. It shares no
code with the simulator (`sim/`) and the generator (`quinn/`), so a detector that fits only their links fails here. On
SIGTERM it writes `passages.csv`, with one row for each datagram, and ends.
"""

import csv
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

CLIENT_SIDE, SERVER_SIDE = ("193.167.0.2", 443), ("193.167.100.2", 40_443)
SERVER = ("193.167.100.100", 443)
READY_PORT = 57_832
"""A TCP port. Clients wait until this port accepts a connection (the contract's wait-for-it)."""
HEADERS = 28  # bytes of IPv4 and UDP
_LONG_HEADER = 0x80
_PRIORITY = 20  # priority in the scheduling class SCHED_FIFO
_MOST = 65_535  # bytes of the longest datagram
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; Python's socket module lacks it


@dataclass
class Passage:
    """The passage of one datagram. Times in seconds of the host's monotonic clock, sizes in bytes of IP packets."""

    direction: str  # forward or return
    came: float
    size: int
    wait: float  # seconds in the queue
    due: float  # when the datagram must be sent on
    fate: str  # delivered, or the reason of its loss: outage, policer, queue or loss
    left: float = 0.0  # when the datagram was sent on, at `due` or later; 0: it was lost


@dataclass
class Direction:
    """One direction. It applies in this order: outage, policer, queue, loss, data rate, delay, reordering."""

    name: str
    spec: dict[str, Any]
    random: Random
    _free: float = 0.0
    _leaving: deque[float] = field(default_factory=deque)
    _tokens: float = 0.0
    _filled_at: float | None = None

    def pass_on(self, now: float, size: int, since: float) -> Passage:
        """Pass a datagram on. `since`: seconds since the first datagram with a short header; negative before it."""
        link = self.spec
        rate = next((rate for begin, rate in reversed(link.get("changes", ())) if since >= begin), link["rate"])
        while self._leaving and self._leaving[0] <= now:
            self._leaving.popleft()
        fate = "delivered"
        if any(begin <= since < begin + duration for begin, duration in link.get("outages", ())):
            fate = "outage"
        elif self._exceeds_contract(now, size):
            fate = "policer"
        elif len(self._leaving) > link["queue"]:
            fate = "queue"
        elif self.random.random() < link.get("loss", 0.0):
            fate = "loss"
        wait = max(self._free - now, 0.0)
        if fate != "delivered":
            return Passage(self.name, now, size, wait, now, fate)
        self._free = now + wait + 8 * size / rate
        self._leaving.append(self._free)
        due = self._free + link["delay"]
        if self.random.random() < link.get("reorder", 0.0):
            due += link["reorder_delay"]
        return Passage(self.name, now, size, wait, due, fate)

    def _exceeds_contract(self, now: float, size: int) -> bool:
        if "policer" not in self.spec:
            return False
        rate, depth = self.spec["policer"]
        if self._filled_at is None:
            self._tokens, self._filled_at = depth, now
        self._tokens = min(depth, self._tokens + (now - self._filled_at) * rate / 8)
        self._filled_at = now
        if self._tokens < size:
            return True
        self._tokens -= size
        return False


class Proxy:
    """Both directions between one client and the server."""

    def __init__(self, spec: dict[str, Any]) -> None:
        random = Random(spec["seed"])
        self.directions = {name: Direction(name, spec[name], random) for name in ("forward", "return")}
        self.passages: list[Passage] = []
        self._due: list[tuple[float, int, Passage, bytes]] = []
        self._first_short: float | None = None
        self._client: tuple[str, int] | None = None
        self._near, self._far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for side, address in ((self._near, CLIENT_SIDE), (self._far, SERVER_SIDE)):
            side.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
            side.bind(address)
            side.setblocking(False)
        self._ready = socket.create_server(("", READY_PORT))
        self._ended = False

    def end(self) -> None:
        """End `run` after its current turn."""
        self._ended = True

    def run(self) -> None:
        """Forward datagrams until `end` is called."""
        while not self._ended:
            wait = max(self._due[0][0] - time.monotonic(), 0.0) if self._due else 0.2
            for side in select.select([self._near, self._far, self._ready], [], [], wait)[0]:
                if side is self._ready:
                    self._ready.accept()[0].close()
                else:
                    self._receive(side)
            self._send()

    def _receive(self, side: socket.socket) -> None:
        name = "return" if side is self._near else "forward"
        while True:
            try:
                data, source = side.recvfrom(_MOST)
            except BlockingIOError:
                return
            now = time.monotonic()
            if side is self._near:
                self._client = source
            if self._first_short is None and not data[0] & _LONG_HEADER:
                self._first_short = now
            since = -1.0 if self._first_short is None else now - self._first_short
            passage = self.directions[name].pass_on(now, len(data) + HEADERS, since)
            self.passages.append(passage)
            if passage.fate == "delivered":
                heapq.heappush(self._due, (passage.due, len(self.passages), passage, data))

    def _send(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, passage, data = heapq.heappop(self._due)
            passage.left = time.monotonic()
            if passage.direction == "return":
                self._far.sendto(data, SERVER)
            elif self._client is not None:
                self._near.sendto(data, self._client)


def save(passages: list[Passage], path: Path) -> None:
    """Write one row for each datagram, in the order of arrival."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(Passage.__dataclass_fields__)
        rows.writerows([getattr(passage, name) for name in Passage.__dataclass_fields__] for passage in passages)


def main(arguments: list[str]) -> int:
    """Run the proxy. Returns 0 after SIGTERM."""
    spec, folder = json.loads(Path(arguments[0]).read_bytes()), Path(arguments[1])
    proxy = Proxy(spec)
    signal.signal(signal.SIGTERM, lambda *_: proxy.end())
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    proxy.run()
    save(proxy.passages, folder / "passages.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
