"""B: during the transfer, the path carries nothing for 2 s."""

from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case
from testcases.hits import Hit
from testcases.links import BLACKHOLE

CASE = Case(
    name="blackhole",
    abbreviation="B",
    kind=Kind.TEST_CASE,
    description="A 10 MiB transfer continues after 2 s without any packet.",
    wire_name="transfer",
    link=BLACKHOLE,
    files=(10 * MIB,),
    timeout=60.0,
    preconditions=(Hit("dropped_outage"),),
    exercises=("rfc9000-12.3", "rfc9000-13.1"),
    checks=checks.ONE_CONNECTION,
)
