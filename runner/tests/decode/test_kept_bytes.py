"""Bytes that tables keep for later questions: tokens, the heads of streams, the server's word on early data."""

from pathlib import Path

import pytest

from runner.decode.columns import BIDIRECTIONAL_HEAD, CLIENT, UNIDIRECTIONAL_HEAD, Trace
from runner.decode.tables import decode_capture
from runner.decode.wire import FrameRows, parse_frames

RECORDINGS = Path(__file__).parents[1] / "recordings"


def _decoded(recording: str) -> Trace:
    folder = RECORDINGS / recording / "1"
    return decode_capture(folder / "sim/left.pcap", [folder / "client/keys.log", folder / "server/keys.log"])


def test_a_token_is_kept_as_it_was_sent() -> None:
    packets = _decoded("quic-go_quinn/retry").packets.to_pylist()
    retry = next(packet["token"] for packet in packets if packet["type"] == "retry")
    answers = [packet for packet in packets if packet["type"] == "initial" and packet["token_length"]]
    assert len(retry) > 16
    assert {packet["token"] for packet in answers} == {retry}
    assert all(len(packet["token"]) == packet["token_length"] for packet in answers)
    assert all(packet["token"] is None for packet in packets if not packet["token_length"])


def test_the_heads_of_streams_are_kept() -> None:
    frames = _decoded("quinn_quinn/transfer").stream_frames.to_pylist()
    requests = [frame["data"] for frame in frames if frame["sender"] == CLIENT and frame["stream_id"] % 4 == 0]
    assert requests
    assert all(request.startswith(b"GET /") and request.endswith(b"\r\n") for request in requests if request)
    beyond = [frame for frame in frames if frame["offset"] >= BIDIRECTIONAL_HEAD]
    assert beyond
    assert {frame["data"] for frame in beyond} == {None}
    assert all(
        len(frame["data"]) == min(frame["length"], BIDIRECTIONAL_HEAD - frame["offset"])
        for frame in frames
        if frame["offset"] < BIDIRECTIONAL_HEAD
    )


@pytest.mark.parametrize(("stream", "head"), [(0, BIDIRECTIONAL_HEAD), (2, UNIDIRECTIONAL_HEAD)])
@pytest.mark.parametrize("before_the_end", [3, 0])
def test_the_head_ends_in_the_middle_of_a_frame(stream: int, head: int, before_the_end: int) -> None:
    rows = FrameRows()
    offset = (head - before_the_end) | 2 << 30
    parse_frames(bytes((0x0C, stream)) + offset.to_bytes(4) + b"content", 0, 2, rows)
    assert rows.heads == ({0: b"content"[:before_the_end]} if before_the_end else {})


@pytest.mark.parametrize(("recording", "accepted"), [("zerortt", [False, True]), ("resumption", [False, False])])
def test_the_servers_word_on_early_data(recording: str, accepted: list[bool]) -> None:
    table = _decoded(f"quic-go_quinn/{recording}").connections
    assert table["early_data_accepted"].to_pylist() == accepted
