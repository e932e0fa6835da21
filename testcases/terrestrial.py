"""T: 10 MiB on a terrestrial link: 20 Mbit/s both ways, 30 ms RTT."""

from testcases.measurements import measurement
from testcases.scenarios import TERRESTRIAL

CASE = measurement(
    name="terrestrial",
    abbreviation="T",
    description="10 MiB on a terrestrial link: 20 Mbit/s both ways, 30 ms RTT.",
    scenario=TERRESTRIAL,
    timeout=60.0,
)
