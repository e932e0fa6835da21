"""What the qlogs of both endpoints say of a recording: an oracle that shares no code with the trace."""

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
    """Counts of the response data, byte by byte."""

    sent: int = 0
    repeated: int = 0
    spurious: int = 0
    packets_lost: int = 0
    data_packets: int = 0
    received_new: int = 0
    acks_of_client: int = 0
    data_packets_received: int = 0
    declared_lost: set[int] = field(default_factory=set)


def read(folder: Path) -> Oracle:
    """Follow every byte of the request streams from the server's qlog to the client's."""
    client, server = _events(folder / "client.qlog.json.gz"), _events(folder / "server.qlog.json.gz")
    oracle = Oracle()
    arrived = {(kind, number) for kind, number, _, _ in _packets(client, "packet_received")}
    sent: set[tuple[int, int]] = set()
    delivered: set[tuple[int, int]] = set()
    for kind, number, _, frames in _packets(server, "packet_sent"):
        oracle.packets_lost += (kind, number) not in arrived
        data = [frame for frame in frames if frame["frame_type"] == "stream" and frame["stream_id"] % 4 == 0]
        oracle.data_packets += bool(data)
        oracle.data_packets_received += bool(data) and (kind, number) in arrived
        for frame in data:
            covered = {(frame["stream_id"], at) for at in range(frame["offset"], frame["offset"] + frame["length"])}
            oracle.sent += len(covered)
            oracle.repeated += len(covered & sent)
            oracle.spurious += len(covered & delivered)
            sent |= covered
            if (kind, number) in arrived:
                delivered |= covered
    oracle.received_new = len(delivered)
    for kind, _, _, frames in _packets(client, "packet_sent"):
        oracle.acks_of_client += kind == "1RTT" and any(frame["frame_type"] == "ack" for frame in frames)
    oracle.declared_lost = {
        event["data"]["packet_number"]
        for event in server
        if event["name"] == "recovery:packet_lost" and event["data"]["type"] == "1RTT"
    }
    return oracle
