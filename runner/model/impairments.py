"""Impairments of a link besides delay, queueing and random loss. The simulator's configuration has the same names, and
sim/README.md describes each field. A new impairment needs a field here, a class in sim/src/impairments.cc, and a
counter in DirectionTruth (model/result.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, cast

# Units of fields, and the largest values that the simulator accepts.
FRACTION = {"unit": "fraction", "largest": 1.0}
DELAY = {"unit": "seconds", "largest": 60.0}
TIME = {"unit": "seconds", "largest": 86_400.0}
PACKETS = {"unit": "packets", "largest": 1_000_000.0}
LEAST_MTU, LARGEST_MTU = 100, 65_535  # bytes


class _InUnits:
    """A base class of types whose fields must be in the ranges of their units. Raises ValueError for other values. In
    JSON, unknown fields are errors."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - not a field

    def __post_init__(self) -> None:
        for about in fields(cast("Any", self)):
            setting = getattr(self, about.name)
            if not about.metadata or setting is None:
                continue
            unit, largest = about.metadata["unit"], about.metadata["largest"]
            for value in setting if isinstance(setting, tuple) else (setting,):
                if not 0 <= value <= largest:
                    raise ValueError(f"{about.name} is 0 to {largest:g} ({unit}), not {value:g}")


@dataclass(frozen=True, kw_only=True)
class LinkChange(_InUnits):
    """New values of one direction. They hold from `time` seconds after the direction's first UDP packet on."""

    time: float = field(metadata=TIME)
    delay: float = field(metadata=DELAY)  # one-way delay, seconds
    data_rate: int  # bit/s
    loss: float = field(default=0.0, metadata=FRACTION)


@dataclass(frozen=True, kw_only=True)
class LinkImpairments(_InUnits):
    """Impairments of one direction. Fractions are fractions of the UDP packets. `()`, 0 and None switch an impairment
    off. Fields with a unit and one value can also be set with `--link` (runner/config/link_text.py).
    """

    burst: int = field(default=0, metadata=PACKETS)  # largest number of losses in a row, and of corruptions in a row
    loss_list: tuple[tuple[int, int], ...] = ()  # ranges of lost packets: first and last number, counted from 1
    # probabilities per packet of a change from the good to the bad state, and from the bad to the good state
    gilbert_elliott: tuple[float, float] | None = field(default=None, metadata=FRACTION)
    corruption: float = field(default=0.0, metadata=FRACTION)  # one byte is changed, the UDP checksum is corrected
    jitter: float = field(default=0.0, metadata=DELAY)  # random time from 0 to this value, added to the delay
    reorder: float = field(default=0.0, metadata=FRACTION)  # fraction of packets that are held back by reorder_delay
    reorder_delay: float = field(default=0.0, metadata=DELAY)
    mark_packets: int = field(default=0, metadata=PACKETS)  # a packet gets CE when this many packets wait behind it
    changes: tuple[LinkChange, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 1 <= first <= last for first, last in self.loss_list):
            raise ValueError("loss_list has the first and the last packet of each range, counted from 1")
        times = [change.time for change in self.changes]
        if times != sorted(times):
            raise ValueError("changes must be in the order of their times")

    @property
    def have_chance(self) -> bool:
        """True when the seed decides what happens to packets."""
        return bool(self.gilbert_elliott or self.corruption or self.jitter or self.reorder)

    def sentences(self) -> Iterator[str]:
        """A phrase for each impairment, for people."""
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
    """No packet passes in either direction for `duration` seconds. `start`: seconds after the first 1-RTT packet."""

    start: float = field(metadata=TIME)
    duration: float = field(metadata=TIME)


@dataclass(frozen=True, kw_only=True)
class MtuFall(_InUnits):
    """From `start` on, packets longer than `size` are dropped without an ICMP message (RFC 8899 §1.2). `start`: seconds
    after the first 1-RTT packet."""

    size: int  # bytes of the longest IP packet that still passes
    start: float = field(metadata=TIME)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_MTU <= self.size <= LARGEST_MTU:
            raise ValueError(f"the size of an MTU is {LEAST_MTU} to {LARGEST_MTU} bytes, not {self.size}")


@dataclass(frozen=True, kw_only=True)
class Rebinding(_InUnits):
    """A NAT next to the client changes the client's port or address. `first`: time of the first change, in seconds
    after the first 1-RTT packet. `every`: seconds between changes; 0: there is only one change."""

    what: str  # port or address
    first: float = field(metadata=TIME)
    every: float = field(default=0.0, metadata=TIME)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.what not in ("port", "address"):
            raise ValueError("a NAT changes the client's `port` or its `address`")


@dataclass(frozen=True, kw_only=True)
class PathImpairments(_InUnits):
    """Impairments that concern both directions together."""

    outage: Outage | None = None
    mtu_fall: MtuFall | None = None
    rebinding: Rebinding | None = None
    overtaking: bool = False  # True: jitter may change the order of packets

    def sentences(self) -> Iterator[str]:
        """A phrase for each impairment, for people."""
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
