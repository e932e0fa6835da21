"""6: all packets use IPv6."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless


@keyless
def only_ipv6(case: CaseEvidence) -> Iterator[Finding]:
    """No QUIC datagram went over IPv4."""
    if case.facts.ip_versions != frozenset({6}):
        yield Finding(
            code="not-ipv6",
            requirement="The client reaches server6, which has only an IPv6 address.",
            expected="QUIC only over IPv6",
            actual=", ".join(f"IPv{version}" for version in sorted(case.facts.ip_versions)) or "no QUIC",
            role="client",
            section="endpoint contract, Network",
        ).proven_by(case.facts.ipv4)


CASE = Case(
    name="ipv6",
    abbreviation="6",
    description="Files of 5 and 10 KiB arrive over IPv6.",
    wire_name="transfer",
    files=(5 * KIB, 10 * KIB),
    host="server6",
    checks=(*checks.ONE_CONNECTION, only_ipv6),
)
