"""Chromium loads the reference page over HTTP/3."""

from testcases.workloads.base import Workload

WORKLOAD = Workload(
    name="page-h3",
    description="Chromium loads the reference page, 75 objects, over HTTP/3, cache empty.",
    protocol="h3",
    page=True,
    source="QUIC-PEP paper (2022), table II",
)
