"""The tables of real captures are, row by row, what tshark reads."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from runner.decode.tables import decode_capture
from runner.tests.decode.ours import packets
from runner.tests.decode.tshark import tshark

OWN = Path(__file__).parent / "recordings"
SHARED = Path(__file__).parent.parent / "recordings"

# Both captures of a job have nearly the same packets. One job is read at its left side, the next at its right side.
JOBS = sorted(folder for folder in SHARED.glob("*/*/1/sim") if (folder / "left.pcap").exists())
CAPTURES = [
    *sorted(OWN.glob("*/left.pcap")),
    *(job / side for job, side in zip(JOBS, cycle(("left.pcap", "right.pcap")))),
]


# How many packets tshark 4.0 can't open, and we can. Every other packet must be the same in both.
TSHARK_FAILS = {
    # aioquic's client acknowledges in an Initial packet of version 2 with the keys of version 1.
    "aioquic_v2-left": 1,
    "aioquic_aioquic-v2-left": 1,
    "aioquic_aioquic-v2-right": 1,
    # tshark keeps the keys of the client's first Initial packet, which was of an unknown version.
    "aioquic_versionnegotiation-left": 10,
    **{f"quic-go_aioquic-versionnegotiation-{side}": 11 for side in ("left", "right")},
    **{f"bad-takes-unlisted-{side}": 9 for side in ("left", "right")},
    # aioquic puts padding behind the packets of a datagram; with a zero-length connection ID tshark takes it for a
    # packet of its own, and what it learns from it keeps it from opening the ones that follow.
    "aioquic_quic-go-multiconnect-left": 6,
    "aioquic_quic-go-multiconnect-right": 6,
    # After a Retry of aioquic's, tshark finds no keys for Handshake and 1-RTT packets. We open them, and the AEAD's tag
    # says that they were read right.
    **{
        f"bad-{name}-{side}": count
        for name, count in (
            ("always-retries", 8),
            ("no-retry-token", 9),
            ("resets-packet-number", 8),
            ("wrong-retry-tag", 8),
        )
        for side in ("left", "right")
    },
    # It says of a packet without a frame that it could not open it.
    "bad-packets-without-frames-left": 5759,
    "bad-packets-without-frames-right": 1115,
    # It takes a connection that was begun anew, after losses, for the one before.
    "quic-go_quinn-handshakeloss-left": 1,
    "quinn_quic-go-handshakecorruption-left": 2,
    # It doesn't follow a client to another port.
    "quinn_quic-go-rebind-port-right": 28,
}


def _name(capture: Path) -> str:
    parts = capture.relative_to(OWN if OWN in capture.parents else SHARED).with_suffix("").parts
    return "-".join(part for part in parts if part not in ("1", "sim"))


def key_logs(capture: Path) -> list[Path]:
    """The key logs of both endpoints of a recording."""
    return sorted([*capture.parent.glob("*.keys.log"), *capture.parent.parent.glob("*/keys.log")])


@pytest.mark.parametrize("capture", CAPTURES, ids=_name)
def test_every_row_is_what_tshark_reads(capture: Path) -> None:
    expected = {_place(packet): packet for packet in tshark(capture, key_logs(capture))}
    actual = {_place(packet): packet for packet in packets(decode_capture(capture, key_logs(capture)))}
    opened = {place: packet for place, packet in expected.items() if packet["decrypted"]}
    assert opened or not any(packet["decrypted"] for packet in actual.values())
    assert {place: actual.get(place) for place in opened} == opened
    missing = [packet for place, packet in actual.items() if packet["decrypted"] and place not in opened]
    assert len(missing) == TSHARK_FAILS.get(_name(capture), 0), missing


def _place(packet: dict[str, Any]) -> tuple[int, int]:
    return packet["time_ns"], packet["index"]
