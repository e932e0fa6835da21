"""The tables of a trace: their schemas, how they are made of the decoder's rows, checked, and kept on disk.

Times are int64 nanoseconds since the Unix epoch, sizes bytes. `sender` is 0 for the client of the connection, 1 for its
server and -1 when the connection is unknown. Packet numbers are complete, reconstructed as in RFC 9000 appendix A.3.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.decode.columns import (
    CLIENT,
    DECODER_VERSION,
    NULL,
    PACKET_TYPES,
    READABLE_VERSIONS,
    SERVER,
    SPACES,
    CaptureMeta,
    IntegerRows,
    Integers,
    Trace,
    TraceCheck,
    file_bytes,
    integers,
    sha256,
    words,
)
from runner.decode.decode import DecodedCapture, distinct_bytes, read_capture
from runner.decode.http3 import http3_streams
from runner.decode.keys import LARGEST_KEY_LOG, SUITES
from runner.decode.wire import NAMES_OF_FRAMES, NONE, PacketRow, frame_names
from runner.errors import CaptureError
from runner.files import read_head, without_collection

if TYPE_CHECKING:  # decoding needs no real link
    from runner.model.link import Clock

_NAME = pa.dictionary(pa.int8(), pa.string())
_ADDRESS = pa.dictionary(pa.int32(), pa.string())

# Columns of the packet, repeated in every frame table so that readers need no join.
_OF_THE_PACKET = [("time_ns", pa.int64()), ("connection", pa.int32()), ("sender", pa.int8())]

DATAGRAMS = pa.schema(
    [
        ("datagram", pa.int32()),  # row number
        ("record", pa.int32()),  # number in the capture file from 1, as Wireshark counts; null in tables of version 1
        ("time_ns", pa.int64()),
        ("src", _ADDRESS),
        ("dst", _ADDRESS),
        ("src_port", pa.uint16()),
        ("dst_port", pa.uint16()),
        ("connection", pa.int32()),  # -1: no connection of this capture
        ("sender", pa.int8()),
        ("payload_length", pa.int32()),  # bytes of the UDP datagram, without its header
        ("ip_length", pa.int32()),  # bytes of the IP packet with its header
        ("ecn", pa.int8()),  # RFC 3168: 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE
        ("ip_version", pa.int8()),
    ]
)

PACKETS = pa.schema(
    [
        ("packet", pa.int32()),  # row number
        ("datagram", pa.int32()),
        ("index", pa.int16()),  # place in the datagram, from 0
        ("connection", pa.int32()),
        ("sender", pa.int8()),
        ("type", _NAME),  # PACKET_TYPES
        ("version", pa.uint32()),  # null in short headers
        ("dcid", pa.binary()),
        ("scid", pa.binary()),  # null in short headers
        ("packet_number", pa.int64()),  # null when the packet has no number or was not decrypted
        ("key_phase", pa.int8()),  # 1-RTT only
        ("key_generation", pa.int16()),  # 1-RTT only: 0 until the first key update
        ("length", pa.int32()),  # bytes of this QUIC packet with header and tag
        ("decrypted", pa.bool_()),  # True for Retry and Version Negotiation, which have nothing to decrypt
        ("token_length", pa.int32()),  # Initial and Retry only
        ("suite", _NAME),  # cipher suite of the packet protection, IANA name
        ("first_byte", pa.int16()),  # first byte without header protection; null when the packet was not decrypted
        ("key_version", pa.uint32()),  # QUIC version whose keys decrypted the packet
        ("supported_versions", pa.list_(pa.uint32())),  # Version Negotiation only; null in tables of version 1
        ("token", pa.binary()),  # Initial and Retry only; null when the token is empty, and in tables before version 5
    ]
)

STREAM_FRAMES = pa.schema(
    [
        ("packet", pa.int32()),
        ("frame", pa.int16()),  # place in the packet, from 0
        ("stream_id", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int32()),
        ("fin", pa.bool_()),
        *_OF_THE_PACKET,
        ("packet_number", pa.int64()),
        ("data", pa.binary()),  # the part in the head of the stream; null elsewhere and in tables before version 5
    ]
)

ACK_RANGES = pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))

ACK_FRAMES = pa.schema(
    [
        ("packet", pa.int32()),
        ("frame", pa.int16()),
        ("space", _NAME),  # SPACES
        ("largest", pa.int64()),
        ("delay_us", pa.int64()),  # scaled by the sender's ack_delay_exponent, 3 (RFC 9000 §18.2) when unknown
        ("ranges", ACK_RANGES),  # both ends inclusive, highest range first
        ("ect0", pa.int64()),  # null when the frame has no ECN counts
        ("ect1", pa.int64()),
        ("ce", pa.int64()),
        *_OF_THE_PACKET,
    ]
)

FRAMES = pa.schema(
    [
        ("packet", pa.int32()),
        ("frame", pa.int16()),
        ("type", pa.int64()),
        ("name", _NAME),  # runner.decode.wire.FRAME_NAMES, `unknown`
        ("stream_id", pa.int64()),
        ("offset", pa.int64()),  # also: final size of RESET_STREAM, Retire Prior To of NEW_CONNECTION_ID
        ("length", pa.int32()),  # bytes of the data, or of a run of PADDING, which is one row
        ("value", pa.int64()),  # limit, sequence number, error code, or bytes of the length field of DATAGRAM
        ("payload", pa.binary()),  # CRYPTO data, token, path data, new connection ID, reason phrase
        *_OF_THE_PACKET,
        ("reset_token", pa.binary()),  # NEW_CONNECTION_ID only
        ("type_length", pa.int8()),  # bytes of the frame type, if it has more bytes than needed; else null
    ]
)

CONNECTIONS = pa.schema(
    [
        ("connection", pa.int32()),  # row number
        ("client_ip", pa.string()),
        ("client_port", pa.uint16()),
        ("server_ip", pa.string()),
        ("server_port", pa.uint16()),
        ("first_time_ns", pa.int64()),
        ("version", pa.uint32()),  # version in the last long header
        ("original_version", pa.uint32()),
        ("client_random", pa.binary()),
        ("suite", pa.string()),  # negotiated, IANA name
        ("alpn", pa.string()),  # negotiated (EncryptedExtensions)
        ("sni", pa.string()),
        ("offered_suites", pa.list_(pa.int32())),
        ("offered_alpn", pa.list_(pa.string())),
        ("odcid", pa.binary()),  # destination connection ID of the client's first Initial
        ("retry", pa.bool_()),
        ("resumed", pa.bool_()),  # null until a ServerHello was read
        ("early_data_offered", pa.bool_()),
        ("early_data_accepted", pa.bool_()),  # by the server (RFC 8446 §4.2.10); null without EncryptedExtensions
        ("client_hello_count", pa.int32()),  # Initial packets from the client with CRYPTO data at offset 0
        ("certificate", pa.bool_()),  # the server sent a Certificate message
        ("client_transport_parameters", pa.string()),  # JSON, names of RFC 9000 §18.2; null when not seen
        ("server_transport_parameters", pa.string()),
        # JSON: TLS messages of both ends (runner.decode.crypto_messages); null in older tables
        ("messages", pa.string()),
        ("secrets", pa.list_(pa.string())),  # labels of secrets in key logs for the client random; null in older tables
        ("http3", pa.string()),  # JSON: frames of HTTP/3 (runner.decode.http3); null without HTTP/3, in older tables
        ("retry_integrity_ok", pa.bool_()),  # null without a Retry; False when any Retry had a wrong tag
    ]
)

TABLES: dict[str, pa.Schema] = {
    "datagrams": DATAGRAMS,
    "packets": PACKETS,
    "stream_frames": STREAM_FRAMES,
    "ack_frames": ACK_FRAMES,
    "frames": FRAMES,
    "connections": CONNECTIONS,
}


# The rows of the decoder become tables.

_DEFAULT_ACK_DELAY_EXPONENT = 3  # RFC 9000 §18.2
_INT8 = pa.int8()
_FRAME_WORDS, _TYPE_WORDS, _SPACE_WORDS, _SUITE_WORDS = (
    pa.array(words, pa.string())
    for words in (NAMES_OF_FRAMES, PACKET_TYPES, SPACES, [suite.name for suite in SUITES.values()])
)
_INT64_MAX = np.iinfo(np.int64).max
_INT16_MAX = np.iinfo(np.int16).max


class TableBuilder:
    """Builds the six tables of one capture."""

    def __init__(self, decoded: DecodedCapture) -> None:
        self._source = decoded.datagrams
        self._selected = decoded.selected
        self._rows = decoded.decoder.rows
        self._connections = decoded.connections
        self._times = self._source.time_ns[self._selected]
        packets = self._rows.packets
        self._datagram, self._owner, self._sender, self._number = (
            packets.column(name) for name in ("datagram", "connection", "sender", "packet_number")
        )

    def build(self) -> dict[str, pa.Table]:
        """Table name → table, in the order of `TABLES`."""
        return {
            "datagrams": self._datagram_table(),
            "packets": self._packet_table(),
            "stream_frames": self._stream_table(),
            "ack_frames": self._ack_table(),
            "frames": self._frame_table(),
            "connections": self._connection_table(),
        }

    def _connection_table(self) -> pa.Table:
        rows = [
            each.fields() | {"messages": each.proven_messages(), "http3": http3_streams(self._rows, each)}
            for each in self._connections
        ]
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in CONNECTIONS]
        return pa.Table.from_arrays(arrays, schema=CONNECTIONS)

    def _datagram_table(self) -> pa.Table:
        source, selected, count = self._source, self._selected, len(self._selected)
        flows = source.flow[selected]
        addresses = sorted({address for flow in source.flows for address in (flow.src, flow.dst)})
        words = pa.array(addresses, pa.string())
        place = {address: at for at, address in enumerate(addresses)}
        src = np.array([place[flow.src] for flow in source.flows], dtype=np.int64)
        dst = np.array([place[flow.dst] for flow in source.flows], dtype=np.int64)
        ports = np.array([(flow.src_port, flow.dst_port) for flow in source.flows], dtype=np.int64).reshape(-1, 2)
        versions = np.array([flow.ip_version for flow in source.flows], dtype=np.int64)
        # Every datagram has a packet; all packets of a datagram have the same connection and sender.
        connection, sender = (np.full(count, NONE, dtype=np.int64) for _ in range(2))
        datagram, first = np.unique(self._datagram, return_index=True)
        connection[datagram], sender[datagram] = self._owner[first], self._sender[first]
        columns = {
            "datagram": np.arange(count),
            "record": source.record[selected],
            "time_ns": self._times,
            "src": _coded(src[flows], words, pa.int32()),
            "dst": _coded(dst[flows], words, pa.int32()),
            "src_port": ports[flows, 0],
            "dst_port": ports[flows, 1],
            "connection": connection,
            "sender": sender,
            "payload_length": source.payload_length[selected],
            "ip_length": source.ip_length[selected],
            "ecn": source.ecn[selected],
            "ip_version": versions[flows],
        }
        return _table(columns, DATAGRAMS)

    def _packet_table(self) -> pa.Table:
        count = len(self._rows)
        cids = pa.array(self._rows.cids, pa.binary())
        columns: dict[str, Any] = {
            "packet": np.arange(count),
            "supported_versions": _sparse(self._rows.supported_versions, PACKETS.field("supported_versions"), count),
            "token": _sparse(self._rows.tokens, PACKETS.field("token"), count),
        }
        for name in PacketRow._fields:
            column = self._rows.packets.column(name)
            if name in ("dcid", "scid"):
                columns[name] = cids.take(_nullable(column, pa.int64()))
            elif name == "type":
                columns[name] = _coded(column, _TYPE_WORDS)
            elif name == "suite":
                columns[name] = _coded(column, _SUITE_WORDS)
            elif name == "decrypted":
                columns[name] = column.astype(bool)
            elif name in ("connection", "sender"):
                columns[name] = column
            else:
                columns[name] = _nullable(column, PACKETS.field(name).type)
        return _table(columns, PACKETS)

    def _stream_table(self) -> pa.Table:
        streams = self._rows.frames.streams
        order = _order(streams)
        columns = _sorted(streams, order)
        packet = columns["packet"]
        columns |= self._of_the_packet(packet) | {
            "frame": _frame_index(columns["frame"]),
            "fin": columns["type"] & 1 == 1,
            "packet_number": self._number[packet],
            "data": _taken(_sparse(self._rows.frames.heads, STREAM_FRAMES.field("data"), len(streams)), order),
        }
        return _table(columns, STREAM_FRAMES)

    def _ack_table(self) -> pa.Table:
        """ACK frames in order of their packets, with their ranges."""
        frames = self._rows.frames
        order = _order(frames.acks)
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), frames.acks.column("ranges_so_far")))
        bounds = [pa.array(frames.ranges.column(name)) for name in frames.ranges.names]
        values = pa.StructArray.from_arrays(bounds, frames.ranges.names)
        ranges = pa.ListArray.from_arrays(pa.array(_narrowed(offsets, pa.int32())), values, type=ACK_RANGES)
        columns = _sorted(frames.acks, order)
        packet = columns["packet"]
        columns |= self._of_the_packet(packet) | {
            "frame": _frame_index(columns["frame"]),
            "space": _coded(columns["space"], _SPACE_WORDS),
            "delay_us": self._scaled_delay(packet, columns["raw_delay"]),
            "ranges": _taken(ranges, order),
            **{name: _nullable(columns[name], pa.int64()) for name in ("ect0", "ect1", "ce")},
        }
        return _table(columns, ACK_FRAMES)

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
        frames, others = self._rows.frames, len(self._rows.frames.others)
        columns = {name: frames.all_of(name) for name in frames.others.names}
        # Bytes are kept for frames of `others` only. The last row of these columns is for all other frames.
        kept = {
            "payload": pa.array([*frames.payloads, None], pa.binary()),
            "reset_token": _sparse(frames.reset_tokens, FRAMES.field("reset_token"), others + 1),
            "type_length": _sparse(frames.type_lengths, FRAMES.field("type_length"), others + 1),
        }
        place = np.minimum(np.arange(len(columns["packet"])), others)
        order = _order_of(columns["packet"], columns["frame"])
        if order is not None:
            columns, place = {name: column[order] for name, column in columns.items()}, place[order]
        kind = columns["type"]
        columns |= self._of_the_packet(columns["packet"]) | {
            "frame": _frame_index(columns["frame"]),
            "type": np.where(kind < 0, -1 - kind, kind),
            "name": _coded(frame_names(kind), _FRAME_WORDS),
            **{name: _nullable(columns[name], FRAMES.field(name).type) for name in _MAY_BE_NULL["frames"] | {"value"}},
            **{name: values.take(pa.array(place)) for name, values in kept.items()},
        }
        return _table(columns, FRAMES)

    def _of_the_packet(self, packet: Integers) -> dict[str, Integers]:
        """Time, connection and sender of the packets that contain the frames."""
        times = self._times[self._datagram[packet]]
        return {"time_ns": times, "connection": self._owner[packet], "sender": self._sender[packet]}


def _order(frames: IntegerRows) -> Integers | None:
    """The order by packet, then by place in the packet. None when the rows already have this order. Frames of packets
    that waited for keys were written late."""
    return _order_of(frames.column("packet"), frames.column("frame"))


def _order_of(packet: Integers, frame: Integers) -> Integers | None:
    ordered = (packet[1:] > packet[:-1]) | ((packet[1:] == packet[:-1]) & (frame[1:] >= frame[:-1]))
    return None if ordered.all() else np.lexsort((frame, packet))


def _sorted(frames: IntegerRows, order: Integers | None) -> dict[str, Any]:
    """The columns in this order."""
    columns = {name: frames.column(name) for name in frames.names}
    return columns if order is None else {name: column[order] for name, column in columns.items()}


def _taken(values: pa.Array, order: Integers | None) -> pa.Array:
    return values if order is None else values.take(pa.array(order))


def _sparse(known: Mapping[int, Any], field: pa.Field, count: int) -> pa.Array:
    """A column in which most rows are null. `known`: row → value of the rows that are not null."""
    if not known:
        return pa.nulls(count, field.type)
    values: list[Any] = [None] * count
    for row, value in known.items():
        values[row] = value
    return pa.array(values, field.type)


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


def _table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """The table with the columns that the schema names."""
    made = [
        each if isinstance(each := columns[field.name], pa.Array) else pa.array(_narrowed(each, field.type))
        for field in schema
    ]
    return pa.Table.from_arrays(made, schema=schema)


# Traces of captures.


def decode_capture(
    capture: Path, key_logs: Sequence[Path] = (), *, kernel_drops: int | None = None, foreign: bool = False
) -> Trace:
    """The trace of a capture. The parameters, and what is raised, are those of `read_capture`."""
    with without_collection():
        decoded = read_capture(capture, key_logs, kernel_drops=kernel_drops, foreign=foreign)
        tables = TableBuilder(decoded).build()
        decoded.decoder.registry.release()
    return Trace(**tables, meta=decoded.meta, checks=decoded.checks)


# Checks between the two traces of a job.


def job_checks(client_side: Trace, server_side: Trace, expected_bytes: Sequence[int] | None) -> list[TraceCheck]:
    """Checks between the traces of both vantage points of one job.

    `expected_bytes`: sizes of the transferred files. Their sum is compared with the server's stream data that arrived
    at the client, and each size with the final sizes of the server's streams. None: the job has no files, or its stream
    data is not exactly the files (HTTP/3 adds frames, HTTP/0.9 does not).
    """
    checks = [
        TraceCheck.zero("arrived_at_client_never_sent", _not_contained(client_side, server_side, SERVER)),
        TraceCheck.zero("arrived_at_server_never_sent", _not_contained(server_side, client_side, CLIENT)),
    ]
    if expected_bytes is None:
        return checks
    total = sum(expected_bytes)
    unique = sum(
        size for (_, sender, _), size in unique_bytes_by_stream(client_side.stream_frames).items() if sender == SERVER
    )
    matching = (Counter(expected_bytes) & Counter(final_sizes(client_side, SERVER))).total()
    return [
        *checks,
        TraceCheck("stream_bytes", unique == total, total, unique),
        TraceCheck("fin_offsets", matching == len(expected_bytes), len(expected_bytes), matching),
    ]


def _not_contained(arrived: Trace, sent: Trace, sender: int) -> int:
    """The number of packets of `sender` that are in the trace `arrived` but not in the trace `sent`. `arrived` is from
    the far end of the link, `sent` from the sender's end.

    Connection, type and number identify a packet; the client random identifies a connection in both captures.
    """
    known = _packet_numbers(sent, sender)
    nothing = np.empty(0, dtype=np.int64)
    return sum(
        len(np.setdiff1d(numbers, known.get(group, nothing)))
        for group, numbers in _packet_numbers(arrived, sender).items()
    )


def _packet_numbers(trace: Trace, sender: int) -> dict[tuple[bytes, str], Integers]:
    """(client random, packet type) → the packet numbers of one sender."""
    packets = trace.packets
    randoms = trace.connections["client_random"].to_pylist()
    connection, number = integers(packets["connection"]), integers(packets["packet_number"])
    kind, kinds = words(packets["type"])
    sent = (integers(packets["sender"]) == sender) & (number != NULL) & (connection >= 0)
    group = (connection * (len(kinds) + 1) + kind)[sent]
    number = number[sent]
    return {
        (randoms[each // (len(kinds) + 1)] or b"", kinds[each % (len(kinds) + 1)]): number[group == each]
        for each in np.unique(group).tolist()
    }


def unique_bytes_by_stream(frames: pa.Table) -> dict[tuple[int, int, int], int]:
    """(connection, sender, stream id) → number of distinct bytes."""
    return distinct_bytes(
        *(integers(frames[name]) for name in ("connection", "sender", "stream_id", "offset", "length"))
    )


def final_sizes(trace: Trace, sender: int) -> list[int]:
    """The final sizes (RFC 9000 §4.5) of the streams that `sender` ended with a FIN."""
    frames = trace.stream_frames
    last = np.flatnonzero((integers(frames["sender"]) == sender) & frames["fin"].to_numpy())
    columns = [integers(frames[name])[last].tolist() for name in ("connection", "stream_id", "offset", "length")]
    return list({(each[0], each[1]): each[2] + each[3] for each in zip(*columns, strict=True)}.values())


# Changes the times of a trace to the clock of another host.

_TIMES = ("time_ns", "first_time_ns")
_TABLES = ("datagrams", "stream_frames", "ack_frames", "frames", "connections")


def on_server_clock(trace: Trace, clock: "Clock") -> Trace:
    """The trace of the client, with all times on the server's clock. The order of rows stays the same."""
    tables = {name: _moved(getattr(trace, name), clock) for name in _TABLES}
    first = trace.meta.first_time_ns
    if first is not None:
        first -= round(clock.ahead(clock.server_time(first / 1e9)) * 1e9)
    return replace(trace, **tables, meta=replace(trace.meta, first_time_ns=first))


def _moved(table: pa.Table, clock: "Clock") -> pa.Table:
    for name in _TIMES:
        if name in table.column_names:
            column = table.column(name).combine_chunks()
            known = np.array(column.fill_null(0))
            since = (known / 1e9 - clock.at - clock.offset) / (1 + clock.drift)
            ahead = clock.offset + clock.drift * since
            times = pa.array(known - np.rint(ahead * 1e9).astype(np.int64), mask=np.array(column.is_null()))
            table = table.set_column(table.column_names.index(name), table.schema.field(name), times.cast(pa.int64()))
    return table


# The tables of a trace on disk, each in a Parquet file. A hash of the captures with their names, the key logs, the
# kernel's drops and the decoder's version is the key of the tables.

_META = b"bentpipe.trace"
_KEY = b"bentpipe.key"
_MOST_ROWS = 1 << 24
# Columns that are never null.
_NEVER_NULL = frozenset(
    {"time_ns", "sender", "src", "dst", "src_port", "dst_port", "payload_length", "ip_length", "ecn", "ip_version"}
    | {"index", "type", "length", "decrypted", "frame", "stream_id", "offset", "fin", "space", "largest", "delay_us"}
    | {"ranges", "name", "retry", "early_data_offered", "client_hello_count", "certificate", "first_time_ns"}
    | {"client_ip", "client_port", "server_ip", "server_port", "datagram", "packet", "connection"}
)
_MAY_BE_NULL = {"frames": frozenset({"stream_id", "offset", "length"})}  # null in frame types without these fields
# This table is written last: a folder that contains it is complete.
_LAST = "datagrams"


def save_tables(trace: Trace, folder: Path, *, key: str = "") -> None:
    """Write folder/<table>.parquet for every table; a reader never sees a half-written file. Integers are stored as
    differences, because most columns grow slowly: a sixth of the bytes, and less CPU time."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"meta": asdict(trace.meta), "invariants": [asdict(each) for each in trace.checks]})
    for name in sorted(TABLES, key=lambda each: each == _LAST):
        table: pa.Table = getattr(trace, name)
        temporary = folder / f"{name}.parquet.partial"
        metadata = {_META: text.encode(), _KEY: key.encode()}
        differences = {field.name: "DELTA_BINARY_PACKED" for field in table.schema if pa.types.is_integer(field.type)}
        others = [path for field in table.schema if field.name not in differences for path in _paths(field)]
        pq.write_table(
            table.replace_schema_metadata(metadata),
            temporary,
            compression="zstd",
            write_statistics=False,
            use_dictionary=others,
            column_encoding=differences,
        )
        temporary.rename(folder / f"{name}.parquet")


def _paths(field: pa.Field) -> list[str]:
    """The names of a column's leaves in a Parquet file."""
    if pa.types.is_list(field.type):
        return [f"{field.name}.list.{path}" for path in _paths(field.type.value_field.with_name("element"))]
    if pa.types.is_struct(field.type):
        return [f"{field.name}.{path}" for inner in field.type for path in _paths(inner)]
    return [field.name]


def load_tables(folder: Path) -> Trace:
    """The trace that `save_tables` wrote. Raises CaptureError when the trace is missing, or was written by a decoder
    version that can't be read, or contains values that no decoder writes (a run folder is untrusted input)."""
    try:
        tables = {name: _read(folder / f"{name}.parquet") for name in TABLES}
        stored = json.loads(tables[_LAST].schema.metadata[_META])
        meta = CaptureMeta(**stored["meta"])
        checks = [TraceCheck(**each) for each in stored["invariants"]]
        tables = {name: _completed(table, TABLES[name]) for name, table in tables.items()}
        _check(tables)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{folder} has no tables of this version: decode the capture again.") from error
    if meta.decoder_version not in READABLE_VERSIONS:
        raise CaptureError(f"{folder} was written by decoder version {meta.decoder_version}: decode the capture again.")
    return Trace(**tables, meta=meta, checks=checks)


def _read(path: Path) -> pa.Table:
    """The table in a file. Raises ValueError when it has more rows than any capture: a file of a few kilobytes can
    expand to gigabytes."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"{path} has {file.metadata.num_rows} rows")
        return file.read()


def _check(tables: dict[str, pa.Table]) -> None:
    """Check the references between tables. Raises ValueError for row numbers out of range, missing values and unknown
    words."""
    rows = {parent: tables[f"{parent}s"].num_rows for parent in ("datagram", "packet", "connection")}
    for name, table in tables.items():
        for column in table.column_names:
            values = table.column(column)
            if values.null_count and column in _NEVER_NULL - _MAY_BE_NULL.get(name, frozenset()):
                raise ValueError(f"{name}.{column} has nulls")
            if column in rows and len(values):
                numbers = integers(values)
                if numbers.min() < -(column == "connection") or numbers.max() >= rows[column]:
                    raise ValueError(f"{name}.{column} is the number of no row")
    identities = tables["connections"].column("connection"), tables["packets"].column("packet")
    if any(
        not column.equals(pa.chunked_array([pa.array(range(len(column)), column.type)]))
        for column in identities
        if len(column)
    ):
        raise ValueError("rows are not numbered from 0")
    for name in ("datagrams", "packets", "stream_frames", "ack_frames", "frames"):
        _check_words(name, tables[name], "sender", {-1, 0, 1})
    _check_words("packets", tables["packets"], "type", set(PACKET_TYPES))
    _check_words("ack_frames", tables["ack_frames"], "space", set(SPACES))


def _check_words(name: str, table: pa.Table, column: str, known: set[object]) -> None:
    if unknown := set(table.column(column).unique().to_pylist()) - known:
        raise ValueError(f"{name}.{column} has the unknown value {min(map(str, unknown))}")


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in this schema; columns that an older decoder did not write are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def cached_decode(capture: Path, key_logs: Sequence[Path], folder: Path, *, kernel_drops: int | None = None) -> Trace:
    """The trace in `folder`, if this decoder version made it from exactly these files. Otherwise the files are decoded
    and the trace is saved in `folder`."""
    key = cache_key((capture,), key_logs, kernel_drops)
    (trace,) = cached(key, (folder,), lambda: (decode_capture(capture, key_logs, kernel_drops=kernel_drops),))
    return trace


def cached(key: str, folders: Sequence[Path], decode: Callable[[], tuple[Trace, ...]]) -> tuple[Trace, ...]:
    """The traces in `folders`, if they have this key. Otherwise the traces are decoded and saved in `folders`."""
    if all(stored_key(folder) == key for folder in folders):
        try:
            return tuple(map(load_tables, folders))
        except CaptureError:
            pass  # a damaged cache is replaced
    traces = decode()
    for trace, folder in zip(traces, folders, strict=True):
        save_tables(trace, folder, key=key)
    return traces


def cache_key(captures: Sequence[Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    """The key of tables that this decoder version makes from these files together."""
    names = " ".join(capture.name for capture in captures)
    digest = hashlib.sha256(f"{DECODER_VERSION} {kernel_drops} {names}".encode())
    for path in (*captures, *key_logs):
        try:
            read = read_head(path, size=LARGEST_KEY_LOG) if path in key_logs else file_bytes(path)
            digest.update(bytes.fromhex(sha256(read)))
        except OSError as error:
            raise CaptureError(
                f"{path} can't be read ({error.strerror}): give the path of an existing file."
            ) from error
    return digest.hexdigest()


def stored_key(folder: Path) -> str | None:
    """The key with which a folder's tables were saved; None when the folder has no tables."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    try:
        metadata = pq.read_schema(folder / f"{_LAST}.parquet").metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return str(metadata.get(_KEY, b""), "ascii", "replace")
