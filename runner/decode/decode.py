"""Decodes one capture with its key logs to a trace."""

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from runner.decode.attribution import strangers
from runner.decode.capture import open_capture
from runner.decode.columns import Bools, Integers
from runner.decode.connection import Connection
from runner.decode.decoder import Decoder
from runner.decode.file_bytes import NumbersAt, release, sha256
from runner.decode.frames import NONE
from runner.decode.ip_packets import packets_by_addresses
from runner.decode.keylog import APPLICATION, HANDSHAKE, LARGEST_FOREIGN, LARGEST_KEY_LOG, Session, read_key_logs
from runner.decode.link_layers import LINK_TYPES, link_name
from runner.decode.network import Datagrams, read_datagrams
from runner.decode.packets import KNOWN_VERSIONS
from runner.decode.protection import VERSIONS
from runner.decode.rows import CONNECTION, DATAGRAM
from runner.decode.schema import DECODER_VERSION, MOST_SOURCES, CaptureMeta, Trace
from runner.decode.tables import TableBuilder
from runner.decode.trace_checks import trace_checks
from runner.errors import CaptureError
from runner.units import format_count

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
        decoder_version=DECODER_VERSION,
        skipped_udp=_skipped(datagrams, selected),
        fragment_sources=dict(datagrams.fragment_sources.most_common(MOST_SOURCES)),
        ip_packets=packets_by_addresses(file),
        not_udp=dict((+datagrams.not_udp).most_common()),
        headers=dict(datagrams.headers),
        remarks=[
            *(sentence for log in logs for sentence in log.remarks(randoms)),
            *_missing_secrets(decoder.registry.connections),
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


def _missing_secrets(connections: Sequence[Connection]) -> list[str]:
    """A sentence about connections that have only some of the secrets that their packets need."""
    needed = frozenset((*HANDSHAKE, *APPLICATION))
    partial = [each for each in connections if each.secrets and not needed <= each.secrets]
    if not partial:
        return []
    missing = frozenset(label for label in needed if any(label not in each.secrets for each in partial))
    return [f"The key logs lack secrets of {format_count(len(partial), 'connection')}: {', '.join(sorted(missing))}."]


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
