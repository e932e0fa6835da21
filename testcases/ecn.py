"""E: both endpoints mark packets as ECN-capable and report received marks (RFC 9000 §13.4)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import KIB, format_count
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless
from testcases.links import MARKING

_CLEARLY = 3  # packets with CE after which a report is required; the last packets of a connection may get no ACK


@keyless
def marks_are_sent(case: CaseEvidence) -> Iterator[Finding]:
    """Each endpoint sends ECT."""
    for connection in case.facts.connections:
        for role, own in (("client", connection.client_ecn), ("server", connection.server_ecn)):
            if own.sent is None or not own.sent.ect:
                yield Finding(
                    code="no-ect",
                    requirement="An endpoint marks its packets with ECT(0) or ECT(1).",
                    expected=f"marked packets of the {role}",
                    actual="none",
                    role=role,
                    section="RFC 9000 §13.4.2",
                ).proven_by(own.first_sent)


def marks_are_reported(case: CaseEvidence) -> Iterator[Finding]:
    """Each endpoint reports received ECT and CE marks in ACK frames."""
    for connection in case.facts.connections:
        for role, own in (("client", connection.client_ecn), ("server", connection.server_ecn)):
            marks_arrived = own.received is None or own.received.ect or own.received.ce
            if marks_arrived and not own.ack_frames_with_counts:
                yield Finding(
                    code="no-ecn-counts",
                    requirement="An endpoint that receives marks reports them in its ACK frames.",
                    expected=f"ACK frames of type 0x03 from the {role}",
                    actual="none",
                    role=role,
                    section="RFC 9000 §13.4.1",
                ).proven_by(own.highest_report)
            elif own.received is not None and own.received.ce >= _CLEARLY and not own.reported.ce:
                yield Finding(
                    code="ce-not-reported",
                    requirement="An endpoint counts the packets that arrive with CE, and reports them.",
                    expected=f"an ECN-CE count above 0, for {format_count(own.received.ce, 'packet')} with CE",
                    actual=f"0, and {own.reported.ect} as ECT",
                    role=role,
                    section="RFC 9000 §13.4.1",
                ).proven_by(own.highest_report)


CASE = Case(
    name="ecn",
    abbreviation="E",
    description="A 100 KiB file arrives in marked packets, and both endpoints report the received marks, including CE "
    "of a busy link.",
    wire_name="ecn",
    link=MARKING,
    files=(100 * KIB,),
    depends=("rfc9000-13.4", "rfc9000-19.3.2"),
    checks=(*checks.ONE_CONNECTION, marks_are_sent, marks_are_reported),
)
