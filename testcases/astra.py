"""ASTRA: 10 MiB over a geostationary Astra access: 20/2 Mbit/s advertised. It needs a real link (`--link`)."""

from testcases.links import ASTRA
from testcases.measurements import measurement

CASE = measurement(
    name="astra",
    abbreviation="AST",
    description="10 MiB over a geostationary Astra access: 20/2 Mbit/s advertised.",
    link=ASTRA,
    timeout=120.0,
    iterations=5,
)
