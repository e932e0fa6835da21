"""Detector: datagrams never grew towards the path's MTU, or too large datagrams were lost (RFC 9000 §14.3)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Pattern
from runner.units import format_duration

PATTERNS = (
    Pattern(code="mtu-not-raised", meaning="The server never used the path's full packet size."),
    Pattern(code="mtu-black-hole", meaning="Long packets vanished."),
)

_EVERY_PATH = 1200  # bytes of UDP payload; `small_datagrams` detects smaller datagrams
_SMALL = 1300  # bytes of UDP payload; IPv6 guarantees 1232 (RFC 8200 §5)
_LEAST_DATAGRAMS = 500


def detect(course: Course) -> Iterator[Diagnosis]:
    """Never grown: of at least 500 datagrams with 1-RTT packets none has 1300 B or more. Lost: the simulator counted
    datagrams as too long."""
    view = course.view
    server = view.transfer.recording.server
    if server is None:
        return
    carrier = server.packets["datagram"][view.flight.row]
    mine, size = np.unique(carrier), server.datagrams["payload_length"]
    largest = int(size[mine].max(initial=0))
    if len(mine) >= _LEAST_DATAGRAMS and _EVERY_PATH <= largest < _SMALL:
        yield Diagnosis(
            code="mtu-not-raised",
            sentence=f"None of {len(mine)} datagrams has more than {largest} B, although the path carries 1500 B.",
            start=view.begin,
            end=view.last_byte,
            share=1.0,
            packets=view.numbers(view.flight.row[size[carrier] == largest]),
            vantage="server",
            section="RFC 9000 §14.3, thesis §5.6.9.3",
        )
    hole = view.black_hole
    if hole is not None and view.truth is not None:
        went_on = np.isfinite(hole.over)
        after = (
            f"the next packet arrived {format_duration(hole.over - hole.start)} later"
            if went_on
            else "no packet arrived afterwards"
        )
        yield Diagnosis(
            code="mtu-black-hole",
            sentence=f"From {hole.start:.2f} s on the path dropped {view.truth.forward.dropped_mtu} packets of the "
            f"server that were too large; {after}.",
            start=hole.start,
            end=max(hole.start, min(hole.over, view.last_byte)),
            packets=view.numbers(hole.swallowed),
            vantage="server",
            section="RFC 9000 §14.3, RFC 8899 §4.3",
        )
