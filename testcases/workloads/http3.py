"""A download over HTTP/3 and TLS."""

from testcases.workloads.base import KB, Workload

WORKLOAD = Workload(
    name="h3",
    description="Download one file over HTTP/3: goodput from the client's first packet to the last byte.",
    protocol="h3",
    sizes=(2_000 * KB,),
    sweep=(500 * KB, 2_000 * KB, 10_000 * KB),
)
