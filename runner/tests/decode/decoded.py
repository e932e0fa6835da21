"""Decodes recordings and rewritten captures for the tests of the decoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from runner.decode.columns import Trace
from runner.decode.tables import decode_capture
from runner.tests.decode.pairs import Pair
from runner.tests.decode.rewrite import Record, write_pcap
from runner.tests.decode.test_oracle_tshark import OWN, SHARED, key_logs

STACKS = ("quic-go", "quinn", "aioquic")


def own(name: str) -> Path:
    return OWN / name / "left.pcap"


def shared(name: str) -> Path:
    return SHARED / name / "1" / "sim" / "left.pcap"


def decode(capture: Path) -> Trace:
    return decode_capture(capture, key_logs(capture))


def decode_records(folder: Path, records: Sequence[Record], logs: Sequence[Path]) -> Trace:
    return decode_capture(write_pcap(folder / "rewritten.pcap", records), logs)


def decode_pairs(folder: Path, pairs: Sequence[Pair], records: Sequence[Record] | None = None) -> Trace:
    log = folder / "keys.log"
    log.write_bytes(b"".join(pair.key_log for pair in pairs))
    every = [record for pair in pairs for record in pair.records] if records is None else records
    return decode_records(folder, sorted(every, key=lambda record: record.time_ns), [log])


def undecrypted(trace: Trace) -> list[str]:
    failed = trace.packets.filter(pc.invert(trace.packets["decrypted"]))
    return [str(kind) for kind in failed["type"].to_pylist()]


def contents(trace: Trace) -> list[tuple[Any, ...]]:
    """The sent content without row numbers, because these depend on the rest of a capture."""
    names = ("time_ns", "sender", "stream_id", "offset", "length", "fin", "packet_number")
    return sorted(zip(*(trace.stream_frames[name].to_pylist() for name in names), strict=True))


def connection(trace: Trace) -> dict[str, Any]:
    (row,) = trace.connections.to_pylist()
    return dict(row)
