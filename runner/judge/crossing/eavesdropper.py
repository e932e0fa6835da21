"""What somebody who records the satellite link learns: every captured byte is searched for what should stay private.

A search, not a reading of what a path claims: headers, payloads, whatever lies inside a tunnel without encryption.
Names and secrets are looked for across the segments of a TCP stream, too, and as hexadecimal digits or base64; of every
file that was transferred samples, as they are. QUIC's Initials are opened, for their keys follow from what everybody
sees (RFC 9001 §5.2).
"""

import base64
import ipaddress
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runner.decode.ip_packets import TCP, UDP, Packet, offsets
from runner.model.middlebox import Sight

_NEAR = 40  # bytes between two addresses of one hidden header: IPv6's hold 16 each
_PIECE = 16  # bytes of content that can't be there by chance: 2^-128 at each place
_PIECES = 128  # of all files together, but of each at least one: each is a search through the whole capture
_MOST = 1000  # occurrences of a needle that are counted
_CLEAR = "in the clear"


@dataclass(frozen=True, kw_only=True)
class Private:
    """What an eavesdropper looks for. Addresses packed; `files` are the contents that were transferred."""

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

    data: bytes
    packets: Sequence[Packet]
    names: frozenset[str] = frozenset()


def sights(recorded: Recorded, private: Private) -> tuple[Sight, ...]:
    """Everything that was looked for, visible or not."""
    streams = list(_streams(recorded))
    texts = {"server name": private.name, "secret in the URL": private.url}
    if private.header:
        texts["secret in a header"] = private.header
    return (
        _address("client address", private.client, private.server, recorded),
        _address("server address", private.server, private.client, recorded),
        _ports(private, recorded),
        *(_text(what, text.encode(), recorded, streams) for what, text in texts.items()),
        _content(private.files, recorded),
    )


def _address(what: str, address: bytes, other: bytes, recorded: Recorded) -> Sight:
    """In an IP header; as text; or, near the other one, in a header inside a payload."""
    outside = [one.number for one in recorded.packets if address in (one.source, one.destination)]
    if outside:
        return Sight(what=what, visible=True, times=len(outside), packet=outside[0], how=_CLEAR)
    text = str(ipaddress.ip_address(address)).encode()
    found = _numbers(recorded, _places(recorded.data, text))
    if found:
        return Sight(what=what, visible=True, times=len(found), packet=found[0], how="as text")
    inside = _numbers(recorded, (at for at in _places(recorded.data, address) if _near(recorded.data, at, other)))
    return _inside(what, inside)


def _inside(what: str, found: Sequence[int]) -> Sight:
    """Of what was found below the outermost headers, if anything."""
    if not found:
        return Sight(what=what, visible=False)
    return Sight(what=what, visible=True, times=len(found), packet=found[0], how="inside another packet")


def _near(data: bytes, at: int, other: bytes) -> bool:
    return other in data[max(0, at - _NEAR) : at + _NEAR]


def _ports(private: Private, recorded: Recorded) -> Sight:
    ends = {private.client, private.server}
    outside = [
        one.number
        for one in recorded.packets
        if one.protocol in (TCP, UDP)
        and {one.source, one.destination} == ends
        and {one.source_port, one.destination_port} & set(private.ports)
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


def _has_port(data: bytes, at: int, ports: Iterable[int]) -> bool:
    """In either byte order: not every header has the network's."""
    around = data[at : at + _NEAR]
    return any(port.to_bytes(2, order) in around for port in ports for order in ("big", "little"))


def _text(what: str, needle: bytes, recorded: Recorded, streams: Sequence[bytes]) -> Sight:
    for how, form in _forms(needle):
        found = _numbers(recorded, _places(recorded.data, form))
        if found:
            return Sight(what=what, visible=True, times=len(found), packet=found[0], how=how)
        if any(form in stream for stream in streams):
            return Sight(what=what, visible=True, times=1, how=f"{how}, across segments")
    if needle.decode() in recorded.names:
        return Sight(what=what, visible=True, times=1, how="in a QUIC Initial")
    return Sight(what=what, visible=False)


def _forms(needle: bytes) -> Iterator[tuple[str, bytes]]:
    """The needle as it may stand in a packet, and how to call that."""
    yield _CLEAR, needle
    yield "in capitals", needle.upper()
    yield "as hexadecimal digits", needle.hex().encode()
    for skipped in range(3):  # base64 depends on where in its groups of three the needle begins
        encoded = base64.b64encode(b"\0" * skipped + needle)
        whole = encoded[4 if skipped else 0 : len(encoded) // 4 * 4 - 4]
        if len(whole) >= 8:
            yield "as base64", whole


def _content(files: Sequence[bytes], recorded: Recorded) -> Sight:
    pieces = set(_samples(files))
    found = sorted({number for piece in pieces for number in _numbers(recorded, _places(recorded.data, piece))})
    return Sight(
        what="content",
        visible=bool(found),
        times=len(found),
        packet=found[0] if found else None,
        how=_CLEAR if found else "",
    )


def _samples(files: Sequence[bytes]) -> Iterator[bytes]:
    """Pieces of every file, evenly over all bytes; a small one's is at its middle, for beginnings are alike."""
    every = max(1, sum(map(len, files)) // _PIECES)
    for content in files:
        last = len(content) - _PIECE
        if last < 0:
            continue
        for at in range(min(len(content) // 2 % every, last), last + 1, every):
            yield content[at : at + _PIECE]


def _places(data: bytes, needle: bytes) -> Iterator[int]:
    at, count = data.find(needle), 0
    while at >= 0 and count < _MOST:
        yield at
        at, count = data.find(needle, at + 1), count + 1


def _numbers(recorded: Recorded, places: Iterable[int]) -> list[int]:
    """The packets in whose captured bytes the places lie, in order, each once; the file's own headers don't count."""
    ends = [one.end for one in recorded.packets]
    found = set()
    for place in places:
        index = bisect_right(ends, place)
        if index < len(ends):
            packet = recorded.packets[index]
            if place >= packet.payload_at - (packet.length - packet.payload):
                found.add(packet.number)
    return sorted(found)


def _streams(recorded: Recorded) -> Iterator[bytes]:
    """The bytes of every TCP stream in order, each once as far as it was captured; holes are closed up."""
    streams: dict[tuple[bytes, int, bytes, int], list[Packet]] = defaultdict(list)
    for one in recorded.packets:
        if one.protocol == TCP and one.payload:
            streams[one.source, one.source_port, one.destination, one.destination_port].append(one)
    for segments in streams.values():
        parts, reached = [], 0
        for start, one in sorted(zip(offsets(segments), segments, strict=True), key=lambda pair: pair[0]):
            known = max(0, reached - start)
            parts.append(recorded.data[one.payload_at + known : one.end])
            reached = max(reached, start + one.payload)
        yield b"".join(parts)
