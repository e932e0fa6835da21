"""What must hold on every sound trace, and what a job's two traces must say of each other."""

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
    """Packets that should have been opened.

    Excepted: 0-RTT, whose secret no server has that refused it, and no key log of a stack that doesn't write it; and
    packets of a version without known keys on a connection that negotiated another one.
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
    """What the traces of both vantage points of one job must say together.

    `expected_bytes`: sizes of the files that were transferred; they are compared, sorted, with what each stream of
    the server's delivered to the client. None: the job has no such files, or their framing is not the plain one of
    HTTP/0.9, in which the response's stream data is the file (HTTP/3 adds frames of its own).
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
    """How many packets of `sender` are in `arrived`, at the far side of the link, but not in `sent`, at its own side.

    Packets are known by connection, type and number; connections by client random, as their numbers differ.
    """
    known = _packet_numbers(sent, sender)
    nothing = np.empty(0, dtype=np.int64)
    return sum(
        len(np.setdiff1d(numbers, known.get(group, nothing)))
        for group, numbers in _packet_numbers(arrived, sender).items()
    )


def _packet_numbers(trace: Trace, sender: int) -> dict[tuple[bytes, str], Integers]:
    """Client random and type of packet → the packet numbers of one sender."""
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
    """(connection, sender, stream id) → bytes of the union of the byte ranges."""
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
    """The final sizes of the streams that `sender` finished: where their FIN is (RFC 9000 §4.5)."""
    frames = trace.stream_frames
    last = np.flatnonzero((integers(frames["sender"]) == sender) & frames["fin"].to_numpy())
    columns = [integers(frames[name])[last].tolist() for name in ("connection", "stream_id", "offset", "length")]
    return list({(each[0], each[1]): each[2] + each[3] for each in zip(*columns, strict=True)}.values())


def _zero(name: str, actual: int | None) -> TraceCheck:
    return TraceCheck(name, None if actual is None else actual == 0, 0, actual)
