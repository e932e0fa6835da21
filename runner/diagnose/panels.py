"""Packets, bytes in flight, RTT and queue over time, reduced to the resolution of a screen."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.diagnose.flight import Floats
from runner.diagnose.view import View
from runner.trace.intervals import Ints
from runner.trace.rtt import rtt_samples

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
        server = view.transfer.recording.server
        assert server is not None  # a Flight exists only with this capture
        samples = rtt_samples(server)
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
                "t_us": _delta(_us(self.packet_time)),
                "number": _runs(np.diff(self.packet_number, prepend=0)),
                "length": _runs(self.packet_length),
            },
            "in_flight": {
                "interval_s": round(self.interval, 9),
                "bytes": np.rint(self.in_flight).astype(np.int64).tolist(),
                "ceiling": ceiling if any(limit is not None for limit in ceiling) else [],
            },
            "rtt": {"t_us": _delta(_us(self.rtt_time)), "us": _us(self.rtt).tolist()},
            "queue": {"t_us": _delta(_us(self.queue_time)), "us": _us(self.queue).tolist()},
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


def _delta(values: Ints) -> list[int]:
    coded: list[int] = np.diff(values, prepend=0).tolist()
    return coded


def _runs(values: Ints) -> list[int]:
    """Each value, followed by the length of its run."""
    if not len(values):
        return []
    heads = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    counts = np.diff(np.append(heads, len(values)))
    runs: list[int] = np.column_stack([values[heads], counts]).ravel().tolist()
    return runs
