"""The times in which the path carried no packet, or no packet of the sent size."""

from dataclasses import dataclass

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.diagnose.flight import Flight, Floats
from runner.model.impairments import PathImpairments
from runner.model.result import LinkTruth
from runner.trace.intervals import Ints
from runner.trace.vantage import Recording

_EVERY_PATH = 1200  # bytes of UDP payload (RFC 9000 §14)
_LEAST_SILENCE = 0.4  # s in which all packets of the server were lost; the silence must also last one RTT
_LEAST_DROPS = 3  # single probes get lost when a sender searches for the path's MTU (RFC 8899 §5.1)


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A silence in seconds since the origin, in the client's time. `over`: when a packet arrived again (RFC 9002 §6.2:
    a sender notices the end of an outage only with its next probe); infinity when no packet arrived again."""

    start: float
    end: float
    over: float
    swallowed: Ints
    """Rows of the lost packets in the server-side capture. Empty when these packets are unknown."""


def outage(recording: Recording, path: PathImpairments, truth: LinkTruth | None, delay: float) -> Silence | None:
    """The configured outage, if the simulator's count shows that packets were lost in it; None otherwise.

    Its time counts from the first datagram that begins with a short header, in either direction (sim/README.md).
    `delay`: delay of the forward link in seconds.
    """
    configured, client, origin = path.outage, recording.client, recording.origin_ns
    if configured is None or truth is None or client is None or origin is None:
        return None
    if not truth.forward.dropped_outage + truth.return_.dropped_outage:
        return None
    firsts = []
    for sender in (CLIENT, SERVER):
        vantage = recording.near(sender)
        if vantage is not None:
            mine = vantage.packets.named("type", "1rtt") & (vantage.packets["index"] == 0)
            firsts.append(vantage.packet_time[mine & (vantage.packets["sender"] == sender)])
    first = np.concatenate(firsts).min(initial=np.iinfo(np.int64).max)
    start = float(first - origin) / 1e9 + configured.start + delay
    end = start + configured.duration
    came = (client.datagrams["time_ns"][client.datagrams["sender"] == SERVER] - origin) / 1e9
    return Silence(start=start, end=end, over=_next(came, end), swallowed=np.empty(0, dtype=np.int64))


def longest_silence(recording: Recording, flight: Flight, rtt: float, shift: float) -> Silence | None:
    """The outage in the trace of a real link: the longest time in which every packet of the server was lost. It must
    last at least one RTT and 0.4 s, because a few datagrams that are lost together are no outage."""
    client, origin = recording.client, recording.origin_ns
    if client is None or origin is None or not flight.arrived.any():
        return None
    gone = np.concatenate(([False], ~flight.arrived, [False])).astype(np.int8)
    first, last = np.flatnonzero(np.diff(gone) == 1), np.flatnonzero(np.diff(gone) == -1) - 1
    lasted = flight.time[last] - flight.time[first]
    chosen = (lasted >= max(_LEAST_SILENCE, rtt)) & (last - first + 1 >= _LEAST_DROPS)
    if not chosen.any():
        return None
    best = int(np.where(chosen, lasted, 0.0).argmax())
    start, end = float(flight.time[first[best]]) + shift, float(flight.time[last[best]]) + shift
    came = (client.datagrams["time_ns"][client.datagrams["sender"] == SERVER] - origin) / 1e9
    # Datagrams that were sent before the outage may still arrive at its beginning.
    swallowed = flight.row[first[best] : last[best] + 1]
    return Silence(start=start, end=end, over=_next(came, end), swallowed=swallowed)


def black_hole(recording: Recording, flight: Flight, truth: LinkTruth | None, shift: float) -> Silence | None:
    """The time in which all datagrams of the server above 1200 B were lost, up to the last such datagram. None when
    these are fewer than three, or when the simulator counted fewer than three datagrams as too long. `shift`: seconds
    from the server to the client over the empty path."""
    server = recording.server
    if truth is None or truth.forward.dropped_mtu < _LEAST_DROPS or server is None:
        return None
    size = server.datagrams["payload_length"][server.packets["datagram"][flight.row]]
    large = size > _EVERY_PATH
    passed = np.flatnonzero(large & flight.arrived)
    since = int(passed[-1]) + 1 if len(passed) else 0
    gone = np.flatnonzero(large & ~flight.arrived)
    gone = gone[gone >= since]
    if len(gone) < _LEAST_DROPS:
        return None
    time = flight.time + shift
    start = float(time[gone[0]])
    return Silence(
        start=start,
        end=float(time[gone[-1]]),
        over=_next(time[flight.arrived], start),
        swallowed=flight.row[gone],
    )


def _next(times: Floats, after: float) -> float:
    later = times[times >= after]
    return float(later.min(initial=np.inf))
