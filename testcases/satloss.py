"""SATL: 10 MiB over a geostationary satellite that loses 1 % of the packets both ways."""

from testcases.links import SATLOSS
from testcases.measurements import measurement

CASE = measurement(
    name="satloss",
    abbreviation="SATL",
    description="10 MiB over a geostationary satellite that loses 1 % of the packets both ways.",
    link=SATLOSS,
    timeout=360.0,
)
