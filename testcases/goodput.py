"""G: 10 MiB on the public runner's link: 10 Mbit/s both ways, 30 ms RTT."""

from testcases.links import DEFAULT
from testcases.measurements import measurement

CASE = measurement(
    name="goodput",
    abbreviation="G",
    description="10 MiB on the public runner's link: 10 Mbit/s both ways, 30 ms RTT.",
    link=DEFAULT,
    timeout=60.0,
)
