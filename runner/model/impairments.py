"""What a link does to packets besides delay, queueing and random loss. sim/README.md describes how."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinkChange:
    """What one direction becomes `time` seconds after the first UDP packet."""

    time: float
    delay: float  # one way, seconds
    data_rate: int  # bit/s
    loss: float = 0.0  # fraction


@dataclass(frozen=True, kw_only=True)
class LinkImpairments:
    """Of one direction. Fractions are of UDP packets; `()`, 0 and None mean that nothing of the kind happens."""

    burst: int = 0  # longest run of losses, and of corruptions
    loss_list: tuple[tuple[int, int], ...] = ()  # first and last of the packets that are lost, counted from 1
    gilbert_elliott: tuple[float, float] | None = None  # probabilities per packet: good to bad, bad to good
    corruption: float = 0.0  # a byte of the payload changes, and the packet is delivered with a right checksum
    jitter: float = 0.0  # seconds, uniform from 0, added to the delay
    reorder: float = 0.0  # fraction that is held back by reorder_delay
    reorder_delay: float = 0.0  # seconds
    mark_packets: int = 0  # CE for packets that leave as many or more waiting
    changes: tuple[LinkChange, ...] = ()

    def sentences(self) -> Iterator[str]:
        """What happens, one phrase each, for people."""
        if self.loss_list:
            numbers = (f"{first}" if first == last else f"{first} to {last}" for first, last in self.loss_list)
            yield f"packets {', '.join(numbers)} lost"
        if self.gilbert_elliott:
            to_bad, to_good = self.gilbert_elliott
            yield f"loss in bursts (Gilbert-Elliott {to_bad:g}, {to_good:g})"
        if self.corruption:
            yield f"{self.corruption:.0%} corrupted"
        if self.burst:
            yield f"at most {self.burst} in a row"
        if self.jitter:
            yield f"jitter {self.jitter * 1e3:g} ms"
        if self.reorder:
            yield f"{self.reorder:.0%} held back by {self.reorder_delay * 1e3:g} ms"
        if self.mark_packets:
            yield f"CE from {self.mark_packets} waiting packets"
        if self.changes:
            yield f"{len(self.changes)} changes over {self.changes[-1].time:g} s"


@dataclass(frozen=True, kw_only=True)
class Outage:
    """No packet passes in either direction. `start` in seconds after the first 1-RTT packet."""

    start: float
    duration: float


@dataclass(frozen=True, kw_only=True)
class MtuFall:
    """Longer packets vanish without a word (RFC 8899 §1.2). `start` in seconds after the first 1-RTT packet."""

    size: int  # bytes of an IP packet that still passes
    start: float


@dataclass(frozen=True, kw_only=True)
class Rebinding:
    """A NAT before the client gives it others. `first` in seconds after the first 1-RTT packet; `every` 0: once."""

    what: str  # port or address
    first: float
    every: float

    def __post_init__(self) -> None:
        if self.what not in ("port", "address"):
            raise ValueError("a NAT changes the client's `port` or its `address`")


@dataclass(frozen=True, kw_only=True)
class PathImpairments:
    """Of both directions together."""

    outage: Outage | None = None
    mtu_fall: MtuFall | None = None
    rebinding: Rebinding | None = None
    overtaking: bool = False  # jitter may change the order

    def sentences(self) -> Iterator[str]:
        """What happens, one phrase each, for people."""
        if self.outage:
            yield f"no packet for {self.outage.duration:g} s, {self.outage.start:g} s after the first 1-RTT packet"
        if self.mtu_fall:
            yield f"MTU {self.mtu_fall.size} B, {self.mtu_fall.start:g} s after the first 1-RTT packet"
        if self.rebinding:
            again = f", then every {self.rebinding.every:g} s" if self.rebinding.every else ""
            yield f"new client {self.rebinding.what} {self.rebinding.first:g} s after the first 1-RTT packet{again}"
        if self.overtaking:
            yield "jitter may change the order"


NO_LINK_IMPAIRMENTS = LinkImpairments()
NO_PATH_IMPAIRMENTS = PathImpairments()
