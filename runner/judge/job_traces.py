"""Decodes both captures of a job, and establishes facts and numbers from both traces together."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner import store
from runner.decode import Trace, cached_decode, job_checks, load_tables, on_server_clock
from runner.decode.schema import FRAGMENTS
from runner.decode.tcp import cached_decode_tcp
from runner.diagnose import Explanation
from runner.diagnose.over_tcp import over_tcp
from runner.diagnose.transfer_diagnoses import explained, marks, measured, window_of
from runner.errors import CaptureError
from runner.judge.evidence import fragmented_packets, misaddressed_datagrams
from runner.judge.invariants import protocol_findings
from runner.judge.record import unrecorded
from runner.model.artifacts import Artifacts, Evidence
from runner.model.implementation import Role
from runner.model.protocol import HTTP09
from runner.model.result import Finding, Invariant, LinkTruth, ProtectedPackets, Sample
from runner.model.run import CaseRecord
from runner.trace import TraceFacts, facts, series


@dataclass(frozen=True, kw_only=True)
class JobTraces:
    """The contents of both captures of a job, as far as they can be read."""

    facts: TraceFacts | None = None
    """None: a capture is missing or broken; `problem` names it."""
    sample: Sample | None = None
    invariants: tuple[Invariant, ...] = ()
    violations: tuple[Finding, ...] = ()
    explanation: Explanation = field(default_factory=Explanation)
    problem: str = ""
    unrecorded: str = ""
    """What the captures lack, or hold too often, as a sentence part; empty when they hold every packet once."""
    misaddressed: Mapping[str, int] = field(default_factory=dict)
    """By role, the number of datagrams that the endpoint sent to a MAC address that the link does not know."""
    foreign: tuple[Finding, ...] = ()
    """Notes about the UDP packets in each capture that belong to no QUIC connection."""
    tcp: bool = False
    """True for a job over TCP, where most packets have no protection."""

    @property
    def protected(self) -> ProtectedPackets | None:
        """The number of protected packets, and how many of them could not be read. None without facts, and for TCP when
        every packet could be read."""
        if self.facts is None or (self.tcp and not self.facts.unread_packets):
            return None
        return ProtectedPackets(packets=self.facts.protected_packets, unread=self.facts.unread_packets)

    @property
    def missing(self) -> Finding | None:
        """The finding when there are no packets to judge; None otherwise. The finding blames no stack."""
        if self.facts is None:
            return Finding(
                code="no-capture",
                requirement="Verdicts come from packets.",
                expected="captures at the client and at the server",
                actual=self.problem,
            )
        if not self.facts.connections:
            return Finding(
                code="no-connection",
                requirement="Verdicts come from packets.",
                expected="a connection in the captures",
                actual="no connection could be read",
            )
        return None


def read_traces(
    artifacts: Artifacts,
    record: CaseRecord,
    evidence: Evidence,
    truth: LinkTruth | None,
    ground: LinkTruth | None,
    *,
    tcp: bool,
) -> JobTraces:
    """Decode both captures, establish facts, measure, diagnose, and write `series.json`."""
    try:
        client_side, server_side = (_decode_tcp if tcp else _decode_quic)(artifacts, evidence)
    except CaptureError as error:
        return JobTraces(problem=str(error))
    if client_side is None or server_side is None:
        return JobTraces(problem="a capture is missing")
    via = evidence.via
    if split := via is not None and bool(via.splits if tcp else via.splits_quic):
        server_side = client_side  # the proxy splits the connection; the judge reads only the connection of the client
    elif evidence.real_link is not None and evidence.real_link.clock is not None:
        client_side = on_server_clock(client_side, evidence.real_link.clock)
    trace_facts = facts(client_side, server_side)
    sample = measured(client_side, server_side, trace_facts, record)
    explanation = Explanation()
    if split:
        sample = sample.from_client_alone
    else:
        explanation = explained(client_side, server_side, trace_facts, sample, record=record, truth=truth)
    if tcp:
        explanation = over_tcp(explanation)
    plots = series(
        client_side,
        server_side,
        trace_facts,
        sample,
        file_sizes=record.file_sizes,
        forward=record.forward,
        return_=record.return_,
    )
    window = window_of(artifacts.folder / "server" / "qlog", server_side)
    document = plots | marks(explanation, origin_ns=int(plots["origin_unix_ns"]), window=window)
    store.write_atomically(artifacts.series, json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    # With several segments, the truth of one segment doesn't show which packets arrived at the other end.
    whole_way = not evidence.boxes and not artifacts.ground_truth.is_file()
    # Boxes are between the captures and the link, so that the link's truth counts other packets.
    truths = (None, None) if evidence.boxes else (truth, truth if whole_way else ground)
    lack = "" if split else unrecorded(client_side, server_side, truths, record, evidence)
    misaddressed = misaddressed_datagrams(client_side, server_side, truth) if whole_way else {}
    fragments = fragmented_packets(client_side, server_side)
    violations = () if lack or tcp else protocol_findings(client_side, server_side)
    # What the peer of an endpoint that sends fragments received is unknown, so the peer is not accused.
    innocent = {role for role in Role if any(count for sender, count in fragments.items() if sender != role)}
    violations = tuple(violation for violation in violations if violation.role not in innocent)
    if split:  # the client's peer is the proxy, not the server
        violations = tuple(violation for violation in violations if violation.role == Role.CLIENT)
    return JobTraces(
        facts=trace_facts,
        sample=sample,
        invariants=(
            *_invariants(client_side, server_side, trace_facts, record),
            *_spoofed(truth),
            *_fragmented(fragments),
        ),
        violations=violations,
        explanation=explanation,
        unrecorded=lack,
        misaddressed=misaddressed,
        foreign=() if tcp else tuple(_foreign((client_side,) if split else (client_side, server_side))),
        tcp=tcp,
    )


def _foreign(traces: Iterable[Trace]) -> Iterator[Finding]:
    """A note for each capture with UDP packets that belong to no QUIC connection. They change no verdict. `traces`: at
    the client, and at the server unless a proxy splits the connection."""
    for role, trace in zip(Role, traces, strict=False):
        skipped = {why: count for why, count in trace.meta.skipped_udp.items() if why != FRAGMENTS}
        if skipped:
            yield Finding(
                code="foreign-packets",
                requirement="A verdict comes from the packets of QUIC connections.",
                expected="UDP packets with connection IDs of the connections, or on flows that begin with long headers",
                actual=f"{sum(skipped.values())} other UDP packets in the capture at the {role}: "
                + "; ".join(f"{count} {why}" for why, count in sorted(skipped.items())),
                section="RFC 9000 §5.2",
            )


def corrupts(record: CaseRecord) -> bool:
    """Whether the link of the case changes packets on purpose."""
    return any(direction.impairments.corruption for direction in (record.forward, record.return_))


def _spoofed(truth: LinkTruth | None) -> Iterator[Invariant]:
    """An invariant for each endpoint that sent packets with an address of the other end. The link drops such packets.
    They are in no capture and change no verdict."""
    counts = {"client": truth.spoofed_client, "server": truth.spoofed_server} if truth is not None else {}
    text = "the link dropped {count} packets from the {role} with an address of the other end"
    return _forbidden("spoofed_packets", counts, text)


def _fragmented(counts: Mapping[str, int]) -> Iterator[Invariant]:
    """An invariant for each endpoint that sent IP fragments. `counts`: fragments by sender."""
    text = "{count} IP fragments of the {role} arrived, which QUIC forbids (RFC 9000 §14)"
    return _forbidden("fragmented_packets", counts, text)


def _forbidden(name: str, counts: Mapping[str, int], text: str) -> Iterator[Invariant]:
    """A broken invariant for each role with a count above 0. `text` has places for the count and the role."""
    for role, count in counts.items():
        if count:
            actual = text.format(count=count, role=role)
            yield Invariant(name=f"{role}_side.{name}", holds=False, expected="0", actual=actual)


def _invariants(
    client_side: Trace, server_side: Trace, trace_facts: TraceFacts, record: CaseRecord
) -> tuple[Invariant, ...]:
    """The checks of each trace, and of both traces together. Sizes are compared only for HTTP/0.9, where the response
    data is exactly the file.

    When the link corrupts packets, unreadable packets prove nothing.
    """
    plain = all(connection.alpn == HTTP09 for connection in trace_facts.connections)
    checks = [(f"client_side.{check.name}", check) for check in client_side.checks]
    checks += [(f"server_side.{check.name}", check) for check in server_side.checks]
    both = job_checks(client_side, server_side, record.file_sizes if plain else None)
    checks += [(check.name, check) for check in both]
    return tuple(
        Invariant(
            name=name,
            holds=None if corrupts(record) and check.name == "undecrypted_packets" else check.holds,
            expected=str(check.expected),
            actual=str(check.actual),
        )
        for name, check in checks
    )


def _decode_quic(artifacts: Artifacts, evidence: Evidence) -> tuple[Trace | None, Trace | None]:
    """The traces of client and server as QUIC."""
    return (
        _decode(artifacts.client_capture, artifacts, artifacts.client_tables, evidence),
        _decode(artifacts.server_capture, artifacts, artifacts.server_tables, evidence),
    )


def _decode_tcp(artifacts: Artifacts, evidence: Evidence) -> tuple[Trace | None, Trace | None]:
    """The traces of client and server as TCP."""
    captures = artifacts.client_capture, artifacts.server_capture
    folders = artifacts.client_tables, artifacts.server_tables
    if all(capture.is_file() for capture in captures):
        return cached_decode_tcp(captures, artifacts.key_logs, folders, kernel_drops=evidence.capture_drops)
    client_side, server_side = (load_tables(folder) if folder.is_dir() else None for folder in folders)
    return client_side, server_side


def _decode(capture: Path, artifacts: Artifacts, tables: Path, evidence: Evidence) -> Trace | None:
    """The trace of a capture. When the capture was not kept, the trace comes from its tables. None when both are
    missing."""
    if capture.is_file():
        return cached_decode(capture, artifacts.key_logs, tables, kernel_drops=evidence.capture_drops)
    return load_tables(tables) if tables.is_dir() else None
