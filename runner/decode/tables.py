"""From the collected rows to the tables of `schema`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.decode import rows as columns
from runner.decode.connection import Connection
from runner.decode.frames import ACK_COLUMNS, FRAME_NAMES, NONE, OTHER_COLUMNS, STREAM_COLUMNS
from runner.decode.network import Datagrams
from runner.decode.protection import SUITES
from runner.decode.rows import PACKET_COLUMNS, Rows
from runner.decode.schema import (
    ACK_FRAMES,
    ACK_RANGES,
    CONNECTIONS,
    DATAGRAMS,
    FRAMES,
    PACKET_TYPES,
    PACKETS,
    SPACES,
    STREAM_FRAMES,
)
from runner.decode.transport_parameters import to_text

Integers = npt.NDArray[np.int64]

_NAMES = [*dict.fromkeys(FRAME_NAMES.values()), "unknown"]
_UNKNOWN_NAME = len(_NAMES) - 1
_NAME_OF_TYPE = np.full(max(FRAME_NAMES) + 1, _UNKNOWN_NAME, dtype=np.int64)
for _type, _name in FRAME_NAMES.items():
    _NAME_OF_TYPE[_type] = _NAMES.index(_name)

_DEFAULT_ACK_DELAY_EXPONENT = 3  # RFC 9000 §18.2
_INT8 = pa.int8()
_FRAME_WORDS, _TYPE_WORDS, _SPACE_WORDS, _SUITE_WORDS = (
    pa.array(words, pa.string()) for words in (_NAMES, PACKET_TYPES, SPACES, [suite.name for suite in SUITES.values()])
)
_INT64_MAX = np.iinfo(np.int64).max
_INT16_MAX = np.iinfo(np.int16).max


class TableBuilder:
    """The six tables of one capture, in the order of `schema.TABLES`."""

    def __init__(self, source: Datagrams, selected: list[int], rows: Rows, connections: Sequence[Connection]) -> None:
        self._source = source
        self._selected = np.array(selected, dtype=np.int64)
        self._rows = rows
        self._connections = connections
        self._packets = _matrix(rows.packets, PACKET_COLUMNS)
        self._times = np.array(source.time_ns, dtype=np.int64)[self._selected]

    def build(self) -> dict[str, pa.Table]:
        """Table name → table."""
        streams = _matrix(self._rows.frames.streams, STREAM_COLUMNS)
        order = _order(streams)
        heads = _sparse(self._rows.frames.heads, len(streams)).take(pa.array(order))
        streams = streams[order]
        acks, ranges = self._acks()
        return {
            "datagrams": self._datagram_table(),
            "packets": self._packet_table(),
            "stream_frames": self._stream_table(streams, heads),
            "ack_frames": self._ack_table(acks, ranges),
            "frames": self._frame_table(streams, acks),
            "connections": self._connection_table(),
        }

    def _connection_table(self) -> pa.Table:
        rows = [_connection_row(each) for each in self._connections]
        return pa.Table.from_struct_array(pa.array(rows, pa.struct(CONNECTIONS)))

    def _datagram_table(self) -> pa.Table:
        source, count = self._source, len(self._selected)
        flows = np.array(source.flow, dtype=np.int64)[self._selected]
        addresses = sorted({address for flow in source.flows for address in (flow.src, flow.dst)})
        words = pa.array(addresses, pa.string())
        place = {address: at for at, address in enumerate(addresses)}
        src = np.array([place[flow.src] for flow in source.flows], dtype=np.int64)
        dst = np.array([place[flow.dst] for flow in source.flows], dtype=np.int64)
        ports = np.array([(flow.src_port, flow.dst_port) for flow in source.flows], dtype=np.int64).reshape(-1, 2)
        versions = np.array([flow.ip_version for flow in source.flows], dtype=np.int64)
        # Every datagram has a packet; those that are not the first say the same.
        owner = np.full((count, 2), NONE, dtype=np.int64)
        datagram, first = np.unique(self._packets[:, columns.DATAGRAM], return_index=True)
        owner[datagram] = self._packets[first][:, (columns.CONNECTION, columns.SENDER)]
        arrays = [
            np.arange(count),
            np.array(source.record, dtype=np.int64)[self._selected],
            self._times,
            _coded(src[flows], words, pa.int32()),
            _coded(dst[flows], words, pa.int32()),
            ports[flows, 0],
            ports[flows, 1],
            owner[:, 0],
            owner[:, 1],
            np.array(source.payload_length, dtype=np.int64)[self._selected],
            np.array(source.ip_length, dtype=np.int64)[self._selected],
            np.array(source.ecn, dtype=np.int64)[self._selected],
            versions[flows],
        ]
        return _table(arrays, DATAGRAMS)

    def _packet_table(self) -> pa.Table:
        cids = pa.array(self._rows.cids, pa.binary())
        arrays: list[Any] = [np.arange(len(self._packets))]
        for number, name in enumerate(PACKETS.names[1 : 1 + PACKET_COLUMNS]):
            column = self._packets[:, number]
            if name in ("dcid", "scid"):
                arrays.append(cids.take(_nullable(column, pa.int64())))
            elif name == "type":
                arrays.append(_coded(column, _TYPE_WORDS))
            elif name == "suite":
                arrays.append(_coded(column, _SUITE_WORDS))
            elif name == "decrypted":
                arrays.append(column.astype(bool))
            elif name in ("connection", "sender"):
                arrays.append(column)
            else:
                arrays.append(_nullable(column, PACKETS.field(name).type))
        arrays.append(self._supported_versions())
        arrays.append(_sparse(self._rows.tokens, len(self._packets)))
        return _table(arrays, PACKETS)

    def _supported_versions(self) -> pa.Array:
        kind = PACKETS.field("supported_versions").type
        if not self._rows.supported_versions:
            return pa.nulls(len(self._packets), kind)
        listed: list[list[int] | None] = [None] * len(self._packets)
        for row, versions in self._rows.supported_versions.items():
            listed[row] = versions
        return pa.array(listed, kind)

    def _stream_table(self, streams: Integers, heads: pa.Array) -> pa.Table:
        packet = streams[:, 0]
        arrays = [packet, _frame_index(streams), streams[:, 3], streams[:, 4], streams[:, 5], (streams[:, 2] & 1) == 1]
        numbers = self._packets[packet, columns.NUMBER]
        return _table([*arrays, *self._of_the_packet(packet), numbers, heads], STREAM_FRAMES)

    def _acks(self) -> tuple[Integers, pa.Array]:
        """ACK rows in order of their packets, and their ranges."""
        frames = self._rows.frames
        acks = _matrix(frames.acks, ACK_COLUMNS)
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), acks[:, 6]))
        ends = [pa.array(np.array(each, dtype=np.int64)) for each in (frames.range_first, frames.range_last)]
        values = pa.StructArray.from_arrays(ends, ["first", "last"])
        ranges = pa.ListArray.from_arrays(pa.array(_narrowed(offsets, pa.int32())), values, type=ACK_RANGES)
        order = _order(acks)
        return acks[order], ranges.take(pa.array(order))

    def _ack_table(self, acks: Integers, ranges: pa.Array) -> pa.Table:
        packet = acks[:, 0]
        space = _coded(acks[:, 3], _SPACE_WORDS)
        counts = [_nullable(acks[:, column], pa.int64()) for column in (7, 8, 9)]
        delay = self._scaled_delay(packet, acks[:, 5])
        arrays = [packet, _frame_index(acks), space, acks[:, 4], delay, ranges, *counts]
        return _table([*arrays, *self._of_the_packet(packet)], ACK_FRAMES)

    def _scaled_delay(self, packet: Integers, raw: Integers) -> Integers:
        """ACK Delay in µs (RFC 9000 §19.3); the largest int64 where a forged one would not fit."""
        exponents = np.full((len(self._connections) + 1, 3), _DEFAULT_ACK_DELAY_EXPONENT, dtype=np.int64)
        for connection in self._connections:
            for sender, parameters in enumerate(connection.transport_parameters):
                exponent = (parameters or {}).get("ack_delay_exponent")
                if isinstance(exponent, int) and exponent <= 20:
                    exponents[connection.number, sender] = exponent
        owner = self._packets[packet][:, (columns.CONNECTION, columns.SENDER)]
        shift = exponents[owner[:, 0], owner[:, 1]]
        return np.where(raw > _INT64_MAX >> shift, _INT64_MAX, raw << shift)

    def _frame_table(self, streams: Integers, acks: Integers) -> pa.Table:
        """All frames: those of the two special tables are put between the others."""
        others = _matrix(self._rows.frames.others, OTHER_COLUMNS)
        none = np.full(len(streams) + len(acks), NONE, dtype=np.int64)
        stream_rows = np.column_stack((streams, none[: len(streams)]))
        ack_rows = np.column_stack((acks[:, :3], *[none[: len(acks)]] * 4))
        every = np.concatenate((others, stream_rows, ack_rows))
        order = _order(every)
        payloads = pa.array([*self._rows.frames.payloads, None], pa.binary())
        payload = payloads.take(pa.array(np.minimum(order, len(others))))
        every = every[order]
        kind = every[:, 2]
        known = (kind >= 0) & (kind < len(_NAME_OF_TYPE))
        name = np.where(known, _NAME_OF_TYPE[np.clip(kind, 0, len(_NAME_OF_TYPE) - 1)], _UNKNOWN_NAME)
        packet = every[:, 0]
        arrays = [
            packet,
            _frame_index(every),
            np.where(kind < 0, -1 - kind, kind),
            _coded(name, _FRAME_WORDS),
            *(_nullable(every[:, at], FRAMES.field(at + 1).type) for at in (3, 4, 5, 6)),
            payload,
        ]
        rows = self._rows.frames
        kept = [self._of_others(known, order) for known in (rows.reset_tokens, rows.type_lengths)]
        return _table([*arrays, *self._of_the_packet(packet), *kept], FRAMES)

    def _of_others(self, known: Mapping[int, bytes | int], order: Integers) -> pa.Array:
        """A column of few values, known by row of `others`, in the order of the frame table."""
        values: list[bytes | int | None] = [None] * len(order)
        if known:
            place = np.argsort(order)
            for row, value in known.items():
                values[place[row]] = value
        return pa.array(values, pa.int8() if known is self._rows.frames.type_lengths else pa.binary())

    def _of_the_packet(self, packet: Integers) -> list[Integers]:
        """Time, connection and sender of the packets in which frames are."""
        chosen = self._packets[packet]
        return [
            self._times[chosen[:, columns.DATAGRAM]],
            chosen[:, columns.CONNECTION],
            chosen[:, columns.SENDER],
        ]


def _matrix(flat: list[int], width: int) -> Integers:
    return np.array(flat, dtype=np.int64).reshape(-1, width)


def _order(frames: Integers) -> Integers:
    """Order by packet, then by place in the packet: packets that waited for keys wrote their frames late."""
    return np.lexsort((frames[:, 1], frames[:, 0]))


def _sparse(known: dict[int, bytes], count: int) -> pa.Array:
    """A column of bytes of which most rows are null; row → value where it is not."""
    if not known:
        return pa.nulls(count, pa.binary())
    values: list[bytes | None] = [None] * count
    for row, value in known.items():
        values[row] = value
    return pa.array(values, pa.binary())


def _frame_index(frames: Integers) -> Integers:
    """Place in the packet; the schema has 16 bits for it, more frames only come from somebody who counts on that."""
    return np.minimum(frames[:, 1], _INT16_MAX)


def _nullable(values: Integers, kind: pa.DataType) -> pa.Array:
    nulls = values == NONE
    if not nulls.any():
        return pa.array(_narrowed(values, kind))
    return pa.array(_narrowed(np.where(nulls, 0, values), kind), mask=nulls)


def _coded(codes: Integers, words: pa.Array, index: pa.DataType = _INT8) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_nullable(codes, index), words)


def _narrowed(values: npt.NDArray[Any], kind: pa.DataType) -> npt.NDArray[Any]:
    """The values in the type of their column, contiguous. OverflowError when one does not fit."""
    narrowed = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    if narrowed.dtype != values.dtype and not (narrowed == values).all():
        raise OverflowError(f"a value does not fit into {kind}")
    return narrowed


def _table(arrays: Sequence[Any], schema: pa.Schema) -> pa.Table:
    made = [
        each if isinstance(each, pa.Array) else pa.array(_narrowed(each, field.type))
        for each, field in zip(arrays, schema, strict=True)
    ]
    return pa.Table.from_arrays(made, schema=schema)


def _connection_row(connection: Connection) -> dict[str, Any]:
    return {
        "connection": connection.number,
        "client_ip": connection.client[0],
        "client_port": connection.client[1],
        "server_ip": connection.server[0],
        "server_port": connection.server[1],
        "first_time_ns": connection.first_time_ns,
        "version": connection.version,
        "original_version": connection.original_version,
        "client_random": connection.client_random,
        "suite": connection.suite.name if connection.suite else None,
        "alpn": connection.alpn,
        "sni": connection.sni,
        "offered_suites": connection.offered_suites,
        "offered_alpn": connection.offered_alpn,
        "odcid": connection.odcid,
        "retry": connection.retry_integrity_ok is not None,
        "resumed": connection.resumed,
        "early_data_offered": connection.early_data_offered,
        "early_data_accepted": connection.early_data_accepted,
        "client_hello_count": connection.client_hello_count,
        "certificate": connection.certificate,
        "client_transport_parameters": to_text(connection.transport_parameters[0]),
        "server_transport_parameters": to_text(connection.transport_parameters[1]),
        "messages": json.dumps(connection.messages, sort_keys=True),
        "secrets": sorted(connection.secrets),
        "retry_integrity_ok": connection.retry_integrity_ok,
    }
