"""Job over a path + its files → result. Offline: it reads the job's folder and nothing else, and can be repeated."""

import ipaddress
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from runner import store
from runner.config.path_material import PORTS, secret, served
from runner.decode import decode_capture
from runner.decode.ip_packets import TCP, UDP, Packet, read_packets
from runner.errors import CaptureError
from runner.judge.analyse import client_end, harness, with_record
from runner.judge.crossing.connections import Ends, Exchange, connections, exchange
from runner.judge.crossing.eavesdropper import Private, Recorded, sights
from runner.judge.disturbance import disturbed, load_truth
from runner.judge.readback import applied_lines
from runner.model.artifacts import Artifacts, Evidence
from runner.model.job import Job
from runner.model.numbers import DEFINITIONS
from runner.model.path import SIDES, Crossing, PageLoad, PathEntry, Side
from runner.model.result import Finding, Invariant, Outcome, Result, Sample
from runner.model.run import CaseRecord, WorkloadRecord

# Client and server of every lane (contract.md), by the name that was asked for.
_ENDS = {
    "server4": ("193.167.0.100", "193.167.100.100"),
    "server6": ("fd00:cafe:cafe:0::100", "fd00:cafe:cafe:100::100"),
}
TERMINAL, GATEWAY = "10.55.0.100", "10.55.100.100"
_CLOCKS_APART = 0.05  # s by which curl's time and that of the capture may differ, beside 2 %


def analyse_path(job: Job, artifacts: Artifacts, case: object, record: CaseRecord) -> Result:  # noqa: ARG001
    """Judge one job; the result is returned, not stored. `case`: nothing, it stands where pairs have theirs."""
    base = Result.of(job, Outcome.SUCCEEDED)
    evidence, workload = store.load_evidence(artifacts), record.workload
    if evidence is None or evidence.path is None or workload is None:
        if evidence is not None and evidence.error:
            return base.ending(Outcome.ERROR, harness(evidence.error["code"], evidence.error["message"]))
        return base.ending(Outcome.ERROR, harness("no-evidence", "evidence.json is missing or broken"))
    base = replace(
        with_record(base, evidence),
        truth=load_truth(artifacts.link_truth),
        ground=load_truth(artifacts.ground_truth),
        applied=applied_lines(artifacts, SIDES),
    )
    if evidence.error:
        code, message = evidence.error["code"], evidence.error["message"]
        if code == "path-not-ready" and (record.forward.loss or record.return_.loss):
            return base.ending(Outcome.FAILED, _not_ready(message))
        return base.ending(Outcome.ERROR, harness(code, message))
    try:
        seen = _Seen.read(artifacts, record, evidence)
    except CaptureError as error:
        return base.ending(Outcome.ERROR, harness("no-capture", str(error)))
    base = replace(
        base,
        crossing=seen.crossing,
        sample=_sample(seen, record, workload),
        invariants=tuple(_invariants(seen, workload)),
    )
    for truth in (base.truth, base.ground):
        if spoiled := disturbed(evidence, truth, _end_to_end(record, workload)):
            return base.ending(Outcome.ERROR, harness("disturbed", spoiled.why))
    return _verdict(base, seen, evidence, client_end(evidence, record, artifacts), record)


def _verdict(
    base: Result, seen: "_Seen", evidence: Evidence, client_ended: Iterable[Finding], record: CaseRecord
) -> Result:
    """Of a job that nothing disturbed. `client_ended`: what is wrong with the client's end."""
    ended, path = tuple(client_ended), evidence.path
    assert path is not None
    answered = not ended or seen.lan.first is not None  # nothing came: there is nothing of which to prove how it came
    if answered and (unproven := tuple(_unproven(path.entry, seen, record))):
        return base.ending(Outcome.ERROR, *unproven)
    if contradicted := tuple(_contradicted(base.invariants)):
        return base.ending(Outcome.ERROR, *contradicted)
    failures = (*ended, *_incomplete(seen, evidence), *_leaks(evidence, seen))
    return base.ending(Outcome.FAILED, *failures) if failures else base


def _end_to_end(record: CaseRecord, workload: WorkloadRecord) -> CaseRecord:
    """The case with the delays of both segments together: lateness is measured against the RTT that endpoints have."""
    forward = replace(record.forward, delay=record.forward.delay + workload.ground_forward.delay)
    return_ = replace(record.return_, delay=record.return_.delay + workload.ground_return.delay)
    return replace(record, forward=forward, return_=return_)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What the captures and the client's own record show. `lan`: at the client, of the round that counts."""

    lan: Exchange
    crossing: Crossing
    measured: dict[str, Any]

    @classmethod
    def read(cls, artifacts: Artifacts, record: CaseRecord, evidence: Evidence) -> "_Seen":
        """Raises CaptureError when a capture is missing."""
        client, server, terminal, gateway = (
            ipaddress.ip_address(text).packed for text in (*_ENDS[record.host], TERMINAL, GATEWAY)
        )
        workload, path = record.workload, evidence.path
        assert workload is not None and path is not None
        _, at_client = read_packets(artifacts.lan_capture)
        data, on_link = read_packets(artifacts.client_capture)
        _, at_server = read_packets(artifacts.ground_captures[1])
        began = _began(artifacts) if workload.warm else -inf
        lan = exchange((one for one in at_client if one.time >= began), client, server)
        at_all_times = exchange(at_client, client, server)
        files = served(record, path.seed)
        private = Private(
            client=client,
            server=server,
            ports=tuple(PORTS.values()),
            name=record.host,
            url=files[0].name,
            header=secret(path.seed),
            files=tuple(one.content() for one in files),
        )
        measured = _measured(artifacts)
        crossing = Crossing(
            **_split(at_all_times, exchange(on_link, client, server).connections, connections(at_server, idle=True)),
            inner_bytes=_bytes(on_link, client, server),
            outer_bytes=_bytes(on_link, terminal, gateway),
            client_bytes=at_all_times.bytes,
            sights=sights(Recorded(data, on_link, _initial_names(artifacts)), private),
            page=_page(measured, len(files)) if workload.page else None,
        )
        return cls(lan=lan, crossing=crossing, measured=measured)


def _began(artifacts: Artifacts) -> float:
    """When the round that counts began, s since 1970; infinity when it did not."""
    try:
        return float((artifacts.folder / "client" / "began").read_text())
    except (OSError, ValueError):
        return inf


def _initial_names(artifacts: Artifacts) -> frozenset[str]:
    """Server names that QUIC connections on the satellite link ask for."""
    names = decode_capture(artifacts.client_capture).connections.column("sni").to_pylist()
    return frozenset(name for name in names if name)


def _measured(artifacts: Artifacts) -> dict[str, Any]:
    try:
        found = json.loads((artifacts.folder / "client" / "workload.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _split(lan: Exchange, on_link: tuple[Ends, ...], behind: tuple[Ends, ...]) -> dict[str, int]:
    """Where the client's connections ended. Initial sequence numbers are random: the same ones, the same connection.

    Ports prove nothing, for a proxy may open its own connection from another one of the client's. A connection's data
    may have been lost on the way, so it is looked for among all that began.
    """
    at_client, at_server = ({one.initials for one in seen} for seen in (lan.begun, behind))
    return {
        "connections": len(lan.connections),
        "whole": sum(one.initials in at_server for one in lan.connections),
        "on_link": len(on_link),
        "terminal_split": sum(one.initials not in at_client for one in on_link),
        "gateway_split": sum(one.initials not in at_server for one in on_link),
    }


def _bytes(packets: list[Packet], one: bytes, other: bytes) -> int:
    return sum(
        packet.length
        for packet in packets
        if {packet.source, packet.destination} == {one, other} and packet.protocol in (TCP, UDP)
    )


def _page(measured: dict[str, Any], wanted: int) -> PageLoad:
    objects = measured.get("objects") or []
    return PageLoad(
        response_start=_seconds(measured.get("responseStart")),
        first_contentful_paint=_seconds(measured.get("firstContentfulPaint")),
        load=_seconds(measured.get("load")),
        completed=sum(one.get("status") == 200 and "end" in one for one in objects),
        attempted=wanted,
    )


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1e3 if isinstance(milliseconds, int | float) and milliseconds > 0 else None


def _sample(seen: _Seen, record: CaseRecord, workload: WorkloadRecord) -> Sample:
    """Times since the client's first packet; of a page, since the navigation began."""
    size, page = sum(record.file_sizes), seen.crossing.page
    if page is not None:
        return Sample(file_size=size, definitions=DEFINITIONS, ttfb=page.response_start, ttlb=page.load)
    measured, last = seen.measured, seen.lan.last
    if workload.protocol == "h3":  # its last packets may hold no content
        last = _curl(measured, "time_total")
    found = Sample(
        file_size=size,
        definitions=DEFINITIONS,
        handshake_time=_curl(measured, "time_appconnect") or _curl(measured, "time_connect"),
        ttfb=_curl(measured, "time_starttransfer"),
        ttlb=last,
    )
    return found.completed(record.forward.data_rate)


def _curl(measured: dict[str, Any], name: str) -> float | None:
    value = measured.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _invariants(seen: _Seen, workload: WorkloadRecord) -> Iterator[Invariant]:
    if workload.page or workload.protocol == "h3":
        return
    own, captured = _curl(seen.measured, "time_total"), seen.lan.last
    holds = abs(own - captured) <= _CLOCKS_APART + 0.02 * captured if own and captured else None
    yield Invariant(
        name="client-clock",
        holds=holds,
        expected="curl's time of the transfer is that of the capture at the client, within 50 ms and 2 %",
        actual=f"curl {own} s, capture {captured} s",
    )


def _contradicted(invariants: Iterable[Invariant]) -> Iterator[Finding]:
    """Numbers of ours that can't be true together: none of them counts."""
    for one in invariants:
        if one.holds is False:
            yield harness(one.name, f"Expected: {one.expected}. Found: {one.actual}.")


def _not_ready(message: str) -> Finding:
    return Finding(
        code="path-not-ready",
        requirement="A path gets ready over the link that it is for, whatever that loses.",
        expected="both sides ready in time",
        actual=message,
    )


def _unproven(entry: PathEntry, seen: _Seen, record: CaseRecord) -> Iterator[Finding]:
    """Why the captures don't show that the traffic crossed as the path would have carried it. Then nothing counts."""
    assert record.workload is not None
    crossing, tcp = seen.crossing, record.workload.protocol != "h3"
    requirement = f"The traffic of the workload crosses the satellite link through the path {entry.name}."

    def finding(expected: str, actual: str) -> Finding:
        return Finding(code="bypassed", requirement=requirement, expected=expected, actual=actual)

    if tcp and not crossing.connections:
        yield finding("a TCP connection of the client", "none with data in the capture at the client")
        return
    if entry.encrypts:
        if crossing.inner_bytes:
            yield finding(
                "nothing between client and server themselves on the link", f"{crossing.inner_bytes} B of such packets"
            )
        # Less than any compression or lost header could save; and what a proxy sends to the client again didn't cross.
        payload = min(crossing.client_bytes // 2, sum(record.file_sizes))
        if crossing.outer_bytes < payload:
            yield finding(f"at least {payload} B between terminal and gateway", f"{crossing.outer_bytes} B")
    if not tcp:
        return
    if entry.splits and crossing.whole:
        actual = f"{crossing.whole} of {crossing.connections} have the same sequence numbers at client and server"
        yield finding("every TCP connection ends on the way", actual)
    if not entry.splits and crossing.whole < crossing.connections:
        actual = f"{crossing.connections - crossing.whole} of {crossing.connections} have not"
        yield finding("the same sequence numbers at client and server", actual)
    if crossing.on_link:
        for side, number in ((Side.TERMINAL, crossing.terminal_split), (Side.GATEWAY, crossing.gateway_split)):
            wanted = crossing.on_link if side in entry.splits else 0
            if number != wanted:
                yield finding(f"{wanted} of {crossing.on_link} connections end at the {side.value}", f"{number}")


def _incomplete(seen: _Seen, evidence: Evidence) -> Iterator[Finding]:
    for file in evidence.files:
        if not file.equal:
            yield Finding(
                code="file-differs",
                requirement="What is downloaded over a path is what the server has.",
                expected=f"{file.size} B of {file.name}",
                actual="no file" if file.received is None else f"{file.received} B, other content",
            )
    page = seen.crossing.page
    if page is not None and (page.completed < page.attempted or page.load is None):
        yield Finding(
            code="page-incomplete",
            requirement="The page and all its objects load.",
            expected=f"{page.attempted} objects and the load event",
            actual=f"{page.completed} objects, {'no load event' if page.load is None else 'the load event'}",
        )


def _leaks(evidence: Evidence, seen: _Seen) -> Iterator[Finding]:
    assert evidence.path is not None
    if not evidence.path.entry.encrypts:
        return
    for sight in seen.crossing.sights:
        if sight.visible:
            yield Finding(
                code="leak",
                requirement="A path that encrypts shows nothing of the connections inside it.",
                expected=f"no {sight.what} in any captured byte of the satellite link",
                actual=f"{sight.what} {sight.how}, in {sight.times} packets",
                packets=() if sight.packet is None else (sight.packet,),
                vantage="client",
            )
