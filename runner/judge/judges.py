"""Judges one job. The topology and the case decide what is judged."""

from collections.abc import Iterator
from dataclasses import replace

from runner.decode.capture import embed_secrets
from runner.judge.crossing import judge_crossing
from runner.judge.culprit import accepted_certificates, attributed
from runner.judge.execution import (
    broken_link,
    deaf_endpoint,
    execution_findings,
    flood,
    harness,
    harness_fault,
    incomplete_captures,
    job_protocol,
    load_truth,
    misaddressed_frames,
    silent_client,
    unreachable,
    unsupported,
    with_record,
)
from runner.judge.job_traces import (
    JobTraces,
    corrupts,
    gaps,
    missing_secrets,
    read_traces,
    unread_types,
    without_keys,
)
from runner.judge.loads import judge_load, judge_sharing
from runner.judge.public import public_verdict
from runner.judge.readback import applied_lines, readings
from runner.judge.rules.rule_table import BY_ID, Where
from runner.model.facts import UnreadPackets
from runner.model.result import Artifacts, Evidence, Finding, Outcome, Result
from runner.model.run import CaseRecord, ClientKind, Job
from runner.model.stack import OVER_TCP, Role
from runner.store import runs
from runner.trace.measure import from_headers
from testcases.base import EVERY_CASE, UNDECIDED, Case, CaseEvidence, Check, is_keyless, reads_of
from testcases.checks import COMMON, NOTES, OPEN


def analyse(job: Job, artifacts: Artifacts, case: Case, record: CaseRecord) -> Result:
    """Judge a job whose client is a stack, from the packets at both ends. Writes like `judge_job`, but changes no
    capture."""
    result = Result.of(job, Outcome.SUCCEEDED)
    evidence = runs.load_evidence(artifacts)
    if evidence is None:
        return result.ending(Outcome.ERROR, harness("no-evidence", "evidence.json is missing or broken"))
    truth = load_truth(artifacts.link_truth)
    result = replace(
        with_record(result, evidence),
        protocol=job_protocol(evidence, record),
        truth=truth,
        ground=load_truth(artifacts.ground_truth),
        applied=applied_lines(artifacts, (*Role, *evidence.boxes)),
    )
    if finding := unsupported(evidence, record):
        return result.ending(Outcome.UNSUPPORTED, finding)
    if finding := flood(artifacts, record, evidence, truth):
        return result.ending(Outcome.FAILED, finding)
    traces = read_traces(artifacts, record, evidence, truth, result.ground, tcp=result.protocol in OVER_TCP)
    readable = not _unread(traces, case, record)
    result = _with_traces(result, traces, artifacts, evidence, readable=readable)
    if finding := broken_link(evidence, truth):
        return result.ending(Outcome.FAILED, finding)
    if finding := unreachable(evidence, traces.deaf, f"no packet of the link reached the {traces.deaf}"):
        return result.ending(Outcome.FAILED, finding)
    if finding := harness_fault(evidence, (truth, result.ground), record) or incomplete_captures(traces.unrecorded):
        return result.ending(Outcome.ERROR, finding)
    result = _verdict(result, traces, artifacts, case, record, evidence=evidence)
    if not readable and traces.facts is not None and traces.facts.no_secrets and result.outcome is not Outcome.ERROR:
        note = without_keys(traces.facts, key_logs=bool(artifacts.key_logs))
        result = replace(result, notes=(*result.notes, note))
        if result.delivered and result.outcome is Outcome.SUCCEEDED and traces.sample is not None:
            result = replace(result, sample=from_headers(traces.sample, record.forward))
    cut_off = deaf_endpoint(evidence, record) or misaddressed_frames(traces.misaddressed, truth)
    if result.outcome is Outcome.FAILED and cut_off is not None:
        return result.ending(Outcome.FAILED, cut_off, *result.findings)
    return result


def _verdict(
    result: Result, traces: JobTraces, artifacts: Artifacts, case: Case, record: CaseRecord, *, evidence: Evidence
) -> Result:
    """The verdict on a job that the harness did not spoil."""
    unread = _unread(traces, case, record)
    failures = tuple(execution_findings(evidence, record, artifacts))
    if traces.facts is None or (traces.missing is not None and not failures):
        missing = () if traces.missing is None else (traces.missing,)
        if traces.facts is not None and not failures:
            failures = tuple(silent_client(evidence, artifacts))
        return result.ending(Outcome.FAILED if failures else Outcome.ERROR, *(failures or missing))
    context = CaseEvidence(
        facts=traces.facts, evidence=evidence, case=record, truth=result.truth, protocol=result.protocol
    )
    result = replace(result, notes=(*result.notes, *accepted_certificates(context)))
    if not unread and result.protocol not in OVER_TCP:
        result = replace(result, public=public_verdict(record, traces.facts, evidence))
    if failures:
        # A client that sent no QUIC packet has no secrets that could excuse it.
        silent = result.protocol not in OVER_TCP and evidence.via is None and not traces.facts.protected_packets
        keys = silent or (bool(artifacts.key_logs) and not unread and traces.missing is None)
        proofs = _proofs(case, context, result.violations, sealed=not keys)
        return result.ending(
            Outcome.FAILED, *attributed((*failures, *proofs), result.violations, context, readable=keys)
        )
    if unread:
        return _judge_without(result, case, context, unread, key_logs=bool(artifacts.key_logs))
    return _judge(result, case, context, readable=True)


def _unread(traces: JobTraces, case: Case, record: CaseRecord) -> tuple[UnreadPackets, ...]:
    """The packets that the case needs but that could not be decrypted."""
    if traces.facts is None:
        return ()
    return gaps(traces.facts, may_miss=case.may_miss, corrupts=corrupts(record))


def _with_traces(
    result: Result, traces: JobTraces, artifacts: Artifacts, evidence: Evidence, *, readable: bool
) -> Result:
    """The result with facts and numbers from the captures. `readable`: all packets that the case needs could be read;
    only then do numbers and diagnoses count."""
    notes = tuple(each for each in traces.violations if BY_ID[each.code].where is Where.NOTE)
    violations = tuple(each for each in traces.violations if each not in notes)
    result = replace(
        result,
        invariants=traces.invariants,
        protected=traces.protected,
        violations=violations,
        notes=(*notes, *traces.foreign),
    )
    if not readable:
        return replace(result, readings=readings(artifacts, evidence, None, None))
    return replace(
        result,
        sample=traces.sample,
        readings=readings(artifacts, evidence, traces.facts, traces.sample),
        limits=traces.explanation.limits,
        diagnoses=traces.explanation.diagnoses,
    )


def _judge(result: Result, case: Case, context: CaseEvidence, *, readable: bool) -> Result:
    """The verdict when every packet that the case needs could be read, or when the case needs no secrets."""
    if context.protocol not in OVER_TCP:
        if readable:
            result = replace(result, notes=(*result.notes, *_findings((*NOTES, *case.notes), context)))
        if unable := tuple(_findings(case.capabilities, context)):
            return _unable(result, case, context, unable, readable=readable)
    if unmet := tuple(_findings(case.preconditions, context)):
        return result.ending(Outcome.ERROR, *unmet)
    findings = (*_findings(case.checks_over(context.protocol), context), *decisive(result.violations, case))
    findings = attributed(findings, result.violations, context, readable=readable)
    return result.ending(Outcome.FAILED, *findings) if findings else result


def _unable(
    result: Result, case: Case, context: CaseEvidence, unable: tuple[Finding, ...], *, readable: bool
) -> Result:
    """The verdict on a pair that can't do what the case tests. It is never an excuse for a broken rule of the case, or
    for a rule of every case."""
    checks = tuple(check for check in COMMON if check in case.checks)
    findings = (*_findings(checks, context), *decisive(result.violations, case))
    broken = attributed(findings, result.violations, context, readable=readable)
    return result.ending(Outcome.FAILED, *broken, *unable) if broken else result.ending(Outcome.UNSUPPORTED, *unable)


def decisive(violations: tuple[Finding, ...], case: Case, *, own: bool = True) -> Iterator[Finding]:
    """The violations that decide the case, under the codes of their findings: those of rules on which its purpose
    depends, by roles that the case judges, and those of EVERY_CASE. All other violations are only shown. Without
    `own`, only EVERY_CASE counts."""
    judged = {role.value for role in case.judges}
    for violation in violations:
        depends = violation.code.startswith(case.depends) and violation.role in judged and own
        if depends or violation.code in EVERY_CASE:
            yield replace(violation, code=BY_ID[violation.code].finding or violation.code)


def _judge_without(
    result: Result, case: Case, context: CaseEvidence, unread: tuple[UnreadPackets, ...], *, key_logs: bool
) -> Result:
    """The verdict when packets that the case needs can't be read.

    A case that needs no secrets is judged when no key log opened any packet. If other packets prove failures, the job
    has failed. Otherwise the result is an error that names the missing secrets."""
    sealed, types = context.facts.no_secrets and context.protocol not in OVER_TCP, unread_types(unread)
    every = (*case.capabilities, *case.preconditions, *case.checks_over(context.protocol))
    if sealed and all(map(is_keyless, every)) and UNDECIDED not in {each.code for each in _findings(every, context)}:
        return _judge(result, case, context, readable=False)
    decidable = tuple(
        check
        for check in case.checks_over(context.protocol)
        if reads_of(check).isdisjoint(types) or (sealed and is_keyless(check))
    )
    findings = tuple(each for each in _findings(decidable, context) if each.code != UNDECIDED)
    findings += tuple(decisive(result.violations, case, own=sealed))
    if findings:
        return result.ending(Outcome.FAILED, *attributed(findings, result.violations, context, readable=False))
    return result.ending(Outcome.ERROR, *missing_secrets(context.facts, unread, key_logs=key_logs))


def _proofs(case: Case, context: CaseEvidence, violations: tuple[Finding, ...], *, sealed: bool) -> Iterator[Finding]:
    """Further findings, with packets, of a job that has failed already. Each finding appears once. The case's own
    checks are used if its capabilities and preconditions are met, and those that all cases share, always. Of a job
    whose packets can't be read (`sealed`), only checks that need no keys are used."""
    needed, own = (*case.capabilities, *case.preconditions), case.checks_over(context.protocol)
    if sealed:
        own = tuple(filter(is_keyless, own)) if context.facts.no_secrets and all(map(is_keyless, needed)) else ()
    met = bool(own) and not any(_findings(needed, context))
    tried = own if met else tuple(check for check in COMMON if check in own)
    checks = (*tried, *(() if context.protocol in OVER_TCP else OPEN))
    known = set()
    for finding in (*_findings(checks, context), *decisive(violations, case, own=met)):
        if (finding.packets or finding.code == "files-differ") and (finding.code, finding.actual) not in known:
            known.add((finding.code, finding.actual))
            yield finding


def _findings(checks: tuple[Check, ...], context: CaseEvidence) -> Iterator[Finding]:
    for check in checks:
        yield from check(context)


def judge_job(job: Job, artifacts: Artifacts, case: Case | None, record: CaseRecord) -> Result:
    """Judge one job from the files of its folder. Files that endpoints wrote raise no error.

    Writes `series.json` and the tables beside the captures, and the TLS secrets into the captures, so that other tools
    can decrypt them. The result is returned, not stored.

    `case`: the declaration of the case with its checks. None when the case has no checks, or when it no longer exists.
    """
    if record.link.repeats and (truth := load_truth(artifacts.link_truth)) is not None:
        record = replace(record, link=record.link.begun(truth.seed, record.timeout))
    if record.client is ClientKind.STACK:
        assert case is not None, "stacks run declared cases only"
        for capture in (artifacts.client_capture, artifacts.server_capture):
            embed_secrets(capture, artifacts.key_logs)
        result = analyse(job, artifacts, case, record)
    else:
        result = judge_load(artifacts, record, Result.of(job, Outcome.SUCCEEDED))
    if job.via or len(record.link.segments) > 1:
        result = judge_crossing(artifacts, record, result)
    return judge_sharing(artifacts, record, result) if record.beside else result


def can_judge(artifacts: Artifacts, case: Case | None, record: CaseRecord) -> bool:
    """True when the files of the job suffice for a verdict. Downloads, page loads and jobs with a second flow need
    their captures, because tables exist only for stacks."""
    evidence = runs.load_evidence(artifacts)
    if evidence is None or (evidence.real_link is None and not artifacts.link_truth.is_file()):
        return False
    if record.client is ClientKind.STACK and case is None:
        return False
    if record.client is not ClientKind.STACK or record.beside:
        return artifacts.link_captures[0].is_file()
    ends = (
        (artifacts.client_capture, artifacts.client_tables),
        (artifacts.server_capture, artifacts.server_tables),
    )
    return all(capture.is_file() or tables.is_dir() for capture, tables in ends)
