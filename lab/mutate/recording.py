"""A recorded job as datagrams of opened packets: loaded with both captures and key logs, edited, and saved again.

The key that opens a packet is the right key, so the connection and the keys of every packet are found by trying keys.
"""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.mutate.wire import (
    LONG,
    SERVER_HELLO,
    SUITES,
    TRANSPORT_PARAMETERS,
    V1,
    V2,
    F,
    Frame,
    Keys,
    Kind,
    P,
    Packet,
    initial_keys,
    messages,
    parameters,
    split,
)

_HEADER = struct.Struct("<IIII")
_ETHERNET = 14


@dataclass(eq=False)
class Record:
    """One captured frame. `head` ends with the UDP header. In a frame without UDP, `head` is the whole frame."""

    time_ns: int
    head: bytes
    payload: bytes | None = None
    tail: bytes = b""

    @property
    def _is_ipv4(self) -> bool:
        return self.head[_ETHERNET] >> 4 == 4

    @property
    def ports(self) -> tuple[int, int]:
        """Source and destination."""
        source, destination = struct.unpack_from(">HH", self.head, len(self.head) - 8)
        return source, destination

    @property
    def addresses(self) -> tuple[bytes, bytes]:
        """Source and destination."""
        at, size = (_ETHERNET + 12, 4) if self._is_ipv4 else (_ETHERNET + 8, 16)
        return self.head[at : at + size], self.head[at + size : at + 2 * size]

    @property
    def source(self) -> tuple[bytes, int]:
        """Address and port."""
        return self.addresses[0], self.ports[0]

    @property
    def destination(self) -> tuple[bytes, int]:
        """Address and port."""
        return self.addresses[1], self.ports[1]

    @property
    def ecn(self) -> int:
        """The two bits of Explicit Congestion Notification."""
        return self.head[_ETHERNET + 1] & 3 if self._is_ipv4 else self.head[_ETHERNET + 1] >> 4 & 3

    def mark(self, ecn: int) -> None:
        """Set the two bits of Explicit Congestion Notification."""
        head = bytearray(self.head)
        if self._is_ipv4:
            head[_ETHERNET + 1] = head[_ETHERNET + 1] & ~3 | ecn
        else:
            head[_ETHERNET + 1] = head[_ETHERNET + 1] & ~0x30 | ecn << 4
        self.head = bytes(head)
        self._finish()

    def readdress(
        self, *, source: tuple[bytes, int] | None = None, destination: tuple[bytes, int] | None = None
    ) -> None:
        """Give the datagram another source or destination, each an address and a port."""
        (source_address, source_port), (address, port) = source or self.source, destination or self.destination
        at = _ETHERNET + (12 if self._is_ipv4 else 8)
        head = bytearray(self.head)
        head[at : at + 2 * len(address)] = source_address + address
        struct.pack_into(">HH", head, len(head) - 8, source_port, port)
        self.head = bytes(head)
        self._finish()

    def carry(self, payload: bytes) -> None:
        """Replace the payload, and correct lengths and checksums."""
        if payload != self.payload:
            self.payload = payload
            self._finish()

    def _finish(self) -> None:
        assert self.payload is not None
        head = bytearray(self.head)
        udp = len(head) - 8
        size = 8 + len(self.payload)
        struct.pack_into(">H", head, udp + 4, size)
        if self._is_ipv4:
            struct.pack_into(">H", head, _ETHERNET + 2, udp - _ETHERNET + size)
            struct.pack_into(">H", head, _ETHERNET + 10, 0)
            struct.pack_into(">H", head, _ETHERNET + 10, _checksum(bytes(head[_ETHERNET:udp])))
        else:
            struct.pack_into(">H", head, _ETHERNET + 4, udp - _ETHERNET - 40 + size)
        struct.pack_into(">H", head, udp + 6, 0)
        source, destination = self.addresses
        pseudo = source + destination + struct.pack(">II", size, 17)
        struct.pack_into(">H", head, udp + 6, _checksum(pseudo + bytes(head[udp:]) + self.payload) or 0xFFFF)
        self.head = bytes(head)

    @property
    def frame(self) -> bytes:
        """The whole frame."""
        return self.head + (self.payload or b"") + self.tail


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def read(path: Path) -> tuple[bytes, list[Record]]:
    """The file header and the records of a pcap file, which may be compressed."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    magic = data[:4]
    if magic not in (b"\x4d\x3c\xb2\xa1", b"\xd4\xc3\xb2\xa1"):
        raise ValueError(f"{path} is no pcap file with little-endian headers; found {magic.hex()}")
    tick = 1 if magic[0] == 0x4D else 1000
    records = []
    position = 24
    while position + 16 <= len(data):
        seconds, fraction, size, _ = _HEADER.unpack_from(data, position)
        position += 16 + size
        records.append(_record(seconds * 1_000_000_000 + fraction * tick, data[position - size : position]))
    return data[:24], records


def _record(time_ns: int, frame: bytes) -> Record:
    udp = 0
    if frame[12:14] == b"\x08\x00" and frame[_ETHERNET + 9] == 17:
        udp = _ETHERNET + (frame[_ETHERNET] & 15) * 4
    elif frame[12:14] == b"\x86\xdd" and frame[_ETHERNET + 6] == 17:
        udp = _ETHERNET + 40
    if not udp:
        return Record(time_ns, frame)
    end = udp + int.from_bytes(frame[udp + 4 : udp + 6])
    return Record(time_ns, frame[: udp + 8], frame[udp + 8 : end], frame[end:])


def write(path: Path, header: bytes, records: list[Record]) -> None:
    """Write a pcap file with these records."""
    tick = 1 if header[0] == 0x4D else 1000
    parts = [header]
    for record in records:
        frame = record.frame
        seconds, rest = divmod(record.time_ns, 1_000_000_000)
        parts.append(_HEADER.pack(seconds, rest // tick, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(parts))


def place(records: list[Record], record: Record) -> None:
    """Insert a record by its time. The other records keep their order, because captures are not strictly in the order
    of time."""
    before = len(records) - next(
        (count for count, each in enumerate(reversed(records)) if each.time_ns <= record.time_ns), len(records)
    )
    records.insert(before, record)


Address = tuple[bytes, int]


@dataclass(eq=False)
class Connection:
    """One connection. Dictionaries by role have the values that this role sent or chose."""

    client: Address
    server: Address
    original_dcid: bytes
    initial: list[tuple[bytes, dict[str, Keys]]] = field(default_factory=list)
    """Connection ID → sender → keys, for each ID and version with which Initial packets may be sealed."""
    version: int = 1
    suite: int = 0
    client_random: bytes = b""
    secrets: dict[str, bytes] = field(default_factory=dict)
    keys: dict[tuple[str, str, int], list[Keys]] = field(default_factory=dict)
    """Sender, encryption level, QUIC version → keys, ordered by key generation."""
    cids: dict[str, list[bytes]] = field(default_factory=lambda: {"client": [], "server": []})
    """Role → connection IDs that it issued, in order."""
    largest: dict[tuple[str, str], int] = field(default_factory=dict)
    """Sender and packet number space → highest packet number so far."""
    crypto: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)
    """Sender and packet number space → offset → bytes of the CRYPTO stream."""

    def add_crypto(self, sender: str, space: str, frame: Frame) -> None:
        """Keep the bytes of a CRYPTO frame."""
        pieces = self.crypto.setdefault((sender, space), {})
        if len(frame.data) > len(pieces.get(frame.offset, b"")):
            pieces[frame.offset] = frame.data

    def crypto_stream(self, sender: str, space: str) -> bytes:
        """The CRYPTO stream up to its first gap."""
        return assembled(self.crypto.get((sender, space), {}).items())


def assembled(pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """A stream up to its first gap, from pieces with their offsets. Where pieces overlap, the first counts."""
    whole = b""
    for offset, data in sorted(pieces, key=lambda piece: piece[0]):
        if offset <= len(whole):
            whole += data[len(whole) - offset :]
    return whole


_LEVELS = {
    Kind.ZERO_RTT: "EARLY_TRAFFIC_SECRET",
    Kind.HANDSHAKE: "HANDSHAKE_TRAFFIC_SECRET",
    Kind.ONE_RTT: "TRAFFIC_SECRET_0",
}
_HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def open_all(datagrams: Sequence[Datagram], secrets: dict[bytes, dict[str, bytes]]) -> list[Connection]:
    """Open all packets that can be opened. This takes several passes, because packets may come before the packets that
    bring their keys."""
    connections: list[Connection] = []
    while True:
        before = sum(packet.opened for datagram in datagrams for packet in datagram.packets)
        for datagram in datagrams:
            for packet in datagram.packets:
                if packet.kind is Kind.RETRY:
                    retry_of(datagram, packet, connections)
                elif not packet.opened and packet.kind in (*LONG, Kind.ONE_RTT):
                    _open(datagram, packet, connections, secrets)
        if before == sum(packet.opened for datagram in datagrams for packet in datagram.packets):
            return connections


def retry_of(datagram: Datagram, packet: Packet, connections: list[Connection]) -> None:
    """Store the connection of a Retry packet, and the keys that follow from the packet."""
    if datagram.connection is not None:
        return
    for connection in reversed(connections):
        if packet.dcid in connection.cids["client"]:
            datagram.connection = connection
            packet.original = connection.original_dcid
            connection.cids["server"].append(packet.scid)
            _add_initial(connection, packet.scid)
            return


def _add_initial(connection: Connection, dcid: bytes) -> None:
    connection.initial += [(dcid, initial_keys(dcid, version)) for version in (V1, V2)]


def _open(
    datagram: Datagram, packet: Packet, connections: list[Connection], secrets: dict[bytes, dict[str, bytes]]
) -> None:
    sender = datagram.sender
    known = [datagram.connection] if datagram.connection else _by_tuple(datagram, connections)
    for connection in known:
        if _try(connection, datagram, packet):
            _learn(connection, datagram, packet, secrets)
            return
    if packet.kind is Kind.INITIAL and sender == "client" and datagram.connection is None:
        record = next(iter(datagram.seen.values()))
        connection = Connection(record.source, record.destination, packet.dcid, version=packet.version)
        _add_initial(connection, packet.dcid)
        if _try(connection, datagram, packet):
            connections.append(connection)
            _learn(connection, datagram, packet, secrets)


def _by_tuple(datagram: Datagram, connections: list[Connection]) -> list[Connection]:
    """The connections to try: first those with the datagram's addresses, then all others, because clients migrate; the
    newest first."""
    record = next(iter(datagram.seen.values()))
    client = record.source if datagram.sender == "client" else record.destination
    newest = list(reversed(connections))
    return sorted(newest, key=lambda connection: connection.client != client)


def _try(connection: Connection, datagram: Datagram, packet: Packet) -> bool:
    sender = datagram.sender
    largest = connection.largest.get((sender, packet.space), -1)
    if packet.kind is Kind.ONE_RTT:
        for cid in dict.fromkeys(connection.cids[datagram.receiver]):
            if packet.raw[1 : 1 + len(cid)] == cid:
                packet.fields = slice(1 + len(cid), len(packet.raw))
                packet.dcid = cid
                if any(packet.open(keys, largest) for keys in _one_rtt(connection, sender)):
                    return True
        return False
    return any(packet.open(keys, largest) for keys in _long(connection, sender, packet))


def _long(connection: Connection, sender: str, packet: Packet) -> Iterator[Keys]:
    """The keys that may open a packet with a long header. Those of the packet's version are tried first."""
    if packet.kind is Kind.INITIAL:
        known = [keys[sender] for _, keys in reversed(connection.initial)]
        yield from sorted(known, key=lambda keys: keys.version != packet.version)
        return
    label = f"{sender.upper()}_{_LEVELS[packet.kind]}"
    early = SUITES if packet.kind is Kind.ZERO_RTT else ()  # it may come before the server has chosen a suite
    for version in dict.fromkeys((packet.version, V1, V2)):
        for suite in (connection.suite,) if connection.suite else early:
            if label in connection.secrets:
                yield _made(connection, sender, label, version, suite)


def _one_rtt(connection: Connection, sender: str) -> Iterator[Keys]:
    label = f"{sender.upper()}_{_LEVELS[Kind.ONE_RTT]}"
    if label not in connection.secrets or not connection.suite:
        return
    for version in dict.fromkeys((connection.version, V1, V2)):
        keys = connection.keys.setdefault((sender, "1-RTT", version), [])
        if not keys:
            keys.append(_made(connection, sender, label, version, connection.suite))
        yield from reversed(keys)
        newest = keys[-1].next()
        keys.append(newest)
        yield newest
        keys.pop()


def _made(connection: Connection, sender: str, label: str, version: int, suite: int) -> Keys:
    keys = connection.keys.setdefault((sender, f"{label} {suite}", version), [])
    if not keys:
        keys.append(Keys(connection.secrets[label], suite, version))
    return keys[0]


def _learn(connection: Connection, datagram: Datagram, packet: Packet, secrets: dict[bytes, dict[str, bytes]]) -> None:
    """Store the facts that an opened packet gives about its connection."""
    sender = datagram.sender
    datagram.connection = connection
    space = sender, packet.space
    connection.largest[space] = max(connection.largest.get(space, -1), packet.number)
    if packet.kind in LONG:
        if packet.scid not in connection.cids[sender]:
            connection.cids[sender].append(packet.scid)
        if sender == "server" or packet.kind is Kind.HANDSHAKE:
            connection.version = packet.version
    elif packet.keys is not None:
        known = connection.keys[sender, "1-RTT", packet.keys.version]
        if packet.keys not in known:
            known.append(packet.keys)
    for frame in packet.frames:
        if frame.type == F.CRYPTO:
            connection.add_crypto(sender, packet.space, frame)
        elif frame.type == F.NEW_CONNECTION_ID:
            connection.cids[sender].append(frame.data[:-16])
    if packet.kind is Kind.HANDSHAKE and sender == "server":
        _preferred(connection)
    if packet.kind is Kind.INITIAL:
        _hello(connection, sender, secrets)
        for frame in packet.frames:  # after Retry some clients send a new ClientHello with another random
            if sender == "client" and frame.type == F.CRYPTO and frame.data[6:38] in secrets:
                connection.client_random = frame.data[6:38]
                connection.secrets = secrets[connection.client_random]


def _preferred(connection: Connection) -> None:
    """The connection ID of a preferred address (RFC 9000 §18.2). It follows the IPv4 and the IPv6 address with their
    ports."""
    for message in messages(connection.crypto_stream("server", "handshake"))[0]:
        data = message.get(TRANSPORT_PARAMETERS)
        for kind, value in parameters(data) if data is not None else ():
            if kind == P.PREFERRED_ADDRESS and value[25 : 25 + value[24]] not in connection.cids["server"]:
                connection.cids["server"].append(value[25 : 25 + value[24]])


def _hello(connection: Connection, sender: str, secrets: dict[bytes, dict[str, bytes]]) -> None:
    whole = connection.crypto_stream(sender, "initial")
    if sender == "client" and whole[6:38] in secrets and not connection.client_random:
        connection.client_random = whole[6:38]
        connection.secrets = secrets[connection.client_random]
    for message in messages(whole)[0] if sender == "server" else ():
        if message.type == SERVER_HELLO and message.before[2:34] != _HELLO_RETRY:
            connection.suite = int.from_bytes(message.before[-3:-1])


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
    def load(cls, folder: Path) -> Recording:
        """Read a job folder and open all packets whose keys are known."""
        headers, records = {}, {}
        for vantage, path in _CAPTURES.items():
            headers[vantage], records[vantage] = read(folder / path)
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
            write(folder / path, self.headers[vantage], self.records[vantage])

    def packets(
        self, sender: str = "", kind: Kind | None = None, where: Callable[[Datagram, Packet], bool] = anything
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
            place(self.records[vantage], seen[vantage])
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
            place(self.records[vantage], record)
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
