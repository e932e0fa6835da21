"""Goodput of one TCP connection over IPv6: whether a path carries it, and as fast."""

from testcases.workloads.base import KB, Workload

WORKLOAD = Workload(
    name="goodput-ipv6",
    description="The same over IPv6 from client to server; what carries it over the satellite may be IPv4.",
    protocol="http/1.1",
    host="server6",
    sizes=(2_000 * KB,),
    sweep=tuple(range(500 * KB, 10_000 * KB + 1, 250 * KB)),
    encrypted=False,
)
