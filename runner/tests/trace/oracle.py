"""An oracle that reads facts about a recording from the qlogs of both endpoints. It shares no code with the trace."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        (trace,) = json.load(file)["traces"]
    return list(trace["events"])


def _packets(events: list[dict[str, Any]], name: str) -> Iterator[tuple[str, int, float, list[dict[str, Any]]]]:
    for event in events:
        if event["name"] == f"transport:{name}":
            header = event["data"]["header"]
            number = header.get("packet_number")
            if number is not None:
                yield header["packet_type"], number, event["time"] / 1e3, event["data"].get("frames", [])


@dataclass
class Oracle:
    """Counts of the response data, byte by byte. Times are in seconds by the host's clock."""

    sent: int = 0
    repeated: int = 0
    spurious: int = 0
    unseen_packets: int = 0
    """1-RTT packets that the server sent and the client never processed, up to the last packet that it processed."""
    data_packets: int = 0
    data_packets_received: int = 0
    received: int = 0
    acks_of_client: int = 0
    client_hellos: int = 0
    initial_window: int = 0
    first_1rtt: float = 0.0
    last_new_byte: float = 0.0
    rtts: list[float] = field(default_factory=list)
    declared_lost: set[int] = field(default_factory=set)
    """1-RTT packets that the server's loss detection declared lost."""


Byte = tuple[int, int]


def _response(frames: list[dict[str, Any]]) -> list[set[Byte]]:
    data = [frame for frame in frames if frame["frame_type"] == "stream" and frame["stream_id"] % 4 == 0]
    return [
        {(frame["stream_id"], at) for at in range(frame["offset"], frame["offset"] + frame["length"])} for frame in data
    ]


def read(folder: Path) -> Oracle:
    """Follow every byte of the request streams from the server's qlog to the client's qlog."""
    client, server = _events(folder / "client.qlog.json.gz"), _events(folder / "server.qlog.json.gz")
    oracle = Oracle()
    last = max(number for kind, number, _, _ in _packets(client, "packet_received") if kind == "1RTT")
    arrived = {(kind, number) for kind, number, _, _ in _packets(client, "packet_received")}
    sent: set[Byte] = set()
    delivered: set[Byte] = set()
    acknowledged = _first_ack_of_data(server)
    for kind, number, time, frames in _packets(server, "packet_sent"):
        came = (kind, number) in arrived
        oracle.unseen_packets += kind == "1RTT" and not came and number < last
        data = _response(frames)
        oracle.data_packets += bool(data)
        oracle.data_packets_received += bool(data) and came
        for covered in data:
            oracle.sent += len(covered)
            oracle.repeated += len(covered & sent)
            oracle.spurious += len(covered & delivered)
            oracle.initial_window += len(covered - sent) if time < acknowledged else 0
            sent |= covered
            delivered |= covered if came else set()
    _receive(client, oracle)
    for kind, _, _, frames in _packets(client, "packet_sent"):
        oracle.acks_of_client += kind == "1RTT" and any(frame["frame_type"] == "ack" for frame in frames)
        oracle.client_hellos += kind == "initial" and any(
            frame["frame_type"] == "crypto" and frame["offset"] == 0 for frame in frames
        )
    oracle.rtts = [
        event["data"]["latest_rtt"] / 1e3
        for event in server
        if event["name"] == "recovery:metrics_updated" and "latest_rtt" in event["data"]
    ]
    oracle.declared_lost = {
        event["data"]["packet_number"]
        for event in server
        if event["name"] == "recovery:packet_lost" and event["data"]["type"] == "1RTT"
    }
    return oracle


def _receive(client: list[dict[str, Any]], oracle: Oracle) -> None:
    received: set[Byte] = set()
    for kind, _, time, frames in _packets(client, "packet_received"):
        if kind == "1RTT" and not oracle.first_1rtt:
            oracle.first_1rtt = time
        for covered in _response(frames):
            if covered - received:
                oracle.last_new_byte = time
            received |= covered
    oracle.received = len(received)


def _first_ack_of_data(server: list[dict[str, Any]]) -> float:
    data = {
        number for kind, number, _, frames in _packets(server, "packet_sent") if kind == "1RTT" and _response(frames)
    }
    for kind, _, time, frames in _packets(server, "packet_received"):
        for frame in frames:
            if kind == "1RTT" and frame["frame_type"] == "ack":
                ranges = [(ends[0], ends[-1]) for ends in frame["acked_ranges"]]
                if any(first <= number <= last for number in data for first, last in ranges):
                    return time
    return float("inf")
