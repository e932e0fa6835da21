"""A download over HTTP/2 and TLS."""

from testcases.workloads.base import KB, Workload

WORKLOAD = Workload(
    name="h2",
    description="Download one file over HTTP/2: goodput from the client's first packet to the last byte.",
    protocol="h2",
    sizes=(2_000 * KB,),
    sweep=(500 * KB, 2_000 * KB, 10_000 * KB),
)
