"""An eavesdropper must see what is there, however it is wrapped, and nothing that isn't."""

import base64
import hashlib
import ipaddress
from functools import partial
from pathlib import Path

import pytest

from runner.decode.capture import read_packets
from runner.decode.tables import decode_capture
from runner.judge.crossing import Private, Recorded, sights
from runner.model.stack import Sight
from runner.tests.crossing.captures import CLIENT, GATEWAY, SERVER, TERMINAL, Sent, connection, write_capture
from runner.tests.records import RECORDINGS

CONTENT = hashlib.shake_256(b"content").digest(20_000)
OTHERS = tuple(hashlib.shake_256(f"other {number}".encode()).digest(500 + 100 * number) for number in range(70))
PRIVATE = Private(
    client=ipaddress.ip_address(CLIENT).packed,
    server=ipaddress.ip_address(SERVER).packed,
    ports=(80, 443),
    name="server4",
    url="0123456789abcdef",
    header="deadbeefcafe0123deadbeefcafe4567",
    files=(CONTENT, *OTHERS),
)
REQUEST = f"GET /{PRIVATE.url} HTTP/1.1\r\nHost: server4\r\nAuthorization: Bearer {PRIVATE.header}\r\n\r\n".encode()
EVERYTHING = {
    "client address",
    "server address",
    "ports",
    "server name",
    "secret in the URL",
    "secret in a header",
    "content",
}
INNER = connection(CLIENT, SERVER, initials=(1, 2), request=REQUEST, response=CONTENT)


def _seen(path: Path, packets: list[Sent]) -> dict[str, Sight]:
    data, read = read_packets(write_capture(path / "link.pcap", packets))
    return {sight.what: sight for sight in sights(Recorded(data, read), PRIVATE)}


def _tunnel(payloads: list[bytes]) -> list[Sent]:
    return [Sent(source=TERMINAL, destination=GATEWAY, ports=(5000, 5000), payload=payload) for payload in payloads]


def _visible(seen: dict[str, Sight]) -> set[str]:
    return {what for what, sight in seen.items() if sight.visible}


def test_everything_is_visible_in_the_clear(tmp_path: Path) -> None:
    seen = _seen(tmp_path, INNER)
    assert _visible(seen) == EVERYTHING
    assert seen["secret in the URL"].packet == 3
    assert seen["content"].times == 9  # 128 samples of 296,500 bytes; this file has 20,000 of them


@pytest.mark.parametrize("number", range(0, 70, 10))
def test_every_file_is_looked_for_however_small(tmp_path: Path, number: int) -> None:
    assert _visible(_seen(tmp_path, _tunnel([b"\x17" * 9 + OTHERS[number]]))) == {"content"}


def test_a_tunnel_without_encryption_hides_nothing(tmp_path: Path) -> None:
    seen = _seen(tmp_path, _tunnel([packet.ip() for packet in INNER]))
    assert _visible(seen) == EVERYTHING
    assert seen["client address"].how == "inside another packet"


def test_noise_shows_nothing(tmp_path: Path) -> None:
    noise = [hashlib.shake_256(f"{number}".encode()).digest(1300) for number in range(2000)]
    assert not _visible(_seen(tmp_path, _tunnel(noise)))


@pytest.mark.parametrize(
    ("payload", "how"),
    [
        (PRIVATE.header.encode().hex().encode(), "as hexadecimal digits"),
        (base64.b64encode(b"x" + PRIVATE.header.encode()), "as base64"),
        (PRIVATE.header.upper().encode(), "in capitals"),
    ],
)
def test_a_secret_in_another_form_is_found(tmp_path: Path, payload: bytes, how: str) -> None:
    sight = _seen(tmp_path, _tunnel([b"noise", b"before" + payload + b"after"]))["secret in a header"]
    assert (sight.visible, sight.packet, sight.how) == (True, 2, how)


def test_a_secret_across_two_segments_is_found(tmp_path: Path) -> None:
    cut = REQUEST.index(PRIVATE.header.encode()) + 5
    there = partial(Sent, source=TERMINAL, destination=GATEWAY, ports=(5000, 443))
    parts = [
        there(sequence=100 + cut, payload=REQUEST[cut:]),  # this segment arrives out of order, as after a loss
        there(sequence=100, payload=REQUEST[:cut]),
    ]
    assert _seen(tmp_path, parts)["secret in a header"].how == "in the clear, across segments"


@pytest.mark.parametrize("first", [100, 0xFFFFFFFF - 60])
def test_a_secret_across_segments_that_were_repeated_otherwise_is_found(tmp_path: Path, first: int) -> None:
    """Both halves came, then the first one once more with other borders; sequence numbers may wrap between."""
    there = partial(Sent, source=CLIENT, destination=SERVER, ports=(40000, 80))
    cut = len(REQUEST) - 20
    parts = [
        there(sequence=first, payload=REQUEST[:cut]),
        there(sequence=(first + cut) & 0xFFFFFFFF, payload=REQUEST[cut:]),
        there(sequence=(first + 5) & 0xFFFFFFFF, payload=REQUEST[5:40]),
    ]
    assert _seen(tmp_path, parts)["secret in a header"].how == "in the clear, across segments"


def test_a_name_in_a_quic_initial_is_found() -> None:
    """A recording of a real pair: the name is nowhere in the clear."""
    capture = RECORDINGS / "quinn_quinn" / "transfer" / "1" / "sim" / "left.pcap"
    data, read = read_packets(capture)
    names = decode_capture(capture).connections.column("sni").to_pylist()
    assert b"server4" not in data and names == ["server4"]
    without = {one.what: one for one in sights(Recorded(data, read), PRIVATE)}
    seen = {one.what: one for one in sights(Recorded(data, read, frozenset(names)), PRIVATE)}
    assert not without["server name"].visible
    assert seen["server name"].how == "in a QUIC Initial"


def test_one_address_alone_inside_a_payload_proves_nothing(tmp_path: Path) -> None:
    seen = _seen(tmp_path, _tunnel([b"\0" * 500 + PRIVATE.client + b"\0" * 500]))
    assert not _visible(seen)


def test_the_header_of_a_proxy_protocol_of_another_byte_order_is_found(tmp_path: Path) -> None:
    header = b"\x04\x04" + PRIVATE.client + (40000).to_bytes(2, "little") + PRIVATE.server + (80).to_bytes(2, "little")
    assert _visible(_seen(tmp_path, _tunnel([header]))) == {"client address", "server address", "ports"}
