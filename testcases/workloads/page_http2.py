"""Chromium loads the reference page over HTTP/2."""

from testcases.workloads.base import Workload

WORKLOAD = Workload(
    name="page-h2",
    description="Chromium loads the reference page, 75 objects, over HTTP/2, cache empty.",
    protocol="h2",
    page=True,
    source="QUIC-PEP paper (2022), table II",
)
