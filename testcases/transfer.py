"""DC: three files at once over one connection, which takes concurrent streams and extended flow control."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence
from testcases.scenarios import DEFAULT


def streams_were_concurrent(case: CaseEvidence) -> Iterator[Finding]:
    """The three requests were open at the same time (RFC 9000 §2), not fetched one after the other."""
    most = max((connection.max_concurrent_streams for connection in case.facts.connections), default=0)
    if most < len(case.case.file_sizes):
        yield Finding(
            code="not-concurrent",
            requirement="The client requests all files at once, each on a stream of its own.",
            expected=f"{len(case.case.file_sizes)} streams open at the same time",
            actual=f"at most {most}",
            role="client",
            section="RFC 9000 §2",
        )


def window_was_extended(case: CaseEvidence) -> Iterator[Finding]:
    """If the response was larger than the client's first window, the client extended it (RFC 9000 §4.2)."""
    for connection in case.facts.connections:
        if connection.flow_window_exceeded and not connection.flow_window_extended:
            yield Finding(
                code="flow-control-violated",
                requirement="A sender stays within the credit of MAX_DATA and MAX_STREAM_DATA.",
                expected="MAX_DATA or MAX_STREAM_DATA from the client before the server passes the first window",
                actual="the server sent more than the window, and the client never extended it",
                role="server",
                section="RFC 9000 §4.1",
            )


CASE = Case(
    name="transfer",
    abbreviation="DC",
    kind=Kind.TEST_CASE,
    description="Files of 2, 3 and 5 MiB arrive over one connection on concurrent streams; windows are extended.",
    wire_name="transfer",
    scenario=DEFAULT,
    files=(2 * MIB, 3 * MIB, 5 * MIB),
    checks=(*checks.ONE_CONNECTION, streams_were_concurrent, window_was_extended),
)
