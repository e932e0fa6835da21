"""Judges how a job's traffic crossed the satellite link, and what an eavesdropper there sees. Reads files only."""

import base64
import ipaddress
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.decode.capture import TCP, UDP, IpPacket, offsets, read_packets
from runner.decode.columns import Data
from runner.decode.tables import decode_capture
from runner.errors import CaptureError
from runner.inputs.inputs import PORTS, secret, served
from runner.judge.readback import GATEWAY, TERMINAL, addresses
from runner.model.link import RealLinkEvidence
from runner.model.result import Artifacts, Finding, Outcome, Result
from runner.model.run import CaseRecord, ClientKind
from runner.model.stack import Box, Crossing, Middlebox, Sight, transport_of
from runner.store import runs
from runner.trace.recording import new_bytes
from runner.units import format_count

# TCP connections of a capture. Initial sequence numbers show whether two captures contain the same connection: a proxy
# opens a connection of its own, with other initial sequence numbers.


Initials = tuple[int | None, ...]
"""The initial sequence numbers of a connection, the client's first; None: its SYN was not seen."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The traffic between two addresses in a capture. Times are in seconds since the client's first packet; a time is
    None when the capture has no such packet."""

    begun: tuple[Initials, ...]  # TCP connections, with or without data
    connections: tuple[Initials, ...]  # TCP connections that carried data
    bytes: int  # bytes of IP packets with TCP or UDP, in both directions
    answered: float | None = None  # first SYN-ACK
    first: float | None = None  # first payload of the server
    last: float | None = None  # last new payload of the server


def connections(packets: Iterable[IpPacket], *, idle: bool = False) -> tuple[Initials, ...]:
    """Every TCP connection that began in a capture and carried data, in order of the first SYN. `idle`: connections
    without data are included."""
    initials: dict[tuple[bytes, int, bytes, int], list[int | None]] = {}
    busy: set[tuple[bytes, int, bytes, int]] = set()
    for packet in packets:
        if packet.protocol != TCP:
            continue
        there = packet.source, packet.source_port, packet.destination, packet.destination_port
        back = packet.destination, packet.destination_port, packet.source, packet.source_port
        if packet.answers:
            initials.setdefault(back, [None, None])[1] = packet.sequence
        elif packet.syn:
            initials.setdefault(there, [None, None])[0] = packet.sequence
        elif packet.payload:
            busy |= {there, back}
    return tuple(tuple(numbers) for ends, numbers in initials.items() if idle or ends in busy)


def exchange(packets: Iterable[IpPacket], client: bytes, server: bytes) -> Exchange:
    """The traffic between the addresses `client` and `server`."""
    between = [packet for packet in packets if {packet.source, packet.destination} == {client, server}]
    counted = [packet for packet in between if packet.protocol in (TCP, UDP)]
    begin = next((packet.time for packet in counted if packet.source == client), None)
    answers = [packet for packet in counted if packet.source == server and begin is not None and packet.time >= begin]
    payloads = [packet for packet in answers if packet.payload]
    newest = [packet for packet, _ in fresh(payloads)[-1:]]
    answered, first, last = (
        each[0].time - (begin or 0.0) if each else None
        for each in ([packet for packet in answers if packet.answers], payloads, newest)
    )
    return Exchange(
        begun=connections(between, idle=True),
        connections=connections(between),
        bytes=sum(packet.length for packet in counted),
        answered=answered,
        first=first,
        last=last,
    )


def fresh(payloads: Iterable[IpPacket]) -> list[tuple[IpPacket, int]]:
    """The packets that carry new bytes of their connection, sorted by time, each with the number of these bytes. All
    bytes of UDP packets count as new.

    The last new byte need not have the highest sequence number: a retransmitted segment may fill a gap.
    """
    fresh, by_connection = [], defaultdict(list)
    for packet in payloads:
        if packet.protocol == UDP:
            fresh.append((packet, packet.payload))
        else:
            by_connection[packet.source_port, packet.destination_port].append(packet)
    for segments in by_connection.values():
        starts = np.array(offsets(segments), dtype=np.int64)
        ends = starts + np.array([segment.payload for segment in segments], dtype=np.int64)
        new = new_bytes(starts, ends)
        fresh += [(segments[row], int(new[row])) for row in np.flatnonzero(new)]
    return sorted(fresh, key=lambda each: each[0].time)


# Searches every captured byte of the satellite link for private data that an eavesdropper could read.
#
# The search doesn't trust the declaration of a middlebox: it reads headers, payloads, and packets inside a tunnel
# without encryption. It finds names and secrets also across the segments of a TCP stream, and as hexadecimal digits or
# base64. It finds files by samples of their content. QUIC's Initial packets are decrypted, because everybody can
# derive their keys (RFC 9001 §5.2).

_NEAR = 40  # bytes between two addresses of one hidden header; an IPv6 address has 16
_PIECE = 16  # bytes of a piece of content; other bytes equal them by chance with probability 2^-128 at each place
_PIECES = 128  # pieces of all files together, at least one piece of each file; each piece is searched in the capture
_MOST = 1000  # occurrences of a needle that are counted at most
_CLEAR, _INSIDE = "in the clear", "inside another packet"


@dataclass(frozen=True, kw_only=True)
class Private:
    """The data that an eavesdropper searches for. Addresses are in binary form; `files` are the contents of the
    transferred files."""

    client: bytes
    server: bytes
    ports: tuple[int, ...]
    name: str
    url: str
    header: str  # empty: the client sends no secret
    files: tuple[bytes, ...]


@dataclass(frozen=True)
class Recorded:
    """One capture: its file, its packets in file order, the server names in its QUIC Initials."""

    data: Data
    packets: Sequence[IpPacket]
    names: frozenset[str] = frozenset()


def sights(recorded: Recorded, private: Private) -> tuple[Sight, ...]:
    """One sight for each kind of private data, whether it is visible or not."""
    streams = list(_streams(recorded))
    texts = {"server name": private.name, "secret in the URL": private.url}
    if private.header:
        texts["secret in a header"] = private.header
    return (
        _address("client address", private.client, private.server, recorded),
        _address("server address", private.server, private.client, recorded),
        _ports(private, recorded),
        *(_text(name, text.encode(), recorded, streams) for name, text in texts.items()),
        _content(private.files, recorded),
    )


def _address(name: str, address: bytes, other: bytes, recorded: Recorded) -> Sight:
    """Search for the address in IP headers, then as text, then in binary form inside a payload. There it must be near
    the other address, as in a header inside a tunnel."""
    outside = [packet.number for packet in recorded.packets if address in (packet.source, packet.destination)]
    if outside:
        return _found(name, outside, _CLEAR)
    text = str(ipaddress.ip_address(address)).encode()
    if numbers := _numbers(recorded, _places(recorded.data, text)):
        return _found(name, numbers, "as text")
    inside = _numbers(recorded, (at for at in _places(recorded.data, address) if _near(recorded.data, at, other)))
    return _found(name, inside, _INSIDE)


def _found(name: str, numbers: Sequence[int], how: str) -> Sight:
    """The sight of data that was found in the packets with these numbers. The data is not visible when `numbers` is
    empty."""
    if not numbers:
        return Sight(what=name, visible=False)
    return Sight(what=name, visible=True, times=len(numbers), packet=numbers[0], how=how)


def _near(data: Data, at: int, other: bytes) -> bool:
    return other in data[max(0, at - _NEAR) : at + _NEAR]


def _ports(private: Private, recorded: Recorded) -> Sight:
    ends = {private.client, private.server}
    outside = [
        packet.number
        for packet in recorded.packets
        if packet.protocol in (TCP, UDP)
        and {packet.source, packet.destination} == ends
        and {packet.source_port, packet.destination_port} & set(private.ports)
    ]
    if outside:
        return _found("ports", outside, _CLEAR)
    inside = (
        at
        for at in _places(recorded.data, private.server)
        if _near(recorded.data, at, private.client) and _has_port(recorded.data, at, private.ports)
    )
    return _found("ports", _numbers(recorded, inside), _INSIDE)


def _has_port(data: Data, at: int, ports: Iterable[int]) -> bool:
    """Whether a port is near `at`, in either byte order: some headers don't use network byte order."""
    around = data[at : at + _NEAR]
    return any(port.to_bytes(2, order) in around for port in ports for order in ("big", "little"))


def _text(name: str, needle: bytes, recorded: Recorded, streams: Sequence[bytes]) -> Sight:
    for how, form in _forms(needle):
        if numbers := _numbers(recorded, _places(recorded.data, form)):
            return _found(name, numbers, how)
        if any(form in stream for stream in streams):
            return Sight(what=name, visible=True, times=1, how=f"{how}, across segments")
    if needle.decode() in recorded.names:
        return Sight(what=name, visible=True, times=1, how="in a QUIC Initial")
    return Sight(what=name, visible=False)


def _forms(needle: bytes) -> Iterator[tuple[str, bytes]]:
    """The forms that the needle may have in a packet, each with a description."""
    yield _CLEAR, needle
    yield "in capitals", needle.upper()
    yield "as hexadecimal digits", needle.hex().encode()
    for skipped in range(3):  # base64 depends on the place of the needle in a group of three bytes
        encoded = base64.b64encode(b"\0" * skipped + needle)
        whole = encoded[4 if skipped else 0 : len(encoded) // 4 * 4 - 4]
        if len(whole) >= 8:
            yield "as base64", whole


def _content(files: Sequence[bytes], recorded: Recorded) -> Sight:
    pieces = set(_samples(files))
    numbers = sorted({number for piece in pieces for number in _numbers(recorded, _places(recorded.data, piece))})
    return _found("content", numbers, _CLEAR)


def _samples(files: Sequence[bytes]) -> Iterator[bytes]:
    """Pieces of every file, at equal distances. The piece of a small file is from its middle, because files often begin
    alike."""
    every = max(1, sum(map(len, files)) // _PIECES)
    for content in files:
        last = len(content) - _PIECE
        if last < 0:
            continue
        for at in range(min(len(content) // 2 % every, last), last + 1, every):
            yield content[at : at + _PIECE]


def _places(data: Data, needle: bytes) -> Iterator[int]:
    at, count = data.find(needle), 0
    while at >= 0 and count < _MOST:
        yield at
        at, count = data.find(needle, at + 1), count + 1


def _numbers(recorded: Recorded, places: Iterable[int]) -> list[int]:
    """Sorted numbers of the packets that contain these places of the capture file. Places in the file's own headers
    don't count."""
    ends = [packet.end for packet in recorded.packets]
    numbers = set()
    for place in places:
        index = bisect_right(ends, place)
        if index < len(ends):
            packet = recorded.packets[index]
            if place >= packet.payload_at - (packet.length - packet.payload):
                numbers.add(packet.number)
    return sorted(numbers)


def _streams(recorded: Recorded) -> Iterator[bytes]:
    """The bytes of every TCP stream, in order, each byte once. Where bytes were not captured, the bytes before and
    after them are joined."""
    streams: dict[tuple[bytes, int, bytes, int], list[IpPacket]] = defaultdict(list)
    for packet in recorded.packets:
        if packet.protocol == TCP and packet.payload:
            streams[packet.source, packet.source_port, packet.destination, packet.destination_port].append(packet)
    for segments in streams.values():
        parts, reached = [], 0
        for start, segment in sorted(zip(offsets(segments), segments, strict=True), key=lambda pair: pair[0]):
            known = max(0, reached - start)
            parts.append(recorded.data[segment.payload_at + known : segment.end])
            reached = max(reached, start + segment.payload)
        yield b"".join(parts)


def judge_crossing(artifacts: Artifacts, record: CaseRecord, result: Result) -> Result:
    """`result` of a job whose traffic passes the boxes of a middlebox, with its crossing. It is an error when the
    traffic bypassed the middlebox, and a failure when a middlebox that encrypts reveals private data."""
    evidence = runs.load_evidence(artifacts)
    if evidence is None or evidence.error or evidence.content_seed is None:
        return result
    try:
        crossing = _read(artifacts, record, evidence.content_seed, evidence.real_link)
    except CaptureError:
        return result  # an earlier judge has reported the missing capture
    result = replace(result, crossing=crossing)
    if result.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
        return result
    entry = evidence.via
    answered = result.outcome is Outcome.SUCCEEDED or crossing.answered
    if answered and (unproven := tuple(_unproven(entry, crossing, record, result.protocol or record.protocol))):
        return result.ending(Outcome.ERROR, *unproven)
    leaks = tuple(_leaks(crossing)) if entry is not None and entry.encrypts else ()
    return result.ending(Outcome.FAILED, *result.findings, *leaks) if leaks else result


def _read(artifacts: Artifacts, record: CaseRecord, seed: int, real: RealLinkEvidence | None) -> Crossing:
    """The crossing of a job. Raises CaptureError when a capture is missing."""
    _, at_client = read_packets(artifacts.client_capture)
    data, on_link = read_packets(artifacts.link_captures[0])
    _, at_server = read_packets(artifacts.server_capture)
    client, server = addresses(record.host, at_client)
    at_all_times = exchange(at_client, client, server)
    files = served(record, seed)
    private = Private(
        client=client,
        server=server,
        ports=tuple(PORTS.values()),
        name=record.host,
        url=files[0].name,
        header=secret(seed) if record.client is not ClientKind.STACK else "",
        files=tuple(file.content() for file in files),
    )
    # The server names (SNI) of QUIC connections on the satellite link.
    names = decode_capture(artifacts.link_captures[0]).connections.column("sni").to_pylist()
    return Crossing(
        **_split(at_all_times, exchange(on_link, client, server).connections, connections(at_server, idle=True)),
        inner_bytes=_bytes(on_link, client, server),
        outer_bytes=_bytes(on_link, TERMINAL, GATEWAY) if real is None else _bytes_with(on_link, real.server_address),
        client_bytes=at_all_times.bytes,
        answered=at_all_times.first is not None,
        sights=sights(Recorded(data, on_link, frozenset(filter(None, names))), private),
    )


def _split(at_client: Exchange, on_link: tuple[Initials, ...], behind: tuple[Initials, ...]) -> dict[str, int]:
    """The counts of whole and split connections, by field name of Crossing.

    Initial sequence numbers are random: when two captures have the same numbers, they show the same connection. Ports
    prove nothing, because a proxy may use any port for its own connection. The data of a connection may have been lost
    before it reached a capture. So connections without data are compared, too.
    """
    first, last = set(at_client.begun), set(behind)
    return {
        "connections": len(at_client.connections),
        "whole": sum(initials in last for initials in at_client.connections),
        "on_link": len(on_link),
        "terminal_split": sum(initials not in first for initials in on_link),
        "gateway_split": sum(initials not in last for initials in on_link),
    }


def _bytes(packets: list[IpPacket], first: bytes, second: bytes) -> int:
    return sum(
        packet.length
        for packet in packets
        if {packet.source, packet.destination} == {first, second} and packet.protocol in (TCP, UDP)
    )


def _bytes_with(packets: list[IpPacket], address: str) -> int:
    """Bytes of IP packets from or to `address`. The terminal's address is not used, because address translation can
    change it on the link."""
    packed = ipaddress.ip_address(address).packed
    return sum(packet.length for packet in packets if packed in (packet.source, packet.destination))


def _unproven(entry: Middlebox | None, crossing: Crossing, record: CaseRecord, protocol: str) -> Iterator[Finding]:
    """Reasons why the captures don't prove that the traffic crossed the link in the way that the middlebox declares.
    Then no number counts."""
    tcp, splits = transport_of(protocol) == "tcp", entry.splits if entry is not None else ()
    name = f"through the middlebox {entry.name}" if entry is not None else "without a middlebox"

    def finding(expected: str, actual: str) -> Finding:
        return Finding(
            code="bypassed",
            requirement=f"The job's traffic crosses the satellite link {name}.",
            expected=expected,
            actual=actual,
        )

    if tcp and not crossing.connections:
        yield finding("a TCP connection of the client", "no connection with data in the client's capture")
        return
    if entry is not None and entry.encrypts:
        if crossing.inner_bytes:
            yield finding(
                "no packet with the addresses of client and server on the link",
                f"{crossing.inner_bytes} B of such packets",
            )
        # Half of the client's bytes, because compression can't save more. At most the sizes of the files, because bytes
        # that a proxy retransmits to the client don't cross the link again.
        payload = min(crossing.client_bytes // 2, sum(record.file_sizes))
        if crossing.outer_bytes < payload:
            yield finding(f"at least {payload} B between terminal and gateway", f"{crossing.outer_bytes} B")
    if not tcp:
        return
    connections = format_count(crossing.connections, "connection")
    if splits and crossing.whole:
        actual = f"{crossing.whole} of {connections} with the same numbers at client and server"
        yield finding("every TCP connection of the client ends at a box", actual)
    if not splits and crossing.whole < crossing.connections:
        actual = f"{crossing.connections - crossing.whole} of {connections} with other numbers"
        yield finding("the same initial sequence numbers at client and server", actual)
    if crossing.on_link:
        for box, count in ((Box.TERMINAL, crossing.terminal_split), (Box.GATEWAY, crossing.gateway_split)):
            required = crossing.on_link if box in splits else 0
            if count != required:
                yield finding(
                    f"the {box.value} ends {required} of {format_count(crossing.on_link, 'connection')}",
                    f"it ends {count}",
                )


def _leaks(crossing: Crossing) -> Iterator[Finding]:
    for sight in crossing.sights:
        if sight.visible:
            yield Finding(
                code="leak",
                requirement="A middlebox that encrypts hides the connections inside it.",
                expected=f"no {sight.what} in any captured byte of the satellite link",
                actual=f"{sight.what} {sight.how}, in {format_count(sight.times, 'packet')}",
                packets=() if sight.packet is None else (sight.packet,),
                vantage="client",
            )
