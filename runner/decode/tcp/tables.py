"""Converts numbered segments and their TLS records to the tables of one capture."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from runner.decode.keylog import Session
from runner.decode.schema import CLIENT, SERVER, TABLES
from runner.decode.tcp.match import Numbered
from runner.decode.tcp.segments import Segment
from runner.decode.tcp.tls import TlsConnection

_SYN, _RST = 0x02, 0x04
_STREAM = 0  # ID of the only stream; by RFC 9000 §2.1, it means a request stream
_BEYOND = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A connection, with the data from both captures."""

    view: Numbered
    tls: TlsConnection
    session: Session
    response_last: int
    """Number of the server's last segment that carries a byte of the response; -1: no segment carries one."""


@dataclass
class TcpTableBuilder:
    """Collects the rows of one capture, packet by packet."""

    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def build(self, exchanges: Sequence[Exchange]) -> dict[str, pa.Table]:
        """Table name → table."""
        packets = [
            (segment.packet.number, owner, at)
            for owner, exchange in enumerate(exchanges)
            for at, segment in enumerate(exchange.view.connection.segments)
        ]
        for owner, exchange in enumerate(exchanges):
            self._rows["connections"].append(_connection(owner, exchange))
        widest = [-1] * len(exchanges)
        for _, owner, at in sorted(packets):
            widest[owner] = self._add(owner, exchanges[owner], at, widest[owner])
        return {name: pa.Table.from_pylist(rows, schema=TABLES[name]) for name, rows in self._rows.items()}

    def _add(self, owner: int, exchange: Exchange, at: int, widest: int) -> int:
        """Add one segment. `widest`: the client's highest limit so far. Returns the new highest limit."""
        segment, number = exchange.view.connection.segments[at], exchange.view.numbers[at]
        row = len(self._rows["packets"])
        common = {"packet": row, "connection": owner, "sender": segment.sender, "time_ns": segment.packet.time_ns}
        self._rows["datagrams"].append(_datagram(row, owner, segment))
        kind, opened = _type(exchange, segment, number)
        self._rows["packets"].append(
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
            }
        )
        self._add_bytes(exchange, segment, number, common)
        if segment.sender == SERVER:
            return widest
        if (acknowledged := exchange.view.acknowledgements.get(number)) is not None:
            ranges = [{"first": first, "last": last} for first, last in acknowledged.ranges]
            about = {"frame": 1, "space": "application", "largest": acknowledged.largest, "delay_us": 0}
            self._rows["ack_frames"].append({**common, **about, "ranges": ranges})
        limit = _limit(exchange, segment)
        if limit is not None and limit > widest and not segment.packet.flags & _RST:
            self._rows["frames"].append({**common, "frame": 2, "type": 0x10, "name": "max_data", "value": limit})
            return limit
        return widest

    def _add_bytes(self, exchange: Exchange, segment: Segment, number: int, common: dict[str, Any]) -> None:
        """Add the frames of a segment: `stream` for bytes of the request or response, `crypto` for other bytes, `syn`
        or `ack` for a segment without bytes, and `handshake_done` after the server's first record."""
        span = exchange.tls.response if segment.sender == SERVER else exchange.tls.request
        start, end = span or (0, 0)
        low, high = max(segment.offset, start), min(segment.end, end)
        if low < high:
            about = {"frame": 0, "stream_id": _STREAM, "offset": low - start, "length": high - low}
            fin = high == end
            self._rows["stream_frames"].append({**common, **about, "fin": fin, "packet_number": number})
            self._rows["frames"].append({**common, **about, "type": 0x08, "name": "stream"})
        if max(0, high - low) < segment.packet.payload:
            self._rows["frames"].append(
                {**common, "frame": 3, "type": 0x06, "name": "crypto", "offset": segment.offset}
            )
        elif not segment.packet.payload:
            name = "syn" if segment.packet.flags & _SYN else "ack"
            self._rows["frames"].append({**common, "frame": 0, "type": 0x02, "name": name})
        first = exchange.tls.sides[SERVER].first
        if segment.sender == SERVER and first is not None and segment.offset < first.end <= segment.end:
            self._rows["frames"].append({**common, "frame": 4, "type": 0x1E, "name": "handshake_done"})


def _type(exchange: Exchange, segment: Segment, number: int) -> tuple[str, bool]:
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


def _limit(exchange: Exchange, segment: Segment) -> int | None:
    """The offset in the response up to which the client's window accepts bytes; None when it is not known yet."""
    if segment.acknowledged is None or segment.window is None or exchange.tls.response is None:
        return None
    return max(0, segment.acknowledged + segment.window - exchange.tls.response[0])


def _datagram(row: int, owner: int, segment: Segment) -> dict[str, Any]:
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


def _connection(number: int, exchange: Exchange) -> dict[str, Any]:
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
