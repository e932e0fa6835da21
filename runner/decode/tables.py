"""Converts the collected rows to the tables of `schema`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.decode.capture import Datagrams
from runner.decode.columns import (
    ACK_FRAMES,
    ACK_RANGES,
    CONNECTIONS,
    DATAGRAMS,
    FRAMES,
    HTTP3,
    PACKET_TYPES,
    PACKETS,
    SPACES,
    STREAM_FRAMES,
    IntegerRows,
    Integers,
)
from runner.decode.connection import Connection
from runner.decode.crypto_messages import TransportParameters
from runner.decode.http3 import StreamReader
from runner.decode.keys import SUITES
from runner.decode.wire import (
    CONNECTION,
    DATAGRAM,
    FRAME_NAMES,
    NONE,
    NUMBER,
    PACKET_COLUMNS,
    SENDER,
    STREAM_COLUMNS,
    TYPE,
    FrameRows,
    PacketType,
    Rows,
)

_NAMES = [*dict.fromkeys(FRAME_NAMES.values()), "unknown"]
_UNKNOWN_NAME = len(_NAMES) - 1
_NAME_OF_TYPE = np.full(max(FRAME_NAMES) + 1, _UNKNOWN_NAME, dtype=np.int64)
for _type, _name in FRAME_NAMES.items():
    _NAME_OF_TYPE[_type] = _NAMES.index(_name)

_RANGES_SO_FAR = 6  # column of ACK frames
_ACK_HEAD = 3  # columns of ACK frames that all frames have: packet, frame, type
_DEFAULT_ACK_DELAY_EXPONENT = 3  # RFC 9000 §18.2
_INT8 = pa.int8()
_FRAME_WORDS, _TYPE_WORDS, _SPACE_WORDS, _SUITE_WORDS = (
    pa.array(words, pa.string()) for words in (_NAMES, PACKET_TYPES, SPACES, [suite.name for suite in SUITES.values()])
)
_INT64_MAX = np.iinfo(np.int64).max
_INT16_MAX = np.iinfo(np.int16).max


class TableBuilder:
    """Builds the six tables of one capture."""

    def __init__(self, source: Datagrams, selected: Integers, rows: Rows, connections: Sequence[Connection]) -> None:
        self._source = source
        self._selected = selected
        self._rows = rows
        self._connections = connections
        self._times = source.time_ns[selected]
        packets = rows.packets
        self._datagram, self._owner, self._sender, self._number = (
            packets.column(number) for number in (DATAGRAM, CONNECTION, SENDER, NUMBER)
        )

    def build(self) -> dict[str, pa.Table]:
        """Table name → table, in the order of `schema.TABLES`."""
        return {
            "datagrams": self._datagram_table(),
            "packets": self._packet_table(),
            "stream_frames": self._stream_table(),
            "ack_frames": self._ack_table(),
            "frames": self._frame_table(),
            "connections": self._connection_table(),
        }

    def _connection_table(self) -> pa.Table:
        made = [_connection_row(connection, self._http3(connection)) for connection in self._connections]
        rows = list(zip(*made, strict=True)) or [()] * len(CONNECTIONS)
        arrays = [pa.array(values, field.type) for values, field in zip(rows, CONNECTIONS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=CONNECTIONS)

    def _http3(self, connection: Connection) -> str | None:
        """The streams of an HTTP/3 connection as JSON. 0-RTT packets that the server rejected don't count."""
        if connection.alpn != HTTP3:
            return None
        frames, reader = self._rows.frames, StreamReader()
        packet, _, kind, stream_id, offset, length = (frames.streams.column(at) for at in range(STREAM_COLUMNS))
        sender = self._sender[packet]
        rejected = self._rows.packets.column(TYPE)[packet] == PacketType.ZERO_RTT
        rejected &= connection.early_data_accepted is False
        mine = np.flatnonzero((self._owner[packet] == connection.number) & ~rejected)
        mine = mine[np.lexsort((offset[mine], stream_id[mine], sender[mine]))]
        borders = np.flatnonzero(np.diff(stream_id[mine]) | np.diff(sender[mine])) + 1
        for rows in np.split(mine, borders) if len(mine) else ():
            first, fins = rows[0], rows[kind[rows] & 1 == 1]
            final = int(offset[fins[0]] + length[fins[0]]) if len(fins) else None
            pieces = ((int(offset[row]), frames.data(int(row))) for row in rows)
            reader.add(int(sender[first]), int(stream_id[first]), pieces, final)
        return reader.text()

    def _datagram_table(self) -> pa.Table:
        source, count = self._source, len(self._selected)
        flows = source.flow[self._selected]
        addresses = sorted({address for flow in source.flows for address in (flow.src, flow.dst)})
        words = pa.array(addresses, pa.string())
        place = {address: at for at, address in enumerate(addresses)}
        src = np.array([place[flow.src] for flow in source.flows], dtype=np.int64)
        dst = np.array([place[flow.dst] for flow in source.flows], dtype=np.int64)
        ports = np.array([(flow.src_port, flow.dst_port) for flow in source.flows], dtype=np.int64).reshape(-1, 2)
        versions = np.array([flow.ip_version for flow in source.flows], dtype=np.int64)
        # Every datagram has a packet; all packets of a datagram have the same connection and sender.
        owner = np.full((count, 2), NONE, dtype=np.int64)
        datagram, first = np.unique(self._datagram, return_index=True)
        owner[datagram, 0], owner[datagram, 1] = self._owner[first], self._sender[first]
        arrays = [
            np.arange(count),
            source.record[self._selected],
            self._times,
            _coded(src[flows], words, pa.int32()),
            _coded(dst[flows], words, pa.int32()),
            ports[flows, 0],
            ports[flows, 1],
            owner[:, 0],
            owner[:, 1],
            source.payload_length[self._selected],
            source.ip_length[self._selected],
            source.ecn[self._selected],
            versions[flows],
        ]
        return _table(arrays, DATAGRAMS)

    def _packet_table(self) -> pa.Table:
        count = len(self._rows)
        cids = pa.array(self._rows.cids, pa.binary())
        arrays: list[Any] = [np.arange(count)]
        for number, name in enumerate(PACKETS.names[1 : 1 + PACKET_COLUMNS]):
            column = self._rows.packets.column(number)
            if name in ("dcid", "scid"):
                arrays.append(cids.take(_nullable(column, pa.int64())))
            elif name == "type":
                arrays.append(_coded(column, _TYPE_WORDS))
            elif name == "suite":
                arrays.append(_coded(column, _SUITE_WORDS))
            elif name == "decrypted":
                arrays.append(column.astype(bool))
            elif name in ("connection", "sender"):
                arrays.append(_narrowed(column, PACKETS.field(name).type))
            else:
                arrays.append(_nullable(column, PACKETS.field(name).type))
        arrays.append(self._supported_versions())
        arrays.append(_sparse(self._rows.tokens, count))
        return _table(arrays, PACKETS)

    def _supported_versions(self) -> pa.Array:
        kind = PACKETS.field("supported_versions").type
        if not self._rows.supported_versions:
            return pa.nulls(len(self._rows), kind)
        listed: list[list[int] | None] = [None] * len(self._rows)
        for row, versions in self._rows.supported_versions.items():
            listed[row] = versions
        return pa.array(listed, kind)

    def _stream_table(self) -> pa.Table:
        streams = self._rows.frames.streams
        order = _order(streams)
        heads = _sparse(self._rows.frames.heads, len(streams))
        packet, frame, kind, stream_id, offset, length = _sorted(streams, order)
        arrays = [packet, _frame_index(frame), stream_id, offset, length, (kind & 1) == 1]
        arrays += [*self._of_the_packet(packet), self._number[packet], _taken(heads, order)]
        return _table(arrays, STREAM_FRAMES)

    def _ack_table(self) -> pa.Table:
        """ACK frames in order of their packets, with their ranges."""
        frames = self._rows.frames
        order = _order(frames.acks)
        ends = frames.acks.column(_RANGES_SO_FAR)
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), ends))
        bounds = [pa.array(frames.ranges.column(number)) for number in (0, 1)]
        values = pa.StructArray.from_arrays(bounds, ["first", "last"])
        ranges = pa.ListArray.from_arrays(pa.array(_narrowed(offsets, pa.int32())), values, type=ACK_RANGES)
        packet, frame, _, space, largest, delay, _, *counts = _sorted(frames.acks, order)
        arrays = [
            packet,
            _frame_index(frame),
            _coded(space, _SPACE_WORDS),
            largest,
            self._scaled_delay(packet, delay),
            _taken(ranges, order),
            *(_nullable(count, pa.int64()) for count in counts),
        ]
        return _table([*arrays, *self._of_the_packet(packet)], ACK_FRAMES)

    def _scaled_delay(self, packet: Integers, raw: Integers) -> Integers:
        """ACK Delays in µs (RFC 9000 §19.3). A forged delay that does not fit becomes the largest int64."""
        if not len(raw):
            return raw
        exponents = np.full((len(self._connections) + 1, 3), _DEFAULT_ACK_DELAY_EXPONENT, dtype=np.int64)
        for connection in self._connections:
            for sender, parameters in enumerate(connection.transport_parameters):
                exponent = None if parameters is None else parameters.values.get("ack_delay_exponent")
                if isinstance(exponent, int) and exponent <= 20:
                    exponents[connection.number, sender] = exponent
        shift = exponents[self._owner[packet], self._sender[packet]]
        return np.where(raw > _INT64_MAX >> shift, _INT64_MAX, raw << shift)

    def _frame_table(self) -> pa.Table:
        """All frames in order, including the STREAM and ACK frames, which also have their own tables."""
        frames = self._rows.frames
        every = _AllFrames(frames)
        order = every.order
        payloads = pa.array([*frames.payloads, None], pa.binary())
        count = len(frames.others)
        places = np.arange(every.count) if order is None else order
        payload = payloads.take(pa.array(np.minimum(places, count)))
        kind = every.column(2)
        known = (kind >= 0) & (kind < len(_NAME_OF_TYPE))
        name = np.where(known, _NAME_OF_TYPE[np.clip(kind, 0, len(_NAME_OF_TYPE) - 1)], _UNKNOWN_NAME)
        packet = every.column(0)
        arrays = [
            packet,
            _frame_index(every.column(1)),
            np.where(kind < 0, -1 - kind, kind),
            _coded(name, _FRAME_WORDS),
            *(_nullable(every.column(at), FRAMES.field(at + 1).type) for at in (3, 4, 5, 6)),
            payload,
        ]
        kept = [self._of_others(known, len(packet), order) for known in (frames.reset_tokens, frames.type_lengths)]
        return _table([*arrays, *self._of_the_packet(packet), *kept], FRAMES)

    def _of_others(self, known: Mapping[int, bytes | int], count: int, order: Integers | None) -> pa.Array:
        """A column with few values, in the order of the frame table. `known`: row of `others` → value."""
        kind = pa.int8() if known is self._rows.frames.type_lengths else pa.binary()
        if not known:
            return pa.nulls(count, kind)
        values: list[bytes | int | None] = [None] * count
        place = np.arange(count) if order is None else np.argsort(order)
        for row, value in known.items():
            values[place[row]] = value
        return pa.array(values, kind)

    def _of_the_packet(self, packet: Integers) -> list[Integers]:
        """Time, connection and sender of the packets that contain the frames."""
        return [self._times[self._datagram[packet]], self._owner[packet], self._sender[packet]]


class _AllFrames:
    """The frames of all kinds, ordered by packet and by place in the packet."""

    def __init__(self, frames: FrameRows) -> None:
        self._parts = (frames.others, frames.streams, frames.acks)
        self.count = sum(map(len, self._parts))
        self.order = None
        self.order = _order_of(self.column(0), self.column(1))

    def column(self, number: int) -> Integers:
        """A column of `others`, for all frames. ACK frames have only the first three columns and STREAM frames the
        first six; elsewhere the value is NONE."""
        others, streams, acks = self._parts
        parts = [others.column(number)]
        parts.append(streams.column(number) if number < STREAM_COLUMNS else _none(len(streams)))
        parts.append(acks.column(number) if number < _ACK_HEAD else _none(len(acks)))
        column: Integers = np.concatenate(parts)
        return column if self.order is None else column[self.order]


def _none(count: int) -> Integers:
    return np.full(count, NONE, dtype=np.int64)


def _order(frames: IntegerRows) -> Integers | None:
    """The order by packet, then by place in the packet. None when the rows already have this order. Frames of packets
    that waited for keys were written late."""
    return _order_of(frames.column(0), frames.column(1))


def _order_of(packet: Integers, frame: Integers) -> Integers | None:
    ordered = (packet[1:] > packet[:-1]) | ((packet[1:] == packet[:-1]) & (frame[1:] >= frame[:-1]))
    return None if ordered.all() else np.lexsort((frame, packet))


def _sorted(frames: IntegerRows, order: Integers | None) -> list[Integers]:
    """The columns in this order."""
    columns_ = (frames.column(number) for number in range(frames.width))
    return [column if order is None else column[order] for column in columns_]


def _taken(values: pa.Array, order: Integers | None) -> pa.Array:
    return values if order is None else values.take(pa.array(order))


def _sparse(known: dict[int, bytes], count: int) -> pa.Array:
    """A column of bytes in which most rows are null. `known`: row → value of the rows that are not null."""
    if not known:
        return pa.nulls(count, pa.binary())
    values: list[bytes | None] = [None] * count
    for row, value in known.items():
        values[row] = value
    return pa.array(values, pa.binary())


def _frame_index(frame: Integers) -> Integers:
    """Places of frames in their packets, limited to the 16 bits of the schema. Only an attacker sends more frames in a
    packet."""
    return np.minimum(frame, _INT16_MAX)


def _nullable(values: Integers, kind: pa.DataType) -> pa.Array:
    nulls = values == NONE
    if not nulls.any():
        return pa.array(_narrowed(values, kind))
    return pa.array(_narrowed(np.where(nulls, 0, values), kind), mask=nulls)


def _coded(codes: Integers, words: pa.Array, index: pa.DataType = _INT8) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_nullable(codes, index), words)


def _narrowed(values: npt.NDArray[Any], kind: pa.DataType) -> npt.NDArray[Any]:
    """The values in the type of their column, as a contiguous array. Raises OverflowError when a value does not
    fit."""
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


def _connection_row(connection: Connection, http3: str | None) -> tuple[Any, ...]:
    """The values of one connection, in the order of the schema."""
    return (
        connection.number,
        *connection.client,
        *connection.server,
        connection.first_time_ns,
        connection.version,
        connection.original_version,
        connection.client_random,
        connection.suite.name if connection.suite else None,
        connection.alpn,
        connection.sni,
        connection.offered_suites,
        connection.offered_alpn,
        connection.odcid,
        connection.retry_integrity_ok is not None,
        connection.resumed,
        connection.early_data_offered,
        connection.early_data_accepted,
        connection.client_hello_count,
        connection.certificate,
        *map(_text, connection.transport_parameters),
        f"[{', '.join(connection.messages)}]",
        sorted(connection.secrets),
        http3,
        connection.retry_integrity_ok,
    )


def _text(parameters: TransportParameters | None) -> str | None:
    return None if parameters is None else parameters.text
