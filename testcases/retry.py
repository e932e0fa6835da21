"""S: the server validates the client's address by Retry (RFC 9000 §8.1.2)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless


@keyless
def retry_was_used(case: CaseEvidence) -> Iterator[Finding]:
    """The server sends at least one Retry (RFC 9000 §17.2.5)."""
    if not any(connection.retries for connection in case.facts.connections):
        yield Finding(
            code="no-retry",
            requirement="The server sends Retry before it accepts a connection.",
            expected="at least one Retry packet",
            actual="none",
            role="server",
            section="RFC 9000 §8.1.2",
        ).proven_by(*(connection.landmarks.server_hello for connection in case.facts.connections))


CASE = Case(
    name="retry",
    abbreviation="S",
    description="The server validates the client's address by Retry, and a 10 KiB file arrives.",
    wire_name="retry",
    files=(10 * KIB,),
    depends=("rfc9000-17.2.5.3-token-not-echoed", "rfc9000-17.2.5.3-number-reset", "rfc9001-5.8"),
    checks=(*checks.ONE_CONNECTION, retry_was_used),
)
