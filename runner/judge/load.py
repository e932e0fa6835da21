"""A download by curl, or a page load by a browser → result. Offline: it reads the job's folder and nothing else."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from runner import store
from runner.decode.ip_packets import read_packets
from runner.errors import CaptureError
from runner.inputs.loads import served
from runner.judge.analyse import client_end, harness, with_record
from runner.judge.crossing.connections import Exchange, exchange
from runner.judge.disturbance import disturbed, load_truth
from runner.judge.ends import addresses
from runner.judge.readback import applied_lines
from runner.model.artifacts import Artifacts, Evidence
from runner.model.middlebox import BOXES, PageLoad
from runner.model.numbers import DEFINITIONS
from runner.model.protocol import transport_of
from runner.model.result import Finding, Invariant, Outcome, Result, Sample
from runner.model.run import CaseRecord

_CLOCKS_APART = 0.05  # s by which curl's time and that of the capture may differ, beside 2 %


def load_verdict(artifacts: Artifacts, record: CaseRecord, result: Result) -> Result:
    """The verdict on files, objects and times."""
    evidence = store.load_evidence(artifacts)
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
        seen = counted_exchange(artifacts, record)
    except CaptureError as error:
        return result.ending(Outcome.ERROR, harness("no-capture", str(error)))
    measured = _measured(artifacts)
    page = _page(measured, record, evidence) if record.page else None
    result = replace(
        result,
        page=page,
        sample=_sample(seen, measured, record, page),
        invariants=tuple(_invariants(seen, measured, record)),
    )
    for truth in truths[: len(record.link.segments)]:
        if spoiled := disturbed(evidence, truth, record):
            return result.ending(Outcome.ERROR, harness("disturbed", spoiled.why))
    if contradicted := tuple(_contradicted(result.invariants)):
        return result.ending(Outcome.ERROR, *contradicted)
    failures = (*client_end(evidence, record, artifacts), *_incomplete(page, evidence))
    return result.ending(Outcome.FAILED, *failures) if failures else result


def failed_set_up(evidence: Evidence, record: CaseRecord) -> tuple[Outcome, Finding]:
    """What an error of the harness means: a middlebox that a lossy link keeps from getting ready has failed itself."""
    code, message = evidence.error["code"], evidence.error["message"]
    if code == "path-not-ready" and (record.forward.loss or record.return_.loss):
        finding = Finding(
            code=code,
            requirement="A middlebox gets ready over the link that it is for, whatever that loses.",
            expected="both boxes ready in time",
            actual=message,
        )
        return Outcome.FAILED, finding
    return Outcome.ERROR, harness(code, message)


def counted_exchange(artifacts: Artifacts, record: CaseRecord) -> Exchange:
    """What passed between client and server at the client, in the round that counts. Raises CaptureError."""
    _, at_client = read_packets(artifacts.client_capture)
    client, server = addresses(record.host, at_client)
    began = _began(artifacts) if record.warm else -inf
    return exchange((one for one in at_client if one.time >= began), client, server)


def _began(artifacts: Artifacts) -> float:
    """When the round that counts began, s since 1970; infinity when it did not."""
    try:
        return float((artifacts.folder / "client" / "began").read_text())
    except (OSError, ValueError):
        return inf


def _measured(artifacts: Artifacts) -> dict[str, Any]:
    """What the client itself recorded."""
    try:
        found = json.loads((artifacts.folder / "client" / "workload.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _page(measured: dict[str, Any], record: CaseRecord, evidence: Evidence) -> PageLoad:
    objects = measured.get("objects") or []
    return PageLoad(
        response_start=_seconds(measured.get("responseStart")),
        first_contentful_paint=_seconds(measured.get("firstContentfulPaint")),
        load=_seconds(measured.get("load")),
        completed=sum(one.get("status") == 200 and "end" in one for one in objects),
        attempted=len(served(record, evidence.content_seed or 0)),
    )


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1e3 if isinstance(milliseconds, int | float) and milliseconds > 0 else None


def _sample(seen: Exchange, measured: dict[str, Any], record: CaseRecord, page: PageLoad | None) -> Sample:
    """Times since the client's first packet; of a page, since the navigation began."""
    size = sum(record.file_sizes)
    if page is not None:
        return Sample(file_size=size, definitions=DEFINITIONS, ttfb=page.response_start, ttlb=page.load)
    quic = transport_of(record.protocol) == "udp"  # the last packets of HTTP/3 may hold no content
    found = Sample(
        file_size=size,
        definitions=DEFINITIONS,
        handshake_time=_curl(measured, "time_appconnect") or _curl(measured, "time_connect"),
        ttfb=_curl(measured, "time_starttransfer"),
        ttlb=_curl(measured, "time_total") if quic else seen.last,
    )
    return found.completed(record.forward.data_rate)


def _curl(measured: dict[str, Any], name: str) -> float | None:
    value = measured.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _invariants(seen: Exchange, measured: dict[str, Any], record: CaseRecord) -> Iterator[Invariant]:
    if record.page or transport_of(record.protocol) == "udp":
        return
    own, captured = _curl(measured, "time_total"), seen.last
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


def _incomplete(page: PageLoad | None, evidence: Evidence) -> Iterator[Finding]:
    for file in evidence.files:
        if not file.equal:
            yield Finding(
                code="file-differs",
                requirement="What is downloaded is what the server has.",
                expected=f"{file.size} B of {file.name}",
                actual="no file" if file.received is None else f"{file.received} B, other content",
            )
    if page is not None and (page.completed < page.attempted or page.load is None):
        yield Finding(
            code="page-incomplete",
            requirement="The page and all its objects load.",
            expected=f"{page.attempted} objects and the load event",
            actual=f"{page.completed} objects, {'no load event' if page.load is None else 'the load event'}",
        )
