"""Assigns packets that could not be decrypted to the connections to which they most likely belong, and finds those that
belong to no connection."""

from bisect import bisect_right

import numpy as np

from runner.decode.columns import Integers, no_integers
from runner.decode.connection import Side
from runner.decode.file_bytes import Data
from runner.decode.frames import NONE
from runner.decode.network import Datagrams
from runner.decode.packets import PacketType
from runner.decode.registry import FlowState, Registry
from runner.decode.rows import CONNECTION, DATAGRAM, DCID, DECRYPTED, INDEX, SENDER, TYPE, VERSION, Rows
from runner.decode.schema import MTU

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


def strangers(rows: Rows, datagrams: Datagrams, selected: Integers, registry: Registry) -> Integers:
    """The unread datagrams that have the form of a short header but belong to no connection, as rows of `selected`.

    A packet with an ID of a connection belongs to it. A packet with an unknown ID can belong to a connection on its
    flow that uses IDs of zero length, or whose keys are unknown. On a flow with long headers and no connection, it
    stays, too.
    """
    packets = rows.packets
    kind, datagram = packets.column(TYPE), packets.column(DATAGRAM)
    unread = np.flatnonzero((kind == _ONE_RTT) & (packets.column(DECRYPTED) == 0) & (packets.column(INDEX) == 0))
    numbers = selected[datagram[unread]]
    # Nothing decrypts a packet of which the capture lacks a part, nor several datagrams in one record.
    whole = datagrams.payload_length[numbers] == datagrams.end[numbers] - datagrams.start[numbers]
    whole &= datagrams.ip_length[numbers] <= MTU
    unread, numbers = unread[whole], numbers[whole]
    if not len(unread) or not registry.connections:
        return no_integers()
    begun = set(datagrams.flow[selected[datagram[packets.column(VERSION) != NONE]]].tolist())
    lengths = sorted(registry.cid_lengths, reverse=True)
    chosen = []
    for row, flow_number, start in zip(
        datagram[unread].tolist(), datagrams.flow[numbers].tolist(), datagrams.start[numbers].tolist(), strict=True
    ):
        flow = registry.flows[flow_number]
        if flow.history:
            can_be_read = all(side.cid_length > 0 and side.has_short_keys for side in flow.history)
        else:
            can_be_read = begun.isdisjoint((flow_number, flow.flow.reverse))
        if can_be_read and _named_side(start + 1, lengths, datagrams.data, registry) is None:
            chosen.append(row)
    return np.array(chosen, dtype=np.int64)


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
