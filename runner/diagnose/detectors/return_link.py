"""Detector: the client sends an ACK for almost every packet, or its packets fill the return link (RFC 9000 §13.2.2)."""

from collections.abc import Iterator

import numpy as np

from runner.decode.schema import SERVER
from runner.diagnose.limits import Course
from runner.diagnose.view import View
from runner.model.diagnosis import Diagnosis, Pattern
from runner.trace.packets import CE
from runner.trace.vantage import Vantage
from runner.units import format_data_rate

PATTERNS = (
    Pattern(code="dense-acks", meaning="The client sent too many ACKs for the return link."),
    Pattern(code="return-link-full", meaning="The return link was full.", over_tcp="RFC 3449 §2"),
)

_DENSE = 0.9  # ACKs per packet with data
_COSTLY = 0.1  # share of the return link
_FULL = 0.8
_LEAST_SHARE = 0.05
_LEAST_CALM = 0.5  # share of the packets


def detect(course: Course) -> Iterator[Diagnosis]:
    """Dense ACKs: at least nine ACKs for ten packets, and the client uses at least 10 % of the return link. Full: the
    client uses at least 80 % of the return link in 5 % of the time. No diagnosis where the capacity of the return link
    is unknown."""
    view, slices = course.view, course.slices
    client = view.transfer.recording.client
    if client is None or not np.isfinite(view.return_rate):
        return
    used = slices.return_use
    ratio = _ratio(view, client)
    if ratio is not None and ratio >= _DENSE and used.mean() >= _COSTLY:
        yield Diagnosis(
            code="dense-acks",
            sentence=f"The client sent {ratio:.2f} ACKs per packet that didn't need an immediate ACK; all ACKs take "
            f"{used.mean():.0%} of the return link's {format_data_rate(round(view.return_rate))}.",
            start=view.first_byte,
            end=view.last_byte,
            share=float(used.mean()),
            packets=view.client_numbers(view.first_byte, view.last_byte),
            vantage="client",
            section="RFC 9000 §13.2.2, thesis §5.6.9.1",
        )
    full = used >= _FULL
    share = float(full.mean()) * float(slices.edges[-1] - slices.edges[0]) / course.duration
    if share >= _LEAST_SHARE:
        chosen = np.flatnonzero(full)
        start, end = float(slices.edges[chosen[0]]), float(slices.edges[chosen[-1] + 1])
        yield Diagnosis(
            code="return-link-full",
            sentence=f"In {share:.0%} of the time, the client used at least {_FULL:.0%} of the return link's "
            f"{format_data_rate(round(view.return_rate))}. The maximum was {used.max():.0%}.",
            start=start,
            end=end,
            share=share,
            packets=view.client_numbers(start, end),
            vantage="client",
            section="RFC 9000 §13.2.2, thesis §5.6.9.1",
        )


def _ratio(view: View, client: Vantage) -> float | None:
    """ACKs per packet, without the packets that need an immediate ACK and their ACKs. These are packets after a gap,
    out of order, or with CE (RFC 9000 §13.2.1). None when most packets need an immediate ACK."""
    packets, ratio = client.packets, view.sample.ack_ratio
    rows = view.numbered(client, SERVER)
    if ratio is None or not len(rows):
        return None
    number = packets["packet_number"][rows]
    expected = np.append(number[0], np.maximum.accumulate(number)[:-1] + 1)
    urgent = (number != expected) | (client.datagrams["ecn"][packets["datagram"][rows]] == CE)
    share = float(urgent.mean())
    return (ratio - share) / (1 - share) if share <= 1 - _LEAST_CALM else None
