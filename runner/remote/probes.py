"""Computes the link's condition in each phase of a job, and the offset of the clocks, from the record of the probes.
No input or output."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from runner.model.real_link import Clock, Probing, RealLink

PROBE_BYTES = 94 + 28  # bytes of a probe as an IPv4 packet, and of its answer; an IPv6 packet has 20 more
_PROBES_PER_SECOND = 5.0
_PROBE_SHARE = 0.01  # largest share of the return link's data rate for probes
# A probe without an answer is not counted as lost if it was sent within this number of median RTTs before the end.
_UNDER_WAY = 1.5
_LEAST_SPAN = 20.0  # seconds between first and last exchange; with less, drift can't be distinguished from noise
_NEAR_LEAST = 0.02  # share of the least RTT by which an undisturbed exchange may be slower
_LEAST_EXCHANGES = 3


def probe_period(link: RealLink) -> float:
    """Seconds between two probes: 5 probes a second, fewer when they would take more than 1 % of the return link."""
    return max(1 / _PROBES_PER_SECOND, 8 * PROBE_BYTES / (_PROBE_SHARE * link.return_rate))


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One probe and its answer. Times in ns since 1970: `sent` and `back` by the client's clock, `received` and
    `replied` by the server's. The last three are None without an answer."""

    sent: int
    received: int | None = None
    replied: int | None = None
    back: int | None = None

    @property
    def rtt(self) -> float | None:
        """Round-trip time in seconds, without the time that the server took."""
        if self.received is None or self.replied is None or self.back is None:
            return None
        return ((self.back - self.sent) - (self.replied - self.received)) / 1e9

    @property
    def offset(self) -> float | None:
        """Seconds by which the client's clock is ahead, if both directions had the same delay (RFC 5905 §8)."""
        if self.received is None or self.replied is None or self.back is None:
            return None
        return -((self.received - self.sent) + (self.replied - self.back)) / 2e9


def parse(text: str) -> list[Exchange]:
    """The exchanges of `probes.txt`, in the order of sending, without a truncated last line."""
    exchanges_by_number: dict[int, Exchange] = {}
    for line in text.splitlines():
        words = line.split()
        try:
            numbers = [int(word) for word in words[1:]]
        except ValueError:
            continue
        if words[:1] == ["s"] and len(numbers) == 2:
            exchanges_by_number.setdefault(numbers[0], Exchange(sent=numbers[1]))
        elif words[:1] == ["r"] and len(numbers) == 5:
            number, sent, received, replied, back = numbers
            exchanges_by_number[number] = Exchange(sent=sent, received=received, replied=replied, back=back)
    return [exchanges_by_number[number] for number in sorted(exchanges_by_number)]


def settled(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The exchanges, without unanswered probes at the end whose answers may still have been on the link."""
    rtts = [rtt for exchange in exchanges if (rtt := exchange.rtt) is not None]
    if not rtts:
        return list(exchanges)
    over = exchanges[-1].sent / 1e9 - _UNDER_WAY * statistics.median(rtts)
    return [exchange for exchange in exchanges if exchange.rtt is not None or exchange.sent / 1e9 < over]


def probing(exchanges: Iterable[Exchange], begin: float, end: float) -> Probing:
    """A summary of the probes sent from `begin` to `end`, in seconds since 1970 by the client's clock."""
    phase = [exchange for exchange in exchanges if begin <= exchange.sent / 1e9 < end]
    rtts = [rtt for exchange in phase if (rtt := exchange.rtt) is not None]
    answered = [exchange.sent / 1e9 for exchange in phase if exchange.rtt is not None]
    gap = 0.0
    if phase:
        edges = [phase[0].sent / 1e9, *answered, phase[-1].sent / 1e9]
        gap = max(after - before for before, after in itertools.pairwise(edges))
    return Probing(
        sent=len(phase),
        received=len(rtts),
        rtt_min=min(rtts, default=None),
        rtt_median=statistics.median(rtts) if rtts else None,
        rtt_max=max(rtts, default=None),
        longest_gap=gap,
    )


def clock(exchanges: Sequence[Exchange]) -> Clock | None:
    """The client's clock compared with the server's, from the exchanges with the least RTT; None without an
    answered probe."""
    known = [
        (exchange, rtt, offset)
        for exchange in exchanges
        if (rtt := exchange.rtt) is not None and (offset := exchange.offset) is not None
    ]
    if not known:
        return None
    least = min(rtt for _, rtt, _ in known)
    near = [entry for entry in known if entry[1] <= least * (1 + _NEAR_LEAST)]
    if len(near) < _LEAST_EXCHANGES:
        near = sorted(known, key=lambda entry: entry[1])[:_LEAST_EXCHANGES]
    times = np.array([exchange.received for exchange, _, _ in near], dtype=np.float64) / 1e9
    offsets = np.array([offset for _, _, offset in near])
    slower = np.array([rtt - least for _, rtt, _ in near])
    at = float(times.mean())
    drift = 0.0
    if times.max() - times.min() >= _LEAST_SPAN:
        drift = float(np.polyfit(times - at, offsets, 1)[0])
    rest = offsets - drift * (times - at)
    middle = float(np.median(rest))
    # A queue may delay only one direction; then half of this delay is in the offset.
    uncertainty = float(np.median(np.abs(rest - middle)) + np.median(slower) / 2)
    return Clock(offset=middle, drift=drift, at=at, uncertainty=uncertainty, bound=least / 2, exchanges=len(near))
