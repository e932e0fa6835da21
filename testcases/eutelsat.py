"""EUTELSAT: 10 MiB over a geostationary Eutelsat access: 50/5 Mbit/s advertised. A real link: `--link`."""

from testcases.measurements import measurement
from testcases.scenarios import EUTELSAT

CASE = measurement(
    name="eutelsat",
    abbreviation="EUT",
    description="10 MiB over a geostationary Eutelsat access: 50/5 Mbit/s advertised.",
    scenario=EUTELSAT,
    timeout=120.0,
    iterations=5,
)
