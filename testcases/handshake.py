"""H: one handshake on the default link."""

from runner.model.stack import HTTP09, OVER_TCP
from runner.units import KIB
from testcases import checks
from testcases.base import Case

CASE = Case(
    name="handshake",
    abbreviation="H",
    description="One handshake completes over QUIC version 1, without Retry, and a 1 KiB file arrives.",
    wire_name="handshake",
    files=(1 * KIB,),
    protocols=(HTTP09, *OVER_TCP),
    over_tcp=checks.OVER_TCP,
    checks=(*checks.ONE_CONNECTION, checks.no_retry),
)
