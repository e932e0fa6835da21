"""STARLINK: 10 MiB over a Starlink access: 150/150 Mbit/s advertised. A real link: `--link`."""

from testcases.measurements import measurement
from testcases.scenarios import STARLINK

CASE = measurement(
    name="starlink",
    abbreviation="STL",
    description="10 MiB over a Starlink access: 150/150 Mbit/s advertised.",
    scenario=STARLINK,
    timeout=120.0,
    iterations=5,
)
