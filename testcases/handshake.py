"""H: one handshake on the default link."""

from runner.model.run import Kind
from runner.units import KIB
from testcases import checks
from testcases.base import Case
from testcases.scenarios import DEFAULT

CASE = Case(
    name="handshake",
    abbreviation="H",
    kind=Kind.TEST_CASE,
    description="One handshake completes over QUIC version 1, without Retry, and a 1 KiB file arrives.",
    wire_name="handshake",
    scenario=DEFAULT,
    files=(1 * KIB,),
    checks=(*checks.ONE_CONNECTION, checks.no_retry),
)
