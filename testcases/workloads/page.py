"""Chromium loads the reference page over HTTP/1.1 in the clear, as the papers' browsers did."""

from testcases.workloads.base import Workload

WORKLOAD = Workload(
    name="page",
    description="Chromium loads the reference page, 75 objects, over HTTP/1.1 in the clear, cache empty.",
    protocol="http/1.1",
    page=True,
    encrypted=False,
    source="QUIC-PEP paper (2022), table II: RS, FCP, PLT; QPEP paper (2021), figure 7",
)
