"""Links, declared, emulated or real: segments with two directions, impairments, tariff, topology, observations. SI
units."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from runner.model.stack import BOXES, BesideRole, Box, Middlebox, Role, same_fields
from runner.units import format_count, format_data_rate, format_duration, format_size

# Impairments of a link besides delay, queueing and random loss. The simulator's configuration has the same names, and
# sim/README.md describes each field. A new impairment needs a field here, a class in sim/src/impairments.cc, and a
# counter in DirectionTruth (model/result.py).

# Units of fields, and the largest values that the simulator accepts.
FRACTION = {"unit": "fraction", "largest": 1.0}
DELAY = {"unit": "seconds", "largest": 60.0}
TIME = {"unit": "seconds", "largest": 86_400.0}
PACKETS = {"unit": "packets", "largest": 1_000_000.0}
LEAST_MTU, LARGEST_MTU = 100, 65_535  # bytes
LEAST_RATE, LARGEST_RATE = 1_000, 10_000_000_000  # bit/s, of the simulator
LARGEST_DELAY = 60.0  # s
LEAST_SUPERFRAME = 0.001  # s


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


class LinkChange(NamedTuple):
    """New values of one direction, from `time` seconds after the link's first UDP packet on (over TCP: its first
    packet). In JSON it is the list of its values, or an object. It is a tuple, because a trace has thousands of
    them."""

    time: float
    delay: float  # one-way delay, seconds
    data_rate: int  # bit/s; 0: packets wait
    loss: float = 0.0
    handover: bool = False  # losses count as lost in a handover

    @property
    def problem(self) -> str:
        """What is wrong with the values; empty when they are in their ranges."""
        limits = (("time", 86_400.0), ("delay", LARGEST_DELAY), ("data_rate", LARGEST_RATE), ("loss", 1.0))
        for name, largest in limits:
            value = getattr(self, name)
            if not 0 <= value <= largest:
                return f"{name} of a change is 0 to {largest:g}, not {value:g}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Dama(_InUnits):
    """Demand assignment of a DVB-RCS2 return link (ETSI EN 301 545-2): a terminal sends only in capacity that it was
    granted, which it must ask for. Capacities are bit/s of IP packets, at most the direction's data rate.

    The terminal asks once per `superframe` (seconds), and a grant begins `grant_delay` seconds later. `cra`: capacity
    that is granted without a request. `rbdc`: the largest rate that is granted as packets arrived. `vbdc`: True: the
    bytes that wait are granted, too.
    """

    superframe: float = field(metadata=DELAY)
    grant_delay: float = field(metadata=DELAY)
    cra: int = 0
    rbdc: int = 0
    vbdc: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.superframe < LEAST_SUPERFRAME:
            raise ValueError(f"a superframe has at least {LEAST_SUPERFRAME:g} seconds, not {self.superframe:g}")
        if not 0 <= self.cra <= LARGEST_RATE or not 0 <= self.rbdc <= LARGEST_RATE:
            raise ValueError(f"cra and rbdc are data rates from 0 to {LARGEST_RATE} bit/s")
        if not (self.cra or self.rbdc or self.vbdc):
            raise ValueError("a terminal without cra, rbdc and vbdc would never send: give it one of them")


MOST_CHANGES = 200_000  # of a direction in one job: 100 a second for half an hour


@dataclass(frozen=True, kw_only=True)
class LinkImpairments(_InUnits):
    """Impairments of one direction. Fractions are fractions of the UDP packets. `()`, 0 and None switch an impairment
    off. Fields with a unit and one value can also be set with `--link` (runner/plan/links.py).
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
    changes_period: float = 0.0  # seconds after which the changes begin again; 0: they happen once
    changes_start: float | None = 0.0  # seconds of the changes before the first packet; None: the seed chooses
    dama: Dama | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 1 <= first <= last for first, last in self.loss_list):
            raise ValueError("loss_list has the first and the last packet of each range, counted from 1")
        times = [change.time for change in self.changes]
        if times != sorted(times):
            raise ValueError("changes must be in the order of their times")
        if problem := next((change.problem for change in self.changes if change.problem), ""):
            raise ValueError(problem)
        if self.changes_period and self.changes and times[-1] >= self.changes_period:
            raise ValueError(f"changes_period must be more than {times[-1]:g}, the time of the last change")
        if self.changes_start is None and not self.changes_period:
            raise ValueError("changes_start can only be null, for a start that the seed chooses, with a changes_period")

    @property
    def have_chance(self) -> bool:
        """True when the seed decides what happens to packets."""
        by_chance = self.gilbert_elliott or self.corruption or self.jitter or self.reorder
        return bool(by_chance or self.changes_start is None or any(change.loss for change in self.changes))

    def begun(self, seed: int) -> "LinkImpairments":
        """These impairments with the start of the changes that the seed chooses."""
        if self.changes_start is not None:
            return self
        return replace(self, changes_start=round(Random(seed).uniform(0.0, self.changes_period), 6))

    def unrolled(self, seconds: float) -> "LinkImpairments":
        """The same impairments with `changes` that happen once: those of the first `seconds` after the first packet, at
        most MOST_CHANGES of them."""
        start, period = self.changes_start or 0.0, self.changes_period
        if not start and not period:
            return self
        unrolled: list[LinkChange] = []
        # The turn whose last change holds at the first packet. A stranger's file may have any numbers.
        first = int(min(start / period, 1e15)) - 1 if period else 0
        last = int(min((start + seconds) / period, 1e15)) if period else 0
        for turn in range(first, min(last, first + MOST_CHANGES // max(1, len(self.changes))) + 1):
            for change in self.changes:
                time = change.time + turn * period - start
                if time <= 0:
                    unrolled = [change._replace(time=0.0)]
                elif time <= seconds:
                    unrolled.append(change._replace(time=round(time, 9)))
        return replace(self, changes=tuple(unrolled), changes_period=0.0, changes_start=0.0)

    def sentences(self) -> Iterator[str]:
        """A phrase for each impairment, for people."""
        if self.loss_list:
            numbers = (f"{first}" if first == last else f"{first} to {last}" for first, last in self.loss_list)
            yield f"packets {', '.join(numbers)} lost"
        if self.gilbert_elliott:
            to_bad, to_good = self.gilbert_elliott
            yield f"loss in bursts (Gilbert-Elliott {to_bad:g}, {to_good:g})"
        if self.corruption:
            yield f"{100 * self.corruption:g} % corrupted"
        if self.burst:
            yield f"at most {self.burst} in a row"
        if self.jitter:
            yield f"jitter {self.jitter * 1e3:g} ms"
        if self.reorder:
            yield f"{100 * self.reorder:g} % held back by {self.reorder_delay * 1e3:g} ms"
        if self.mark_packets:
            yield f"CE from {self.mark_packets} waiting packets"
        if self.changes:
            repeated = f", again and again after {self.changes_period:g} s" if self.changes_period else ""
            yield f"{format_count(len(self.changes), 'change')} over {self.changes[-1].time:g} s{repeated}"
        if self.dama:
            yield (
                f"capacity on demand: a request every {self.dama.superframe * 1e3:g} ms, its grant "
                f"{self.dama.grant_delay * 1e3:g} ms later, {format_data_rate(self.dama.cra)} without a request"
            )


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


# A real link: the hosts at its ends, its tariff, and the observations during a job. SI units.

LINK_DOWN = "link"  # error code of a job whose link did not carry it; no stack is at fault


@dataclass(frozen=True, kw_only=True)
class RemoteHost:
    """A host with a Docker Engine that is reached over SSH. `host_key`: in the format of OpenSSH, `type base64`."""

    name: str
    user: str
    address: str
    port: int
    host_key: str
    key: Path | None  # the private key; None: the SSH agent has the key
    docker_socket: str = "/var/run/docker.sock"
    roles: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)


@dataclass(frozen=True, kw_only=True)
class RealLink:
    """One entry of links.json. Data rates are in bit/s, as advertised; volumes are in bytes. When `server` is None, the
    server runs on this host."""

    name: str
    client: RemoteHost
    server: RemoteHost | None
    forward_rate: int
    return_rate: int
    interface: str = ""  # interface of the client's host; empty: the interface that leads to the server
    server_interface: str = ""
    server_addresses: tuple[str, ...] = ()  # candidates; empty: every address of the server's host
    families: tuple[int, ...] = (4, 6)
    udp_port: int = 443
    probe_port: int = 57833
    provider: str = ""
    tariff: str = ""
    budget_day: int | None = None
    budget_month: int | None = None
    quiet_hours: tuple[str, ...] = ()  # `18:00-23:00`, local time of this host
    ssh_over_link: bool = False  # True: SSH to the client's host crosses the link, so the bytes of SSH count, too
    abbreviation: str = ""
    timeout: float = 120.0  # time-out of a measurement, in seconds
    iterations: int = 5
    comment: str = ""  # weather, dish, works on the roof: copied into every job

    @property
    def hosts(self) -> tuple[RemoteHost, ...]:
        """The remote hosts, the client's first."""
        return (self.client,) if self.server is None else (self.client, self.server)


@dataclass(frozen=True, kw_only=True)
class RealLinkRecord:
    """The record of a real link in `run.json`. It identifies the link and has no secrets."""

    name: str
    client: str  # name of the client's host
    server: str  # name of the server's host; empty: the runner's host
    provider: str
    tariff: str
    udp_port: int
    families: tuple[int, ...]

    @classmethod
    def of(cls, link: RealLink) -> "RealLinkRecord":
        ends = {"client": link.client.name, "server": link.server.name if link.server else ""}
        return cls(**same_fields(cls, link) | ends)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The difference of the two hosts' clocks: client's clock − server's clock = `offset` + `drift` · (t − `at`).

    It is estimated from the exchanges with the smallest RTTs, as NTP does (RFC 5905 §10). `uncertainty` assumes that
    both directions of an idle link have the same delay. Without this assumption, the error is at most `bound`, which is
    half of the smallest RTT.
    """

    offset: float
    drift: float  # seconds per second; 0 when the time between the exchanges is too short to measure it
    at: float  # seconds since 1970, server's clock
    uncertainty: float
    bound: float
    exchanges: int  # number of exchanges behind the estimate

    def server_time(self, time: float) -> float:
        """The time on the server's clock when the client's clock shows `time`."""
        return self.at + (time - self.at - self.offset) / (1 + self.drift)

    def ahead(self, time: float) -> float:
        """The seconds by which the client's clock is ahead when the server's clock shows `time`."""
        return self.offset + self.drift * (time - self.at)


@dataclass(frozen=True, kw_only=True)
class Probing:
    """The results of the probes in one phase of a job. Times are in seconds; None: no probe was answered."""

    sent: int
    received: int
    rtt_min: float | None = None
    rtt_median: float | None = None
    rtt_max: float | None = None
    longest_gap: float = 0.0  # longest time without an answered probe in the phase

    @property
    def loss(self) -> float:
        """Fraction of the probes that were not answered."""
        return 1 - self.received / self.sent if self.sent else 0.0


@dataclass(frozen=True, kw_only=True)
class RealLinkEvidence:
    """The observations of a real link during a job."""

    name: str
    server_address: str
    family: int
    interface: str  # interface of the client's host
    udp_port: int
    translated: bool | None = None  # True: the client is behind a NAT; None: unknown
    clock: Clock | None = None
    before: Probing | None = None
    during: Probing | None = None
    after: Probing | None = None
    probe_data_rate: float = 0.0  # bit/s of the probes' IP packets in each direction; no number includes them
    volume: int = 0  # bytes of IP packets in both directions that are charged to this job
    comment: str = ""


DROP_TAIL = "drop-tail"
DISCIPLINES = (DROP_TAIL, "codel", "fq-codel", "dualpi2")
"""The disciplines of the simulator's queues. All but the first mark ECT packets with CE before they drop packets."""


# A link, emulated or real: one or more segments with two directions each. SI units.

IP_PACKET = 1500  # bytes: the MTU of every emulated link
LARGEST_QUEUE = 1_000_000  # packets
_STRICT = {"extra": "forbid"}  # pydantic: unknown fields are errors


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The declared queue at the start of a direction. Exactly one of its three lengths is set."""

    packets: int | None = None
    bytes: int | None = None
    bdp: float | None = None  # bandwidth-delay products of the segment: its RTT × its forward data rate
    discipline: str = DROP_TAIL

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        lengths = [value for value in (self.packets, self.bytes, self.bdp) if value is not None]
        if len(lengths) != 1 or not lengths[0] > 0:
            raise ValueError("a queue is given in packets, in bytes or in BDP: exactly one of them, above 0")
        if self.discipline not in DISCIPLINES:
            raise ValueError(f"there is no queue discipline '{self.discipline}': {', '.join(DISCIPLINES)}")

    def in_packets(self, bdp: float) -> int:
        """The queue in packets of 1500 B, which is the unit in published matrices. `bdp`: bytes. Raises ValueError."""
        size = self.bytes if self.bytes is not None else (self.bdp or 0) * bdp
        packets = self.packets or max(1, round(size / IP_PACKET))
        if packets > LARGEST_QUEUE:
            raise ValueError(f"a queue has at most {LARGEST_QUEUE} packets")
        return packets


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One declared direction of a segment: data rate of IP packets in bit/s, one-way delay in seconds, loss as a
    fraction."""

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


@dataclass(frozen=True, kw_only=True)
class LinkParameters:
    """One direction of a segment, in SI units; the queue is in packets of 1500 B.

    A real link has its advertised data rate. Its delay, queue and loss are unknown before a job, and are 0 here.
    """

    data_rate: int
    delay: float
    queue_packets: int
    loss: float
    queue_discipline: str = DROP_TAIL
    impairments: LinkImpairments = NO_LINK_IMPAIRMENTS

    @property
    def is_real(self) -> bool:
        """True for a real link. Its queue is 0; an emulated link always has a queue."""
        return self.queue_packets == 0

    def facts(self) -> list[str]:
        """The parameters for people: all of an emulated link, the advertised data rate of a real link."""
        if self.is_real:
            return [f"{format_data_rate(self.data_rate)} advertised", "real link"]
        discipline = f", {self.queue_discipline}" if self.queue_discipline != DROP_TAIL else ""
        return [
            format_data_rate(self.data_rate),
            f"{format_duration(self.delay)} one way",
            f"queue {self.queue_packets:,} packets{discipline}",
            f"{100 * self.loss:g} % loss" if self.loss else "no loss",
            *self.impairments.sentences(),
        ]

    @property
    def is_clean(self) -> bool:
        """True when no packet is lost or changed on purpose. Parameters that change over time, as over a LEO satellite,
        are allowed."""
        steady = replace(self.impairments, changes=(), changes_period=0.0, changes_start=0.0, dama=None)
        lossless = not self.loss and not any(change.loss for change in self.impairments.changes)
        return lossless and steady == NO_LINK_IMPAIRMENTS

    @property
    def has_chance(self) -> bool:
        """True when the seed decides what happens to a packet."""
        return bool(self.loss or self.impairments.have_chance)

    def steps(self, begin: float) -> Iterator[tuple[float, float, int]]:
        """Start, end and data rate of each time with one data rate, from `begin` seconds after the link's first packet
        on. The last end is infinity."""
        start, rate = begin, self.data_rate
        for change in self.impairments.changes:
            if change.time > start:
                yield start, change.time, rate
                start = change.time
            rate = change.data_rate
        yield start, math.inf, rate

    def mean_rate(self, begin: float, end: float) -> float:
        """The mean data rate in bit/s between these times, in seconds after the link's first packet. It is the data
        rate itself when nothing changes."""
        if not self.impairments.changes or end <= begin:
            return float(self.data_rate)
        return sum((min(stop, end) - start) * rate for start, stop, rate in self.steps(begin) if start < end) / (
            end - begin
        )


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """One segment of a link. `forward` carries the download. `name` is empty when the link has only this segment."""

    name: str = ""
    forward: LinkParameters
    return_: LinkParameters
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS

    @classmethod
    def declared(
        cls, forward: Direction, return_: Direction, impairments: PathImpairments = NO_PATH_IMPAIRMENTS
    ) -> "SegmentRecord":
        """The segment of a declaration. Raises ValueError for a queue that is too long."""
        bdp = (forward.delay + return_.delay) * forward.data_rate / 8  # bytes
        ways = (
            LinkParameters(
                data_rate=way.data_rate,
                delay=way.delay,
                queue_packets=way.queue.in_packets(bdp),
                queue_discipline=way.queue.discipline,
                loss=way.loss,
                impairments=way.impairments,
            )
            for way in (forward, return_)
        )
        return cls(forward=next(ways), return_=next(ways), impairments=impairments)

    @property
    def mirrored(self) -> "SegmentRecord":
        """The same segment as the other end sees it: `forward` carries an upload."""
        return replace(self, forward=self.return_, return_=self.forward)

    @property
    def is_clean(self) -> bool:
        """True when no packet is lost or changed on purpose."""
        return self.forward.is_clean and self.return_.is_clean and self.impairments == NO_PATH_IMPAIRMENTS


_BESIDES_CLIENT = 30.0  # s in which a link carries packets before and after the client's time


@dataclass(frozen=True, kw_only=True)
class LinkRecord:
    """A link with its segments, beginning at the client: one, or the satellite's and the ground segment. A real link
    has one segment with advertised data rates; `real` is set when a run has chosen the hosts at its ends.

    `note` is shown with the link. `source`: the source of the parameters, such as a table of a thesis.
    """

    name: str
    segments: tuple[SegmentRecord, ...]
    note: str = ""
    real: RealLinkRecord | None = None
    source: str = field(default="", compare=False)

    def facts(self) -> Iterator[tuple[str, list[str]]]:
        """The name of each direction of each segment with its parameters, and the impairments of both directions
        together."""
        for segment in self.segments:
            name = f"{segment.name} " if segment.name else ""
            yield f"{name}forward", segment.forward.facts()
            yield f"{name}return", segment.return_.facts()
            if both := list(segment.impairments.sentences()):
                yield f"{name}both", both

    @classmethod
    def single(
        cls,
        name: str,
        forward: LinkParameters,
        return_: LinkParameters,
        impairments: PathImpairments = NO_PATH_IMPAIRMENTS,
        *,
        source: str = "",
    ) -> "LinkRecord":
        return cls.of(name, [SegmentRecord(forward=forward, return_=return_, impairments=impairments)], source=source)

    @classmethod
    def declared(
        cls, name: str, *, forward: Direction, return_: Direction, source: str = "", note: str = ""
    ) -> "LinkRecord":
        """A declared link of one segment."""
        return cls.of(name, [SegmentRecord.declared(forward, return_)], source=source, note=note)

    @classmethod
    def of(cls, name: str, segments: Sequence[SegmentRecord], *, source: str = "", note: str = "") -> "LinkRecord":
        """A link of one segment, or of two, which get names."""
        names = ("satellite", "ground") if len(segments) > 1 else ("",)
        named = tuple(replace(segment, name=own) for segment, own in zip(segments, names, strict=True))
        return cls(name=name, segments=named, source=source, note=note)

    @classmethod
    def advertised(cls, name: str, forward_rate: int, return_rate: int, *, source: str = "") -> "LinkRecord":
        """A real link, of which only the advertised data rates (bit/s) are known before a job."""
        forward, return_ = (
            LinkParameters(data_rate=rate, delay=0.0, queue_packets=0, loss=0.0) for rate in (forward_rate, return_rate)
        )
        return cls.single(name, forward, return_, source=source)

    @property
    def is_real(self) -> bool:
        return self.satellite.forward.is_real

    @property
    def is_clean(self) -> bool:
        """True when no packet is lost or changed on purpose."""
        return all(segment.is_clean for segment in self.segments)

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
    def repeats(self) -> bool:
        """True when the changes of a direction begin again and again."""
        return any(way.impairments.changes_period for each in self.segments for way in (each.forward, each.return_))

    def begun(self, seed: int, timeout: float) -> "LinkRecord":
        """The link as a job with this seed and time-out (seconds) meets it: the changes that repeat are written out."""
        segments = []
        for number, segment in enumerate(self.segments):
            forward, return_ = (
                replace(way, impairments=way.impairments.begun(seed ^ number).unrolled(timeout + _BESIDES_CLIENT))
                for way in (segment.forward, segment.return_)
            )
            segments.append(replace(segment, forward=forward, return_=return_))
        return replace(self, segments=tuple(segments))

    @property
    def base_name(self) -> str:
        """The name without an added loss, such as `geo` for `geo+loss=0.01`."""
        return self.name.partition("+loss=")[0]


# The observations of a real link during a job, in sentences.


def real_link_sentences(link: RealLinkEvidence) -> Iterator[str]:
    """Lines about route, clocks, probes and comment. Each line begins with its topic, padded to 9 characters."""
    nat = {True: ", behind a NAT", False: ", no NAT", None: ""}[link.translated]
    where = f"{link.server_address} UDP port {link.udp_port} over {link.interface}{nat}"
    yield f"way      {where}, {format_size(link.volume)} charged"
    if link.clock is not None:
        yield f"clock    {_clock(link.clock)}"
    for name, phase in (("before", link.before), ("during", link.during), ("after", link.after)):
        if phase is not None:
            yield f"{name:<9}{_probing(phase)}"
    yield f"probes   {format_data_rate(link.probe_data_rate)} each way during the transfer; no number includes them"
    if link.comment:
        yield f"comment  {link.comment}"


def _clock(clock: Clock) -> str:
    ahead = f"the client's is {clock.offset * 1e3:+.2f} ms ahead"
    drift = f", drift {clock.drift * 1e6:+.1f} ppm" if clock.drift else ""
    sure = f"± {clock.uncertainty * 1e3:.2f} ms if both ways have equal delays, ± {clock.bound * 1e3:.0f} ms at most"
    return f"{ahead}{drift}, {sure}; {clock.exchanges} exchanges"


def _probing(phase: Probing) -> str:
    lost = f"{phase.sent - phase.received} of {phase.sent} probes lost"
    if phase.rtt_min is None or phase.rtt_median is None or phase.rtt_max is None:
        return lost
    rtts = ", ".join(f"{1e3 * rtt:.1f}" for rtt in (phase.rtt_min, phase.rtt_median, phase.rtt_max))
    return f"RTT {rtts} ms (min, median, max), {lost}"


# The part of a plan that runs over one real link: its volume, the link's budgets, and its end.


@dataclass(frozen=True, kw_only=True)
class LinkPlan:
    """The part of a plan that runs over one link and begins now. Volumes are bytes of IP packets in both directions.
    `seconds`: the time of the jobs, without quiet hours and waiting for budgets."""

    link: RealLink
    jobs: int
    volume: int
    seconds: float
    spent_day: int
    spent_month: int
    begins: datetime
    ends: datetime | None  # the end of the last job; None: the plan never fits into the budgets
    first_day: int  # number of jobs until a budget ends the run for the first time
    broken: str  # the budget that ends the run first, "day" or "month"; empty: the budgets are large enough
    pauses: bool  # True: quiet hours interrupt the plan
    calls: int  # number of necessary calls of `run`: a used-up budget ends a call

    @property
    def sentences(self) -> Iterator[str]:
        """Warnings for the user: a budget that is too small for the plan, quiet hours of the link."""
        name, link = self.link.name, self.link
        if self.broken:
            budget = (link.budget_day if self.broken == "day" else link.budget_month) or 0
            which = f"budget_per_{self.broken}"
            holds = f"{name}: {which} ({format_size(budget)}) is enough for {self.first_day} of {self.jobs} jobs"
            how = f"raise {which} in links.json"
            if self.ends is None:
                yield f"{holds}, and a single job needs more: {how}."
            else:
                yield (
                    f"{holds} now, then the run ends. Continue it with the same command, {self.calls - 1} times, until "
                    f"{_moment(self.ends)}; or {how}."
                )
        if self.pauses and self.ends is not None:
            hours = " and ".join(link.quiet_hours)
            yield f"{name}: if it begins now, its jobs pause in the quiet hours {hours} and end {_moment(self.ends)}."


def _moment(moment: datetime) -> str:
    return f"on {moment:%A %d %B} at {moment:%H:%M}"


# The topology between client and server as data: the segments of a link and the places of boxes.
#
# client ── sim ── server                                                one segment
# client ── [terminal] ── sim ── [gateway] ── server                     one segment with boxes
# client ── [terminal] ══ sim ══ [gateway] ── ground ── server           two segments, with or without boxes
#
# The client of a second flow is connected to the terminal, and its server to the gateway. Each has its own network.

CLIENT, SERVER = "client", "server"
SATELLITE, GROUND = "sim", "ground"  # names of the segments' containers and folders
TERMINAL, GATEWAY = (box.value for box in BOXES)  # names of the routers, in which the boxes' containers run

Hop = tuple[str, str]  # two neighbours in the network: nodes, or a node and a segment
_DIRECT = (CLIENT, SATELLITE, SERVER)
_BESIDE: tuple[Hop, ...] = ((BesideRole.CLIENT, TERMINAL), (GATEWAY, BesideRole.SERVER))


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The topology of a job. `link` has one or two segments. When `middlebox` is None, routers only forward packets.
    `beside`: True when a second flow shares the satellite segment.
    """

    link: LinkRecord
    middlebox: Middlebox | None = None
    beside: bool = False

    @property
    def routed(self) -> bool:
        """True when routers connect client and server to the link. Otherwise client and server are directly on it."""
        return self.middlebox is not None or len(self.link.segments) > 1 or self.beside

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The places at which the middlebox has a container."""
        return self.middlebox.boxes if self.middlebox is not None else ()

    @property
    def poses_as_server(self) -> bool:
        """True when a middlebox ends TLS connections in the server's name; its boxes then need the certificates."""
        return self.middlebox is not None and self.middlebox.poses_as_server

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have their own network, from the client to the server, then the nodes of the second flow. The
        segments are not included."""
        if not self.routed:
            return (CLIENT, SERVER)
        return (CLIENT, *(box.value for box in BOXES), SERVER, *(role.value for role in BesideRole if self.beside))

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The neighbours in the network, from the client to the server, then those of the second flow."""
        if not self.routed:
            return tuple(pairwise(_DIRECT))
        chain = (CLIENT, TERMINAL, SATELLITE, GATEWAY, *tuple(self.segments)[1:], SERVER)
        return (*pairwise(chain), *(_BESIDE if self.beside else ()))

    @property
    def captured_endpoints(self) -> tuple[str, ...]:
        """The endpoints at which packets are captured, in addition to both ends of every segment. With routers these
        are client and server, because a middlebox may hide their packets on the link."""
        return (CLIENT, SERVER) if self.routed else ()

    @property
    def segments(self) -> dict[str, SegmentRecord]:
        """The segments by the name of their container, the client's first."""
        return dict(zip((SATELLITE, GROUND), self.link.segments, strict=False))
