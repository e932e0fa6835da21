"""3: three files over HTTP/3 (RFC 9114)."""

from collections.abc import Iterator

from runner.model.protocol import HTTP3, HTTP3_WIRE_NAME
from runner.model.result import Finding
from runner.model.run import Kind
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, proven
from testcases.scenarios import DEFAULT

_CLIENT_UNIDIRECTIONAL, _SERVER_UNIDIRECTIONAL = 2, 3  # RFC 9000 §2.1, the two low bits of a stream ID


def control_streams_are_open(case: CaseEvidence) -> Iterator[Finding]:
    """Both sides opened unidirectional streams, of which HTTP/3 needs one for control (RFC 9114 §6.2.1)."""
    for connection in case.facts.connections:
        for role, kind in (("client", _CLIENT_UNIDIRECTIONAL), ("server", _SERVER_UNIDIRECTIONAL)):
            if not any(stream.stream_id % 4 == kind for stream in connection.streams):
                finding = Finding(
                    code="no-control-stream",
                    requirement="Each side opens a control stream.",
                    expected="a unidirectional stream",
                    actual="none",
                    role=role,
                    section="RFC 9114 §6.2.1",
                )
                yield proven(finding, *connection.landmarks.requests[:1])


CASE = Case(
    name="http3",
    abbreviation="3",
    kind=Kind.TEST_CASE,
    description="Files of 5, 10 and 500 KiB arrive over HTTP/3.",
    wire_name=HTTP3_WIRE_NAME,
    protocols=(HTTP3,),
    scenario=DEFAULT,
    files=(5 * KIB, 10 * KIB, 500 * KIB),
    checks=(
        *checks.COMMON,
        checks.Handshakes(1),
        checks.version_is_1,
        checks.no_retry,
        checks.Alpn(HTTP3),
        control_streams_are_open,
    ),
)
