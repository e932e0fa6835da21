"""SAT: 10 MiB over a geostationary satellite: 20/2 Mbit/s, 600 ms RTT, no loss."""

from testcases.links import SAT
from testcases.measurements import measurement

CASE = measurement(
    name="sat",
    abbreviation="SAT",
    description="10 MiB over a geostationary satellite: 20/2 Mbit/s, 600 ms RTT, no loss.",
    link=SAT,
    timeout=120.0,
)
