"""Finds the first packet in which two captures differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from runner.decode.capture import open_capture
from runner.errors import CaptureError

Packet = tuple[int, bytes, int]
"""time in ns, captured bytes, length on the wire in bytes"""

_ETHERNET, _UDP = 14, 8  # bytes of their headers
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first difference between the packets of two runs of a job."""

    side: str  # the end of the link where the captures were made: client or server
    number: int  # number of the packet in that capture, from 1
    time: float  # s since the capture's first packet
    what: str


def first_difference(side: str, before: Path, after: Path) -> Difference | None:
    """The first packet in which two captures differ. None: they are equal, or one of them can't be read."""
    try:
        pairs = zip_longest(_packets(before), _packets(after))
        began = None
        for number, (first, second) in enumerate(pairs, start=1):
            if began is None:
                began = (first or second or (0, b"", 0))[0]
            if first != second:
                time = ((first or second or (0, b"", 0))[0] - began) / 1e9
                return Difference(side=side, number=number, time=time, what=_describe(first, second))
    except CaptureError:
        pass
    return None


def _packets(path: Path) -> Iterator[Packet]:
    capture, _ = open_capture(path)
    for time_ns, _, first, last, length in capture.records():
        yield time_ns, capture.data[first:last], length


def _describe(first: Packet | None, second: Packet | None) -> str:
    if first is None or second is None:
        return f"only the {'first' if second is None else 'second'} run has this packet"
    if first[1:] == second[1:]:
        moved = second[0] - first[0]
        return f"the same bytes {abs(moved) / 1000:g} µs {'later' if moved > 0 else 'earlier'} in the second run"
    if first[2] != second[2]:
        return f"{first[2]} bytes in the first run, {second[2]} in the second"
    unequal = [i for i, (a, b) in enumerate(zip(first[1], second[1], strict=False)) if a != b]
    payload = _payload(first[1])
    checksum = (payload - 2, payload - 1)  # the UDP checksum differs whenever another byte does
    at = next((i for i in unequal if i not in checksum), min(unequal, default=len(first[1])))
    return f"{first[2]} bytes in both runs; they differ from {_place(first[1], at)} on"


def _payload(frame: bytes) -> int:
    """The position of the UDP payload in a frame; 0 when the frame is neither IPv4 nor IPv6."""
    if frame[12:14] == _IPV4 and len(frame) > _ETHERNET:
        return _ETHERNET + 4 * (frame[_ETHERNET] & 15) + _UDP
    return _ETHERNET + 40 + _UDP if frame[12:14] == _IPV6 else 0


def _place(frame: bytes, at: int) -> str:
    """The place of byte `at` of a frame in words, such as `byte 4 of the UDP payload`."""
    payload = _payload(frame)
    if not payload or at < _ETHERNET:
        return f"byte {at} of the frame"
    if at < payload - _UDP:
        return f"byte {at - _ETHERNET} of the IP header"
    return f"byte {at - payload} of the UDP payload" if at >= payload else "the UDP header"
