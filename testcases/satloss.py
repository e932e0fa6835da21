"""SATL: 10 MiB over a geostationary satellite that loses 1 % of the packets both ways."""

from testcases.measurements import measurement
from testcases.scenarios import SATLOSS

CASE = measurement(
    name="satloss",
    abbreviation="SATL",
    description="10 MiB over a geostationary satellite that loses 1 % of the packets both ways.",
    scenario=SATLOSS,
    timeout=360.0,
)
