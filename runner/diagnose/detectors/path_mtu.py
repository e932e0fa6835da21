"""The datagrams never grew towards the path's MTU, or too large ones vanished on it (RFC 9000 §14.3)."""

from collections.abc import Iterator

import numpy as np

from runner.diagnose.limits import Course
from runner.model.diagnosis import Diagnosis

_EVERY_PATH = 1200  # bytes of UDP payload; less is a matter of its own
_SMALL = 1300  # bytes of UDP payload; IPv6 guarantees 1232 (RFC 8200 §5)
_LEAST_DATAGRAMS = 500
_LEAST_DROPS = 3


def detect(course: Course) -> Iterator[Diagnosis]:
    """Never grown: no datagram of 1300 B or more among 500 with 1-RTT packets. Vanished: by the link's truth."""
    view = course.view
    server = view.transfer.recording.server
    if server is None:
        return
    mine = np.unique(server.packets["datagram"][view.flight.row])
    largest = int(server.datagrams["payload_length"][mine].max(initial=0))
    if len(mine) >= _LEAST_DATAGRAMS and _EVERY_PATH <= largest < _SMALL:
        yield Diagnosis(
            code="mtu-not-raised",
            sentence=f"None of {len(mine)} datagrams has more than {largest} B, and the path carries 1500 B packets.",
            start=view.begin,
            end=view.last_byte,
            share=1.0,
            vantage="server",
            section="RFC 9000 §14.3, thesis §5.6.9.3",
        )
    if view.truth is not None and view.truth.forward.dropped_mtu >= _LEAST_DROPS:
        yield Diagnosis(
            code="mtu-black-hole",
            sentence=f"The path swallowed {view.truth.forward.dropped_mtu} packets of the server that were too large.",
            start=view.begin,
            end=view.last_byte,
            section="RFC 9000 §14.3",
        )
