"""Checks that hold on every complete trace, and checks between the two traces of a job."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from runner.decode.columns import NULL, Integers, integers, named, words
from runner.decode.protection import VERSIONS
from runner.decode.schema import CLIENT, MTU, SERVER, CaptureMeta, Trace, TraceCheck


def trace_checks(tables: dict[str, pa.Table], meta: CaptureMeta) -> list[TraceCheck]:
    """The checks of one trace. Every count is expected to be 0."""
    return [
        _zero("undecrypted_packets", _undecrypted(tables["packets"])),
        _zero("datagrams_above_mtu", int((integers(tables["datagrams"]["ip_length"]) > MTU).sum())),
        _zero("unknown_frames", int(named(tables["frames"]["name"], "unknown").sum())),
        _zero("snapped_records", meta.snapped),
        _zero("truncated_capture", int(meta.truncated)),
        _zero("kernel_drops", meta.kernel_drops),
    ]


def _undecrypted(packets: pa.Table) -> int:
    """The number of unread packets that should have been decrypted.

    0-RTT packets don't count: a server that refused them has no secret, and some stacks don't log the secret. Packets
    of a version without known keys don't count on a connection with Version Negotiation.
    """
    failed = ~packets["decrypted"].to_numpy()
    if not failed.any():
        return 0
    connection = integers(packets["connection"])
    negotiated = connection[named(packets["type"], "version_negotiation")]
    unknown = ~np.isin(integers(packets["version"]), (*VERSIONS, NULL))
    foreign = unknown & (connection >= 0) & np.isin(connection, negotiated)
    return int((failed & ~named(packets["type"], "0rtt") & ~foreign).sum())


def job_checks(client_side: Trace, server_side: Trace, expected_bytes: Sequence[int] | None) -> list[TraceCheck]:
    """Checks between the traces of both vantage points of one job.

    `expected_bytes`: sizes of the transferred files. Their sum is compared with the server's stream data that arrived
    at the client, and each size with the final sizes of the server's streams. None: the job has no files, or its stream
    data is not exactly the files (HTTP/3 adds frames, HTTP/0.9 does not).
    """
    checks = [
        _zero("arrived_at_client_never_sent", _not_contained(client_side, server_side, SERVER)),
        _zero("arrived_at_server_never_sent", _not_contained(server_side, client_side, CLIENT)),
    ]
    if expected_bytes is None:
        return checks
    total = sum(expected_bytes)
    unique = sum(
        size for (_, sender, _), size in unique_bytes_by_stream(client_side.stream_frames).items() if sender == SERVER
    )
    responses = final_sizes(client_side, SERVER)
    matching = sum(1 for size in sorted(expected_bytes) if _take(responses, size))
    return [
        *checks,
        TraceCheck("stream_bytes", unique == total, total, unique),
        TraceCheck("fin_offsets", matching == len(expected_bytes), len(expected_bytes), matching),
    ]


def _take(sizes: list[int], size: int) -> bool:
    if size in sizes:
        sizes.remove(size)
        return True
    return False


def _not_contained(arrived: Trace, sent: Trace, sender: int) -> int:
    """The number of packets of `sender` that are in the trace `arrived` but not in the trace `sent`. `arrived` is from
    the far end of the link, `sent` from the sender's end.

    Connection, type and number identify a packet; the client random identifies a connection in both captures.
    """
    known = _packet_numbers(sent, sender)
    nothing = np.empty(0, dtype=np.int64)
    return sum(
        len(np.setdiff1d(numbers, known.get(group, nothing)))
        for group, numbers in _packet_numbers(arrived, sender).items()
    )


def _packet_numbers(trace: Trace, sender: int) -> dict[tuple[bytes, str], Integers]:
    """(client random, packet type) → the packet numbers of one sender."""
    packets = trace.packets
    randoms = trace.connections["client_random"].to_pylist()
    connection, number = integers(packets["connection"]), integers(packets["packet_number"])
    kind, kinds = words(packets["type"])
    sent = (integers(packets["sender"]) == sender) & (number != NULL) & (connection >= 0)
    group = (connection * (len(kinds) + 1) + kind)[sent]
    number = number[sent]
    return {
        (randoms[each // (len(kinds) + 1)] or b"", kinds[each % (len(kinds) + 1)]): number[group == each]
        for each in np.unique(group).tolist()
    }


def unique_bytes_by_stream(frames: pa.Table) -> dict[tuple[int, int, int], int]:
    """(connection, sender, stream id) → number of distinct bytes."""
    connection, sender, stream, offset, length = (
        integers(frames[name]) for name in ("connection", "sender", "stream_id", "offset", "length")
    )
    order = np.lexsort((offset, stream, sender, connection))
    offset, end = offset[order], (offset + length)[order]
    key = np.column_stack((connection, sender, stream))[order]
    starts = [0, *(np.flatnonzero((key[1:] != key[:-1]).any(axis=1)) + 1).tolist(), len(offset)]
    result = {}
    for start, stop in pairwise(starts):
        if start < stop:
            reached = np.concatenate((offset[start : start + 1], np.maximum.accumulate(end[start:stop])))
            fresh = np.maximum(reached[1:] - np.maximum(reached[:-1], offset[start:stop]), 0)
            result[tuple(key[start].tolist())] = int(fresh.sum())
    return result


def final_sizes(trace: Trace, sender: int) -> list[int]:
    """The final sizes (RFC 9000 §4.5) of the streams that `sender` ended with a FIN."""
    frames = trace.stream_frames
    last = np.flatnonzero((integers(frames["sender"]) == sender) & frames["fin"].to_numpy())
    columns = [integers(frames[name])[last].tolist() for name in ("connection", "stream_id", "offset", "length")]
    return list({(each[0], each[1]): each[2] + each[3] for each in zip(*columns, strict=True)}.values())


def _zero(name: str, actual: int | None) -> TraceCheck:
    return TraceCheck(name, None if actual is None else actual == 0, 0, actual)
