"""Reads one capture with its key logs, and describes what is in it. `tables` makes the tables of a trace.

This module does without pyarrow, whose import takes longer than decoding a small capture.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from runner.decode.capture import Datagrams, open_capture, packets_by_addresses, read_datagrams
from runner.decode.columns import (
    DECODER_VERSION,
    MOST_SOURCES,
    MTU,
    PACKET_TYPES,
    Bools,
    CaptureMeta,
    Integers,
    NumbersAt,
    TraceCheck,
    release,
    sha256,
)
from runner.decode.connection import Connection
from runner.decode.decoder import Decoder, refused_answers, strangers
from runner.decode.http3 import http3_streams
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
from runner.decode.wire import (
    KNOWN_VERSIONS,
    NAMES_OF_FRAMES,
    NONE,
    PacketType,
    Rows,
    frame_names,
    version_name,
)
from runner.errors import CaptureError
from runner.files import without_collection
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


# Decodes one capture with its key logs.

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


@dataclass(frozen=True, slots=True)
class DecodedCapture:
    """What the decoder read of one capture, with the facts of the file and the checks of the capture."""

    datagrams: Datagrams
    selected: Integers
    """Numbers of the QUIC datagrams. The rows of the decoder count them from 0."""
    decoder: Decoder
    meta: CaptureMeta
    checks: list[TraceCheck]

    @property
    def connections(self) -> list[Connection]:
        """The connections in the order of their first packets."""
        return self.decoder.registry.connections


def read_capture(
    capture: Path, key_logs: Sequence[Path] = (), *, kernel_drops: int | None = None, foreign: bool = False
) -> DecodedCapture:
    """Decode all QUIC packets of a pcap or pcapng file (gzip is allowed), and decrypt the packets that have keys.

    `key_logs` are merged with each other and with the secrets in the file. `kernel_drops`: the number of packets that
    the kernel dropped, from the capture tool; None: the number in the pcapng file, if there is one. `foreign`: the
    capture comes from elsewhere, so large key logs and packets in tunnels are read, too. Damaged parts of a
    capture are counted and raise no error. Raises CaptureError when a file can't be read, is no capture, or has a link
    type without IP.
    """
    file, stored = open_capture(capture)
    datagrams = read_datagrams(file, tunnels=foreign)
    if datagrams.link_types and not datagrams.link_types & LINK_TYPES.keys():
        names = "; ".join(map(link_name, sorted(datagrams.link_types)))
        raise CaptureError(f"{capture} has {names}: capture on an interface that carries IP.")
    unread = [*file.left_out, *filter(None, [file.end])]
    if foreign and unread and not datagrams.records:
        raise CaptureError(f"Nothing in {capture} can be read. {' '.join(unread)}")
    sessions, logs = read_key_logs(key_logs, file.secrets, limit=LARGEST_FOREIGN if foreign else LARGEST_KEY_LOG)
    # An endpoint of a run could join packets that its peer can't read.
    decoder, selected = decode_datagrams(datagrams, sessions, single=0 if foreign else MTU)
    connections, rows = decoder.registry.connections, decoder.rows
    randoms = [connection.client_random for connection in connections]
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
            *unread,
            *(sentence for log in logs for sentence in log.remarks(randoms)),
            *_missing_secrets(connections, rows),
            *_ignored(decoder),
        ],
    )
    checks = capture_checks(
        meta,
        undecrypted=_undecrypted(rows),
        above_mtu=int((datagrams.ip_length[selected] > MTU).sum()),
        unknown_frames=_frame_counts(rows).get("unknown", 0),
    )
    return DecodedCapture(datagrams, selected, decoder, meta, checks)


def decode_datagrams(
    datagrams: Datagrams, sessions: dict[bytes, Session], *, single: int = MTU
) -> tuple[Decoder, Integers]:
    """Decode the QUIC datagrams. Returns the decoder and the numbers of the QUIC datagrams. Never raises.

    Flows that could be QUIC are decoded, too. Flows without a packet of a connection, and single datagrams that belong
    to no connection, are another protocol. Then all other datagrams are decoded again, because such packets cost
    attempts to decrypt.
    """
    quic, possible = _quic_flows(datagrams)
    selected = np.flatnonzero((quic | possible)[datagrams.flow])
    decoder = Decoder(datagrams, sessions, single=single)
    decoder.run(selected)
    if possible.any():
        quic |= possible & _flows_of_connections(datagrams, decoder, selected)
    kept = quic[datagrams.flow[selected]]
    kept[strangers(decoder.rows, datagrams, selected, decoder.registry)] = False
    kept[refused_answers(decoder.rows, decoder.registry)] = False
    if not kept.all():
        selected, decoder = selected[kept], Decoder(datagrams, sessions, single=single)
        decoder.run(selected)
    return decoder, selected


def _flows_of_connections(datagrams: Datagrams, decoder: Decoder, selected: Integers) -> Bools:
    """Per flow: whether a packet of the flow, or of its reverse flow, belongs to a connection."""
    packets = decoder.rows.packets
    flow = datagrams.flow[selected[packets.column("datagram")[packets.column("connection") != NONE]]]
    owned = np.zeros(len(datagrams.flows), dtype=bool)
    owned[flow] = True
    owned |= owned[[each.reverse for each in datagrams.flows]]
    return owned


def _missing_secrets(connections: Sequence[Connection], rows: Rows) -> list[str]:
    """Sentences about connections that have only some of the secrets that their packets need."""
    needed = frozenset((*HANDSHAKE_SECRETS, *APPLICATION_SECRETS))
    partial = [each for each in connections if each.secrets and not needed <= each.secrets]
    closed = (rows.packets.column("type") == PacketType.ZERO_RTT) & (rows.packets.column("decrypted") == 0)
    early = set(rows.packets.column("connection")[closed].tolist())
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
    first = np.full(len(datagrams.flows), NONE, dtype=np.int64)
    first[datagrams.flow[::-1]] = np.arange(len(datagrams.flow))[::-1]
    for at in first[first != NONE].tolist():
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


# Checks that hold on every complete capture.


def capture_checks(meta: CaptureMeta, *, undecrypted: int, above_mtu: int, unknown_frames: int) -> list[TraceCheck]:
    """The checks of one capture. Every count is expected to be 0. `above_mtu`: number of datagrams."""
    return [
        TraceCheck.zero("undecrypted_packets", undecrypted),
        TraceCheck.zero("datagrams_above_mtu", above_mtu),
        TraceCheck.zero("unknown_frames", unknown_frames),
        TraceCheck.zero("snapped_records", meta.snapped),
        TraceCheck.zero("truncated_capture", int(meta.truncated)),
        TraceCheck.zero("kernel_drops", meta.kernel_drops),
    ]


def _undecrypted(rows: Rows) -> int:
    """The number of unread packets that should have been decrypted.

    0-RTT packets don't count: a server that refused them has no secret, and some stacks don't log the secret. Packets
    of a version without known keys don't count on a connection with Version Negotiation.
    """
    kind, connection, version, decrypted = (
        rows.packets.column(name) for name in ("type", "connection", "version", "decrypted")
    )
    negotiated = connection[kind == PacketType.VERSION_NEGOTIATION]
    unknown = ~np.isin(version, (*VERSIONS, NONE))
    foreign = unknown & (connection >= 0) & np.isin(connection, negotiated)
    return int(((decrypted == 0) & (kind != PacketType.ZERO_RTT) & ~foreign).sum())


# What `bentpipe decode` prints.

_MULTIPATH = ('"0x3e"', '"0xf739bbc1b666d')
"""Transport parameters of draft-ietf-quic-multipath. The second number ends with two digits of the draft."""


def describe_capture(capture: Path, key_logs: Sequence[Path] = (), *, details: bool) -> dict[str, Any]:
    """What is in a foreign capture, like `describe`. Raises CaptureError like `read_capture`."""
    with without_collection():
        decoded = read_capture(capture, key_logs, foreign=True)
        document = describe(decoded, details=details)
        decoded.decoder.registry.release()
    return document


def describe(decoded: DecodedCapture, *, details: bool) -> dict[str, Any]:
    """The counts of a capture, its connections and its checks as one JSON object. Bytes become hexadecimal strings.
    `details`: the connections have their TLS messages and HTTP/3 frames, too."""
    rows, meta, connections = decoded.decoder.rows, decoded.meta, []
    owner = rows.packets.column("connection")
    for connection in decoded.connections:
        row = connection.fields()
        if details:
            row |= {"messages": connection.proven_messages(), "http3": http3_streams(rows, connection)}
        listed = {
            version
            for at, versions in rows.supported_versions.items()
            if owner[at] == connection.number
            for version in versions
        }
        row["negotiated_versions"] = sorted(listed)
        connections.append({name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()})
    frames, types, packets = rows.frames.streams, rows.packets.column("type"), rows.packets
    packet, *columns = (frames.column(name) for name in ("packet", "stream_id", "offset", "length"))
    owners = (packets.column(name)[packet] for name in ("connection", "sender"))
    streams = [
        {"connection": connection, "sender": sender, "stream_id": stream, "bytes": size}
        for (connection, sender, stream), size in distinct_bytes(*owners, *columns).items()
    ]
    frame_counts, closed = _frame_counts(rows), packets.column("decrypted") == 0
    return {
        **asdict(meta),
        "remarks": [
            *meta.remarks,
            *_joined(decoded),
            *_one_way(decoded.connections, rows),
            *_unusual(rows, connections),
        ],
        "datagrams": len(decoded.selected),
        "packets": len(rows),
        "records": meta.packets,
        "packets_by_type": _counts(types, PACKET_TYPES),
        "frames": sum(frame_counts.values()),
        "frames_by_name": frame_counts,
        "stream_frames": len(frames),
        "stream_bytes": sum(stream["bytes"] for stream in streams),
        "streams": streams,
        "undecrypted": int(closed.sum()),
        "undecrypted_by_type": _counts(types[closed], PACKET_TYPES),
        "connections": connections,
        "invariants": [asdict(each) for each in decoded.checks],
    }


def _joined(decoded: DecodedCapture) -> Iterator[str]:
    """A sentence about records that contain several datagrams."""
    datagrams, selected, divided = decoded.datagrams, decoded.selected, decoded.decoder.divided
    joined = sorted({*np.flatnonzero(datagrams.ip_length[selected] > MTU).tolist(), *divided})
    if joined:
        records = datagrams.record[selected[joined]]
        named = ", ".join(map(str, records[:5].tolist()))
        more = f" and {len(records) - 5} more" if len(records) > 5 else ""
        otherwise = "" if divided else ", or the link has a larger MTU"
        yield (
            f"Several datagrams in one record, joined by segmentation offload (GSO, GRO){otherwise}: "
            f"{'records' if len(records) > 1 else 'record'} {named}{more}. Numbers, sizes and times of datagrams, and "
            "which packets were coalesced, are not known there. Mend: ethtool -K IFACE tx-udp-segmentation off gro off."
        )


def _one_way(connections: Sequence[Connection], rows: Rows) -> Iterator[str]:
    """Sentences about connections of which only one direction is in the capture."""
    owner, sender = (rows.packets.column(name) for name in ("connection", "sender"))
    for number, role in enumerate(("client", "server")):
        heard = set(owner[sender == number].tolist())
        silent = [each for each in connections if each.number not in heard]
        if silent:
            of = format_count(len(silent), "connection")
            why = "it did not answer, or " if role == "server" else ""
            yield f"The capture has no packet of the {role} of {of}: {why}one direction was not captured."


def _unusual(rows: Rows, connections: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Sentences about unknown versions outside of connections, repeated packets and multipath."""
    names = ("connection", "sender", "type", "packet_number", "decrypted", "version")
    owner, sender, kind, number, decrypted, version = map(rows.packets.column, names)
    versions = version[(owner == NONE) & (kind == PacketType.UNKNOWN) & ~np.isin(version, (*VERSIONS, NONE))]
    if len(versions):
        listed = ", ".join(map(version_name, np.unique(versions)[:3].tolist()))
        yield f"{format_count(len(versions), 'packet')} of an unknown QUIC version: {listed}."
    numbered = np.column_stack((owner, sender, kind, number))[(decrypted != 0) & (number >= 0)]
    again = len(numbered) - len(np.unique(numbered, axis=0, return_counts=True)[1])  # without counts: imports numpy.ma
    if again:
        why = "several interfaces (-i any), a mirror port, or a network that duplicates"
        yield f"{format_count(again, 'packet')} repeated in the capture: {why}."
    ends = [(row["client_transport_parameters"] or "", row["server_transport_parameters"] or "") for row in connections]
    multipath = sum(all(any(name in end for name in _MULTIPATH) for end in both) for both in ends)
    if multipath:
        of = format_count(multipath, "connection")
        yield f"{of} with multipath, which bentpipe does not read: only packets of the first path can be decrypted."


def _frame_counts(rows: Rows) -> dict[str, int]:
    return _counts(frame_names(rows.frames.all_of("type")), NAMES_OF_FRAMES)


def _counts(places: Integers, words: Sequence[str]) -> dict[str, int]:
    """Word → how often its place in `words` occurs, in alphabetical order."""
    numbers = dict(zip(words, np.bincount(places, minlength=len(words)).tolist(), strict=True))
    return {word: number for word, number in sorted(numbers.items()) if number}


def distinct_bytes(
    connection: Integers, sender: Integers, stream: Integers, offset: Integers, length: Integers
) -> dict[tuple[int, int, int], int]:
    """(connection, sender, stream id) → number of distinct bytes in STREAM frames."""
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
