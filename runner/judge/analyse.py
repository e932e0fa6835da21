"""Job + artifacts + its case → result. Offline: it reads the job's folder and nothing else, and can be repeated."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner import store
from runner.decode import Trace, cached_decode, job_checks, load_tables, on_server_clock
from runner.decode.flood import flood
from runner.decode.tcp import cached_decode_tcp
from runner.diagnose import Explanation
from runner.diagnose.over_tcp import over_tcp
from runner.diagnose.transfer_diagnoses import explained, marks, measured, window_of
from runner.errors import CaptureError
from runner.judge.disturbance import disturbed, load_truth
from runner.judge.evidence import gaps, missed_datagrams, missing_secrets, unread_types
from runner.judge.invariants import protocol_findings
from runner.judge.public import public_verdict
from runner.judge.readback import applied_lines, readings
from runner.model.artifacts import Artifacts, EndpointRecord, Evidence
from runner.model.codes import another_attempt_helps
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.protocol import HTTP09, OVER_TCP, protocol_of
from runner.model.result import Finding, Invariant, LinkTruth, Outcome, ProtectedPackets, Result, Sample
from runner.model.run import CaseRecord
from runner.trace import TraceFacts, UnreadPackets, facts, series
from testcases.base import Case, CaseEvidence, Check, reads_of
from testcases.checks import NOTES, OPEN

UNSUPPORTED_EXIT = 127
_LOG_LINES = 12
# Codes of deploy for an image whose first process the engine could not start: no such command, wrong architecture.
_NOT_STARTED = {"client-not-started": "client", "server-not-started": "server"}


def analyse(job: Job, artifacts: Artifacts, case: Case, record: CaseRecord) -> Result:
    """Judge one job. Writes `series.json` and the tables beside the captures; the result is returned, not stored."""
    base = Result.of(job, Outcome.SUCCEEDED)
    evidence = store.load_evidence(artifacts)
    if evidence is None:
        return base.ending(Outcome.ERROR, harness("no-evidence", "evidence.json is missing or broken"))
    truth = load_truth(artifacts.link_truth)
    base = replace(
        with_record(base, evidence),
        protocol=_protocol(evidence, record),
        truth=truth,
        ground=load_truth(artifacts.ground_truth),
        real_link=evidence.real_link,
        applied=applied_lines(artifacts, (*Role, *evidence.boxes)),
    )
    if unsupported := _unsupported(evidence, record):
        return base.ending(Outcome.UNSUPPORTED, unsupported)
    if flooded := flood(artifacts, record, evidence, truth):
        return base.ending(Outcome.FAILED, flooded)
    traces = _Traces.read(artifacts, record, evidence, truth, tcp=base.protocol in OVER_TCP)
    closed = _gaps(traces, case, record)
    base = _with_traces(base, traces, readings_of=(artifacts, evidence), numbers=not closed)
    if spoiled := _spoiled(evidence, (truth, base.ground), record) or _missed(traces.missed):
        return base.ending(Outcome.ERROR, spoiled)
    failures = tuple(_execution(evidence, record, artifacts))
    missing = _no_packets(traces)
    if traces.facts is None or (missing is not None and not failures):
        return base.ending(Outcome.FAILED if failures else Outcome.ERROR, *(failures or filter(None, (missing,))))
    context = CaseEvidence(facts=traces.facts, evidence=evidence, case=record, truth=truth, protocol=base.protocol)
    if not closed and base.protocol not in OVER_TCP:
        base = replace(base, public=public_verdict(record, traces.facts, evidence))
    if failures:
        keys = bool(artifacts.key_logs) and not closed and missing is None
        return base.ending(Outcome.FAILED, *failures, *_proofs(case, context, keys=keys))
    if closed:
        return _judge_without(base, case, context, closed, key_logs=bool(artifacts.key_logs))
    return _judge(base, case, context)


def _with_traces(base: Result, traces: "_Traces", *, readings_of: tuple[Artifacts, Evidence], numbers: bool) -> Result:
    """With what the captures say. `numbers`: they could be read as far as numbers and diagnoses need it."""
    base = replace(base, invariants=traces.invariants, protected=traces.protected, violations=traces.violations)
    if not numbers:
        return replace(base, readings=readings(*readings_of, None, None))
    why = traces.explanation
    found = readings(*readings_of, traces.facts, traces.sample)
    return replace(base, sample=traces.sample, readings=found, limits=why.limits, diagnoses=why.diagnoses)


def with_record(base: Result, evidence: Evidence) -> Result:
    """With what the harness recorded of times, whatever was run."""
    return replace(
        base,
        started_unix_s=evidence.started_unix_s,
        wall_s=evidence.wall_s,
        transfer_s=evidence.transfer_s,
        stages_s=evidence.stages_s,
        cpu_pressure=evidence.cpu_pressure,
        clock="virtual" if evidence.guest else "real",
        guest_speed=evidence.guest.speed if evidence.guest else None,
    )


def _judge(base: Result, case: Case, context: CaseEvidence) -> Result:
    """The verdict of packets alone."""
    if context.protocol not in OVER_TCP:
        base = replace(base, notes=tuple(_found((*NOTES, *case.notes), context)))
        if unable := tuple(_found(case.capabilities, context)):
            return base.ending(Outcome.UNSUPPORTED, *unable)
    if unasked := tuple(_found(case.preconditions, context)):
        return base.ending(Outcome.ERROR, *unasked)
    findings = tuple(_found(case.checks_over(context.protocol), context)) or exercised(base.violations, case)
    return base.ending(Outcome.FAILED, *findings) if findings else base


def exercised(violations: tuple[Finding, ...], case: Case) -> tuple[Finding, ...]:
    """The broken rules that the case is about, on the part of the roles that it judges; the others are marks."""
    judged = {role.value for role in case.judges}
    return tuple(one for one in violations if one.role in judged and one.code.startswith(case.exercises))


def _judge_without(
    base: Result, case: Case, context: CaseEvidence, closed: tuple[UnreadPackets, ...], *, key_logs: bool
) -> Result:
    """The verdict when packets that the case asks about can't be read: what is wrong all the same, or none."""
    unread = unread_types(closed)
    standing = tuple(check for check in case.checks_over(context.protocol) if reads_of(check).isdisjoint(unread))
    if findings := tuple(_found(standing, context)):
        return base.ending(Outcome.FAILED, *findings)
    return base.ending(Outcome.ERROR, *missing_secrets(context.facts, closed, key_logs=key_logs))


def _proofs(case: Case, context: CaseEvidence, *, keys: bool) -> Iterator[Finding]:
    """What packets say of an endpoint that failed, and so has lost already: what everybody can read without keys, and,
    with them, what the case's own question finds, if it could be put."""
    asked = keys and not any(_found((*case.capabilities, *case.preconditions), context))
    told = set()
    open_ = () if context.protocol in OVER_TCP else OPEN
    for finding in _found((*(case.checks_over(context.protocol) if asked else ()), *open_), context):
        if finding.packets and (finding.code, finding.actual) not in told:
            told.add((finding.code, finding.actual))
            yield finding


def _found(checks: tuple[Check, ...], context: CaseEvidence) -> Iterator[Finding]:
    for check in checks:
        yield from check(context)


def transient(result: Result) -> str | None:
    """Why the job is worth another attempt: it was disturbed, or the harness stumbled. None when it would end alike."""
    if result.outcome is not Outcome.ERROR or not another_attempt_helps(result.findings[0].code):
        return None
    return result.findings[0].actual


def harness(code: str, actual: str, role: Role | None = None) -> Finding:
    """A finding against ourselves. `role`: of the endpoint for which too little was left."""
    return Finding(
        code=code,
        requirement="No stack is to blame: the harness owes a job that nothing disturbs.",
        expected="a valid job",
        actual=actual,
        role=role.value if role is not None else "",
    )


def _spoiled(evidence: Evidence, truths: Iterable[LinkTruth | None], record: CaseRecord) -> Finding | None:
    """Why the harness owes another attempt, None when it did its part."""
    if evidence.error:
        if evidence.error["code"] in _NOT_STARTED:
            return None
        stumbled = harness(evidence.error["code"], evidence.error["message"])
        return replace(stumbled, log_tail=evidence.error.get("printed", ""))
    for truth, _ in zip(truths, record.link.segments, strict=False):
        if disturbance := disturbed(evidence, truth, record):
            return harness("disturbed", disturbance.why, disturbance.role)
    return None


def _missed(datagrams: int) -> Finding | None:
    """Why captures that lack packets prove nothing, None when they are whole."""
    if not datagrams:
        return None
    told = "1 datagram" if datagrams == 1 else f"{datagrams} datagrams"
    return harness("disturbed", f"the receiver's capture lacks {told} that the link delivered")


def _protocol(evidence: Evidence, record: CaseRecord) -> str:
    asked = evidence.client.environment.get("TESTCASE")
    return protocol_of(asked) if asked else record.protocol


def _unsupported(evidence: Evidence, record: CaseRecord) -> Finding | None:
    for role, endpoint in (("server", evidence.server), ("client", evidence.client)):
        if endpoint.exit_code == UNSUPPORTED_EXIT and not endpoint.stopped_by_us:
            return Finding(
                code="unsupported",
                requirement="An image that doesn't know a case exits with 127.",
                expected=f"support of '{endpoint.environment.get('TESTCASE', record.wire_names[role])}'",
                actual=f"the {role} exited with 127",
                role=role,
            )
    return None


def log_tail(artifacts: Artifacts, role: str) -> str:
    """The last lines that a container printed."""
    log = artifacts.folder / role / "output.log"
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _execution(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Iterator[Finding]:
    """What the engine saw: processes that don't start, readiness, exits, time-outs, full volumes."""
    if evidence.error:
        yield Finding(
            code=evidence.error["code"],
            requirement="The image has an entry point that this host can run.",
            expected="a process",
            actual=evidence.error["message"],
            role=_NOT_STARTED[evidence.error["code"]],
        )
        return
    yield from limit_findings(evidence, artifacts)
    server = evidence.server
    if server.exit_code is not None and not server.stopped_by_us:
        yield _exit_finding("server", server, "runs until it gets SIGTERM", artifacts)
    elif evidence.server_ready is False:
        yield _not_ready(evidence, record, artifacts)
    yield from client_end(evidence, record, artifacts)


def limit_findings(evidence: Evidence, artifacts: Artifacts) -> Iterator[Finding]:
    """The limits of ours that an endpoint ran into. They are told first, for what it did then follows from them."""
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        if endpoint.output_flooded:
            yield Finding(
                code="output-flood",
                requirement="An endpoint prints no more than a log that somebody could read.",
                expected="at most 16 MiB",
                actual="more, so it was killed",
                role=role,
                log_tail=log_tail(artifacts, role),
            )
        if endpoint.volumes_full:
            yield Finding(
                code="volume-full",
                requirement="An endpoint keeps its files within the quota of its folders.",
                expected="less than the quota",
                actual=f"{', '.join(endpoint.volumes_full)} is full",
                role=role,
            )


def client_end(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Iterator[Finding]:
    """Whether the client ended by itself, in time, and with success."""
    client = evidence.client
    if client.timed_out:
        yield Finding(
            code="timeout",
            requirement="The case ends within its time.",
            expected=f"the client ends by itself within {record.timeout:g} s",
            actual=f"still running after {record.timeout:g} s; {_progress(evidence)}",
            role="client",
            log_tail=log_tail(artifacts, "client"),
        )
    elif client.exit_code not in (0, None) and not client.stopped_by_us:
        yield _exit_finding("client", client, "exits with 0 when all files have arrived", artifacts)


def _not_ready(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Finding:
    if _protocol(evidence, record) in OVER_TCP:
        requirement, expected = "The server listens on TCP port 443.", "a listening socket within 10 s"
        actual, section = "none", "endpoint contract, What an image must do"
    else:
        requirement = "The server listens on UDP port 443 and answers unknown versions (RFC 9000 §6.1)."
        expected, section = "Version Negotiation within 10 s", "RFC 9000 §6.1"
        actual = _instead_of_ready(evidence.server_udp_ports)
    return Finding(
        code="server-not-ready",
        requirement=requirement,
        expected=expected,
        actual=actual,
        role="server",
        section=section,
        log_tail=log_tail(artifacts, "server"),
    )


def _instead_of_ready(ports: tuple[int, ...]) -> str:
    if not ports:
        return "no answer, and it has no UDP socket"
    if 443 in ports:
        return "no answer from its socket on UDP port 443"
    return f"no answer; it has UDP port {', '.join(str(port) for port in ports)} open instead"


def _progress(evidence: Evidence) -> str:
    received, total = sum(file.received or 0 for file in evidence.files), sum(file.size for file in evidence.files)
    return f"{received} of {total} B had been saved"


def _exit_finding(role: str, endpoint: EndpointRecord, expected: str, artifacts: Artifacts) -> Finding:
    killed = " (killed: out of memory)" if endpoint.oom_killed and endpoint.exit_code == 137 else ""
    return Finding(
        code=f"{role}-exit",
        requirement=f"The {role} {expected}.",
        expected="exit code 0" if role == "client" else "no exit before the client's",
        actual=f"exit code {endpoint.exit_code}{killed}",
        role=role,
        log_tail=log_tail(artifacts, role),
    )


@dataclass(frozen=True, kw_only=True)
class _Traces:
    """Both captures of a job, as far as they can be read."""

    facts: TraceFacts | None = None
    sample: Sample | None = None
    invariants: tuple[Invariant, ...] = ()
    violations: tuple[Finding, ...] = ()
    explanation: Explanation = field(default_factory=Explanation)
    problem: str = ""
    missed: int = 0
    """Datagrams that the link delivered and that no capture has."""
    tcp: bool = False
    """Most packets of TCP have no protection at all."""

    @property
    def protected(self) -> ProtectedPackets | None:
        """How much of the captures could be read."""
        if self.facts is None or (self.tcp and not self.facts.unread_packets):
            return None
        return ProtectedPackets(packets=self.facts.protected_packets, unread=self.facts.unread_packets)

    @classmethod
    def read(
        cls, artifacts: Artifacts, record: CaseRecord, evidence: Evidence, truth: LinkTruth | None, *, tcp: bool
    ) -> "_Traces":
        """Decode, establish facts, measure, diagnose, and write `series.json`."""
        try:
            client_side, server_side = (_decode_tcp if tcp else _decode_quic)(artifacts, evidence)
        except CaptureError as error:
            return cls(problem=str(error))
        if client_side is None or server_side is None:
            return cls(problem="a capture is missing")
        via = evidence.via
        if split := via is not None and bool(via.splits if tcp else via.splits_quic):
            server_side = client_side  # a proxy speaks to each end: only the client's own connection is the job's
        if evidence.real_link is not None and evidence.real_link.clock is not None:
            client_side = on_server_clock(client_side, evidence.real_link.clock)
        found = facts(client_side, server_side)
        numbers = measured(client_side, server_side, found, record)
        numbers = numbers.from_client_alone if split else numbers
        plots = series(
            client_side,
            server_side,
            found,
            numbers,
            file_sizes=record.file_sizes,
            forward=record.forward,
            return_=record.return_,
        )
        why = (
            Explanation() if split else explained(client_side, server_side, found, numbers, record=record, truth=truth)
        )
        why = over_tcp(why) if tcp else why
        window = window_of(artifacts.folder / "server" / "qlog", server_side)
        document = plots | marks(why, origin_ns=int(plots["origin_unix_ns"]), window=window)
        store.write_atomically(artifacts.series, json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
        invariants = (*_invariants(client_side, server_side, found, record), *_spoofed(truth))
        whole = not evidence.boxes and not artifacts.ground_truth.is_file()  # the truth of one segment is all of it
        missed = missed_datagrams(client_side, server_side, truth) if whole else 0
        violations = () if missed or tcp else protocol_findings(client_side, server_side)
        if split:  # the client's peer is the proxy, not the server
            violations = tuple(one for one in violations if one.role == Role.CLIENT)
        return cls(
            facts=found,
            sample=numbers,
            invariants=invariants,
            violations=violations,
            explanation=why,
            missed=missed,
            tcp=tcp,
        )


def _spoofed(truth: LinkTruth | None) -> Iterator[Invariant]:
    """What an endpoint sent in the other one's name. The link dropped it, no capture holds it, no verdict counts it."""
    sent = {"client": truth.spoofed_client, "server": truth.spoofed_server} if truth is not None else {}
    for role, count in sent.items():
        if count:
            yield Invariant(
                name=f"{role}_side.spoofed_packets",
                holds=False,
                expected="0",
                actual=f"{count} packets came from the {role} with an address of the other end, and were dropped",
            )


def _invariants(client_side: Trace, server_side: Trace, found: TraceFacts, record: CaseRecord) -> tuple[Invariant, ...]:
    """Those of each trace, those of both together; sizes only where response data is the file (HTTP/0.9).

    Where the link corrupts packets, those that can't be read say nothing.
    """
    corrupts = _corrupts(record)
    plain = all(connection.alpn == HTTP09 for connection in found.connections)
    checked = [(f"client_side.{one.name}", one) for one in client_side.checks]
    checked += [(f"server_side.{one.name}", one) for one in server_side.checks]
    both = job_checks(client_side, server_side, record.file_sizes if plain else None)
    checked += [(one.name, one) for one in both]
    return tuple(
        Invariant(
            name=name,
            holds=None if corrupts and one.name == "undecrypted_packets" else one.holds,
            expected=str(one.expected),
            actual=str(one.actual),
        )
        for name, one in checked
    )


def _decode_quic(artifacts: Artifacts, evidence: Evidence) -> tuple[Trace | None, Trace | None]:
    """The traces of both sides as QUIC."""
    return (
        _decode(artifacts.client_capture, artifacts, artifacts.client_tables, evidence),
        _decode(artifacts.server_capture, artifacts, artifacts.server_tables, evidence),
    )


def _decode_tcp(artifacts: Artifacts, evidence: Evidence) -> tuple[Trace | None, Trace | None]:
    """The traces of both sides as TCP."""
    captures = artifacts.client_capture, artifacts.server_capture
    folders = artifacts.client_tables, artifacts.server_tables
    if all(capture.is_file() for capture in captures):
        return cached_decode_tcp(captures, artifacts.key_logs, folders, kernel_drops=evidence.capture_drops)
    client_side, server_side = (load_tables(folder) if folder.is_dir() else None for folder in folders)
    return client_side, server_side


def _decode(capture: Path, artifacts: Artifacts, tables: Path, evidence: Evidence) -> Trace | None:
    """The trace of a capture, or of its tables when the capture was not kept; None without both."""
    if capture.is_file():
        return cached_decode(capture, artifacts.key_logs, tables, kernel_drops=evidence.capture_drops)
    return load_tables(tables) if tables.is_dir() else None


def _gaps(traces: _Traces, case: Case, record: CaseRecord) -> tuple[UnreadPackets, ...]:
    """The packets that the case asks about and that no key opened."""
    if traces.facts is None:
        return ()
    return gaps(traces.facts, may_miss=case.may_miss, corrupts=_corrupts(record))


def _corrupts(record: CaseRecord) -> bool:
    return any(link.impairments.corruption for link in (record.forward, record.return_))


def _no_packets(traces: _Traces) -> Finding | None:
    """Without packets there is no verdict: never a pass, and not the implementation's failure either."""
    if traces.facts is None:
        return Finding(
            code="no-capture",
            requirement="Verdicts come from packets.",
            expected="captures on both sides",
            actual=traces.problem,
        )
    if not traces.facts.connections:
        return Finding(
            code="no-connection",
            requirement="Verdicts come from packets.",
            expected="a connection in the captures",
            actual="none could be read",
        )
    return None
