"""Compares the decoder of TCP with tshark and the simulator's counts, on captures of a run.

    python -m lab.tcp RUN

For each job over TCP with captures, three sources give the numbers to compare: tshark's sequence numbers give the
server's payload bytes and repeated bytes, tshark's HTTP/2 fields give the bytes of content, and the simulator's drops
give the lost packets. Needs tshark. Exit code 1 when a number differs.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.tshark import rows
from runner.decode.tcp import decode_tcp
from runner.judge.execution import load_truth
from runner.model.result import Artifacts
from runner.model.run import Job, Run
from runner.model.stack import HTTP2, OVER_TCP
from runner.store.runs import RunFolder
from runner.trace.establish import facts
from runner.trace.measure import sample

_DATA = "tcp.srcport == 443 && tcp.len > 0"
_CONTENT = "http2.type == 0 && tcp.srcport == 443"


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of one job, in bytes (`lost`: in packets); None when a source does not have the number."""

    sent: int
    repeated: int | None
    content: int | None
    lost: int | None


def ours(run: Run, job: Job, artifacts: Artifacts) -> Numbers:
    """The numbers of our decoder."""
    case = run.case(job)
    traces = decode_tcp(artifacts.client_capture, artifacts.server_capture, artifacts.key_logs)
    tcp_facts = facts(*traces)
    numbers = sample(*traces, tcp_facts, file_sizes=case.file_sizes, forward=case.forward, return_=case.return_)
    datagrams = traces[1].datagrams
    sent = sum(row["payload_length"] for row in datagrams.to_pylist() if row["sender"] == 1)
    content = numbers.file_size if numbers.ttlb is not None else 0
    return Numbers(sent=sent, repeated=numbers.retransmitted_bytes, content=content, lost=numbers.lost_packets)


def theirs(run: Run, job: Job, artifacts: Artifacts) -> Numbers:
    """The numbers of tshark and of the simulator's truth."""
    found = rows(artifacts.server_capture, _DATA, "tcp.stream", "tcp.seq", "tcp.len")
    segments = [[int(value) for (value,) in row.values()] for row in found]
    streams = defaultdict(list)
    for stream, start, length in segments:
        streams[stream].append((start, start + length))
    truth = load_truth(artifacts.link_truth)
    sent = sum(length for _, _, length in segments)
    return Numbers(
        sent=sent,
        repeated=sent - sum(map(_covered, streams.values())),
        content=sum(_content(artifacts)) if run.protocol(job) == HTTP2 else None,
        lost=truth.forward.dropped_queue + truth.forward.dropped_loss if truth else None,
    )


def _covered(ranges: list[tuple[int, int]]) -> int:
    """The bytes in the union of the ranges."""
    total = reached = 0
    for start, end in sorted(ranges):
        total += max(0, end - max(reached, start))
        reached = max(reached, end)
    return total


def _content(artifacts: Artifacts) -> Iterator[int]:
    """The lengths of DATA frames. Several frames may end in one segment; tshark lists them together."""
    for row in rows(artifacts.server_capture, _CONTENT, "http2.length", "http2.type"):
        for length, kind in zip(*row.values(), strict=True):
            if kind == "0":
                yield int(length)


def main() -> int:
    """Compare all jobs; returns the exit code."""
    folder = RunFolder.open(Path(sys.argv[1]))
    differ = 0
    for job, result in folder.results().items():
        artifacts = folder.artifacts(job)
        if result.protocol not in OVER_TCP or not artifacts.server_capture.is_file():
            continue
        mine, other = ours(folder.run, job, artifacts), theirs(folder.run, job, artifacts)
        pairs = [(name, getattr(mine, name), getattr(other, name)) for name in Numbers.__dataclass_fields__]
        wrong = [
            f"{name} {value}, expected {expected}"
            for name, value, expected in pairs
            if expected is not None and value != expected
        ]
        differ += bool(wrong)
        print(f"{job}: {'; '.join(wrong) or f'as expected: {mine}'}", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
