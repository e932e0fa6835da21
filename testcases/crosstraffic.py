"""C: 25 MiB on the public runner's link, beside a TCP download with CUBIC that starts at the same time."""

from runner.units import MIB
from testcases.links import DEFAULT
from testcases.measurements import measurement

CASE = measurement(
    name="crosstraffic",
    abbreviation="C",
    description="25 MiB on the public runner's link, beside a download that starts at the same time.",
    link=DEFAULT,
    timeout=180.0,
    iterations=5,
    size=25 * MIB,
    beside="tcp-cubic",
)
