"""S: the server validates the client's address by Retry (RFC 9000 §8.1.2)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from runner.model.stack import HTTP09
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless, proven
from testcases.links import DEFAULT

CODES = {
    "no-retry": "The server sent no Retry.",
}


@keyless
def retry_was_used(case: CaseEvidence) -> Iterator[Finding]:
    """The server sends at least one Retry with a correct integrity tag. The client echoes the token of the Retry,
    and does not reset its packet number (RFC 9000 §17.2.5)."""
    retried = [connection for connection in case.facts.connections if connection.retries]
    if not retried:
        finding = Finding(
            code="no-retry",
            requirement="The server sends Retry before it accepts a connection.",
            expected="at least one Retry packet",
            actual="none",
            role="server",
            section="RFC 9000 §8.1.2",
        )
        yield proven(finding, *(connection.landmarks.server_hello for connection in case.facts.connections))
    for connection in retried:
        retry, answer = connection.landmarks.retries, (connection.landmarks.after_retry,)
        for holds, code, role, section, requirement, places in (
            (
                connection.retry_integrity_ok,
                "retry-tag-wrong",
                "server",
                "RFC 9001 §5.8",
                "The Retry Integrity Tag matches the client's first destination connection ID.",
                retry,
            ),
            (
                connection.retry_token_echoed,
                "retry-token-not-echoed",
                "client",
                "RFC 9000 §17.2.5.3",
                "The client's next Initial carries the token of the Retry.",
                answer,
            ),
            (
                connection.packet_number_reset is False,
                "packet-number-reset",
                "client",
                "RFC 9000 §17.2.5.3",
                "The client doesn't reset its packet number after Retry.",
                answer,
            ),
        ):
            if holds is not True:
                actual = "could not be read" if holds is None else "no"
                finding = Finding(
                    code=code, requirement=requirement, expected="yes", actual=actual, role=role, section=section
                )
                yield proven(finding, *places)


CASE = Case(
    name="retry",
    abbreviation="S",
    kind=Kind.TEST_CASE,
    description="The server validates the client's address by Retry, and a 10 KiB file arrives.",
    wire_name="retry",
    link=DEFAULT,
    files=(10 * KIB,),
    exercises=(
        "rfc9000-17.2.5",
        "rfc9000-7.3",
        "rfc9001-5.8",
    ),
    depends=("rfc9000-17.2.5.3-token-not-echoed", "rfc9000-17.2.5.3-number-reset", "rfc9001-5.8"),
    checks=(
        *checks.COMMON,
        checks.Handshakes(1),
        checks.version_is_1,
        checks.Alpn(HTTP09),
        retry_was_used,
    ),
)
