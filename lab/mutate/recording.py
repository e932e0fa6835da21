"""A recorded job as datagrams of opened packets: loaded with both captures and key logs, edited, and saved again."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.mutate import capture
from lab.mutate.capture import Record
from lab.mutate.connection import Connection
from lab.mutate.frames import Frame
from lab.mutate.opening import open_all
from lab.mutate.packets import Kind, Packet, split

CLIENT, SERVER = "client", "server"
ROLES = (CLIENT, SERVER)
_CAPTURES = {CLIENT: "sim/left.pcap", SERVER: "sim/right.pcap"}


@dataclass(eq=False)
class Datagram:
    """One UDP datagram with its packets. `seen`: role → the record of the datagram at that role's side of the link."""

    sender: str
    seen: dict[str, Record]
    packets: list[Packet]
    connection: Connection | None = None
    damaged: bool = False
    """Whether the link changed the datagram, so that the receiver's record is another datagram."""

    @property
    def receiver(self) -> str:
        """The role that receives the datagram."""
        return SERVER if self.sender == CLIENT else CLIENT

    @property
    def sent_ns(self) -> int:
        """When the datagram left its sender. If the sender's capture lacks it: when it arrived."""
        return self.seen.get(self.sender, next(iter(self.seen.values()))).time_ns

    @property
    def arrived(self) -> bool:
        """Whether both captures have the datagram."""
        return len(self.seen) == 2

    @property
    def opened(self) -> bool:
        """Whether every packet of the datagram can be edited."""
        return all(packet.opened for packet in self.packets)

    def encode(self) -> bytes:
        """The payload of the datagram."""
        return b"".join(packet.encode() for packet in self.packets)

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.encode())


def anything(_datagram: Datagram, _packet: Packet) -> bool:
    """True for any packet."""
    return True


@dataclass
class Recording:
    """A job folder in memory. Datagrams are in the order in which they were sent."""

    folder: Path
    headers: dict[str, bytes]
    records: dict[str, list[Record]]
    datagrams: list[Datagram]
    connections: list[Connection]
    evidence: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._recorded = self._carried()

    def _carried(self) -> Counter[tuple[str, str]]:
        """The number of datagrams by the link's direction and by the end of the link: `packets_in`, `packets_out`."""
        carried: Counter[tuple[str, str]] = Counter()
        for datagram in self.datagrams:
            direction = "forward" if datagram.sender == "server" else "return"
            for vantage in datagram.seen:
                carried[direction, "packets_in" if vantage == datagram.sender else "packets_out"] += 1
        return carried

    @classmethod
    def load(cls, folder: Path) -> "Recording":
        """Read a job folder and open all packets whose keys are known."""
        headers, records = {}, {}
        for vantage, path in _CAPTURES.items():
            headers[vantage], records[vantage] = capture.read(folder / path)
        datagrams = _datagrams(records)
        logs = [(folder / role / "keys.log") for role in ROLES]
        secrets = _secrets(log.read_text() for log in logs if log.is_file())
        connections = open_all(datagrams, secrets)
        evidence = json.loads((folder / "evidence.json").read_text())
        return cls(folder, headers, records, datagrams, connections, evidence)

    def save(self, folder: Path) -> Path:
        """Write a job folder with the current packets. All other content is that of the recording."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("tables", "*.tables", "series.json", "qlog"))
        self.write_captures(folder)
        (folder / "evidence.json").write_text(json.dumps(self.evidence))
        carried, truth = self._carried(), folder / "sim" / "truth.json"
        if carried != self._recorded and truth.is_file():  # the link counted the packets that the mutant added
            document = json.loads(truth.read_text())
            for direction, counter in carried.keys() | self._recorded.keys():
                more = carried[direction, counter] - self._recorded[direction, counter]
                document[direction][counter] += more
            truth.write_text(json.dumps(document))
        return folder

    def write_captures(self, folder: Path) -> None:
        """Write both captures with the current packets into a job folder."""
        for datagram in self.datagrams:
            if any(packet.changed for packet in datagram.packets) or not datagram.packets:
                payload = datagram.encode()
                for record in datagram.seen.values():
                    record.carry(payload)
        for vantage, path in _CAPTURES.items():
            capture.write(folder / path, self.headers[vantage], self.records[vantage])

    def packets(
        self,
        sender: str = "",
        kind: Kind | None = None,
        where: Callable[[Datagram, Packet], bool] = anything,
    ) -> Iterator[tuple[Datagram, Packet]]:
        """Opened packets and unprotected packets (Retry, Version Negotiation), in the order of sending."""
        plain = (Kind.RETRY, Kind.VERSION_NEGOTIATION)
        for datagram in self.datagrams:
            for packet in datagram.packets:
                requested = sender in ("", datagram.sender) and kind in (None, packet.kind)
                if requested and (packet.opened or packet.kind in plain) and where(datagram, packet):
                    yield datagram, packet

    def frames(self, *types: int, sender: str = "") -> Iterator[tuple[Datagram, Packet, Frame]]:
        """Frames of these types, or all frames, in the order of sending."""
        for datagram, packet in self.packets(sender):
            for frame in packet.frames:
                if not types or frame.type in types or (8 in types and frame.is_stream):
                    yield datagram, packet, frame

    def remove(self, datagram: Datagram) -> None:
        """Remove a datagram from both captures, as if it had never been sent."""
        self.datagrams.remove(datagram)
        for vantage, record in datagram.seen.items():
            self.records[vantage].remove(record)

    def lose(self, datagram: Datagram) -> None:
        """Remove a datagram from the receiver's capture, as if the link had lost it."""
        self.records[datagram.receiver].remove(datagram.seen.pop(datagram.receiver))

    def insert(
        self, like: Datagram, packets: list[Packet], *, after_s: float, crossing_s: float | None = None
    ) -> Datagram:
        """Insert a datagram on the path of the datagram `like`, sent `after_s` later. It arrives unless `like` was
        lost."""
        shift = round(after_s * 1e9)
        seen = {}
        for vantage, record in like.seen.items():
            time_ns = record.time_ns + shift
            if crossing_s is not None and vantage != like.sender:
                time_ns = like.sent_ns + shift + round(crossing_s * 1e9)
            seen[vantage] = Record(time_ns, record.head, b"", record.tail)
            capture.place(self.records[vantage], seen[vantage])
        datagram = Datagram(like.sender, seen, packets, like.connection)
        for packet in packets:
            packet.changed = True
        self.datagrams.append(datagram)
        self.sort()
        return datagram

    def move(self, datagram: Datagram, seconds: float) -> None:
        """Send a datagram later, or earlier when `seconds` is negative."""
        for vantage, record in datagram.seen.items():
            self.records[vantage].remove(record)
            record.time_ns += round(seconds * 1e9)
            capture.place(self.records[vantage], record)
        self.sort()

    def sort(self) -> None:
        """Restore the order of sending after times were changed."""
        self.datagrams.sort(key=lambda datagram: datagram.sent_ns)


def _datagrams(records: dict[str, list[Record]]) -> list[Datagram]:
    """Datagrams in the order of sending. Equal bytes show which records of the two captures belong together."""
    datagrams: list[Datagram] = []
    waiting: dict[tuple[str, bytes], list[Datagram]] = {}
    sightings = [(record, vantage) for vantage in ROLES for record in records[vantage] if record.payload]
    # Records of a sender's capture come first, so that for a receiver's record the datagram already exists.
    servers = {
        address for record, _ in sightings for address, port in (record.source, record.destination) if port == 443
    }
    senders = {id(record): _sender(record, servers) for record, _ in sightings}
    sightings.sort(key=lambda sighting: (senders[id(sighting[0])] != sighting[1], sighting[0].time_ns))
    for record, vantage in sightings:
        sender = senders[id(record)]
        if not sender or record.payload is None:
            continue
        key = sender, record.payload
        if vantage != sender and waiting.get(key):
            waiting[key].pop(0).seen[vantage] = record
            continue
        datagram = Datagram(sender, {vantage: record}, split(record.payload), damaged=vantage != sender)
        datagrams.append(datagram)
        if vantage == sender:
            waiting.setdefault(key, []).append(datagram)
    datagrams.sort(key=lambda datagram: datagram.sent_ns)
    return datagrams


def _sender(record: Record, servers: set[bytes]) -> str:
    """The role that sent the record. The server may have a second port, as its preferred address."""
    source, destination = record.addresses
    if destination in servers:
        return CLIENT
    return SERVER if source in servers else ""


def _secrets(logs: Iterator[str]) -> dict[bytes, dict[str, bytes]]:
    """Client random → label → secret."""
    secrets: dict[bytes, dict[str, bytes]] = {}
    for log in logs:
        for line in log.splitlines():
            words = line.split()
            if len(words) == 3 and not line.startswith("#"):
                secrets.setdefault(bytes.fromhex(words[1]), {})[words[0]] = bytes.fromhex(words[2])
    return secrets
