"""L2: a transfer on a link that loses 2 % of the packets."""

from runner.model.run import Kind
from runner.model.stack import HTTP09, OVER_TCP
from runner.units import MIB
from testcases import checks
from testcases.base import Case
from testcases.hits import Hit
from testcases.links import LOSS_2

CASE = Case(
    name="transferloss",
    abbreviation="L2",
    kind=Kind.TEST_CASE,
    description="A 2 MiB file arrives although 2 % of the packets are lost both ways.",
    wire_name="transfer",
    link=LOSS_2,
    files=(2 * MIB,),
    iterations=5,
    preconditions=(Hit("dropped_loss", return_=False),),
    protocols=(HTTP09, *OVER_TCP),
    over_tcp=checks.OVER_TCP,
    exercises=("rfc9000-2.2", "rfc9000-12.3", "rfc9000-13.1"),
    checks=checks.ONE_CONNECTION,
)
