"""QUIC packet headers: the parts that are readable without keys (RFC 8999, RFC 9000 §17, RFC 9369 §3.2)."""

from dataclasses import dataclass
from enum import IntEnum

from runner.decode.file_bytes import Data
from runner.decode.frames import varint
from runner.decode.protection import TAG_LENGTH, VERSION_1, VERSION_2


class PacketType(IntEnum):
    """Positions in runner.decode.schema.PACKET_TYPES."""

    INITIAL = 0
    ZERO_RTT = 1
    HANDSHAKE = 2
    ONE_RTT = 3
    RETRY = 4
    VERSION_NEGOTIATION = 5
    STATELESS_RESET = 6
    UNKNOWN = 7


_V1_TYPES = (PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE, PacketType.RETRY)
_V2_TYPES = (PacketType.RETRY, PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE)
_TYPES = {VERSION_1: _V1_TYPES, VERSION_2: _V2_TYPES}

KNOWN_VERSIONS = (
    (0xFF000004, 0xFF0000FF, "draft-{:02}"),
    (0xFF010000, 0xFF02FFFF, "a draft of QUIC version 2"),
    (0x709A50C4, 0x709A50C4, "a draft of QUIC version 2"),
    (0x51303030, 0x51303939, "gQUIC {}"),
    (0x54303430, 0x54303939, "gQUIC {} (with TLS)"),
    (0xFACEB000, 0xFACEB0FF, "mvfst (Facebook)"),
    (0x50435130, 0x50435139, "a test version of picoquic ({})"),
    (0xABCD0000, 0xABCD000F, "a test version of MsQuic"),
    (0x91C17000, 0x91C170FF, "a test version of quicly"),
    (0x51474F00, 0x51474FFF, "a test version of quic-go"),
    (0x45474700, 0x454747FF, "a test version of Quant"),
    (0xF123F0C0, 0xF123F0CF, "a test version of MozQuic"),
    (0x50524F58, 0x50524F58, "Proxied QUIC"),
    (0xF0F0F0F0, 0xF0F0F0FF, "an experiment of ETH Zürich"),
    (0xF0F0F1F0, 0xF0F0F1FF, "an experiment of Telecom Italia"),
)
"""Ranges of versions that bentpipe names and does not read: first, last, name (QUIC-WG wiki: QUIC-Versions). `{}`: the
four characters of the version; in drafts, its last byte."""


def version_name(version: int) -> str:
    """The name of a QUIC version with its number."""
    name = {VERSION_1: "1", VERSION_2: "2"}.get(version, "")
    for first, last, known in KNOWN_VERSIONS:
        if first <= version <= last:
            name = known.format(version & 0xFF if version >= 0xFF000000 else version.to_bytes(4).decode("latin-1"))
    if version & 0x0F0F0F0F == 0x0A0A0A0A:
        name = "a version that forces Version Negotiation"  # RFC 9000 §15
    return f"{name} (0x{version:08x})" if name else f"0x{version:08x}"


def _has_short_lengths(version: int) -> bool:
    """Whether the lengths of both connection IDs share one byte, as before draft-22 and in gQUIC before Q050."""
    return 0xFF000000 < version <= 0xFF000015 or 0x51303433 <= version <= 0x51303439 or version >> 4 == 0x5430343


@dataclass(slots=True)
class LongHeader:
    """A long header at data[start:end] of the capture file. `dcid` and `scid` are empty when they are cut off."""

    type: PacketType
    version: int
    start: int
    end: int
    """Position after the last byte of this packet according to its Length field. In types without this field, the end
    of the datagram."""
    dcid: bytes = b""
    scid: bytes = b""
    token: bytes | None = None
    number_at: int = 0
    """Position of the packet number; 0 in types without a packet number."""
    supported_versions: list[int] | None = None
    """The versions that a Version Negotiation packet lists (RFC 9000 §17.2.1); None in other types."""
    complete: bool = True
    """False when the capture contains only the beginning of the packet, or when the header contradicts itself."""


def parse_long_header(data: Data, start: int, end: int) -> LongHeader:
    """The long header at `start` of a datagram that ends at `end`. Never raises."""
    header = LongHeader(PacketType.UNKNOWN, int.from_bytes(data[start + 1 : start + 5]), start, end)
    try:
        length, position = data[start + 5], start + 6
        short_lengths = _has_short_lengths(header.version)
        lengths = [each + 3 if each else 0 for each in divmod(length, 16)] if short_lengths else [length]
        if position + lengths[0] > end:
            raise IndexError
        header.dcid, position = data[position : position + lengths[0]], position + lengths[0]
        length, position = (lengths[1], position) if short_lengths else (data[position], position + 1)
        if position + length > end:
            raise IndexError
        header.scid, position = data[position : position + length], position + length
        types = _TYPES.get(header.version)
        if types is not None:
            header.type = types[data[start] >> 4 & 3]
            _rest(data, position, end, header)
        elif header.version == 0:
            header.type = PacketType.VERSION_NEGOTIATION
            header.supported_versions = [int.from_bytes(data[at : at + 4]) for at in range(position, end - 3, 4)]
    except IndexError:
        header.complete = False
    return header


def _rest(data: Data, position: int, end: int, header: LongHeader) -> None:
    if header.type is PacketType.RETRY:
        if end - position < TAG_LENGTH:
            raise IndexError
        header.token = data[position : end - TAG_LENGTH]
        return
    if header.type is PacketType.INITIAL:
        size, position = varint(data, position)
        header.token = data[position : min(position + size, end)] if size else b""
        position += size
    length, position = varint(data, position)
    header.number_at = position
    if position + length > end:
        header.complete = False
    else:
        header.end = position + length
