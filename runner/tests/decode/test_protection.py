"""Packet protection against the vectors of RFC 9000, RFC 9001 and RFC 9369."""

import hmac
from random import Random

import pytest

from runner.decode.connection import KeyRing
from runner.decode.crypto_messages import parse_client_hello
from runner.decode.keys import (
    AES_256,
    CHACHA20,
    VERSION_1,
    VERSION_2,
    Protection,
    Suite,
    initial_protection,
    reconstruct,
    retry_tag_is_valid,
)
from runner.decode.wire import FrameRows, PacketType, parse_frames, parse_long_header

ODCID = bytes.fromhex("8394c8f03e515708")
CHACHA_SECRET = bytes.fromhex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b")

# RFC 9001 A.3, RFC 9369 A.3
SERVER_INITIALS = {
    VERSION_1: "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a"
    "5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3"
    "dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84"
    "022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc4"
    "2158407dd074ee",
    VERSION_2: "dc6b3343cf0008f067a5502a4262b5004075d92faaf16f05d8a4398c47089698"
    "baeea26b91eb761d9b89237bbf87263017915358230035f7fd3945d88965cf17"
    "f9af6e16886c61bfc703106fbaf3cb4cfa52382dd16a393e42757507698075b2"
    "c984c707f0a0812d8cd5a6881eaf21ceda98f4bd23f6fe1a3e2c43edd9ce7ca8"
    "4bed8521e2e140",
}
# RFC 9001 A.4, RFC 9369 A.4
RETRIES = {
    VERSION_1: "ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba",
    VERSION_2: "cf6b3343cf0008f067a5502a4262b5746f6b656ec8646ce8bfe33952d955543665dcc7b6",
}
# RFC 9001 A.5, RFC 9369 A.5
SHORT_HEADERS = {
    VERSION_1: "4cfe4189655e5cd55c41f69080575d7999c25a5bfb",
    VERSION_2: "5558b1c60ae7b6b932bc27d786f4bc2bb20f2162ba",
}


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_server_initial(version: int) -> None:
    data = bytes.fromhex(SERVER_INITIALS[version])
    header = parse_long_header(data, 0, len(data))
    assert (header.type, header.dcid, header.end) == (PacketType.INITIAL, b"", len(data))
    server = initial_protection(version, ODCID, 1)
    opened = server.open_long(data, 0, header.number_at, header.end, -1)
    assert opened is not None
    number, plain, first = opened
    assert (number, first & 0xCF) == (1, 0xC1)  # without the type bits, which differ between the versions
    rows = FrameRows()
    events = parse_frames(plain, 0, 0, rows)
    assert plain[:5] == bytes.fromhex("0200000000")
    assert [(kind, offset, len(payload)) for kind, offset, payload in events] == [(6, 0, 0x5A)]


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_retry_integrity_tag(version: int) -> None:
    data = bytes.fromhex(RETRIES[version])
    header = parse_long_header(data, 0, len(data))
    assert (header.type, header.token) == (PacketType.RETRY, b"token")
    assert retry_tag_is_valid(version, ODCID, data)
    assert not retry_tag_is_valid(version, ODCID[:-1], data)
    assert not retry_tag_is_valid(version, ODCID, data[:-1] + b"\0")


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_chacha20_short_header(version: int) -> None:
    data = bytes.fromhex(SHORT_HEADERS[version])
    ring = KeyRing(Protection(CHACHA20, version, CHACHA_SECRET))
    opened = ring.open(data, 0, 1, len(data), 654360563)
    assert opened == (654360564, b"\x01", 0, 0, 0x42)


def test_key_update() -> None:
    """RFC 9001 A.5: the secret of the next generation."""
    after = Protection(CHACHA20, VERSION_1, CHACHA_SECRET).next_generation()
    assert after.secret.hex() == "1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9"


def test_packet_number_of_the_appendix() -> None:
    """RFC 9000 A.3."""
    assert reconstruct(0x9B32, 2, 0xA82F30EA) == 0xA82F9B32


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("largest", [-1, 0, 100, 127, 128, 255, 256, 70_000, 2**31, 2**40 + 12345])
def test_packet_numbers_near_the_largest_are_reconstructed(size: int, largest: int) -> None:
    half = 1 << 8 * size - 1
    for distance in (-half + 2, -5, 0, 1, 2, 77, half):
        number = largest + distance
        if number >= 0:
            assert reconstruct(number & (1 << 8 * size) - 1, size, largest) == number


def test_malformed_client_hello() -> None:
    assert parse_client_hello(b"\x03\x03" + bytes(10)) is None


@pytest.mark.parametrize("suite", [CHACHA20, AES_256], ids=lambda suite: suite.name)
def test_hmac_gives_what_the_standard_library_gives(suite: Suite) -> None:
    rng = Random(1)
    for length in (0, 1, 20, suite.hash.length, suite.hash.block_length - 1, suite.hash.block_length):
        key, message = rng.randbytes(length), rng.randbytes(rng.randrange(200))
        assert suite.hash.hmac(key, message) == hmac.digest(key, message, suite.hash.new(b"").name)
