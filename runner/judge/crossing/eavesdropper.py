"""Searches every captured byte of the satellite link for private data that an eavesdropper could read.

The search doesn't trust the declaration of a middlebox: it reads headers, payloads, and packets inside a tunnel without
encryption. It finds names and secrets also across the segments of a TCP stream, and as hexadecimal digits or base64. It
finds files by samples of their content. QUIC's Initial packets are decrypted, because everybody can derive their keys
(RFC 9001 §5.2).
"""

import base64
import ipaddress
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runner.decode.file_bytes import Data
from runner.decode.ip_packets import TCP, UDP, Packet, offsets
from runner.model.middlebox import Sight

_NEAR = 40  # bytes between two addresses of one hidden header; an IPv6 address has 16
_PIECE = 16  # bytes of a piece of content; other bytes equal them by chance with probability 2^-128 at each place
_PIECES = 128  # pieces of all files together, at least one piece of each file; each piece is searched in the capture
_MOST = 1000  # occurrences of a needle that are counted at most
_CLEAR = "in the clear"


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
    packets: Sequence[Packet]
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
        return Sight(what=name, visible=True, times=len(outside), packet=outside[0], how=_CLEAR)
    text = str(ipaddress.ip_address(address)).encode()
    numbers = _numbers(recorded, _places(recorded.data, text))
    if numbers:
        return Sight(what=name, visible=True, times=len(numbers), packet=numbers[0], how="as text")
    inside = _numbers(recorded, (at for at in _places(recorded.data, address) if _near(recorded.data, at, other)))
    return _inside(name, inside)


def _inside(name: str, numbers: Sequence[int]) -> Sight:
    """The sight of data that was found inside the packets with these numbers. The data is not visible when `numbers` is
    empty."""
    if not numbers:
        return Sight(what=name, visible=False)
    return Sight(what=name, visible=True, times=len(numbers), packet=numbers[0], how="inside another packet")


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
        return Sight(what="ports", visible=True, times=len(outside), packet=outside[0], how=_CLEAR)
    inside = _numbers(
        recorded,
        (
            at
            for at in _places(recorded.data, private.server)
            if _near(recorded.data, at, private.client) and _has_port(recorded.data, at, private.ports)
        ),
    )
    return _inside("ports", inside)


def _has_port(data: Data, at: int, ports: Iterable[int]) -> bool:
    """Whether a port is near `at`, in either byte order: some headers don't use network byte order."""
    around = data[at : at + _NEAR]
    return any(port.to_bytes(2, order) in around for port in ports for order in ("big", "little"))


def _text(name: str, needle: bytes, recorded: Recorded, streams: Sequence[bytes]) -> Sight:
    for how, form in _forms(needle):
        numbers = _numbers(recorded, _places(recorded.data, form))
        if numbers:
            return Sight(what=name, visible=True, times=len(numbers), packet=numbers[0], how=how)
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
    return Sight(
        what="content",
        visible=bool(numbers),
        times=len(numbers),
        packet=numbers[0] if numbers else None,
        how=_CLEAR if numbers else "",
    )


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
    streams: dict[tuple[bytes, int, bytes, int], list[Packet]] = defaultdict(list)
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
