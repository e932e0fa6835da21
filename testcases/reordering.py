"""RO: 5 % of the packets are 10 ms late; on a full link, eight later packets overtake each of them (RFC 9002 §6.1)."""

from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case
from testcases.hits import Hit
from testcases.links import REORDER_5

CASE = Case(
    name="reordering",
    abbreviation="RO",
    kind=Kind.TEST_CASE,
    description="A 2 MiB file arrives although other packets overtake 5 % of the packets in both directions.",
    wire_name="transfer",
    link=REORDER_5,
    files=(2 * MIB,),
    iterations=3,
    preconditions=(Hit("held_back", least=5),),
    exercises=("rfc9000-12.3", "rfc9000-13.1", "rfc9000-17.1"),
    checks=checks.ONE_CONNECTION,
)
