"""A trace as one JSON object, which `bentpipe decode --json` prints."""

from dataclasses import asdict
from typing import Any

import pyarrow as pa

from runner.decode.columns import words
from runner.decode.schema import Trace
from runner.decode.trace_checks import unique_bytes_by_stream


def to_json(trace: Trace) -> dict[str, Any]:
    """The counts of a trace, its connections and its checks. Bytes become hexadecimal strings."""
    packets = trace.packets
    streams = _streams(trace.stream_frames)
    return {
        **asdict(trace.meta),
        "datagrams": trace.datagrams.num_rows,
        "packets": packets.num_rows,
        "records": trace.meta.packets,
        "packets_by_type": _counts(packets["type"]),
        "frames": trace.frames.num_rows,
        "frames_by_name": _counts(trace.frames["name"]),
        "stream_frames": trace.stream_frames.num_rows,
        "stream_bytes": sum(stream["bytes"] for stream in streams),
        "streams": streams,
        "undecrypted": int((~packets["decrypted"].to_numpy()).sum()),
        "connections": [_readable(row) for row in trace.connections.to_pylist()],
        "invariants": [asdict(each) for each in trace.checks],
        "truncated": trace.meta.truncated,
    }


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    indices, known = words(column)
    numbers = {word: int((indices == at).sum()) for at, word in enumerate(known)}
    return {word: number for word, number in sorted(numbers.items()) if number}


def _streams(frames: pa.Table) -> list[dict[str, int]]:
    """The number of distinct bytes of every stream and direction."""
    return [
        {"connection": connection, "sender": sender, "stream_id": stream, "bytes": unique}
        for (connection, sender, stream), unique in unique_bytes_by_stream(frames).items()
    ]


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
