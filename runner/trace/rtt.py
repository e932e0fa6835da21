"""Round-trip and one-way times of packets."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.decode.schema import SERVER
from runner.trace.intervals import Bools, Ints
from runner.trace.vantage import APPLICATION, NULL, Recording, Vantage, find, packet_key


@dataclass(frozen=True)
class RttSamples:
    """One sample per ACK that newly acknowledged its largest packet (RFC 9002 §5.1), in the capture's order."""

    time_ns: Ints
    """Time in ns when the ACK passed the vantage point."""
    connection: Ints
    rtt: NDArray[np.float64]
    """Seconds from packet to ACK at one vantage point; the receiver's ACK delay is not subtracted."""
    ack_delay: NDArray[np.float64]
    """The ACK delay in seconds that the receiver reported."""


def rtt_samples(vantage: Vantage, *, sender: int = SERVER) -> RttSamples:
    """RTT samples of `sender`'s 1-RTT packets. They are meaningful only at the vantage point of `sender`."""
    acks, packets = vantage.ack_frames, vantage.packets
    eliciting = ack_eliciting(vantage) & packets.named("type", "1rtt") & (packets["sender"] == sender)
    rows = np.flatnonzero(
        (acks["sender"] == 1 - sender) & (vantage.ack_space == APPLICATION) & (acks["connection"] >= 0)
    )
    rows = rows[_newly_largest(acks["connection"][rows], acks["largest"][rows])]
    keys = np.where(eliciting, vantage.packet_key, NULL)
    acknowledged = packet_key(acks["connection"][rows], sender, APPLICATION, acks["largest"][rows])
    places = find(keys, acknowledged)
    rows, places = rows[places != NULL], places[places != NULL]
    rtt = (acks["time_ns"][rows] - vantage.packet_time[places]) / 1e9
    sane = rtt >= 0
    return RttSamples(
        time_ns=acks["time_ns"][rows][sane],
        connection=acks["connection"][rows][sane],
        rtt=rtt[sane],
        ack_delay=acks["delay_us"][rows][sane] / 1e6,
    )


def _newly_largest(connection: Ints, largest: Ints) -> Bools:
    """Per ACK: whether it acknowledges a higher packet number than every earlier ACK of its connection."""
    newly = np.zeros(len(largest), dtype=bool)
    for number in np.unique(connection):
        mine = np.flatnonzero(connection == number)
        highest = np.maximum.accumulate(largest[mine])
        newly[mine] = np.append(True, highest[1:] > highest[:-1])
    return newly


def ack_eliciting(vantage: Vantage) -> Bools:
    """Per packet: whether it contains a frame that must be acknowledged (RFC 9000 §13.2.1)."""
    frames = vantage.frames
    silent = frames.named("name", "padding", "ack", "connection_close", "application_close")
    eliciting = np.zeros(len(vantage.packets), dtype=bool)
    eliciting[frames["packet"][~silent]] = True
    eliciting[vantage.stream_frames["packet"]] = True
    return eliciting


def one_way_delays(recording: Recording, *, sender: int = SERVER) -> NDArray[np.float64]:
    """The delay in seconds of every 1-RTT packet of `sender` that is in both captures. Empty when a capture is missing.
    When `Recording.one_clock` is False, the values contain the difference of the two clocks."""
    near, far = recording.near(sender), recording.far(sender)
    link = recording.arrival if sender == SERVER else recording.departure
    if near is None or far is None or link is None:
        return np.empty(0)
    chosen = near.packets.named("type", "1rtt") & (near.packets["sender"] == sender) & (link != NULL)
    delay: NDArray[np.float64] = (far.packet_time[link[chosen]] - near.packet_time[chosen]) / 1e9
    return delay
