"""When the path carried nothing, or nothing of the size that was sent."""

from dataclasses import dataclass

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.diagnose.flight import Flight, Floats
from runner.model.impairments import PathImpairments
from runner.model.result import LinkTruth
from runner.trace.intervals import Ints
from runner.trace.vantage import Recording

_EVERY_PATH = 1200  # bytes of UDP payload (RFC 9000 §14)
_LEAST_SILENCE = 0.4  # s in which all packets of the server vanished; and one RTT at least
_LEAST_DROPS = 3  # a single probe that vanishes is how a sender finds the path's MTU (RFC 8899 §5.1)


@dataclass(frozen=True, kw_only=True)
class Silence:
    """In seconds since the origin, as the client would have seen it. `over` is when a packet arrived again, at `end` at
    the earliest: until one does, a sender can't know (RFC 9002 §6.2); infinity when none did."""

    start: float
    end: float
    over: float
    swallowed: Ints
    """Rows of the server-side capture's packets, empty where they aren't known."""


def outage(recording: Recording, path: PathImpairments, truth: LinkTruth | None, delay: float) -> Silence | None:
    """What was set, if the simulator's count says that it hit.

    It counts from the first datagram that begins with a short header, in either direction (sim/README.md); `delay` is
    that of the forward link in seconds.
    """
    asked, client, origin = path.outage, recording.client, recording.origin_ns
    if asked is None or truth is None or client is None or origin is None:
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
    start = float(first - origin) / 1e9 + asked.start + delay
    end = start + asked.duration
    came = (client.datagrams["time_ns"][client.datagrams["sender"] == SERVER] - origin) / 1e9
    return Silence(start=start, end=end, over=_next(came, end), swallowed=np.empty(0, dtype=np.int64))


def longest_silence(recording: Recording, flight: Flight, rtt: float, shift: float) -> Silence | None:
    """The longest stretch, of an RTT and 0.4 s at least, in which every packet of the server vanished: what the trace
    of a real link shows of an outage. A few datagrams that are lost together are no stretch."""
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
    # Datagrams that had left before may still arrive at its beginning.
    swallowed = flight.row[first[best] : last[best] + 1]
    return Silence(start=start, end=end, over=_next(came, end), swallowed=swallowed)


def black_hole(recording: Recording, flight: Flight, truth: LinkTruth | None, shift: float) -> Silence | None:
    """The server's datagrams of more than 1200 B vanished from some moment on, and the simulator says that they were
    too long. `shift` is the empty path's time from the server to the client, in seconds."""
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
