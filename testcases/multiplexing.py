"""M: 1999 small files over one connection, more streams than the first limit allows."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import format_count
from testcases import checks
from testcases.base import Case, CaseEvidence

_MOST_AT_FIRST = 1000  # highest first limit that the public runner allows
_FILES = 1999


def limit_is_met(case: CaseEvidence) -> Iterator[Finding]:
    """The server's first limit is smaller than the number of requests; otherwise the server need not raise it."""
    for connection in case.facts.connections:
        first, requests = connection.initial_max_streams_bidi, len(case.case.file_sizes)
        if first is not None and first >= requests:
            yield Finding(
                code="stream-limit-not-met",
                requirement="The client needs more streams than the server allows at first.",
                expected=f"initial_max_streams_bidi below {requests}",
                actual=str(first),
                role="server",
                section="RFC 9000 §4.6",
            ).proven_by(connection.landmarks.server_parameters)


def streams_were_refilled(case: CaseEvidence) -> Iterator[Finding]:
    """MAX_STREAMS raised the server's first limit to at least the number of requests (RFC 9000 §4.6)."""
    for connection in case.facts.connections:
        first, last = connection.initial_max_streams_bidi, connection.max_streams_bidi
        if last is None or last < len(connection.request_streams) or last <= (first or 0):
            yield Finding(
                code="streams-not-refilled",
                requirement="The server raises the limit by MAX_STREAMS as streams close.",
                expected=f"a limit above {first}, for {format_count(len(case.case.file_sizes), 'request')}",
                actual=f"{last}, for {format_count(len(connection.request_streams), 'request')}",
                role="server",
                section="RFC 9000 §4.6",
            ).proven_by(connection.landmarks.server_parameters, connection.landmarks.server_last)


def limit_is_high(case: CaseEvidence) -> Iterator[Finding]:
    """A note: in the public runner, a server fails when its first limit is above 1000. No RFC and no rule of the
    contract forbids this."""
    for connection in case.facts.connections:
        first = connection.initial_max_streams_bidi
        if first is not None and first > _MOST_AT_FIRST:
            yield Finding(
                code="stream-limit-high",
                requirement="The public runner wants the server to let the client open at most 1000 streams at first.",
                expected=f"initial_max_streams_bidi of at most {_MOST_AT_FIRST}",
                actual=str(first),
                role="server",
                section="RFC 9000 §18.2",
            ).proven_by(connection.landmarks.server_parameters)


CASE = Case(
    name="multiplexing",
    abbreviation="M",
    description="1999 files of 32 B arrive over one connection, whose stream limit the server raises.",
    wire_name="transfer",
    files=(32,) * _FILES,
    capabilities=(limit_is_met,),
    depends=("rfc9000-4.6-too-many-streams",),
    checks=(*checks.ONE_CONNECTION, streams_were_refilled),
    notes=(limit_is_high,),
)
