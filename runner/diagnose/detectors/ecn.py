"""Detector: the client did not report CE marks, or the server ignored them (RFC 9000 §13.4, RFC 9002 §7.1)."""

from collections.abc import Iterator

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.diagnose.limits import Course
from runner.diagnose.view import EVIDENCE, View
from runner.model.diagnosis import Diagnosis, Pattern
from runner.trace.packets import CE
from runner.trace.vantage import APPLICATION

PATTERNS = (
    Pattern(code="ecn-not-reported", meaning="The client did not report congestion marks."),
    Pattern(code="ecn-ignored", meaning="The server did not react to congestion marks."),
)

_LEAST_MARKS = 3
_HEEDED = 0.9  # share of the earlier bytes in flight; CUBIC keeps 0.7, NewReno 0.5


def detect(course: Course) -> Iterator[Diagnosis]:
    """Not reported: the client received at least three CE marks, and its ACKs report none. Ignored: one RTT after the
    first report the server has at least 90 % as many bytes in flight as before, and no packet was lost."""
    view, facts = course.view, course.view.connection_facts
    received = facts.client_ecn.received
    if received is None or received.ce < _LEAST_MARKS:
        return
    if facts.client_ecn.reported.ce == 0:
        yield Diagnosis(
            code="ecn-not-reported",
            sentence=f"{received.ce} packets reached the client with CE, but its ACKs report none.",
            start=view.first_byte,
            end=view.last_byte,
            packets=_marked(view),
            vantage="server",
            section="RFC 9000 §13.4.1",
        )
        return
    server = view.transfer.recording.server
    if server is None or len(view.flight.losses):
        return
    acks = server.ack_frames
    reporting = (acks["sender"] == CLIENT) & (server.ack_space == APPLICATION) & (acks["ce"] > 0)
    first = float(view.seconds(acks["time_ns"][reporting]).min(initial=np.inf))
    slices = course.slices
    before = slices.in_flight[(slices.sending > first - slices.window / 2) & (slices.sending <= first)]
    after = slices.in_flight[(slices.sending > first + slices.window) & (slices.sending <= first + 2 * slices.window)]
    # In slow start the window grows until the report arrives, so the largest earlier value counts.
    if len(before) and len(after) and after.max() >= _HEEDED * before.max():
        yield Diagnosis(
            code="ecn-ignored",
            sentence=f"The client reported CE from {first:.3f} s on, and the server kept as much in flight as before.",
            start=first + view.shift,
            end=view.last_byte,
            packets=view.numbers_in(first + view.shift + slices.window, view.last_byte),
            vantage="server",
            section="RFC 9002 §7.1",
        )


def _marked(view: View) -> tuple[int, ...]:
    """Packet numbers of the first few packets that reached the client with CE."""
    client = view.transfer.recording.client
    assert client is not None  # the client received them
    packets, rows = client.packets, view.numbered(client, SERVER)
    marked = rows[client.datagrams["ecn"][packets["datagram"][rows]] == CE]
    numbers: list[int] = packets["packet_number"][marked][:EVIDENCE].tolist()
    return tuple(numbers)
