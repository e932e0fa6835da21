"""H: one handshake on the default link."""

from runner.model.run import Kind
from runner.model.stack import HTTP09, OVER_TCP
from runner.units import KIB
from testcases import checks
from testcases.base import Case
from testcases.links import DEFAULT

CASE = Case(
    name="handshake",
    abbreviation="H",
    kind=Kind.TEST_CASE,
    description="One handshake completes over QUIC version 1, without Retry, and a 1 KiB file arrives.",
    wire_name="handshake",
    link=DEFAULT,
    files=(1 * KIB,),
    exercises=(
        "rfc9000-2.2",
        "rfc9000-7",
        "rfc9000-12.5",
        "rfc9000-14.1",
        "rfc9000-17.2-",
        "rfc9000-18",
        "rfc9000-19.6",
        "rfc9000-19.20",
        "rfc9000-13.1",
        "rfc9001-4",
        "rfc9001-5",
        "rfc9001-8",
    ),
    protocols=(HTTP09, *OVER_TCP),
    over_tcp=checks.OVER_TCP,
    checks=(*checks.ONE_CONNECTION, checks.no_retry),
)
