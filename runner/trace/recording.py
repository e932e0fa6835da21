"""One or two captures of the same connections, as arrays, and simple queries about one connection."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from runner.decode.columns import CLIENT, NULL, PACKET_TYPES, SERVER, Trace, integers, words
from runner.model.facts import PacketPlace

# Arithmetic on byte ranges [start, end): finds bytes of a sequence of ranges that are new, repeated, or repeated
# needlessly.
#
# Ranges are given as two int64 arrays of equal length, ordered by time. Empty ranges cover nothing.

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pieces:
    """The ranges after all of them were cut at the borders of all ranges. Two pieces are either equal or disjoint."""

    ranges: int
    pieces: int
    owner: Ints
    """For each cut: number of the range from which it was cut. These numbers never decrease."""
    piece: Ints
    """For each cut: number of its piece of the number line."""
    size: Ints
    """For each cut: its size in bytes."""

    def sum(self, chosen: Bools) -> Ints:
        """Per range: the bytes of its `chosen` cuts."""
        return np.bincount(self.owner[chosen], weights=self.size[chosen], minlength=self.ranges).astype(np.int64)

    def first(self, chosen: Bools | None = None) -> Ints:
        """Per cut: the first range that covers the same piece; `ranges` when no range does. With `chosen`, only ranges
        of these cuts count."""
        owner, piece = (self.owner, self.piece) if chosen is None else (self.owner[chosen], self.piece[chosen])
        first = np.full(self.pieces, self.ranges, dtype=np.int64)
        # For a repeated index, NumPy keeps the last value. In reversed order, this is the earliest range.
        first[piece[::-1]] = owner[::-1]
        return first[self.piece]


def cut(starts: Ints, ends: Ints) -> Pieces:
    """Cut the ranges at every border. O(n log n) for ranges that overlap little."""
    borders = np.unique(np.concatenate((starts, ends)))
    low, high = np.searchsorted(borders, starts), np.searchsorted(borders, ends)
    counts = np.maximum(high - low, 0)
    owner = np.repeat(np.arange(len(starts)), counts)
    piece = np.arange(len(owner)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
    return Pieces(
        ranges=len(starts), pieces=max(len(borders) - 1, 0), owner=owner, piece=piece, size=np.diff(borders)[piece]
    )


def new_bytes(starts: Ints, ends: Ints) -> Ints:
    """Bytes of each range that no earlier range covers."""
    pieces = cut(starts, ends)
    return pieces.sum(pieces.first() == pieces.owner)


def resent_bytes(starts: Ints, ends: Ints, arrived: Bools) -> tuple[Ints, Ints]:
    """Per range: the bytes that an earlier range covers, and the bytes that were repeated needlessly.

    A repeated byte is needless (spurious) when an earlier copy arrived, even if the sender couldn't know this.
    `arrived`: whether each range arrived.
    """
    pieces = cut(starts, ends)
    repeated = pieces.first() < pieces.owner
    spurious = pieces.first(arrived[pieces.owner]) < pieces.owner
    return pieces.sum(repeated), pieces.sum(spurious)


# One or two captures of the same connections, as arrays. A column is converted to an array when it is first used.

INITIAL, HANDSHAKE, APPLICATION = 0, 1, 2
"""Packet number spaces (RFC 9000 §12.3)."""

_SPACES: Mapping[str, int] = {"initial": INITIAL, "handshake": HANDSHAKE, "application": APPLICATION}
SPACE_OF_TYPE: Mapping[str, int] = {
    "initial": INITIAL,
    "handshake": HANDSHAKE,
    "0rtt": APPLICATION,
    "1rtt": APPLICATION,
}
_NUMBER_BITS = 44  # bits of a packet number that are compared: enough for 1.7e13 packets
_CLOCK_NOISE_NS = 1_000_000  # difference between the time stamps of two captures on one host
_CLOSES = ("connection_close", "application_close")

ROLES = {CLIENT: "client", SERVER: "server"}

Address = tuple[str, int]
"""IP address and port."""


class Columns:
    """The columns of one table as int64 arrays; null becomes NULL. In the column `connection`, the same number means
    the same connection in both captures."""

    def __init__(self, table: pa.Table, connections: Ints) -> None:
        self._table = table
        self._connections = np.append(connections, NULL)  # index -1, a packet of no connection, stays -1
        self._arrays: dict[str, Ints] = {}
        self._words: dict[str, tuple[Ints, list[str]]] = {}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, name: str) -> Ints:
        if name not in self._arrays:
            array = integers(self._table.column(name))
            self._arrays[name] = self._connections[array] if name == "connection" else array
        return self._arrays[name]

    def words(self, name: str) -> tuple[Ints, list[str]]:
        """A column of strings as positions in a list of words, and this list. The position of null is NULL."""
        if name not in self._words:
            self._words[name] = words(self._table.column(name))
        return self._words[name]

    def codes(self, name: str, codes: Mapping[str, int]) -> Ints:
        """A column of strings as numbers; `codes`: string → number. A string without a number becomes NULL."""
        indices, known = self.words(name)
        return np.array([*(codes.get(word, NULL) for word in known), NULL], dtype=np.int64)[indices]

    def named(self, name: str, *names: str) -> Bools:
        """Per row of a column of strings: whether the string is one of `names`."""
        chosen: Bools = self.codes(name, dict.fromkeys(names, 1)) == 1
        return chosen

    def cell(self, name: str, row: int) -> Any:
        """One value as a Python object, for columns that are not numbers."""
        return self._table.column(name)[row].as_py()


class Vantage:
    """The capture at the end of `role`. `numbers[i]`: the number of the capture's connection i in both captures."""

    def __init__(self, role: str, trace: Trace, numbers: Sequence[int]) -> None:
        self.role = role
        self.trace = trace
        connections = np.array(numbers, dtype=np.int64)
        self.datagrams = Columns(trace.datagrams, connections)
        self.packets = Columns(trace.packets, connections)
        self.stream_frames = Columns(trace.stream_frames, connections)
        self.ack_frames = Columns(trace.ack_frames, connections)
        self.frames = Columns(trace.frames, connections)
        self._ids: dict[str, tuple[Ints, list[bytes]]] = {}

    @cached_property
    def type(self) -> Ints:
        """Per packet: its type as a position in PACKET_TYPES."""
        return self.packets.codes("type", {name: code for code, name in enumerate(PACKET_TYPES)})

    @cached_property
    def eliciting(self) -> Bools:
        """Per packet: whether it contains a frame that must be acknowledged (RFC 9000 §13.2.1)."""
        return self._has(~self.frames.named("name", "padding", "ack", *_CLOSES))

    @cached_property
    def closing(self) -> Bools:
        """Per packet: whether it contains CONNECTION_CLOSE."""
        return self._has(self.frames.named("name", *_CLOSES))

    @cached_property
    def framed(self) -> Bools:
        """Per packet: whether it contains a frame."""
        return self._has(np.ones(len(self.frames), dtype=bool))

    def _has(self, frames: Bools) -> Bools:
        has = np.zeros(len(self.packets), dtype=bool)
        has[self.frames["packet"][frames]] = True
        return has

    def ids(self, name: str) -> tuple[Ints, list[bytes]]:
        """Per packet: the position of its `dcid` or `scid` in a list, NULL without one; and this list."""
        if name not in self._ids:
            coded = self.trace.packets.column(name).combine_chunks().dictionary_encode()
            coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
            codes = coded.indices.fill_null(NULL).to_numpy(zero_copy_only=False).astype(np.int64)
            self._ids[name] = codes, coded.dictionary.to_pylist()
        return self._ids[name]

    @cached_property
    def route(self) -> Ints:
        """Per datagram: a number that stands for its source and destination. The opposite direction has another
        number."""
        (source, _), (target, others) = self.datagrams.words("src"), self.datagrams.words("dst")
        key = (source * (len(others) + 1) + target) << 32
        return key | self.datagrams["src_port"] << 16 | self.datagrams["dst_port"]

    def ends(self, datagram: int, sender: int) -> tuple[Address, Address]:
        """The addresses and ports of a datagram, first that of the endpoint `sender`."""
        (source, sources), (target, targets) = self.datagrams.words("src"), self.datagrams.words("dst")
        start = sources[source[datagram]], int(self.datagrams["src_port"][datagram])
        end = targets[target[datagram]], int(self.datagrams["dst_port"][datagram])
        return (start, end) if self.datagrams["sender"][datagram] == sender else (end, start)

    @cached_property
    def packet_time(self) -> Ints:
        """Per packet: ns since the Unix epoch."""
        return self.datagrams["time_ns"][self.packets["datagram"]]

    @cached_property
    def packet_ecn(self) -> Ints:
        """Per packet: the ECN codepoint of its datagram."""
        return self.datagrams["ecn"][self.packets["datagram"]]

    @cached_property
    def packet_space(self) -> Ints:
        """Per packet: its packet number space; NULL for packets without a packet number."""
        return self.packets.codes("type", SPACE_OF_TYPE)

    @cached_property
    def packet_key(self) -> Ints:
        """Per packet: a key that is equal for the same packet in both captures; NULL without a packet number."""
        packets, space = self.packets, self.packet_space
        connection, sender, number = packets["connection"], packets["sender"], packets["packet_number"]
        key = packet_key(connection, sender, space, number)
        return np.where((connection < 0) | (sender < 0) | (space < 0) | (number < 0), NULL, key)

    @cached_property
    def ack_space(self) -> Ints:
        """Per ACK frame: the packet number space that it acknowledges."""
        return self.ack_frames.codes("space", _SPACES)

    def ack_ranges(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """All ranges of these ACK frames, in order: index of the frame in `rows`, first and last packet number."""
        column = self.trace.ack_frames.column("ranges").take(pa.array(rows)).combine_chunks()
        flat, owner = pc.list_flatten(column), pc.list_parent_indices(column)
        first, last = (np.asarray(pc.struct_field(flat, name), dtype=np.int64) for name in ("first", "last"))
        return np.asarray(owner, dtype=np.int64), first, last


def packet_key(connection: Ints, sender: Ints | int, space: Ints | int, number: Ints) -> Ints:
    """The values of `Vantage.packet_key` for these packets."""
    return ((connection * 2 + sender) * 4 + space) << _NUMBER_BITS | (number & ((1 << _NUMBER_BITS) - 1))


def find(keys: Ints, sought: Ints) -> Ints:
    """Per key in `sought`: the index of its first occurrence in `keys`; NULL when it does not occur or is NULL."""
    if not len(keys):
        return np.full(len(sought), NULL, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys, sought, sorter=order), len(keys) - 1)
    index = order[place]
    return np.where((keys[index] == sought) & (sought != NULL), index, NULL)


def first_cover(points: Ints, first: Ints, last: Ints, time: Floats) -> Floats:
    """Per point (sorted, distinct): the `time` of the first range that covers it; infinity when no range covers it.

    Ranges include both ends and are in order of time. Each range is written as two overlapping runs of points whose
    length is a power of two. Then each run is split into halves, from the longest to the shortest. This takes
    O((n + m) log n) and no loop over packets.
    """
    count = len(points)
    low, high = np.searchsorted(points, first), np.searchsorted(points, last, side="right") - 1
    chosen = np.flatnonzero(low <= high)[::-1]  # NumPy keeps the last value for an index: here the earliest
    low, high, time = low[chosen], high[chosen], time[chosen]
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
    levels = int(level.max(initial=0)) + 1
    heads, tails = np.full((2, levels, count), np.inf)
    heads[level, low] = time
    tails[level, high - (1 << level) + 1] = time
    table = np.minimum(heads, tails)
    for size in range(levels - 1, 0, -1):
        half = 1 << (size - 1)
        table[size - 1] = np.minimum(table[size - 1], table[size])
        table[size - 1][half:] = np.minimum(table[size - 1][half:], table[size][:-half])
    times: Floats = table[0]
    return times


def first_ack(vantage: Vantage, rows: Ints, numbers: Ints) -> int | None:
    """The first of the ACK frames `rows` that acknowledges one of the packet numbers `numbers`, which are sorted. None
    when no frame does."""
    owner, low, high = vantage.ack_ranges(rows)
    found = owner[np.searchsorted(numbers, low) < np.searchsorted(numbers, high, side="right")]
    return int(rows[found[0]]) if len(found) else None


@dataclass(frozen=True)
class ConnectionRow:
    """One connection in the connection tables: its rows at the client's and the server's vantage point."""

    client: dict[str, Any] | None
    server: dict[str, Any] | None

    def value(self, name: str) -> Any:
        """The value at the client's vantage point; when unknown, the value at the server's."""
        for row in (self.client, self.server):
            if row is not None and row[name] is not None:
                return row[name]
        return None

    def either(self, name: str) -> bool | None:
        """Whether the field is True at either vantage point; None when it is unknown at both."""
        values = [row[name] for row in (self.client, self.server) if row is not None and row[name] is not None]
        return any(values) if values else None


def _mirrored(trace: Trace | None) -> Trace | None:
    """The trace with client and server exchanged."""
    if trace is None:
        return None
    tables = {name: getattr(trace, name) for name in ("datagrams", "packets", "stream_frames", "ack_frames", "frames")}
    for name, table in tables.items():
        sender = table.column("sender")
        other = pc.if_else(pc.less(sender, 0), sender, pc.subtract(SERVER, sender)).cast(sender.type)
        tables[name] = table.set_column(table.schema.get_field_index("sender"), "sender", other)
    client, server = (f"{role}_transport_parameters" for role in ROLES.values())
    exchanged = {client: server, server: client}
    names = [exchanged.get(name, name) for name in trace.connections.column_names]
    return replace(trace, connections=trace.connections.rename_columns(names), **tables)


class Recording:
    """Both captures with common numbers for connections: the same number means the same connection in both captures.

    With `upload`, client and server are exchanged, so that the files go from `server` to `client` in every recording.
    The names of the vantage points stay those of the endpoints.
    """

    def __init__(self, client_side: Trace | None, server_side: Trace | None, *, upload: bool = False) -> None:
        self.upload = upload
        roles = list(ROLES.values())
        if upload:
            client_side, server_side = _mirrored(server_side), _mirrored(client_side)
            roles.reverse()
        clients = client_side.connections.to_pylist() if client_side else []
        servers = server_side.connections.to_pylist() if server_side else []
        partners = _partners(clients, servers)
        rows = [
            ConnectionRow(row, servers[at] if at is not None else None)
            for row, at in zip(clients, partners, strict=True)
        ]
        numbers = {at: number for number, at in enumerate(partners) if at is not None}
        for at, row in enumerate(servers):
            if at not in numbers:
                numbers[at] = len(rows)
                rows.append(ConnectionRow(None, row))
        self.connections = tuple(rows)
        shared = [numbers[at] for at in range(len(servers))]
        self.client = Vantage(roles[CLIENT], client_side, range(len(clients))) if client_side else None
        self.server = Vantage(roles[SERVER], server_side, shared) if server_side else None

    @property
    def vantages(self) -> tuple[Vantage, ...]:
        """The existing vantage points, the client's first."""
        return tuple(vantage for vantage in (self.client, self.server) if vantage is not None)

    def near(self, sender: int) -> Vantage | None:
        """The vantage point at `sender`. It sees all packets that `sender` sent."""
        return self.client if sender == CLIENT else self.server

    def far(self, sender: int) -> Vantage | None:
        """The vantage point at the peer of `sender`."""
        return self.near(SERVER - sender)

    @cached_property
    def origin_ns(self) -> int | None:
        """The time when the client sent its first packet: an Initial packet, or a packet of an unknown version that
        the server answered with Version Negotiation. Without either, the time of its first packet of any unknown
        version. None without a capture at the client."""
        opener = SERVER if self.upload else CLIENT
        vantage = self.near(opener)
        if vantage is None:
            return None
        packets = vantage.packets
        mine = packets["sender"] == opener
        unknown = packets.named("type", "unknown") & mine
        negotiated = packets["connection"][packets.named("type", "version_negotiation")]
        first = packets.named("type", "initial") & mine
        first |= unknown & (packets["connection"] >= 0) & np.isin(packets["connection"], negotiated)
        if not first.any():
            first = unknown
        return int(vantage.packet_time[first].min()) if first.any() else None

    def place(self, vantage: Vantage, datagram: int) -> PacketPlace | None:
        """The place of a datagram, by its row. None when the tables are too old."""
        record = int(vantage.datagrams["record"][datagram])
        if record == NULL:
            return None
        return PacketPlace(
            vantage=vantage.role, record=record, time=self.seconds(int(vantage.datagrams["time_ns"][datagram]))
        )

    def seconds(self, time_ns: int | None) -> float | None:
        """A time of the captures as seconds since the origin."""
        if time_ns is None or self.origin_ns is None:
            return None
        return (time_ns - self.origin_ns) / 1e9

    @cached_property
    def one_clock(self) -> bool:
        """False when a packet seems to arrive before it was sent: the captures are from two hosts whose clocks differ.
        Otherwise True, also when a capture is missing."""
        for near, far, place in ((self.server, self.client, self.arrival), (self.client, self.server, self.departure)):
            if near is None or far is None or place is None:
                return True
            sender = SERVER if near is self.server else CLIENT
            rows = np.flatnonzero((place != NULL) & (near.packets["sender"] == sender))
            if (far.packet_time[place[rows]] - near.packet_time[rows] < -_CLOCK_NOISE_NS).any():
                return False
        return True

    @cached_property
    def arrival(self) -> Ints | None:
        """Per packet of the server-side capture: its row in the client-side capture; NULL when it is not there."""
        if self.client is None or self.server is None:
            return None
        return find(self.client.packet_key, self.server.packet_key)

    @cached_property
    def departure(self) -> Ints | None:
        """Per packet of the client-side capture: its row in the server-side capture; NULL when it is not there."""
        if self.client is None or self.server is None:
            return None
        return find(self.server.packet_key, self.client.packet_key)


def _partners(clients: list[dict[str, Any]], servers: list[dict[str, Any]]) -> list[int | None]:
    """Per connection at the client: its row at the server; None when it is not there.

    The client random of a connection is unique. Its first destination connection ID is almost unique (RFC 9000 §7.2).
    Addresses are not compared, because a NAT may be between the captures.
    """
    free = dict(enumerate(servers))
    partners: list[int | None] = []
    for row in clients:
        partner = None
        for name in ("client_random", "odcid"):
            if row[name]:
                partner = next((at for at, other in free.items() if other[name] == row[name]), None)
            if partner is not None:
                del free[partner]
                break
        partners.append(partner)
    return partners


# One connection of a recording: its rows, and simple queries about its rows.


class Scope:
    """Queries about one connection. Packets of an endpoint are read from the capture at the endpoint's own end, if this
    capture exists."""

    def __init__(self, recording: Recording, number: int) -> None:
        self.recording = recording
        self.number = number
        self.row: ConnectionRow = recording.connections[number]

    @cached_property
    def client_parameters(self) -> Mapping[str, object]:
        """The client's transport parameters; empty when they were not seen."""
        return _parameters(self.row.value("client_transport_parameters"))

    @cached_property
    def server_parameters(self) -> Mapping[str, object]:
        """The server's transport parameters; empty when they were not seen."""
        return _parameters(self.row.value("server_transport_parameters"))

    def best(self, sender: int) -> Vantage:
        """The vantage point of `sender`; without a capture there, the other vantage point."""
        vantage = self.recording.near(sender) or self.recording.far(sender)
        assert vantage is not None  # at least one capture has the connection
        return vantage

    def mine(self, columns: Columns, sender: int | None = None) -> Bools:
        """Per row of a table: whether it belongs to this connection and, with `sender`, was sent by `sender`."""
        rows: Bools = columns["connection"] == self.number
        return rows if sender is None else rows & (columns["sender"] == sender)

    def packets(self, vantage: Vantage, sender: int, *types: str) -> Ints:
        """Rows of the packets of these types that `sender` sent on this connection."""
        return np.flatnonzero(self.mine(vantage.packets, sender) & vantage.packets.named("type", *types))

    def count(self, sender: int, packet_type: str) -> int:
        """The number of packets of a type that `sender` sent."""
        return len(self.packets(self.best(sender), sender, packet_type))

    def first_at(self, end: int, sender: int, packet_type: str) -> float | None:
        """The time when the first packet of a type passed the vantage point at `end`; None when it was not seen."""
        vantage = self.recording.near(end)
        if vantage is None:
            return None
        rows = self.packets(vantage, sender, packet_type)
        return self.recording.seconds(int(vantage.packet_time[rows].min())) if len(rows) else None

    def place(self, vantage: Vantage, packet: int) -> PacketPlace | None:
        """The place of a packet, by its row."""
        return self.recording.place(vantage, int(vantage.packets["datagram"][packet]))

    def places(self, vantage: Vantage, packets: Iterable[int]) -> tuple[PacketPlace, ...]:
        """The places of the datagrams that contain these packets. Each datagram occurs once."""
        known = (self.place(vantage, int(packet)) for packet in packets)
        return tuple(dict.fromkeys(place for place in known if place is not None))

    def frames(self, vantage: Vantage, sender: int, *names: str) -> Ints:
        """Rows of the frames with these names that `sender` sent on this connection."""
        return np.flatnonzero(self.mine(vantage.frames, sender) & vantage.frames.named("name", *names))


def _parameters(text: str | None) -> Mapping[str, object]:
    try:
        parsed = json.loads(text) if text else {}
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def integer_parameter(parameters: Mapping[str, object], name: str) -> int | None:
    """The value of an integer transport parameter; 0 when it was left out (RFC 9000 §18.2). None when `parameters` is
    empty."""
    value = parameters.get(name, 0) if parameters else None
    return value if isinstance(value, int) else None


def values(column: Ints) -> frozenset[int]:
    """The distinct values of a column. Nulls are left out."""
    return frozenset(int(value) for value in np.unique(column) if value != NULL)


# The beginnings of streams, from the bytes that the tables keep.

_KEPT = 5  # first version of the decoder whose tables contain the heads of streams


@dataclass(frozen=True, kw_only=True)
class StreamHead:
    """The first bytes that one endpoint sent on a stream, at one vantage point."""

    stream_id: int
    data: bytes
    """The bytes up to the first gap, at most as many as the tables keep."""
    rows: Ints
    """The rows of the stream's STREAM frames, ordered by offset."""


def are_kept(scope: Scope) -> bool:
    """Whether the tables of all captures contain the heads of streams."""
    return all(vantage.trace.meta.decoder_version >= _KEPT for vantage in scope.recording.vantages)


def heads(scope: Scope, vantage: Vantage, sender: int) -> Iterator[StreamHead]:
    """The heads of the streams on which `sender` sent data, ordered by ID."""
    frames = vantage.stream_frames
    rows = np.flatnonzero(scope.mine(frames, sender))
    rows = rows[np.lexsort((frames["offset"][rows], frames["stream_id"][rows]))]
    if not len(rows):
        return
    ids, first = np.unique(frames["stream_id"][rows], return_index=True)
    for stream_id, of_stream in zip(ids.tolist(), np.split(rows, first[1:]), strict=True):
        yield StreamHead(stream_id=stream_id, data=first_bytes(vantage, of_stream), rows=of_stream)


def first_bytes(vantage: Vantage, rows: Ints) -> bytes:
    """The bytes from the beginning of a stream up to the first gap, at most as many as the tables keep. `rows`: the
    stream's frames, ordered by offset."""
    head = b""
    for row in rows:
        offset = int(vantage.stream_frames["offset"][row])
        if offset > len(head):
            break
        data = vantage.stream_frames.cell("data", int(row))
        if data is None:
            break
        head += data[len(head) - offset :]
    return head
