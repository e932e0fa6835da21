"""V: the server answers an unknown version with Version Negotiation (RFC 9000 §6, §17.2.1).

The client may then give up (RFC 9000 §6.2) or continue in a version that the server lists (RFC 9368 §2.1). Only a
client that continues must get the file.
"""

from collections.abc import Iterator

from runner.model.facts import ConnectionFacts, VersionNegotiation
from runner.model.result import Finding
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless, reads
from testcases.checks import QUIC_V1, version_text


@keyless
@reads("initial")
def is_negotiated(case: CaseEvidence) -> Iterator[Finding]:
    """The client offers an unknown version, and the server answers with Version Negotiation."""
    answered = [connection for connection in case.facts.connections if connection.version_negotiations]
    if not answered:
        yield from _unanswered(case.facts.connections[0])
    for connection in answered:
        for answer in connection.version_negotiations:
            yield from _judge(answer)


def _unanswered(first: ConnectionFacts) -> Iterator[Finding]:
    if first.original_version == QUIC_V1:
        finding = Finding(
            code="no-unknown-version",
            requirement="The client offers a version that the server doesn't support.",
            expected="a first packet of another version than 1",
            actual="a first packet of version 0x00000001",
            role="client",
            section="RFC 9000 §15",
        )
    else:
        finding = Finding(
            code="no-version-negotiation",
            requirement="A server answers an unknown version with Version Negotiation.",
            expected="a Version Negotiation packet",
            actual=f"none after a packet of version {version_text(first.original_version)}",
            role="server",
            section="RFC 9000 §6.1",
        )
    yield finding.proven_by(first.landmarks.client_first)


def _judge(answer: VersionNegotiation) -> Iterator[Finding]:
    if answer.listed is None:
        return
    listed = ", ".join(version_text(version) for version in answer.listed) or "no version"
    if answer.offered in answer.listed:
        yield Finding(
            code="offered-version-listed",
            requirement="A server sends Version Negotiation only when it doesn't support the offered version.",
            expected=f"a list without {version_text(answer.offered)}",
            actual=listed,
            role="server",
            section="RFC 9000 §6.1",
        ).proven_by(answer.place)
    if QUIC_V1 not in answer.listed:
        yield Finding(
            code="version-1-not-listed",
            requirement="Version Negotiation lists the server's versions; all other cases need version 1.",
            expected=f"a list with {version_text(QUIC_V1)}",
            actual=listed,
            role="server",
            section="RFC 9000 §6.1",
        ).proven_by(answer.place)


@keyless
def goes_on_as_listed(case: CaseEvidence) -> Iterator[Finding]:
    """A client that continues uses a listed version, closes cleanly, and gets its file."""
    done = [connection for connection in case.facts.connections if connection.handshake_completed]
    listed = {
        version
        for connection in case.facts.connections
        for answer in connection.version_negotiations
        for version in answer.listed or ()
    }
    for connection in done:
        if listed and connection.version not in listed:
            yield Finding(
                code="version-not-listed",
                requirement="After Version Negotiation, a client continues in a version that the server listed.",
                expected=", ".join(version_text(version) for version in sorted(listed)),
                actual=version_text(connection.version),
                role="client",
                section="RFC 9368 §2.1",
            ).proven_by(*connection.landmarks.client_hellos)
    if done:
        for check in checks.COMMON:
            yield from check(case)


CASE = Case(
    name="versionnegotiation",
    abbreviation="V",
    description="The client offers an unknown version, and the server answers with the list of its versions. A client "
    "that continues gets a 1 KiB file.",
    wire_name="versionnegotiation",
    files=(1 * KIB,),
    depends=("rfc9000-6.1-unknown-version-unanswered", "rfc9000-17.2.1"),
    checks=(is_negotiated, goes_on_as_listed),
)
