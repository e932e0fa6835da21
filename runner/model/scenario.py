"""The network between the endpoints: one link per direction, emulated by `sim/` or real."""

from dataclasses import dataclass

from runner.model.impairments import NO_LINK_IMPAIRMENTS, NO_PATH_IMPAIRMENTS, LinkImpairments, PathImpairments

IP_PACKET = 1500  # bytes: the MTU of every emulated link


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The buffer in front of a link. Exactly one of the fields is set; `bdp` is resolved by `Scenario.queue_bytes`."""

    packets: int | None = None
    bytes: int | None = None
    bdp: float | None = None  # in bandwidth-delay products of the forward link: RTT × forward data rate

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.packets, self.bytes, self.bdp)) != 1:
            raise ValueError("a queue is given in packets, in bytes or in BDP: exactly one of them")


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction. Data rate in bit/s of IP packets, delay one-way in seconds, loss as a fraction of UDP packets."""

    data_rate: int
    delay: float
    queue: Queue
    loss: float = 0.0
    impairments: LinkImpairments = NO_LINK_IMPAIRMENTS

    def __post_init__(self) -> None:
        if self.data_rate <= 0 or self.delay < 0 or not 0 <= self.loss <= 1:
            raise ValueError("a link has a data rate above 0 bit/s, a delay of at least 0 s, a loss of 0 to 1")


@dataclass(frozen=True, kw_only=True)
class RealScenario:
    """A pair of real links: what was bought. Which terminal it is, links.json says. Data rates in bit/s."""

    name: str
    forward_rate: int
    return_rate: int
    source: str

    @property
    def rtt(self) -> float:
        """Unknown, 0: each job measures it."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An emulated pair of links. `forward` carries the download towards the client, `return_` the ACKs."""

    name: str
    forward: Link
    return_: Link
    source: str  # where the parameters come from: thesis table, draft, public runner
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS

    @property
    def rtt(self) -> float:
        """Seconds for an empty link: both one-way delays, without serialisation."""
        return self.forward.delay + self.return_.delay

    @property
    def bdp(self) -> float:
        """Bandwidth-delay product in bytes: RTT × forward data rate."""
        return self.rtt * self.forward.data_rate / 8

    def queue_packets(self, link: Link) -> int:
        """The queue of `link` in packets of 1500 B, the unit that published matrices use."""
        queue = link.queue
        if queue.packets is not None:
            return queue.packets
        size = queue.bytes if queue.bytes is not None else (queue.bdp or 0) * self.bdp
        return max(1, round(size / IP_PACKET))
