"""Assigns packets that could not be decrypted to the connections to which they most likely belong."""

from bisect import bisect_right

import numpy as np

from runner.decode.columns import Integers
from runner.decode.connection import Side
from runner.decode.file_bytes import Data
from runner.decode.frames import NONE
from runner.decode.network import Datagrams
from runner.decode.packets import PacketType
from runner.decode.registry import FlowState, Registry
from runner.decode.rows import CONNECTION, DATAGRAM, DCID, INDEX, SENDER, TYPE, Rows

_ONE_RTT = int(PacketType.ONE_RTT)  # comparing plain integers is faster


def attribute(rows: Rows, datagrams: Datagrams, selected: Integers, registry: Registry) -> None:
    """Fill in the connection and the sender of every packet without a connection.

    The packet's destination connection ID decides. When this ID is unknown, the connections on the packet's flow at
    that time decide. `selected`: for each datagram of `rows`, its number in `datagrams`.
    """
    nameless = np.flatnonzero(rows.packets.column(CONNECTION) == NONE)
    if not len(nameless) or not registry.connections:
        return
    timelines = [_Timeline(flow) for flow in registry.flows]
    numbers = selected[rows.packets.column(DATAGRAM)[nameless]]
    columns = [rows.packets.column(column)[nameless] for column in (DCID, TYPE, INDEX)]
    columns += [column[numbers] for column in (datagrams.flow, datagrams.start, datagrams.time_ns)]
    owners = np.full((len(nameless), 2), NONE, dtype=np.int64)
    lengths = sorted(registry.cid_lengths, reverse=True)
    for at, (cid, kind, index, flow, start, time_ns) in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True)):
        side = None
        if cid != NONE:
            side = registry.cids.get(rows.cids[cid])
        elif kind == _ONE_RTT and index == 0:  # the first packet in its datagram
            side = _named_side(start + 1, lengths, datagrams.data, registry)
        side = side or timelines[flow].at(time_ns)
        if side is not None:
            owners[at] = side.connection.number, side.sender
    for column, values in zip((CONNECTION, SENDER), owners.T, strict=True):
        rows.packets.set_column(column, nameless, values)


def _named_side(cid_at: int, lengths: list[int], data: Data, registry: Registry) -> Side | None:
    """The side whose packets carry the connection ID at `cid_at` in the file; None when the ID is unknown."""
    for length in lengths:
        side = registry.cids.get(data[cid_at : cid_at + length])
        if side is not None:
            return side
    return None


class _Timeline:
    """The senders on a flow, sorted by the times at which their connections began."""

    def __init__(self, flow: FlowState) -> None:
        self._sides = sorted(flow.history, key=lambda side: side.connection.first_time_ns)
        self._times = [side.connection.first_time_ns for side in self._sides]

    def at(self, time_ns: int) -> Side | None:
        """The sender of the last connection that began before this time; the first sender when no connection had begun.
        None when the flow has no sender."""
        if not self._sides:
            return None
        if len(self._sides) == 1:
            return self._sides[0]
        return self._sides[max(0, bisect_right(self._times, time_ns) - 1)]
