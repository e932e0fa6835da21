"""SAT: 10 MiB over a geostationary satellite: 20/2 Mbit/s, 600 ms RTT, no loss."""

from testcases.measurements import measurement
from testcases.scenarios import SAT

CASE = measurement(
    name="sat",
    abbreviation="SAT",
    description="10 MiB over a geostationary satellite: 20/2 Mbit/s, 600 ms RTT, no loss.",
    scenario=SAT,
    timeout=120.0,
)
