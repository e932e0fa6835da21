"""Finds the reasons why a transfer was slow, from its facts and packets, over QUIC and over TCP."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.decode.columns import SERVER
from runner.diagnose.detectors import DETECTORS, peer_and_path, sender  # noqa: F401 - these modules register detectors
from runner.diagnose.limits import Course, shares
from runner.diagnose.path import LinkEvents
from runner.diagnose.transfer_view import View
from runner.model.facts import TraceFacts
from runner.model.link import SegmentRecord
from runner.model.result import Diagnosis, LinkTruth, Sample, Span
from runner.model.stack import exchanged
from runner.trace.measure import CongestionWindow, congestion_window, delta, rtt_samples
from runner.trace.recording import Floats, Ints, Vantage
from runner.trace.streams import Transfer

# Packets, bytes in flight, RTT and queue over time, reduced to the resolution of a screen.

_MOST_PACKETS = 20_000
_MOST_POINTS = 1_500
_MOMENTS = 600
_NO_LIMIT = 2.0**34  # bytes; such a high limit holds nothing back


@dataclass(frozen=True, kw_only=True)
class Panels:
    """The curves of the connection with most of the response data. Times are seconds since the origin."""

    packet_time: Floats
    """Times when the server's ack-eliciting 1-RTT packets passed the server's capture."""
    packet_number: Ints
    packet_length: Ints
    """Bytes of each of these QUIC packets."""
    interval: float
    """Seconds between two values of `in_flight` and of `ceiling`; the first value is for the time 0."""
    in_flight: Floats
    """Bytes that the server had sent and that were neither acknowledged nor taken for lost."""
    ceiling: Floats
    """Bytes in flight that the client's flow control allows; infinity: unknown."""
    rtt_time: Floats
    rtt: Floats
    """Seconds from a packet of the server to its ACK, measured at the server's capture. The ACK delay is included."""
    queue_time: Floats
    queue: Floats
    """Seconds that a packet waited in queues: how much longer it took to the client than the fastest packet."""

    @classmethod
    def of(cls, view: View) -> "Panels":
        """The panels of a transfer."""
        flight = view.flight
        every = -(-len(flight.time) // _MOST_PACKETS)
        end = max(view.last_byte, float(flight.time[-1]))
        moments = np.linspace(0.0, end, _MOMENTS)
        in_flight = flight.in_flight(moments)
        samples = rtt_samples(view.server)
        mine = samples.connection == view.connection
        rtt_time, rtt = _highest(view.seconds(samples.time_ns[mine]), samples.rtt[mine])
        queue_time, queue = _highest(*view.waiting)
        return cls(
            packet_time=flight.time[::every],
            packet_number=flight.number[::every],
            packet_length=flight.length[::every],
            interval=end / (_MOMENTS - 1),
            in_flight=in_flight,
            ceiling=in_flight + np.maximum(view.room.left(moments), 0.0),
            rtt_time=rtt_time,
            rtt=rtt,
            queue_time=queue_time,
            queue=queue,
        )

    def document(self) -> dict[str, Any]:
        """The panels for `series.json`, in bytes and µs. `t_us` is delta-coded. `number` and `length` are lists of
        value, run length, value, run length, …; packet numbers are first delta-coded."""
        ceiling = [round(value) if value < _NO_LIMIT else None for value in self.ceiling.tolist()]
        return {
            "packets": {
                "t_us": delta(_us(self.packet_time)),
                "number": _runs(np.diff(self.packet_number, prepend=0)),
                "length": _runs(self.packet_length),
            },
            "in_flight": {
                "interval_s": round(self.interval, 9),
                "bytes": np.rint(self.in_flight).astype(np.int64).tolist(),
                "ceiling": ceiling if any(limit is not None for limit in ceiling) else [],
            },
            "rtt": {"t_us": delta(_us(self.rtt_time)), "us": _us(self.rtt).tolist()},
            "queue": {"t_us": delta(_us(self.queue_time)), "us": _us(self.queue).tolist()},
        }


def _highest(time: Floats, value: Floats) -> tuple[Floats, Floats]:
    """The points in order of time. Of too many points only the highest of each few neighbours remains."""
    order = np.argsort(time, kind="stable")
    time, value = time[order], value[order]
    every = -(-len(time) // _MOST_POINTS)
    if every < 2:
        return time, value
    heads = np.arange(0, len(time), every)
    top = np.array([head + int(value[head : head + every].argmax()) for head in heads.tolist()])
    return time[top], value[top]


def _us(seconds: Floats) -> Ints:
    microseconds: Ints = np.rint(1e6 * seconds).astype(np.int64)
    return microseconds


def _runs(values: Ints) -> list[int]:
    """Each value, followed by the length of its run."""
    if not len(values):
        return []
    heads = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    counts = np.diff(np.append(heads, len(values)))
    runs: list[int] = np.column_stack([values[heads], counts]).ravel().tolist()
    return runs


PATTERNS = {pattern.code: pattern for patterns in DETECTORS.values() for pattern in patterns}
"""By code, every pattern that the detectors can find."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The reasons why one transfer was slow."""

    spans: tuple[Span, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    panels: Panels | None = None  # packets in flight, RTT and queue over time, for the plots

    @property
    def limits(self) -> dict[str, float]:
        """Limit → its share of the time, 0…1; the shares sum to 1. Empty when the captures show no reason."""
        return shares(self.spans)


def explain(
    transfer: Transfer,
    facts: TraceFacts,
    sample: Sample,
    link: SegmentRecord,
    *,
    truth: LinkTruth | None = None,
    events: LinkEvents | None = None,
    tcp: bool = False,
) -> Explanation:
    """The limits over time and all diagnoses, in order of time. The explanation is empty unless both captures have
    response data. `link`: the satellite segment. `tcp`: the transfer used TCP; only those diagnoses remain that use
    bytes, times, arrivals and acknowledgements alone, and they cite TCP's RFCs."""
    view = View.of(transfer, facts, sample, link, truth, events)
    if view is None:
        return Explanation()
    course = Course.of(view)
    diagnoses = [
        replace(diagnosis, section=section)
        for detect in DETECTORS
        for diagnosis in detect(course)
        if (section := PATTERNS[diagnosis.code].over_tcp if tcp else PATTERNS[diagnosis.code].section)
    ]
    if any(diagnosis.code == "send-buffer" for diagnosis in diagnoses):
        diagnoses = [diagnosis for diagnosis in diagnoses if diagnosis.code not in _BY_SEND_BUFFER]
    if transfer.recording.upload:
        diagnoses = [
            replace(each, sentence=exchanged(each.sentence), vantage=exchanged(each.vantage)) for each in diagnoses
        ]
    ordered = tuple(sorted(diagnoses, key=lambda diagnosis: (diagnosis.start, diagnosis.code)))
    return Explanation(spans=course.spans, diagnoses=ordered, panels=Panels.of(view))


_BY_SEND_BUFFER = ("application-idle", "slow-start-left-early")  # what a full send buffer looks like


def window_of(qlogs: Path, near: Vantage | None) -> CongestionWindow | None:
    """The sender's congestion window from its qlogs; None when it sent nothing, or no qlog has a window."""
    if near is None:
        return None
    sent = near.datagrams["time_ns"][near.datagrams["sender"] == SERVER]
    return congestion_window(qlogs, int(sent.min())) if len(sent) else None


def marks(explanation: Explanation, *, origin_ns: int, window: CongestionWindow | None) -> dict[str, object]:
    """The explanation for `series.json`: `limits` as (start, end, limit), `diagnoses` as (start, end, code, sentence),
    and the curves of `Panels.document`. `in_flight` also gets the server's congestion window in bytes at the same
    moments; the list is empty without a window in a qlog. Times are seconds since the origin. `origin_ns`: Unix time
    of the origin."""
    panels: dict[str, Any] = {}
    if explanation.panels is not None:
        panels = explanation.panels.document()
        moments = np.arange(len(explanation.panels.in_flight)) * explanation.panels.interval
        sizes = [] if window is None else window.at(origin_ns + np.rint(moments * 1e9).astype(np.int64))
        panels["in_flight"]["congestion_window"] = sizes
    return panels | {
        "limits": [[round(span.start, 4), round(span.end, 4), span.limit.value] for span in explanation.spans],
        "diagnoses": [
            [round(diagnosis.start, 4), round(diagnosis.end, 4), diagnosis.code, diagnosis.sentence]
            for diagnosis in explanation.diagnoses
        ],
    }
