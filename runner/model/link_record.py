"""A link as jobs ran over it, emulated or real: one or more segments with two directions each. SI units."""

from dataclasses import dataclass, replace

from runner.model.impairments import NO_LINK_IMPAIRMENTS, NO_PATH_IMPAIRMENTS, LinkImpairments, PathImpairments
from runner.model.real_link import RealLinkRecord


@dataclass(frozen=True, kw_only=True)
class LinkParameters:
    """One direction of a segment as jobs ran over it, in SI units; the queue is in packets of 1500 B.

    A real link has its advertised data rate. Its delay, queue and loss are unknown before a job, and are 0 here.
    """

    data_rate: int
    delay: float
    queue_packets: int
    loss: float
    impairments: LinkImpairments = NO_LINK_IMPAIRMENTS

    @classmethod
    def advertised(cls, data_rate: int) -> "LinkParameters":
        """One direction of a real link. Only its advertised data rate is known before a job."""
        return cls(data_rate=data_rate, delay=0.0, queue_packets=0, loss=0.0)

    @property
    def is_real(self) -> bool:
        """True for a real link. Its queue is 0; an emulated link always has a queue."""
        return self.queue_packets == 0

    @property
    def has_chance(self) -> bool:
        """True when the seed decides what happens to a packet."""
        return bool(self.loss or self.impairments.have_chance)


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """One segment of a link. `forward` carries the download. `name` is empty when the link has only this segment."""

    name: str = ""
    forward: LinkParameters
    return_: LinkParameters
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS


@dataclass(frozen=True, kw_only=True)
class LinkRecord:
    """A link with its segments, beginning at the client. `real` is set for a real link, which has one segment with
    advertised data rates."""

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
    def problem(self) -> str | None:
        """Why no job can have run over the link; None when one can."""
        if not self.segments:
            return "expected at least one segment, found none"
        for direction in (way for segment in self.segments for way in (segment.forward, segment.return_)):
            if direction.data_rate <= 0:
                return f"a data rate of {direction.data_rate} bit/s is not more than 0"
            if direction.delay < 0:
                return f"a delay of {direction.delay:g} s is less than 0"
        return None

    @property
    def satellite(self) -> SegmentRecord:
        """The first segment, which is the bottleneck of every declared link."""
        return self.segments[0]

    @property
    def end_to_end(self) -> SegmentRecord:
        """One segment with the sum of the delays of all segments, and the other parameters of the first segment."""
        first = self.satellite
        forward = replace(first.forward, delay=sum(segment.forward.delay for segment in self.segments))
        return_ = replace(first.return_, delay=sum(segment.return_.delay for segment in self.segments))
        return replace(first, forward=forward, return_=return_)

    @property
    def rtt(self) -> float:
        """The RTT over all segments in seconds, without queues and serialisation; 0 for a real link."""
        return self.end_to_end.forward.delay + self.end_to_end.return_.delay

    @property
    def base_name(self) -> str:
        """The name without an added loss, such as `geo` for `geo+loss=0.01`."""
        return self.name.partition("+loss=")[0]
