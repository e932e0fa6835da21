"""One or two captures of the same connections, as arrays. A column is converted to an array when it is first used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from runner.decode.columns import NULL as NULL  # noqa: PLC0414
from runner.decode.columns import integers, words
from runner.decode.schema import CLIENT, SERVER, Trace
from runner.trace.intervals import Bools, Ints
from runner.trace.nouns import Place

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


def first_ack(vantage: Vantage, rows: Ints, numbers: Ints) -> int | None:
    """The first of the ACK frames `rows` that acknowledges one of the packet numbers `numbers`, which are sorted. None
    when no frame does."""
    for row in rows.tolist():
        for acknowledged in vantage.ack_frames.cell("ranges", row) or ():
            low, high = acknowledged["first"], acknowledged["last"]
            if np.searchsorted(numbers, low) < np.searchsorted(numbers, high, side="right"):
                return int(row)
    return None


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


class Recording:
    """Both captures with common numbers for connections: the same number means the same connection in both captures."""

    def __init__(self, client_side: Trace | None, server_side: Trace | None) -> None:
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
        self.client = Vantage("client", client_side, range(len(clients))) if client_side else None
        self.server = Vantage("server", server_side, shared) if server_side else None

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
        if self.client is None:
            return None
        packets = self.client.packets
        mine = packets["sender"] == CLIENT
        unknown = packets.named("type", "unknown") & mine
        negotiated = packets["connection"][packets.named("type", "version_negotiation")]
        first = packets.named("type", "initial") & mine
        first |= unknown & (packets["connection"] >= 0) & np.isin(packets["connection"], negotiated)
        if not first.any():
            first = unknown
        return int(self.client.packet_time[first].min()) if first.any() else None

    def place(self, vantage: Vantage, datagram: int) -> Place | None:
        """The place of a datagram, by its row. None when the tables are too old."""
        record = int(vantage.datagrams["record"][datagram])
        if record == NULL:
            return None
        return Place(
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
