"""The decoder's tables in the form of the oracles: a dictionary for each packet with its frames."""

from collections import defaultdict
from typing import Any

from runner.decode.columns import Trace

_DEFAULT_ACK_DELAY_EXPONENT = 3
_PACKET_FIELDS = ("index", "type", "version", "dcid", "scid", "packet_number", "key_phase", "length", "decrypted")
# Frame type → the columns that the oracle also has.
_COLUMNS: dict[int, tuple[str, ...]] = {
    0x00: ("length",),
    0x06: ("offset", "length"),
    0x07: ("length", "payload"),
    0x10: ("value",),
    0x11: ("stream_id", "value"),
    0x12: ("value",),
    0x13: ("value",),
    0x14: ("value",),
    0x18: ("length", "value", "payload"),
    0x19: ("value",),
    0x1A: ("payload",),
    0x1B: ("payload",),
    0x1C: ("value",),
    0x1D: ("value",),
}


def packets(trace: Trace) -> list[dict[str, Any]]:
    """All packets of a trace in order, each with its header's fields and `frames`, a list of tuples."""
    streams = {(row["packet"], row["frame"]): row for row in trace.stream_frames.to_pylist()}
    acks = {(row["packet"], row["frame"]): row for row in trace.ack_frames.to_pylist()}
    times = trace.datagrams["time_ns"].to_pylist()
    frames: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in trace.frames.to_pylist():
        key = row["packet"], row["frame"]
        kind = row["type"]
        if key in streams:
            stream = streams[key]
            columns = (stream["stream_id"], stream["offset"], stream["length"], stream["fin"])
            frames[row["packet"]].append((kind, *columns))
        elif key in acks:
            frames[row["packet"]].append((kind, *_ack(acks[key])))
        else:
            frames[row["packet"]].append((kind, *(row[column] for column in _COLUMNS.get(kind, ()))))
    return [
        {
            "time_ns": times[row["datagram"]],
            **{name: row[name] for name in _PACKET_FIELDS},
            "frames": frames[row["packet"]],
        }
        for row in trace.packets.to_pylist()
    ]


def _ack(row: dict[str, Any]) -> tuple[Any, ...]:
    ranges = tuple((each["first"], each["last"]) for each in row["ranges"])
    delay = row["delay_us"] >> _DEFAULT_ACK_DELAY_EXPONENT
    return row["largest"], delay, ranges, row["ect0"], row["ect1"], row["ce"]
