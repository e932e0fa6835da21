"""Judges downloads, page loads, and how a job's flow and the second flow shared the satellite segment."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from runner.decode.capture import TCP, UDP, IpPacket, read_packets
from runner.errors import CaptureError
from runner.inputs.inputs import served
from runner.judge.crossing import Exchange, exchange, fresh
from runner.judge.execution import client_end, disturbed, harness, load_truth, with_record
from runner.judge.readback import BESIDE, addresses, applied_lines
from runner.model.result import DEFINITIONS, Artifacts, Evidence, Finding, Invariant, Outcome, Result, Sample
from runner.model.run import CaseRecord
from runner.model.stack import BOXES, PageLoad, transport_of
from runner.store import runs

_CLOCKS_APART = 0.05  # s, in addition to 2 %: allowed difference between curl's time and the time in the capture


def judge_load(artifacts: Artifacts, record: CaseRecord, result: Result) -> Result:
    """`result` of a download or a page load, judged by the harness, files, objects and times, with its sample."""
    evidence = runs.load_evidence(artifacts)
    if evidence is None:
        return result.ending(Outcome.ERROR, harness("no-evidence", "evidence.json is missing or broken"))
    truths = load_truth(artifacts.link_truth), load_truth(artifacts.ground_truth)
    result = replace(
        with_record(result, evidence),
        protocol=record.protocol,
        truth=truths[0],
        ground=truths[1],
        applied=applied_lines(artifacts, BOXES),
    )
    if evidence.error:
        return result.ending(*failed_set_up(evidence, record))
    try:
        counted, captured = counted_exchange(artifacts, record)
    except CaptureError as error:
        return result.ending(Outcome.ERROR, harness("no-capture", str(error)))
    measured = _measured(artifacts)
    page = _page(measured, record, evidence) if record.page else None
    result = replace(
        result,
        page=page,
        sample=_sample(counted, measured, record, page),
        invariants=tuple(_invariants(counted, measured, record)),
    )
    for truth in truths[: len(record.link.segments)]:
        if disturbance := disturbed(evidence, truth, record):
            return result.ending(Outcome.ERROR, harness("disturbed", disturbance.why))
    if contradicted := tuple(_contradicted(result.invariants)):
        return result.ending(Outcome.ERROR, *contradicted)
    if failures := (*client_end(evidence, record, artifacts), *_incomplete(page, evidence)):
        return result.ending(Outcome.FAILED, *failures)
    lack = _unrecorded(captured, evidence, record)
    return result.ending(Outcome.ERROR, harness("disturbed", lack)) if lack else result


def _unrecorded(captured: int, evidence: Evidence, record: CaseRecord) -> str:
    """What the client's capture lacks by the files that arrived, as a sentence; empty when it can hold all packets. A
    browser that loads a page again may have its files from its cache. `captured`: bytes of IP packets."""
    received = 0 if record.page and record.warm else sum(file.size for file in evidence.files if file.equal)
    if captured >= received:
        return ""
    return f"the capture at the client has {captured} B of packets, but the client received {received} B of files"


def failed_set_up(evidence: Evidence, record: CaseRecord) -> tuple[Outcome, Finding]:
    """Outcome and finding of an error during set-up. A middlebox that doesn't get ready over a lossy link has failed;
    every other error is the harness's fault."""
    code, message = evidence.error["code"], evidence.error["message"]
    if code == "box-not-ready" and (record.forward.loss or record.return_.loss):
        finding = Finding(
            code=code,
            requirement="A middlebox gets ready although the link loses packets.",
            expected="both boxes ready in time",
            actual=message,
        )
        return Outcome.FAILED, finding
    return Outcome.ERROR, harness(code, message)


def counted_exchange(artifacts: Artifacts, record: CaseRecord) -> tuple[Exchange, int]:
    """The traffic between client and server in the client's capture, and the bytes of all IP packets in the capture.
    Traffic of a warm-up is left out. Raises CaptureError."""
    _, at_client = read_packets(artifacts.client_capture)
    client, server = addresses(record.host, at_client)
    began = _began(artifacts) if record.warm else -inf
    measured = [packet for packet in at_client if packet.time >= began]
    return exchange(measured, client, server), sum(packet.length for packet in measured)


def _began(artifacts: Artifacts) -> float:
    """The time when the measured transfer began, after the warm-up, in seconds since 1970; infinity when it did not
    begin."""
    try:
        return float((artifacts.folder / "client" / "began").read_text())
    except (OSError, ValueError):
        return inf


def _measured(artifacts: Artifacts) -> dict[str, Any]:
    """The numbers that the client itself recorded; empty when the client recorded none."""
    try:
        document = json.loads((artifacts.folder / "client" / "workload.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _page(measured: dict[str, Any], record: CaseRecord, evidence: Evidence) -> PageLoad:
    objects = measured.get("objects") or []
    return PageLoad(
        response_start=_seconds(measured.get("responseStart")),
        first_contentful_paint=_seconds(measured.get("firstContentfulPaint")),
        load=_seconds(measured.get("load")),
        completed=sum(object_.get("status") == 200 and "end" in object_ for object_ in objects),
        attempted=len(served(record, evidence.content_seed or 0)),
    )


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1e3 if isinstance(milliseconds, int | float) and milliseconds > 0 else None


def _sample(counted: Exchange, measured: dict[str, Any], record: CaseRecord, page: PageLoad | None) -> Sample:
    """The job's numbers. Times of a page begin at the start of the navigation. Times of a download begin at curl's
    start; only the TTLB over TCP comes from the capture and begins at the client's first packet."""
    size = sum(record.file_sizes)
    if page is not None:
        return Sample(file_size=size, definitions=DEFINITIONS, ttfb=page.response_start, ttlb=page.load)
    quic = transport_of(record.protocol) == "udp"  # the last packets of HTTP/3 may carry no content
    sample = Sample(
        file_size=size,
        definitions=DEFINITIONS,
        handshake_time=_curl(measured, "time_appconnect") or _curl(measured, "time_connect"),
        ttfb=_curl(measured, "time_starttransfer"),
        ttlb=_curl(measured, "time_total") if quic else counted.last,
    )
    return sample.completed(record.forward.data_rate)


def _curl(measured: dict[str, Any], name: str) -> float | None:
    value = measured.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _invariants(counted: Exchange, measured: dict[str, Any], record: CaseRecord) -> Iterator[Invariant]:
    if record.page or transport_of(record.protocol) == "udp":
        return
    client_time, captured = _curl(measured, "time_total"), counted.last
    holds = abs(client_time - captured) <= _CLOCKS_APART + 0.02 * captured if client_time and captured else None
    yield Invariant(
        name="client-clock",
        holds=holds,
        expected="curl's time for the transfer equals the time in the client's capture, within 50 ms + 2 %",
        actual=f"curl {client_time} s, capture {captured} s",
    )


def _contradicted(invariants: Iterable[Invariant]) -> Iterator[Finding]:
    """Findings about numbers that contradict each other. Then the job's numbers don't count."""
    for invariant in invariants:
        if invariant.holds is False:
            yield harness(invariant.name, f"expected: {invariant.expected}; actual: {invariant.actual}")


def _incomplete(page: PageLoad | None, evidence: Evidence) -> Iterator[Finding]:
    for file in evidence.files:
        if not file.equal:
            yield Finding(
                code="file-differs",
                requirement="A downloaded file equals the file on the server.",
                expected=f"{file.size} B of {file.name}",
                actual="no file" if file.received is None else f"{file.received} B with other content",
            )
    if page is not None and (page.completed < page.attempted or page.load is None):
        yield Finding(
            code="page-incomplete",
            requirement="The page and all its objects load.",
            expected=f"{page.attempted} objects and the load event",
            actual=f"{page.completed} objects, {'no load event' if page.load is None else 'the load event'}",
        )


# Measures how a job's flow and the second flow shared the satellite segment, in the capture at its client's end.
# Addresses and ports distinguish the flows. `runner/model/numbers.toml` defines the numbers.

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


def judge_sharing(artifacts: Artifacts, record: CaseRecord, result: Result) -> Result:
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


def downloads(packets: Iterable[IpPacket], ends: tuple[bytes, bytes]) -> list[IpPacket]:
    """The packets with payload from the server to the client. `ends`: addresses of the client and the server."""
    client, server = ends
    return [
        packet
        for packet in packets
        if packet.source == server and packet.destination == client and packet.protocol in (TCP, UDP) and packet.payload
    ]


def shared(flow_own: Sequence[IpPacket], beside: Sequence[IpPacket]) -> Sharing | None:
    """The sharing of the link from the later beginning to the earlier end of two downloads. None when this time is too
    short."""
    if not flow_own or not beside:
        return None
    begin = max(flow[0].time_ns for flow in (flow_own, beside))
    end = min(flow[-1].time_ns for flow in (flow_own, beside))
    if end - begin < _LEAST_SHARED * 1e9:
        return None
    first, second = ([packet for packet in flow if begin <= packet.time_ns <= end] for flow in (flow_own, beside))
    arrived = fresh(sorted(beside, key=lambda packet: packet.time_ns))
    return Sharing(
        time=(end - begin) / 1e9,
        own=sum(packet.length for packet in first),
        beside=sum(packet.length for packet in second),
        beside_new=sum(new for packet, new in arrived if begin <= packet.time_ns <= end),
    )
