"""LR: a handshake over an RTT of 1.5 s, longer than the initial probe time-out (RFC 9002 §6.2.2)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.stack import HTTP09, OVER_TCP
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless, reads
from testcases.links import LONGRTT


@keyless
@reads("initial")
def probes(case: CaseEvidence) -> Iterator[Finding]:
    """The client's probe time-out expired before any answer could arrive, and the client sent an ack-eliciting packet:
    its ClientHello again, or a PING in an Initial packet (RFC 9002 §6.2.4).

    The initial time-out of 999 ms is a SHOULD (§6.2.2). A client that waits longer is unsupported, not failed.
    """
    connections = case.facts.connections
    if connections and all(connection.probe is None for connection in connections):
        hellos = max(len(connection.landmarks.client_hellos) for connection in connections)
        at_once = f"; {hellos} ClientHellos, all at once" if hellos > 1 else ""
        yield Finding(
            code="no-probe",
            requirement="A client without an answer sends a probe when its probe time-out expires.",
            expected="an ack-eliciting Initial packet after the first flight, before any packet of the server arrives",
            actual=f"none{at_once}",
            role="client",
            section="RFC 9002 §6.2.2",
        ).proven_by(*(place for connection in connections for place in connection.landmarks.client_hellos))


CASE = Case(
    name="longrtt",
    abbreviation="LR",
    description="The handshake succeeds over an RTT of 1.5 s, and the client sends a probe while it waits.",
    wire_name="handshake",
    link=LONGRTT,
    files=(1 * KIB,),
    capabilities=(probes,),
    protocols=(HTTP09, *OVER_TCP),
    over_tcp=checks.OVER_TCP,
    checks=checks.ONE_CONNECTION,
)
