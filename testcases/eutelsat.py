"""EUTELSAT: 10 MiB over a geostationary Eutelsat access: 50/5 Mbit/s advertised. It needs a real link (`--link`)."""

from testcases.links import EUTELSAT
from testcases.measurements import measurement

CASE = measurement(
    name="eutelsat",
    abbreviation="EUT",
    description="10 MiB over a geostationary Eutelsat access: 50/5 Mbit/s advertised.",
    link=EUTELSAT,
    timeout=120.0,
    iterations=5,
)
