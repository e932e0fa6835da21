"""T: 10 MiB on a terrestrial link: 20 Mbit/s both ways, 30 ms RTT."""

from testcases.links import TERRESTRIAL
from testcases.measurements import measurement

CASE = measurement(
    name="terrestrial",
    abbreviation="T",
    description="10 MiB on a terrestrial link: 20 Mbit/s both ways, 30 ms RTT.",
    link=TERRESTRIAL,
    timeout=60.0,
)
