"""G: 10 MiB on the public runner's link: 10 Mbit/s both ways, 30 ms RTT."""

from testcases.measurements import measurement
from testcases.scenarios import DEFAULT

CASE = measurement(
    name="goodput",
    abbreviation="G",
    description="10 MiB on the public runner's link: 10 Mbit/s both ways, 30 ms RTT.",
    scenario=DEFAULT,
    timeout=60.0,
)
