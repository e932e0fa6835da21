"""Finds the endpoint that is at fault for a different or missing file. The packets show the requests and the sent
data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.inputs.inputs import ServedFile
from runner.model.artifacts import FileRecord
from runner.model.result import Finding
from runner.trace import Close, ConnectionFacts, Place, Request
from runner.units import format_count
from testcases.base import CaseEvidence, proven

CODE = "files-differ"
_UNKNOWN = "the packets do not show whose fault it is"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why the client did not receive a file correctly. `role`: the endpoint at fault; empty when the packets do not
    show it."""

    role: str = ""
    why: str = _UNKNOWN
    places: tuple[Place | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A request for one file. `arrived`: bytes of the answer that reached the client. `final_size`: the final size of
    the server's stream."""

    request: Request
    arrived: int
    final_size: int | None
    connection: ConnectionFacts

    @property
    def is_whole(self) -> bool:
        return self.arrived == self.final_size


def with_file_faults(findings: tuple[Finding, ...], context: CaseEvidence, *, readable: bool) -> tuple[Finding, ...]:
    """The findings, with the role at fault in findings about files that differ. When the packets do not show the fault,
    these findings state so. `readable`: all packets that the case needs could be read."""
    return tuple(_attributed(finding, context, readable) if finding.code == CODE else finding for finding in findings)


def _attributed(finding: Finding, context: CaseEvidence, readable: bool) -> Finding:
    wrong = [file for file in context.evidence.files if not file.equal]
    faults = [_fault(file, context) if readable else Fault() for file in wrong]
    roles = {fault.role for fault in faults}
    fault = faults[0] if len(roles) == 1 else Fault()
    why = f"{wrong[0].name}: {fault.why}" if len(wrong) > 1 and fault.role else fault.why
    attributed = replace(finding, role=fault.role, actual=f"{finding.actual}; {why}")
    return proven(attributed, *(place for each in faults if fault.role for place in each.places))


def _fault(file: FileRecord, context: CaseEvidence) -> Fault:
    """The fault that caused one different or missing file."""
    connections = context.facts.connections
    if not connections or any(connection.requests is None for connection in connections):
        return Fault()
    answers = list(_answers(file, context))
    if not answers:
        return _never_requested(connections)
    fault = _of_answer(file, max(answers, key=lambda answer: answer.arrived), context.evidence.content_seed)
    via = context.evidence.via
    return Fault() if fault.role == "server" and via is not None and via.splits_quic else fault


def _answers(file: FileRecord, context: CaseEvidence) -> Iterator[_Answer]:
    for connection in context.facts.connections:
        streams = {stream.stream_id: stream for stream in connection.streams}
        for request in connection.requests or ():
            if request.name == file.name:
                stream = streams[request.stream_id]
                yield _Answer(
                    request=request,
                    arrived=stream.server_bytes,
                    final_size=stream.server_fin,
                    connection=connection,
                )


def _never_requested(connections: tuple[ConnectionFacts, ...]) -> Fault:
    """A file without a request is the client's fault, with three exceptions: the server closed the connection, the
    server allowed no further stream, or the request may be in a packet that could not be decrypted."""
    ready = [connection for connection in connections if connection.handshake_completed_by_client]
    hidden = any(connection.early_data_unread for connection in connections)
    if not ready or hidden or any(_stopped_by_server(connection) for connection in ready):
        return Fault()
    last = ready[-1].landmarks.client_last
    return Fault(role="client", why="the client never requested it", places=(last,))


def _stopped_by_server(connection: ConnectionFacts) -> bool:
    limit = connection.max_streams_bidi
    used_up = limit is not None and len(connection.request_streams) >= limit
    closed = _first_close(connection)
    return used_up or (closed is not None and closed.sender == "server")


def _of_answer(file: FileRecord, answer: _Answer, seed: int | None) -> Fault:
    places = (answer.request.place, answer.request.answer_end)
    if not answer.is_whole:
        return _unfinished(file, answer)
    if answer.final_size != file.size:
        why = f"the server's answer has {answer.final_size} of {file.size} B"
        return Fault(role="server", why=why, places=places)
    if seed is not None:
        content = ServedFile(name=file.name, size=file.size, seed=seed).content()[: len(answer.request.answer)]
        if answer.request.answer != content:
            return Fault(role="server", why="the server sent other content", places=places)
    if file.received != file.size:
        return Fault(role="client", why=f"all {format_count(file.size, 'byte')} reached the client", places=places)
    if seed is not None and len(answer.request.answer) == file.size:
        return Fault(role="client", why="the right content reached the client", places=places)
    return Fault()


def _unfinished(file: FileRecord, answer: _Answer) -> Fault:
    """The fault of the endpoint that closed the connection without an error before the answer was complete."""
    close = _first_close(answer.connection)
    if close is None or (close.code and not close.application):
        return Fault()
    why = f"the {close.sender} closed the connection when {answer.arrived} of {file.size} B had arrived"
    return Fault(role=close.sender, why=why, places=(close.place,))


def _first_close(connection: ConnectionFacts) -> Close | None:
    closes = [close for close in connection.closes if close.time is not None]
    return min(closes, key=lambda close: close.time or 0.0, default=None)
