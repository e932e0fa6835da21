"""LR: a handshake over an RTT of 1.5 s, longer than the initial probe time-out (RFC 9002 §6.2.2)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, proven, reads
from testcases.scenarios import LONGRTT


@reads("initial")
def client_hello_was_repeated(case: CaseEvidence) -> Iterator[Finding]:
    """The client's probe time-out (999 ms at the start, RFC 9002 §6.2.2) fired before any answer could arrive."""
    sent = max((connection.client_hello_count for connection in case.facts.connections), default=0)
    if sent < 2:
        finding = Finding(
            code="client-hello-not-repeated",
            requirement="Without an answer, a client sends its ClientHello again when its probe time-out expires.",
            expected="at least 2 Initial packets with the start of the ClientHello",
            actual=f"{sent}",
            role="client",
            section="RFC 9002 §6.2.2",
        )
        yield proven(finding, *(place for one in case.facts.connections for place in one.landmarks.client_hellos))


CASE = Case(
    name="longrtt",
    abbreviation="LR",
    kind=Kind.TEST_CASE,
    description="The handshake survives an RTT of 1.5 s, and the client repeats its ClientHello meanwhile.",
    wire_name="handshake",
    scenario=LONGRTT,
    files=(1 * KIB,),
    checks=(*checks.ONE_CONNECTION, client_hello_was_repeated),
)
