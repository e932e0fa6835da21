"""L2: a transfer on a link that loses 2 % of the packets."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence
from testcases.scenarios import LOSS_2


def loss_hit(case: CaseEvidence) -> Iterator[Finding]:
    """The simulator says that it lost packets of the download; otherwise nothing was asked."""
    lost = case.truth.forward.dropped_loss if case.truth else 0
    if not lost:
        yield Finding(
            code="loss-missed",
            requirement="The link loses packets of the transfer.",
            expected="at least one packet lost by the model on the forward link",
            actual=f"{lost}",
        )


CASE = Case(
    name="transferloss",
    abbreviation="L2",
    kind=Kind.TEST_CASE,
    description="A 2 MiB file arrives although 2 % of the packets are lost both ways.",
    wire_name="transfer",
    scenario=LOSS_2,
    files=(2 * MIB,),
    preconditions=(loss_hit,),
    checks=checks.ONE_CONNECTION,
)
