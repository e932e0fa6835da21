"""C2: a transfer on a link that corrupts 2 % of the packets, and delivers them."""

from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case
from testcases.hits import Hit
from testcases.links import CORRUPTION_2

CASE = Case(
    name="transfercorruption",
    abbreviation="C2",
    kind=Kind.TEST_CASE,
    description="A 2 MiB file arrives although 2 % of the packets arrive corrupted.",
    wire_name="transfer",
    link=CORRUPTION_2,
    files=(2 * MIB,),
    timeout=60.0,
    iterations=5,
    preconditions=(Hit("corrupted"),),
    exercises=("rfc9000-12.3", "rfc9000-13.1"),
    checks=checks.ONE_CONNECTION,
)
