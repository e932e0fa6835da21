"""What a link does to packets besides delay, queueing and random loss.

The fields have the same names in the simulator's document. sim/README.md describes what each does. A new
impairment is a field here, a class in sim/src/impairments.cc, and a counter in DirectionTruth (model/result.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, cast

# Units of fields, and the largest values that the simulator takes.
FRACTION = {"unit": "fraction", "largest": 1.0}
DELAY = {"unit": "seconds", "largest": 60.0}
TIME = {"unit": "seconds", "largest": 86_400.0}
PACKETS = {"unit": "packets", "largest": 1_000_000.0}
LEAST_MTU, LARGEST_MTU = 100, 65_535  # bytes


class _InUnits:
    """A noun whose fields stay in the ranges of their units; ValueError otherwise. Unknown fields are errors, too."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - not a field

    def __post_init__(self) -> None:
        for about in fields(cast("Any", self)):
            given = getattr(self, about.name)
            if not about.metadata or given is None:
                continue
            unit, largest = about.metadata["unit"], about.metadata["largest"]
            for value in given if isinstance(given, tuple) else (given,):
                if not 0 <= value <= largest:
                    raise ValueError(f"{about.name} is 0 to {largest:g} ({unit}), not {value:g}")


@dataclass(frozen=True, kw_only=True)
class LinkChange(_InUnits):
    """What one direction becomes `time` seconds after the first UDP packet."""

    time: float = field(metadata=TIME)
    delay: float = field(metadata=DELAY)  # one way
    data_rate: int  # bit/s
    loss: float = field(default=0.0, metadata=FRACTION)


@dataclass(frozen=True, kw_only=True)
class LinkImpairments(_InUnits):
    """Of one direction. Fractions are of UDP packets; `()`, 0 and None mean that nothing of the kind happens.

    A field with a unit can also be set with `--link` (runner/config/link_text.py).
    """

    burst: int = field(default=0, metadata=PACKETS)  # longest run of losses, and of corruptions
    loss_list: tuple[tuple[int, int], ...] = ()  # first and last of the packets that are lost, counted from 1
    # probabilities per packet: good to bad, bad to good
    gilbert_elliott: tuple[float, float] | None = field(default=None, metadata=FRACTION)
    corruption: float = field(default=0.0, metadata=FRACTION)  # a byte changes; delivered with a right checksum
    jitter: float = field(default=0.0, metadata=DELAY)  # uniform from 0, added to the delay
    reorder: float = field(default=0.0, metadata=FRACTION)  # share that is held back by reorder_delay
    reorder_delay: float = field(default=0.0, metadata=DELAY)
    mark_packets: int = field(default=0, metadata=PACKETS)  # CE for packets that leave as many or more waiting
    changes: tuple[LinkChange, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 1 <= first <= last for first, last in self.loss_list):
            raise ValueError("loss_list has the first and the last packet of each run, counted from 1")
        times = [change.time for change in self.changes]
        if times != sorted(times):
            raise ValueError("changes are in the order of their times")

    @property
    def have_chance(self) -> bool:
        """Whether the seed decides what happens to a packet."""
        return bool(self.gilbert_elliott or self.corruption or self.jitter or self.reorder)

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
class Outage(_InUnits):
    """No packet passes in either direction. `start` in seconds after the first 1-RTT packet."""

    start: float = field(metadata=TIME)
    duration: float = field(metadata=TIME)


@dataclass(frozen=True, kw_only=True)
class MtuFall(_InUnits):
    """Longer packets vanish without a word (RFC 8899 §1.2). `start` in seconds after the first 1-RTT packet."""

    size: int  # bytes of an IP packet that still passes
    start: float = field(metadata=TIME)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_MTU <= self.size <= LARGEST_MTU:
            raise ValueError(f"the size of an MTU is {LEAST_MTU} to {LARGEST_MTU} bytes, not {self.size}")


@dataclass(frozen=True, kw_only=True)
class Rebinding(_InUnits):
    """A NAT before the client gives it others. `first` in seconds after the first 1-RTT packet; `every` 0: once."""

    what: str  # port or address
    first: float = field(metadata=TIME)
    every: float = field(default=0.0, metadata=TIME)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.what not in ("port", "address"):
            raise ValueError("a NAT changes the client's `port` or its `address`")


@dataclass(frozen=True, kw_only=True)
class PathImpairments(_InUnits):
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
