"""Small tables with known results. Each packet is given by hand, in the decoder's schemas."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from runner.decode.columns import CLIENT, SERVER, CaptureMeta, Trace
from runner.decode.tables import TABLES

EPOCH_NS = 1_700_000_000_000_000_000
HEADERS = 28  # bytes of the IPv4 and UDP headers


@dataclass(frozen=True)
class Stream:
    """A STREAM frame."""

    stream_id: int
    offset: int
    length: int
    fin: bool = False


@dataclass(frozen=True)
class Ack:
    """An ACK frame. Ranges are (first, last), the highest range first."""

    ranges: tuple[tuple[int, int], ...]
    delay_us: int = 0
    ecn: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Frame:
    """Any other frame."""

    name: str
    type: int = 0
    value: int | None = None
    stream_id: int | None = None
    payload: bytes | None = None
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Packet:
    """A packet in its own datagram. `time` in seconds after EPOCH_NS."""

    time: float
    sender: int
    number: int | None
    frames: tuple[Stream | Ack | Frame, ...] = ()
    type: str = "1rtt"
    length: int = 1200
    connection: int = 0
    fields: dict[str, Any] = field(default_factory=dict)  # other columns of the packet
    datagram: dict[str, Any] = field(default_factory=dict)  # columns of its datagram


def connection(**known: Any) -> dict[str, Any]:
    """A row of the connection table. Columns that aren't given are null."""
    return {"client_random": b"random", "odcid": b"12345678", **known}


def trace(packets: list[Packet], *connections: dict[str, Any]) -> Trace:
    """A capture of these packets, in this order."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for number, packet in enumerate(packets):
        time_ns = EPOCH_NS + round(packet.time * 1e9)
        common = {"packet": number, "time_ns": time_ns, "connection": packet.connection, "sender": packet.sender}
        ends = ("10.0.0.1", "10.0.0.2") if packet.sender == CLIENT else ("10.0.0.2", "10.0.0.1")
        ports = (50000, 443) if packet.sender == CLIENT else (443, 50000)
        rows["datagrams"].append(
            {
                **common,
                "datagram": number,
                "record": number + 1,
                **dict(zip(("src", "dst", "src_port", "dst_port"), (*ends, *ports), strict=True)),
                "payload_length": packet.length,
                "ip_length": packet.length + HEADERS,
                "ecn": 0,
                "ip_version": 4,
                **packet.datagram,
            }
        )
        rows["packets"].append(
            {
                **common,
                "datagram": number,
                "index": 0,
                "type": packet.type,
                "dcid": b"",
                "packet_number": packet.number,
                "length": packet.length,
                "decrypted": True,
                "key_generation": 0 if packet.type == "1rtt" else None,
                **packet.fields,
            }
        )
        for place, frame in enumerate(packet.frames):
            _frame(rows, {**common, "frame": place}, packet, frame)
    tables = {
        name: pa.Table.from_pylist(rows[name], schema=schema)
        for name, schema in TABLES.items()
        if name != "connections"
    }
    tables["connections"] = pa.Table.from_pylist(
        [{**row, "connection": number} for number, row in enumerate(connections or (connection(),))],
        schema=TABLES["connections"],
    )
    return Trace(**tables, meta=META, checks=[])


def _frame(
    rows: dict[str, list[dict[str, Any]]], common: dict[str, Any], packet: Packet, frame: Stream | Ack | Frame
) -> None:
    if isinstance(frame, Stream):
        rows["stream_frames"].append({**common, **vars(frame), "packet_number": packet.number})
        rows["frames"].append({**common, "type": 8, "name": "stream", "stream_id": frame.stream_id})
    elif isinstance(frame, Ack):
        ect0, ect1, ce = frame.ecn or (None, None, None)
        rows["ack_frames"].append(
            {
                **common,
                "space": {"initial": "initial", "handshake": "handshake"}.get(packet.type, "application"),
                "largest": frame.ranges[0][1],
                "delay_us": frame.delay_us,
                "ranges": [{"first": first, "last": last} for first, last in frame.ranges],
                "ect0": ect0,
                "ect1": ect1,
                "ce": ce,
            }
        )
        rows["frames"].append({**common, "type": 2, "name": "ack"})
    else:
        rows["frames"].append({**common, **vars(frame)})


META = CaptureMeta(
    file_name="",
    sha256="",
    link_type="ETHERNET",
    packets=0,
    non_quic=0,
    fragments=0,
    snapped=0,
    truncated=False,
    kernel_drops=None,
    first_time_ns=None,
    decoder_version=1,
)


def empty() -> Trace:
    """A capture without a packet."""
    return Trace(**{name: schema.empty_table() for name, schema in TABLES.items()}, meta=META, checks=[])


def moved(packets: list[Packet], delays: dict[tuple[int, int | None], float | None], default: float) -> list[Packet]:
    """The same packets at the peer's vantage point, in order of arrival. Each packet is later by its delay; a packet
    with the delay None is lost. `delays`: (sender, packet number) → delay in seconds; `default`: all other delays."""
    arrived = []
    for packet in packets:
        delay = delays.get((packet.sender, packet.number), default)
        if delay is not None:
            arrived.append(Packet(**{**vars(packet), "time": packet.time + delay}))
    return sorted(arrived, key=lambda packet: packet.time)


__all__ = ["CLIENT", "SERVER", "Ack", "Frame", "Packet", "Stream", "connection", "empty", "moved", "trace"]
