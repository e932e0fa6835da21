"""Goodput of one TCP connection by the size of the transfer."""

from testcases.workloads.base import KB, Workload

WORKLOAD = Workload(
    name="goodput",
    description="Download one file over HTTP/1.1 in the clear: goodput from the client's SYN to the last byte.",
    protocol="http/1.1",
    sizes=(500 * KB, 2_000 * KB, 10_000 * KB),
    sweep=tuple(range(500 * KB, 10_000 * KB + 1, 250 * KB)),
    encrypted=False,
    source="QPEP paper (2021), figure 5: iperf3, 0.5 to 10 MB by 250 kB",
)
