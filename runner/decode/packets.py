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
        position = start + 6 + data[start + 5]
        header.dcid = data[start + 6 : position]
        scid_at = position + 1
        position = scid_at + data[position]
        if position > end:
            header.dcid = b""
            raise IndexError
        header.scid = data[scid_at:position]
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
