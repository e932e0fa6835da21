"""Measures how a job's flow and the second flow shared the satellite segment, in the capture at its client's end.
Addresses and ports distinguish the flows. `runner.model.numbers` defines the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runner.decode.ip_packets import TCP, UDP, Packet, offsets, read_packets
from runner.errors import CaptureError
from runner.judge.ends import BESIDE, addresses
from runner.judge.harness import harness
from runner.judge.judge import JudgedJob
from runner.model.artifacts import Artifacts
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord

_LEAST_SHARED = 1.0  # seconds: in a shorter time, slow start decides the shares


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Two flows in their common time. `time`: the common time in seconds. `own`, `beside`: bytes of IP packets of the
    job's flow and of the second flow, at the client's end of the link. `beside_new`: bytes of TCP or UDP payload of the
    second flow that arrived for the first time."""

    time: float
    own: int
    beside: int
    beside_new: int

    @property
    def share(self) -> float:
        """The fraction of all bytes that belongs to the job's flow, 0 to 1."""
        return self.own / (self.own + self.beside)

    @property
    def fairness(self) -> float:
        """Jain's fairness index of both data rates: 1 for equal data rates, 0.5 when only one flow has data."""
        return (self.own + self.beside) ** 2 / (2 * (self.own**2 + self.beside**2))


class BesideJudge:
    """Judges how the job's flow and the second flow shared the link."""

    def judge(self, judged: JudgedJob, result: Result) -> Result:
        """`result` with the numbers of both flows; an error when the flows had too little common time."""
        return beside_verdict(judged.artifacts, judged.record, result)


def beside_verdict(artifacts: Artifacts, record: CaseRecord, result: Result) -> Result:
    """`result` with the numbers of both flows; an error when the flows had too little common time."""
    if result.sample is None or result.outcome is not Outcome.SUCCEEDED:
        return result
    try:
        _, packets = read_packets(artifacts.link_captures[0])
    except CaptureError as error:
        return result.ending(Outcome.ERROR, harness("no-capture", str(error)))
    sharing = shared(downloads(packets, addresses(record.host, packets)), downloads(packets, BESIDE))
    if sharing is None:
        why = f"the second flow ({record.beside}) and the job's own flow had less than {_LEAST_SHARED:g} s in common"
        return result.ending(Outcome.ERROR, harness("beside-missing", why))
    sample = replace(
        result.sample,
        shared_time=sharing.time,
        bottleneck_share=sharing.share,
        beside_goodput=8 * sharing.beside_new / sharing.time,
        fairness=sharing.fairness,
    )
    return replace(result, sample=sample)


def downloads(packets: Iterable[Packet], ends: tuple[bytes, bytes]) -> list[Packet]:
    """The packets with payload from the server to the client. `ends`: addresses of the client and the server."""
    client, server = ends
    return [
        packet
        for packet in packets
        if packet.source == server and packet.destination == client and packet.protocol in (TCP, UDP) and packet.payload
    ]


def shared(flow_own: Sequence[Packet], beside: Sequence[Packet]) -> Sharing | None:
    """The sharing of the link from the later beginning to the earlier end of two downloads. None when this time is too
    short."""
    if not flow_own or not beside:
        return None
    begin = max(flow[0].time_ns for flow in (flow_own, beside))
    end = min(flow[-1].time_ns for flow in (flow_own, beside))
    if end - begin < _LEAST_SHARED * 1e9:
        return None
    first, second = ([packet for packet in flow if begin <= packet.time_ns <= end] for flow in (flow_own, beside))
    return Sharing(
        time=(end - begin) / 1e9,
        own=sum(packet.length for packet in first),
        beside=sum(packet.length for packet in second),
        beside_new=_new(beside, end) - _new(beside, begin - 1),
    )


def _new(flow: Sequence[Packet], end: int) -> int:
    """Bytes of payload that had arrived until `end` (in ns). A TCP byte that was sent twice counts once."""
    arrived = [packet for packet in flow if packet.time_ns <= end]
    connections: dict[tuple[int, int], list[Packet]] = {}
    for packet in arrived:
        if packet.protocol == TCP:
            connections.setdefault((packet.source_port, packet.destination_port), []).append(packet)
    return sum(packet.payload for packet in arrived if packet.protocol == UDP) + sum(
        map(_covered, connections.values())
    )


def _covered(segments: Sequence[Packet]) -> int:
    """Bytes of the union of all segments of one connection."""
    covered, reached = 0, 0
    for begin, size in sorted(zip(offsets(segments), (segment.payload for segment in segments), strict=True)):
        covered += max(0, begin + size - max(begin, reached))
        reached = max(reached, begin + size)
    return covered
