"""A link as a job ran over it: one or more segments with two directions each, emulated or real. SI units."""

from dataclasses import dataclass, replace

from runner.model.impairments import NO_LINK_IMPAIRMENTS, NO_PATH_IMPAIRMENTS, LinkImpairments, PathImpairments
from runner.model.real_link import RealLinkRecord


@dataclass(frozen=True, kw_only=True)
class LinkParameters:
    """One direction as it was run, in SI units; the queue in packets of 1500 B. A real link has its advertised data
    rate; its delay, queue and loss are unknown beforehand, and 0 here.
    """

    data_rate: int
    delay: float
    queue_packets: int
    loss: float
    impairments: LinkImpairments = NO_LINK_IMPAIRMENTS

    @classmethod
    def advertised(cls, data_rate: int) -> "LinkParameters":
        """One direction of a real link, of which only the advertised data rate is known beforehand."""
        return cls(data_rate=data_rate, delay=0.0, queue_packets=0, loss=0.0)

    @property
    def is_real(self) -> bool:
        """True for a real link; only an emulated link has a queue."""
        return self.queue_packets == 0

    @property
    def has_chance(self) -> bool:
        """Whether the seed decides what happens to a packet."""
        return bool(self.loss or self.impairments.have_chance)


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """One stretch of a link. `forward` carries the download. `name` is empty when the link has no other segment."""

    name: str = ""
    forward: LinkParameters
    return_: LinkParameters
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS


@dataclass(frozen=True, kw_only=True)
class LinkRecord:
    """All segments of a link, the client's first. `real` is set for a real link, whose single segment is advertised."""

    name: str
    segments: tuple[SegmentRecord, ...]
    note: str = ""
    real: RealLinkRecord | None = None

    @classmethod
    def single(
        cls,
        name: str,
        forward: LinkParameters,
        return_: LinkParameters,
        impairments: PathImpairments = NO_PATH_IMPAIRMENTS,
    ) -> "LinkRecord":
        """A link of one segment."""
        return cls(name=name, segments=(SegmentRecord(forward=forward, return_=return_, impairments=impairments),))

    @property
    def satellite(self) -> SegmentRecord:
        """The first segment, the bottleneck of every declared link."""
        return self.segments[0]

    @property
    def end_to_end(self) -> SegmentRecord:
        """One segment with the delays of all of them and the other parameters of the first."""
        first = self.satellite
        forward = replace(first.forward, delay=sum(segment.forward.delay for segment in self.segments))
        return_ = replace(first.return_, delay=sum(segment.return_.delay for segment in self.segments))
        return replace(first, forward=forward, return_=return_)

    @property
    def rtt(self) -> float:
        """Both ways through all segments in seconds, without queues and serialisation; 0 for a real link."""
        return self.end_to_end.forward.delay + self.end_to_end.return_.delay

    @property
    def base_name(self) -> str:
        """The name without an added loss, such as `geo` for `geo+loss=0.01`."""
        return self.name.partition("+loss=")[0]
