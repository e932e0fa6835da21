"""S: the server validates the client's address by Retry (RFC 9000 §8.1.2)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from runner.model.stack import HTTP09
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless, proven
from testcases.links import DEFAULT


@keyless
def retry_was_used(case: CaseEvidence) -> Iterator[Finding]:
    """The server sends at least one Retry (RFC 9000 §17.2.5)."""
    if not any(connection.retries for connection in case.facts.connections):
        finding = Finding(
            code="no-retry",
            requirement="The server sends Retry before it accepts a connection.",
            expected="at least one Retry packet",
            actual="none",
            role="server",
            section="RFC 9000 §8.1.2",
        )
        yield proven(finding, *(connection.landmarks.server_hello for connection in case.facts.connections))


CASE = Case(
    name="retry",
    abbreviation="S",
    kind=Kind.TEST_CASE,
    description="The server validates the client's address by Retry, and a 10 KiB file arrives.",
    wire_name="retry",
    link=DEFAULT,
    files=(10 * KIB,),
    depends=("rfc9000-17.2.5.3-token-not-echoed", "rfc9000-17.2.5.3-number-reset", "rfc9001-5.8"),
    checks=(*checks.COMMON, checks.Handshakes(1), checks.version_is_1, checks.Alpn(HTTP09), retry_was_used),
)
