"""A download over HTTP/1.1 and TLS."""

from testcases.workloads.base import KB, Workload

WORKLOAD = Workload(
    name="h1",
    description="Download one file over HTTP/1.1 and TLS: goodput from the client's first packet to the last byte.",
    protocol="http/1.1",
    sizes=(2_000 * KB,),
    sweep=(500 * KB, 2_000 * KB, 10_000 * KB),
)
