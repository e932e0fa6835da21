"""QUIC transport parameters (RFC 9000 §18) as plain values."""

import ipaddress
import json
from collections.abc import Callable

from runner.decode.frames import varint

Value = int | str | bool | list[str] | dict[str, str | int]


def _integer(value: bytes) -> Value:
    number, position = varint(value, 0)
    if position > len(value):
        raise IndexError
    return number


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
    """RFC 9368 §3: the chosen version, then the available ones."""
    return [f"0x{int.from_bytes(value[at : at + 4]):08x}" for at in range(0, len(value), 4)]


_PARAMETERS: dict[int, tuple[str, Callable[[bytes], Value]]] = {
    0x00: ("original_destination_connection_id", bytes.hex),
    0x01: ("max_idle_timeout", _integer),
    0x02: ("stateless_reset_token", bytes.hex),
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
    0x0F: ("initial_source_connection_id", bytes.hex),
    0x10: ("retry_source_connection_id", bytes.hex),
    0x11: ("version_information", _version_information),  # RFC 9368
    0x20: ("max_datagram_frame_size", _integer),  # RFC 9221
    0x2AB2: ("grease_quic_bit", _flag),  # RFC 9287
    0xFF04DE1B: ("min_ack_delay", _integer),  # draft-ietf-quic-ack-frequency
}


def parse_transport_parameters(data: bytes) -> dict[str, Value]:
    """Name → value: integers, hexadecimal strings for IDs and tokens. Unknown ones are named `0x…`, in hexadecimal.

    A parameter that is cut off or contradicts its length ends the list; one with a malformed value is left out.
    """
    parameters: dict[str, Value] = {}
    position = 0
    while position < len(data):
        try:
            code, position = varint(data, position)
            length, position = varint(data, position)
        except IndexError:
            break
        value = data[position : position + length]
        position += length
        if len(value) < length:
            break
        name, read = _PARAMETERS.get(code, (f"0x{code:x}", bytes.hex))
        try:
            parameters[name] = read(value)
        except IndexError:
            continue
    return parameters


def raw_transport_parameters(data: bytes) -> list[list[int | str]] | None:
    """Every parameter as it was sent: its number and its value in hexadecimal, repeated ones too. The last pair has
    number -1 when the list is cut off."""
    parameters: list[list[int | str]] = []
    position = 0
    while position < len(data):
        try:
            code, position = varint(data, position)
            length, position = varint(data, position)
        except IndexError:
            return [*parameters, [-1, ""]]
        value = data[position : position + length]
        position += length
        if len(value) < length:
            return [*parameters, [-1, ""]]
        parameters.append([code, value.hex()])
    return parameters


def to_text(parameters: dict[str, Value] | None) -> str | None:
    """The JSON text of the connections table."""
    return None if parameters is None else json.dumps(parameters, sort_keys=True)
