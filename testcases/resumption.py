"""R: the second connection resumes the session of the first connection (RFC 8446 §2.2)."""

from collections.abc import Iterator

from runner.model.facts import ConnectionFacts
from runner.model.result import Finding
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless


@keyless
def second_is_resumed(case: CaseEvidence) -> Iterator[Finding]:
    """The first connection has a Certificate; the second connection has a pre-shared key and no Certificate.

    Without the secrets of Handshake packets, the ServerHello decides: a server sends a Certificate exactly when it
    chooses no pre-shared key (RFC 8446 §4.4.2)."""
    done = [connection for connection in case.facts.connections if connection.handshake_completed]
    if done and not _has_certificate(done[0], case):
        yield Finding(
            code="first-without-certificate",
            requirement="The first connection authenticates the server by its certificate.",
            expected="a Certificate message",
            actual="none was seen",
            role="server",
            section="RFC 8446 §4.4.2",
        ).proven_by(done[0].landmarks.server_hello)
    for connection in done[1:]:
        certificate = _has_certificate(connection, case)
        if not connection.resumed or certificate:
            yield Finding(
                code="not-resumed",
                requirement="The second connection resumes the session of the first.",
                expected="a pre-shared key in ServerHello, and no Certificate",
                actual=f"pre-shared key {_word(connection.resumed)}, Certificate {_word(certificate)}",
                section="RFC 8446 §2.2",
            ).proven_by(connection.landmarks.server_hello)


def _has_certificate(connection: ConnectionFacts, case: CaseEvidence) -> bool:
    return not connection.resumed if case.facts.no_secrets else connection.certificate_sent


def _word(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


CASE = Case(
    name="resumption",
    abbreviation="R",
    description="Files of 5 and 10 KiB arrive over two connections; the second resumes the session of the first.",
    wire_name="resumption",
    files=(5 * KIB, 10 * KIB),
    checks=(*checks.TWO_CONNECTIONS, second_is_resumed),
)
