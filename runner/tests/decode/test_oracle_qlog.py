"""The tables of a capture agree with what the endpoints themselves logged: the oracle that does not decrypt."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.decode.columns import CLIENT, SERVER, Trace
from runner.decode.tables import decode_capture
from runner.tests.decode.ours import packets

RECORDINGS = Path(__file__).parent / "recordings"
FOLDERS = sorted(path.parent for path in RECORDINGS.glob("*/left.pcap"))
_PROTECTED = ("initial", "0rtt", "handshake", "1rtt")
_NAMES = {"0RTT": "0rtt", "1RTT": "1rtt"}

Identity = tuple[str, int]
"""packet type, packet number"""


def _events(folder: Path, role: str, name: str) -> Iterator[dict[str, Any]]:
    (path,) = folder.glob(f"{role}.*.sqlog.gz")
    for line in gzip.decompress(path.read_bytes()).splitlines():
        event = json.loads(line.lstrip(b"\x1e"))
        if event.get("name") == f"transport:{name}":
            yield event["data"]


def _identity(event: dict[str, Any]) -> Identity:
    kind = event["header"]["packet_type"]
    return _NAMES.get(kind, kind), event["header"]["packet_number"]


def _length(event: dict[str, Any]) -> int:
    return int(event["raw"]["length"] if "raw" in event else event["header"]["length"])


def _logged(folder: Path, role: str, name: str) -> dict[Identity, dict[str, Any]]:
    events = (event for event in _events(folder, role, name) if "packet_number" in event["header"])
    return {_identity(event): event for event in events if _identity(event)[0] in _PROTECTED}


def _decoded(trace: Trace, sender: int) -> dict[Identity, dict[str, Any]]:
    rows = zip(packets(trace), trace.packets["sender"].to_pylist(), strict=True)
    return {
        (packet["type"], packet["packet_number"]): packet
        for packet, sent_by in rows
        if sent_by == sender and packet["packet_number"] is not None
    }


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def trace(folder: Path) -> Trace:
    return decode_capture(folder / "left.pcap", sorted(folder.glob("*.keys.log")))


def test_client_sent_the_packets_of_the_capture(folder: Path, trace: Trace) -> None:
    logged, decoded = _logged(folder, "client", "packet_sent"), _decoded(trace, CLIENT)
    if folder.name == "aioquic_versionnegotiation":
        # The first attempt has the number 0 as well, in a version whose packets have no known keys.
        assert len(list(_events(folder, "client", "packet_sent"))) == len(decoded) + 1
    assert decoded.keys() == logged.keys()
    assert all(decoded[identity]["length"] == _length(event) for identity, event in logged.items())


def test_client_received_only_what_the_capture_has(folder: Path, trace: Trace) -> None:
    logged = _logged(folder, "client", "packet_received")
    assert logged.keys() <= _decoded(trace, SERVER).keys()
    assert len(logged) > 3


def test_server_sent_the_packets_of_the_capture(folder: Path, trace: Trace) -> None:
    logged, decoded = _logged(folder, "server", "packet_sent"), _decoded(trace, SERVER)
    assert len(decoded) > 3
    assert decoded.keys() <= logged.keys()  # the link's queue before the capture drops some of the logged packets
    assert all(packet["length"] == _length(logged[identity]) for identity, packet in decoded.items())


# quinn logs no frames.
@pytest.mark.parametrize("folder", [each for each in FOLDERS if not each.name.startswith("quinn")], indirect=True)
@pytest.mark.parametrize(("role", "sender"), [("client", CLIENT), ("server", SERVER)])
def test_frames_are_what_the_sender_logged(folder: Path, trace: Trace, role: str, sender: int) -> None:
    logged, decoded = _logged(folder, role, "packet_sent"), _decoded(trace, sender)
    compared = 0
    for identity in decoded.keys() & logged.keys():
        expected = [_frame(frame) for frame in logged[identity]["frames"]]
        actual = [frame for frame in map(_as_logged, decoded[identity]["frames"]) if frame != ("padding",)]
        assert actual == [frame for frame in expected if frame != ("padding",)]
        compared += len(actual)
    assert compared > 5


def _frame(frame: dict[str, Any]) -> tuple[Any, ...]:
    kind = frame["frame_type"]
    if kind == "stream":
        return kind, frame["stream_id"], frame.get("offset", 0), frame["length"], frame.get("fin", False)
    if kind == "crypto":
        return kind, frame["offset"], frame["length"]
    if kind == "ack":
        ranges = sorted(((each[0], each[-1]) for each in frame["acked_ranges"]), reverse=True)
        return kind, tuple(ranges)
    return (kind,)


def _as_logged(frame: tuple[Any, ...]) -> tuple[Any, ...]:
    kind = frame[0]
    if 0x08 <= kind <= 0x0F:
        return ("stream", *frame[1:])
    if kind == 0x06:
        return ("crypto", *frame[1:3])
    if kind in (0x02, 0x03):
        return "ack", frame[3]
    names = {
        0x00: "padding",
        0x01: "ping",
        0x07: "new_token",
        0x10: "max_data",
        0x11: "max_stream_data",
        0x12: "max_streams",
        0x13: "max_streams",
        0x18: "new_connection_id",
        0x19: "retire_connection_id",
        0x1C: "connection_close",
        0x1D: "connection_close",
        0x1E: "handshake_done",
    }
    return (names[kind],)
