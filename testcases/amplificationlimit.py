"""A: the server keeps to three times what it received until it knows the client's address (RFC 9000 §8.1)."""

from collections.abc import Iterator

from runner.model.implementation import Role
from runner.model.result import Finding
from runner.model.run import Kind
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, proven
from testcases.hits import Hit
from testcases.scenarios import CLIENT_LOSS_2_7


def keeps_the_limit(case: CaseEvidence) -> Iterator[Finding]:
    """At no moment before validation had the server sent more than three times the bytes that it received."""
    for number, connection in enumerate(case.facts.connections):
        found = connection.amplification
        if found is None or not found.excess:
            continue
        requirement = "Until the client's address is validated, a server sends at most three times what it received."
        finding = Finding(
            code="amplification-limit-exceeded",
            requirement=requirement,
            expected=f"at most {3 * found.received} B after {found.received} B received",
            actual=f"connection {number}: {found.sent} B, {found.excess} B too many",
            role="server",
            section="RFC 9000 §8.1",
        )
        yield proven(finding, found.place)


CASE = Case(
    name="amplificationlimit",
    abbreviation="A",
    kind=Kind.TEST_CASE,
    description="A server with a chain of 9 certificates waits for the client, whose packets 2 to 7 are lost; "
    "5 KiB arrive.",
    wire_name="transfer",
    judges=(Role.SERVER,),
    scenario=CLIENT_LOSS_2_7,
    files=(5 * KIB,),
    chain_length=9,
    preconditions=(Hit("dropped_loss", forward=False),),
    checks=(*checks.ONE_CONNECTION, keeps_the_limit),
)
