"""Judges one job, and decides whose fault a failure is. The topology and the case decide what is judged."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import ge

from runner.decode.capture import embed_secrets
from runner.inputs.inputs import ServedFile
from runner.judge.crossing import judge_crossing
from runner.judge.execution import (
    ABOUT_CERTIFICATES,
    REFUSALS,
    WRONG_CERTIFICATE,
    accepted_certificates,
    broken_link,
    deaf_endpoint,
    execution_findings,
    flood,
    harness,
    harness_fault,
    job_protocol,
    load_truth,
    misaddressed_frames,
    silent_client,
    switched_off,
    unreachable,
    unsupported,
    with_record,
    wrong_certificates,
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
from runner.model.facts import (
    Close,
    ConnectionFacts,
    PacketPlace,
    Request,
    StreamFacts,
    UnreadPackets,
)
from runner.model.result import Artifacts, Evidence, FileRecord, Finding, Outcome, Result
from runner.model.rules import BY_ID, RULES, Where, error_name
from runner.model.run import CaseRecord, ClientKind, Job
from runner.model.stack import OVER_TCP, Role
from runner.store import runs
from runner.trace.measure import from_headers
from runner.units import format_count, format_name
from testcases.base import EVERY_CASE, UNDECIDED, Case, CaseEvidence, Check, is_keyless, reads_of
from testcases.checks import COMMON, NOTES, OPEN, is_clean

# Whose fault a failed job is. The endpoint that notices a broken rule and ends the connection is a witness, and not the
# culprit.
#
# Each finding about the end of a job (a close, a time-out, an exit code, a missing file) is observed at one endpoint.
# The role at fault is decided in this order:
#
# 1. The peer broke a rule before an endpoint closed the connection, reset a stream, or left a handshake unanswered: the
#    first such violation is the cause, and a violation that fits the error code goes before others.
# 2. The content of the files: the server sent something else, or the client saved something else.
# 3. The endpoint that ended the transfer early without reporting an error of its peer, or that fell silent although it
#    had to send the next packet.
# 4. Otherwise nobody is at fault: the job has failed, and its findings name no role.

_FILES = "files-differ"
_CLIENT_EXIT = "client-exit"
_CLIENT_ENDS = (_CLIENT_EXIT, "timeout")
_OBSERVED = (*_CLIENT_ENDS, "closed-with-error", "client-hello-unanswered", _FILES)
"""Codes of findings about the end of a job. The endpoint that shows it may be a witness."""
_LEFT_OUT = frozenset(
    {
        *("early-data-refused", "no-control-stream", "no-ecn-counts", "no-key-update", "not-early", "not-resumed"),
        *("path-challenge-unanswered", "path-not-challenged", "streams-not-refilled"),
    }
)
"""Codes of findings about what an endpoint did not do. They say nothing after a close with an error, which comes before
its time."""
_UNKNOWN = "the packets do not show whose fault it is"
_PEER = {"client": "server", "server": "client"}
_INTERNAL, _REFUSED, _H3_INTERNAL = 0x01, 0x02, 0x102  # RFC 9000 §20.1, RFC 9114 §8.1
_LEAST_PATIENCE, _RTTS, _ACK_DELAY = 0.25, 3, 0.025  # seconds, and multiples of RTT and max_ack_delay

# TLS alerts (RFC 8446 §6.2) as error codes of QUIC (RFC 9001 §4.8).
_DECRYPT_ERROR = 0x100 + 51
_NO_FAULT_OF_THE_PEER = frozenset((_INTERNAL, _REFUSED, 0x100 + 80, 0x100 + 90))  # internal_error, user_canceled
_CLEARED = "rfc9287-3.1-cleared-before-offer"  # a server discards such a packet (RFC 9000 §17.2)
_EARLY_REFUSED = "early-data-refused"
_UNANSWERED = "rfc9000-8.2.2-challenge-unanswered"
_FALSE_ACK = "rfc9000-13.1-ack-of-unreceived"  # the peer does not repeat data that were acknowledged
_DISCARDED = "discarded packets"


@dataclass(frozen=True, kw_only=True)
class _Fault:
    """Why the client did not receive a file. `role`: the endpoint at fault; empty when the packets do not show it."""

    role: str = ""
    why: str = _UNKNOWN
    places: tuple[PacketPlace | None, ...] = ()
    unfinished: bool = False
    """True when the answer was not complete. A client that is stopped then may also lose files that were complete."""


@dataclass(frozen=True, kw_only=True)
class _End:
    """An act of an endpoint that ended a connection, or a response, before its time. `code`: of a close with an error;
    None when it reports no error of the peer, or one that the peer did not make. `lost_state`: the act is a stateless
    reset. `handshake`: when the handshake began that was not complete; infinite: it was. `arrival`: when the peer knew
    that the connection had failed; infinite: it did not, or all was well."""

    role: str
    time: float
    act: str
    place: PacketPlace | None
    code: int | None = None
    application: bool = False
    lost_state: bool = False
    handshake: float = float("inf")
    arrival: float = float("inf")


def attributed(
    findings: tuple[Finding, ...], violations: tuple[Finding, ...], context: CaseEvidence, *, readable: bool
) -> tuple[Finding, ...]:
    """The findings of a failed job with the roles at fault, and the violations that caused the failure; causes come
    first. `readable`: all packets that the case needs could be read."""
    if bits := _cleared_hellos(findings, violations, context):
        refused = (replace(each, role="client") if each.code == _EARLY_REFUSED else each for each in findings)
        findings = (*bits, *refused)
    if not any(finding.code in _OBSERVED for finding in findings):
        return findings
    causes = _provocations(findings, violations, context)
    culprits = {cause.role for cause in causes}
    findings = tuple(
        _with_file_fault(finding, context, culprits, readable=readable)
        if finding.code == _FILES
        else _with_exit_fault(finding, context)
        if finding.code == _CLIENT_EXIT and readable and not culprits
        else finding
        for finding in findings
    )
    excused = _LEFT_OUT if any(end.code is not None for end in _ends_of_all(context)) else frozenset[str]()
    if not culprits:
        own = (*_OBSERVED[:-1], *excused)
        culprits = {finding.role for finding in findings if finding.role and finding.code not in own}
        culprits |= {role for finding in findings if (role := _own_end(finding, context, culprits, readable=readable))}
    known = [finding for finding in findings if finding not in causes]
    cleared = [
        replace(finding, role="")
        if finding.code in excused or (finding.code in _OBSERVED and finding.role not in culprits)
        else finding
        for finding in known
    ]
    if len(known) > 1:  # a missing file alone says nothing new about a job that failed otherwise
        cleared = [each for each in cleared if each.code != _FILES or each.role or not each.actual.endswith(_UNKNOWN)]
    return tuple(sorted((*causes, *cleared), key=lambda finding: not finding.role))


# The peer's violations


def _provocations(
    findings: tuple[Finding, ...], violations: tuple[Finding, ...], context: CaseEvidence
) -> tuple[Finding, ...]:
    """The violations that made the other endpoint end a connection. The first such end decides."""
    breaches = [*violations, *wrong_certificates(context)]
    breaches += [each for each in findings if each.code not in (*_OBSERVED, *_LEFT_OUT) and each.times]
    ends = _ends_of_all(context)
    client = context.evidence.client
    if not ends and client.exit_code and not client.stopped_by_us:
        ends.append(_End(role="client", time=float("inf"), act="ended", place=None))
    for connection in context.facts.connections:
        answered = connection.landmarks.server_hello is not None and connection.handshake_completed_by_client
        if not answered and not connection.closes:
            begun = _known(connection.first_initial)
            ends += [_End(role=role, time=float("inf"), act=_DISCARDED, place=None, handshake=begun) for role in _PEER]
    for end in sorted(ends, key=lambda end: end.time):
        before = [
            breach
            for breach in breaches
            if breach.role == _PEER[end.role]
            and _noticed_at(breach, end.time, context) <= end.time
            and not (breach.code == _UNANSWERED and _has_answered_all_paths(breach.role, context))
        ]
        before.sort(key=lambda breach: _noticed_at(breach, end.time, context))
        fitting = tuple(breach for breach in before if _fits(breach, end))
        noticed = tuple(breach for breach in before if _is_noticed(breach.code))
        if fitting or noticed:
            return fitting or noticed[:1]
    lacking = any(not _is_whole(stream) for each in context.facts.connections for stream in each.request_streams)
    if not lacking or any(end.role == "server" for end in ends):
        return ()
    return tuple(breach for breach in breaches if breach.code == _FALSE_ACK)


def _cleared_hellos(
    findings: tuple[Finding, ...], violations: tuple[Finding, ...], context: CaseEvidence
) -> tuple[Finding, ...]:
    """The violations of a client that cleared the fixed bit. The server discarded its first ClientHello, answered only
    the repeated one, and refused 0-RTT. Empty when this did not happen."""
    steps = [connection.landmarks for connection in context.facts.connections]
    late = any(
        each.server_hello is not None
        and len(each.client_hellos) > 1
        and (each.client_hellos[1].time or 0) < (each.server_hello.time or 0)
        for each in steps
    )
    if not late or all(finding.code != _EARLY_REFUSED for finding in findings):
        return ()
    return tuple(each for each in violations if each.code == _CLEARED)


def _has_answered_all_paths(role: str, context: CaseEvidence) -> bool:
    """Whether the role answered at least one PATH_CHALLENGE on each path that its peer challenged: then the peer could
    validate all of them (RFC 9000 §8.2.3)."""
    asked = [
        ((number, challenge.client, challenge.server), challenge.answered)
        for number, connection in enumerate(context.facts.connections)
        for challenge in connection.challenges
        if challenge.sender != role and challenge.arrived is not False
    ]
    return {path for path, _ in asked} == {path for path, answered in asked if answered}


def _noticed_at(breach: Finding, unknown: float, context: CaseEvidence) -> float:
    """When the peer could notice a broken rule: not before it could read a packet that broke it."""
    known = context.facts.noticed.get((breach.code, breach.role))
    return min(breach.times, default=unknown) if known is None else known


def _is_noticed(code: str) -> bool:
    """Whether a violation with this code explains every later end of the peer. The findings of test cases do. A finding
    that is the code of a rule (`Rule.finding`) does when the peer answers violations of that rule."""
    rules = [rule for rule in RULES if code in (rule.id, rule.finding)]
    return not rules or any(rule.answer for rule in rules)


def _fits(breach: Finding, end: _End) -> bool:
    """Whether an end is the answer that a violation makes the peer give."""
    code = breach.code
    if code == WRONG_CERTIFICATE:
        return not end.application and end.code in REFUSALS
    if code not in BY_ID:
        return False
    answers = (*BY_ID[code].answer, *BY_ID[code].seldom)
    if end.lost_state:
        return "stateless reset" in answers
    if "give up" in answers:
        return end.code is None and end.handshake <= min(breach.times, default=0.0)
    if end.act == _DISCARDED:
        return "discard" in answers
    if end.code is None:
        return False
    if end.application:
        return "HTTP/3 error" in answers
    return error_name(end.code) in answers


def _ends(connection: ConnectionFacts, context: CaseEvidence) -> Iterator[_End]:
    """The closes, and the resets of responses that were not complete. After the time-out of the client, we stop the
    server: what it ends then was not ended by itself. What an endpoint does after its peer's end had arrived is a
    reaction."""
    until = _death(context) if context.evidence.client.timed_out else float("inf")
    ends = [end for end in _all_ends(connection, context) if end.role == "client" or end.time < until]
    known = {role: min((end.arrival for end in ends if end.role != role), default=float("inf")) for role in _PEER}
    yield from (end for end in ends if end.time <= known[end.role])


def _ends_of_all(context: CaseEvidence) -> list[_End]:
    return [end for connection in context.facts.connections for end in _ends(connection, context)]


def _all_ends(connection: ConnectionFacts, context: CaseEvidence) -> Iterator[_End]:
    lacking = {stream.stream_id for stream in connection.request_streams if not _is_whole(stream)}
    for close in connection.closes:
        if close.time is None:
            continue
        failed = bool(lacking) or not is_clean(connection, close)
        clean = is_clean(connection, close) or (not close.application and close.code in _NO_FAULT_OF_THE_PEER)
        clean = clean and _kept_back(connection).role != _PEER[close.sender]
        clean = clean and not (close.sender == "server" and _may_forget(connection))
        clean = clean or _is_unfounded(connection, close, context)
        clean = clean or (close.application and close.code == _H3_INTERNAL)
        yield _End(
            role=close.sender,
            time=close.time,
            act="closed the connection",
            place=close.place,
            code=None if clean else close.code,
            application=close.application,
            handshake=_known(None if connection.handshake_completed_by_client else connection.first_initial),
            arrival=_known(close.arrival if failed else None),
        )
    for role, ending in connection.endings.items():
        if (reset := ending.lost_state) is not None and reset.time is not None:
            arrival = _known(ending.reset_arrival)
            act = "sent a stateless reset"
            yield _End(role=role, time=reset.time, act=act, place=reset, lost_state=True, arrival=arrival)
        for frames, act in ((ending.resets, "reset the stream"), (ending.stops, "asked the peer to stop the stream")):
            for stream, place in frames.items():
                if stream in lacking and place is not None and place.time is not None:
                    yield _End(role=role, time=place.time, act=act, place=place)


def _is_unfounded(connection: ConnectionFacts, close: Close, context: CaseEvidence) -> bool:
    """Whether a close accuses the peer of something that it did not do, such as a wrong proof or certificate, as the
    packets show."""
    if not close.application and close.code in _NO_FAULT_OF_THE_PEER:
        return False  # it accuses nobody
    if close.place in context.facts.unfounded:
        return True
    if close.application or _PEER[close.sender] not in connection.authenticated:
        return False
    shown, given = connection.certificate, context.evidence.certificates
    if close.code in ABOUT_CERTIFICATES and close.sender == "client" and shown is not None:
        return bool(given) and shown.chain[: len(given)] == given
    return close.code == _DECRYPT_ERROR


def _known(time: float | None) -> float:
    return float("inf") if time is None else time


def _first_end(connection: ConnectionFacts, context: CaseEvidence) -> _End | None:
    return min(_ends(connection, context), key=lambda end: end.time, default=None)


def _own_end(finding: Finding, context: CaseEvidence, culprits: set[str], *, readable: bool) -> str:
    """The role at fault for a finding about the end of a job that no violation explains; empty when nobody is."""
    ends = _ends_of_all(context)
    if finding.code == "closed-with-error":
        own = {(end.place.vantage, end.place.record) for end in ends if end.code is None and end.place is not None}
        return finding.role if own.intersection((finding.vantage, each) for each in finding.packets) else ""
    if finding.code == "client-hello-unanswered":
        return finding.role
    if finding.code not in _CLIENT_ENDS or culprits or not readable:
        return ""
    if not context.facts.connections or all(file.equal for file in context.evidence.files):
        accused = finding.code == _CLIENT_EXIT and any(end.code is not None for end in ends)
        return "" if accused else finding.role
    return _unfinished(context).role


def _with_exit_fault(finding: Finding, context: CaseEvidence) -> Finding:
    """A finding about the exit code of a client, with the server as the role at fault when all files had arrived and
    the server then ended the connection with an error, lost its state, or fell silent."""
    via = context.evidence.via
    if (via is not None and via.splits_quic) or not all(file.equal for file in context.evidence.files):
        return finding
    for connection in context.facts.connections:
        end = _first_end(connection, context)
        fault = _Fault() if end is not None else _silent(connection, _client_end(connection, context), context)
        if end is not None and end.code is None and end.arrival <= _death(context):
            fault = _Fault(
                role=end.role, why=f"all files had arrived when the {end.role} {end.act}", places=(end.place,)
            )
        if fault.role == "server":
            described = replace(finding, role=fault.role, actual=f"{finding.actual}; {fault.why}")
            return described.proven_by(*fault.places)
    return finding


# Files


def _with_file_fault(finding: Finding, context: CaseEvidence, culprits: set[str], *, readable: bool) -> Finding:
    """A finding about files that differ, with the role at fault, or with the sentence that the packets do not show
    it."""
    wrong = [file for file in context.evidence.files if not file.equal]
    faults = [_fault(file, context) if readable else _Fault() for file in wrong]
    faults = [fault for fault in faults if fault.unfinished] or faults
    roles = {fault.role for fault in faults}
    fault = faults[0] if len(roles) == 1 else _Fault()
    if culprits and fault.role not in culprits:
        fault = _Fault(role=min(culprits), why=f"the {min(culprits)} broke a rule before")
    why = f"{format_name(wrong[0].name)}: {fault.why}" if len(wrong) > 1 and fault.role else fault.why
    described = replace(finding, role=fault.role, actual=f"{finding.actual}; {why}")
    return described.proven_by(
        *(place for each in (*faults, fault) if each.role == fault.role for place in each.places)
    )


def _fault(file: FileRecord, context: CaseEvidence) -> _Fault:
    """The fault that caused one different or missing file."""
    connections = context.facts.connections
    if context.case.upload:
        return _of_upload(file, context)
    if any(connection.requests is None for connection in connections):
        fault = _unfinished(context)
        return fault if fault.unfinished or fault.role else _unsaved(file, context)
    answers = [
        (stream, request)
        for connection in connections
        for request in connection.requests or ()
        for stream in connection.streams
        if request.name == file.name and stream.stream_id == request.stream_id
    ]
    if not answers:
        return _never_requested(context)
    stream, request = max(answers, key=lambda answer: answer[0].server_bytes)
    fault = _of_answer(file, stream, request, context)
    via = context.evidence.via
    return _Fault() if fault.role == "server" and via is not None and via.splits_quic else fault


def _of_upload(file: FileRecord, context: CaseEvidence) -> _Fault:
    """The fault of the server, which had the whole request, or of the client, which ended it too early. What the client
    sent is not compared with the file."""
    streams = [stream for connection in context.facts.connections for stream in connection.request_streams]
    stream = max(streams, key=lambda each: each.client_bytes, default=None)
    if stream is None or stream.client_fin is None or stream.client_bytes != stream.client_fin:
        return _unfinished(context)
    if stream.client_fin < file.size:
        return _Fault(role="client", why=f"the client's request has {stream.client_fin} of {file.size} B")
    if file.received == file.size:
        return _Fault()
    return _Fault(role="server", why=f"the whole request of {stream.client_fin} B reached the server")


def _unsaved(file: FileRecord, context: CaseEvidence) -> _Fault:
    """The client's fault when it saved nothing although an answer for each file, at least as long as the file, reached
    it before its last packet, and no endpoint reported an error. HTTP/3 adds frames to the content."""
    connections = context.facts.connections
    sizes = sorted((each.size for each in context.evidence.files), reverse=True)
    answers = sorted(
        (
            stream.server_fin or 0
            for connection in connections
            for stream in connection.request_streams
            if "client" in connection.endings
            and _known(stream.last_new_byte) <= _time(connection.endings["client"].last) < float("inf")
        ),
        reverse=True,
    )
    whole = len(answers) >= len(sizes) and all(map(ge, answers, sizes))
    if file.received is not None or not whole or any(end.code is not None for end in _ends_of_all(context)):
        return _Fault()
    why = "the whole answer reached the client, which saved nothing"
    return _Fault(role="client", why=why, places=(connections[-1].landmarks.client_last,))


def _never_requested(context: CaseEvidence) -> _Fault:
    """A file without a request is the client's fault, with five exceptions: the last handshake was not completed, the
    server ended a connection, the server allowed no further stream, we stopped the client while it sent, or the
    request may be in a packet that could not be decrypted."""
    connections = context.facts.connections
    ready = [connection for connection in connections if connection.handshake_completed_by_client]
    hidden = any(connection.early_data_unread for connection in connections)
    if hidden or not ready or not connections[-1].handshake_completed_by_client:
        return _Fault() if hidden else _unfinished(context)
    if any(_stopped_by_server(connection, context) for connection in ready):
        return _unfinished(context)
    last = ready[-1].landmarks.client_last
    if context.evidence.client.timed_out and _death(context) - _time(last) < _LEAST_PATIENCE:
        return _Fault()  # we stopped the client at its work
    return _Fault(role="client", why="the client never requested it", places=(last,))


def _stopped_by_server(connection: ConnectionFacts, context: CaseEvidence) -> bool:
    limit = connection.max_streams_bidi
    used_up = limit is not None and len(connection.request_streams) >= limit
    end = _first_end(connection, context)
    return used_up or (end is not None and end.role == "server")


def _of_answer(file: FileRecord, stream: StreamFacts, request: Request, context: CaseEvidence) -> _Fault:
    places, seed = (request.place, request.answer_end), context.evidence.content_seed
    if not _is_whole(stream):
        return _without_fin(file, stream, context) or _unfinished(context)
    if stream.server_fin != file.size:
        why = f"the server's answer has {stream.server_fin} of {file.size} B"
        return _Fault(role="server", why=why, places=places)
    if seed is not None:
        content = ServedFile(name=file.name, size=file.size, seed=seed).content()[: len(request.answer)]
        if request.answer != content:
            return _Fault(role="server", why="the server sent other content", places=places)
    if file.received != file.size:
        return _Fault(role="client", why=f"all {format_count(file.size, 'byte')} reached the client", places=places)
    if seed is not None and len(request.answer) == file.size:
        return _Fault(role="client", why="the right content reached the client", places=places)
    return _Fault()


def _without_fin(file: FileRecord, stream: StreamFacts, context: CaseEvidence) -> _Fault | None:
    """The server's fault when it sent the whole file but never FIN, and nobody stopped it."""
    if stream.server_bytes < file.size:
        return None
    for connection in context.facts.connections:
        server = connection.endings.get("server")
        if stream not in connection.streams or server is None or stream.stream_id in server.finished:
            continue
        end = _first_end(connection, context)
        if end is None or (end.code is None and end.role == "client"):
            why = f"the server sent all {stream.server_bytes} B on stream {stream.stream_id}, but no FIN"
            return _Fault(role="server", why=why, places=(connection.landmarks.server_last,), unfinished=True)
    return None


def _is_whole(stream: StreamFacts) -> bool:
    return stream.server_fin is not None and stream.server_bytes == stream.server_fin


# Transfers that ended early


def _unfinished(context: CaseEvidence) -> _Fault:
    """Who ended a transfer early, or fell silent: in the first connection that was not completed."""
    for connection in context.facts.connections:
        streams = connection.request_streams
        if streams and all(map(_is_whole, streams)):
            continue
        fault = _stopped(connection, context)
        via = context.evidence.via
        if fault.role == "server" and via is not None and via.splits_quic:
            return _Fault(unfinished=True)
        return replace(fault, unfinished=True)
    return _Fault()


def _stopped(connection: ConnectionFacts, context: CaseEvidence) -> _Fault:
    end, kept = _first_end(connection, context), _kept_back(connection)
    if kept.role:
        return kept
    if end is not None:
        silent = _silent(connection, end.time, context)
        if silent.role == _PEER[end.role]:
            return silent
        if end.code is not None:
            forgotten = end.role == "server" and _may_forget(connection)
            why = "the server ended a handshake before a whole ClientHello arrived, which breaks no rule"
            return _Fault(why=why) if forgotten else _Fault()
        upload, streams = context.case.upload, connection.request_streams
        arrived = sum(stream.client_bytes if upload else stream.server_bytes for stream in streams)
        total = sum(file.size for file in context.evidence.files)
        why = f"the {end.role} {end.act} when {arrived} of {total} B had arrived"
        return _Fault(role=end.role, why=why, places=(end.place,))
    client = context.evidence.client
    silent = _silent(connection, _client_end(connection, context), context)
    if silent.role or client.timed_out or client.stopped_by_us:
        return silent
    last = connection.endings["client"].last if "client" in connection.endings else None
    return _Fault(role="client", why="the client ended before the answer was complete", places=(last,))


def _kept_back(connection: ConnectionFacts) -> _Fault:
    """The endpoint without whose data its peer could not complete the handshake."""
    kept = {role: ending.kept_back for role, ending in connection.endings.items() if ending.kept_back is not None}
    if connection.handshake_completed or len(kept) != 1:
        return _Fault()
    ((role, place),) = kept.items()
    why = f"the {role} sent probes without its CRYPTO data that never arrived (RFC 9002 §6.2.4, RFC 9000 §13.3)"
    return _Fault(role=role, why=why, places=(place,))


def _client_end(connection: ConnectionFacts, context: CaseEvidence) -> float:
    """When the client sent nothing more, in seconds of the captures. A client that we stop at its time-out owes no
    answer to packets that arrive afterwards."""
    client = context.evidence.client
    if client.timed_out:
        own = connection.endings.get("client")
        sent = own.last.time or 0.0 if own is not None and own.last is not None else 0.0
        return max(sent, min(_death(context), context.case.timeout))
    last = max((each.last.time or 0.0 for each in connection.endings.values() if each.last), default=0.0)
    return last if client.ended is None else max(last, _death(context))


def _death(context: CaseEvidence) -> float:
    """When the client's container ended, in seconds of the captures. The clocks of a guest and of the host differ; then
    the client's duration is used."""
    client, evidence = context.evidence.client, context.evidence
    if client.ended is None:
        return float("inf")
    ended = evidence.started_unix_s + client.ended - (context.facts.origin_unix_ns or 0) / 1e9
    lived = client.ended - (client.started or 0.0)
    return ended if 0 <= ended <= lived else lived


def _silent(connection: ConnectionFacts, until: float, context: CaseEvidence) -> _Fault:
    """The endpoint that had to send the next packet, and sent none for several round trips before `until`."""
    rtt = context.case.forward.delay + context.case.return_.delay
    patience = max(_LEAST_PATIENCE, _RTTS * (rtt + _ACK_DELAY))
    ends = connection.endings
    for role, ending in sorted(ends.items(), key=lambda item: _time(item[1].first_unanswered)):
        if role == "server" and _may_forget(connection):
            continue
        if ending.unanswered and until - _time(ending.first_unanswered) >= patience:
            count = format_count(ending.unanswered, "ack-eliciting packet")
            why = f"the {role} sent nothing after {count} of the {_PEER[role]} had arrived (RFC 9000 §13.2.1)"
            return _Fault(role=role, why=why, places=(ending.last, ending.first_unanswered))
    for role, ending in ends.items():
        if role == "server" and not connection.handshake_completed:
            continue  # the anti-amplification limit may keep it from sending (RFC 9000 §8.1)
        first = ending.unacknowledged[0] if ending.unacknowledged else None
        waited = _time(ending.last) - _time(first)
        # The next probe is due after about the same time once more. After its idle time-out, an endpoint sends none.
        due = _time(ending.last) + max(patience, 2 * waited, 2 * ending.backoff)
        if first is not None and due <= min(until, _time(first) + _idle_timeout(connection)):
            why = f"the {role} did not repeat packets that nobody acknowledged (RFC 9002 §6.2.4)"
            return _Fault(role=role, why=why, places=(first, ending.last))
    # Whether a client that sends no more of an upload had credit is not known.
    return _Fault() if context.case.upload else _owed(connection, until - patience)


def _may_forget(connection: ConnectionFacts) -> bool:
    """Whether the server may end the handshake, because it has neither a whole ClientHello nor announced a time-out
    (RFC 9000 §10.1)."""
    hello = connection.client_hello
    return not connection.server_parameters and (hello is None or hello.arrived is False)


def _owed(connection: ConnectionFacts, until: float) -> _Fault:
    """The endpoint that did not continue a response that was not complete. `until`: the response must have stopped
    before."""
    server = connection.endings.get("server")
    for stream in connection.request_streams:
        stopped = stream.last_new_byte if stream.last_new_byte is not None else stream.request
        if _is_whole(stream) or server is None or stopped is None or stopped > until or server.unacknowledged:
            continue
        sent = f"{stream.server_bytes} B on stream {stream.stream_id}"
        if stream.client_fin is None or not stream.client_bytes:
            client = connection.endings.get("client")
            sent_all = client is not None and stream.stream_id in client.finished
            lack = "repeat its lost request" if sent_all else "end its request"
            why = f"the client did not {lack} on stream {stream.stream_id}"
            return _Fault(role="client", why=why, places=(connection.landmarks.client_last,))
        if stream.stream_id in server.blocked:
            why = f"the client granted no credit after {sent} (RFC 9000 §4.1)"
            return _Fault(role="client", why=why, places=(connection.landmarks.client_last,))
        if server.timed_out:
            continue
        why = f"the server sent nothing more after {sent}, without FIN, although it had credit"
        return _Fault(role="server", why=why, places=(connection.landmarks.server_last,))
    return _Fault()


def _idle_timeout(connection: ConnectionFacts) -> float:
    """Seconds after which an endpoint may give up the connection without a packet (RFC 9000 §10.1)."""
    stated = (each.get("max_idle_timeout") for each in (connection.client_parameters, connection.server_parameters))
    return min((each / 1000 for each in stated if isinstance(each, int) and each), default=float("inf"))


def _time(place: PacketPlace | None) -> float:
    return _known(None if place is None else place.time)


# The verdict on a job.


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
    if finding := unsupported(evidence, record, artifacts):
        return result.ending(Outcome.UNSUPPORTED, finding)
    if finding := flood(artifacts, record, evidence, truth):
        return result.ending(Outcome.FAILED, finding)
    traces = read_traces(artifacts, record, evidence, truth, result.ground, tcp=result.protocol in OVER_TCP)
    readable = not _unread(traces, case, record)
    result = _with_traces(result, traces, artifacts, evidence, readable=readable)
    if finding := broken_link(evidence, truth) or (switched_off(evidence) if traces.unrecorded else None):
        return result.ending(Outcome.FAILED, finding)
    if finding := unreachable(evidence, traces.deaf, f"no packet of the link reached the {traces.deaf}"):
        return result.ending(Outcome.FAILED, finding)
    lack = harness("disturbed", traces.unrecorded) if traces.unrecorded else None
    if finding := harness_fault(evidence, (truth, result.ground), record) or lack:
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
    if not broken:
        return result.ending(Outcome.UNSUPPORTED, *unable)
    return result.ending(Outcome.FAILED, *broken, *(replace(each, role="") for each in unable))


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
