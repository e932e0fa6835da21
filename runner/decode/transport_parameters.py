"""QUIC transport parameters (RFC 9000 §18) as plain values."""

import ipaddress
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from runner.decode.frames import varint

# json.dumps would create a new encoder for every call. The check for cycles is off, because no value contains itself.
to_json = json.JSONEncoder(sort_keys=True, check_circular=False).encode
Value = int | str | bool | list[str] | dict[str, str | int]


def _integer(value: bytes) -> Value:
    size = 1 << (value[0] >> 6)  # RFC 9000 §16
    if size == 1:
        return value[0]
    if size > len(value):
        raise IndexError
    return int.from_bytes(value[:size]) & ((1 << 8 * size - 2) - 1)


def _flag(_: bytes) -> Value:
    return True


def _preferred_address(value: bytes) -> Value:
    size = value[24]
    if len(value) < 41 + size:
        raise IndexError
    return {
        "ipv4": str(ipaddress.IPv4Address(value[:4])),
        "ipv4_port": int.from_bytes(value[4:6]),
        "ipv6": str(ipaddress.IPv6Address(value[6:22])),
        "ipv6_port": int.from_bytes(value[22:24]),
        "connection_id": value[25 : 25 + size].hex(),
        "stateless_reset_token": value[25 + size : 41 + size].hex(),
    }


def _version_information(value: bytes) -> Value:
    """The chosen version, then the available versions (RFC 9368 §3)."""
    return [f"0x{int.from_bytes(value[at : at + 4]):08x}" for at in range(0, len(value), 4)]


_PARAMETERS: dict[int, tuple[str, Callable[[bytes], Value]]] = {
    0x01: ("max_idle_timeout", _integer),
    0x03: ("max_udp_payload_size", _integer),
    0x04: ("initial_max_data", _integer),
    0x05: ("initial_max_stream_data_bidi_local", _integer),
    0x06: ("initial_max_stream_data_bidi_remote", _integer),
    0x07: ("initial_max_stream_data_uni", _integer),
    0x08: ("initial_max_streams_bidi", _integer),
    0x09: ("initial_max_streams_uni", _integer),
    0x0A: ("ack_delay_exponent", _integer),
    0x0B: ("max_ack_delay", _integer),
    0x0C: ("disable_active_migration", _flag),
    0x0D: ("preferred_address", _preferred_address),
    0x0E: ("active_connection_id_limit", _integer),
    0x11: ("version_information", _version_information),  # RFC 9368
    0x20: ("max_datagram_frame_size", _integer),  # RFC 9221
    0x1057: ("loss_bits", _integer),  # draft-ferrieuxhamchaoui-quic-lossbits
    0x2AB2: ("grease_quic_bit", _flag),  # RFC 9287
    0xFF04DE1B: ("min_ack_delay", _integer),  # draft-ietf-quic-ack-frequency
}


_IDENTIFIERS = {
    0x00: "original_destination_connection_id",
    0x02: "stateless_reset_token",
    0x0F: "initial_source_connection_id",
    0x10: "retry_source_connection_id",
}
"""Parameters whose value is text in hexadecimal."""

_LONGEST_INTEGER = 8  # bytes


@dataclass(frozen=True, slots=True)
class TransportParameters:
    """The transport parameters of one TLS message."""

    values: dict[str, Value]
    """Name → value: an integer, or a hexadecimal string for connection IDs and tokens. An unknown parameter has its
    number as name, `0x…`. Reading stops at a parameter that is cut off or contradicts its length. A malformed value is
    left out."""
    text: str
    """`values` as JSON, sorted by name."""
    sent: str
    """JSON: number and hexadecimal value of every parameter as it was sent, including repeated parameters. When the
    list is cut off, the last pair has the number -1."""


@lru_cache(maxsize=8)
def parse_transport_parameters(data: bytes) -> TransportParameters:
    """Read the body of the extension. The result is cached, so callers must not change it. Never raises."""
    values: dict[str, Value] = {}
    texts: dict[str, str] = {}
    sent: list[str] = []
    position, size = 0, len(data)
    while position < size:
        try:
            # Most numbers and lengths take one byte.
            if (code := data[position]) < 0x40:
                position += 1
            else:
                code, position = varint(data, position)
            if (length := data[position]) < 0x40:
                position += 1
            else:
                length, position = varint(data, position)
        except IndexError:
            sent.append('[-1, ""]')
            break
        value = data[position : position + length]
        position += length
        if position > size:
            sent.append('[-1, ""]')
            break
        read = _usual_parameter if length <= _LONGEST_INTEGER and code in _PARAMETERS else _parameter
        name, meaning, text, pair = read(code, value)
        sent.append(pair)
        if meaning is not None:
            values[name] = meaning
            texts[name] = text
    # A text begins with its name, so that sorting the texts sorts the names.
    return TransportParameters(values, f"{{{', '.join(sorted(texts.values()))}}}", f"[{', '.join(sent)}]")


def _parameter(code: int, value: bytes) -> tuple[str, Value | None, str, str]:
    """Name and value of a parameter, both as JSON, and the JSON of the pair in `TransportParameters.sent`. When the
    value is malformed, it is None."""
    text = value.hex()
    pair = f'[{code}, "{text}"]'
    if code not in _PARAMETERS:
        name = _IDENTIFIERS.get(code) or f"0x{code:x}"
        return name, text, f'"{name}": "{text}"', pair
    name, read = _PARAMETERS[code]
    try:
        meaning = read(value)
    except IndexError:
        return name, None, "", pair
    return name, meaning, f'"{name}": {to_json(meaning)}', pair


_usual_parameter = lru_cache(maxsize=1024)(_parameter)
"""`_parameter` with a cache: endpoints send the same few limits on every connection. The cache gets short values only,
and no identifiers, because these differ."""
