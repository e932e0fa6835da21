"""Decodes one capture with its key logs to a trace; keeps, checks, compares and prints traces."""

import gc
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.decode.capture import Datagrams, open_capture, packets_by_addresses, read_datagrams
from runner.decode.columns import (
    CLIENT,
    DECODER_VERSION,
    MOST_SOURCES,
    MTU,
    NULL,
    PACKET_TYPES,
    READABLE_VERSIONS,
    SERVER,
    SPACES,
    TABLES,
    Bools,
    CaptureMeta,
    Integers,
    NumbersAt,
    Trace,
    TraceCheck,
    file_bytes,
    integers,
    named,
    release,
    sha256,
    words,
)
from runner.decode.connection import Connection
from runner.decode.decoder import Decoder, strangers
from runner.decode.keys import (
    APPLICATION_SECRETS,
    EARLY_SECRET,
    HANDSHAKE_SECRETS,
    LARGEST_FOREIGN,
    LARGEST_KEY_LOG,
    VERSIONS,
    Session,
    read_key_logs,
)
from runner.decode.link_layers import LINK_TYPES, link_name
from runner.decode.tables import TableBuilder
from runner.decode.wire import CONNECTION, DATAGRAM, KNOWN_VERSIONS, NONE
from runner.errors import CaptureError
from runner.files import read_head
from runner.units import format_count

# Finds the first packet in which two captures differ.

Packet = tuple[int, bytes, int]
"""time in ns, captured bytes, length on the wire in bytes"""

_ETHERNET, _UDP = 14, 8  # bytes of their headers
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first difference between the packets of two runs of a job."""

    side: str  # the end of the link where the captures were made: client or server
    number: int  # number of the packet in that capture, from 1
    time: float  # s since the capture's first packet
    what: str


def first_difference(side: str, before: Path, after: Path) -> Difference | None:
    """The first packet in which two captures differ. None: they are equal, or one of them can't be read."""
    try:
        pairs = zip_longest(_packets(before), _packets(after))
        began = None
        for number, (first, second) in enumerate(pairs, start=1):
            if began is None:
                began = (first or second or (0, b"", 0))[0]
            if first != second:
                time = ((first or second or (0, b"", 0))[0] - began) / 1e9
                return Difference(side=side, number=number, time=time, what=_describe(first, second))
    except CaptureError:
        pass
    return None


def _packets(path: Path) -> Iterator[Packet]:
    capture, _ = open_capture(path)
    for time_ns, _, first, last, length in capture.records():
        yield time_ns, capture.data[first:last], length


def _describe(first: Packet | None, second: Packet | None) -> str:
    if first is None or second is None:
        return f"only the {'first' if second is None else 'second'} run has this packet"
    if first[1:] == second[1:]:
        moved = second[0] - first[0]
        return f"the same bytes {abs(moved) / 1000:g} µs {'later' if moved > 0 else 'earlier'} in the second run"
    if first[2] != second[2]:
        return f"{first[2]} bytes in the first run, {second[2]} in the second"
    unequal = [i for i, (a, b) in enumerate(zip(first[1], second[1], strict=False)) if a != b]
    payload = _payload(first[1])
    checksum = (payload - 2, payload - 1)  # the UDP checksum differs whenever another byte does
    at = next((i for i in unequal if i not in checksum), min(unequal, default=len(first[1])))
    return f"{first[2]} bytes in both runs; they differ from {_place(first[1], at)} on"


def _payload(frame: bytes) -> int:
    """The position of the UDP payload in a frame; 0 when the frame is neither IPv4 nor IPv6."""
    if frame[12:14] == _IPV4 and len(frame) > _ETHERNET:
        return _ETHERNET + 4 * (frame[_ETHERNET] & 15) + _UDP
    return _ETHERNET + 40 + _UDP if frame[12:14] == _IPV6 else 0


def _place(frame: bytes, at: int) -> str:
    """The place of byte `at` of a frame in words, such as `byte 4 of the UDP payload`."""
    payload = _payload(frame)
    if not payload or at < _ETHERNET:
        return f"byte {at} of the frame"
    if at < payload - _UDP:
        return f"byte {at - _ETHERNET} of the IP header"
    return f"byte {at - payload} of the UDP payload" if at >= payload else "the UDP header"


# Changes the times of a trace to the clock of another host.

if TYPE_CHECKING:  # `decode` needs no real link
    from runner.model.link import Clock

_TIMES = ("time_ns", "first_time_ns")
_TABLES = ("datagrams", "stream_frames", "ack_frames", "frames", "connections")


def on_server_clock(trace: Trace, clock: "Clock") -> Trace:
    """The trace of the client, with all times on the server's clock. The order of rows stays the same."""
    tables = {name: _moved(getattr(trace, name), clock) for name in _TABLES}
    first = trace.meta.first_time_ns
    if first is not None:
        first -= round(clock.ahead(clock.server_time(first / 1e9)) * 1e9)
    return replace(trace, **tables, meta=replace(trace.meta, first_time_ns=first))


def _moved(table: pa.Table, clock: "Clock") -> pa.Table:
    for name in _TIMES:
        if name in table.column_names:
            column = table.column(name).combine_chunks()
            known = np.array(column.fill_null(0))
            since = (known / 1e9 - clock.at - clock.offset) / (1 + clock.drift)
            ahead = clock.offset + clock.drift * since
            times = pa.array(known - np.rint(ahead * 1e9).astype(np.int64), mask=np.array(column.is_null()))
            table = table.set_column(table.column_names.index(name), table.schema.field(name), times.cast(pa.int64()))
    return table


# Checks that hold on every complete trace, and checks between the two traces of a job.


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


# Decodes one capture with its key logs to a trace.

_QUIC_PORTS = (443, 4433)
_OTHER_PORTS = {
    **{53: "DNS", 67: "DHCP", 68: "DHCP", 123: "NTP", 137: "NetBIOS", 138: "NetBIOS", 546: "DHCPv6", 547: "DHCPv6"},
    **{1900: "SSDP", 3702: "WS-Discovery", 5353: "mDNS", 5355: "LLMNR"},
}
_TUNNEL_PORTS = {
    **{1701: "L2TP", 2152: "GTP-U", 3544: "Teredo", 4500: "IPsec", 4789: "VXLAN", 6081: "Geneve", 8472: "VXLAN"},
    51820: "WireGuard",
}
"""Ports of tunnels over UDP. QUIC may use them, too."""
_FIXED_BIT = 0x40
_ROWS = 1 << 13  # datagrams whose first bytes are read at once
_GQUIC = re.compile(rb"[\x09\x0d\x29\x2d].{8}(Q0[0-4][0-9])", re.DOTALL)  # public header with a version, to Q043
_LONG_HEADER = 20  # bytes; a packet with a long header, packet number, sample and tag is longer


def decode_capture(
    capture: Path, key_logs: Sequence[Path] = (), *, kernel_drops: int | None = None, foreign: bool = False
) -> Trace:
    """Decode all QUIC packets of a pcap or pcapng file (gzip is allowed), and decrypt the packets that have keys.

    `key_logs` are merged with each other and with the secrets in the file. `kernel_drops`: the number of packets that
    the kernel dropped, from the capture tool; None: the number in the pcapng file, if there is one. `foreign`: the
    capture comes from elsewhere, so large key logs and packets in tunnels are read, too. Damaged parts of a
    capture are counted and raise no error. Raises CaptureError when a file can't be read, is no capture, or has a link
    type without IP.
    """
    with _no_collection():
        return _decode(capture, key_logs, kernel_drops, foreign=foreign)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch off Python's search for unused cycles. The decoder creates millions of objects that all stay in use, and
    the search would visit all objects again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decode(capture: Path, key_logs: Sequence[Path], kernel_drops: int | None, *, foreign: bool) -> Trace:
    file, stored = open_capture(capture)
    datagrams = read_datagrams(file, tunnels=foreign)
    if datagrams.link_types and not datagrams.link_types & LINK_TYPES.keys():
        names = "; ".join(map(link_name, sorted(datagrams.link_types)))
        raise CaptureError(f"{capture} has {names}: capture on an interface that carries IP.")
    sessions, logs = read_key_logs(key_logs, file.secrets, limit=LARGEST_FOREIGN if foreign else LARGEST_KEY_LOG)
    decoder, selected = decode_datagrams(datagrams, sessions)
    randoms = [connection.client_random for connection in decoder.registry.connections]
    tables = TableBuilder(datagrams, selected, decoder.rows, decoder.registry.connections).build()
    decoder.registry.release()
    meta = CaptureMeta(
        file_name=capture.name,
        sha256=sha256(stored),
        link_type=",".join(dict.fromkeys(LINK_TYPES.get(each, str(each)) for each in sorted(datagrams.link_types))),
        packets=datagrams.records,
        non_quic=datagrams.records - len(selected),
        fragments=datagrams.fragments,
        snapped=datagrams.snapped,
        truncated=file.truncated,
        kernel_drops=file.kernel_drops if kernel_drops is None else kernel_drops,
        first_time_ns=datagrams.first_time_ns,
        backwards_ns=datagrams.backwards_ns,
        decoder_version=DECODER_VERSION,
        skipped_udp=_skipped(datagrams, selected),
        fragment_sources=dict(datagrams.fragment_sources.most_common(MOST_SOURCES)),
        ip_packets=packets_by_addresses(file),
        not_udp=dict((+datagrams.not_udp).most_common()),
        headers=dict(datagrams.headers),
        remarks=[
            *(sentence for log in logs for sentence in log.remarks(randoms)),
            *_missing_secrets(decoder.registry.connections, tables["packets"]),
            *_ignored(decoder),
        ],
    )
    return Trace(**tables, meta=meta, checks=trace_checks(tables, meta))


def decode_datagrams(datagrams: Datagrams, sessions: dict[bytes, Session]) -> tuple[Decoder, Integers]:
    """Decode the QUIC datagrams. Returns the decoder and the numbers of the QUIC datagrams. Never raises.

    Flows that could be QUIC are decoded, too. Flows without a packet of a connection, and single datagrams that belong
    to no connection, are another protocol. Then all other datagrams are decoded again, because such packets cost
    attempts to decrypt.
    """
    quic, possible = _quic_flows(datagrams)
    selected = np.flatnonzero((quic | possible)[datagrams.flow])
    decoder = Decoder(datagrams, sessions)
    decoder.run(selected)
    if possible.any():
        quic |= possible & _flows_of_connections(datagrams, decoder, selected)
    kept = quic[datagrams.flow[selected]]
    kept[strangers(decoder.rows, datagrams, selected, decoder.registry)] = False
    if not kept.all():
        selected, decoder = selected[kept], Decoder(datagrams, sessions)
        decoder.run(selected)
    return decoder, selected


def _flows_of_connections(datagrams: Datagrams, decoder: Decoder, selected: Integers) -> Bools:
    """Per flow: whether a packet of the flow, or of its reverse flow, belongs to a connection."""
    packets = decoder.rows.packets
    flow = datagrams.flow[selected[packets.column(DATAGRAM)[packets.column(CONNECTION) != NONE]]]
    owned = np.zeros(len(datagrams.flows), dtype=bool)
    owned[flow] = True
    owned |= owned[[each.reverse for each in datagrams.flows]]
    return owned


def _missing_secrets(connections: Sequence[Connection], packets: pa.Table) -> list[str]:
    """Sentences about connections that have only some of the secrets that their packets need."""
    needed = frozenset((*HANDSHAKE_SECRETS, *APPLICATION_SECRETS))
    partial = [each for each in connections if each.secrets and not needed <= each.secrets]
    closed = named(packets["type"], "0rtt") & ~np.array(packets["decrypted"])
    early = set(integers(packets["connection"])[closed].tolist())
    opened = [each for each in connections if each.secrets]
    without = [each for each in opened if each.number in early and EARLY_SECRET not in each.secrets]
    sentences = []
    if partial:
        missing = sorted({label for label in needed if any(label not in each.secrets for each in partial)})
        sentences = [f"The key logs lack secrets of {format_count(len(partial), 'connection')}: {', '.join(missing)}."]
    if without:
        of = format_count(len(without), "connection")
        sentences.append(f"The key logs lack {EARLY_SECRET} of {of}, so 0-RTT packets can't be decrypted.")
    return sentences


def _ignored(decoder: Decoder) -> list[str]:
    count = format_count(decoder.with_ignored_bytes, "datagram")
    if not decoder.with_ignored_bytes:
        return []
    return [f"Bytes behind the last packet of {count} are no packet, and receivers ignore them (RFC 9000 §12.2)."]


def _skipped(datagrams: Datagrams, selected: Integers) -> dict[str, int]:
    """Reason why UDP packets were not read as QUIC → number of packets."""
    skipped = dict(datagrams.skipped)
    count = len(datagrams.flows)
    read = np.bincount(datagrams.flow[selected], minlength=count)
    left_out = np.bincount(datagrams.flow, minlength=count) - read
    gquic = _gquic_flows(datagrams)
    for flow in np.flatnonzero(left_out).tolist():
        ends = datagrams.flows[flow]
        ports = sorted({ends.src_port, ends.dst_port})
        other = next((port for port in ports if port in _OTHER_PORTS), None)
        tunnel = next((port for port in ports if port in _TUNNEL_PORTS), None)
        why = "no QUIC connection on these addresses and ports"
        if read[flow]:
            why = "without a connection ID of the QUIC connections on these addresses and ports"
        elif flow in gquic:
            why = f"gQUIC {gquic[flow]}, which came before QUIC"
        elif other is not None:
            why = f"port {other} of another protocol ({_OTHER_PORTS[other]})"
        elif tunnel is not None:
            why += f"; port {tunnel} is that of {_TUNNEL_PORTS[tunnel]}, and tunnels over UDP are not read"
        skipped[why] = skipped.get(why, 0) + int(left_out[flow])
    return skipped


def _gquic_flows(datagrams: Datagrams) -> dict[int, str]:
    """Number of a flow with gQUIC packets of versions without a long header → its version. The first packets of a
    client tell the version."""
    found: dict[int, str] = {}
    for at in np.unique(datagrams.flow, return_index=True)[1].tolist():
        start = int(datagrams.start[at])
        public_header = _GQUIC.match(datagrams.data[start : min(start + 13, int(datagrams.end[at]))])
        if public_header is not None:
            flow = datagrams.flows[int(datagrams.flow[at])]
            found[flow.number] = found[flow.reverse] = public_header[1].decode()
    return found


def _quic_flows(datagrams: Datagrams) -> tuple[Bools, Bools]:
    """Per flow: whether it is QUIC, and whether it could be QUIC.

    A flow that uses a QUIC port is QUIC. Any other flow that uses no port of another protocol is QUIC when a datagram
    begins with a long header of QUIC. It could be QUIC when every datagram in both directions has the form of a short
    header (RFC 9000 §17): a connection that migrated, or whose beginning is not in the capture. Text has this form,
    too.
    """
    begins, could_be = _forms(datagrams)
    gquic = _gquic_flows(datagrams)
    ends = [((flow.src, flow.src_port), (flow.dst, flow.dst_port)) for flow in datagrams.flows]
    # A client that sends to a QUIC port may also send QUIC to the server's preferred address. These packets may lack
    # the fixed bit (RFC 9000 §9.6, RFC 9287).
    clients = {end for here, there in ends for end, other in ((here, there), (there, here)) if other[1] in _QUIC_PORTS}
    quic, possible = np.zeros(len(ends), dtype=bool), np.zeros(len(ends), dtype=bool)
    for number, (flow, both_ends) in enumerate(zip(datagrams.flows, ends, strict=True)):
        ports = {flow.src_port, flow.dst_port}
        begun = begins[number] or begins[flow.reverse]
        other = not ports.isdisjoint(_OTHER_PORTS)
        if ports.isdisjoint(_QUIC_PORTS):
            quic[number] = (begun or not clients.isdisjoint(both_ends)) and not other
        else:
            quic[number] = begun or number not in gquic
        possible[number] = could_be[number] and could_be[flow.reverse] and not other and not quic[number]
    return quic, possible


def _forms(datagrams: Datagrams) -> tuple[Bools, Bools]:
    """Per flow: whether a datagram begins with a long header of a version that is read or has a name, and whether all
    its datagrams could be QUIC."""
    begins = np.zeros(len(datagrams.flows), dtype=bool)
    could_be = np.ones(len(datagrams.flows), dtype=bool)
    numbers_at = NumbersAt(datagrams.data)
    for at in range(0, len(datagrams.start), _ROWS):
        flow, start, end = (column[at : at + _ROWS] for column in (datagrams.flow, datagrams.start, datagrams.end))
        first = np.where(start < end, numbers_at(start), _FIXED_BIT)
        version = numbers_at(start + 1, 4)
        long = first & 0x80 != 0
        known = np.isin(version, VERSIONS)
        for first_version, last_version, _ in KNOWN_VERSIONS:
            known |= (version >= first_version) & (version <= last_version)
        begins[flow[long & known & (end - start > _LONG_HEADER)]] = True
        # Version Negotiation packets have no fixed bit.
        could_be[flow[(first & _FIXED_BIT == 0) & ~(long & (version == 0))]] = False
        release(datagrams.data)
    return begins, could_be


# The tables of a trace on disk, each in a Parquet file. A hash of the captures with their names, the key logs, the
# kernel's drops and the decoder's version is the key of the tables.

_META = b"bentpipe.trace"
_KEY = b"bentpipe.key"
_MOST_ROWS = 1 << 24
# Columns that are never null.
_NEVER_NULL = frozenset(
    {"time_ns", "sender", "src", "dst", "src_port", "dst_port", "payload_length", "ip_length", "ecn", "ip_version"}
    | {"index", "type", "length", "decrypted", "frame", "stream_id", "offset", "fin", "space", "largest", "delay_us"}
    | {"ranges", "name", "retry", "early_data_offered", "client_hello_count", "certificate", "first_time_ns"}
    | {"client_ip", "client_port", "server_ip", "server_port", "datagram", "packet", "connection"}
)
_MAY_BE_NULL = {"frames": frozenset({"stream_id", "offset", "length"})}  # null in frame types without these fields
# This table is written last: a folder that contains it is complete.
_LAST = "datagrams"


def save_tables(trace: Trace, folder: Path, *, key: str = "") -> None:
    """Write folder/<table>.parquet (zstd) for every table; a reader never sees a half-written file."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import, and `decode` needs no cache

    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"meta": asdict(trace.meta), "invariants": [asdict(each) for each in trace.checks]})
    for name in sorted(TABLES, key=lambda each: each == _LAST):
        table: pa.Table = getattr(trace, name)
        temporary = folder / f"{name}.parquet.partial"
        metadata = {_META: text.encode(), _KEY: key.encode()}
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")
        temporary.rename(folder / f"{name}.parquet")


def load_tables(folder: Path) -> Trace:
    """The trace that `save_tables` wrote. Raises CaptureError when the trace is missing, or was written by a decoder
    version that can't be read, or contains values that no decoder writes (a run folder is untrusted input)."""
    try:
        tables = {name: _read(folder / f"{name}.parquet") for name in TABLES}
        stored = json.loads(tables[_LAST].schema.metadata[_META])
        meta = CaptureMeta(**stored["meta"])
        checks = [TraceCheck(**each) for each in stored["invariants"]]
        tables = {name: _completed(table, TABLES[name]) for name, table in tables.items()}
        _check(tables)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{folder} has no tables of this version: decode the capture again.") from error
    if meta.decoder_version not in READABLE_VERSIONS:
        raise CaptureError(f"{folder} was written by decoder version {meta.decoder_version}: decode the capture again.")
    return Trace(**tables, meta=meta, checks=checks)


def _read(path: Path) -> pa.Table:
    """The table in a file. Raises ValueError when it has more rows than any capture: a file of a few kilobytes can
    expand to gigabytes."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"{path} has {file.metadata.num_rows} rows")
        return file.read()


def _check(tables: dict[str, pa.Table]) -> None:
    """Check the references between tables. Raises ValueError for row numbers out of range, missing values and unknown
    words."""
    rows = {parent: tables[f"{parent}s"].num_rows for parent in ("datagram", "packet", "connection")}
    for name, table in tables.items():
        for column in table.column_names:
            values = table.column(column)
            if values.null_count and column in _NEVER_NULL - _MAY_BE_NULL.get(name, frozenset()):
                raise ValueError(f"{name}.{column} has nulls")
            if column in rows and len(values):
                numbers = integers(values)
                if numbers.min() < -(column == "connection") or numbers.max() >= rows[column]:
                    raise ValueError(f"{name}.{column} is the number of no row")
    identities = tables["connections"].column("connection"), tables["packets"].column("packet")
    if any(
        not column.equals(pa.chunked_array([pa.array(range(len(column)), column.type)]))
        for column in identities
        if len(column)
    ):
        raise ValueError("rows are not numbered from 0")
    for name in ("datagrams", "packets", "stream_frames", "ack_frames", "frames"):
        _check_words(name, tables[name], "sender", {-1, 0, 1})
    _check_words("packets", tables["packets"], "type", set(PACKET_TYPES))
    _check_words("ack_frames", tables["ack_frames"], "space", set(SPACES))


def _check_words(name: str, table: pa.Table, column: str, known: set[object]) -> None:
    if unknown := set(table.column(column).unique().to_pylist()) - known:
        raise ValueError(f"{name}.{column} has the unknown value {min(map(str, unknown))}")


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in this schema; columns that an older decoder did not write are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def cached_decode(capture: Path, key_logs: Sequence[Path], folder: Path, *, kernel_drops: int | None = None) -> Trace:
    """The trace in `folder`, if this decoder version made it from exactly these files. Otherwise the files are decoded
    and the trace is saved in `folder`."""
    key = _key((capture,), key_logs, kernel_drops)
    if stored_key(folder) == key:
        try:
            return load_tables(folder)
        except CaptureError:
            pass  # a damaged cache is replaced
    trace = decode_capture(capture, key_logs, kernel_drops=kernel_drops)
    save_tables(trace, folder, key=key)
    return trace


def pair_key(captures: tuple[Path, Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    """The key of tables made from two captures together."""
    return _key(captures, key_logs, kernel_drops)


def _key(captures: Sequence[Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    names = " ".join(capture.name for capture in captures)
    digest = hashlib.sha256(f"{DECODER_VERSION} {kernel_drops} {names}".encode())
    for path in (*captures, *key_logs):
        try:
            read = read_head(path, size=LARGEST_KEY_LOG) if path in key_logs else file_bytes(path)
            digest.update(bytes.fromhex(sha256(read)))
        except OSError as error:
            raise CaptureError(
                f"{path} can't be read ({error.strerror}): give the path of an existing file."
            ) from error
    return digest.hexdigest()


def stored_key(folder: Path) -> str | None:
    """The key with which a folder's tables were saved; None when the folder has no tables."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    try:
        metadata = pq.read_schema(folder / f"{_LAST}.parquet").metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return str(metadata.get(_KEY, b""), "ascii", "replace")


# A trace as one JSON object, which `bentpipe decode --json` prints.


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
