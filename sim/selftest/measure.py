"""Functions that the checks share: the link's document, a flow of UDP, and readers of the link's files."""

import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lane import CLIENT_V4, CLIENT_V6, Lane, finish

RECORD = struct.Struct("<QIIBBHHH")
HEADER = struct.Struct("<8sQ")
DROP_LOSS, DELIVER = 2, 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One checked property of the link program, and the measured result."""

    name: str
    passed: bool
    measured: str


Fields = dict[str, Any]


def document(*, forward: Fields | None = None, return_: Fields | None = None, **fields: object) -> Fields:
    """A link's document: 20/2 Mbit/s, 300 ms in each direction, a queue that never overflows. The arguments replace
    fields of it."""
    plain = {"delay": 0.3, "queue_packets": 100_000}
    return {
        "forward": {"data_rate": 20_000_000, **plain, **(forward or {})},
        "return": {"data_rate": 2_000_000, **plain, **(return_ or {})},
        "seed": 1,
        **fields,
    }


def balanced(counts: dict[str, Any]) -> bool:
    """Whether the counts account for each packet that entered the link."""
    dropped = sum(count for name, count in counts.items() if name.startswith("dropped_"))
    gone = counts["packets_out"] + counts["send_errors"] + dropped
    return bool(counts["packets_in"] == gone + counts["in_flight"])


def flow(lane: Lane, *, to: str, rate: float, ip_length: int, count: int, timeout: float = 20.0) -> dict[str, Any]:
    """Sends UDP to the client (forward) or to the server (return) and returns the receiver's result."""
    receiver, sender = ("client", "server") if to in (CLIENT_V4, CLIENT_V6) else ("server", "client")
    family = ("--ipv6",) if ":" in to else ()
    receiving = lane.start_traffic(receiver, "receive", "--port", "4000", "--timeout", str(timeout), *family)
    time.sleep(0.5)
    sizes = ("--ip-length", str(ip_length), "--count", str(count))
    lane.traffic(sender, "send", "--to", to, "--port", "4000", "--rate", str(rate), *sizes)
    return finish(receiving)


def drops(path: Path) -> list[tuple[int, int]]:
    """Direction and number of each packet that the loss model lost, from a packet log. Numbers count the packets of the
    direction that left the channel."""
    data = path.read_bytes()
    seen = [0, 0]
    lost = []
    for _, _, _, direction, event, _, _, _ in RECORD.iter_unpack(data[HEADER.size :]):
        if event in (DROP_LOSS, DELIVER):
            if event == DROP_LOSS:
                lost.append((direction, seen[direction]))
            seen[direction] += 1
    return lost
