"""One capture with its key logs → one trace."""

import gc
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.decode.capture import open_capture
from runner.decode.decoder import Decoder
from runner.decode.keylog import Session, read_key_logs
from runner.decode.network import LINK_TYPES, Datagrams, read_datagrams
from runner.decode.protection import VERSIONS
from runner.decode.schema import DECODER_VERSION, CaptureMeta, Trace
from runner.decode.tables import TableBuilder
from runner.decode.trace_checks import trace_checks
from runner.errors import CaptureError

_QUIC_PORTS = (443, 4433)
# DNS, DHCP, NTP, NetBIOS, SSDP, WS-Discovery, mDNS, LLMNR: what else speaks UDP on a host.
_OTHER_PORTS = (53, 67, 68, 123, 137, 138, 546, 547, 1900, 3702, 5353, 5355)
_FIXED_BIT = 0x40
_VERSIONS = tuple(version.to_bytes(4) for version in VERSIONS)
_LONG_HEADER = 20  # bytes that a long header with its packet number, sample and tag surely exceeds


def decode_capture(capture: Path, key_logs: Sequence[Path] = (), *, kernel_drops: int | None = None) -> Trace:
    """All QUIC packets of a pcap or pcapng file (gzip allowed) with everything that the keys open.

    `key_logs` are merged with each other and with the secrets in the file. `kernel_drops` is what the capture tool
    said when it was stopped; pcapng files may say it themselves. What is damaged in the capture is counted, never
    raised; CaptureError only when a file can't be read, or is no capture, or of a link type without IP.
    """
    with _no_collection():
        return _decode(capture, key_logs, kernel_drops)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for unused cycles: the decoder makes millions of objects that all stay, and the search
    looks at all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decode(capture: Path, key_logs: Sequence[Path], kernel_drops: int | None) -> Trace:
    file, stored = open_capture(capture)
    datagrams = read_datagrams(file)
    if datagrams.link_types and not datagrams.link_types & LINK_TYPES.keys():
        numbers = ", ".join(str(number) for number in sorted(datagrams.link_types))
        raise CaptureError(f"{capture} has link type {numbers}: capture on an interface that carries IP.")
    decoder, selected = decode_datagrams(datagrams, read_key_logs(key_logs, file.secrets))
    tables = TableBuilder(datagrams, selected, decoder.rows, decoder.registry.connections).build()
    meta = CaptureMeta(
        file_name=capture.name,
        sha256=hashlib.sha256(stored).hexdigest(),
        link_type=",".join(LINK_TYPES.get(each, str(each)) for each in sorted(datagrams.link_types)),
        packets=datagrams.records,
        non_quic=datagrams.records - len(selected),
        fragments=datagrams.fragments,
        snapped=datagrams.snapped,
        truncated=file.truncated,
        kernel_drops=file.kernel_drops if kernel_drops is None else kernel_drops,
        first_time_ns=datagrams.first_time_ns,
        decoder_version=DECODER_VERSION,
        skipped_udp=_skipped(datagrams, selected),
    )
    return Trace(**tables, meta=meta, checks=trace_checks(tables, meta))


def decode_datagrams(datagrams: Datagrams, sessions: dict[bytes, Session]) -> tuple[Decoder, list[int]]:
    """A decoder that has run over those datagrams that are QUIC, and their numbers. Never raises."""
    quic = _quic_flows(datagrams)
    selected = [number for number, flow in enumerate(datagrams.flow) if quic[flow]]
    decoder = Decoder(datagrams, sessions)
    decoder.run(selected)
    return decoder, selected


def _skipped(datagrams: Datagrams, selected: list[int]) -> dict[str, int]:
    """Why UDP packets were not read as QUIC → how many."""
    skipped, chosen = dict(datagrams.skipped), set(selected)
    for number, flow in enumerate(datagrams.flow):
        if number not in chosen:
            ends = datagrams.flows[flow]
            ports = {ends.src_port, ends.dst_port}
            other = sorted(ports.intersection(_OTHER_PORTS))
            why = f"port {other[0]}, another protocol's" if other else "no QUIC packets on these addresses and ports"
            skipped[why] = skipped.get(why, 0) + 1
    return skipped


def _quic_flows(datagrams: Datagrams) -> list[bool]:
    """Which flows are QUIC: those of its ports, those in which a datagram begins with a long header of QUIC, and those
    in which every datagram could be (RFC 9000 §17).

    A flow can't be judged by what was decrypted: without keys that would make every packet vanish from the counts.
    """
    could_be = [True] * len(datagrams.flows)
    begins = [False] * len(datagrams.flows)
    data = datagrams.data
    for flow, start, end in zip(datagrams.flow, datagrams.start, datagrams.end, strict=True):
        first = data[start] if start < end else _FIXED_BIT
        if first & 0x80 and data[start + 1 : start + 5] in _VERSIONS and end - start > _LONG_HEADER:
            begins[flow] = True
        if could_be[flow] and not first & _FIXED_BIT:
            # Version Negotiation packets have no fixed bit.
            could_be[flow] = first & 0x80 != 0 and not any(data[start + 1 : start + 5])
    ends = [((flow.src, flow.src_port), (flow.dst, flow.dst_port)) for flow in datagrams.flows]
    # Who speaks QUIC to a known port does so with a preferred address, too, whose packets may lack the fixed bit
    # (RFC 9000 §9.6, RFC 9287).
    clients = {end for here, there in ends for end, other in ((here, there), (there, here)) if other[1] in _QUIC_PORTS}
    quic = []
    for flow_, both_ends in zip(datagrams.flows, ends, strict=True):
        ports = {flow_.src_port, flow_.dst_port}
        known = not ports.isdisjoint(_QUIC_PORTS) or not clients.isdisjoint(both_ends)
        known = known or begins[flow_.number] or begins[flow_.reverse]
        both = could_be[flow_.number] and could_be[flow_.reverse]
        quic.append(not ports.isdisjoint(_QUIC_PORTS) or ((known or both) and ports.isdisjoint(_OTHER_PORTS)))
    return quic
