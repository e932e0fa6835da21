"""Detector: packet numbers that don't increase, or are used twice (RFC 9000 §12.3)."""

from collections.abc import Iterator

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.diagnose.limits import Course
from runner.diagnose.view import View
from runner.model.diagnosis import Diagnosis, Pattern
from runner.trace.intervals import Ints
from runner.trace.vantage import NULL

PATTERNS = (Pattern(code="packet-numbers", meaning="Packet numbers grew in an unusual way."),)

_LEAST_PACKETS = 3
_OTHERS = 0.25  # ratio of held-back datagrams without new data to those with new data


def detect(course: Course) -> Iterator[Diagnosis]:
    """Report when an endpoint sent at least three packets with wrong numbers. A datagram that was sent twice, or that
    was held back together with its data, doesn't count, because its number was assigned in order. A few datagrams
    without new data that were held back together with such datagrams don't count either."""
    view = course.view
    for sender, name in ((CLIENT, "client"), (SERVER, "server")):
        vantage = view.transfer.recording.near(sender)
        if vantage is None:
            continue
        packets = vantage.packets
        mine = (packets["sender"] == sender) & (packets["connection"] == view.connection)
        mine &= packets.named("type", "1rtt") & (packets["packet_number"] != NULL)
        if sender == SERVER:
            mine[view.sent.packet[view.late_rows]] = False
        rows = np.flatnonzero(mine)
        if len(rows) < _LEAST_PACKETS:
            continue
        number = packets["packet_number"][rows]
        highest = np.maximum.accumulate(number)
        wrong = np.append(False, number[1:] <= highest[:-1])
        _, first, place = np.unique(
            np.column_stack([number, packets["length"][rows]]), axis=0, return_index=True, return_inverse=True
        )
        again = first[place.reshape(-1)] < np.arange(len(rows))
        wrong &= ~again
        if sender == SERVER:
            held = np.isin(rows, _only_again(view))
            if wrong[~held].sum() <= _OTHERS * (len(np.unique(view.sent.packet[view.late_rows])) + wrong[held].sum()):
                held[:] = True
            wrong &= ~(held & ~np.isin(number, number[~wrong]))
        if wrong.sum() < _LEAST_PACKETS:
            continue
        reused = int(np.isin(number[wrong], number[~wrong]).sum())
        time = view.seconds(vantage.packet_time[rows[wrong]])
        numbers: list[int] = number[wrong][:20].tolist()
        yield Diagnosis(
            code="packet-numbers",
            sentence=f"{int(wrong.sum())} packets of the {name} have numbers below earlier numbers of the {name}"
            + (f"; {reused} of these numbers belong to other packets, too." if reused else "."),
            start=float(time.min()),
            end=float(time.max()),
            share=float(wrong.mean()),
            packets=tuple(numbers),
            vantage=name,
            section="RFC 9000 §12.3, thesis §5.6.9.2",
        )


def _only_again(view: View) -> Ints:
    """Packets whose response data had all been sent before."""
    sent, own = view.sent, view.own
    return np.setdiff1d(sent.packet[own], sent.packet[own][sent.new[own] > 0])
