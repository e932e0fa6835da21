"""Detector: datagrams well below the size that every path carries (RFC 9000 §14)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis, Pattern

PATTERNS = (Pattern(code="small-datagrams", meaning="Datagrams were small."),)

_EVERY_PATH = 1200  # bytes of UDP payload
_SMALL = 0.9 * _EVERY_PATH  # bytes; a tenth fewer bytes per datagram mean about a tenth more headers and packets
_LEAST_SHARE = 0.2
_LEAST_DATAGRAMS = 50


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when at least 20 % of at least 50 datagrams with response data are small. A smaller share is no pattern,
    because the last datagram of a response is short, too. A datagram doesn't count as small when the application had no
    more data, or when the client's flow control allowed no more."""
    view = course.view
    supply = course.slices.supply
    packets, size = supply.packets, supply.size
    small = (size < _SMALL) & ~supply.emptied & ~supply.blocked
    share = float(small.mean())
    if len(size) < _LEAST_DATAGRAMS or share < _LEAST_SHARE:
        return
    time = supply.time[small]
    yield Diagnosis(
        code="small-datagrams",
        sentence=f"{int(small.sum())} of {len(size)} datagrams with response data have less than {_SMALL:.0f} B, "
        f"with a median of {round(float(np.median(size[small])))} B.",
        start=float(time.min()),
        end=float(time.max()),
        share=share,
        packets=view.numbers(packets[small]),
        vantage="server",
        section="RFC 9000 §14, thesis §5.6.9.3",
    )
