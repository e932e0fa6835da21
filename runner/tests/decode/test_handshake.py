"""CRYPTO data in any order, and TLS messages with anything in them."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.decode.crypto_messages import (
    CryptoStream,
    message_text,
    parse_client_hello,
    parse_encrypted_extensions,
    parse_server_hello,
    parse_transport_parameters,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=5),
    cuts=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 90)), max_size=30),
    random=st.randoms(use_true_random=False),
)
def test_messages_come_out_in_order(bodies: list[bytes], cuts: list[tuple[int, int]], random: object) -> None:
    data = b"".join(bytes((number,)) + len(body).to_bytes(3) + body for number, body in enumerate(bodies))
    pieces = [(at, data[at : at + 11]) for at in range(0, len(data), 11)]
    pieces += [(at, data[at : at + size]) for at, size in cuts if at < len(data)]
    random.shuffle(pieces)  # type: ignore[attr-defined]
    stream, messages = CryptoStream(), []
    for offset, piece in pieces:
        messages += stream.feed(offset, piece)
    assert messages == list(enumerate(bodies))
    assert all(stream.feed(offset, piece) == [] for offset, piece in pieces)


def test_frames_without_data_behind_a_gap_change_nothing() -> None:
    stream = CryptoStream()
    assert stream.feed(8, b"") == []
    assert stream.feed(0, bytes((8, 0, 0, 4)) + b"abcd" + bytes((8, 0, 0, 0))) == [(8, b"abcd"), (8, b"")]


def test_forged_offsets_are_not_kept() -> None:
    stream = CryptoStream()
    assert stream.feed(2**61, b"x" * 1000) == []
    assert stream.feed(0, b"\x01\x00\x00\x01a") == [(1, b"a")]


@given(st.binary(max_size=200))
def test_messages_with_any_body(body: bytes) -> None:
    parse_client_hello(body)
    parse_server_hello(body)
    parse_encrypted_extensions(body)
    parse_transport_parameters(body)


def test_transport_parameters() -> None:
    preferred = bytes((1, 2, 3, 4)) + bytes((1, 187)) + bytes(16) + bytes((1, 188)) + b"\x04abcd" + b"t" * 16
    data = (
        bytes.fromhex("04 04 80100000")
        + bytes.fromhex("0c 00")
        + bytes((0x0D, len(preferred)))
        + preferred
        + bytes.fromhex("0f 02 abcd")
        + bytes.fromhex("11 08 00000001 6b3343cf")
        + bytes.fromhex("7f01 01 99")
        + bytes.fromhex("0a 01 40")  # a value that contradicts its length is left out
        + bytes.fromhex("01 05 00")  # this parameter is cut off
    )
    parameters = parse_transport_parameters(data)
    assert parameters.sent.endswith('[10, "40"], [-1, ""]]')
    assert parameters.text == json.dumps(parameters.values, sort_keys=True)
    assert parameters.values == {
        "initial_max_data": 0x100000,
        "disable_active_migration": True,
        "preferred_address": {
            "ipv4": "1.2.3.4",
            "ipv4_port": 443,
            "ipv6": "::",
            "ipv6_port": 444,
            "connection_id": "61626364",
            "stateless_reset_token": "74" * 16,
        },
        "initial_source_connection_id": "abcd",
        "version_information": ["0x00000001", "0x6b3343cf"],
        "0x3f01": "99",
    }


@given(st.binary(max_size=200))
def test_the_texts_of_transport_parameters_are_json(data: bytes) -> None:
    parameters = parse_transport_parameters(data)
    assert parameters.text == json.dumps(parameters.values, sort_keys=True)
    assert json.dumps(json.loads(parameters.sent)) == parameters.sent


@given(st.sampled_from([1, 2, 4, 8, 11]), st.binary(max_size=200))
def test_the_text_of_a_message_is_sorted_json(kind: int, body: bytes) -> None:
    text = message_text(kind, body, sender=1, space=1, packet=7)
    message = json.loads(text)
    assert json.dumps(message, sort_keys=True) == text
    assert {"sender": 1, "space": 1, "type": kind, "packet": 7}.items() <= message.items()


def test_the_text_of_a_message_escapes_protocols() -> None:
    protocol = b'a"\\\x80\n'
    alpn = bytes((0, len(protocol) + 1, len(protocol))) + protocol
    extension = bytes((0, 16, 0, len(alpn))) + alpn
    message = json.loads(message_text(8, bytes((0, len(extension))) + extension, sender=1, space=1, packet=0))
    assert message["alpn"] == ['a"\\\\x80\n']
