"""V2: compatible version negotiation from version 1 to version 2 (RFC 9368, RFC 9369)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.stack import HTTP09
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless
from testcases.checks import version_text

_V2 = 0x6B3343CF


@keyless
def upgraded(case: CaseEvidence) -> Iterator[Finding]:
    """The client begins with version 1, and both end with version 2."""
    for connection in case.facts.connections:
        marks = connection.landmarks
        if (connection.original_version, connection.version) != (checks.QUIC_V1, _V2):
            finding = Finding(
                code="not-upgraded",
                requirement="The client offers version 2 in a version 1 Initial packet, and the server changes to it.",
                expected=f"{version_text(checks.QUIC_V1)} → {version_text(_V2)}",
                actual=f"{version_text(connection.original_version)} → {version_text(connection.version)}",
                section="RFC 9368 §2.3",
            )
            began_well = connection.original_version == checks.QUIC_V1
            yield finding.proven_by(*([] if began_well else marks.client_hellos), marks.server_hello)


CASE = Case(
    name="v2",
    abbreviation="V2",
    description="A connection begins in QUIC version 1, becomes version 2, and a 1 KiB file arrives.",
    wire_name="v2",
    files=(1 * KIB,),
    depends=("rfc9368", "rfc9369"),
    checks=(*checks.COMMON, checks.Handshakes(1), checks.Alpn(HTTP09), upgraded),
)
