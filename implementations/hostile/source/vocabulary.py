"""The words of flights: frames, packets, TLS messages and HTTP/3, with any field wrong.

Frames are bytes, so a payload is a sum of frames: `ping() + max_data(5)`. Integers become variable-length integers
(RFC 9000 §16); bytes are written as they are, for encodings that are wrong.
"""

from dataclasses import dataclass, field
from typing import Any

from aioquic.buffer import encode_uint_var
from aioquic.quic.packet import encode_quic_retry, encode_quic_version_negotiation

INITIAL, EARLY, HANDSHAKE, ONE_RTT = "initial", "early", "handshake", "1rtt"


def varint(value: int, size: int = 0) -> bytes:
    """The encoding of `value` in `size` bytes (1, 2, 4, 8), or in as few bytes as possible."""
    if not size:
        return bytes(encode_uint_var(value))
    return (value | {1: 0, 2: 1, 4: 2, 8: 3}[size] << (8 * size - 2)).to_bytes(size)


def frame(*fields: int | bytes) -> bytes:
    """Any frame: its type and its fields."""
    return b"".join(each if isinstance(each, bytes) else varint(each) for each in fields)


def block(data: bytes) -> bytes:
    """The length of `data`, and `data`."""
    return varint(len(data)) + data


def padding(count: int = 1) -> bytes:
    return bytes(count)


def ping() -> bytes:
    return frame(0x01)


def ack(largest: int, first: int = 0, *gaps_and_lengths: int, delay: int = 0) -> bytes:
    """ACK with the fields of RFC 9000 §19.3: `first` packets below `largest`, then gap, length, gap, length …"""
    return frame(0x02, largest, delay, len(gaps_and_lengths) // 2, first, *gaps_and_lengths)


def reset_stream(stream_id: int, code: int, final_size: int) -> bytes:
    return frame(0x04, stream_id, code, final_size)


def stop_sending(stream_id: int, code: int) -> bytes:
    return frame(0x05, stream_id, code)


def crypto(offset: int, data: bytes) -> bytes:
    return frame(0x06, offset, block(data))


def new_token(token: bytes) -> bytes:
    return frame(0x07, block(token))


def stream(
    stream_id: int, data: bytes = b"", offset: int = 0, *, fin: bool = False, length: int | None = None
) -> bytes:
    """STREAM with offset and length (RFC 9000 §19.8). `length`: the value of the length field, if it is wrong."""
    return frame(0x0E | fin, stream_id, offset, len(data) if length is None else length, data)


def max_data(limit: int) -> bytes:
    return frame(0x10, limit)


def max_stream_data(stream_id: int, limit: int) -> bytes:
    return frame(0x11, stream_id, limit)


def max_streams_bidi(limit: int) -> bytes:
    return frame(0x12, limit)


def max_streams_uni(limit: int) -> bytes:
    return frame(0x13, limit)


def data_blocked(limit: int) -> bytes:
    return frame(0x14, limit)


def stream_data_blocked(stream_id: int, limit: int) -> bytes:
    return frame(0x15, stream_id, limit)


def streams_blocked_bidi(limit: int) -> bytes:
    return frame(0x16, limit)


def streams_blocked_uni(limit: int) -> bytes:
    return frame(0x17, limit)


def new_connection_id(sequence: int, retire: int, cid: bytes, token: bytes = bytes(range(16))) -> bytes:
    return frame(0x18, sequence, retire, bytes([len(cid)]) + cid, token)


def retire_connection_id(sequence: int) -> bytes:
    return frame(0x19, sequence)


def path_challenge(data: bytes = b"bentpipe") -> bytes:
    return frame(0x1A, data)


def path_response(data: bytes = b"bentpipe") -> bytes:
    return frame(0x1B, data)


def close(code: int, kind: int = 0, reason: bytes = b"") -> bytes:
    return frame(0x1C, code, kind, block(reason))


def close_application(code: int, reason: bytes = b"") -> bytes:
    return frame(0x1D, code, block(reason))


def handshake_done() -> bytes:
    return frame(0x1E)


def datagram(data: bytes) -> bytes:
    """DATAGRAM with a length (RFC 9221 §4)."""
    return frame(0x31, block(data))


_CHANGES = (
    *("reserved", "fixed", "version", "dcid", "scid", "token", "number", "number_size", "forged", "longer", "update"),
    *("old", "elsewhere"),
)


@dataclass(frozen=True)
class Packet:
    """A packet that is to be sealed. `changes`: fields that differ from those of a correct packet.

    reserved: added to the reserved bits · fixed: the fixed bit · version, dcid, scid, token, number: the fields ·
    number_size: bytes of the number · forged: a wrong AEAD tag · longer: added to the length field · update: number of
    key updates before this packet · old: the keys before the last update · elsewhere: from another port
    """

    space: str
    payload: bytes
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.changes.keys() - set(_CHANGES):
            raise ValueError(f"a packet has no {min(unknown)}; its fields are {', '.join(_CHANGES)}")


@dataclass(frozen=True)
class Raw:
    """Bytes that are sent as a datagram, or as a part of one, without protection. `elsewhere`: from another port."""

    data: bytes
    elsewhere: bool = False


class Series(list[bytes]):
    """Payloads of several datagrams."""


@dataclass(frozen=True)
class Wait:
    """A pause in a flight, in seconds."""

    seconds: float


def initial(payload: bytes, **changes: Any) -> Packet:
    return Packet(INITIAL, payload, changes)


def handshake(payload: bytes, **changes: Any) -> Packet:
    return Packet(HANDSHAKE, payload, changes)


def early(payload: bytes, **changes: Any) -> Packet:
    """A 0-RTT packet."""
    return Packet(EARLY, payload, changes)


def one_rtt(payload: bytes, **changes: Any) -> Packet:
    return Packet(ONE_RTT, payload, changes)


def retry(scid: bytes, dcid: bytes, original: bytes, token: bytes, *, forged: bool = False, version: int = 1) -> Raw:
    """A Retry packet (RFC 9000 §17.2.5). `forged`: its integrity tag is wrong."""
    data = encode_quic_retry(version, scid, dcid, original, token)
    return Raw(data[:-1] + bytes([data[-1] ^ forged]))


def version_negotiation(scid: bytes, dcid: bytes, versions: list[int]) -> Raw:
    return Raw(encode_quic_version_negotiation(scid, dcid, versions))


# TLS messages (RFC 8446 §4).

_BEFORE_EXTENSIONS = {1: (34, 1, 2, 1), 2: (34, 1, -3), 8: ()}
"""Message type → what stands before the extensions: a number of bytes, the sizes of length fields of blocks, and, if
negative, bytes without a length."""


def tls(kind: int, body: bytes = b"") -> bytes:
    """A handshake message."""
    return bytes([kind]) + len(body).to_bytes(3) + body


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2) + len(data).to_bytes(2) + data


def _parts(message: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The body before the extensions, and the extensions."""
    at = 4
    for number, size in enumerate(_BEFORE_EXTENSIONS[message[0]]):
        at += size if number == 0 else -size if size < 0 else size + int.from_bytes(message[at : at + size])
    before, at, listed = message[4:at], at + 2, []
    while at < len(message):
        kind, size = int.from_bytes(message[at : at + 2]), int.from_bytes(message[at + 2 : at + 4])
        listed.append((kind, message[at + 4 : at + 4 + size]))
        at += 4 + size
    return before, listed


def _message(kind: int, before: bytes, listed: list[tuple[int, bytes]]) -> bytes:
    extensions = b"".join(extension(*each) for each in listed)
    return tls(kind, before + len(extensions).to_bytes(2) + extensions)


def without(message: bytes, kind: int) -> bytes:
    """The message without an extension."""
    before, listed = _parts(message)
    return _message(message[0], before, [each for each in listed if each[0] != kind])


def twice(message: bytes, kind: int) -> bytes:
    """The message with an extension twice."""
    before, listed = _parts(message)
    return _message(message[0], before, [each for each in listed for _ in range(1 + (each[0] == kind))])


def extended(message: bytes, kind: int, data: bytes) -> bytes:
    """The message with one more extension, or with other data in an extension that it has."""
    before, listed = _parts(message)
    return _message(message[0], before, [(kind, data), *(each for each in listed if each[0] != kind)])


def int_at(message: bytes, at: int) -> int:
    """The integer of two bytes at `at`."""
    return int.from_bytes(message[at : at + 2])


_RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def hello_retry(extensions: bytes = b"") -> bytes:
    """A HelloRetryRequest with supported_versions and these extensions (RFC 8446 §4.1.4)."""
    extensions = extension(43, b"\x03\x04") + extensions
    return tls(2, b"\x03\x03" + _RETRY_RANDOM + b"\0\x13\x01\0" + len(extensions).to_bytes(2) + extensions)


def shared_groups(hello: bytes) -> list[int]:
    """The groups of the key shares in a ClientHello."""
    shares = next((data for kind, data in _parts(hello)[1] if kind == 51), b"\0\0")
    groups, at = [], 2
    while at + 4 <= len(shares):
        groups.append(int.from_bytes(shares[at : at + 2]))
        at += 4 + int.from_bytes(shares[at + 2 : at + 4])
    return groups


def changed(message: bytes, at: int, data: bytes) -> bytes:
    """The message with other bytes from `at` on. A negative `at` counts from the end."""
    at %= len(message)
    return message[:at] + data + message[at + len(data) :]


# HTTP/3 (RFC 9114 §7) and QPACK (RFC 9204).


def h3(kind: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """A frame of HTTP/3. `length`: the value of the length field, if it is wrong."""
    return varint(kind) + varint(len(payload) if length is None else length) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return h3(0x04, b"".join(frame(*pair) for pair in pairs))


def prefixed(first: int, bits: int, value: int) -> bytes:
    """An integer with a prefix of `bits` bits (RFC 7541 §5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    value -= most
    rest = b""
    while value >= 128:
        rest, value = rest + bytes([value & 127 | 128]), value >> 7
    return bytes([first | most]) + rest + bytes([value])


def line(name: str | bytes, value: str | bytes) -> bytes:
    """A field line with a literal name, without Huffman coding (RFC 9204 §4.5.6)."""
    name, value = (each.encode() if isinstance(each, str) else each for each in (name, value))
    return prefixed(0x20, 3, len(name)) + name + prefixed(0, 7, len(value)) + value


def fields(*pairs: tuple[str | bytes, str | bytes]) -> bytes:
    """A field section that needs no dynamic table."""
    return b"\0\0" + b"".join(line(*pair) for pair in pairs)


def headers(*pairs: tuple[str | bytes, str | bytes]) -> bytes:
    """A HEADERS frame."""
    return h3(0x01, fields(*pairs))


WORDS: dict[str, Any] = {
    name: value for name, value in globals().items() if callable(value) and not name.startswith("_")
} | {"wait": Wait, "raw": Raw, "len": len, "bytes": bytes, "range": range, "min": min, "max": max}
