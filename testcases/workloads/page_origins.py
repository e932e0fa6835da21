"""Chromium loads the reference page from many origins over TLS, as pages of today are spread."""

from testcases.workloads.base import Workload

WORKLOAD = Workload(
    name="page-origins",
    description="Chromium loads the reference page, 75 objects of 12 origins, over HTTP/1.1 and TLS, cache empty.",
    protocol="http/1.1",
    page=True,
    origins=12,
    source="QPEP paper (2021), figure 6: pages of the Alexa list, whose objects lie on many hosts",
)
