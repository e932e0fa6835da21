"""C20: the client offers only TLS_CHACHA20_POLY1305_SHA256, and the server chooses this suite."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless

_CHACHA20 = 0x1303
# TLS_EMPTY_RENEGOTIATION_INFO_SCSV is not a cipher suite: OpenSSL and its forks always add it (RFC 5746 §3.3).
_SIGNALLING = 0x00FF


def _is_grease(suite: int) -> bool:
    """True when the value is reserved for GREASE, which keeps servers tolerant of unknown values (RFC 8701 §2)."""
    return suite & 0x0F0F == 0x0A0A and suite >> 8 == suite & 0xFF


@keyless
def only_chacha20(case: CaseEvidence) -> Iterator[Finding]:
    """The client offers no other suite, and the server chooses this suite (RFC 8446 §B.4)."""
    for connection in case.facts.connections:
        offered = [suite for suite in connection.offered_suites if suite != _SIGNALLING and not _is_grease(suite)]
        if offered != [_CHACHA20]:
            yield Finding(
                code="other-suites-offered",
                requirement="The client offers TLS_CHACHA20_POLY1305_SHA256 and no other suite.",
                expected="0x1303",
                actual=", ".join(f"0x{suite:04x}" for suite in offered) or "no ClientHello could be read",
                role="client",
                section="RFC 8446 §B.4",
            ).proven_by(*connection.landmarks.client_hellos)
        elif connection.suite != "TLS_CHACHA20_POLY1305_SHA256":
            yield Finding(
                code="other-suite-chosen",
                requirement="The server chooses a suite that the client offered.",
                expected="TLS_CHACHA20_POLY1305_SHA256",
                actual=str(connection.suite),
                role="server",
                section="RFC 8446 §4.1.3",
            ).proven_by(connection.landmarks.server_hello)


CASE = Case(
    name="chacha20",
    abbreviation="C20",
    description="A 3 MiB file arrives under ChaCha20-Poly1305, the only suite that the client offers.",
    wire_name="chacha20",
    files=(3 * MIB,),
    checks=(*checks.ONE_CONNECTION, only_chacha20),
)
