"""A declared emulated link: its segments with two directions each. SI units."""

from dataclasses import dataclass, replace

from runner.model.impairments import NO_LINK_IMPAIRMENTS, NO_PATH_IMPAIRMENTS, LinkImpairments, PathImpairments
from runner.model.link_record import LinkParameters, LinkRecord, SegmentRecord

IP_PACKET = 1500  # bytes: the MTU of every emulated link
LEAST_RATE, LARGEST_RATE = 1_000, 10_000_000_000  # bit/s, of the simulator
LARGEST_DELAY = 60.0  # s
LARGEST_QUEUE = 1_000_000  # packets
_STRICT = {"extra": "forbid"}  # pydantic: unknown fields are errors


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue at the start of a direction. Exactly one of the fields is set. `Segment.queue_packets` converts it to
    packets."""

    packets: int | None = None
    bytes: int | None = None
    bdp: float | None = None  # bandwidth-delay products of the segment: its RTT × its forward data rate

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        lengths = [value for value in (self.packets, self.bytes, self.bdp) if value is not None]
        if len(lengths) != 1 or not lengths[0] > 0:
            raise ValueError("a queue is given in packets, in bytes or in BDP: exactly one of them, above 0")


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One direction of a segment: data rate of IP packets in bit/s, one-way delay in seconds, loss as a fraction."""

    data_rate: int
    delay: float
    queue: Queue
    loss: float = 0.0
    impairments: LinkImpairments = NO_LINK_IMPAIRMENTS

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if not LEAST_RATE <= self.data_rate <= LARGEST_RATE:
            raise ValueError(f"a data rate is {LEAST_RATE} to {LARGEST_RATE} bit/s, not {self.data_rate}")
        if not 0 <= self.delay <= LARGEST_DELAY:
            raise ValueError(f"a delay is 0 to {LARGEST_DELAY:g} seconds, one way, not {self.delay:g}")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"a loss is a fraction from 0 to 1, not {self.loss:g}")

    @property
    def is_clean(self) -> bool:
        """True when no packet is lost or changed on purpose. Parameters that change over time, as over a LEO satellite,
        are allowed."""
        return not self.loss and replace(self.impairments, changes=()) == NO_LINK_IMPAIRMENTS


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One segment of a link. `forward` carries the download to the client, `return_` carries the client's ACKs."""

    forward: Direction
    return_: Direction
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        for direction in (self.forward, self.return_):
            if self.queue_packets(direction) > LARGEST_QUEUE:
                raise ValueError(f"a queue has at most {LARGEST_QUEUE} packets")

    @property
    def rtt(self) -> float:
        """The sum of both one-way delays in seconds, without queues and serialisation."""
        return self.forward.delay + self.return_.delay

    @property
    def bdp(self) -> float:
        """Bandwidth-delay product in bytes: RTT × forward data rate."""
        return self.rtt * self.forward.data_rate / 8

    @property
    def is_clean(self) -> bool:
        """True when no packet is lost or changed on purpose."""
        return self.forward.is_clean and self.return_.is_clean and self.impairments == NO_PATH_IMPAIRMENTS

    def queue_packets(self, direction: Direction) -> int:
        """The queue of a direction in packets of 1500 B, which is the unit in published matrices."""
        queue = direction.queue
        if queue.packets is not None:
            return queue.packets
        size = queue.bytes if queue.bytes is not None else (queue.bdp or 0) * self.bdp
        return max(1, round(size / IP_PACKET))

    def record(self, name: str = "") -> SegmentRecord:
        """The segment as `run.json` stores it, with the queues in packets."""
        forward, return_ = (
            LinkParameters(
                data_rate=direction.data_rate,
                delay=direction.delay,
                queue_packets=self.queue_packets(direction),
                loss=direction.loss,
                impairments=direction.impairments,
            )
            for direction in (self.forward, self.return_)
        )
        return SegmentRecord(name=name, forward=forward, return_=return_, impairments=self.impairments)


@dataclass(frozen=True, kw_only=True)
class Link:
    """An emulated link with one or two segments. The first segment is the satellite's, next to the client. The second
    is the ground segment.

    `source`: the source of the parameters, such as a table of a thesis. `note` is shown with the link.
    """

    name: str
    segments: tuple[Segment, ...]
    source: str = ""
    note: str = ""

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if not 1 <= len(self.segments) <= 2:
            raise ValueError("a link has one segment, or two: satellite and ground")

    @classmethod
    def single(
        cls,
        name: str,
        *,
        forward: Direction,
        return_: Direction,
        impairments: PathImpairments = NO_PATH_IMPAIRMENTS,
        source: str,
    ) -> "Link":
        """A link of one segment."""
        segment = Segment(forward=forward, return_=return_, impairments=impairments)
        return cls(name=name, segments=(segment,), source=source)

    @property
    def satellite(self) -> Segment:
        """The first segment."""
        return self.segments[0]

    @property
    def rtt(self) -> float:
        """The RTT over all segments in seconds, without queues and serialisation."""
        return sum(segment.rtt for segment in self.segments)

    @property
    def is_clean(self) -> bool:
        """True when no packet is lost or changed on purpose."""
        return all(segment.is_clean for segment in self.segments)

    def record(self) -> LinkRecord:
        """The link as `run.json` stores it, with the queues in packets."""
        names = ("satellite", "ground") if len(self.segments) > 1 else ("",)
        segments = tuple(segment.record(name) for segment, name in zip(self.segments, names, strict=True))
        return LinkRecord(name=self.name, segments=segments, note=self.note)


@dataclass(frozen=True, kw_only=True)
class AdvertisedLink:
    """A real link with its advertised data rates in bit/s. links.json has the hosts at its ends."""

    name: str
    forward_rate: int
    return_rate: int
    source: str

    @property
    def rtt(self) -> float:
        """0, because the RTT is unknown before a job; each job measures it."""
        return 0.0

    @property
    def is_clean(self) -> bool:
        """True, because a real link has no configured impairment."""
        return True

    def record(self) -> LinkRecord:
        """The link as `run.json` stores it."""
        forward, return_ = (LinkParameters.advertised(rate) for rate in (self.forward_rate, self.return_rate))
        return LinkRecord.single(self.name, forward, return_)
