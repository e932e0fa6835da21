"""One connection of a recording: its rows, and simple queries about its rows."""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Bools, Ints
from runner.trace.nouns import Place
from runner.trace.vantage import NULL, Columns, ConnectionRow, Recording, Vantage

ROLES = {CLIENT: "client", SERVER: "server"}


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

    def first_at_client(self, sender: int, packet_type: str) -> float | None:
        """The time when the first packet of a type passed the client's vantage point; None when it was not seen."""
        if self.recording.client is None:
            return None
        rows = self.packets(self.recording.client, sender, packet_type)
        return self.recording.seconds(int(self.recording.client.packet_time[rows].min())) if len(rows) else None

    def place(self, vantage: Vantage, packet: int) -> Place | None:
        """The place of a packet, by its row."""
        return self.recording.place(vantage, int(vantage.packets["datagram"][packet]))

    def places(self, vantage: Vantage, packets: Iterable[int]) -> tuple[Place, ...]:
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
