"""M: 1999 small files over one connection, more streams than the first limit allows."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from testcases import checks
from testcases.base import Case, CaseEvidence, proven
from testcases.scenarios import DEFAULT

_MOST_AT_FIRST = 1000  # the public runner's rule: otherwise the limit would not be met
_FILES = 1999


def streams_were_refilled(case: CaseEvidence) -> Iterator[Finding]:
    """The server's first limit is at most 1000 streams, and MAX_STREAMS raised it (RFC 9000 §4.6)."""
    for connection in case.facts.connections:
        first, last = connection.initial_max_streams_bidi, connection.max_streams_bidi
        if first is None or first > _MOST_AT_FIRST:
            finding = Finding(
                code="stream-limit-too-high",
                requirement="The server lets the client open at most 1000 streams at first.",
                expected="initial_max_streams_bidi of at most 1000",
                actual=str(first),
                role="server",
                section="RFC 9000 §18.2",
            )
            yield proven(finding, connection.landmarks.server_parameters)
        elif last is None or last < len(connection.request_streams) or last <= first:
            finding = Finding(
                code="streams-not-refilled",
                requirement="The server raises the limit by MAX_STREAMS as streams close.",
                expected=f"a limit above {first}, as {len(case.case.file_sizes)} requests need",
                actual=f"{last}, for {len(connection.request_streams)} requests",
                role="server",
                section="RFC 9000 §4.6",
            )
            yield proven(finding, connection.landmarks.server_parameters, connection.landmarks.server_last)


CASE = Case(
    name="multiplexing",
    abbreviation="M",
    kind=Kind.TEST_CASE,
    description="1999 files of 32 B arrive over one connection, whose stream limit is raised on the way.",
    wire_name="transfer",
    scenario=DEFAULT,
    files=(32,) * _FILES,
    checks=(*checks.ONE_CONNECTION, streams_were_refilled),
)
