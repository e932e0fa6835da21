"""BP: during the transfer, a NAT gives the client another port."""

from testcases.links import REBIND_PORT
from testcases.rebinding import rebinding

CASE = rebinding(
    name="rebind-port",
    abbreviation="BP",
    description="10 MiB arrive although a NAT changes the client's port after 1 s, then every 5 s; "
    "new paths are validated.",
    link=REBIND_PORT,
)
