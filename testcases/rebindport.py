"""BP: a NAT gives the client another port in mid-transfer."""

from testcases.rebinding import rebinding
from testcases.scenarios import REBIND_PORT

CASE = rebinding(
    name="rebind-port",
    abbreviation="BP",
    description="10 MiB arrive although a NAT changes the client's port after 1 s, then every 5 s; "
    "new paths are validated.",
    scenario=REBIND_PORT,
)
