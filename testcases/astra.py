"""ASTRA: 10 MiB over a geostationary Astra access: 20/2 Mbit/s advertised. A real link: `--link`."""

from testcases.measurements import measurement
from testcases.scenarios import ASTRA

CASE = measurement(
    name="astra",
    abbreviation="AST",
    description="10 MiB over a geostationary Astra access: 20/2 Mbit/s advertised.",
    scenario=ASTRA,
    timeout=120.0,
    iterations=5,
)
