"""Two captures → the first packet that they do not share."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from runner.decode.capture import open_capture
from runner.errors import CaptureError

Packet = tuple[int, bytes, int]
"""time_ns, the bytes that were captured, length on the wire"""

_ETHERNET, _UDP = 14, 8  # bytes of their headers
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where the packets of two runs of a job differ first."""

    side: str  # whose capture: client or server
    number: int  # of the packet in that capture, from 1
    time: float  # s since the capture's first packet
    what: str


def first_difference(side: str, before: Path, after: Path) -> Difference | None:
    """The first packet that two captures don't share. None: they are the same, or one of them can't be read."""
    try:
        pairs = zip_longest(_packets(before), _packets(after))
        began = None
        for number, (one, other) in enumerate(pairs, start=1):
            if began is None:
                began = (one or other or (0, b"", 0))[0]
            if one != other:
                time = ((one or other or (0, b"", 0))[0] - began) / 1e9
                return Difference(side=side, number=number, time=time, what=_describe(one, other))
    except CaptureError:
        pass
    return None


def _packets(path: Path) -> Iterator[Packet]:
    capture, _ = open_capture(path)
    for time_ns, _, first, last, length in capture.records():
        yield time_ns, capture.data[first:last], length


def _describe(one: Packet | None, other: Packet | None) -> str:
    if one is None or other is None:
        return f"the {'first' if other is None else 'second'} run alone has this packet"
    if one[1:] == other[1:]:
        moved = other[0] - one[0]
        return f"the same bytes {abs(moved) / 1000:g} µs {'later' if moved > 0 else 'earlier'} in the second run"
    if one[2] != other[2]:
        return f"{one[2]} bytes in the first run, {other[2]} in the second"
    unequal = [i for i, (a, b) in enumerate(zip(one[1], other[1], strict=False)) if a != b]
    payload = _payload(one[1])
    checksum = (payload - 2, payload - 1)  # of UDP: it differs with whatever else does
    at = next((i for i in unequal if i not in checksum), min(unequal, default=len(one[1])))
    return f"{one[2]} bytes in both runs, which differ from {_place(one[1], at)} on"


def _payload(frame: bytes) -> int:
    """Where the payload of UDP begins in a frame; 0: it is neither IPv4 nor IPv6."""
    if frame[12:14] == _IPV4 and len(frame) > _ETHERNET:
        return _ETHERNET + 4 * (frame[_ETHERNET] & 15) + _UDP
    return _ETHERNET + 40 + _UDP if frame[12:14] == _IPV6 else 0


def _place(frame: bytes, at: int) -> str:
    """Byte `at` of a frame, named by the header or payload that it lies in."""
    payload = _payload(frame)
    if not payload or at < _ETHERNET:
        return f"byte {at} of the frame"
    if at < payload - _UDP:
        return f"byte {at - _ETHERNET} of the IP header"
    return f"byte {at - payload} of the UDP payload" if at >= payload else "the UDP header"
