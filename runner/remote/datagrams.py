"""Checks that a capture of a host's interface has one datagram in each frame."""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from runner.errors import LaneError

_LARGEST_FRAME = 2048  # bytes; no path of the internet carries more than 1500 B


def require_datagrams(path: Path, *, where: str, interface: str) -> None:
    """Raises LaneError `offload` when a frame of the capture has several datagrams: then sizes and times are wrong."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as capture:  # the capture may have a gigabyte
            largest = max(wire_lengths(capture), default=0)
    if largest > _LARGEST_FRAME:
        raise LaneError(
            "offload",
            f"The capture at the {where} has a frame of {largest} B: its network card joins datagrams. Run there "
            f"as root: `ethtool -K {interface} tx-udp-segmentation off gro off`.",
        )


def wire_lengths(capture: bytes | mmap.mmap) -> Iterator[int]:
    """The lengths on the wire of a pcap's frames, little-endian as tcpdump writes it here (draft-ietf-opsawg-pcap)."""
    position = 24
    while position + 16 <= len(capture):
        _, _, held, length = struct.unpack_from("<IIII", capture, position)
        yield length
        position += 16 + held
