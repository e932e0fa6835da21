"""AL: only the return link loses packets (20 %, in bursts). Later ACKs repeat lost ACK ranges (RFC 9000 §13.2.3)."""

from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case
from testcases.hits import Hit
from testcases.links import RETURN_LOSS_20

CASE = Case(
    name="ackloss",
    abbreviation="AL",
    kind=Kind.TEST_CASE,
    description="A 2 MiB file arrives although 20 % of the client's packets, which carry its ACKs, are lost in bursts.",
    wire_name="transfer",
    link=RETURN_LOSS_20,
    files=(2 * MIB,),
    iterations=3,
    preconditions=(Hit("dropped_loss", forward=False, least=5),),
    exercises=("rfc9000-12.3", "rfc9000-13.1"),
    checks=checks.ONE_CONNECTION,
)
