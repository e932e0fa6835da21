"""Decodes the two captures of a job over TCP, with their key logs, to two traces."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from runner.decode.capture import open_capture, packets_by_addresses, packets_of
from runner.decode.columns import CLIENT, DECODER_VERSION, MTU, SERVER, CaptureMeta, Trace, integers, release, sha256
from runner.decode.decode import capture_checks
from runner.decode.keys import Session, read_key_logs
from runner.decode.tables import TABLES, cache_key, cached
from runner.decode.tcp.segments import (
    Numbered,
    TcpConnection,
    TcpSegment,
    TlsConnection,
    number_segments,
    read_connections,
    read_tls,
)

# Converts numbered segments and their TLS records to the tables of one capture.

_SYN, _RST = 0x02, 0x04
_STREAM = 0  # ID of the only stream; by RFC 9000 §2.1, it means a request stream
_BEYOND = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class TcpExchange:
    """A connection, with the data from both captures."""

    view: Numbered
    tls: TlsConnection
    session: Session
    response_last: int
    """Number of the server's last segment that carries a byte of the response; -1: no segment carries one."""


@dataclass
class TcpTableBuilder:
    """Collects the rows of one capture, packet by packet, in columns: a capture may have a million packets."""

    _columns: dict[str, dict[str, list[Any]]] = field(
        default_factory=lambda: {name: {column: [] for column in schema.names} for name, schema in TABLES.items()}
    )
    _packets: int = 0

    def build(self, exchanges: Sequence[TcpExchange]) -> dict[str, pa.Table]:
        """Table name → table."""
        packets = [
            (segment.packet.number, owner, at)
            for owner, exchange in enumerate(exchanges)
            for at, segment in enumerate(exchange.view.connection.segments)
        ]
        for owner, exchange in enumerate(exchanges):
            self._append("connections", _connection(owner, exchange))
        widest = [-1] * len(exchanges)
        for _, owner, at in sorted(packets):
            widest[owner] = self._add(owner, exchanges[owner], at, widest[owner])
        return {name: pa.table(columns, schema=TABLES[name]) for name, columns in self._columns.items()}

    def _append(self, table: str, row: dict[str, Any]) -> None:
        for name, column in self._columns[table].items():
            column.append(row.get(name))

    def _add(self, owner: int, exchange: TcpExchange, at: int, widest: int) -> int:
        """Add one segment. `widest`: the client's highest limit so far. Returns the new highest limit."""
        segment, number = exchange.view.connection.segments[at], exchange.view.numbers[at]
        row, self._packets = self._packets, self._packets + 1
        common = {"packet": row, "connection": owner, "sender": segment.sender, "time_ns": segment.packet.time_ns}
        self._append("datagrams", _datagram(row, owner, segment))
        kind, opened = _type(exchange, segment, number)
        self._append(
            "packets",
            {
                "packet": row,
                "datagram": row,
                "index": 0,
                "connection": owner,
                "sender": segment.sender,
                "type": kind,
                "packet_number": number,
                "length": segment.packet.payload,
                "decrypted": opened,
                "suite": exchange.tls.suite.name if exchange.tls.suite and segment.packet.payload else None,
            },
        )
        self._add_bytes(exchange, segment, number, common)
        if segment.sender == SERVER:
            return widest
        if (acknowledged := exchange.view.acknowledgements.get(number)) is not None:
            ranges = [{"first": first, "last": last} for first, last in acknowledged.ranges]
            about = {"frame": 1, "space": "application", "largest": acknowledged.largest, "delay_us": 0}
            self._append("ack_frames", {**common, **about, "ranges": ranges})
        limit = _limit(exchange, segment)
        if limit is not None and limit > widest and not segment.packet.flags & _RST:
            self._append("frames", {**common, "frame": 2, "type": 0x10, "name": "max_data", "value": limit})
            return limit
        return widest

    def _add_bytes(self, exchange: TcpExchange, segment: TcpSegment, number: int, common: dict[str, Any]) -> None:
        """Add the frames of a segment: `stream` for bytes of the request or response, `crypto` for other bytes, `syn`
        or `ack` for a segment without bytes, and `handshake_done` after the server's first record."""
        span = exchange.tls.response if segment.sender == SERVER else exchange.tls.request
        start, end = span or (0, 0)
        low, high = max(segment.offset, start), min(segment.end, end)
        if low < high:
            about = {"frame": 0, "stream_id": _STREAM, "offset": low - start, "length": high - low}
            fin = high == end
            self._append("stream_frames", {**common, **about, "fin": fin, "packet_number": number})
            self._append("frames", {**common, **about, "type": 0x08, "name": "stream"})
        if max(0, high - low) < segment.packet.payload:
            self._append("frames", {**common, "frame": 3, "type": 0x06, "name": "crypto", "offset": segment.offset})
        elif not segment.packet.payload:
            name = "syn" if segment.packet.flags & _SYN else "ack"
            self._append("frames", {**common, "frame": 0, "type": 0x02, "name": name})
        first = exchange.tls.sides[SERVER].first
        if segment.sender == SERVER and first is not None and segment.offset < first.end <= segment.end:
            self._append("frames", {**common, "frame": 4, "type": 0x1E, "name": "handshake_done"})


def _type(exchange: TcpExchange, segment: TcpSegment, number: int) -> tuple[str, bool]:
    """The type of the packet, and whether its content was decrypted.

    Server segments after the last segment with response bytes have the type `unknown`. They are alerts and FINs that
    respond to the client's end, one round trip later.
    """
    side = exchange.tls.sides[segment.sender]
    behind = segment.end if segment.packet.payload else segment.offset
    if segment.packet.flags & _SYN or behind <= side.hello_end:
        return "initial", True
    if side.handshake_end is None:
        return "handshake", not segment.packet.payload
    if behind <= side.handshake_end:
        return "handshake", True
    if side.unread and not side.application:
        return "1rtt", not segment.packet.payload
    if segment.sender == SERVER and number > exchange.response_last:
        return "unknown", True
    return "1rtt", True


def _limit(exchange: TcpExchange, segment: TcpSegment) -> int | None:
    """The offset in the response up to which the client's window accepts bytes; None when it is not known yet."""
    if segment.acknowledged is None or segment.window is None or exchange.tls.response is None:
        return None
    return max(0, segment.acknowledged + segment.window - exchange.tls.response[0])


def _datagram(row: int, owner: int, segment: TcpSegment) -> dict[str, Any]:
    packet = segment.packet
    return {
        "datagram": row,
        "record": packet.number,
        "time_ns": packet.time_ns,
        "src": str(ipaddress.ip_address(packet.source)),
        "dst": str(ipaddress.ip_address(packet.destination)),
        "src_port": packet.source_port,
        "dst_port": packet.destination_port,
        "connection": owner,
        "sender": segment.sender,
        "payload_length": packet.payload,
        "ip_length": packet.length,
        "ecn": packet.ecn,
        "ip_version": 4 if packet.is_ipv4 else 6,
    }


def _connection(number: int, exchange: TcpExchange) -> dict[str, Any]:
    connection, tls = exchange.view.connection, exchange.tls
    client, client_port, server, server_port = connection.ends
    hello, answer = tls.client_hello, tls.server_hello
    windows = [
        limit for segment in connection.segments if segment.sender == CLIENT for limit in [_limit(exchange, segment)]
    ]
    known = next((limit for limit in windows if limit is not None), None)
    limits = {"initial_max_data": known, "initial_max_stream_data_bidi_local": _BEYOND}
    return {
        "connection": number,
        "client_ip": str(ipaddress.ip_address(client)),
        "client_port": client_port,
        "server_ip": str(ipaddress.ip_address(server)),
        "server_port": server_port,
        "first_time_ns": connection.segments[0].packet.time_ns if connection.segments else None,
        "client_random": hello.random if hello else None,
        "suite": tls.suite.name if tls.suite else None,
        "alpn": tls.alpn,
        "sni": hello.sni if hello else None,
        "offered_suites": hello.suites if hello else None,
        "offered_alpn": hello.alpn if hello else None,
        "odcid": b"".join((record or 0).to_bytes(4) for record in connection.initial),
        "retry": False,
        "resumed": answer.pre_shared_key if answer else None,
        "early_data_offered": hello.early_data if hello else None,
        "client_hello_count": tls.client_hellos,
        "certificate": tls.certificate,
        "client_transport_parameters": json.dumps(limits) if known is not None else None,
        "messages": "[]",
        "secrets": sorted(exchange.session),
    }


class _Capture:
    """One capture file in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file, self.stored = open_capture(path)
        self.packets = list(packets_of(self.file))
        self.connections = read_connections(self.packets, self.file.data)
        release(self.file.data)


def decode_tcp(
    client: Path, server: Path, key_logs: Sequence[Path] = (), *, kernel_drops: int | None = None
) -> tuple[Trace, Trace]:
    """The traces at the client and at the server.

    Both captures are read together: segments carry no packet numbers, so only a comparison of the captures identifies
    them. Raises CaptureError when a file is no capture.
    """
    captures = _Capture(client), _Capture(server)
    sessions, _ = read_key_logs(key_logs, [text for capture in captures for text in capture.file.secrets])
    of_connection: tuple[list[TcpExchange], list[TcpExchange]] = ([], [])
    for pair in _pairs(captures[0].connections, captures[1].connections):
        streams = [_stream(pair, captures, sender) for sender in (CLIENT, SERVER)]
        tls = read_tls(streams[CLIENT], streams[SERVER], sessions)
        del streams
        session = sessions.get(tls.client_hello.random, {}) if tls.client_hello else {}
        views = number_segments(*pair)
        last = max((_response_last(view, tls) for view in views if view is not None), default=-1)
        for side, view in enumerate(views):
            if view is not None:
                of_connection[side].append(TcpExchange(view=view, tls=tls, session=session, response_last=last))
    at_client, at_server = (
        _trace(capture, exchanges, kernel_drops) for capture, exchanges in zip(captures, of_connection, strict=True)
    )
    return at_client, at_server


def cached_decode_tcp(
    captures: tuple[Path, Path],
    key_logs: Sequence[Path],
    folders: tuple[Path, Path],
    *,
    kernel_drops: int | None = None,
) -> tuple[Trace, ...]:
    """The traces in `folders`, if this decoder version made them from exactly these files. Otherwise the files are
    decoded and the traces are saved in `folders`."""
    key = cache_key(captures, key_logs, kernel_drops)
    return cached(key, folders, partial(decode_tcp, *captures, key_logs, kernel_drops=kernel_drops))


Pair = tuple[TcpConnection | None, TcpConnection | None]


def _pairs(clients: Sequence[TcpConnection], servers: Sequence[TcpConnection]) -> list[Pair]:
    """The connections of both captures in pairs. First come pairs with equal initial sequence numbers. Connections that
    a proxy split have no equal numbers; they are paired in their order."""
    left = list(servers)
    pairs: list[Pair] = []
    alone = []
    for client in clients:
        same = next((other for other in left if _is_same(client, other)), None)
        if same is None:
            alone.append(client)
        else:
            left.remove(same)
            pairs.append((client, same))
    joined = min(len(alone), len(left))
    pairs += zip(alone[:joined], left[:joined], strict=True)
    pairs += [(connection, None) for connection in alone[joined:]]
    pairs += [(None, other) for other in left[joined:]]
    return pairs


def _is_same(first: TcpConnection, second: TcpConnection) -> bool:
    """Whether the initial sequence numbers that are in both captures are equal. One capture may lack a number, because
    a SYN-ACK was lost on the link."""
    both = [(mine, its) for mine, its in zip(first.initial, second.initial, strict=True) if None not in (mine, its)]
    return bool(both) and all(mine == its for mine, its in both)


def _stream(pair: Pair, captures: tuple[_Capture, _Capture], sender: int) -> bytes:
    """The stream of one endpoint, from the capture that contains more of it; if equal, from the capture at its own
    end."""
    order = (sender, 1 - sender)
    rows = [
        (connection.stream(sender), captures[side].file.data)
        for side in order
        if (connection := pair[side]) is not None
    ]
    places, data = max(rows, key=lambda row: sum(end - start for start, end in row[0]), default=([], b""))
    stream = b"".join(data[start:end] for start, end in places)
    release(data)
    return stream


def _response_last(view: Numbered, tls: TlsConnection) -> int:
    """The number of the server's last segment with a byte of the response; -1 when there is none."""
    if tls.response is None:
        return -1
    start, end = tls.response
    return max(
        (
            number
            for segment, number in zip(view.connection.segments, view.numbers, strict=True)
            if segment.sender == SERVER and segment.offset < end and segment.end > start
        ),
        default=-1,
    )


def _trace(capture: _Capture, exchanges: list[TcpExchange], kernel_drops: int | None) -> Trace:
    tables = TcpTableBuilder().build(exchanges)
    records = len(capture.packets)
    meta = CaptureMeta(
        file_name=capture.path.name,
        sha256=sha256(capture.stored),
        link_type="ETHERNET",
        packets=records,
        non_quic=records - tables["datagrams"].num_rows,
        fragments=0,
        snapped=sum(end - start < length for _, _, start, end, length in capture.file.records()),
        truncated=capture.file.truncated,
        kernel_drops=capture.file.kernel_drops if kernel_drops is None else kernel_drops,
        first_time_ns=capture.packets[0].time_ns if capture.packets else None,
        decoder_version=DECODER_VERSION,
        ip_packets=packets_by_addresses(capture.file),
    )
    checks = capture_checks(
        meta,
        undecrypted=int((~tables["packets"]["decrypted"].to_numpy()).sum()),
        above_mtu=int((integers(tables["datagrams"]["ip_length"]) > MTU).sum()),
        unknown_frames=0,
    )
    return Trace(**tables, meta=meta, checks=checks)
