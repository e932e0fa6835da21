"""3: three files over HTTP/3 (RFC 9114)."""

from runner.model.stack import HTTP3, WIRE_NAMES
from runner.units import KIB
from testcases import checks
from testcases.base import Case

CASE = Case(
    name="http3",
    abbreviation="3",
    description="Files of 5, 10 and 500 KiB arrive over HTTP/3.",
    wire_name=WIRE_NAMES[HTTP3],
    protocols=(HTTP3,),
    files=(5 * KIB, 10 * KIB, 500 * KIB),
    depends=("rfc9114-6.2.1-no-control-stream", "rfc9114-6.2.1-first-frame", "rfc9114-4.1-data-before-headers"),
    checks=(*checks.COMMON, checks.Handshakes(1), checks.version_is_1, checks.Alpn(HTTP3)),
)
