"""STARLINK: 10 MiB over a Starlink access: 150/150 Mbit/s advertised. It needs a real link (`--link`)."""

from testcases.links import STARLINK
from testcases.measurements import measurement

CASE = measurement(
    name="starlink",
    abbreviation="STL",
    description="10 MiB over a Starlink access: 150/150 Mbit/s advertised.",
    link=STARLINK,
    timeout=120.0,
    iterations=5,
)
